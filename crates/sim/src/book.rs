//! What is known of a run's artifacts: what was built, what was served when, and what readers were told.
//!
//! What was served, and when, is read off the documents as they are written. So nobody has to know which orders were
//! carried out. `building` makes the artifacts.
//!
//! Must never: ask a node what it holds; it looks at the disks of machines.

mod building;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use model::artifacts::ReadOnlyStore;
use model::{ArtifactNumber, Cluster, ListedArtifact, ManifestDigest, Moment, NodeId};
use parking_lot::Mutex;
use runtime::disk::simulated::SimulatedDisk;
use storage::artifacts::{ChunkEntry, Manifest};

use crate::check::Violation;
use crate::check::artifacts::{ReadAsked, Swap, Table, judge};
use crate::sources::SimulatedSources;

pub(crate) use building::{LIVELY, OWN, STILL, lively, own, still};

/// The read-only store of a run.
pub const STORE: &str = "words";

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
    state: Mutex<BookState>,
    /// Requests that were refused as a whole or in part.
    pub(crate) refused: AtomicU64,
}

#[derive(Default)]
struct BookState {
    built: BTreeMap<u64, Built>,
    /// When each was first listed.
    listed: BTreeMap<ArtifactNumber, Moment>,
    /// The fewest replicas of a slice that an order asked for; all where none did.
    enough: BTreeMap<u64, u8>,
    swaps: Vec<Swap>,
    asked: Vec<ReadAsked>,
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

    /// Where an artifact was built to.
    pub(crate) fn source(&self, number: u64) -> Option<(SimulatedDisk, Manifest)> {
        let state = self.state.lock();
        state.built.get(&number).map(|built| (built.disk.clone(), built.manifest.clone()))
    }

    /// The keys of an artifact.
    pub(crate) fn keys(&self, number: u64) -> Vec<Bytes> {
        let state = self.state.lock();
        state.built.get(&number).map(|built| built.table.keys().cloned().collect()).unwrap_or_default()
    }

    /// The digest of an artifact's manifest.
    pub(crate) fn digest(&self, number: u64) -> ManifestDigest {
        self.state.lock().built[&number].digest
    }

    /// An order asks that this many replicas of each slice hold an artifact; all by default.
    pub(crate) fn enough(&self, number: u64, replicas: Option<u8>) {
        if let Some(replicas) = replicas {
            self.state.lock().enough.insert(number, replicas);
        }
    }

    /// Makes the source of an artifact be what was built.
    pub(crate) fn mend(&self, sources: &SimulatedSources, number: u64, url: &str) {
        sources.set_mood(url, None);
        sources.put(url, self.state.lock().built[&number].disk.clone());
    }

    /// A reader was told this.
    pub(crate) fn told(&self, asked: ReadAsked) {
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
pub(crate) fn chunks_of(manifest: &Manifest, (first, last): (u64, u64)) -> impl Iterator<Item = &ChunkEntry> {
    manifest.chunks.iter().filter(move |chunk| chunk.slice.first.0 <= last && chunk.slice.last.0 >= first)
}

/// Where a node keeps chunks.
pub(crate) fn chunk_directory() -> String {
    format!("artifacts/{STORE}/chunks")
}

/// Where a node keeps a chunk.
pub(crate) fn chunk_file(chunk: &ChunkEntry) -> String {
    format!("{}/{}", chunk_directory(), chunk.digest)
}

/// Where a node keeps the manifest of an artifact.
pub(crate) fn manifest_file(listed: &ListedArtifact) -> String {
    format!("artifacts/{STORE}/{}-{}", listed.number, listed.manifest)
}

/// What replicas owe of a partition.
pub(crate) struct Owed {
    /// Its first and last token.
    pub(crate) tokens: (u64, u64),
    /// The lists of replicas that must hold what is served there: while the partition moves, both.
    pub(crate) lists: Vec<Vec<NodeId>>,
}

/// What is owed of each partition.
pub(crate) fn owed(cluster: &Cluster, store: &ReadOnlyStore) -> Vec<Owed> {
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
