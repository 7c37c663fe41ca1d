//! Whether an artifact can be served, by what nodes have said that they hold of it, and what is due for pushes.
//!
//! ```text
//!   document (generation G) ─┐
//!   reports of nodes at G ───┴─▶ judge ─▶ ready: publish G + 1, which serves it
//!                                     └─▶ not yet: these nodes lack it; too late: publish G + 1 without it
//! ```
//!
//! A node says that it holds an artifact, for all that it owns by one document. Only what was said under exactly the
//! document that the swap follows counts: under another one it may have owned something else. The swap is published
//! under compare-and-set, so no other document comes in between.
//!
//! Must never: call an artifact ready while a slice has fewer replicas with it than the order asks for.

#[cfg(test)]
mod explore;
mod origins;

use std::collections::{BTreeMap, BTreeSet};

use model::artifacts::Standing;
use model::routing::{replicas_before, replicas_to_come};
use model::{
    ArtifactNumber, Cluster, Generation, ListedArtifact, ManifestDigest, NodeId, ReadOnlyStore, StoreName,
    WallMillis,
};

pub use origins::{Origin, Origins};

/// What a node has said: by the document of this generation it holds all that it needs of the artifact, and reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushReport {
    /// The node.
    pub node: NodeId,
    /// The generation of the document by which it went.
    pub generation: Generation,
    /// The artifact's number.
    pub number: ArtifactNumber,
    /// The digest of its manifest.
    pub manifest: ManifestDigest,
}

/// How many replicas of each slice must hold an artifact before it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enough {
    /// All of them.
    All,
    /// This many, or all where a slice has fewer. The others catch up.
    Replicas(u8),
}

/// Whether a swap may be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It may.
    Ready,
    /// Not yet.
    NotYet {
        /// Slices of which too few replicas hold the artifact.
        slices: usize,
        /// Their replicas that do not hold it, by id.
        lacking: Vec<NodeId>,
    },
}

/// Judges whether `store`, of `cluster`, may serve an artifact that it lists.
pub fn judge(
    cluster: &Cluster,
    store: &ReadOnlyStore,
    number: ArtifactNumber,
    reports: &[PushReport],
    enough: Enough,
) -> Judgement {
    let Some(artifact) = store.artifact(number) else {
        return Judgement::NotYet { slices: cluster.ring.partitions().len(), lacking: Vec::new() };
    };
    let counts = |report: &&PushReport| {
        (report.generation, report.number, report.manifest) == (cluster.generation, number, artifact.manifest)
    };
    let holders: BTreeSet<NodeId> = reports.iter().filter(counts).map(|report| report.node).collect();
    let definition = store.as_store();
    let (mut slices, mut lacking) = (0, BTreeSet::new());
    for partition in cluster.ring.partitions() {
        // While a partition moves, both: a move that is aborted goes back to the old ones at once.
        let lists = [Some(replicas_before(&definition, partition)), replicas_to_come(&definition, partition)];
        let mut short = false;
        for list in lists.into_iter().flatten() {
            let wanted = match enough {
                Enough::All => list.len(),
                Enough::Replicas(count) => list.len().min(usize::from(count.max(1))),
            };
            let without = list.iter().filter(|node| !holders.contains(node));
            if list.len() - without.clone().count() < wanted {
                short = true;
                lacking.extend(without);
            }
        }
        slices += usize::from(short);
    }
    if slices == 0 {
        Judgement::Ready
    } else {
        Judgement::NotYet { slices, lacking: lacking.into_iter().collect() }
    }
}

/// What is due for a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Serve it.
    Swap,
    /// Forget it: its time is over.
    Abort,
}

/// Whether an artifact still is to go live by itself: it was never served. What was served comes back by a separate order
/// only, so a headmaster that goes on undoes no rollback.
fn is_pushed(artifact: &ListedArtifact) -> bool {
    artifact.standing == Standing::Staging && artifact.push.is_some()
}

/// Whether anything of this document waits for a headmaster.
pub fn is_pending(cluster: &Cluster) -> bool {
    cluster.read_only.iter().flat_map(|store| &store.artifacts).any(is_pushed)
}

/// The next document, if one is due for a push, and what it does to which artifact. Of several artifacts of a store that are
/// ready the newest goes live; that ends the pushes of the others.
pub fn due(
    cluster: &Cluster,
    reports: &BTreeMap<StoreName, Vec<PushReport>>,
    now: WallMillis,
) -> Option<(StoreName, ArtifactNumber, Due)> {
    cluster.read_only.iter().find_map(|store| {
        let said = reports.get(&store.name).map_or(&[][..], Vec::as_slice);
        let pushed = || store.artifacts.iter().rev().filter(|artifact| is_pushed(artifact));
        let ready = |artifact: &&ListedArtifact| {
            let replicas = artifact.push.as_ref().and_then(|push| push.replicas);
            let enough = replicas.map_or(Enough::All, Enough::Replicas);
            judge(cluster, store, artifact.number, said, enough) == Judgement::Ready
        };
        let late = |artifact: &&ListedArtifact| {
            let abort_at = artifact.push.as_ref().and_then(|push| push.abort_at);
            abort_at.is_some_and(|abort_at| abort_at <= now)
        };
        let swap = pushed().find(ready).map(|artifact| (artifact, Due::Swap));
        let due = swap.or_else(|| pushed().find(late).map(|artifact| (artifact, Due::Abort)));
        due.map(|(artifact, due)| (store.name.clone(), artifact.number, due))
    })
}
