//! One comparison with one peer.
//!
//! One request is out at a time. The furthest step goes first (push, pull, list, descend, sums), so what waits in
//! memory stays small however much differs. Each answer names its request; what is late or comes twice changes
//! nothing. A request without an answer is made again; all of them may be carried out twice.
//!
//! Refilling is the same against an empty tree: partitions that differ are taken over whole, page by page, one way.
//!
//! Must never: end as equal while it knows of a difference that was not exchanged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use model::{Moment, PartitionId, Token};

pub use self::messages::{Listing, RequestId, SessionAction, SessionEvent};
use self::queues::{asked, pieces, put_back, requeue, step, take};
use crate::antientropy::merkle::{Digest, Span};
use crate::pace::Pace;

mod messages;
mod queues;

/// Partitions whose sums travel in one message: about 400 KB.
const PARTITIONS_AT_ONCE: usize = 16_384;
/// Spans that one message asks to descend into: their answer has up to 128 KB.
const SPANS_AT_ONCE: usize = 512;
/// Leaves whose keys one message asks for.
const LEAVES_AT_ONCE: usize = 64;
/// Keys whose sets one message carries at most; bytes may end a batch before.
const KEYS_AT_ONCE: usize = 512;
/// Bits by which a step descends.
const STEP_BITS: u8 = 4;
/// Times that a request is made before the session gives up.
const ATTEMPTS_MAX: u32 = 4;

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Both become equal.
    Equal,
    /// This node takes over what the peer has.
    Refill,
    /// Both become equal, and each partition settles: this node enters it, and holds nearly all of it.
    Again,
    /// The peer takes over what this node has, which leaves.
    Give,
}

/// How a session behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What it is for.
    pub goal: Goal,
    /// How long an answer may take.
    pub patience: Duration,
    /// How fast it goes.
    pub pace: Pace,
}

/// What became of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOutcome {
    /// Every partition was compared to the end, and everything that was found to differ was exchanged.
    pub complete: bool,
    /// Partitions compared.
    pub partitions: usize,
    /// Of them, those that differed.
    pub differing: usize,
    /// Of them, those that could not be compared now.
    pub unready: usize,
    /// Keys found to differ.
    pub keys: usize,
    /// Sets that were got and merged here.
    pub pulled: usize,
    /// Sets that were sent to the peer.
    pub pushed: usize,
    /// Keys, spans and partitions that could not be taken care of.
    pub failed: usize,
    /// Requests made.
    pub requests: u64,
    /// Bytes of keys, digests and sets that travelled.
    pub bytes: u64,
}

/// What a comparison knows to be left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Partitions that were not compared to the end.
    pub partitions: usize,
    /// Keys known to differ that were not exchanged.
    pub keys: usize,
}

/// A comparison under way.
#[derive(Debug)]
pub struct Session {
    options: Options,
    sums: VecDeque<PartitionId>,
    descents: VecDeque<(PartitionId, Span, u8)>,
    lists: VecDeque<(PartitionId, Span)>,
    pulls: VecDeque<Bytes>,
    pushes: VecDeque<Bytes>,
    pages: VecDeque<(PartitionId, Token)>,
    /// Partitions of which single keys are exchanged.
    exchanging: BTreeSet<PartitionId>,
    /// Smallest span around each partition.
    roots: BTreeMap<PartitionId, Span>,
    out: Option<Out>,
    last: u64,
    attempts: u32,
    /// Not before this the next request is made.
    rest_until: Option<Moment>,
    outcome: SessionOutcome,
    ended: bool,
}

#[derive(Debug)]
struct Out {
    request: RequestId,
    action: SessionAction,
    deadline: Moment,
}

impl Session {
    /// Compares these partitions, each of these tokens.
    pub fn new(options: Options, partitions: impl IntoIterator<Item = (PartitionId, Span)>) -> Session {
        let roots: BTreeMap<PartitionId, Span> = partitions.into_iter().collect();
        Session {
            options,
            sums: roots.keys().copied().collect(),
            descents: VecDeque::new(),
            lists: VecDeque::new(),
            pulls: VecDeque::new(),
            pushes: VecDeque::new(),
            pages: VecDeque::new(),
            exchanging: BTreeSet::new(),
            roots,
            out: None,
            last: 0,
            attempts: 0,
            rest_until: None,
            outcome: SessionOutcome::default(),
            ended: false,
        }
    }

    /// What is known to be left to do.
    pub fn left(&self) -> Left {
        let mut open: BTreeSet<PartitionId> = self.sums.iter().copied().collect();
        open.extend(self.descents.iter().map(|(id, ..)| *id));
        open.extend(self.lists.iter().map(|(id, _)| *id));
        open.extend(self.pages.iter().map(|(id, _)| *id));
        let mut keys = self.pulls.len() + self.pushes.len();
        match self.out.as_ref().map(|out| &out.action) {
            Some(SessionAction::CompareSums { partitions, .. }) => open.extend(partitions),
            Some(SessionAction::Descend { spans, .. }) => open.extend(spans.iter().map(|(id, ..)| *id)),
            Some(SessionAction::List { spans, .. }) => open.extend(spans.iter().map(|(id, _)| *id)),
            Some(SessionAction::Page { partition, .. }) => open.extend([*partition]),
            Some(SessionAction::Pull { keys: out, .. } | SessionAction::Push { keys: out, .. }) => {
                keys += out.len()
            }
            Some(SessionAction::Settle { .. } | SessionAction::End(_)) | None => {}
        }
        Left { partitions: open.len(), keys }
    }

    /// How late requests are now, for the pace: see [`Pace::observe`].
    pub fn observe(&mut self, now: Moment, times: u32) {
        self.options.pace.observe(now, times);
    }

    /// How fast it goes now.
    pub fn pace(&self) -> Pace {
        self.options.pace
    }

    /// The pages that will be asked for after the one that is out, unless that one has a next; a driver may ask early.
    pub fn pages_after(&self) -> impl Iterator<Item = (PartitionId, Token)> + '_ {
        let is_page = self.out.as_ref().is_some_and(|out| matches!(out.action, SessionAction::Page { .. }));
        self.pages.iter().copied().filter(move |_| is_page)
    }

    /// Begins.
    pub fn start(&mut self, now: Moment, actions: &mut Vec<SessionAction>) {
        self.go_on(now, actions);
    }

    /// A request has been answered, or has failed.
    pub fn step(
        &mut self,
        request: RequestId,
        event: SessionEvent,
        now: Moment,
        actions: &mut Vec<SessionAction>,
    ) {
        let Some(out) = self.out.take_if(|out| out.request == request) else { return };
        if event == SessionEvent::Failed || event.is_idle() {
            return self.failed(out.action, now, actions);
        }
        let bytes = match (out.action, event) {
            (SessionAction::CompareSums { partitions, .. }, SessionEvent::Summed { differing, unready }) => {
                self.summed(partitions, differing, unready, actions)
            }
            (SessionAction::Descend { spans, .. }, SessionEvent::Descended { parts }) => {
                self.descended(spans, parts)
            }
            (SessionAction::List { spans, .. }, SessionEvent::Listed { keys, bytes }) => {
                self.listed(spans, keys);
                bytes
            }
            (SessionAction::Pull { keys, .. }, SessionEvent::Pulled { done, push, failed, bytes }) => {
                self.outcome.pulled += done - failed.min(done);
                self.outcome.failed += failed;
                requeue(&mut self.pulls, keys, done);
                self.pushes.extend(push);
                bytes
            }
            (SessionAction::Push { keys, .. }, SessionEvent::Pushed { done, failed, bytes }) => {
                self.outcome.pushed += done - failed.min(done);
                self.outcome.failed += failed;
                requeue(&mut self.pushes, keys, done);
                bytes
            }
            (SessionAction::Page { partition, .. }, SessionEvent::Paged { next, merged, failed, bytes }) => {
                self.outcome.pulled += merged;
                self.outcome.failed += failed;
                self.paged(partition, next, failed, actions);
                bytes
            }
            // An answer that does not fit its question: whoever gave it has not understood.
            (action, _) => return self.failed(action, now, actions),
        };
        self.attempts = 0;
        self.outcome.bytes += bytes;
        self.rest_until = Some(self.options.pace.rest(now, bytes));
        self.go_on(now, actions);
    }

    /// The deadline has come.
    pub fn elapsed(&mut self, now: Moment, actions: &mut Vec<SessionAction>) {
        if let Some(out) = self.out.take_if(|out| out.deadline <= now) {
            return self.failed(out.action, now, actions);
        }
        self.go_on(now, actions);
    }

    /// Gives up; what was exchanged stays exchanged.
    pub fn abort(&mut self, actions: &mut Vec<SessionAction>) {
        self.end(false, actions);
    }

    /// When to call [`Session::elapsed`]; `None` when it is over.
    pub fn deadline(&self) -> Option<Moment> {
        self.out.as_ref().map(|out| out.deadline).or(self.rest_until)
    }

    /// How far it is.
    pub fn progress(&self) -> SessionOutcome {
        self.outcome
    }

    fn failed(&mut self, action: SessionAction, now: Moment, actions: &mut Vec<SessionAction>) {
        self.attempts += 1;
        if self.attempts >= ATTEMPTS_MAX {
            return self.end(false, actions);
        }
        match action {
            SessionAction::CompareSums { partitions, .. } => put_back(&mut self.sums, partitions),
            SessionAction::Descend { spans, .. } => put_back(&mut self.descents, spans),
            SessionAction::List { spans, .. } => put_back(&mut self.lists, spans),
            SessionAction::Pull { keys, .. } => put_back(&mut self.pulls, keys),
            SessionAction::Push { keys, .. } => put_back(&mut self.pushes, keys),
            SessionAction::Page { partition, from, .. } => self.pages.push_front((partition, from)),
            SessionAction::Settle { .. } | SessionAction::End(_) => unreachable!("it has no answer"),
        }
        self.rest_until = Some(now.after(self.options.patience / 20 * 2u32.pow(self.attempts)));
        self.check();
    }

    fn summed(
        &mut self,
        partitions: Vec<PartitionId>,
        differing: Vec<(PartitionId, u8)>,
        unready: Vec<PartitionId>,
        actions: &mut Vec<SessionAction>,
    ) -> u64 {
        let asked: BTreeSet<PartitionId> = partitions.into_iter().collect();
        let mut unequal = BTreeMap::new();
        unequal.extend(unready.into_iter().map(|id| (id, None)));
        unequal.extend(differing.into_iter().map(|(id, bits)| (id, Some(bits))));
        self.outcome.partitions += asked.len();
        for &partition in &asked {
            match unequal.get(&partition) {
                None => actions.push(SessionAction::Settle { partition }),
                Some(bits) => self.found_unequal(partition, *bits),
            }
        }
        (asked.len() * 18) as u64
    }

    fn found_unequal(&mut self, partition: PartitionId, bits: Option<u8>) {
        let Some(&root) = self.roots.get(&partition) else { return };
        match (self.options.goal, bits) {
            (Goal::Refill, _) | (Goal::Again, None) => {
                self.outcome.differing += 1;
                self.pages.push_back((partition, *root.tokens().start()));
            }
            (Goal::Equal | Goal::Again | Goal::Give, Some(bits)) => {
                self.outcome.differing += 1;
                self.exchanging.insert(partition);
                self.queue(partition, root, bits);
            }
            (Goal::Give, None) => {
                self.outcome.differing += 1;
                self.exchanging.insert(partition);
                self.lists.extend(pieces(root).map(|piece| (partition, piece)));
            }
            (Goal::Equal, None) => self.outcome.unready += 1,
        }
    }

    /// Goes on with a span that differs: finer, or with its keys.
    fn queue(&mut self, partition: PartitionId, span: Span, bits: u8) {
        if span.bits < bits {
            self.descents.push_back((partition, span, bits));
        } else {
            self.lists.push_back((partition, span));
        }
    }

    fn descended(
        &mut self,
        spans: Vec<(PartitionId, Span, u8)>,
        parts: Vec<Option<(Vec<Digest>, Vec<Digest>)>>,
    ) -> u64 {
        let mut bytes = 0;
        let parts = parts.into_iter().chain(std::iter::repeat(None));
        for ((partition, span, leaf_bits), parts) in spans.into_iter().zip(parts) {
            let finer = step(span, leaf_bits);
            let count = 1 << (finer - span.bits);
            match parts {
                Some((mine, theirs)) if mine.len() == count && theirs.len() == count => {
                    bytes += 16 * count as u64;
                    for (at, _) in
                        mine.iter().zip(&theirs).enumerate().filter(|(_, (mine, theirs))| mine != theirs)
                    {
                        let part =
                            Span { bits: finer, prefix: (span.prefix << (finer - span.bits)) + at as u64 };
                        self.queue(partition, part, leaf_bits);
                    }
                }
                // A tree was lost meanwhile, or the answer passed over the span.
                _ => self.outcome.failed += 1,
            }
        }
        bytes
    }

    fn listed(&mut self, spans: Vec<(PartitionId, Span)>, keys: Vec<Option<Listing>>) {
        let done = keys.len();
        for listing in keys {
            let Some(Listing { mine, theirs }) = listing else {
                self.outcome.failed += 1;
                continue;
            };
            let mine: BTreeMap<Bytes, Digest> = mine.into_iter().collect();
            let theirs: BTreeMap<Bytes, Digest> = theirs.into_iter().collect();
            let gives = self.options.goal == Goal::Give;
            for (key, digest) in &theirs {
                let own = mine.get(key);
                if gives && own.is_some_and(|own| own != digest) {
                    self.outcome.keys += 1;
                    self.pushes.push_back(key.clone());
                } else if !gives && own != Some(digest) {
                    self.outcome.keys += 1;
                    self.pulls.push_back(key.clone());
                }
            }
            for key in mine.into_keys().filter(|key| !theirs.contains_key(key)) {
                self.outcome.keys += 1;
                self.pushes.push_back(key);
            }
        }
        requeue(&mut self.lists, spans, done);
    }

    fn paged(
        &mut self,
        partition: PartitionId,
        next: Option<Token>,
        failed: usize,
        actions: &mut Vec<SessionAction>,
    ) {
        if failed > 0 {
            // Something of the partition is missing: it is not settled, another session tries again.
            return;
        }
        match next {
            Some(next) => self.pages.push_front((partition, next)),
            None => actions.push(SessionAction::Settle { partition }),
        }
    }

    /// Makes the next request, if it is time.
    fn go_on(&mut self, now: Moment, actions: &mut Vec<SessionAction>) {
        if self.ended || self.out.is_some() || self.rest_until.is_some_and(|until| until > now) {
            return;
        }
        self.rest_until = None;
        let request = RequestId(self.last + 1);
        let action = if !self.pushes.is_empty() {
            SessionAction::Push { request, keys: take(&mut self.pushes, KEYS_AT_ONCE) }
        } else if !self.pulls.is_empty() {
            SessionAction::Pull { request, keys: take(&mut self.pulls, KEYS_AT_ONCE) }
        } else if !self.lists.is_empty() {
            SessionAction::List { request, spans: take(&mut self.lists, LEAVES_AT_ONCE) }
        } else if !self.descents.is_empty() {
            SessionAction::Descend { request, spans: take(&mut self.descents, SPANS_AT_ONCE) }
        } else if let Some((partition, from)) = self.pages.pop_front() {
            SessionAction::Page { request, partition, from }
        } else if !self.sums.is_empty() {
            SessionAction::CompareSums { request, partitions: take(&mut self.sums, PARTITIONS_AT_ONCE) }
        } else {
            let complete = self.outcome.failed == 0 && self.outcome.unready == 0;
            let exchanged = std::mem::take(&mut self.exchanging);
            if complete && self.options.goal != Goal::Equal {
                actions.extend(exchanged.into_iter().map(|partition| SessionAction::Settle { partition }));
            }
            return self.end(complete, actions);
        };
        self.last += 1;
        self.outcome.requests += 1;
        let deadline = now.after(self.options.patience);
        actions.push(asked(&action));
        self.out = Some(Out { request, action, deadline });
        self.check();
    }

    /// What holds after every step.
    fn check(&self) {
        assert!(self.out.is_none() || self.rest_until.is_none(), "nothing is asked during a rest");
        assert!(
            self.out.as_ref().is_none_or(|out| out.request.0 == self.last),
            "the request that is out is the last one"
        );
        assert!(
            !self.ended || (self.out.is_none() && self.rest_until.is_none()),
            "what is over waits for nothing"
        );
        assert!(self.ended || self.attempts < ATTEMPTS_MAX, "a peer that fails again and again is given up");
        assert_eq!(self.outcome.requests, self.last, "every request is counted");
        let SessionOutcome { partitions, differing, unready, .. } = self.outcome;
        assert!(differing + unready <= partitions, "a partition that differs was compared");
        debug_assert!(
            self.sums.iter().all(|id| self.roots.contains_key(id)),
            "every partition has its tokens"
        );
    }

    fn end(&mut self, complete: bool, actions: &mut Vec<SessionAction>) {
        if !self.ended {
            self.ended = true;
            (self.out, self.rest_until) = (None, None);
            self.outcome.complete = complete;
            assert!(
                !complete || self.left() == Left::default(),
                "nothing that is known to differ is left when replicas pass for equal"
            );
            self.check();
            actions.push(SessionAction::End(self.outcome));
        }
    }
}
