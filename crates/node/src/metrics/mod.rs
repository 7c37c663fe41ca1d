//! Numbers about this node for whoever scrapes it: counters, gauges and histograms, shown as Prometheus text.
//!
//! ```text
//! counter("tontine_handoff_hints_delivered_total", &[])      ──► Counter: one atomic, kept by its user
//! watch("tontine_handoff_hints_pending", &[], || hints.len()) ──► asked when somebody reads
//! ```
//!
//! A registry belongs to one node and is handed to whoever counts; there is none for the process. Counting is one
//! relaxed atomic addition, so the hot path may do it; registering takes a lock, so do that once and keep the handle.
//!
//! Names are `tontine_<room>_<thing>_<unit>[_total]`: only counters end in `_total`, durations are in seconds, labels
//! are bounded (a store, a node, an outcome; never a key). Each is described in [`TABLE`]; one that is not, or has
//! other labels than are described there, is a bug and panics when registered.
//!
//! **Architecture Invariant:** at most [`SERIES_MAX`] series for each name; what comes after them is counted in one
//! series whose labels all say `other`, so that the sum stays right.

mod table;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use runtime::locks::Mutex;

pub use self::table::{Described, TABLE};

/// Series of one name; far above stores times outcomes or the nodes of a cluster.
pub const SERIES_MAX: usize = 1024;

/// Upper bounds of the classes of durations, in microseconds: from a memory access to a deadline.
const DURATION_BOUNDS_US: [u64; 18] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 5_000_000, 60_000_000,
];

/// Only grows. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Counts this many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts one more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Goes up and down. Clones are the same gauge.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// It is so much now.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// So much more, or less.
    pub fn add(&self, difference: i64) {
        self.0.fetch_add(difference, Ordering::Relaxed);
    }

    /// How much it is.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long things took, in classes. Clones are the same histogram.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Arc<HistogramState>);

#[derive(Debug, Default)]
struct HistogramState {
    /// The last class is everything above all bounds.
    classes: [AtomicU64; DURATION_BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// One more that took this long.
    pub fn observe(&self, took: Duration) {
        self.observe_many(took, 1);
    }

    /// This many more that took this long each: what was answered together is counted together.
    pub fn observe_many(&self, took: Duration, count: u64) {
        // The sum counts nanoseconds, so that what takes less than a microsecond does not count as nothing.
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let class = DURATION_BOUNDS_US.partition_point(|&bound| bound * 1_000 < nanos);
        self.0.classes[class].fetch_add(count, Ordering::Relaxed);
        self.0.sum_ns.fetch_add(nanos.saturating_mul(count), Ordering::Relaxed);
    }

    /// How many so far.
    pub fn count(&self) -> u64 {
        self.0.classes.iter().map(|class| class.load(Ordering::Relaxed)).sum()
    }
}

/// Asked for a number when somebody reads.
type Asked = Arc<dyn Fn() -> f64 + Send + Sync>;

#[derive(Clone)]
enum Series {
    Counter(Counter),
    Gauge(Gauge),
    /// Each of those who count has its own part; their sum is shown.
    Histogram(Vec<Histogram>),
    Watched(Asked),
}

struct Family {
    described: &'static Described,
    /// By the labels as they are shown.
    series: BTreeMap<String, Series>,
    /// Lists further series with their numbers when somebody reads.
    listed: Option<Listed>,
}

/// Asked for the values of a label, each with its number.
type Listed = Arc<dyn Fn() -> Vec<(String, f64)> + Send + Sync>;

/// A family as it was when somebody read it.
type Shown = (&'static Described, Vec<(String, Series)>, Option<Listed>);

/// The numbers of one node.
#[derive(Default)]
pub struct Metrics {
    families: Mutex<BTreeMap<&'static str, Family>>,
}

/// Labels of one series: names and values.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

impl Metrics {
    /// No numbers yet.
    pub fn new() -> Arc<Metrics> {
        Arc::default()
    }

    /// The counter of this name with these labels; the same one when asked again.
    ///
    /// # Panics
    /// When the name breaks the rules above, is not described, or is registered as something else.
    pub fn counter(&self, name: &'static str, labels: Labels<'_>) -> Counter {
        match self.series(name, "counter", labels, || Series::Counter(Counter::default())) {
            Series::Counter(counter) => counter,
            _ => panic!("{name} is a watched counter"),
        }
    }

    /// The gauge of this name with these labels; the same one when asked again.
    ///
    /// # Panics
    /// As [`Metrics::counter`].
    pub fn gauge(&self, name: &'static str, labels: Labels<'_>) -> Gauge {
        match self.series(name, "gauge", labels, || Series::Gauge(Gauge::default())) {
            Series::Gauge(gauge) => gauge,
            _ => panic!("{name} is a watched gauge"),
        }
    }

    /// A part of the histogram of durations of this name, which ends in `_seconds`: another one each time, so that
    /// threads that count much do not write to the same memory. Readers get the sum of all parts.
    ///
    /// # Panics
    /// As [`Metrics::counter`].
    pub fn durations(&self, name: &'static str, labels: Labels<'_>) -> Histogram {
        let part = Histogram::default();
        self.add_durations(name, labels, part.clone());
        part
    }

    /// Makes a histogram that somebody counts in already a part of the one of this name.
    ///
    /// # Panics
    /// As [`Metrics::counter`].
    pub fn add_durations(&self, name: &'static str, labels: Labels<'_>, part: Histogram) {
        assert!(name.ends_with("_seconds"), "{name} measures durations, so it ends in _seconds");
        self.with_series(
            name,
            "histogram",
            labels,
            || Series::Histogram(Vec::new()),
            |series| {
                if let Series::Histogram(parts) = series {
                    parts.push(part);
                }
            },
        );
    }

    /// Shows what `ask` says whenever somebody reads; replaces what was watched under the same name and labels.
    /// `ask` is called without any lock of the registry; it should hold only weak references to what it asks.
    ///
    /// # Panics
    /// As [`Metrics::counter`].
    pub fn watch(
        &self,
        name: &'static str,
        labels: Labels<'_>,
        ask: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        let asked = Series::Watched(Arc::new(ask));
        self.with_series(
            name,
            described(name).kind,
            labels,
            || asked.clone(),
            |series| *series = asked.clone(),
        );
    }

    /// Shows what `list` says whenever somebody reads, for a metric with one label: its values, each with a number.
    /// As with [`Metrics::watch`], at most [`SERIES_MAX`] are shown.
    ///
    /// # Panics
    /// As [`Metrics::counter`], or when the metric has not just one label.
    pub fn watch_each(
        &self,
        name: &'static str,
        list: impl Fn() -> Vec<(String, f64)> + Send + Sync + 'static,
    ) {
        let described = described(name);
        assert_eq!(described.labels.len(), 1, "{name} has another number of labels than one");
        check(described, described.kind, &[(described.labels[0], "")]);
        self.families.lock().entry(name).or_insert_with(|| Family::new(described)).listed =
            Some(Arc::new(list));
    }

    fn series(
        &self,
        name: &'static str,
        kind: &'static str,
        labels: Labels<'_>,
        fresh: impl FnOnce() -> Series,
    ) -> Series {
        self.with_series(name, kind, labels, fresh, |series| series.clone())
    }

    fn with_series<T>(
        &self,
        name: &'static str,
        kind: &'static str,
        labels: Labels<'_>,
        fresh: impl FnOnce() -> Series,
        then: impl FnOnce(&mut Series) -> T,
    ) -> T {
        let described = described(name);
        check(described, kind, labels);
        let mut families = self.families.lock();
        let family = families.entry(name).or_insert_with(|| Family::new(described));
        let mut key = shown(labels);
        if family.series.len() >= SERIES_MAX && !family.series.contains_key(&key) {
            let others: Vec<_> = labels.iter().map(|(label, _)| (*label, "other")).collect();
            key = shown(&others);
        }
        then(family.series.entry(key).or_insert_with(fresh))
    }

    /// All numbers as Prometheus text (version 0.0.4).
    pub fn text(&self) -> String {
        let families: Vec<Shown> = {
            let families = self.families.lock();
            let listed = families.values().map(|family| {
                let series = family.series.iter().map(|(labels, series)| (labels.clone(), series.clone()));
                (family.described, series.collect(), family.listed.clone())
            });
            listed.collect()
        };
        let mut text = String::new();
        for (described, mut series, listed) in families {
            let Described { name, kind, meaning, .. } = described;
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", meaning.replace('\\', "\\\\"));
            let listed = listed.map_or_else(Vec::new, |list| list());
            series.extend(listed.into_iter().take(SERIES_MAX).map(|(value, number)| {
                (shown(&[(described.labels[0], &value)]), Series::Watched(Arc::new(move || number)))
            }));
            for (labels, series) in series {
                write_series(&mut text, name, &labels, &series);
            }
        }
        text
    }
}

impl Family {
    fn new(described: &'static Described) -> Family {
        Family { described, series: BTreeMap::new(), listed: None }
    }
}

fn write_series(text: &mut String, name: &str, labels: &str, series: &Series) {
    let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    // Writing to a string cannot fail.
    let _ = match series {
        Series::Counter(counter) => writeln!(text, "{name}{braced} {}", counter.get()),
        Series::Gauge(gauge) => writeln!(text, "{name}{braced} {}", gauge.get()),
        Series::Watched(ask) => writeln!(text, "{name}{braced} {}", ask()),
        Series::Histogram(parts) => {
            let comma = if labels.is_empty() { "" } else { "," };
            let mut below = 0;
            for position in 0..=DURATION_BOUNDS_US.len() {
                below +=
                    parts.iter().map(|part| part.0.classes[position].load(Ordering::Relaxed)).sum::<u64>();
                let bound = DURATION_BOUNDS_US.get(position).map(|&bound| bound as f64 / 1e6);
                let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
                let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {below}");
            }
            let nanos: u64 = parts.iter().map(|part| part.0.sum_ns.load(Ordering::Relaxed)).sum();
            let sum = nanos as f64 / 1e9;
            writeln!(text, "{name}_sum{braced} {sum}\n{name}_count{braced} {below}")
        }
    };
}

fn shown(labels: Labels<'_>) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let each: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    each.join(",")
}

fn described(name: &str) -> &'static Described {
    table::find(name).unwrap_or_else(|| panic!("{name} is not described in the table of metrics"))
}

fn check(described: &Described, kind: &str, labels: Labels<'_>) {
    let name = described.name;
    let words = |text: &str| {
        text.split('_').all(|word| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
    };
    assert!(name.starts_with("tontine_") && words(name), "{name} is not tontine_<room>_<thing>_<unit>");
    assert_eq!(name.ends_with("_total"), kind == "counter", "{name}: counters, and only they, end in _total");
    assert_eq!(described.kind, kind, "{name} is described as another kind");
    assert!(labels.iter().all(|(label, _)| words(label) && *label != "le"), "{name} has odd labels");
    assert!(
        labels.iter().map(|(label, _)| label).eq(described.labels),
        "{name} is described with other labels"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_in_the_format_of_prometheus() {
        let metrics = Metrics::new();
        let outcome: Labels<'_> = &[("outcome", "a\"b")];
        metrics.counter("tontine_antientropy_sessions_total", outcome).add(3);
        metrics.counter("tontine_antientropy_sessions_total", outcome).increment();
        metrics.gauge("tontine_handoff_hints_pending", &[]).set(-2);
        metrics.watch("tontine_node_uptime_seconds", &[], || 1.5);
        metrics.watch("tontine_node_uptime_seconds", &[], || 2.5);
        metrics.watch_each("tontine_store_records", || {
            vec![("carts".to_owned(), 7.0), ("users".to_owned(), 8.0)]
        });
        let labels: Labels<'_> = &[("door", "redis"), ("operation", "get")];
        let [one, other] =
            [(); 2].map(|()| metrics.durations("tontine_node_request_duration_seconds", labels));
        one.observe_many(Duration::from_micros(100), 3);
        other.observe(Duration::from_secs(3600));
        assert_eq!((one.count(), other.count()), (3, 1));
        let text = metrics.text();
        for line in [
            "# TYPE tontine_handoff_hints_pending gauge",
            "tontine_handoff_hints_pending -2",
            "tontine_antientropy_sessions_total{outcome=\"a\\\"b\"} 4",
            "tontine_node_uptime_seconds 2.5",
            "tontine_store_records{store=\"carts\"} 7",
            "tontine_store_records{store=\"users\"} 8",
            "tontine_node_request_duration_seconds_bucket{door=\"redis\",operation=\"get\",le=\"0.00005\"} 0",
            "tontine_node_request_duration_seconds_bucket{door=\"redis\",operation=\"get\",le=\"0.0001\"} 3",
            "tontine_node_request_duration_seconds_bucket{door=\"redis\",operation=\"get\",le=\"+Inf\"} 4",
            "tontine_node_request_duration_seconds_sum{door=\"redis\",operation=\"get\"} 3600.0003",
            "tontine_node_request_duration_seconds_count{door=\"redis\",operation=\"get\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn unbounded_labels_end_in_one_series_and_the_sum_stays_right() {
        let metrics = Metrics::new();
        for code in 0..SERIES_MAX + 50 {
            let code = code.to_string();
            metrics.counter("tontine_node_errors_total", &[("code", &code)]).increment();
        }
        let text = metrics.text();
        assert!(text.contains("tontine_node_errors_total{code=\"other\"} 50\n"), "{text}");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(lines.count(), SERIES_MAX + 1);
    }

    /// A registered metric is checked when it is registered; this is about those that some nodes never register.
    #[test]
    fn the_table_follows_the_naming_rules_and_explains_each_metric() {
        for described in TABLE {
            let labels: Vec<_> = described.labels.iter().map(|label| (*label, "x")).collect();
            check(described, described.kind, &labels);
            let Described { name, unit, meaning, .. } = *described;
            assert!(meaning.ends_with('.') && meaning.split(' ').count() >= 4, "{name}: {meaning}");
            for (suffix, wanted) in [("_seconds", "seconds"), ("_bytes", "bytes"), ("_bytes_total", "bytes")]
            {
                assert!(!name.ends_with(suffix) || unit == wanted, "{name} is in {unit}");
            }
        }
        let mut names: Vec<_> = TABLE.iter().map(|described| described.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len(), "no name is there twice");
    }

    #[test]
    #[should_panic(expected = "is described as another kind")]
    fn a_counter_is_not_registered_as_a_gauge() {
        let _ = Metrics::new().durations("tontine_node_uptime_seconds", &[]);
    }

    #[test]
    #[should_panic(expected = "is not described")]
    fn a_metric_that_is_not_in_the_table_is_refused() {
        let _ = Metrics::new().gauge("tontine_node_mood", &[]);
    }
}
