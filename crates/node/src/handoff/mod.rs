//! Handoff: brings the hints that this node holds to those who should have them, target by target.
//!
//! ```text
//!   every second: a target with hints and no courier? ──▶ Courier ── protocol::handoff decides ──▶ merges, removals
//! ```
//!
//! One courier serves one target as long as there are hints for it. What a courier does it decides with
//! `protocol::handoff`; this module finds the hints, sends them and removes them. [`crate::hints`] is where they rest.
//!
//! **Architecture Invariant:** a hint is removed only after whoever should hold its content has acknowledged it.

mod courier;
mod delivery;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use client::peers::Peers;
use model::{Moment, NodeId};
use protocol::handoff::HandoffOptions;
use protocol::report::{HintsHeld, HintsState};

use crate::chores::{Board, Chore, Rest, RoundTold, begin};
use crate::events::{Event, Events};
use crate::gossip::Standings;
use crate::metrics::{Counter, Metrics};
use crate::pulse::Pulse;
use crate::replica::Replica;
use crate::view::Adopt;

use courier::Courier;
use runtime::locks::Mutex;

/// How often at most an event tells of refused hints.
const REFUSED_EVENT_INTERVAL: Duration = Duration::from_secs(10);

/// How often the hints are looked over for targets that nobody serves yet.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Everything that handoff works with.
pub struct HandoffParts {
    /// This node's records and hints.
    pub replica: Arc<Replica>,
    /// Links to the others.
    pub peers: Arc<Peers>,
    /// This node's workers, whose requests go before hints.
    pub pulse: Arc<Pulse>,
    /// Who is believed to be there.
    pub standings: Arc<dyn Standings>,
    /// Takes in a newer cluster document.
    pub adopt: Adopt,
    /// Where what happened is told.
    pub events: Arc<Events>,
    /// Where it is counted.
    pub metrics: Arc<Metrics>,
    /// Settings of each target's handoff.
    pub options: HandoffOptions,
}

/// The handoff of one node.
pub struct Handoffs {
    parts: HandoffParts,
    couriers: Mutex<BTreeMap<NodeId, Account>>,
    stopped: AtomicBool,
    /// Refused hints that events have told of, and when the last one did.
    refused_told: Mutex<(u64, Option<Moment>)>,
    delivered: Counter,
    readdressed: Counter,
    expired: Counter,
    failed: Counter,
}

/// How one target's handoff goes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Whether a courier serves it now.
    served: bool,
    /// Whether hints flow, or would if they were not paused.
    delivering: bool,
    /// Failures in a row.
    failures: u32,
    /// Bytes per second that it may be sent.
    rate: u64,
    /// Hints that left within the last second or so.
    hints_per_second: u64,
    delivered: u64,
    readdressed: u64,
    expired: u64,
}

impl Handoffs {
    /// Nothing is delivered before [`Handoffs::start`].
    pub fn new(parts: HandoffParts) -> Arc<Self> {
        let counter = |name| parts.metrics.counter(name, &[]);
        let handoffs = Handoffs {
            delivered: counter("tontine_handoff_hints_delivered_total"),
            readdressed: counter("tontine_handoff_hints_readdressed_total"),
            expired: counter("tontine_handoff_hints_expired_total"),
            failed: counter("tontine_handoff_batches_failed_total"),
            couriers: Mutex::default(),
            stopped: AtomicBool::new(false),
            refused_told: Mutex::default(),
            parts,
        };
        Arc::new(handoffs)
    }

    /// Serves targets from now on, in the background, until it is stopped or dropped.
    pub(crate) fn start(self: &Arc<Self>, board: &Arc<Board>) {
        let weak = Arc::downgrade(self);
        begin(self.parts.peers.ports(), board, Rest::Now, move || Deliver(weak.clone()));
    }

    /// Sends nothing more.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Each target with hints: how many, what happens with them, and how fast.
    pub(crate) fn report(&self) -> Vec<HintsHeld> {
        let couriers = self.couriers.lock().clone();
        let entry = |(target, hints): (NodeId, u64)| {
            let account = couriers.get(&target).copied().unwrap_or_default();
            HintsHeld {
                target,
                hints,
                state: match account {
                    Account { delivering: false, .. } => HintsState::Holding,
                    Account { failures: 0, .. } => HintsState::Delivering,
                    _ => HintsState::Pausing,
                },
                hints_per_second: account.hints_per_second,
                rate_bytes_per_second: account.rate,
                failures: account.failures.into(),
                delivered_total: account.delivered,
                readdressed_total: account.readdressed,
                expired_total: account.expired,
            }
        };
        self.parts.replica.hints().pending().into_iter().map(entry).collect()
    }

    /// Starts a courier for each target with hints that has none.
    fn look(self: &Arc<Self>, told: &RoundTold<'_>) {
        for (target, hints) in self.parts.replica.hints().pending() {
            let Account { served, delivering, failures, .. } =
                *self.couriers.lock().entry(target).or_default();
            if hints > 0 && delivering && failures > 0 {
                told.failed(format_args!(
                    "{target} did not take its hints: {failures} batches in a row failed"
                ));
            }
            if hints == 0 || served {
                continue;
            }
            self.parts.events.record(Event::HintsParked { target, hints });
            let courier = Courier::new(self, target);
            // Not before: whoever panics in between must not leave the target without a courier.
            self.note(target, |account| account.served = true);
            self.parts.peers.ports().tasks.spawn(Box::pin(courier.run(Arc::downgrade(self))));
        }
    }

    /// Tells of hints that were refused, now and then.
    fn tell_refused(&self) {
        let (hints, now) = (self.parts.replica.hints(), self.parts.peers.ports().clock.now());
        let mut told = self.refused_told.lock();
        let fresh = hints.refused() - told.0;
        if fresh == 0 || told.1.is_some_and(|at| now.since(at) < REFUSED_EVENT_INTERVAL) {
            return;
        }
        *told = (told.0 + fresh, Some(now));
        drop(told);
        self.parts.events.record(Event::HintsRefused { hints: fresh, bytes_max: hints.bytes_max() });
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether hints can be delivered to the node: it is a member, it is alive, and it is not this one.
    fn is_alive(&self, node: NodeId) -> bool {
        let known = self.parts.replica.view().get().cluster().node(node).is_some();
        known && node != self.parts.replica.node() && self.parts.standings.is_alive(node)
    }

    /// Changes a target's account.
    fn note(&self, target: NodeId, change: impl FnOnce(&mut Account)) {
        change(self.couriers.lock().entry(target).or_default());
    }
}

/// Sees to it that each target with hints is served.
struct Deliver(Weak<Handoffs>);

impl Chore for Deliver {
    const NAME: &'static str = "deliver hints";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let living = self.0.upgrade().filter(|handoffs| !handoffs.is_stopped());
        let Some(handoffs) = living else { return Rest::Ended };
        handoffs.look(told);
        handoffs.tell_refused();
        Rest::For(LOOK_INTERVAL)
    }
}
