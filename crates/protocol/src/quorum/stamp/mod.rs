//! Which node stamps a write, for one key or for many.
//!
//! A write is stamped with its dot by a replica of its key (D1), which then drives it to its quorum ([`Write`]). Before
//! that somebody has to choose the replica: a client's library, or the node that a client sent the write to. This
//! machine chooses, for both, and decides what a refusal, a silence or a newer ring means for the choice.
//!
//! ```text
//!   Route ─▶ Ask a candidate ──▶ written ─────────────────────────────────▶ Answer
//!     ▲        ▲    │    │  └──▶ refused for good, or in doubt ───────────▶ Answer
//!     │        └────┘    │
//!     │  certainly not   └─ certainly not written, the last candidate:
//!     │  written               sloppy, no condition, at a node: StandIn, the own node stamps a hint
//!     │                        attempts left:     pause ─┐
//!     └── a newer ring, or after a pause ◀───────────────┘   otherwise ───▶ Answer
//! ```
//!
//! A client's library asks the replicas, those that lag after the others, then fallbacks, which pass the write on. A
//! node asks itself first if it is a replica, then the other replicas. Suspected nodes come last, because silence
//! leaves a write in doubt. With [`StampEntry::Exclusive`] the order of preference stays among nodes that are there, because
//! writers that compete are judged best by the same node. With [`StampEntry::Passed`] a node asks nobody but itself.
//!
//! A single key is a request of one key: nothing here asks how many there are. Each key goes its own way; keys that go
//! to the same node in one step travel together.
//!
//! **Architecture Invariant:** a key is sent to a second node only when the first has certainly not written it, and
//! never to two at once.
//!
//! [`Write`]: super::Write

#[cfg(test)]
mod explore;
mod interface;

use std::time::Duration;

use model::{Generation, Moment, NodeId};
use smallvec::SmallVec;

pub use interface::{
    StampAction, StampActions, StampEntry, StampEvent, StampKeys, StampOptions, StampOutcome, StampReply,
};

use super::multi::KeyIndex;
use super::options::Candidates;

/// How long a connection to a node may take to open at first before another one is asked; doubles with each further
/// attempt. The last attempt waits as long as it takes: that all nodes are slow is no reason to fail.
const OPEN_PATIENCE: Duration = Duration::from_millis(200);
/// Pause before the second attempt; doubles with each further one.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Most doublings of either.
const DOUBLINGS_MAX: u32 = 8;

/// Candidates of a key that need no allocation.
const CANDIDATES_INLINE: usize = 6;

/// The choice of a stamper for each key of one request.
#[derive(Clone, Debug)]
pub struct Stamp {
    keys: SmallVec<[Stamping; 1]>,
    options: StampOptions,
    /// The newest ring that any key was routed by.
    generation: Option<Generation>,
    /// Whether the own node may stamp as a fallback, by that ring's document.
    sloppy: bool,
    /// Attempts before this one.
    attempt: u32,
    /// Keys without an outcome.
    unanswered: usize,
    /// Keys that wait for a node, or for their candidates.
    under_way: usize,
    /// Keys that wait for another node than the own one.
    elsewhere: usize,
}

/// One key and its state.
#[derive(Clone, Debug)]
struct Stamping {
    stage: Stage,
    /// Whom to ask in this attempt, in this order.
    candidates: SmallVec<[NodeId; CANDIDATES_INLINE]>,
    /// Candidates before this position have been asked.
    next: usize,
    /// The ring that the candidates come from; `None` when they are to be told anew, be it of the same ring.
    generation: Option<Generation>,
    /// The replica that the own node's hint would be for.
    target: Option<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its candidates are being told.
    Routing,
    /// This node was asked.
    Asking(NodeId),
    /// The own node stamps a hint.
    StandingIn,
    /// All candidates were asked in this attempt.
    Exhausted,
    /// It has its outcome.
    Answered,
}

/// What the keys of one step want, before it is grouped by node.
#[derive(Default)]
struct Wishes {
    routes: StampKeys,
    pause: Duration,
    asks: SmallVec<[(NodeId, KeyIndex); 2]>,
    stand_ins: SmallVec<[(KeyIndex, NodeId); 1]>,
}

impl Stamp {
    /// Starts with this many keys, numbered from 0. The first action asks for the candidates of all.
    pub fn start(keys: usize, options: StampOptions, actions: &mut StampActions) -> Self {
        let stamping = || Stamping {
            stage: Stage::Routing,
            candidates: SmallVec::new(),
            next: 0,
            generation: None,
            target: None,
        };
        let stamp = Stamp {
            keys: (0..keys).map(|_| stamping()).collect(),
            options,
            generation: None,
            sloppy: false,
            attempt: 0,
            unanswered: keys,
            under_way: keys,
            elsewhere: 0,
        };
        if keys > 0 {
            let keys = (0..keys).map(KeyIndex::at).collect();
            actions.push(StampAction::Route { keys, pause: Duration::ZERO });
        }
        stamp
    }

    /// Takes in what has happened by `now`, and says what to do.
    pub fn step(&mut self, event: StampEvent<'_>, now: Moment, actions: &mut StampActions) {
        let mut wishes = Wishes::default();
        match event {
            StampEvent::Routed { generation, sloppy, routes } => {
                self.learn(generation, now, &mut wishes);
                self.sloppy = sloppy;
                for &(key, candidates) in routes {
                    self.routed(key, candidates, generation, now, &mut wishes, actions);
                }
            }
            StampEvent::Barred { keys } => {
                for &key in keys {
                    if self.stage(key) == Some(Stage::Routing) {
                        self.answer(key, StampOutcome::Refused, actions);
                    }
                }
            }
            StampEvent::Replied { node, replies } => {
                for &(key, reply) in replies {
                    self.replied(node, key, reply, now, &mut wishes, actions);
                }
            }
            StampEvent::Elapsed => self.elapsed(now, actions),
        }
        self.try_again(now, &mut wishes, actions);
        let patience = (self.attempt < self.options.retries).then(|| doubled(OPEN_PATIENCE, self.attempt));
        wishes.act(patience, self.options.own, actions);
        #[cfg(any(test, debug_assertions))]
        self.check();
    }

    /// When the machine must be told that time has passed, at the latest; `None` while no other node is waited for.
    /// What the own node does it ends by itself, by the deadline of its own machine.
    pub fn deadline(&self) -> Option<Moment> {
        (self.elsewhere > 0).then_some(self.options.deadline)
    }

    /// Whether keys have no outcome.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered > 0
    }

    fn stage(&self, key: KeyIndex) -> Option<Stage> {
        self.keys.get(key.position()).map(|stamping| stamping.stage)
    }

    /// Keys that were exhausted by an older ring have other candidates now.
    fn learn(&mut self, generation: Generation, now: Moment, wishes: &mut Wishes) {
        if self.generation >= Some(generation) {
            return;
        }
        self.generation = Some(generation);
        for position in 0..self.keys.len() {
            if self.keys[position].stage == Stage::Exhausted && now < self.options.deadline {
                self.route_again(KeyIndex::at(position), wishes);
            }
        }
    }

    /// A key has its candidates. After news that did not come true it goes on with those that it had.
    fn routed(
        &mut self,
        key: KeyIndex,
        candidates: Candidates<'_>,
        generation: Generation,
        now: Moment,
        wishes: &mut Wishes,
        actions: &mut StampActions,
    ) {
        if self.stage(key) != Some(Stage::Routing) {
            return;
        }
        let StampOptions { own, entry, .. } = self.options;
        // A driver that tells of an older ring than before knows nothing newer.
        let generation = self.generation.max(Some(generation));
        let stamping = &mut self.keys[key.position()];
        if stamping.generation < generation {
            stamping.candidates = order(candidates, own, entry);
            stamping.next = 0;
            stamping.generation = generation;
            stamping.target = candidates.preference.replicas().first().copied();
            if entry == StampEntry::Passed && stamping.candidates.is_empty() {
                return self.answer(key, StampOutcome::NotHere, actions);
            }
        }
        self.go_on(key, now, wishes, actions);
    }

    /// A node has replied to a key that waits for it.
    fn replied(
        &mut self,
        node: NodeId,
        key: KeyIndex,
        reply: StampReply,
        now: Moment,
        wishes: &mut Wishes,
        actions: &mut StampActions,
    ) {
        let stands_in = match self.stage(key) {
            Some(Stage::Asking(asked)) if asked == node => false,
            Some(Stage::StandingIn) if self.options.own == Some(node) => true,
            _ => return,
        };
        match reply {
            StampReply::Written => self.answer(key, StampOutcome::Written, actions),
            StampReply::Lost | StampReply::Refused { certain: false, .. } => {
                self.answer(key, StampOutcome::InDoubt { node }, actions);
            }
            // Each news leads to a newer ring or costs a candidate, so they end. The own node has news, too: the key may
            // have moved since its driver has looked at the ring.
            StampReply::Refused { ring: Some(ring), .. }
                if self.keys[key.position()].generation < Some(ring) =>
            {
                self.route_again(key, wishes);
            }
            StampReply::Unreachable | StampReply::Refused { retryable: true, .. }
                if self.options.entry != StampEntry::Passed && (!stands_in || self.is_behind(key)) =>
            {
                self.go_on(key, now, wishes, actions);
            }
            StampReply::Unreachable | StampReply::Refused { .. } => {
                self.answer(key, StampOutcome::Refused, actions);
            }
        }
    }

    /// Asks the next candidate of a key that nobody has written.
    fn go_on(&mut self, key: KeyIndex, now: Moment, wishes: &mut Wishes, actions: &mut StampActions) {
        if now >= self.options.deadline {
            return self.answer(key, StampOutcome::Exhausted, actions);
        }
        if self.is_behind(key) {
            return self.route_again(key, wishes);
        }
        let sloppy = self.sloppy;
        let stamping = &mut self.keys[key.position()];
        if let Some(&node) = stamping.candidates.get(stamping.next) {
            stamping.next += 1;
            wishes.asks.push((node, key));
            return self.enter(key, Stage::Asking(node));
        }
        let may_stand_in = sloppy && self.options.own.is_some() && self.options.entry == StampEntry::Client;
        if let Some(target) = stamping.target.filter(|_| may_stand_in) {
            wishes.stand_ins.push((key, target));
            return self.enter(key, Stage::StandingIn);
        }
        self.enter(key, Stage::Exhausted);
    }

    /// Whether a newer ring is known than that of a key's candidates.
    fn is_behind(&self, key: KeyIndex) -> bool {
        self.keys[key.position()].generation < self.generation
    }

    /// A key's candidates are told anew.
    fn route_again(&mut self, key: KeyIndex, wishes: &mut Wishes) {
        wishes.routes.push(key);
        self.enter(key, Stage::Routing);
    }

    /// Once nothing is under way, the keys that are exhausted begin their next attempt together, or end.
    fn try_again(&mut self, now: Moment, wishes: &mut Wishes, actions: &mut StampActions) {
        if self.under_way > 0 || self.unanswered == 0 {
            return;
        }
        let may = self.attempt < self.options.retries && now < self.options.deadline;
        for position in 0..self.keys.len() {
            if self.keys[position].stage != Stage::Exhausted {
                continue;
            }
            if may {
                self.keys[position].generation = None;
                self.route_again(KeyIndex::at(position), wishes);
            } else {
                self.answer(KeyIndex::at(position), StampOutcome::Exhausted, actions);
            }
        }
        if may {
            wishes.pause = doubled(RETRY_PAUSE, self.attempt);
            self.attempt += 1;
        }
    }

    /// Nodes that are silent at the deadline leave their keys in doubt.
    fn elapsed(&mut self, now: Moment, actions: &mut StampActions) {
        if now < self.options.deadline {
            return;
        }
        for position in 0..self.keys.len() {
            if let Stage::Asking(node) = self.keys[position].stage
                && Some(node) != self.options.own
            {
                self.answer(KeyIndex::at(position), StampOutcome::InDoubt { node }, actions);
            }
        }
    }

    fn answer(&mut self, key: KeyIndex, outcome: StampOutcome, actions: &mut StampActions) {
        self.enter(key, Stage::Answered);
        actions.push(StampAction::Answer { key, outcome });
    }

    /// Moves a key to another stage, and keeps the counts.
    fn enter(&mut self, key: KeyIndex, stage: Stage) {
        let own = self.options.own;
        let before = std::mem::replace(&mut self.keys[key.position()].stage, stage);
        self.unanswered -= usize::from(stage == Stage::Answered && before != Stage::Answered);
        self.under_way -= usize::from(before.is_under_way());
        self.under_way += usize::from(stage.is_under_way());
        self.elsewhere -= usize::from(before.is_elsewhere(own));
        self.elsewhere += usize::from(stage.is_elsewhere(own));
    }

    /// What always holds between two steps.
    #[cfg(any(test, debug_assertions))]
    fn check(&self) {
        let count = |is: &dyn Fn(Stage) -> bool| self.keys.iter().filter(|key| is(key.stage)).count();
        let own = self.options.own;
        assert_eq!(self.unanswered, count(&|stage| stage != Stage::Answered), "keys without an outcome");
        assert_eq!(self.under_way, count(&Stage::is_under_way), "keys that wait for somebody");
        assert_eq!(self.elsewhere, count(&|stage| stage.is_elsewhere(own)), "keys that wait for others");
        assert!(self.under_way > 0 || self.unanswered == 0, "a key without an outcome waits for nothing");
        assert!(self.attempt <= self.options.retries, "tries too often");
        for stamping in &self.keys {
            assert!(stamping.next <= stamping.candidates.len(), "asks beyond its candidates");
            assert!(stamping.generation <= self.generation, "a key knows a ring that its request does not");
            if let Stage::Asking(node) = stamping.stage {
                let asked = stamping.next.checked_sub(1).and_then(|at| stamping.candidates.get(at));
                assert_eq!(asked, Some(&node), "waits for another node than it asked last");
            }
        }
    }
}

impl Stage {
    /// Whether something will be reported that moves the key.
    fn is_under_way(self) -> bool {
        matches!(self, Stage::Routing | Stage::Asking(_) | Stage::StandingIn)
    }

    fn is_elsewhere(self, own: Option<NodeId>) -> bool {
        matches!(self, Stage::Asking(node) if Some(node) != own)
    }
}

impl Wishes {
    /// What all of it is as actions, grouped by node.
    fn act(mut self, patience: Option<Duration>, own: Option<NodeId>, actions: &mut StampActions) {
        self.asks.sort_unstable();
        for group in self.asks.chunk_by(|one, next| one.0 == next.0) {
            let keys = group.iter().map(|&(_, key)| key).collect();
            actions.push(StampAction::Ask { node: group[0].0, keys, patience });
        }
        if let Some(node) = own.filter(|_| !self.stand_ins.is_empty()) {
            self.stand_ins.sort_unstable();
            actions.push(StampAction::StandIn { node, keys: self.stand_ins });
        }
        if !self.routes.is_empty() {
            self.routes.sort_unstable();
            actions.push(StampAction::Route { keys: self.routes, pause: self.pause });
        }
    }
}

/// Whom to ask to stamp a key, best first.
fn order(
    candidates: Candidates<'_>,
    own: Option<NodeId>,
    entry: StampEntry,
) -> SmallVec<[NodeId; CANDIDATES_INLINE]> {
    let replicas = candidates.preference.replicas();
    let mut order = SmallVec::new();
    if entry == StampEntry::Passed {
        order.extend(own.filter(|own| replicas.contains(own)));
        return order;
    }
    let first = own.filter(|own| entry == StampEntry::Client && replicas.contains(own));
    order.extend(first);
    // A node passes nothing on to fallbacks: it stamps as one itself.
    let relays = if own.is_some() { &[] } else { candidates.preference.fallbacks() };
    for suspected in [false, true] {
        let alike = |&node: &NodeId| {
            Some(node) != first && (candidates.is_suspected(node) && Some(node) != own) == suspected
        };
        let late = |node: NodeId| entry == StampEntry::Client && candidates.lags(node);
        for lags in [false, true] {
            order.extend(replicas.iter().copied().filter(|&node| late(node) == lags).filter(alike));
        }
        order.extend(relays.iter().copied().filter(alike));
    }
    order
}

fn doubled(span: Duration, times: u32) -> Duration {
    span.saturating_mul(1 << times.min(DOUBLINGS_MAX))
}
