//! One target's courier: the loop around its machine.
//!
//! It ends when no hint is left; a later hint gets a new one.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, join, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use model::{Generation, Moment, NodeId};
use protocol::handoff::{
    BatchId, Errand, Handoff, HandoffAction, HandoffActions, HandoffEvent, HintFacts, PageId,
};
use protocol::lateness::Lateness;
use runtime::{BoxFuture, Clock};
use storage::{ScanCursor, ScanLimit};
use wire::messages::{Ping, Request};

use super::Handoffs;
use super::delivery::{Settled, carry};
use crate::events::Event;
use crate::hints::Hint;

/// One page of hints: a few batches, and little memory.
const PAGE: ScanLimit = ScanLimit { records_max: 256, bytes_max: 1 << 20 };

/// How often the target's state, and the ring, are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Longest wait for the target's workers; batches that fail say what is wrong with it.
const PING_PATIENCE: Duration = Duration::from_secs(1);

/// How often at most events are recorded about one target's hints that were given up.
const EXPIRED_EVENT_INTERVAL: Duration = Duration::from_secs(10);

/// A batch or a question under way.
type Flight = BoxFuture<'static, Landed>;

/// What has come to its end.
enum Landed {
    Batch(BatchId, Errand, Settled),
    /// How many times as long as is ordinary this node's workers took, and how long the target's.
    Asked(u32, Option<Duration>),
}

/// Brings one target its hints.
pub(super) struct Courier {
    target: NodeId,
    machine: Handoff,
    clock: Arc<dyn Clock>,
    events: VecDeque<HandoffEvent>,
    flights: FuturesUnordered<Flight>,
    /// Whether workers are being asked.
    asking: bool,
    /// What the target's workers usually take.
    lateness: Lateness,
    page: Vec<Hint>,
    cursor: Option<ScanCursor>,
    alive: bool,
    generation: Generation,
    /// When it looks up next.
    look_at: Moment,
    started: Moment,
    delivered: u64,
    /// Hints that left since it looked up last.
    recent: u64,
    /// Hints given up that no event has told of yet.
    expired: u64,
    expired_told_at: Moment,
}

impl Courier {
    /// For a target with hints.
    pub(super) fn new(handoffs: &Handoffs, target: NodeId) -> Courier {
        let ports = handoffs.parts.peers.ports();
        let now = ports.clock.now();
        let nodes = handoffs.parts.replica.view().get().cluster().nodes.len();
        let holders = u32::try_from(nodes.saturating_sub(1)).unwrap_or(u32::MAX);
        Courier {
            target,
            machine: Handoff::new(handoffs.parts.options, holders, ports.entropy.next_u64(), now),
            clock: ports.clock.clone(),
            events: VecDeque::new(),
            flights: FuturesUnordered::new(),
            asking: false,
            lateness: Lateness::default(),
            page: Vec::new(),
            cursor: None,
            alive: false,
            generation: handoffs.parts.replica.view().generation(),
            look_at: now,
            started: now,
            delivered: 0,
            recent: 0,
            expired: 0,
            expired_told_at: now,
        }
    }

    /// Serves the target until it has no hints, or the node stops.
    pub(super) async fn run(mut self, handoffs: Weak<Handoffs>) {
        loop {
            {
                let Some(handoffs) = handoffs.upgrade().filter(|handoffs| !handoffs.is_stopped()) else {
                    return;
                };
                self.look(&handoffs);
                let event = self.events.pop_front().unwrap_or(HandoffEvent::Elapsed);
                self.tell(&handoffs, event);
                if self.machine.is_done() && self.is_over(&handoffs) {
                    return;
                }
            }
            if self.events.is_empty() {
                self.wait().await;
            }
        }
    }

    /// Waits for a batch to settle, or until there is something to look at.
    async fn wait(&mut self) {
        let until = self.machine.deadline().map_or(self.look_at, |deadline| deadline.min(self.look_at));
        let timer = self.clock.sleep_until(until);
        if self.flights.is_empty() {
            return timer.await;
        }
        match select(self.flights.next(), timer).await {
            Either::Left((Some(Landed::Batch(batch, errand, settled)), _)) => {
                self.settle(batch, errand, settled);
            }
            Either::Left((Some(Landed::Asked(here, there)), _)) => {
                self.asking = false;
                let there = there.map_or(1, |took| self.lateness.times(took));
                self.events.push_back(HandoffEvent::WorkersAsked { times: here.max(there) });
            }
            Either::Left((None, _)) | Either::Right(_) => {}
        }
    }

    fn settle(&mut self, batch: BatchId, errand: Errand, settled: Settled) {
        let Settled { removed, left, fault } = settled;
        self.recent += removed as u64;
        match errand {
            Errand::Deliver => self.delivered += removed as u64,
            Errand::GiveUp => self.expired += removed as u64,
            Errand::Readdress => {}
        }
        self.events.push_back(HandoffEvent::Settled { batch, removed, left, fault });
    }

    /// Looks at the target's state and the ring, now and then.
    fn look(&mut self, handoffs: &Handoffs) {
        let now = self.clock.now();
        if now < self.look_at {
            return;
        }
        let interval = now.since(self.look_at) + LOOK_INTERVAL;
        self.look_at = now.after(LOOK_INTERVAL);
        // What this node keeps for itself (its disk was full) only waits for itself.
        let own = self.target == handoffs.parts.replica.node();
        let alive = own || handoffs.is_alive(self.target);
        if alive != self.alive {
            self.alive = alive;
            self.events.push_back(if alive { HandoffEvent::TargetRose } else { HandoffEvent::TargetFell });
        }
        let generation = handoffs.parts.replica.view().generation();
        if generation != self.generation {
            self.generation = generation;
            self.events.push_back(HandoffEvent::Rerouted);
        }
        if alive && !own && !self.asking && self.machine.is_delivering() {
            self.ask_workers(handoffs);
        }
        let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
        let fresh = std::mem::take(&mut self.recent).saturating_mul(1000) / millis;
        let (delivering, failures, rate) =
            (self.machine.is_delivering(), self.machine.failures(), self.machine.rate());
        handoffs.note(self.target, |account| {
            // Smoothed over about a second.
            account.hints_per_second = (account.hints_per_second * 4 + fresh).div_ceil(5);
            (account.delivering, account.failures, account.rate) = (delivering, failures, rate);
        });
        if self.expired > 0 && now.since(self.expired_told_at) >= EXPIRED_EVENT_INTERVAL {
            self.tell_expired(handoffs, now);
        }
    }

    /// Asks the workers of both nodes for nothing: whoever serves requests takes longer.
    fn ask_workers(&mut self, handoffs: &Handoffs) {
        let (pulse, peers, target) = (handoffs.parts.pulse.clone(), &handoffs.parts.peers, self.target);
        let (clock, asked_at) = (self.clock.clone(), self.clock.now());
        let ping = peers.call(target, Request::Ping(Ping {}));
        let ping = Box::pin(async move {
            let answer = ping.within(&clock, PING_PATIENCE).await;
            answer.is_ok().then(|| clock.now().since(asked_at))
        });
        self.asking = true;
        self.flights.push(Box::pin(async move {
            let (here, there) = join(pulse.times(), ping).await;
            Landed::Asked(here, there)
        }));
    }

    fn tell_expired(&mut self, handoffs: &Handoffs, now: Moment) {
        let hints = std::mem::take(&mut self.expired);
        self.expired_told_at = now;
        if hints > 0 {
            handoffs.parts.events.record(Event::HintsExpired { target: self.target, hints });
        }
    }

    /// Whether nothing is left to do; otherwise the machine is told of what was parked behind its back.
    fn is_over(&mut self, handoffs: &Handoffs) -> bool {
        if !self.events.is_empty() {
            return false;
        }
        if handoffs.parts.replica.hints().count(self.target) > 0 {
            self.events.push_back(HandoffEvent::Parked);
            return false;
        }
        let now = self.clock.now();
        self.tell_expired(handoffs, now);
        if self.delivered > 0 {
            let (target, hints) = (self.target, self.delivered);
            let seconds = now.since(self.started).as_secs();
            handoffs.parts.events.record(Event::HintsDrained { target, hints, seconds });
        }
        handoffs.note(self.target, |account| {
            (account.served, account.delivering, account.failures) = (false, false, 0);
            account.hints_per_second = 0;
        });
        true
    }

    fn tell(&mut self, handoffs: &Arc<Handoffs>, event: HandoffEvent) {
        let mut actions = HandoffActions::new();
        self.machine.step(event, self.clock.now(), &mut actions);
        for action in actions {
            match action {
                HandoffAction::ReadPage { page, first } => self.read(handoffs, page, first),
                HandoffAction::Carry { batch, errand, hints } => {
                    let carried = carry(handoffs, self.target, errand, self.page[hints].to_vec());
                    self.flights.push(Box::pin(async move { Landed::Batch(batch, errand, carried.await) }));
                }
            }
        }
    }

    fn read(&mut self, handoffs: &Handoffs, page: PageId, first: bool) {
        if first {
            self.cursor = None;
        }
        let epoch = handoffs.parts.replica.epochs().tag();
        let hints = handoffs.parts.replica.hints();
        match hints.page(self.target, self.cursor.as_ref(), PAGE) {
            Ok((mut read, next)) => {
                read.iter_mut().for_each(|hint| hint.epoch = epoch);
                let facts = read.iter().map(|hint| self.facts(handoffs, hint)).collect();
                let more = next.is_some();
                (self.page, self.cursor) = (read, next);
                self.events.push_back(HandoffEvent::PageRead { page, hints: facts, more });
            }
            Err(error) => {
                tracing::warn!(peer = %self.target, %error, "hints not read");
                self.events.push_back(HandoffEvent::PageFailed { page });
            }
        }
    }

    /// What the machine needs to know of a hint, by the ring of this moment.
    fn facts(&self, handoffs: &Handoffs, hint: &Hint) -> HintFacts {
        let view = handoffs.parts.replica.view().get();
        // A hint for a store that is unknown here is nobody's: looking for its new owner finds none, and pauses.
        let replicas = view.store(hint.store.as_str()).map(|store| view.route(store, &hint.key).preference);
        HintFacts {
            bytes: hint.bytes(),
            age: Duration::from_millis(self.clock.wall().0.saturating_sub(hint.parked.0)),
            moved: self.target == handoffs.parts.replica.node()
                || !replicas.is_some_and(|preference| preference.is_writer(self.target)),
        }
    }
}
