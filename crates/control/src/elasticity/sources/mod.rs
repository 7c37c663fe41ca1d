//! What a policy's sources measured of a fleet's members, beside what its engine's `observe` says.
//!
//! ```text
//!   members of the last turn ─▶ ask: each source, once a second at most ─▶ values and failures
//!   members of this turn ─▶ lay over: a measure that a source gives is taken from there alone
//! ```
//!
//! Sources are asked before adapters, so that what the adapters say is fresh when the turn decides.
//! Nobody knows what a source gives before it gave something. Until then no measure of `observe` counts either: two that
//! share a name may differ in their unit, and the one that is wanted is the source's.
//!
//! Must never: make a sample of what was not measured, or fill in from `observe` what a source fails to give.

mod ganglia;
mod http;
mod prometheus;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use model::elasticity::adapter::{Measured, Member, MemberState};
use model::elasticity::{Measure, Policy, Source, SourceKind};
use model::{Moment, WallMillis};
use protocol::elasticity::{measures_used, per_second};
use runtime::Clock;
use runtime::network::fetch::{Fetcher, Question};

/// How often a source is asked at most.
const ASK_SPAN: Duration = Duration::from_secs(1);
/// What a Ganglia daemon may take, and say.
const GANGLIA_LIMITS: (Duration, usize) = (Duration::from_secs(5), 16 * 1024 * 1024);
/// What a member's page may take, and be long.
const PROMETHEUS_LIMITS: (Duration, usize) = (Duration::from_secs(2), 4 * 1024 * 1024);
/// A counter's gain counts over such a span in any case: turns may be five seconds apart, however young samples must be.
const GAIN_SPAN_MIN: Duration = Duration::from_secs(15);
/// Members that are asked at the same time.
const MEMBERS_AT_ONCE: usize = 32;
/// Members of which one source's failures are told; the others are counted.
const FAILURES_TOLD: usize = 3;
/// Ganglia tells ages in whole seconds, so one report seems to be up to a second older or younger. In milliseconds.
const GANGLIA_STEP_MS: u64 = 1000;
/// Processor time in percent; from the next one, if a page has none of this name.
const PROCESSOR: &str = "processor";
const PROCESSOR_SECONDS: &str = "process_cpu_seconds_total";

/// A member that is asked about: what its engine calls it, and its address.
type Place = (String, String);
/// Values of members by measure, and when each was measured.
type Values = BTreeMap<String, BTreeMap<Measure, (f64, WallMillis)>>;

/// The sources of one fleet. All that is remembered may be lost.
pub(super) struct Sources {
    fetcher: Arc<dyn Fetcher>,
    clock: Arc<dyn Clock>,
    asked: Vec<SourceAsked>,
    /// From which source each measure comes.
    owners: BTreeMap<Measure, Source>,
}

/// A source, and what it said last.
struct SourceAsked {
    source: Source,
    at: Option<Moment>,
    /// Measures that it gave at any time; none while it was never heard.
    gives: BTreeSet<Measure>,
    values: Values,
    failures: Vec<String>,
    memory: Memory,
}

/// What is needed of earlier answers to read the next.
#[derive(Default)]
struct Memory {
    /// When each figure of a member in Ganglia was measured.
    reported: BTreeMap<(String, Measure), WallMillis>,
    /// The last reading of each counter of a member.
    counters: BTreeMap<(String, Measure), SourceReading>,
}

/// A counter's reading.
#[derive(Clone, Copy)]
struct SourceReading {
    value: f64,
    at: WallMillis,
    /// Whether the page said when it was; otherwise it is by the monotonic clock, so that a step of the other is no time.
    is_stamped: bool,
    seen: Moment,
}

/// What a source said in one turn.
#[derive(Default)]
struct SourceHeard {
    gives: BTreeSet<Measure>,
    values: Values,
    failures: Vec<String>,
}

impl Sources {
    pub(super) fn new(fetcher: Arc<dyn Fetcher>, clock: Arc<dyn Clock>) -> Sources {
        Sources { fetcher, clock, asked: Vec::new(), owners: BTreeMap::new() }
    }

    /// Asks the policy's sources about these members, beside each other. What failed, each with why and what helps.
    pub(super) async fn ask(&mut self, policy: &Policy, members: &[Member]) -> Vec<String> {
        self.follow(policy);
        if self.asked.is_empty() {
            return Vec::new();
        }
        let (places, mut failures) = places(members);
        if places.is_empty() {
            return failures;
        }
        let (fetcher, clock, used) = (&self.fetcher, &self.clock, measures_used(policy));
        let turn = Turn { fetcher, clock, places: &places, used: &used, policy };
        let now = clock.now();
        let is_due = |asked: &&mut SourceAsked| asked.at.is_none_or(|at| now.since(at) >= ASK_SPAN);
        let due = self.asked.iter_mut().filter(is_due);
        futures_util::future::join_all(due.map(|asked| turn.ask(asked))).await;
        failures.extend(self.asked.iter().flat_map(|asked| asked.failures.iter().cloned()));
        failures
    }

    /// Lays what was measured over what `observe` says. The measures that come from elsewhere from now on: samples of them
    /// that are older are of another kind.
    pub(super) fn lay_over(&mut self, members: &mut [Member], now: WallMillis) -> Vec<Measure> {
        let mut owners = BTreeMap::new();
        for asked in self.asked.iter().rev() {
            owners.extend(asked.gives.iter().map(|measure| (measure.clone(), asked.source.clone())));
        }
        let names: BTreeSet<&Measure> = owners.keys().chain(self.owners.keys()).collect();
        let moved = names.into_iter().filter(|name| owners.get(*name) != self.owners.get(*name));
        let moved = moved.cloned().collect();
        let is_unknown = self.asked.iter().any(|asked| asked.gives.is_empty());
        for member in members {
            member.measures.retain(|measure, _| !is_unknown && !owners.contains_key(measure));
            for asked in &self.asked {
                for (measure, (value, at)) in asked.values.get(&member.id).into_iter().flatten() {
                    // One of the future has no age.
                    let Some(age_ms) = now.0.checked_sub(at.0) else { continue };
                    if owners.get(measure) == Some(&asked.source) {
                        member.measures.insert(measure.clone(), Measured { value: *value, age_ms });
                    }
                }
            }
        }
        self.owners = owners;
        moved
    }

    /// Follows the policy: forgets sources that it does not name any more.
    fn follow(&mut self, policy: &Policy) {
        let mut before = std::mem::take(&mut self.asked);
        for source in &policy.sources {
            let known = before.iter().position(|asked| asked.source == *source);
            self.asked.push(known.map_or_else(|| SourceAsked::new(source), |at| before.swap_remove(at)));
        }
    }
}

impl SourceAsked {
    fn new(source: &Source) -> SourceAsked {
        SourceAsked {
            source: source.clone(),
            at: None,
            gives: BTreeSet::new(),
            values: Values::new(),
            failures: Vec::new(),
            memory: Memory::default(),
        }
    }
}

/// The members to ask about, and those that no source could tell apart.
fn places(members: &[Member]) -> (Vec<Place>, Vec<String>) {
    let mut by_address: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut failures = Vec::new();
    let are_of_use = |member: &&Member| matches!(member.state, MemberState::Serving | MemberState::Draining);
    for member in members.iter().filter(are_of_use) {
        match member.address.as_deref() {
            Some(address) => by_address.entry(address).or_default().push(&member.id),
            None => failures.push(format!(
                "sources measure nothing of {}: the engine adapter gives no address of it",
                member.id
            )),
        }
    }
    let mut places = Vec::new();
    for (address, ids) in by_address {
        match ids[..] {
            [id] => places.push((id.to_owned(), address.to_owned())),
            _ => failures.push(format!(
                "sources measure nothing of {}: they share the address {address}, so their figures cannot be told apart; \
                 leave out `sources`, or give each its own address",
                ids.join(", ")
            )),
        }
    }
    (places, failures)
}

/// What all sources of a turn are asked with.
struct Turn<'a> {
    fetcher: &'a Arc<dyn Fetcher>,
    clock: &'a Arc<dyn Clock>,
    places: &'a [Place],
    used: &'a BTreeSet<Measure>,
    policy: &'a Policy,
}

impl Turn<'_> {
    async fn ask(&self, asked: &mut SourceAsked) {
        let SourceAsked { source, memory, at, .. } = asked;
        *at = Some(self.clock.now());
        let mut heard = match source.kind {
            SourceKind::Ganglia => self.ask_ganglia(source, memory).await,
            SourceKind::Prometheus => self.ask_prometheus(source, memory).await,
        };
        let mut measured = heard.values.values().flat_map(BTreeMap::keys);
        let ungiven = measured.find(|measure| !heard.gives.contains(*measure));
        assert_eq!(ungiven, None, "a source gives each measure of which it has a value");
        asked.gives.extend(heard.gives);
        if asked.gives.is_empty() && heard.failures.is_empty() {
            let used: Vec<&str> = self.used.iter().map(String::as_str).collect();
            let why =
                format!("it gives none of the measures by which the size is chosen ({})", used.join(", "));
            let help = "name one that it gives in a rule, or leave it out, with `tontine elastic apply`";
            heard.failures = told(source, vec![why], help);
        }
        asked.values = heard.values;
        if asked.failures != heard.failures {
            for failure in &heard.failures {
                tracing::warn!(error = failure, "source failed");
            }
        }
        asked.failures = heard.failures;
    }

    async fn ask_ganglia(&self, source: &Source, memory: &mut Memory) -> SourceHeard {
        let mut heard = SourceHeard::default();
        let hosts = match self.fetch(source, "", GANGLIA_LIMITS).await {
            Ok(document) => ganglia::read(document, |name| self.used.contains(name)),
            Err(why) => Err(why),
        };
        let hosts = match hosts {
            Ok(hosts) => hosts,
            Err(why) => {
                heard.failures.push(format!(
                    "source ganglia at {} failed: {why}; see to the gmond there, or name another one in `sources` with \
                     `tontine elastic apply`",
                    source.told()
                ));
                return heard;
            }
        };
        let now = self.clock.wall();
        let mut missing = Vec::new();
        for (member, address) in self.places {
            let hosts: Vec<&ganglia::Host> = hosts.iter().filter(|host| host.is_at(address)).collect();
            if hosts.is_empty() {
                missing.push(format!("it knows no host {address} of {member}"));
            }
            for (measure, figure) in hosts.into_iter().flat_map(|host| &host.metrics) {
                heard.gives.insert(measure.clone());
                let Some(figure) = figure else { continue };
                let at = WallMillis(now.0.saturating_sub(figure.age_ms));
                let values = heard.values.entry(member.clone()).or_default();
                if values.get(measure).is_none_or(|(_, other)| *other < at) {
                    values.insert(measure.clone(), (figure.value, at));
                }
            }
        }
        memory.settle(&mut heard.values);
        let help = "send its figures there (`gmetric --spoof` gives those of one member)";
        heard.failures.extend(told(source, missing, help));
        heard
    }

    async fn ask_prometheus(&self, source: &Source, memory: &mut Memory) -> SourceHeard {
        let pages = stream::iter(self.places.iter().map(|place| self.page(source, place)));
        let mut pages: Vec<_> = pages.buffer_unordered(MEMBERS_AT_ONCE).collect().await;
        pages.sort_by(|one, other| one.member.cmp(other.member));
        let (mut heard, mut missing) = (SourceHeard::default(), Vec::new());
        memory.counters.retain(|(id, _), _| self.places.iter().any(|(member, _)| member == id));
        for MemberPage { member, content, seen, wall } in pages {
            let content = match content {
                Ok(content) => content,
                Err(why) => {
                    missing.push(format!("it gave nothing of {member}: {why}"));
                    continue;
                }
            };
            let derives = self.used.contains(PROCESSOR) && !content.contains_key(PROCESSOR);
            let values = heard.values.entry(member.to_owned()).or_default();
            for (name, series) in content {
                let value = match series.is_counter {
                    true => memory.gained((member, &name), SourceReading::new(series, seen), self.age_max()),
                    false => Some(series.value),
                };
                let value = value.filter(|value| value.is_finite());
                let at = series.stamp.map_or(wall, WallMillis);
                let processor = (derives && name == PROCESSOR_SECONDS).then(|| (PROCESSOR.to_owned(), 100.0));
                let itself = self.used.contains(&name).then_some((name, 1.0));
                for (measure, factor) in itself.into_iter().chain(processor) {
                    values.extend(value.map(|value| (measure.clone(), (value * factor, at))));
                    heard.gives.insert(measure);
                }
            }
        }
        let help = "see to its exporter, or change `sources` with `tontine elastic apply`";
        heard.failures = told(source, missing, help);
        heard
    }

    /// A member's page.
    async fn page<'b>(&self, source: &Source, (member, address): &'b Place) -> MemberPage<'b> {
        let content = self.fetch(source, address, PROMETHEUS_LIMITS).await;
        let (seen, wall) = (self.clock.now(), self.clock.wall());
        let is_asked = |name: &str| {
            self.used.contains(name) || name == PROCESSOR_SECONDS && self.used.contains(PROCESSOR)
        };
        let content = content.and_then(|answer| http::page(&answer));
        let content = content.and_then(|page| prometheus::read(page, is_asked));
        MemberPage { member, content, seen, wall }
    }

    async fn fetch(
        &self,
        source: &Source,
        member: &str,
        (time_max, bytes_max): (Duration, usize),
    ) -> Result<Vec<u8>, String> {
        let (address, path) = source.endpoint(member)?;
        let words = match source.kind {
            SourceKind::Ganglia => Vec::new(),
            SourceKind::Prometheus => http::request(&address, &path),
        };
        let question = Question { address, words, bytes_max, time_max };
        self.fetcher.fetch(question).await.map_err(|error| error.to_string())
    }

    /// The longest span over which a counter's gain says something of now.
    fn age_max(&self) -> Duration {
        GAIN_SPAN_MIN.max(Duration::from_secs(self.policy.sample_age_max))
    }
}

/// What a member's page said, and when.
struct MemberPage<'a> {
    member: &'a str,
    content: Result<BTreeMap<String, prometheus::Series>, String>,
    seen: Moment,
    wall: WallMillis,
}

impl SourceReading {
    fn new(series: prometheus::Series, seen: Moment) -> SourceReading {
        let at = series.stamp.unwrap_or(seen.nanos / 1_000_000);
        SourceReading { value: series.value, at: WallMillis(at), is_stamped: series.stamp.is_some(), seen }
    }
}

impl Memory {
    /// What a member's counter gained in a second since it was read last; none where that was too long ago.
    fn gained(&mut self, (member, name): (&str, &str), now: SourceReading, age_max: Duration) -> Option<f64> {
        let before = self.counters.insert((member.to_owned(), name.to_owned()), now)?;
        let is_usable = before.is_stamped == now.is_stamped && now.seen.since(before.seen) <= age_max;
        if is_usable { per_second((before.value, before.at), (now.value, now.at)) } else { None }
    }

    /// Gives a figure that was told before the time that it had then.
    fn settle(&mut self, values: &mut Values) {
        let mut reported = BTreeMap::new();
        for (member, figures) in values {
            for (measure, (_, at)) in figures {
                let key = (member.clone(), measure.clone());
                if let Some(before) = self.reported.get(&key)
                    && before.0.abs_diff(at.0) < GANGLIA_STEP_MS
                {
                    *at = *before;
                }
                reported.insert(key, *at);
            }
        }
        self.reported = reported;
    }
}

/// The failures of single members, the first few of them, each with the source and what helps.
fn told(source: &Source, mut missing: Vec<String>, help: &str) -> Vec<String> {
    let more = missing.len().saturating_sub(FAILURES_TOLD);
    missing.truncate(FAILURES_TOLD);
    if let (1.., Some(last)) = (more, missing.last_mut()) {
        last.push_str(&format!(", and {more} more like it"));
    }
    let kind = match source.kind {
        SourceKind::Ganglia => "ganglia",
        SourceKind::Prometheus => "prometheus",
    };
    missing.into_iter().map(|why| format!("source {kind} at {}: {why}; {help}", source.told())).collect()
}

#[cfg(test)]
mod tests;
