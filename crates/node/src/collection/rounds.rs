//! Starting collection rounds: by the first node that can be reached, when tombstones wait.
//!
//! ```text
//!   every interval, until all are looked at:
//!   first node? ─▶ the next candidates of all nodes ─▶ Round decides ─▶ steps to all, and the service
//! ```
//!
//! Must never: send a step that the machine has not asked for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use client::peers::{CallError, Peers};
use coordination::CoordinationService;
use coordination::documents;
use futures_util::stream::{FuturesUnordered, StreamExt};
use model::limits::MESSAGE_BYTES_MAX;
use model::{Epoch, Generation, Moment, NodeId, Timestamp, Token};
use protocol::collection::{ROUND_TIME, Round, RoundAction, RoundEnd, RoundEvent, RoundId};
use protocol::report::CollectionReport;
use runtime::BoxFuture;
use runtime::locks::Mutex;
use wire::messages::{
    Collect, CollectCandidates, CollectConfirm, CollectFence, CollectPlace, CollectRelease, Collectable,
    Failure, Request, Response, StoreRef,
};

use super::answers::{Answers, KEYS_MAX, is_ahead};
use super::walk::walk_store;
use crate::chores::{Board, Chore, Culprits, Rest, RoundTold, begin};
use crate::events::{Event, Events};
use crate::metrics::{Counter, Metrics};
use crate::stores::LocalStore;
use crate::view::View;

/// Pause between passes over all tombstones. Default of [`CollectionOptions::interval`].
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of keys and tombstones of one round at most: an eighth of a message, and a quick walk.
const ROUND_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 8;
/// How often at most an event tells of rounds that do not come to their end.
const WAITING_EVENT_INTERVAL: Duration = Duration::from_secs(60);

/// How a node collects.
#[derive(Clone, Copy, Debug)]
pub struct CollectionOptions {
    /// Pause between passes over all tombstones; there is none after a pass that has collected many. Default:
    /// [`INTERVAL`].
    pub interval: Duration,
}

impl Default for CollectionOptions {
    fn default() -> Self {
        CollectionOptions { interval: INTERVAL }
    }
}

/// This node's part in collection rounds.
pub struct Collection {
    pub(super) answers: Answers,
    pub(super) peers: Arc<Peers>,
    service: Service,
    events: Arc<Events>,
    options: CollectionOptions,
    rounds: Counter,
    broken: Counter,
    records: Counter,
    /// The node without which the last round could not go on.
    waits_for: Mutex<Option<NodeId>>,
    /// Behind which tombstone the next round begins; `None`: with the first.
    cursor: Mutex<Option<CollectPlace>>,
    /// At which partitions the search for tombstones panicked.
    find_culprits: Arc<Culprits>,
}

/// The node's session of the coordination service at the moment; `None` when the node is gone.
pub(crate) type Service = Arc<dyn Fn() -> Option<Arc<dyn CoordinationService>> + Send + Sync>;

/// A step under way.
type Step = BoxFuture<'static, RoundEvent>;

fn members(view: &View) -> Vec<NodeId> {
    view.cluster().nodes.iter().map(|node| node.id).collect()
}

impl Collection {
    /// Takes part from now on; [`Collection::start`] begins to start rounds.
    pub(crate) fn new(
        answers: Answers,
        peers: Arc<Peers>,
        service: Service,
        events: Arc<Events>,
        metrics: &Metrics,
        options: CollectionOptions,
    ) -> Arc<Self> {
        let counter = |name| metrics.counter(name, &[]);
        Arc::new(Collection {
            rounds: counter("tontine_collection_rounds_total"),
            broken: counter("tontine_collection_rounds_broken_total"),
            records: counter("tontine_collection_records_total"),
            waits_for: Mutex::default(),
            cursor: Mutex::default(),
            find_culprits: Arc::default(),
            answers,
            peers,
            service,
            events,
            options,
        })
    }

    /// Looks for tombstones of earlier days, and starts rounds, as long as this lives.
    pub(crate) fn start(self: &Arc<Self>, board: &Arc<Board>) {
        let (ports, weak) = (self.peers.ports(), Arc::downgrade(self));
        let collection = weak.clone();
        let find = move || FindTombstones { collection: collection.clone(), first: true };
        begin(ports, board, Rest::Now, find);
        begin(ports, board, Rest::Now, move || CollectTombstones {
            collection: weak.clone(),
            waiting_told: None,
        });
    }

    /// Answers a step of a round that another node has started.
    ///
    /// # Errors
    /// When this node takes no part in the step, or the request is none.
    pub async fn answer(&self, step: Request) -> Result<Response, Failure> {
        self.answers.answer(step).await
    }

    /// Its state.
    pub(crate) fn report(&self) -> CollectionReport {
        let view = self.answers.replica.view().get();
        let waiting: usize = view.stores().iter().map(|store| store.tombstones_known()).sum();
        CollectionReport {
            epoch: self.answers.replica.epochs().tag(),
            compared: self.answers.replica.epochs().is_compared(),
            tombstones: waiting as u64,
            waits_for: *self.waits_for.lock(),
            rounds_total: self.rounds.get(),
            rounds_broken_total: self.broken.get(),
            records_collected_total: self.records.get(),
        }
    }

    /// Whether rounds wait for a node.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waits_for.lock().is_some()
    }

    /// Whether this node is the first of the cluster that can be reached.
    fn is_first(&self) -> bool {
        let replica = &self.answers.replica;
        let view = replica.view().get();
        let first = view
            .cluster()
            .nodes
            .iter()
            .find(|node| node.id == replica.node() || !self.peers.is_suspected(node.id));
        first.is_some_and(|node| node.id == replica.node())
    }

    fn is_away(&self, node: NodeId) -> bool {
        node != self.answers.replica.node() && self.peers.is_suspected(node)
    }

    /// One pass over all tombstones that wait anywhere, round after round; whether so much was collected that the next
    /// pass may begin at once.
    async fn sweep(self: &Arc<Self>, told: &RoundTold<'_>) -> bool {
        // Who could not compare at its start, because the service was away, does it when the service is back.
        if !self.answers.replica.epochs().is_compared() && !self.compare().await {
            *self.waits_for.lock() = Some(self.answers.replica.node());
            told.failed("this node's epoch was not compared with that of the coordination service");
            return false;
        }
        let (mut collected, mut left_out) = (0, None);
        loop {
            if !self.is_first() {
                // Whoever is first knows for whom tombstones wait now.
                *self.waits_for.lock() = None;
                return false;
            }
            // A round needs everybody; one that cannot be completed would only use up what others reserve for it.
            if let Some(away) = self.members().into_iter().find(|&node| self.is_away(node)) {
                let waiting = self.candidates(None, 1).await.keys;
                *self.waits_for.lock() = (!waiting.is_empty()).then_some(away);
                return false;
            }
            let begin = self.cursor.lock().clone();
            let Candidates { keys, next } = self.candidates(begin, KEYS_MAX).await;
            // Whatever becomes of the round: the next one is for what lies behind these, so that keys which nobody can
            // collect, or a store with a great many, keep nothing from the others.
            self.cursor.lock().clone_from(&next);
            if !keys.is_empty() {
                let end = self.round(Arc::new(keys)).await;
                tracing::debug!(?end, "collection round ended");
                match end {
                    RoundEnd::Done { records, left_out: by, .. } => {
                        self.rounds.increment();
                        self.records.add(records);
                        collected += records;
                        left_out = left_out.or(by);
                    }
                    RoundEnd::Broken { node, .. } => {
                        self.broken.increment();
                        *self.waits_for.lock() = node;
                        let who = node.map_or("the coordination service".to_owned(), |node| node.to_string());
                        told.failed(format_args!(
                            "a collection round was broken off: {who} did not answer as it should"
                        ));
                        return false;
                    }
                }
            }
            if next.is_none() {
                *self.waits_for.lock() = left_out;
                return collected >= KEYS_MAX as u64;
            }
        }
    }

    async fn compare(&self) -> bool {
        let Some(service) = (self.service)() else { return false };
        match documents::read_epochs(&*service).await {
            Ok(read) => self.answers.replica.epochs().compare_with(read.completed),
            Err(_) => false,
        }
    }

    /// Tombstones that wait anywhere behind a place, the first in the order of places.
    async fn candidates(self: &Arc<Self>, after: Option<CollectPlace>, keys_max: usize) -> Candidates {
        let ask = CollectCandidates {
            after: after.clone(),
            keys_max: keys_max as u32,
            bytes_max: ROUND_BYTES_MAX as u32,
        };
        let nodes = self.members().into_iter().filter(|&node| !self.is_away(node));
        let mut asked: FuturesUnordered<_> =
            nodes.map(|node| self.clone().call(node, ask.clone().into())).collect();
        let mut keys: BTreeMap<Order, Collectable> = BTreeMap::new();
        let view = self.answers.replica.view().get();
        // Nobody has been asked for what lies behind this.
        let mut horizon: Option<Order> = None;
        while let Some((_, answer)) = asked.next().await {
            let Ok(Response::CollectCandidated(found)) = answer else { continue };
            for key in found.keys {
                match keys.entry(order(&view, &key.0, &key.1.0)) {
                    // Two nodes know different deletions: together they are what all shall forget.
                    Entry::Occupied(mut known) => known.get_mut().1.1.merge(&key.1.1),
                    Entry::Vacant(vacant) => drop(vacant.insert(key)),
                }
            }
            // Who gets no further than where it began has nothing more.
            let next = found.next.filter(|next| Some(next) != after.as_ref());
            let next = next.map(|(store, key)| order(&view, &store, &key));
            horizon = [horizon, next].into_iter().flatten().min();
            shorten(&mut keys, &mut horizon, keys_max);
        }
        let now = self.answers.clock.wall();
        // A node that offers them uses its own clock.
        let ready = |key: &Collectable| {
            let set = &key.1.1;
            set.is_deleted() && !set.is_reaped_before(now) && !is_ahead(set.timestamp_max(), now)
        };
        let next = horizon.map(|(store, _, key)| (store, key));
        Candidates { keys: keys.into_values().filter(ready).collect(), next }
    }

    fn members(&self) -> Vec<NodeId> {
        members(&self.answers.replica.view().get())
    }

    /// Drives one round to its end.
    async fn round(self: &Arc<Self>, mut keys: Arc<Vec<Collectable>>) -> RoundEnd {
        let ports = self.peers.ports();
        let id = RoundId(ports.entropy.next_u64());
        // Rounds depend on who is a member, not on who holds what: they go on while partitions move.
        let view = self.answers.replica.view().get();
        let (members, generation) = (members(&view), view.cluster().nodes_changed);
        let mut actions = Vec::new();
        let count = keys.len() as u32;
        let mut round = Round::start(members, count, generation, ports.clock.now(), &mut actions);
        let mut steps: FuturesUnordered<Step> = FuturesUnordered::new();
        loop {
            for action in actions.drain(..) {
                match action {
                    RoundAction::End(end) => return end,
                    // Nobody waits for it: a node that does not learn of it lets go on its own, a minute later.
                    RoundAction::Release(node) => {
                        let released = self.clone().call(node, CollectRelease { round: id }.into());
                        ports.tasks.spawn_background(Box::pin(async move { drop(released.await) }));
                    }
                    RoundAction::Open(_) => {
                        // Everybody has confirmed: what somebody left out is no part of the round any more.
                        let kept = (0..).zip(&*keys).filter(|(position, _)| !round.is_left_out(*position));
                        keys = Arc::new(kept.map(|(_, key)| key.clone()).collect());
                        steps.push(self.clone().step(id, generation, keys.clone(), action));
                    }
                    other => steps.push(self.clone().step(id, generation, keys.clone(), other)),
                }
            }
            let Some(deadline) = round.deadline() else {
                return RoundEnd::Broken { stage: round.stage(), node: None };
            };
            let timer = ports.clock.sleep_until(deadline);
            let event = match futures_util::future::select(steps.next(), timer).await {
                futures_util::future::Either::Left((Some(event), _)) => event,
                futures_util::future::Either::Left((None, timer)) => {
                    timer.await;
                    RoundEvent::Elapsed
                }
                futures_util::future::Either::Right(_) => RoundEvent::Elapsed,
            };
            round.step(event, &mut actions);
        }
    }

    fn step(
        self: Arc<Self>,
        round: RoundId,
        generation: Generation,
        keys: Arc<Vec<Collectable>>,
        action: RoundAction,
    ) -> Step {
        let floor = || keys.iter().map(|key| key.1.1.timestamp_max()).max().unwrap_or(Timestamp(0));
        let (node, request): (NodeId, Request) = match action {
            RoundAction::Confirm(node) => {
                (node, CollectConfirm { round, generation, keys: keys.to_vec() }.into())
            }
            RoundAction::Fence(node, epoch) => (node, CollectFence { round, epoch, floor: floor() }.into()),
            RoundAction::Collect(node) => (node, Collect { keys: keys.to_vec() }.into()),
            RoundAction::Open(above) => return Box::pin(async move { self.open(above).await }),
            RoundAction::Complete(epoch) => return Box::pin(async move { self.complete(epoch).await }),
            RoundAction::Release(_) | RoundAction::End(_) => unreachable!("what ends a round is no step"),
        };
        Box::pin(async move {
            match self.call(node, request).await {
                (node, Ok(Response::CollectConfirmed(answer))) => {
                    RoundEvent::Confirmed { node, epoch: answer.epoch, left_out: answer.left_out }
                }
                (node, Ok(Response::CollectFenced(_))) => RoundEvent::Fenced(node),
                (node, Ok(Response::Collected(answer))) => RoundEvent::Collected(node, answer.records),
                (node, answer) => {
                    if let Err(error) = answer {
                        tracing::debug!(peer = %node, %error, "no part in the collection round");
                    }
                    RoundEvent::Failed(node)
                }
            }
        })
    }

    async fn open(&self, above: Epoch) -> RoundEvent {
        let Some(service) = (self.service)() else { return RoundEvent::ServiceFailed };
        match documents::open_epoch(&*service, above).await {
            Ok(epoch) => RoundEvent::Opened(epoch),
            Err(_) => RoundEvent::ServiceFailed,
        }
    }

    /// First the epoch is written, then the document is read: who joins in between sees one of the two.
    async fn complete(&self, epoch: Epoch) -> RoundEvent {
        let Some(service) = (self.service)() else { return RoundEvent::ServiceFailed };
        if documents::complete_epoch(&*service, epoch).await.is_err() {
            return RoundEvent::ServiceFailed;
        }
        match documents::read_cluster(&*service).await {
            Ok(Some(cluster)) => RoundEvent::Completed(cluster.nodes_changed),
            _ => RoundEvent::ServiceFailed,
        }
    }

    fn call(
        self: Arc<Self>,
        node: NodeId,
        request: Request,
    ) -> BoxFuture<'static, (NodeId, Result<Response, CallError>)> {
        Box::pin(async move {
            let answer = if node == self.answers.replica.node() {
                self.answers.answer(request).await.map_err(CallError::Refused)
            } else {
                self.peers.call(node, request).within(&self.peers.ports().clock, ROUND_TIME).await
            };
            (node, answer)
        })
    }
}

/// What a round may be for, and where to go on after it.
struct Candidates {
    keys: Vec<Collectable>,
    next: Option<CollectPlace>,
}

/// What places are ordered by.
type Order = (StoreRef, Token, Bytes);

/// Of a store that is not here yet any place will do: its keys are left out until it is.
fn order(view: &View, store: &StoreRef, key: &Bytes) -> Order {
    let token = view.store(store).map_or_else(|| Token::of(key), |known| known.token(key));
    (store.clone(), token, key.clone())
}

/// Drops what is behind the horizon, and what is too much for one round; then the horizon is where that begins.
fn shorten(keys: &mut BTreeMap<Order, Collectable>, horizon: &mut Option<Order>, keys_max: usize) {
    let (mut count, mut bytes) = (0, 0);
    let too_much = keys.iter().find_map(|(at, key)| {
        bytes += key.1.0.len() + wire::versions::record_bytes(None, &key.1.1);
        count += 1;
        let fits = count == 1 || (count <= keys_max && bytes <= 2 * ROUND_BYTES_MAX);
        (!fits || horizon.as_ref().is_some_and(|horizon| at > horizon)).then(|| at.clone())
    });
    let Some(too_much) = too_much else { return };
    drop(keys.split_off(&too_much));
    if let Some((last, _)) = keys.last_key_value() {
        *horizon = Some(horizon.take().map_or_else(|| last.clone(), |horizon| horizon.min(last.clone())));
    }
}

/// Starts rounds.
struct CollectTombstones {
    collection: Weak<Collection>,
    /// When it was told last that rounds wait for a node; `None` before the first pass.
    waiting_told: Option<Moment>,
}

impl Chore for CollectTombstones {
    const NAME: &'static str = "collect";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let Some(collection) = self.collection.upgrade() else { return Rest::Ended };
        let (ports, interval) = (collection.peers.ports(), collection.options.interval);
        let Some(waiting_told) = &mut self.waiting_told else {
            // Not all nodes at once, and not at the same moment after each start.
            let nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
            let first = Duration::from_nanos(ports.entropy.next_u64() % nanos);
            self.waiting_told = Some(ports.clock.now().after(first));
            // After a panic nothing is well yet.
            told.looked();
            return Rest::For(first + interval);
        };
        let goes_on = collection.sweep(told).await;
        let (waits_for, now) = (*collection.waits_for.lock(), ports.clock.now());
        if let Some(peer) = waits_for
            && now.since(*waiting_told) >= WAITING_EVENT_INTERVAL
        {
            *waiting_told = now;
            collection.events.record(Event::CollectionWaits { peer });
        }
        if goes_on { Rest::Now } else { Rest::For(interval) }
    }
}

/// Finds the tombstones, and the values that expire, that were there before this process; later those that had no room,
/// when there is room again. Beside the rounds: they do not wait for it.
struct FindTombstones {
    collection: Weak<Collection>,
    first: bool,
}

impl Chore for FindTombstones {
    const NAME: &'static str = "find tombstones";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let FindTombstones { collection, first } = self;
        let Some(held) = collection.upgrade() else { return Rest::Ended };
        let (clock, interval) = (held.peers.ports().clock.clone(), held.options.interval);
        let mut stores: Vec<Arc<LocalStore>> = held.answers.replica.view().get().stores().to_vec();
        let culprits = held.find_culprits.clone();
        drop(held);
        let postponed = culprits.round();
        postponed.order(&mut stores, |store, (name, _)| store.definition().name == *name);
        for store in stores {
            let expiring = store.expiring_overflowed(clock.wall());
            let tombstones = store.tombstones_overflowed();
            if *first || expiring || tombstones {
                let is_there = || collection.strong_count() > 0;
                let (whole, blame) = (*first || expiring, (&*culprits, &postponed));
                let walked = walk_store(&is_there, &store, &clock, whole, blame).await;
                if let Err(error) = walked {
                    let name = &store.definition().name;
                    told.failed(format_args!("store {name} was not searched for deletions: {error}"));
                }
            }
        }
        *first = false;
        Rest::For(interval)
    }
}

#[cfg(test)]
mod tests {
    use model::{StoreName, VersionSet};

    use super::*;

    fn at(number: usize) -> Order {
        (StoreRef::from(&StoreName::new("s").unwrap()), Token(number as u64), Bytes::from(vec![b'k'; 10]))
    }

    /// Keys with this many bytes each, and what is left of them.
    fn shortened(bytes: &[usize], horizon: Option<usize>, keys_max: usize) -> (Vec<u64>, Option<u64>) {
        let key = |bytes| Bytes::from(vec![b'k'; bytes]);
        let held = |(number, &bytes): (usize, &usize)| {
            let order = at(number);
            (order.clone(), (order.0, (key(bytes), VersionSet::default())))
        };
        let mut keys: BTreeMap<Order, Collectable> = bytes.iter().enumerate().map(held).collect();
        let mut horizon = horizon.map(at);
        shorten(&mut keys, &mut horizon, keys_max);
        (keys.into_keys().map(|(_, token, _)| token.0).collect(), horizon.map(|(_, token, _)| token.0))
    }

    #[test]
    fn a_round_is_limited_in_keys_and_bytes_and_takes_none_beyond_the_horizon() {
        let empty = wire::versions::record_bytes(None, &VersionSet::default());
        let (half, over) = (ROUND_BYTES_MAX - empty, ROUND_BYTES_MAX - empty + 1);
        assert_eq!(shortened(&[1; 3], None, 3), (vec![0, 1, 2], None));
        assert_eq!(shortened(&[1; 3], Some(2), 3), (vec![0, 1, 2], Some(2)));
        assert_eq!(shortened(&[1; 3], Some(1), 3), (vec![0, 1], Some(1)), "nobody was asked for more");
        assert_eq!(shortened(&[1; 3], None, 2), (vec![0, 1], Some(1)));
        assert_eq!(shortened(&[1; 5], Some(3), 2), (vec![0, 1], Some(1)));
        assert_eq!(shortened(&[half; 2], None, 9), (vec![0, 1], None));
        assert_eq!(shortened(&[half, over], None, 9), (vec![0], Some(0)));
        assert_eq!(shortened(&[3 * half, 1], None, 9), (vec![0], Some(0)), "one is always taken");
    }
}
