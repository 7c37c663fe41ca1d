//! What happened, counted: histograms by kind, outcomes, and one row per second.
//!
//! A recorder belongs to one client thread; the driver merges them when all is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::workload::OperationKind;

/// Latencies are kept from 1 µs, in nanoseconds…
const LATENCY_NS_MIN: u64 = 1_000;
/// …to ten minutes; anything above counts as ten minutes.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
/// Three significant digits.
const DIGITS: u8 = 3;
/// The time series needs less: two.
const SERIES_DIGITS: u8 = 2;
/// At most this many distinct reasons of failure are told apart; the rest share one row.
const REASONS_MAX: usize = 20;

/// A histogram of latencies in nanoseconds, with the bounds used everywhere in this crate.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, DIGITS).expect("constant, valid bounds")
}

/// What became of an operation, once its value was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationVerdict {
    /// As it should be.
    Done,
    /// A read found no record where there should be one.
    Missing,
    /// A read found something that was never written.
    Corrupt,
    /// An error, certainly without effect.
    Failed(String),
    /// A write that may or may not have happened.
    Indeterminate(String),
}

/// Latencies of one kind of operation. Only operations that got an answer ([`OperationVerdict::Done`] or
/// [`OperationVerdict::Missing`]) are in here.
#[derive(Clone, Debug)]
pub struct KindRecord {
    /// From the intended start to the answer.
    pub latency: Histogram<u64>,
    /// From the actual start to the answer; what the target alone took.
    pub service: Histogram<u64>,
}

/// One second of the run.
#[derive(Clone, Debug)]
pub struct Second {
    /// Operations completed well in this second.
    pub operations: u64,
    /// Operations that failed, were indeterminate, or read something wrong.
    pub errors: u64,
    /// Latencies in microseconds.
    pub latency_us: Histogram<u32>,
}

impl Second {
    fn empty() -> Self {
        let latency_us = Histogram::new(SERIES_DIGITS).expect("constant, valid digits");
        Second { operations: 0, errors: 0, latency_us }
    }
}

/// Counts of outcomes.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Operations that went well.
    pub done: u64,
    /// Reads that found no record.
    pub missing: u64,
    /// Reads of values that prove to be wrong.
    pub corrupt: u64,
    /// Failures by reason.
    pub failed: BTreeMap<String, u64>,
    /// Writes in doubt, by reason.
    pub indeterminate: BTreeMap<String, u64>,
    /// Arrivals of an open loop that were due before the end and never started.
    pub unstarted: u64,
}

impl Tally {
    /// All operations that were carried out, whatever came of them.
    pub fn total(&self) -> u64 {
        let sum = |reasons: &BTreeMap<String, u64>| reasons.values().sum::<u64>();
        self.done + self.missing + self.corrupt + sum(&self.failed) + sum(&self.indeterminate)
    }

    fn merge(&mut self, other: Tally) {
        self.done += other.done;
        self.missing += other.missing;
        self.corrupt += other.corrupt;
        self.unstarted += other.unstarted;
        for (mine, theirs) in
            [(&mut self.failed, other.failed), (&mut self.indeterminate, other.indeterminate)]
        {
            for (reason, count) in theirs {
                count_reason(mine, reason, count);
            }
        }
    }
}

fn count_reason(reasons: &mut BTreeMap<String, u64>, reason: String, count: u64) {
    let reason = if reasons.len() < REASONS_MAX || reasons.contains_key(&reason) {
        reason
    } else {
        "other reasons".to_owned()
    };
    *reasons.entry(reason).or_default() += count;
}

/// Everything one client thread saw in the measured part of a run.
#[derive(Clone, Debug)]
pub struct Recorder {
    from: Instant,
    /// Open loops have latencies that differ from service times.
    pub open_loop: bool,
    /// Histograms of the kinds that occurred.
    pub kinds: BTreeMap<OperationKind, KindRecord>,
    /// Counts of outcomes.
    pub tally: Tally,
    /// One row per second since the measured part began.
    pub seconds: Vec<Second>,
    /// How much later than intended operations started, in nanoseconds: the client's own share in latency.
    pub lag: Histogram<u64>,
    /// When the last recorded answer came.
    pub last: Instant,
}

/// The three instants of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// When it should have started.
    pub intended: Instant,
    /// When it did start.
    pub started: Instant,
    /// When its answer was complete.
    pub ended: Instant,
}

impl Recorder {
    /// A recorder for operations intended at `from` or later.
    pub fn new(from: Instant, open_loop: bool) -> Self {
        Recorder {
            from,
            open_loop,
            kinds: BTreeMap::new(),
            tally: Tally::default(),
            seconds: Vec::new(),
            lag: latencies(),
            last: from,
        }
    }

    /// Records a whole operation: outcome, latency, and its second.
    pub fn operation(&mut self, kind: OperationKind, times: Times, verdict: OperationVerdict) {
        if times.intended < self.from {
            return;
        }
        self.last = self.last.max(times.ended);
        let latency = self.latency(kind, times, &verdict);
        let well = verdict == OperationVerdict::Done;
        match verdict {
            OperationVerdict::Done => self.tally.done += 1,
            OperationVerdict::Missing => self.tally.missing += 1,
            OperationVerdict::Corrupt => self.tally.corrupt += 1,
            OperationVerdict::Failed(reason) => count_reason(&mut self.tally.failed, reason, 1),
            OperationVerdict::Indeterminate(reason) => count_reason(&mut self.tally.indeterminate, reason, 1),
        }
        let index = times.ended.duration_since(self.from).as_secs() as usize;
        while self.seconds.len() <= index {
            self.seconds.push(Second::empty());
        }
        let second = &mut self.seconds[index];
        if well {
            second.operations += 1;
        } else {
            second.errors += 1;
        }
        // Never `saturating_record`: what a histogram that resizes itself has not grown to yet would be cut off.
        second
            .latency_us
            .record((latency / 1_000).max(1))
            .expect("latencies are clamped, and it resizes itself");
        if self.open_loop {
            let lag = times.started.saturating_duration_since(times.intended);
            self.lag.saturating_record(clamp(lag));
        }
    }

    /// Records the latency of one part of an operation that is counted as a whole elsewhere: exactly when the
    /// whole, intended at `whole_intended`, is.
    pub fn part(
        &mut self,
        kind: OperationKind,
        whole_intended: Instant,
        times: Times,
        verdict: &OperationVerdict,
    ) {
        if whole_intended >= self.from {
            self.latency(kind, times, verdict);
        }
    }

    fn latency(&mut self, kind: OperationKind, times: Times, verdict: &OperationVerdict) -> u64 {
        let latency = clamp(times.ended.saturating_duration_since(times.intended));
        if matches!(verdict, OperationVerdict::Done | OperationVerdict::Missing) {
            let record = self
                .kinds
                .entry(kind)
                .or_insert_with(|| KindRecord { latency: latencies(), service: latencies() });
            record.latency.saturating_record(latency);
            if self.open_loop {
                let service = clamp(times.ended.saturating_duration_since(times.started));
                record.service.saturating_record(service);
            }
        }
        latency
    }

    /// Adds what another thread saw.
    pub fn merge(&mut self, other: Recorder) {
        self.tally.merge(other.tally);
        self.last = self.last.max(other.last);
        self.lag.add(&other.lag).expect("all latency histograms have the same bounds");
        for (kind, theirs) in other.kinds {
            match self.kinds.entry(kind) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(theirs);
                }
                std::collections::btree_map::Entry::Occupied(mut mine) => {
                    let mine = mine.get_mut();
                    mine.latency.add(&theirs.latency).expect("the same bounds");
                    mine.service.add(&theirs.service).expect("the same bounds");
                }
            }
        }
        while self.seconds.len() < other.seconds.len() {
            self.seconds.push(Second::empty());
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(other.seconds) {
            mine.operations += theirs.operations;
            mine.errors += theirs.errors;
            mine.latency_us.add(&theirs.latency_us).expect("histograms of the series resize themselves");
        }
    }

    /// Time from the beginning of the measured part to its last answer.
    pub fn elapsed(&self) -> Duration {
        self.last.duration_since(self.from)
    }
}

fn clamp(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(LATENCY_NS_MAX).clamp(1, LATENCY_NS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(from: Instant, intended_ms: u64, started_ms: u64, ended_ms: u64) -> Times {
        let at = |ms| from + Duration::from_millis(ms);
        Times { intended: at(intended_ms), started: at(started_ms), ended: at(ended_ms) }
    }

    #[test]
    fn latency_counts_from_the_intended_start() {
        let from = Instant::now();
        let mut recorder = Recorder::new(from, true);
        recorder.operation(OperationKind::Read, times(from, 10, 110, 120), OperationVerdict::Done);
        let record = &recorder.kinds[&OperationKind::Read];
        assert!((record.latency.max() as f64 / 1e6 - 110.0).abs() < 0.2);
        assert!((record.service.max() as f64 / 1e6 - 10.0).abs() < 0.02);
        assert!((recorder.lag.max() as f64 / 1e6 - 100.0).abs() < 0.2);
    }

    #[test]
    fn what_was_intended_before_the_measured_part_is_left_out() {
        let start = Instant::now();
        let from = start + Duration::from_millis(100);
        let mut recorder = Recorder::new(from, false);
        recorder.operation(OperationKind::Read, times(start, 90, 90, 150), OperationVerdict::Done);
        assert_eq!(recorder.tally.total(), 0);
        assert!(recorder.kinds.is_empty());
    }

    #[test]
    fn outcomes_are_counted_apart_and_merged() {
        let from = Instant::now();
        let mut one = Recorder::new(from, false);
        let mut two = Recorder::new(from, false);
        one.operation(OperationKind::Read, times(from, 0, 0, 1), OperationVerdict::Missing);
        one.operation(
            OperationKind::Update,
            times(from, 0, 0, 2),
            OperationVerdict::Failed("busy".to_owned()),
        );
        two.operation(
            OperationKind::Update,
            times(from, 0, 0, 2_500),
            OperationVerdict::Indeterminate("late".to_owned()),
        );
        two.operation(
            OperationKind::Update,
            times(from, 0, 0, 3),
            OperationVerdict::Failed("busy".to_owned()),
        );
        two.operation(OperationKind::Read, times(from, 0, 0, 4), OperationVerdict::Corrupt);
        two.operation(OperationKind::Read, times(from, 0, 0, 4), OperationVerdict::Done);
        one.merge(two);
        assert_eq!(one.tally.total(), 6);
        assert_eq!((one.tally.done, one.tally.missing, one.tally.corrupt), (1, 1, 1));
        assert_eq!(one.tally.failed["busy"], 2);
        assert_eq!(one.tally.indeterminate["late"], 1);
        assert_eq!(one.kinds[&OperationKind::Read].latency.len(), 2, "missing and done have a latency");
        assert!(!one.kinds.contains_key(&OperationKind::Update), "failures have none");
        assert_eq!(one.elapsed(), Duration::from_millis(2_500));
        assert_eq!(one.seconds.len(), 3);
        assert_eq!((one.seconds[0].operations, one.seconds[0].errors), (1, 4));
        assert_eq!(one.seconds[2].errors, 1);
        let slowest = one.seconds[2].latency_us.max() as f64;
        assert!((slowest / 2.5e6 - 1.0).abs() < 0.02, "{slowest} µs in its second");
    }

    #[test]
    fn endless_reasons_share_one_row() {
        let from = Instant::now();
        let mut recorder = Recorder::new(from, false);
        for number in 0..100 {
            recorder.operation(
                OperationKind::Read,
                times(from, 0, 0, 1),
                OperationVerdict::Failed(format!("reason {number}")),
            );
        }
        assert_eq!(recorder.tally.failed.len(), REASONS_MAX + 1);
        assert_eq!(recorder.tally.failed["other reasons"], 80);
    }
}
