//! A lane: one session that takes operations, carries them out, checks and records them.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::pacer::DueQueue;
use super::recorder::{Recorder, Times, Verdict};
use crate::target::{Answer, Outcome, Session};
use crate::workload::values::{self, Verdict as ValueVerdict};
use crate::workload::{Kind, Operation, OperationStream, Step, Workload};

/// When a run is over; shared by all lanes.
#[derive(Debug)]
pub(super) struct Limits {
    /// Operations from here on are measured.
    pub measured_from: Instant,
    /// No operation is due after this. In a closed loop none starts after it either.
    pub end: Option<Instant>,
    /// How long after the end operations that were due before it may still start.
    pub drain_time_max: Duration,
    /// Measured operations that may still start.
    pub remaining: AtomicU64,
}

impl Limits {
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
pub(super) struct Shared {
    pub workload: Arc<Workload>,
    pub limits: Arc<Limits>,
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
    kind: Kind,
    then: Option<Operation>,
    inserted: Option<u64>,
    intended: Instant,
}

pub(super) struct Lane {
    shared: Arc<Shared>,
    stream: OperationStream,
    session: Box<dyn Session>,
    intended: Vec<Instant>,
    flights: Vec<Flight>,
    operations: Vec<Operation>,
    answers: Vec<Answer>,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, stream: OperationStream, session: Box<dyn Session>) -> Self {
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
                let Limits { end, drain_time_max, .. } = *self.shared.limits;
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
            let Some(Step { kind, operation, then, inserted }) = step else { break };
            self.operations.push(operation);
            self.flights.push(Flight { kind, then, inserted, intended });
        }
        !self.operations.is_empty()
    }

    /// Sends the second halves of read-modify-writes whose first half went well, as one more batch.
    async fn follow_up(&mut self, first: &[Answer]) -> Vec<FollowUp> {
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

    fn record(&mut self, started: Instant, first: &[Answer], follow_ups: &[FollowUp]) {
        let verify = !self.shared.workload.options().no_verify;
        let mut follow_ups = follow_ups.iter().peekable();
        // Checking values takes longer than counting: do it before the lock is taken.
        let verdicts: Vec<Verdict> = self
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
                verdict = Verdict::Failed(error.to_string());
            }
            if flight.kind == Kind::ReadModifyWrite {
                recorder.part(Kind::Read, flight.intended, times, &verdict);
                if let Some(second) = follow_ups.next_if(|second| second.index == index) {
                    let written = judge(&second.operation, &second.answer.outcome, verify);
                    let alone =
                        Times { intended: second.started, started: second.started, ended: second.answer.at };
                    recorder.part(Kind::Update, flight.intended, alone, &written);
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
    answer: Answer,
}

/// The verdict on both halves: what went wrong in the read is not made good by the write.
fn worse(read: Verdict, written: Verdict) -> Verdict {
    if written == Verdict::Done { read } else { written }
}

/// Decides what an outcome means.
fn judge(operation: &Operation, outcome: &Outcome, verify: bool) -> Verdict {
    match (operation, outcome) {
        (_, Outcome::Failed(reason)) => Verdict::Failed(reason.clone()),
        (_, Outcome::Indeterminate(reason)) => Verdict::Indeterminate(reason.clone()),
        (Operation::Get { key }, Outcome::Value(found)) => judge_value(key, found.as_deref(), verify),
        (Operation::MultiGet { keys }, Outcome::Values(found)) if found.len() == keys.len() => {
            let verdicts =
                keys.iter().zip(found).map(|(key, found)| judge_value(key, found.as_deref(), verify));
            verdicts.fold(Verdict::Done, |so_far, next| match (&so_far, &next) {
                (Verdict::Corrupt, _) | (_, Verdict::Done) => so_far,
                _ => next,
            })
        }
        (Operation::Scan { .. }, Outcome::Range(found)) if found.is_empty() => Verdict::Missing,
        (Operation::Scan { count, .. }, Outcome::Range(found)) => {
            let sound = found.len() as u64 <= *count
                && found.iter().all(|(key, value)| judge_value(key, Some(value), verify) == Verdict::Done);
            if sound { Verdict::Done } else { Verdict::Corrupt }
        }
        (Operation::Put { .. } | Operation::Delete { .. }, Outcome::Written) => Verdict::Done,
        _ => Verdict::Failed("an answer to another question".to_owned()),
    }
}

fn judge_value(key: &[u8], found: Option<&[u8]>, verify: bool) -> Verdict {
    match found {
        None => Verdict::Missing,
        Some(value) if verify && values::verify(key, value) == ValueVerdict::Corrupt => Verdict::Corrupt,
        Some(_) => Verdict::Done,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn limits(operations: u64) -> (Limits, Instant) {
        let from = Instant::now();
        let end = Some(from + Duration::from_secs(10));
        (
            Limits {
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
        assert_eq!(judge(&get, &value(&good), true), Verdict::Done);
        let bad = values::make(b"user2", 5, 100);
        assert_eq!(judge(&get, &value(&bad), true), Verdict::Corrupt);
        assert_eq!(judge(&get, &value(&bad), false), Verdict::Done);
        assert_eq!(judge(&get, &Outcome::Value(None), true), Verdict::Missing);
        let many = Operation::MultiGet { keys: vec![key.clone(), key.clone()] };
        let found = |values: Vec<Option<Bytes>>| judge(&many, &Outcome::Values(values), true);
        assert_eq!(found(vec![Some(good.clone()), None]), Verdict::Missing);
        assert_eq!(found(vec![Some(bad), None]), Verdict::Corrupt);
        assert_eq!(found(vec![Some(good.clone()), Some(good.clone())]), Verdict::Done);
        assert!(matches!(found(vec![Some(good.clone())]), Verdict::Failed(_)), "one answer short");
        let scan = Operation::Scan { start: key.clone(), count: 1 };
        let pair = (key, good);
        assert_eq!(judge(&scan, &Outcome::Range(vec![pair.clone()]), true), Verdict::Done);
        assert_eq!(judge(&scan, &Outcome::Range(vec![pair.clone(), pair]), true), Verdict::Corrupt);
        assert_eq!(judge(&scan, &Outcome::Range(vec![]), true), Verdict::Missing);
    }
}
