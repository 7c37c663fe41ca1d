//! Starting collection rounds: by the first node that can be reached, when tombstones wait.
//!
//! ```text
//!   every interval: first node? ─▶ candidates of all nodes ─▶ Round decides ─▶ steps to all, and the service
//! ```
//!
//! Must never: send a step that the machine has not asked for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use client::peers::{CallError, Peers};
use coordination::CoordinationService;
use coordination::documents;
use futures_util::stream::{FuturesUnordered, StreamExt};
use model::limits::MESSAGE_BYTES_MAX;
use model::{Epoch, Generation, NodeId, Timestamp};
use parking_lot::Mutex;
use protocol::collection::{ROUND_TIME, Round, RoundAction, RoundEnd, RoundEvent, RoundId};
use runtime::BoxFuture;
use serde_json::{Value as Json, json};
use wire::messages::{
    Collect, CollectCandidates, CollectConfirm, CollectFence, Collectable, Request, Response,
};

use super::answers::{Answers, KEYS_MAX};
use crate::events::{Event, Events};
use crate::metrics::{Counter, Metrics};
use crate::stores::LocalStore;

/// Pause between rounds. Default of [`CollectionOptions::interval`].
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of keys and tombstones of one round at most: an eighth of a message, and a quick walk.
const ROUND_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 8;
/// Records of a page, when tombstones of earlier days are looked for.
const WALK_RECORDS: usize = 512;
/// Pause between such pages.
const WALK_PAUSE: Duration = Duration::from_millis(20);
/// How often at most an event tells of rounds that do not come to their end.
const WAITING_EVENT_INTERVAL: Duration = Duration::from_secs(60);

/// How a node collects.
#[derive(Clone, Copy, Debug)]
pub struct CollectionOptions {
    /// Pause between rounds. Default: [`INTERVAL`].
    pub interval: Duration,
}

impl Default for CollectionOptions {
    fn default() -> Self {
        CollectionOptions { interval: INTERVAL }
    }
}

/// This node's part in collection rounds.
pub(crate) struct Collection {
    pub(crate) answers: Answers,
    pub(crate) peers: Arc<Peers>,
    service: Service,
    events: Arc<Events>,
    options: CollectionOptions,
    rounds: Counter,
    broken: Counter,
    records: Counter,
    /// The node without which the last round could not go on.
    waits_for: Mutex<Option<NodeId>>,
}

/// The node's session of the coordination service at the moment; `None` when the node is gone.
pub(crate) type Service = Arc<dyn Fn() -> Option<Arc<dyn CoordinationService>> + Send + Sync>;

/// A step under way.
type Step = BoxFuture<'static, RoundEvent>;

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
        let counter = |name, help| metrics.counter(name, help, &[]);
        Arc::new(Collection {
            rounds: counter(
                "tontine_collection_rounds_total",
                "Collection rounds that this node brought to their end.",
            ),
            broken: counter(
                "tontine_collection_rounds_broken_total",
                "Collection rounds of this node that broke off.",
            ),
            records: counter(
                "tontine_collection_records_total",
                "Tombstones that rounds of this node removed.",
            ),
            waits_for: Mutex::default(),
            answers,
            peers,
            service,
            events,
            options,
        })
    }

    /// Looks for tombstones of earlier days, and starts rounds, as long as this lives.
    pub(crate) fn start(self: &Arc<Self>) {
        let tasks = self.peers.ports().tasks.clone();
        tasks.spawn_background(Box::pin(walk(Arc::downgrade(self))));
        tasks.spawn_background(Box::pin(run(Arc::downgrade(self))));
    }

    /// How it stands, for people.
    pub(crate) fn status(&self) -> Json {
        let view = self.answers.replica.view().get();
        let waiting: usize = view.stores().iter().map(|store| store.tombstones_known()).sum();
        json!({
            "epoch": self.answers.replica.epochs().tag(),
            "tombstones": waiting,
            "waits_for": *self.waits_for.lock(),
            "rounds_total": self.rounds.get(),
            "rounds_broken_total": self.broken.get(),
            "records_collected_total": self.records.get(),
        })
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

    async fn collect(self: &Arc<Self>) {
        // Who could not compare at its start, because the service was away, does it when the service is back.
        if !self.answers.replica.epochs().is_compared() && !self.compare().await {
            return;
        }
        if !self.is_first() {
            // Whoever is first knows for whom tombstones wait now.
            *self.waits_for.lock() = None;
            return;
        }
        let keys = self.candidates().await;
        if keys.is_empty() {
            *self.waits_for.lock() = None;
            return;
        }
        // A round needs everybody; one that cannot be completed would only use up what others reserve for it.
        if let Some(away) = self.members().into_iter().find(|&node| self.is_away(node)) {
            *self.waits_for.lock() = Some(away);
            return;
        }
        let end = self.round(Arc::new(keys)).await;
        match end {
            RoundEnd::Done { records, .. } => {
                self.rounds.increment();
                self.records.add(records);
                *self.waits_for.lock() = None;
            }
            RoundEnd::Broken { node, .. } => {
                self.broken.increment();
                *self.waits_for.lock() = node;
            }
        }
        tracing::debug!(?end, "collection round ended");
    }

    async fn compare(&self) -> bool {
        let Some(service) = (self.service)() else { return false };
        match documents::read_epochs(&*service).await {
            Ok(read) => self.answers.replica.epochs().compare_with(read.completed),
            Err(_) => false,
        }
    }

    /// Tombstones that wait anywhere.
    async fn candidates(self: &Arc<Self>) -> Vec<Collectable> {
        let ask = CollectCandidates { keys_max: KEYS_MAX as u32, bytes_max: ROUND_BYTES_MAX as u32 };
        let nodes: Vec<NodeId> = self.members();
        let mut asked: FuturesUnordered<_> =
            nodes.into_iter().map(|node| self.clone().call(node, ask.clone().into())).collect();
        let mut keys: std::collections::BTreeMap<(String, bytes::Bytes), Collectable> = Default::default();
        let mut bytes = 0;
        while let Some((_, answer)) = asked.next().await {
            let Ok(Response::CollectCandidated(found)) = answer else { continue };
            for key in found.keys {
                let size = key.1.0.len() + wire::versions::record_bytes(None, &key.1.1);
                if keys.len() >= KEYS_MAX || bytes + size > 2 * ROUND_BYTES_MAX || !key.1.1.is_deleted() {
                    continue;
                }
                let place = (key.0.as_str().to_owned(), key.1.0.clone());
                match keys.get_mut(&place) {
                    // Two nodes know different deletions: together they are what all shall forget.
                    Some(known) => known.1.1.merge(&key.1.1),
                    None => {
                        bytes += size;
                        keys.insert(place, key);
                    }
                }
            }
        }
        let now = self.answers.clock.wall();
        let ready = |key: &Collectable| key.1.1.is_deleted() && !key.1.1.is_reaped_before(now);
        keys.into_values().filter(ready).collect()
    }

    fn members(&self) -> Vec<NodeId> {
        self.answers.replica.view().get().cluster().nodes.iter().map(|node| node.id).collect()
    }

    /// Drives one round to its end.
    async fn round(self: &Arc<Self>, keys: Arc<Vec<Collectable>>) -> RoundEnd {
        let ports = self.peers.ports();
        let id = RoundId(ports.entropy.next_u64());
        let generation = self.answers.replica.view().generation();
        let mut actions = Vec::new();
        let mut round = Round::start(self.members(), generation, ports.clock.now(), &mut actions);
        let mut steps: FuturesUnordered<Step> = FuturesUnordered::new();
        loop {
            for action in actions.drain(..) {
                match action {
                    RoundAction::End(end) => return end,
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
            RoundAction::End(_) => unreachable!("the end is no step"),
        };
        Box::pin(async move {
            match self.call(node, request).await {
                (node, Ok(Response::CollectConfirmed(answer))) => RoundEvent::Confirmed(node, answer.epoch),
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
            Ok(Some(cluster)) => RoundEvent::Completed(cluster.generation),
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

async fn run(collection: Weak<Collection>) {
    let Some((clock, interval, first)) = collection.upgrade().map(|collection| {
        let ports = collection.peers.ports();
        // Not all nodes at once, and not at the same moment after each start.
        let nanos = u64::try_from(collection.options.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let first = Duration::from_nanos(ports.entropy.next_u64() % nanos);
        (ports.clock.clone(), collection.options.interval, first)
    }) else {
        return;
    };
    clock.sleep(first).await;
    let mut told = clock.now();
    loop {
        clock.sleep(interval).await;
        let Some(collection) = collection.upgrade() else { return };
        collection.collect().await;
        let view = collection.answers.replica.view().get();
        let now = clock.wall();
        let overflowed = |store: &Arc<LocalStore>| {
            let (tombstones, expiring) = (store.tombstones_overflowed(), store.expiring_overflowed(now));
            tombstones || expiring
        };
        if view.stores().iter().filter(|store| overflowed(store)).count() > 0 {
            walk(Arc::downgrade(&collection)).await;
        }
        let waits_for = *collection.waits_for.lock();
        if let Some(peer) = waits_for
            && clock.now().since(told) >= WAITING_EVENT_INTERVAL
        {
            told = clock.now();
            collection.events.record(Event::CollectionWaits { peer });
        }
    }
}

/// Finds the tombstones, and the values that expire, that were there before this process or had no room.
async fn walk(collection: Weak<Collection>) {
    let stores: Vec<Arc<LocalStore>> = match collection.upgrade() {
        Some(collection) => collection.answers.replica.view().get().stores().to_vec(),
        None => return,
    };
    for store in stores {
        for (partition, _) in store.engine().partitions() {
            let mut after = None;
            loop {
                let Some(collection) = collection.upgrade() else { return };
                let clock = collection.peers.ports().clock.clone();
                drop(collection);
                match store.note_tombstones(partition, after.as_ref(), WALK_RECORDS) {
                    Ok(Some(next)) => after = Some(next),
                    // What cannot be read is the scrub's.
                    Ok(None) | Err(_) => break,
                }
                clock.sleep(WALK_PAUSE).await;
            }
        }
    }
}
