//! Numbers about this node for whoever scrapes it: counters, gauges and histograms, shown as Prometheus text.
//!
//! ```text
//! counter("tontine_handoff_hints_delivered_total", "…", &[("target", "n3")]) ──► Counter: one atomic, kept by its user
//! watch("tontine_storage_records", …, || engine.stats().records)             ──► asked when somebody reads
//! ```
//!
//! A registry belongs to one node and is handed to whoever counts; there is none for the process. Counting is one
//! relaxed atomic addition, so the hot path may do it; registering takes a lock, so do that once and keep the handle.
//!
//! Names are `tontine_<room>_<thing>_<unit>[_total]`: only counters end in `_total`, durations are in seconds, labels
//! are bounded (a store, a node, an outcome; never a key). A name that is not is a bug and panics when registered.
//!
//! **Architecture Invariant:** at most [`SERIES_MAX`] series for each name; what comes after them is counted in one
//! series whose labels all say `other`, so that the sum stays right.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Series of one name; far above stores times outcomes or the nodes of a cluster.
pub const SERIES_MAX: usize = 1024;

/// Upper bounds of the classes of durations, in microseconds: from a memory access to a deadline.
const DURATION_BOUNDS_US: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    5_000_000, 60_000_000,
];

/// Only grows. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Counts so many more.
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
    sum_us: AtomicU64,
}

impl Histogram {
    /// One more that took this long.
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let class = DURATION_BOUNDS_US.partition_point(|&bound| bound < micros);
        self.0.classes[class].fetch_add(1, Ordering::Relaxed);
        self.0.sum_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn count(&self) -> u64 {
        self.0.classes.iter().map(|class| class.load(Ordering::Relaxed)).sum()
    }
}

/// What a watched number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the node runs.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Asked for a number when somebody reads.
type Asked = Arc<dyn Fn() -> f64 + Send + Sync>;

#[derive(Clone)]
enum Series {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
    Watched(Asked),
}

struct Family {
    help: &'static str,
    kind: &'static str,
    /// By the labels as they are shown.
    series: BTreeMap<String, Series>,
}

/// Name, help, kind and series of a family, as they were when somebody read them.
type Shown = (&'static str, &'static str, &'static str, Vec<(String, Series)>);

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
    /// When the name breaks the rules above, or is registered as something else.
    pub fn counter(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Counter {
        let fresh = || Series::Counter(Counter::default());
        match self.series(name, help, "counter", labels, fresh) {
            Series::Counter(counter) => counter,
            _ => panic!("{name} is a watched counter"),
        }
    }

    /// The gauge of this name with these labels; the same one when asked again.
    ///
    /// # Panics
    /// As [`Metrics::counter`].
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Gauge {
        match self.series(name, help, "gauge", labels, || Series::Gauge(Gauge::default())) {
            Series::Gauge(gauge) => gauge,
            _ => panic!("{name} is a watched gauge"),
        }
    }

    /// The histogram of durations of this name, which ends in `_seconds`; the same one when asked again.
    ///
    /// # Panics
    /// As [`Metrics::counter`].
    pub fn durations(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Histogram {
        assert!(name.ends_with("_seconds"), "{name} measures durations, so it ends in _seconds");
        match self.series(name, help, "histogram", labels, || Series::Histogram(Histogram::default())) {
            Series::Histogram(histogram) => histogram,
            _ => unreachable!("the kind was checked"),
        }
    }

    /// Shows what `ask` says whenever somebody reads; replaces what was watched under the same name and labels.
    /// `ask` is called without any lock of the registry; it should hold only weak references to what it asks.
    ///
    /// # Panics
    /// As [`Metrics::counter`].
    pub fn watch(
        &self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        labels: Labels<'_>,
        ask: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
        let asked: Asked = Arc::new(ask);
        self.series(name, help, kind, labels, || Series::Watched(asked.clone()));
        if let Some(family) = self.families.lock().get_mut(name)
            && let Some(series) = family.series.get_mut(&shown(labels))
        {
            *series = Series::Watched(asked);
        }
    }

    fn series(
        &self,
        name: &'static str,
        help: &'static str,
        kind: &'static str,
        labels: Labels<'_>,
        fresh: impl FnOnce() -> Series,
    ) -> Series {
        check(name, kind, labels);
        let mut families = self.families.lock();
        let family = families.entry(name).or_insert_with(|| Family { help, kind, series: BTreeMap::new() });
        assert!(family.kind == kind, "{name} is a {} already", family.kind);
        let mut key = shown(labels);
        if family.series.len() >= SERIES_MAX && !family.series.contains_key(&key) {
            let others: Vec<_> = labels.iter().map(|(label, _)| (*label, "other")).collect();
            key = shown(&others);
        }
        family.series.entry(key).or_insert_with(fresh).clone()
    }

    /// All numbers as Prometheus text (version 0.0.4).
    pub fn text(&self) -> String {
        let families: Vec<Shown> = {
            let families = self.families.lock();
            let listed = families.iter().map(|(name, family)| {
                let series = family.series.iter().map(|(labels, series)| (labels.clone(), series.clone()));
                (*name, family.help, family.kind, series.collect())
            });
            listed.collect()
        };
        let mut text = String::new();
        for (name, help, kind, series) in families {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, series) in series {
                write_series(&mut text, name, &labels, &series);
            }
        }
        text
    }
}

fn write_series(text: &mut String, name: &str, labels: &str, series: &Series) {
    let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    // Writing to a string cannot fail.
    let _ = match series {
        Series::Counter(counter) => writeln!(text, "{name}{braced} {}", counter.get()),
        Series::Gauge(gauge) => writeln!(text, "{name}{braced} {}", gauge.get()),
        Series::Watched(ask) => writeln!(text, "{name}{braced} {}", ask()),
        Series::Histogram(histogram) => {
            let comma = if labels.is_empty() { "" } else { "," };
            let mut below = 0;
            for (position, class) in histogram.0.classes.iter().enumerate() {
                below += class.load(Ordering::Relaxed);
                let bound = DURATION_BOUNDS_US.get(position).map(|&bound| bound as f64 / 1e6);
                let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
                let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {below}");
            }
            let sum = histogram.0.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
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

fn check(name: &str, kind: &str, labels: Labels<'_>) {
    let words = |text: &str| {
        text.split('_').all(|word| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
    };
    assert!(name.starts_with("tontine_") && words(name), "{name} is not tontine_<room>_<thing>_<unit>");
    assert_eq!(name.ends_with("_total"), kind == "counter", "{name}: counters, and only they, end in _total");
    assert!(labels.iter().all(|(label, _)| words(label) && *label != "le"), "{name} has odd labels");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let metrics = Metrics::new();
        metrics.counter("tontine_node_requests_total", "Requests.", &[("store", "a\"b")]).add(3);
        metrics.counter("tontine_node_requests_total", "Requests.", &[("store", "a\"b")]).increment();
        metrics.gauge("tontine_handoff_hints_pending", "Hints.", &[]).set(-2);
        metrics.watch(Kind::Gauge, "tontine_node_uptime_seconds", "Uptime.", &[], || 1.5);
        metrics.watch(Kind::Gauge, "tontine_node_uptime_seconds", "Uptime.", &[], || 2.5);
        let took =
            metrics.durations("tontine_node_request_duration_seconds", "Time.", &[("operation", "get")]);
        took.observe(Duration::from_micros(100));
        took.observe(Duration::from_secs(3600));
        assert_eq!(took.count(), 2);
        let text = metrics.text();
        for line in [
            "# TYPE tontine_handoff_hints_pending gauge",
            "tontine_handoff_hints_pending -2",
            "tontine_node_requests_total{store=\"a\\\"b\"} 4",
            "tontine_node_uptime_seconds 2.5",
            "tontine_node_request_duration_seconds_bucket{operation=\"get\",le=\"0.00005\"} 0",
            "tontine_node_request_duration_seconds_bucket{operation=\"get\",le=\"0.0001\"} 1",
            "tontine_node_request_duration_seconds_bucket{operation=\"get\",le=\"+Inf\"} 2",
            "tontine_node_request_duration_seconds_sum{operation=\"get\"} 3600.0001",
            "tontine_node_request_duration_seconds_count{operation=\"get\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn labels_without_bound_end_in_one_series_and_the_sum_stays_right() {
        let metrics = Metrics::new();
        for peer in 0..SERIES_MAX + 50 {
            let peer = peer.to_string();
            metrics.counter("tontine_gossip_rounds_total", "Rounds.", &[("peer", &peer)]).increment();
        }
        let text = metrics.text();
        assert!(text.contains("tontine_gossip_rounds_total{peer=\"other\"} 50\n"), "{text}");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(lines.count(), SERIES_MAX + 1);
    }

    #[test]
    #[should_panic(expected = "end in _total")]
    fn a_gauge_is_not_named_as_a_counter() {
        let _ = Metrics::new().gauge("tontine_node_links_total", "Links.", &[]);
    }
}
