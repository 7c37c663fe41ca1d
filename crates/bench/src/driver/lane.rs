//! A lane: one session that takes operations, carries them out, checks and records them.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::pacer::DueQueue;
use super::recorder::{OperationVerdict, Recorder, Times};
use crate::target::{Outcome, Session, TimedOutcome};
use crate::workload::values::{self, ValueVerdict};
use crate::workload::{NextOperation, Operation, OperationKind, OperationStream, Workload};

/// When a run is over; shared by all lanes.
#[derive(Debug)]
pub(super) struct LaneLimits {
    /// Operations from here on are measured.
    pub measured_from: Instant,
    /// No operation is due after this. In a closed loop none starts after it either.
    pub end: Option<Instant>,
    /// How long after the end operations that were due before it may still start.
    pub drain_time_max: Duration,
    /// Measured operations that may still start.
    pub remaining: AtomicU64,
}

impl LaneLimits {
    /// Grants up to `wanted` operations that are intended at `at`. Warming up costs nothing.
    pub(super) fn grant(&self, wanted: u64, at: Instant) -> u64 {
        if at < self.measured_from {
            return wanted;
        }
        if self.end.is_some_and(|end| at >= end) {
            return 0;
        }
        let mut granted = 0;
        let taken = |left: u64| {
            granted = wanted.min(left);
            (granted > 0).then(|| left - granted)
        };
        let _ = self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        granted
    }
}

/// What all lanes of one thread share.
#[derive(Debug)]
pub(super) struct LaneShared {
    pub workload: Arc<Workload>,
    pub limits: Arc<LaneLimits>,
    /// Operations completed so far, over all threads, for the progress line.
    pub completed: Arc<AtomicU64>,
    pub recorder: Mutex<Recorder>,
    /// Open loop only.
    pub queue: Option<DueQueue>,
    /// Whether records are loaded rather than operations run.
    pub loading: bool,
    /// Operations under way in one lane at most.
    pub depth: usize,
}

/// One operation under way.
struct Flight {
    kind: OperationKind,
    then: Option<Operation>,
    inserted: Option<u64>,
    intended: Instant,
}

pub(super) struct Lane {
    shared: Arc<LaneShared>,
    stream: OperationStream,
    session: Box<dyn Session>,
    intended: Vec<Instant>,
    flights: Vec<Flight>,
    operations: Vec<Operation>,
    answers: Vec<TimedOutcome>,
}

impl Lane {
    pub(super) fn new(shared: Arc<LaneShared>, stream: OperationStream, session: Box<dyn Session>) -> Self {
        Lane {
            shared,
            stream,
            session,
            intended: Vec::new(),
            flights: Vec::new(),
            operations: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Works until there is nothing left to do.
    pub(super) async fn work(mut self) {
        while self.plan().await {
            let started = Instant::now();
            self.answers.clear();
            self.session.run(&self.operations, &mut self.answers).await;
            assert_eq!(self.answers.len(), self.operations.len(), "one answer for each operation");
            let first = std::mem::take(&mut self.answers);
            let follow_ups = self.follow_up(&first).await;
            self.record(started, &first, &follow_ups);
            self.answers = first;
        }
    }

    /// Fills the next batch; `false` when the run is over.
    async fn plan(&mut self) -> bool {
        self.intended.clear();
        self.flights.clear();
        self.operations.clear();
        let depth = self.shared.depth;
        match &self.shared.queue {
            Some(queue) => {
                let LaneLimits { end, drain_time_max, .. } = *self.shared.limits;
                let over = end.is_some_and(|end| Instant::now() >= end + drain_time_max);
                if !over {
                    queue.take(depth, &mut self.intended).await;
                }
            }
            None => {
                let now = Instant::now();
                let granted = self.shared.limits.grant(depth as u64, now);
                self.intended.resize(granted as usize, now);
            }
        }
        for &intended in &self.intended {
            let step =
                if self.shared.loading { self.stream.next_load() } else { Some(self.stream.next_step()) };
            let Some(NextOperation { kind, operation, then, inserted }) = step else { break };
            self.operations.push(operation);
            self.flights.push(Flight { kind, then, inserted, intended });
        }
        !self.operations.is_empty()
    }

    /// Sends the second halves of read-modify-writes whose first half went well, as one more batch.
    async fn follow_up(&mut self, first: &[TimedOutcome]) -> Vec<FollowUp> {
        let mut follow_ups = Vec::new();
        let mut operations = Vec::new();
        for (index, (flight, answer)) in self.flights.iter_mut().zip(first).enumerate() {
            if let (Some(then), Outcome::Value(_)) = (flight.then.take(), &answer.outcome) {
                operations.push(then);
                follow_ups.push(index);
            }
        }
        if operations.is_empty() {
            return Vec::new();
        }
        let started = Instant::now();
        let mut answers = Vec::with_capacity(operations.len());
        self.session.run(&operations, &mut answers).await;
        let paired = follow_ups.into_iter().zip(operations).zip(answers);
        paired.map(|((index, operation), answer)| FollowUp { index, operation, started, answer }).collect()
    }

    fn record(&mut self, started: Instant, first: &[TimedOutcome], follow_ups: &[FollowUp]) {
        let verify = !self.shared.workload.options().no_verify;
        let mut follow_ups = follow_ups.iter().peekable();
        // Checking values takes longer than counting: do it before the lock is taken.
        let verdicts: Vec<OperationVerdict> = self
            .operations
            .iter()
            .zip(first)
            .map(|(op, answer)| judge(op, &answer.outcome, verify))
            .collect();
        let mut recorder = self.shared.recorder.lock().expect("no holder of this lock can panic");
        for (index, ((flight, answer), verdict)) in self.flights.iter().zip(first).zip(verdicts).enumerate() {
            let mut times = Times { intended: flight.intended, started, ended: answer.at };
            let mut verdict = verdict;
            if let Some(inserted) = flight.inserted
                && let Err(error) = self.shared.workload.acknowledge(inserted)
            {
                verdict = OperationVerdict::Failed(error.to_string());
            }
            if flight.kind == OperationKind::ReadModifyWrite {
                recorder.part(OperationKind::Read, flight.intended, times, &verdict);
                if let Some(second) = follow_ups.next_if(|second| second.index == index) {
                    let written = judge(&second.operation, &second.answer.outcome, verify);
                    let alone =
                        Times { intended: second.started, started: second.started, ended: second.answer.at };
                    recorder.part(OperationKind::Update, flight.intended, alone, &written);
                    times.ended = second.answer.at;
                    verdict = worse(verdict, written);
                }
            }
            recorder.operation(flight.kind, times, verdict);
        }
        drop(recorder);
        self.shared.completed.fetch_add(self.flights.len() as u64, Ordering::Relaxed);
    }
}

/// The second half of a read-modify-write.
struct FollowUp {
    index: usize,
    operation: Operation,
    started: Instant,
    answer: TimedOutcome,
}

/// The verdict on both halves: what went wrong in the read is not made good by the write.
fn worse(read: OperationVerdict, written: OperationVerdict) -> OperationVerdict {
    if written == OperationVerdict::Done { read } else { written }
}

/// Decides what an outcome means.
fn judge(operation: &Operation, outcome: &Outcome, verify: bool) -> OperationVerdict {
    match (operation, outcome) {
        (_, Outcome::Failed(reason)) => OperationVerdict::Failed(reason.clone()),
        (_, Outcome::Indeterminate(reason)) => OperationVerdict::Indeterminate(reason.clone()),
        (Operation::Get { key }, Outcome::Value(found)) => judge_value(key, found.as_deref(), verify),
        (Operation::MultiGet { keys }, Outcome::Values(found)) if found.len() == keys.len() => {
            let verdicts =
                keys.iter().zip(found).map(|(key, found)| judge_value(key, found.as_deref(), verify));
            verdicts.fold(OperationVerdict::Done, |so_far, next| match (&so_far, &next) {
                (OperationVerdict::Corrupt, _) | (_, OperationVerdict::Done) => so_far,
                _ => next,
            })
        }
        (Operation::Scan { .. }, Outcome::Range(found)) if found.is_empty() => OperationVerdict::Missing,
        (Operation::Scan { count, .. }, Outcome::Range(found)) => {
            let sound = found.len() as u64 <= *count
                && found
                    .iter()
                    .all(|(key, value)| judge_value(key, Some(value), verify) == OperationVerdict::Done);
            if sound { OperationVerdict::Done } else { OperationVerdict::Corrupt }
        }
        (Operation::Put { .. } | Operation::Delete { .. }, Outcome::Written) => OperationVerdict::Done,
        _ => OperationVerdict::Failed("an answer to another question".to_owned()),
    }
}

fn judge_value(key: &[u8], found: Option<&[u8]>, verify: bool) -> OperationVerdict {
    match found {
        None => OperationVerdict::Missing,
        Some(value) if verify && values::verify(key, value) == ValueVerdict::Corrupt => {
            OperationVerdict::Corrupt
        }
        Some(_) => OperationVerdict::Done,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn limits(operations: u64) -> (LaneLimits, Instant) {
        let from = Instant::now();
        let end = Some(from + Duration::from_secs(10));
        (
            LaneLimits {
                measured_from: from,
                end,
                drain_time_max: Duration::ZERO,
                remaining: AtomicU64::new(operations),
            },
            from,
        )
    }

    #[test]
    fn warming_up_is_free_and_the_budget_is_kept() {
        let (limits, from) = limits(10);
        assert_eq!(limits.grant(100, from.checked_sub(Duration::from_secs(1)).unwrap()), 100);
        assert_eq!(limits.grant(7, from), 7);
        assert_eq!(limits.grant(7, from), 3);
        assert_eq!(limits.grant(7, from), 0);
    }

    #[test]
    fn nothing_starts_after_the_end() {
        let (limits, from) = limits(u64::MAX);
        assert_eq!(limits.grant(1, from + Duration::from_millis(9_999)), 1);
        assert_eq!(limits.grant(1, from + Duration::from_secs(10)), 0);
    }

    #[test]
    fn values_are_judged_by_their_proof() {
        let key = Bytes::from_static(b"user1");
        let get = Operation::Get { key: key.clone() };
        let good = values::make(&key, 5, 100);
        let value = |value: &Bytes| Outcome::Value(Some(value.clone()));
        assert_eq!(judge(&get, &value(&good), true), OperationVerdict::Done);
        let bad = values::make(b"user2", 5, 100);
        assert_eq!(judge(&get, &value(&bad), true), OperationVerdict::Corrupt);
        assert_eq!(judge(&get, &value(&bad), false), OperationVerdict::Done);
        assert_eq!(judge(&get, &Outcome::Value(None), true), OperationVerdict::Missing);
        let many = Operation::MultiGet { keys: vec![key.clone(), key.clone()] };
        let found = |values: Vec<Option<Bytes>>| judge(&many, &Outcome::Values(values), true);
        assert_eq!(found(vec![Some(good.clone()), None]), OperationVerdict::Missing);
        assert_eq!(found(vec![Some(bad), None]), OperationVerdict::Corrupt);
        assert_eq!(found(vec![Some(good.clone()), Some(good.clone())]), OperationVerdict::Done);
        assert!(matches!(found(vec![Some(good.clone())]), OperationVerdict::Failed(_)), "one answer short");
        let scan = Operation::Scan { start: key.clone(), count: 1 };
        let pair = (key, good);
        assert_eq!(judge(&scan, &Outcome::Range(vec![pair.clone()]), true), OperationVerdict::Done);
        assert_eq!(judge(&scan, &Outcome::Range(vec![pair.clone(), pair]), true), OperationVerdict::Corrupt);
        assert_eq!(judge(&scan, &Outcome::Range(vec![]), true), OperationVerdict::Missing);
    }
}
