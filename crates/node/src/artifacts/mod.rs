//! Makes true what the cluster document lists of artifacts: fetches, verifies, opens, keeps and removes them.
//!
//! ```text
//!   document ─▶ look ─▶ manifest and chunks here? ─ yes ─▶ opened ─▶ told: whole under this generation
//!                ▲               │ no
//!                │               └─▶ fetched beside the looks, block by block, four chunks at a time
//!                └── each second, for each newer document, and when a fetch has ended
//! ```
//!
//! Files lie below `artifacts/STORE`: a manifest under its number and digest, each chunk under its digest. So what several
//! artifacts share is here once, and what is here is not fetched. What no listed artifact names is removed.
//!
//! Must never: remove what a listed artifact names, or call an artifact whole of which something is missing.

mod bring;
mod changes;
mod fetching;
mod files;
mod give;
mod looking;
mod merging;
mod origin;
mod pacing;
mod refreshing;
mod removing;
mod room;
mod scrubbing;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use client::peers::Peers;
use futures_util::future::{Either, select};
use model::{ArtifactNumber, Moment, NodeId, StoreName};
use protocol::artifacts::Origins;
use runtime::locks::Mutex;
use runtime::tasks::waited;
use runtime::{Disk, Ports, Sources};
use storage::artifacts::Digest;
use tokio::sync::Notify;

use crate::chores::{Board, Rest, begin};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::view::{CurrentView, View};
use fetching::Fetching;
use pacing::{ArtifactCounters, Budgets};
use protocol::report::{ArtifactState as State, ArtifactTrouble as Trouble};
pub(crate) use scrubbing::ScrubOptions;
use scrubbing::{Scrub, ScrubArtifacts};
pub use told::FetchProgress;

/// How often a node looks after its artifacts when nothing has changed: pages that the system has evicted are noted, and
/// what failed is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Every this many looks, files are looked for, too: one may have been removed under the node.
const LOOKS_FOR_FILES: u32 = 10;

/// What is known of the givers of one artifact, over all attempts.
type KnownOrigins = Arc<Mutex<Origins>>;

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
    counters: ArtifactCounters,
    progress: Mutex<BTreeMap<(StoreName, ArtifactNumber), FetchProgress>>,
    /// Bytes of chunks on their way that this process has verified.
    verified: Mutex<BTreeMap<(StoreName, Digest), u64>>,
    /// Deltas that were of no use here: their chunks are fetched whole.
    useless: Mutex<BTreeSet<(StoreName, Digest)>>,
    /// Corrupt chunks that were told of and have not come again. Whoever notes one for the first time holds it.
    damage_told: Mutex<BTreeSet<(StoreName, Digest)>>,
    /// What is known of the givers of each artifact.
    origins: Mutex<BTreeMap<(StoreName, ArtifactNumber), KnownOrigins>>,
    fetching: Mutex<Fetching>,
    /// Passes over the pages of open artifacts.
    refreshing: refreshing::Passes,
    /// Whoever holds it compares what will be written with the room that there is.
    room: tokio::sync::Mutex<()>,
    /// Tells of fetches that have ended.
    fetched: Arc<Notify>,
    /// Bytes of artifacts that are here at most.
    bytes_max: u64,
    /// What each store serves, and since when, if it began in this process.
    serving: Mutex<BTreeMap<StoreName, (ArtifactNumber, Option<Moment>)>>,
    /// The generation of the document after which files were removed last.
    removed_under: AtomicU64,
    scrub_options: ScrubOptions,
    scrub: Mutex<Scrub>,
}

/// What looking after artifacts needs.
pub(crate) struct ArtifactsParts {
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
    /// Where its scrub is seen.
    pub(crate) board: Arc<Board>,
    /// Bytes a second that it fetches at most, and gives at most.
    pub(crate) fetch_ceiling: u64,
    /// Bytes of artifacts that are here at most.
    pub(crate) bytes_max: u64,
    /// How its files are read when nobody else does.
    pub(crate) scrub: ScrubOptions,
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

impl Artifacts {
    /// Opens what is here already, so that it is served at once, and looks after artifacts from then on.
    pub(crate) async fn start(parts: ArtifactsParts) -> Arc<Artifacts> {
        let ArtifactsParts { node, view, ports, disk, sources, peers, pulse, events, metrics, .. } = parts;
        let scrub = Scrub::from(ports.clock.now());
        let budgets = Budgets::new(&ports.clock, &pulse, parts.fetch_ceiling);
        let artifacts = Arc::new(Artifacts {
            node,
            view,
            disk,
            sources,
            ports,
            events,
            peers,
            budgets,
            pulse,
            counters: ArtifactCounters::new(&metrics),
            progress: Mutex::default(),
            verified: Mutex::default(),
            useless: Mutex::default(),
            damage_told: Mutex::default(),
            origins: Mutex::default(),
            fetching: Mutex::default(),
            refreshing: refreshing::Passes::default(),
            room: tokio::sync::Mutex::default(),
            fetched: Arc::default(),
            bytes_max: parts.bytes_max,
            serving: Mutex::default(),
            removed_under: AtomicU64::new(0),
            scrub_options: parts.scrub,
            scrub: Mutex::new(scrub),
        });
        artifacts.watch(&metrics);
        artifacts.note_served(None);
        artifacts.open_present().await;
        let keeping = keep(Arc::downgrade(&artifacts));
        artifacts.ports.tasks.spawn_background(Box::pin(keeping));
        let weak = Arc::downgrade(&artifacts);
        begin(&artifacts.ports, &parts.board, Rest::Now, move || ScrubArtifacts::new(weak.clone()));
        artifacts
    }

    /// Follows a newer view, and notes when stores began to serve what they serve by it.
    pub(crate) fn adopt(&self, view: View) {
        let before = self.view.get();
        self.view.replace(view);
        self.note_served(Some(self.ports.clock.now()));
        for event in changes::told(before.cluster(), self.view.get().cluster()) {
            self.events.record(event);
        }
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

    /// Carries out work that waits for the disk.
    async fn wait<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NotYet> {
        let done = waited(&*self.ports.tasks, work).await;
        done.ok_or_else(|| NotYet::Failed("the node is stopping".to_owned(), Trouble::Node))
    }
}

/// Looks after artifacts as long as there is somebody who does.
async fn keep(artifacts: Weak<Artifacts>) {
    let Some(started) = artifacts.upgrade() else { return };
    let (clock, view) = (started.ports.clock.clone(), started.view.clone());
    drop(started);
    let (mut looks, mut thorough) = (0_u32, true);
    loop {
        // A fetch holds the value, too, and must not keep itself from ending.
        let keeper = artifacts.upgrade().filter(|keeper| Arc::strong_count(keeper) > 1 + keeper.fetches());
        let Some(keeper) = keeper else { return };
        let seen = view.generation();
        let Some(missing) = keeper.look(thorough).await else { continue };
        keeper.fetch(missing);
        looks = looks.wrapping_add(1);
        let fetched = keeper.fetched.clone();
        let rest = async {
            keeper.refresh().await;
            drop(keeper);
            clock.sleep(LOOK_AGAIN).await;
        };
        let (changed, rest) = (pin!(view.newer_than(seen)), pin!(rest));
        let again = select(changed, rest);
        let has_fetched = matches!(select(pin!(fetched.notified()), again).await, Either::Left(_));
        thorough = has_fetched || looks.is_multiple_of(LOOKS_FOR_FILES);
    }
}
