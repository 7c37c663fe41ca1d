//! Makes true what the cluster document lists of artifacts: fetches, verifies, opens, keeps and removes them.
//!
//! ```text
//!   document ─▶ reconcile ─▶ manifest here? ─▶ chunks here? ─▶ opened ─▶ told: whole under this generation
//!                  ▲              │ fetch          │ fetch, block by block, four at a time
//!                  └── each second, and for each newer document
//! ```
//!
//! Files lie below `artifacts/STORE`: a manifest under its number and digest, each chunk under its digest. So what several
//! artifacts share is here once, and what is here is not fetched. What no listed artifact names is removed.
//!
//! Must never: remove what a listed artifact names, or call an artifact whole of which something is missing.

mod bring;
mod files;
mod give;
mod merging;
mod origin;
mod pacing;
mod told;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use client::peers::Peers;
use futures_util::FutureExt;
use futures_util::future::select;
use model::{ArtifactNumber, Generation, ListedArtifact, Moment, NodeId, StoreName};
use parking_lot::Mutex;
use runtime::tasks::waited;
use runtime::{Disk, Ports, Sources};
use storage::readonly::{Artifact, ChunkEntry, Digest, Manifest};

use crate::events::{Event, Events};
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::stores::{Open, ReadOnly};
use crate::view::{CurrentView, View};
use pacing::{Budgets, Numbers};
pub use told::{Progress, State, Trouble};

/// How often a node looks after its artifacts when nothing has changed: pages that the system has evicted are noted, and
/// what failed is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Every so many looks files are looked for, too: one may have been removed under the node.
const LOOKS_FOR_FILES: u32 = 10;

/// What looks after the artifacts of one node.
pub struct Artifacts {
    node: NodeId,
    view: Arc<CurrentView>,
    disk: Arc<dyn Disk>,
    sources: Option<Arc<dyn Sources>>,
    ports: Ports,
    events: Arc<Events>,
    /// Links to the nodes that may have what is missing here.
    peers: Arc<Peers>,
    /// This node's workers, whose requests go before what is fetched and given.
    pulse: Arc<Pulse>,
    budgets: Budgets,
    numbers: Numbers,
    progress: Mutex<BTreeMap<(StoreName, ArtifactNumber), Progress>>,
    /// Bytes of chunks on their way that this process has verified.
    verified: Mutex<BTreeMap<(StoreName, Digest), u64>>,
    /// Deltas that were of no use here: their chunks are fetched whole.
    useless: Mutex<BTreeSet<(StoreName, Digest)>>,
    /// Corrupt chunks that were told of and have not come again.
    damage_told: Mutex<BTreeSet<(StoreName, Digest)>>,
    /// Bytes of artifacts that are here at most.
    bytes_max: u64,
    /// What each store serves, and since when, if it began in this process.
    serving: Mutex<BTreeMap<StoreName, (ArtifactNumber, Option<Moment>)>>,
    /// The generation of the document after which files were removed last.
    removed_under: AtomicU64,
}

/// What looking after artifacts needs.
pub(crate) struct Parts {
    /// This node.
    pub(crate) node: NodeId,
    /// Its document.
    pub(crate) view: Arc<CurrentView>,
    /// The doors to the world.
    pub(crate) ports: Ports,
    /// Its data directory.
    pub(crate) disk: Arc<dyn Disk>,
    /// Where it fetches from.
    pub(crate) sources: Option<Arc<dyn Sources>>,
    /// Links to other nodes.
    pub(crate) peers: Arc<Peers>,
    /// Its workers.
    pub(crate) pulse: Arc<Pulse>,
    /// Where what happened is told.
    pub(crate) events: Arc<Events>,
    /// Where it is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Bytes a second that it fetches at most, and gives at most.
    pub(crate) fetch_ceiling: u64,
    /// Bytes of artifacts that are here at most.
    pub(crate) bytes_max: u64,
}

/// Why an artifact is not here yet.
#[derive(Debug)]
enum NotYet {
    /// A newer document came: everything is looked at anew.
    Changed,
    /// This went wrong; it is tried again.
    Failed(String, Trouble),
}

/// Nobody gives what is missing, or something else is in the way.
fn failed(error: impl ToString) -> NotYet {
    NotYet::Failed(error.to_string(), Trouble::Source)
}

/// What a panic says of itself. Where panics end the process nobody comes here.
fn bug(panic: &(dyn Any + Send)) -> NotYet {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason is known");
    tracing::error!(error = text, "fetching of artifacts panicked, and goes on");
    let error = format!("a bug in fetching: {text}; report it with the node's log around this time");
    NotYet::Failed(error, Trouble::Node)
}

impl Artifacts {
    /// Opens what is here already, so that it is served at once, and looks after artifacts from then on.
    pub(crate) async fn start(parts: Parts) -> Arc<Artifacts> {
        let Parts { node, view, ports, disk, sources, peers, pulse, events, metrics, .. } = parts;
        let artifacts = Arc::new(Artifacts {
            node,
            view,
            disk,
            sources,
            ports,
            events,
            peers,
            pulse,
            budgets: Budgets::new(parts.fetch_ceiling),
            numbers: Numbers::new(&metrics),
            progress: Mutex::default(),
            verified: Mutex::default(),
            useless: Mutex::default(),
            damage_told: Mutex::default(),
            bytes_max: parts.bytes_max,
            serving: Mutex::default(),
            removed_under: AtomicU64::new(0),
        });
        artifacts.watch(&metrics);
        artifacts.note_served(None);
        artifacts.open_present().await;
        let keeping = keep(Arc::downgrade(&artifacts));
        artifacts.ports.tasks.spawn_background(Box::pin(keeping));
        artifacts
    }

    /// Goes by a newer view, and notes when stores began to serve what they serve by it.
    pub(crate) fn adopt(&self, view: View) {
        self.view.replace(view);
        self.note_served(Some(self.ports.clock.now()));
    }

    fn note_served(&self, since: Option<Moment>) {
        let view = self.view.get();
        let mut serving = self.serving.lock();
        for store in &view.cluster().read_only {
            let known = serving.get(&store.name).map(|(number, _)| *number);
            match store.served().map(|served| served.number) {
                Some(served) if known != Some(served) => {
                    serving.insert(store.name.clone(), (served, since));
                }
                _ => {}
            }
        }
    }

    /// For how many milliseconds this node has served an artifact, if it began in this process.
    fn serving_ms(&self, store: &StoreName, number: ArtifactNumber) -> Option<u64> {
        let serving = self.serving.lock();
        let (_, since) = serving.get(store).filter(|(served, _)| *served == number)?;
        u64::try_from(self.ports.clock.now().since((*since)?).as_millis()).ok()
    }

    /// Opens what is here of each listed artifact, and fetches nothing.
    async fn open_present(&self) {
        let view = self.view.get();
        for (store, listed) in listed(&view) {
            let Ok(Some(manifest)) = self.manifest_here(&store, &listed).await else { continue };
            let wanted = self.wanted(&view, &store, &manifest);
            let here = self.here(&store, &manifest, wanted.clone()).await;
            let whole = here == wanted;
            let under = if whole { view.cluster().generation } else { Generation::default() };
            if let Err(NotYet::Failed(error, _)) = self.open(&store, &listed, manifest, here, under).await {
                tracing::warn!(store = %store.listed().name, number = listed.number.0, error, "artifact not opened");
            }
        }
    }

    /// Looks once at everything that the document lists. False when a newer one came meanwhile.
    async fn reconcile(&self, thorough: bool) -> bool {
        let view = self.view.get();
        for (store, listed) in listed(&view) {
            let key = (store.listed().name.clone(), listed.number);
            // A bug that one artifact meets must not keep the others from coming, nor this one for good.
            let ensured =
                AssertUnwindSafe(self.ensure(&view, &store, &listed, thorough)).catch_unwind().await;
            match ensured.unwrap_or_else(|panic| Err(bug(&*panic))) {
                Ok(()) => {}
                Err(NotYet::Changed) => return false,
                Err(NotYet::Failed(error, trouble)) => {
                    let known = self.progress.lock().entry(key).or_default().fail(&error, trouble);
                    if !known {
                        let (store, number) = (store.listed().name.to_string(), listed.number.0);
                        tracing::warn!(store, number, error, "artifact not staged");
                        self.events.record(Event::ArtifactFailed { store, number, error });
                    }
                }
            }
        }
        if thorough || self.removed_under.load(Ordering::Relaxed) != view.cluster().generation.0 {
            for store in view.read_only_stores() {
                self.remove_unlisted(&view, store).await;
            }
            self.removed_under.store(view.cluster().generation.0, Ordering::Relaxed);
        }
        let lists = |(name, number): &(StoreName, ArtifactNumber)| {
            view.cluster().read_only(name.as_str()).is_some_and(|store| store.artifact(*number).is_some())
        };
        self.progress.lock().retain(|key, _| lists(key));
        self.view.generation() == view.cluster().generation
    }

    /// Makes one artifact whole here.
    async fn ensure(
        &self,
        view: &View,
        store: &ReadOnly,
        listed: &ListedArtifact,
        thorough: bool,
    ) -> Result<(), NotYet> {
        let generation = view.cluster().generation;
        let open = store.held().open(listed.number, listed.manifest);
        let damaged = store.held().damaged();
        self.tell_damaged(&store.listed().name, &damaged);
        if let Some(open) = &open
            && open.whole_under() == generation
            && damaged.is_empty()
            && !thorough
        {
            return Ok(());
        }
        let manifest = match self.manifest_here(store, listed).await? {
            Some(manifest) => manifest,
            None => self.bring_manifest(view, store, listed).await?,
        };
        let wanted = self.wanted(view, store, &manifest);
        let mut here = self.here(store, &manifest, wanted.clone()).await;
        for (chunk, here) in manifest.chunks.iter().zip(&mut here) {
            *here &= !damaged.contains(&chunk.digest);
        }
        if let Some(open) = open.as_ref().filter(|open| here == wanted && open.chunks == wanted) {
            if open.whole_under() != generation {
                open.set_whole_under(generation);
                let progress = Progress::of(&manifest, &wanted, generation);
                self.now_is((store.listed().name.clone(), listed.number), progress);
            }
            return Ok(());
        }
        self.bring_chunks(view, store, listed, &manifest, (&wanted, here)).await?;
        let staged = open.is_none_or(|open| open.whole_under() == Generation::default());
        let mended: Vec<Digest> = manifest
            .chunks
            .iter()
            .map(|chunk| chunk.digest)
            .filter(|chunk| damaged.contains(chunk))
            .collect();
        self.open(store, listed, manifest, wanted, generation).await?;
        store.held().mended(&mended);
        if staged {
            let (store, number) = (store.listed().name.to_string(), listed.number.0);
            self.events.record(Event::ArtifactStaged { store, number });
        }
        Ok(())
    }

    /// Tells of chunks that gets have found corrupt, once each until they have come again.
    fn tell_damaged(&self, store: &StoreName, damaged: &[Digest]) {
        let mut told = self.damage_told.lock();
        told.retain(|(of, chunk)| of != store || damaged.contains(chunk));
        for &chunk in damaged {
            if told.insert((store.clone(), chunk)) {
                self.numbers.corrupt_here.increment();
                tracing::warn!(%store, %chunk, "chunk of an artifact found corrupt");
                let (store, chunk) = (store.to_string(), chunk.to_string());
                self.events.record(Event::ArtifactCorrupt { store, chunk });
            }
        }
    }

    /// Opens these chunks of an artifact in place of what is open of it.
    async fn open(
        &self,
        store: &ReadOnly,
        listed: &ListedArtifact,
        manifest: Manifest,
        chunks: Vec<bool>,
        whole_under: Generation,
    ) -> Result<(), NotYet> {
        let (disk, name) = (self.disk.clone(), store.listed().name.clone());
        let progress = Progress::of(&manifest, &chunks, whole_under);
        let opened = chunks.clone();
        let open = move || {
            let positions: BTreeMap<u64, bool> =
                manifest.chunks.iter().map(|chunk| chunk.slice.first.0).zip(opened).collect();
            let wanted = |chunk: &ChunkEntry| positions[&chunk.slice.first.0];
            let place = |digest| files::chunk(&name, digest);
            Artifact::open_chunks(&*disk, manifest, &place, &wanted)
        };
        let opened = self.wait(open).await?;
        let artifact = opened.map_err(|error| NotYet::Failed(error.to_string(), Trouble::Node))?;
        let (number, manifest) = (listed.number, listed.manifest);
        store.held().put(number, Open::new(manifest, artifact, chunks, whole_under));
        self.now_is((store.listed().name.clone(), number), progress);
        Ok(())
    }

    /// Notes how far an artifact is; what was fetched of it stays told.
    fn now_is(&self, which: (StoreName, ArtifactNumber), now: Progress) {
        let mut progress = self.progress.lock();
        let known = progress.entry(which).or_default();
        let (bytes_fetched, bytes_fetched_as_deltas) = (known.bytes_fetched, known.bytes_fetched_as_deltas);
        *known = Progress { bytes_fetched, bytes_fetched_as_deltas, ..now };
    }

    /// Which chunks of an artifact touch what this node owns, or is about to own.
    fn wanted(&self, view: &View, store: &ReadOnly, manifest: &Manifest) -> Vec<bool> {
        let definition = store.definition();
        let partitions = view.cluster().ring.partitions();
        let ends = partitions.iter().skip(1).map(|next| next.start - 1).chain([u64::MAX]);
        let owned: Vec<(u64, u64)> = partitions
            .iter()
            .zip(ends)
            .filter(|(partition, _)| view.holds_of(self.node, definition, partition))
            .map(|(partition, end)| (partition.start, end))
            .collect();
        let touches = |chunk: &ChunkEntry| {
            let at = owned.partition_point(|(_, end)| *end < chunk.slice.first.0);
            owned.get(at).is_some_and(|(start, _)| *start <= chunk.slice.last.0)
        };
        manifest.chunks.iter().map(touches).collect()
    }

    /// Carries out work that waits for the disk.
    async fn wait<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotYet> {
        let work = move || catch_unwind(AssertUnwindSafe(work));
        match waited(&*self.ports.tasks, work).await {
            Some(Ok(done)) => Ok(done),
            Some(Err(panic)) => Err(bug(&*panic)),
            None => Err(NotYet::Failed("the node is stopping".to_owned(), Trouble::Node)),
        }
    }

    /// Notes which pages of open artifacts are in memory.
    async fn refresh(&self) {
        let view = self.view.get();
        let open: Vec<_> = view
            .read_only_stores()
            .iter()
            .flat_map(|store| store.held().all())
            .map(|(_, open)| open)
            .collect();
        if !open.is_empty() {
            let _ = self.wait(move || open.iter().for_each(|open| open.artifact.refresh())).await;
        }
    }
}

/// Everything that a document lists, what is served first.
fn listed(view: &View) -> Vec<(Arc<ReadOnly>, ListedArtifact)> {
    let each = |store: &Arc<ReadOnly>| {
        let served = store.listed().served().map(|artifact| artifact.number);
        let mut artifacts = store.listed().artifacts.clone();
        artifacts.sort_by_key(|artifact| (Some(artifact.number) != served, artifact.number));
        artifacts.into_iter().map(|artifact| (store.clone(), artifact)).collect::<Vec<_>>()
    };
    view.read_only_stores().iter().flat_map(each).collect()
}

/// Looks after artifacts as long as there is somebody who does.
async fn keep(artifacts: Weak<Artifacts>) {
    let Some(started) = artifacts.upgrade() else { return };
    let (clock, view) = (started.ports.clock.clone(), started.view.clone());
    drop(started);
    let mut looks = 0_u32;
    loop {
        let Some(keeper) = artifacts.upgrade() else { return };
        let seen = view.generation();
        let looked = keeper.reconcile(looks.is_multiple_of(LOOKS_FOR_FILES));
        let settled = AssertUnwindSafe(looked).catch_unwind().await.unwrap_or_else(|panic| {
            bug(&*panic);
            true
        });
        if settled {
            keeper.refresh().await;
        }
        drop(keeper);
        if settled {
            looks = looks.wrapping_add(1);
            let changed = std::pin::pin!(view.newer_than(seen));
            select(changed, clock.sleep(LOOK_AGAIN)).await;
        }
    }
}
