//! A read-only store in the swarm: a user who pushes and takes back, sources that do harm, and readers.
//!
//! ```text
//!   user ─▶ orders ─▶ cluster document ─▶ nodes fetch from sources ─▶ a headmaster swaps
//!                         │ observed                                        │
//!                         ▼                                                 ▼
//!                        book: what was built, what was served when, what readers were told ─▶ invariant 10
//! ```
//!
//! What was served, and when, is read off the documents as they are written. So nobody has to know which orders were
//! carried out.
//!
//! In reading order: [`Book`]; `building` makes artifacts, `pushing` is the user, `reading` the readers, `ending` the last
//! words of a run.
//!
//! Must never: tell a node anything but through documents and the network.

mod building;
mod ending;
mod pushing;
mod reading;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use model::readonly::ReadOnlyStore;
use model::{ArtifactNumber, Cluster, ListedArtifact, ManifestDigest, Moment, NodeId};
use parking_lot::Mutex;
use runtime::disk::simulated::SimulatedDisk;
use storage::readonly::{ChunkEntry, Manifest};

use crate::check::Violation;
use crate::check::artifacts::{Asked, Swap, Table, judge};
use crate::host::Host;
use crate::sources::SimulatedSources;

pub use ending::end;
pub use pushing::push;
pub use reading::read;

/// The read-only store of a run.
pub const STORE: &str = "words";
/// The user's host: no node and no client has it.
pub const USER: Host = Host(93);
/// Hosts of readers begin after this one.
const READERS: u32 = 200;
/// Numbers of readers begin after those of all other clients.
const READER_FIRST: u32 = 300;

/// The hosts of a run's readers.
pub fn readers(count: u32) -> impl Iterator<Item = Host> {
    (1..=count).map(|number| Host(READERS + number))
}

/// An artifact that was built.
struct Built {
    url: String,
    disk: SimulatedDisk,
    manifest: Manifest,
    table: Table,
    digest: ManifestDigest,
}

/// What is known of a run's artifacts.
#[derive(Default)]
pub struct Book {
    state: Mutex<State>,
    /// Requests that were refused as a whole or in part.
    refused: AtomicU64,
}

#[derive(Default)]
struct State {
    built: BTreeMap<u64, Built>,
    /// When each was first listed.
    listed: BTreeMap<ArtifactNumber, Moment>,
    /// The fewest replicas of a slice that an order asked for; all where none did.
    enough: BTreeMap<u64, u8>,
    swaps: Vec<Swap>,
    asked: Vec<Asked>,
    violations: Vec<Violation>,
}

/// Counts of what a run did with artifacts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookCounts {
    /// Swaps that were published.
    pub swaps: u64,
    /// Those of them that went back to an older artifact.
    pub back: u64,
    /// Requests of readers that were answered whole.
    pub answered: u64,
    /// Requests that were not.
    pub refused: u64,
}

impl Book {
    /// A document was published: notes what it serves, and whether that was staged as its orders asked.
    pub fn published(
        &self,
        now: Moment,
        cluster: &Cluster,
        disks: &[(NodeId, SimulatedDisk)],
        struck_since: &dyn Fn(Moment) -> Vec<NodeId>,
    ) {
        let Some(store) = cluster.read_only(STORE) else { return };
        let mut state = self.state.lock();
        for listed in &store.artifacts {
            state.listed.entry(listed.number).or_insert(now);
        }
        let Some(served) = store.served() else { return };
        if state.swaps.last().map(|swap| swap.number) == Some(served.number.0) {
            return;
        }
        state.swaps.push(Swap { ordered: now, number: served.number.0 });
        let Some(built) = state.built.get(&served.number.0).filter(|built| built.digest == served.manifest)
        else {
            return;
        };
        let since = state.listed.get(&served.number).copied().unwrap_or(now);
        let struck = struck_since(since);
        let enough = usize::from(state.enough.get(&served.number.0).copied().unwrap_or(u8::MAX));
        let mut short = Vec::new();
        for Owed { tokens, lists } in owed(cluster, store) {
            let named: Vec<String> = chunks_of(&built.manifest, tokens).map(chunk_file).collect();
            let holds = |node: &NodeId| {
                let disk = disks.iter().find(|(id, _)| id == node).map(|(_, disk)| disk);
                let here = disk.is_some_and(|disk| named.iter().all(|file| disk.synced_bytes(file) > 0));
                here || struck.contains(node)
            };
            for list in lists {
                let have = list.iter().filter(|node| holds(node)).count();
                if have < list.len().min(enough) {
                    short.push(format!("tokens from {:016x}: {have} of {list:?}", tokens.0));
                }
            }
        }
        if !short.is_empty() {
            let detail = format!(
                "generation {} serves artifact {}, which too few replicas held: {}",
                cluster.generation.0,
                served.number,
                short.join("; ")
            );
            state.violations.push(Violation { invariant: 10, about: None, detail });
        }
    }

    /// What is served by the newest document.
    pub fn served(&self) -> Option<(ArtifactNumber, ManifestDigest)> {
        let state = self.state.lock();
        let number = state.swaps.last()?.number;
        Some((ArtifactNumber(number), state.built.get(&number)?.digest))
    }

    /// The digest of an artifact's manifest.
    fn digest(&self, number: u64) -> ManifestDigest {
        self.state.lock().built[&number].digest
    }

    /// An order asks that so many replicas of each slice hold an artifact; all by default.
    fn enough(&self, number: u64, replicas: Option<u8>) {
        if let Some(replicas) = replicas {
            self.state.lock().enough.insert(number, replicas);
        }
    }

    /// Makes the source of an artifact be what was built.
    fn mend(&self, sources: &SimulatedSources, number: u64, url: &str) {
        sources.set_mood(url, None);
        sources.put(url, self.state.lock().built[&number].disk.clone());
    }

    /// A reader was told this.
    fn told(&self, asked: Asked) {
        self.state.lock().asked.push(asked);
    }

    /// Makes all sources be what was built.
    pub fn heal(&self, sources: &SimulatedSources) {
        sources.calm();
        self.state.lock().built.values().for_each(|built| sources.put(&built.url, built.disk.clone()));
    }

    /// What was broken.
    pub fn broken(&self) -> Vec<Violation> {
        let state = self.state.lock();
        let tables = state.built.iter().map(|(number, built)| (*number, built.table.clone())).collect();
        let mut violations = judge(&state.asked, &tables, &state.swaps);
        violations.extend(state.violations.iter().cloned());
        violations
    }

    /// How much of it there was.
    pub fn counts(&self) -> BookCounts {
        let state = self.state.lock();
        let back = state.swaps.windows(2).filter(|pair| pair[1].number < pair[0].number).count();
        BookCounts {
            swaps: state.swaps.len() as u64,
            back: back as u64,
            answered: state.asked.len() as u64,
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// The chunks of an artifact that touch some tokens.
fn chunks_of(manifest: &Manifest, (first, last): (u64, u64)) -> impl Iterator<Item = &ChunkEntry> {
    manifest.chunks.iter().filter(move |chunk| chunk.slice.first.0 <= last && chunk.slice.last.0 >= first)
}

/// Where a node keeps chunks.
fn chunk_directory() -> String {
    format!("artifacts/{STORE}/chunks")
}

/// Where a node keeps a chunk.
fn chunk_file(chunk: &ChunkEntry) -> String {
    format!("{}/{}", chunk_directory(), chunk.digest)
}

/// Where a node keeps the manifest of an artifact.
fn manifest_file(listed: &ListedArtifact) -> String {
    format!("artifacts/{STORE}/{}-{}", listed.number, listed.manifest)
}

/// What replicas owe of a partition.
struct Owed {
    /// Its first and last token.
    tokens: (u64, u64),
    /// The lists of replicas that must hold what is served there: while the partition moves, both.
    lists: Vec<Vec<NodeId>>,
}

/// What is owed of each partition.
fn owed(cluster: &Cluster, store: &ReadOnlyStore) -> Vec<Owed> {
    let first = |nodes: &[NodeId]| nodes.iter().take(usize::from(store.replicas)).copied().collect();
    let partitions = cluster.ring.partitions();
    let ends = partitions.iter().skip(1).map(|next| next.start - 1).chain([u64::MAX]);
    let each = partitions.iter().zip(ends).map(|(partition, end)| {
        let coming = partition.coming.iter().map(|coming| first(&coming.nodes));
        let lists = std::iter::once(first(&partition.nodes)).chain(coming).collect();
        Owed { tokens: (partition.start, end), lists }
    });
    each.collect()
}
