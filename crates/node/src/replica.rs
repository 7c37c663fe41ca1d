//! This node as one replica among others: it answers for what it holds, and for nobody else.
//!
//! The same code serves requests that came over a link and requests of the coordinator inside this process. A request
//! that needs what is not in memory is carried out on a thread that may wait for the disk: the worker goes on with others.

mod admitting;
mod artifacts;

use std::sync::Arc;

use bytes::Bytes;
use client::peers::{Call, CallError};
use model::limits::MESSAGE_BYTES_MAX;
use model::{Epoch, Generation, NodeId, PartitionId, VersionSet};
use protocol::collection::RoundRefusal;
use runtime::disk::waiting::{is_refused, without_waiting};
use runtime::tasks::waited;
use runtime::{BoxFuture, Clock, Tasks};
use smallvec::{SmallVec, smallvec};
use storage::{Commit, Durable, ScanCursor, ScanLimit, StorageEngine, StorageError};
use wire::error::ErrorCode;
use wire::messages::{
    Failure, Merged, ReplicaGet, ReplicaGot, ReplicaMerge, ReplicaMerged, Request, Response, Scan, Scanned,
    StaleEpoch, Terms,
};

use crate::epochs::{Admitted as AdmittedContents, Epochs};
use crate::hints::Hints;
use crate::stores::{KeyPlace, LocalStore};
use crate::view::{Admitted, CurrentView, View};
use crate::work::Work;

pub(crate) use admitting::AskedAs;
use admitting::BEHIND_PATIENCE;

/// Most records of one scan page, whatever the caller asks.
const SCAN_RECORDS_MAX: usize = 10_000;
/// Most bytes of one scan page, whatever the caller asks.
const SCAN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most pieces of work that wait for the disk or for their turn to. More are refused: a disk that hangs must not fill
/// the memory with those who wait for it.
const WAITING_MAX: usize = 4096;

/// An answer that is there at once, in a box because it is rare.
pub type Answered = Box<Result<Response, CallError>>;

/// What this node holds of a key, with the key's bucket where the node is a replica of it.
type Held = (Option<PartitionId>, Result<VersionSet, ErrorCode>);

/// This node's own answers.
pub struct Replica {
    node: NodeId,
    view: Arc<CurrentView>,
    hints: Arc<Hints>,
    epochs: Arc<Epochs>,
    work: Work,
    tasks: Arc<dyn Tasks>,
    clock: Arc<dyn Clock>,
    /// Counts what waits for the disk: as many as share it, besides this one.
    waiting: Arc<()>,
}

impl Replica {
    /// Answers from the view's stores and these hints, as far as `epochs` admits.
    pub fn new(
        node: NodeId,
        view: Arc<CurrentView>,
        hints: Arc<Hints>,
        epochs: Arc<Epochs>,
        (tasks, clock): (Arc<dyn Tasks>, Arc<dyn Clock>),
    ) -> Self {
        let work = Work::new(view.get().buckets().partitions().len());
        Replica { node, view, hints, epochs, work, tasks, clock, waiting: Arc::default() }
    }

    /// The node that answers.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The view it answers from.
    pub fn view(&self) -> &Arc<CurrentView> {
        &self.view
    }

    /// The hints that it holds.
    pub fn hints(&self) -> &Arc<Hints> {
        &self.hints
    }

    /// What this node follows in collection rounds.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// What it has done as a replica.
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// The generation that this node follows, when its cluster document names it.
    pub fn standing(&self) -> Option<Generation> {
        self.standing_by(&self.view.get())
    }

    fn standing_by(&self, view: &View) -> Option<Generation> {
        view.cluster().node(self.node).map(|_| view.cluster().generation)
    }

    /// Leave to store contents that were read at `tag` and came in a message formed under `generation`, under a view
    /// that stays the current one meanwhile.
    ///
    /// # Errors
    /// What to answer: [`StaleEpoch`] with this node's epoch, or a failure with the newer cluster document.
    pub(crate) fn admit_contents(
        &self,
        view: &Admitted<'_>,
        tag: Epoch,
        generation: Generation,
    ) -> Result<AdmittedContents<'_>, Answered> {
        self.epochs.guard_contents(tag, generation, || self.standing_by(view)).map_err(|refusal| {
            Box::new(match refusal {
                RoundRefusal::StaleEpoch(epoch) => Ok(Response::StaleEpoch(StaleEpoch { epoch })),
                _ => Err(CallError::Refused(Failure {
                    code: ErrorCode::StaleGeneration,
                    detail: "the cluster has removed tombstones since the generation of the request"
                        .to_owned(),
                    cluster: Some(view.document().clone()),
                })),
            })
        })
    }

    /// What this node holds of a key that it is about to send `set` for, read anew, and when. `None` when what it holds
    /// does not stand for `set` any more: it was read elsewhere, or was deleted and forgotten meanwhile.
    pub fn renewed(&self, store: &LocalStore, key: &Bytes, set: &VersionSet) -> Option<(Epoch, VersionSet)> {
        let epoch = self.epochs.tag();
        let view = self.view.get();
        let terms = (view.cluster().generation, AskedAs::Either);
        let mut held = self.held(&view, store, key, terms).ok()?.1.ok()?;
        if set.is_deleted() {
            // A deletion brings nothing back, whenever it was read.
            held.merge(set);
        }
        held.includes(set).then_some((epoch, held))
    }

    /// Answers a replica operation; other requests are not for it. Reading may have to wait for the disk: then, as for
    /// durability, the answer is pending.
    ///
    /// A request that is newer than this node waits for the document that it was formed under, for a moment.
    pub fn call(self: &Arc<Self>, request: Request) -> Call {
        let needed = admitting::needed(&request);
        if needed <= self.view.generation() {
            return self.carry_out(request);
        }
        let replica = self.clone();
        Call::Pending(Box::pin(async move {
            replica.view.reached(needed, &*replica.clock, BEHIND_PATIENCE).await;
            match replica.carry_out(request) {
                Call::Ready(answer) => answer,
                Call::Pending(answer) => answer.await,
            }
        }))
    }

    fn carry_out(self: &Arc<Self>, request: Request) -> Call {
        // A page of a scan reads so much that it would wait in any case.
        if !matches!(request, Request::Scan(_) | Request::ArtifactScan(_)) {
            let tried = without_waiting(|| self.answer(&request));
            if !tried.refused {
                return tried.answer;
            }
        }
        // Whatever was merged until then is merged again, which changes nothing.
        let replica = self.clone();
        Call::Pending(Box::pin(async move {
            let carried_out = replica.clone().waiting(move || {
                replica.read_ahead(&request);
                replica.answer(&request)
            });
            match carried_out.await.map_err(CallError::Refused)? {
                Call::Ready(answer) => answer,
                Call::Pending(answer) => answer.await,
            }
        }))
    }

    /// Carries out `work` on a thread that may wait for the disk.
    ///
    /// # Errors
    /// `Overloaded` when too much waits already, `ShuttingDown` when the process ends before; then nothing was done.
    pub(crate) async fn waiting<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let place = self.waiting.clone();
        if Arc::strong_count(&place) > WAITING_MAX + 1 {
            let detail = format!(
                "{WAITING_MAX} requests already wait for the disk of {}, which is the limit",
                self.node
            );
            return Err(Failure::new(ErrorCode::Overloaded, detail));
        }
        let done = waited(&*self.tasks, move || {
            // Given back when the work is done, or left because nobody waits for it any more.
            let _place = place;
            work()
        });
        done.await.ok_or_else(|| Failure::new(ErrorCode::ShuttingDown, "the node is stopping"))
    }

    /// Brings into memory what merging will read, so that nobody waits for the disk while keeping others from a record.
    fn read_ahead(&self, request: &Request) {
        let Request::ReplicaMerge(ReplicaMerge { store, generation, hint_for, entries, .. }) = request else {
            return;
        };
        let view = self.view.get();
        let Ok(store) = self.store_of(&view, store, *generation) else { return };
        for (key, _) in entries {
            self.read_key_ahead(&view, store, key, *hint_for);
        }
    }

    /// The same for what is about to be merged under a key, into its record or into what is parked for `hint_for`.
    pub(crate) fn read_key_ahead(
        &self,
        view: &View,
        store: &LocalStore,
        key: &Bytes,
        hint_for: Option<NodeId>,
    ) {
        // Merging finds again, and says, what is wrong with it.
        let _ = match hint_for {
            None => store.content(view.partition(store, key).0, key),
            Some(target) => {
                let definition = store.definition();
                self.hints.get(&[target], &definition.name, definition.resolver, key)
            }
        };
    }

    fn answer(&self, request: &Request) -> Call {
        let refused = |failure| Call::Ready(Err(CallError::Refused(failure)));
        match request {
            Request::ReplicaGet(get) => match self.get(get) {
                Ok(got) => Call::Ready(Ok(Response::ReplicaGot(got))),
                Err(failure) => refused(failure),
            },
            Request::ArtifactGet(get) => match self.artifact_get(get) {
                Ok(got) => Call::Ready(Ok(Response::ReplicaGot(got))),
                Err(failure) => refused(failure),
            },
            Request::ReplicaMerge(merge) => match self.merge(merge) {
                Ok((merged, None)) => Call::Ready(Ok(Response::ReplicaMerged(merged))),
                Ok((merged, Some(waiting))) => Call::Pending(Box::pin(when_durable(merged, waiting))),
                Err(answer) => Call::Ready(*answer),
            },
            Request::Scan(scan) => match self.scan(scan) {
                Ok(scanned) => Call::Ready(Ok(Response::Scanned(scanned))),
                Err(failure) => refused(failure),
            },
            Request::ArtifactScan(scan) => match self.artifact_scan(scan) {
                Ok(scanned) => Call::Ready(Ok(Response::Scanned(scanned))),
                Err(failure) => refused(failure),
            },
            _ => refused(Failure::new(ErrorCode::UnknownRequest, "this is not a request for a replica")),
        }
    }

    /// The view now, and a store by its name.
    ///
    /// # Errors
    /// `UnknownStore`.
    pub fn current(&self, store: &str) -> Result<(Arc<View>, Arc<LocalStore>), Failure> {
        let view = self.view.get();
        let found = self.store_of(&view, store, Generation(u64::MAX))?.clone();
        Ok((view, found))
    }

    /// Notes how many keys a client asked for that drives its reads itself.
    pub(crate) fn note_part(&self, request: &ReplicaGet) {
        if let [_, _, ..] = &request.keys[..]
            && let Ok(store) = self.store_of(&self.view.get(), &request.store, request.generation)
        {
            store.demand().add_part(request.keys.len());
        }
    }

    fn get(&self, request: &ReplicaGet) -> Result<ReplicaGot, Failure> {
        let mut view = self.view.get();
        loop {
            let got = self.get_under(&view, request)?;
            // A newer view may have come before the records were read: then they are no more of this one.
            if self.view.generation() == view.cluster().generation {
                return Ok(got);
            }
            view = self.view.get();
        }
    }

    fn get_under(&self, view: &View, request: &ReplicaGet) -> Result<ReplicaGot, Failure> {
        let own = view.cluster().generation;
        let Terms { since, role } = request.terms;
        if own < since {
            return Err(self.behind(view, since));
        }
        let store = self.store_of(view, &request.store, request.generation)?;
        let terms = (request.generation, AskedAs::from(role));
        let (epoch, generation) = (self.epochs.tag(), own);
        if let [key] = &request.keys[..] {
            let sets = smallvec![self.get_one(view, store, key, terms)?];
            return Ok(ReplicaGot { generation, epoch, sets });
        }
        // As many as fit a message; the caller asks again for the rest.
        let (mut sets, mut bytes) = (SmallVec::new(), 0);
        for key in &request.keys {
            if is_refused() {
                break;
            }
            let found = self.get_one(view, store, key, terms)?;
            bytes += found.as_ref().map_or(0, |set| wire::versions::record_bytes(None, set));
            if bytes > MESSAGE_BYTES_MAX && !sets.is_empty() {
                break;
            }
            sets.push(found);
        }
        Ok(ReplicaGot { generation, epoch, sets })
    }

    /// What this node holds of a key that somebody gets.
    ///
    /// # Errors
    /// As a whole when this node is not to be asked for it.
    fn get_one(
        &self,
        view: &View,
        store: &LocalStore,
        key: &Bytes,
        terms: (Generation, AskedAs),
    ) -> Result<Result<VersionSet, ErrorCode>, Failure> {
        let (own, found) = self.held(view, store, key, terms)?;
        // What must wait for the disk is asked again.
        if let Some(bucket) = own.filter(|_| !is_refused()) {
            self.work.got(bucket, key);
        }
        Ok(found)
    }

    /// What this node holds of a key; its bucket, where the node is a replica of it and no stand-in.
    ///
    /// # Errors
    /// As a whole when this node is not to be asked for it.
    fn held(
        &self,
        view: &View,
        store: &LocalStore,
        key: &Bytes,
        (generation, asked): (Generation, AskedAs),
    ) -> Result<Held, Failure> {
        let (place, partition) = view.partition(store, key);
        self.check(view, store, partition, (generation, asked))?;
        let definition = store.definition();
        let replicas = model::routing::replicas(definition, partition);
        let own = replicas.contains(&self.node).then_some(place.partition);
        let found = if own.is_some() {
            store.get(place, key)
        } else {
            let writers: SmallVec<[NodeId; 8]> = model::routing::writers(definition, partition).collect();
            self.hints.get(&writers, &definition.name, definition.resolver, key)
        };
        Ok((own, found.map_err(|failure| failure.code)))
    }

    /// Whether this node may merge what a message brings.
    fn check_merge(&self, view: &View, store: &LocalStore, request: &ReplicaMerge) -> Result<(), Failure> {
        let generation = request.generation;
        for (key, _) in &request.entries {
            let (_, partition) = view.partition(store, key);
            match request.hint_for {
                Some(target) => self.check_target(view, store, partition, (target, generation))?,
                None => self.check(view, store, partition, (generation, AskedAs::Writer))?,
            }
        }
        Ok(())
    }

    /// Merges what a message brings. What it stored is made durable at once, not key by key: one append to the file.
    fn merge(&self, request: &ReplicaMerge) -> Result<(ReplicaMerged, Option<Waiting>), Answered> {
        let refused = |failure| Box::new(Err(CallError::Refused(failure)));
        let view = self.view.admit();
        let own = view.cluster().generation;
        if own < request.since {
            return Err(refused(self.behind(&view, request.since)));
        }
        let store = self.store_of(&view, &request.store, request.generation).map_err(refused)?;
        self.check_merge(&view, store, request).map_err(refused)?;
        let admitted = self.admit_contents(&view, request.epoch, request.generation)?;
        let generation = own;
        let mut outcomes = Outcomes::new();
        let mut commits: SmallVec<[(usize, Commit); 1]> = SmallVec::new();
        for (key, set) in &request.entries {
            if is_refused() {
                // All of it is merged again, by one that may wait.
                return Ok((ReplicaMerged { generation, outcomes }, None));
            }
            let set = &*admitted.clean(&store.definition().name, key, set);
            let stored = match request.hint_for {
                Some(target) => self.store_hint(target, store, key, set),
                None => self.store_put(&view, store, key, set),
            };
            outcomes.push(stored.map(|(merged, commit)| {
                commits.push((outcomes.len(), commit));
                merged
            }));
        }
        let merged = ReplicaMerged { generation, outcomes };
        let Some(newest) = commits.iter().map(|(_, commit)| *commit).max() else {
            return Ok((merged, None));
        };
        let engine = match request.hint_for {
            Some(_) => self.hints.engine(),
            None => store.engine(),
        };
        Ok(match engine.durable(newest) {
            Durable::Already => (merged, None),
            Durable::Waits(all) => (merged, Some(Waiting { all, engine: engine.clone(), commits })),
        })
    }

    /// Merges into this node's own record of the key what somebody else than a writer brings; it counts as no work.
    pub(crate) fn merge_one(
        &self,
        view: &View,
        store: &LocalStore,
        key: &[u8],
        set: &VersionSet,
    ) -> (Result<Merged, ErrorCode>, Durable) {
        match store_merged(store, view.partition(store, key).0, key, set) {
            Ok((merged, commit)) => (Ok(merged), store.durable(commit)),
            Err(code) => (Err(code), Durable::Already),
        }
    }

    /// Merges a write that came to this node as a replica.
    fn store_put(
        &self,
        view: &View,
        store: &LocalStore,
        key: &[u8],
        set: &VersionSet,
    ) -> Result<(Merged, Commit), ErrorCode> {
        let place = view.partition(store, key).0;
        let stored = store_merged(store, place, key, set)?;
        self.work.merged(place.partition, key);
        Ok(stored)
    }

    /// Parks a hint here; what it answers is what a replica would.
    pub fn park(
        &self,
        target: NodeId,
        store: &LocalStore,
        key: &[u8],
        set: &VersionSet,
    ) -> (Result<Merged, ErrorCode>, Durable) {
        match self.store_hint(target, store, key, set) {
            Ok((merged, commit)) => (Ok(merged), self.hints.durable(commit)),
            Err(code) => (Err(code), Durable::Already),
        }
    }

    fn store_hint(
        &self,
        target: NodeId,
        store: &LocalStore,
        key: &[u8],
        set: &VersionSet,
    ) -> Result<(Merged, Commit), ErrorCode> {
        let commit = self.hints.park(target, store.definition(), key, set).map_err(|failure| failure.code)?;
        let merged = if commit.is_some() { Merged::Changed } else { Merged::Known };
        Ok((merged, commit.unwrap_or_else(|| self.hints.engine().position())))
    }

    fn scan(&self, request: &Scan) -> Result<Scanned, Failure> {
        let mut view = self.view.get();
        loop {
            let page = self.scan_under(&view, request)?;
            if self.view.generation() == view.cluster().generation {
                return Ok(page);
            }
            view = self.view.get();
        }
    }

    fn scan_under(&self, view: &View, request: &Scan) -> Result<Scanned, Failure> {
        if view.cluster().generation < request.since {
            return Err(self.behind(view, request.since));
        }
        let store = self.store_of(view, &request.store, request.generation)?;
        let Some(partition) = view.cluster().ring.get(request.partition) else {
            return Err(self.unknown(view, request.partition, request.generation));
        };
        self.check(view, store, partition, (request.generation, AskedAs::Reader))?;
        let mut page = Scanned { records: Vec::new(), next: None, damaged: 0 };
        let mut after = request.after.clone().map(|(token, key)| ScanCursor { token, key });
        let (mut records_left, mut bytes_left) = (
            (request.records_max as usize).clamp(1, SCAN_RECORDS_MAX),
            (request.bytes_max as usize).clamp(1, SCAN_BYTES_MAX),
        );
        for bucket in view.buckets_of(partition.id) {
            let tokens = view.buckets().bounds(bucket.id);
            if after.as_ref().zip(tokens).is_some_and(|(after, (_, last))| after.token > last) {
                continue;
            }
            if records_left == 0 || bytes_left == 0 {
                // The last record of a full page: behind it the next one begins.
                page.next = after.map(|cursor| (cursor.token, cursor.key));
                break;
            }
            let limit = ScanLimit { records_max: records_left, bytes_max: bytes_left };
            let behind = after.as_ref().filter(|after| after.token.0 >= bucket.start);
            let scan = store.scan_complete(bucket.id, behind, limit)?;
            records_left = records_left.saturating_sub(scan.records.len());
            bytes_left = bytes_left.saturating_sub(scan.bytes);
            page.damaged += scan.damaged.len() as u64;
            if let Some((key, _)) = scan.records.last() {
                after = Some(ScanCursor { token: store.token(key), key: key.clone() });
            }
            page.records.extend(scan.records);
            if let Some(next) = scan.next {
                page.next = Some((next.token, next.key));
                break;
            }
        }
        Ok(page)
    }
}

fn store_merged(
    store: &LocalStore,
    place: KeyPlace,
    key: &[u8],
    set: &VersionSet,
) -> Result<(Merged, Commit), ErrorCode> {
    let (merged, commit) = store.merge(place, key, set).map_err(|failure| failure.code)?;
    // What was found in place may not be durable yet: whoever stored it may still wait for that.
    Ok((merged, commit.unwrap_or_else(|| store.engine().position())))
}

/// What became of each key of a message.
type Outcomes = SmallVec<[Result<Merged, ErrorCode>; 1]>;

/// What a message's keys wait for.
struct Waiting {
    /// Completes when all of them are durable.
    all: BoxFuture<'static, Result<(), StorageError>>,
    engine: Arc<dyn StorageEngine>,
    /// Positions in the outcomes, each with the commit that it needs.
    commits: SmallVec<[(usize, Commit); 1]>,
}

async fn when_durable(mut merged: ReplicaMerged, waiting: Waiting) -> Result<Response, CallError> {
    let Waiting { all, engine, commits } = waiting;
    if all.await.is_err() {
        // A key fails for itself: what was in the file before this message is durable whatever became of the rest.
        for (position, commit) in commits {
            if engine.durable(commit).wait().await.is_err() {
                merged.outcomes[position] = Err(ErrorCode::StorageFailed);
            }
        }
    }
    Ok(Response::ReplicaMerged(merged))
}
