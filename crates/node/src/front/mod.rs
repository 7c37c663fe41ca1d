//! Requests of thin clients: whoever sends a node a key, whether or not the node holds it.
//!
//! Gets are driven from here. A put or delete is stamped by a replica of its key (D1): by this node if it is one,
//! otherwise by the first replica that can be reached, to which the request is passed on. When no replica can be
//! reached, a store with sloppy quorums still takes a write without a condition: this node stamps it as a fallback and
//! parks it.
//!
//! **Architecture Invariant:** a write is passed on to a second node only when the first has certainly not carried
//! it out; otherwise the caller hears that the outcome is unknown.

mod conditional;
mod multi;
mod stamp;
mod walk;

pub use conditional::{ATTEMPTS_MAX, contended, lost_a_race};
pub use multi::MULTI_ANSWER_BYTES_MAX;
pub use protocol::quorum::StampEntry;
pub use walk::{Met, Position, Stretch, StretchLimit};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::coordinator::{Contents, Coordinator, OwnWrite, Scope};
use client::peers::{CallError, Peers};
use model::{Generation, Moment, NodeId, PreferenceList, Token, WallMillis};
use protocol::quorum::{Reach, can_be_driven, own_record_suffices, own_write_suffices};
use runtime::Clock;
use runtime::disk::waiting::without_waiting;
use storage::Durable;
use wire::error::{ErrorCode, Outcome};
use wire::messages::{Condition, Failure, Got, RequestOptions, Written};

use crate::replica::Replica;
use crate::stores::{Census, KeyPlace, LocalStore, ReadOnly, Stamped, WriteOrder};
use crate::view::{Admitted, Adopt, View};
use crate::work::Coordinated;

/// How long a request waits for this node to follow a document that another node has handed over.
pub(crate) const ADOPT_PATIENCE: Duration = Duration::from_secs(1);

/// What is left at most of a get's time for its answer to arrive.
const ANSWER_MARGIN_MAX: Duration = Duration::from_millis(100);

/// Where requests of thin clients enter one worker of a node.
#[derive(Clone)]
pub struct Front {
    replica: Arc<Replica>,
    peers: Arc<Peers>,
    coordinator: Arc<Coordinator>,
    adopt: Adopt,
    started: Moment,
    coordinated: Arc<Coordinated>,
    /// Whether its clients ask any node, not one that a key's place names.
    is_anywhere: bool,
}

/// A store of either kind, as one view has it.
pub enum AtHand {
    /// One that takes writes.
    Versions(Arc<LocalStore>),
    /// A read-only one.
    Artifacts(Arc<ReadOnly>),
}

impl Front {
    /// The entry of one worker.
    pub fn new(
        replica: Arc<Replica>,
        peers: Arc<Peers>,
        coordinator: Arc<Coordinator>,
        adopt: Adopt,
        coordinated: Arc<Coordinated>,
    ) -> Self {
        let started = peers.ports().clock.now();
        Front { replica, peers, coordinator, adopt, started, coordinated, is_anywhere: false }
    }

    /// The same entry for clients that know no ring. What they have this node do as a replica, no other place of it changes.
    pub fn asked_anywhere(&self) -> Front {
        Front { is_anywhere: true, ..self.clone() }
    }

    /// A write of this many keys was stamped here for a client.
    fn add_own_stamped(&self, keys: usize, entry: StampEntry) {
        if self.is_anywhere && entry == StampEntry::Client {
            self.coordinated.add_own_stamped(keys);
        }
    }

    /// The node's own records.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// What drives requests here.
    pub fn coordinator(&self) -> &Arc<Coordinator> {
        &self.coordinator
    }

    /// What its clients had it drive.
    pub fn coordinated(&self) -> &Arc<Coordinated> {
        &self.coordinated
    }

    /// The clock of its worker.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.peers.ports().clock
    }

    /// Since when it takes requests.
    pub fn uptime(&self) -> Duration {
        self.peers.ports().clock.now().since(self.started)
    }

    /// Waits this long, or up to half as long again: so writers that compete do not meet again.
    pub async fn pause(&self, pause: Duration) {
        let ports = self.peers.ports();
        let jitter = ports.entropy.below(pause.as_nanos() as u64 / 2 + 1);
        ports.clock.sleep(pause + Duration::from_nanos(jitter)).await;
    }

    /// 64 random bits.
    pub fn random(&self) -> u64 {
        self.peers.ports().entropy.next_u64()
    }

    /// The wall clock, by which expiry is judged.
    pub fn now(&self) -> WallMillis {
        self.peers.ports().clock.wall()
    }

    /// Shows the value of a key to `visit`, if it has one, when this node's own record is the whole read quorum;
    /// `None` when others must be asked, also because this node cannot answer (its record is corrupt, or lost).
    pub fn get_now(
        &self,
        view: &View,
        store: &LocalStore,
        key: &[u8],
        visit: &mut dyn FnMut(&[u8]),
    ) -> Option<Result<bool, Failure>> {
        let (place, partition) = view.partition(store, key);
        if !own_record_suffices(self.replica.node(), store.definition(), partition) {
            return None;
        }
        let tried = without_waiting(|| store.winner(place, key, visit));
        match tried.answer {
            _ if tried.refused => None,
            Err(failure) if failure.code.outcome() == Outcome::Failed && failure.code.is_retryable() => None,
            // Read too late for the view.
            _ if self.replica.view().generation() != view.cluster().generation => None,
            answer => {
                self.coordinated.add_gets(1);
                self.replica.work().got(place.partition, key);
                self.replica.work().asked_itself(place.partition);
                Some(answer)
            }
        }
    }

    /// Shows the value of a key in what a read-only store serves, if it has one, when this node holds it; `None` when the
    /// coordinator must be asked: nothing is served, the key's part is not here, not in memory, or cannot be read.
    pub fn get_artifact_now(
        &self,
        view: &View,
        store: &ReadOnly,
        key: &[u8],
        visit: &mut dyn FnMut(&[u8]),
    ) -> Option<bool> {
        let served = store.listed().served()?;
        let open = store.held().open(served.number, served.manifest)?;
        let tried = without_waiting(|| open.artifact.get(Token::of(key), key));
        let found = tried.answer.ok()?;
        // Read too late for the view, or an earlier request has read by a newer document than that of the view: no answer of a
        // connection may be from an older artifact than the one before.
        if self.replica.view().known() != view.cluster().generation {
            return None;
        }
        self.coordinated.add_gets(1);
        self.replica.work().got(view.partition_at(Token::of(key)).0.partition, key);
        found.as_deref().map(visit);
        Some(found.is_some())
    }

    /// Overwrites a key, when this node's own acknowledgement is the whole write quorum and there is no other replica;
    /// `None` when others must be asked, or the write must be waited for.
    pub fn put_now(
        &self,
        view: &View,
        store: &LocalStore,
        key: &[u8],
        value: &[u8],
    ) -> Option<Result<(), Failure>> {
        let (place, partition) = view.partition(store, key);
        let own = self.replica.node();
        if !store.acknowledges_at_once() || !own_write_suffices(own, store.definition(), partition) {
            return None;
        }
        let admitted = self.replica.view().admit();
        if admitted.cluster().generation != view.cluster().generation {
            return None;
        }
        let tried = without_waiting(|| store.overwrite(place, key, value));
        drop(admitted);
        if tried.answer.is_ok() {
            self.replica.work().stamped(place.partition, key);
            store.demand().add_stamped();
            self.add_own_stamped(1, StampEntry::Client);
        } else if tried.refused {
            // What a record's change needs is read before it, so what was refused was not done.
            return None;
        }
        self.coordinated.add_puts(1);
        Some(tried.answer)
    }

    /// Reads a key from its read quorum.
    pub async fn get(&self, store: &str, key: Bytes, options: &RequestOptions) -> Result<Got, Failure> {
        self.coordinated.add_gets(1);
        if let Some(scope) = self.newest_artifact_scope(store) {
            return self.coordinator.get(&scope, key, options).await;
        }
        let (view, local) = self.current(store)?;
        let options = &self.shortly_before(options);
        let answer = self.coordinator.get(&self.scope(&view, &local), key, options).await;
        local.gets().count(&answer);
        let got = answer?;
        local.see(got.set.timestamp_max());
        Ok(got)
    }

    /// The options of a get whose answer still has a way to go: *unavailable* must arrive before its caller gives up.
    fn shortly_before(&self, options: &RequestOptions) -> RequestOptions {
        let span = self.coordinator.span(options);
        let left = span.saturating_sub((span / 20).min(ANSWER_MARGIN_MAX));
        RequestOptions {
            deadline_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1),
            ..options.clone()
        }
    }

    /// Counts the keys of a store that this node holds, and those of them that expire. Of a read-only store each node that
    /// holds a part also knows how many there are in all.
    ///
    /// # Errors
    /// When the store is not known, or its engine refuses.
    pub async fn census(&self, store: &str) -> Result<Census, Failure> {
        let view = self.replica.view().get();
        if let Some(store) = view.read_only(store) {
            return Ok(store.census());
        }
        let (view, local) = self.current(store)?;
        let (own, now) = (self.replica.node(), self.now());
        let counting = move || {
            let mine = view.replicated_by(own, &local);
            local.census(|partition| mine.contains_key(&partition), now).map(|census| Census {
                share: view.share(|partition| mine.contains_key(&partition)),
                ..census
            })
        };
        self.replica.clone().waiting(counting).await?
    }

    /// Writes a key to its write quorum.
    pub async fn write(
        &self,
        store: &str,
        key: Bytes,
        order: WriteOrder,
        options: &RequestOptions,
        entry: StampEntry,
    ) -> Result<Written, Failure> {
        self.write_judged(store, (key, order), options, (entry, None)).await
    }

    /// The generation of the document that this node follows.
    pub fn generation(&self) -> Generation {
        self.replica.view().generation()
    }

    /// As [`Front::write`], of a condition that was judged here under a document of this generation.
    pub(crate) async fn write_judged(
        &self,
        store: &str,
        order: (Bytes, WriteOrder),
        options: &RequestOptions,
        (entry, judged): (StampEntry, Option<Generation>),
    ) -> Result<Written, Failure> {
        if entry != StampEntry::Passed {
            self.coordinated.add_puts(1);
        }
        let written = self.stamp(store, &[order], options, (entry, judged)).await?;
        let answer = written.into_iter().next().expect("each key has an answer");
        answer.map_err(|unwritten| self.failure(unwritten))
    }

    /// Stamps here, as a replica, and drives the others.
    async fn write_here(
        &self,
        view: &Arc<View>,
        store: &Arc<LocalStore>,
        key: &Bytes,
        order: WriteOrder,
        options: &RequestOptions,
    ) -> Result<Written, Failure> {
        let (place, _) = view.partition(store, key);
        let scope = self.scope(view, store);
        let began = self.clock().now();
        let is_judged = order.condition != Condition::None;
        let (stamped, waited) = self.stamp_here((view, store), place, key, order, options).await;
        let Stamped { set, dot, context, commit } = stamped?;
        self.replica.work().stamped(place.partition, key);
        store.demand().add_stamped();
        let left = waited.then(|| self.coordinator.what_is_left(options, began));
        let options = left.as_ref().unwrap_or(options);
        let durable = into_future(store.durable(commit));
        let (acked, under) =
            self.coordinator.write(&scope, key.clone(), set, OwnWrite::Replica(durable), options).await?;
        if is_judged {
            self.check_first(view, store, key, under)?;
        }
        Ok(Written { dot, acks: acked.acks, sloppy: acked.sloppy, context })
    }

    /// Whether this node judged conditions for a key all the time until a write has found its quorum. Otherwise another
    /// node may have judged meanwhile without knowing of it, and some of the quorum may be later than that. That it is
    /// the first again says nothing, so it uses `since`: a partition's list may have changed twice. And the quorum may
    /// have been found `under` a document that this node does not follow yet.
    fn check_first(
        &self,
        view: &View,
        store: &LocalStore,
        key: &[u8],
        under: Generation,
    ) -> Result<(), Failure> {
        let (now, stamped) = (self.replica.view().get(), view.cluster().generation);
        let since = || now.accepted_since(store, now.partition(store, key).0.partition);
        if under <= stamped && (now.cluster().generation == stamped || since() <= stamped) {
            return Ok(());
        }
        let detail = "the replicas of the key changed, or their order, while the write was on its way";
        Err(Failure::new(ErrorCode::Indeterminate, detail))
    }

    /// Stamps here, on a thread that may wait for the disk if what the write replaces is not in memory; the second says
    /// whether it did. Then it may end in doubt at the request's deadline.
    async fn stamp_here(
        &self,
        (view, store): (&Arc<View>, &Arc<LocalStore>),
        place: KeyPlace,
        key: &Bytes,
        order: WriteOrder,
        options: &RequestOptions,
    ) -> (Result<Stamped, Failure>, bool) {
        let stamped = |admitted: &Admitted<'_>| {
            without_waiting(|| {
                let _under = admitted;
                store.stamp(place, key, order.clone())
            })
        };
        let tried = match self.replica.admit_as(view, store, [&key[..]]) {
            Ok(admitted) => stamped(&admitted),
            Err(moved) => return (Err(moved), false),
        };
        match tried.answer {
            Err(_) if tried.refused => {
                let (at, store, key, replica) =
                    (view.clone(), store.clone(), key.clone(), self.replica.clone());
                let work = move || {
                    replica.read_key_ahead(&at, &store, &key, None);
                    let _admitted = replica.admit_as(&at, &store, [&key[..]])?;
                    store.stamp_after_reading(place, &key, order)
                };
                (self.waiting(view, options, work).await.and_then(|stamped| stamped), true)
            }
            answer => (answer, false),
        }
    }

    /// Carries out what writes here and may wait for the disk.
    ///
    /// # Errors
    /// In doubt at the request's deadline; or what certainly was not done.
    async fn waiting<T: Send + 'static>(
        &self,
        view: &View,
        options: &RequestOptions,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let replica = self.replica.clone();
        let done = Box::pin(async move { replica.waiting(work).await.map_err(CallError::Refused) });
        self.coordinator.within_deadline(done, options).await.map_err(|error| match error {
            CallError::Refused(failure) => failure,
            _ => unknown(view, self.replica.node()),
        })
    }

    /// Stamps here although no replica could be reached, parks the write for `target`, and drives the rest.
    async fn write_as_fallback(
        &self,
        view: &Arc<View>,
        store: &Arc<LocalStore>,
        target: NodeId,
        key: &Bytes,
        order: WriteOrder,
        options: &RequestOptions,
    ) -> Result<Written, Failure> {
        let hints = self.replica.hints();
        let scope = self.scope(view, store);
        let Stamped { set, dot, context, commit } = {
            let admitted = self.replica.view().admit();
            if !admitted.writes(target, store, admitted.partition(store, key).1) {
                return Err(self.not_here(&admitted));
            }
            hints.stamp(target, store.definition(), key, order)?
        };
        let durable = into_future(hints.durable(commit));
        let own = OwnWrite::Hint(durable);
        let (acked, _) = self.coordinator.write(&scope, key.clone(), set, own, options).await?;
        Ok(Written { dot, acks: acked.acks, sloppy: acked.sloppy, context })
    }

    /// Whether this node can drive a write to its quorum, as far as it knows. What it could not is not begun: a node
    /// that clients reach and no other node hears would drive each of their writes into doubt.
    fn reaches(&self, store: &LocalStore, preference: &PreferenceList, options: &RequestOptions) -> bool {
        let reach = self.coordinator.reach(store.definition(), options);
        can_be_driven(&reach, preference, |node| self.is_suspected(node))
    }

    /// The refusal of a write before anything of it is kept.
    fn isolated(&self, store: &LocalStore, preference: &PreferenceList, options: &RequestOptions) -> Failure {
        let reach @ Reach { own, required, .. } = self.coordinator.reach(store.definition(), options);
        let unheard = reach.unheard(preference, |node| self.is_suspected(node));
        let unheard = match unheard.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ") {
            // They were heard again in between.
            none if none.is_empty() => String::new(),
            nodes => format!(", and it gets no answer from {nodes}"),
        };
        let detail =
            format!("{own} cannot reach enough nodes: {required} must acknowledge the write{unheard}");
        Failure::new(ErrorCode::Isolated, detail)
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        node != self.replica.node() && self.peers.is_suspected(node)
    }

    fn is_gone(&self, node: NodeId) -> bool {
        node != self.replica.node() && self.peers.is_gone(node)
    }

    /// The view and store by this name now, of either kind.
    pub fn at_hand(&self, store: &str) -> Option<(Arc<View>, AtHand)> {
        let view = self.replica.view().get();
        let at_hand = match view.read_only(store) {
            Some(store) => AtHand::Artifacts(store.clone()),
            None => AtHand::Versions(view.store(store)?.clone()),
        };
        Some((view, at_hand))
    }

    /// The view and store by this name now.
    pub fn current(&self, store: &str) -> Result<(Arc<View>, Arc<LocalStore>), Failure> {
        self.replica.current(store)
    }

    /// What the coordinator needs to know for a request of `store` under `view`. Of a write it is taken before the
    /// write is stamped.
    pub fn scope(&self, view: &View, store: &LocalStore) -> Scope {
        Scope {
            cluster: view.cluster().clone(),
            definition: store.shared_definition().clone(),
            store: store.reference().clone(),
            contents: Contents::Versions,
            epoch: self.replica.epochs().tag(),
        }
    }

    /// The same for a read-only store, by the newest document that this node knows of. A request that was started again
    /// under one that is not adopted yet must not be followed by one under the view.
    pub(super) fn newest_artifact_scope(&self, store: &str) -> Option<Scope> {
        let Some(cluster) = self.replica.view().ahead() else {
            return self.artifact_scope(&self.replica.view().get(), store);
        };
        let epoch = self.replica.epochs().tag();
        Some(Scope { epoch, ..Scope::read_only(&cluster, cluster.read_only(store)?) })
    }

    /// The same for a read-only store, by a view; `None` for any other. Whatever is read under it is of one artifact.
    pub(super) fn artifact_scope(&self, view: &View, store: &str) -> Option<Scope> {
        let store = view.read_only(store)?;
        Some(Scope {
            cluster: view.cluster().clone(),
            definition: store.definition().clone(),
            store: store.reference().clone(),
            contents: Contents::served(store.listed()),
            epoch: self.replica.epochs().tag(),
        })
    }

    /// Whether the store serves artifacts.
    pub fn is_read_only(&self, store: &str) -> bool {
        self.replica.view().get().read_only(store).is_some()
    }

    fn not_here(&self, view: &View) -> Failure {
        Failure {
            code: ErrorCode::StaleGeneration,
            detail: format!("{} is not a replica of the key", self.replica.node()),
            cluster: Some(view.document().clone()),
        }
    }
}

fn into_future(durable: Durable) -> Option<runtime::BoxFuture<'static, bool>> {
    match durable {
        Durable::Already => None,
        Durable::Waits(future) => Some(Box::pin(async move { future.await.is_ok() })),
    }
}

fn unknown(view: &View, node: NodeId) -> Failure {
    Failure::new(
        ErrorCode::Indeterminate,
        format!(
            "{} did not answer in time, or the connection to it broke: the write may have happened",
            view.describe(node)
        ),
    )
}
