//! Whether an artifact can be served: by what nodes have said that they hold of it.
//!
//! ```text
//!   document (generation G) ─┐
//!   reports of nodes at G ───┴─▶ judge ─▶ ready: publish G + 1, which serves it
//!                                     └─▶ not yet: these nodes lack it
//! ```
//!
//! A node says that it holds an artifact, for all that it owns by one document. Only what was said under exactly the
//! document that the swap follows counts: under another one it may have owned something else. The swap is published
//! under compare-and-set, so no other document comes in between.
//!
//! Must never: call an artifact ready while a slice has fewer replicas with it than the order asks for.

#[cfg(test)]
mod explore;

use std::collections::BTreeSet;

use model::readonly::Standing;
use model::routing::{replicas, replicas_to_come};
use model::{ArtifactNumber, Cluster, Generation, ManifestDigest, NodeId, ReadOnlyStore};

/// What a node has said: by the document of this generation it holds all that it needs of the artifact, and reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
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
    /// So many, or all where a slice has fewer. The others catch up.
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
    reports: &[Report],
    enough: Enough,
) -> Judgement {
    let Some(artifact) = store.artifact(number) else {
        return Judgement::NotYet { slices: cluster.ring.partitions().len(), lacking: Vec::new() };
    };
    let counts = |report: &&Report| {
        (report.generation, report.number, report.manifest) == (cluster.generation, number, artifact.manifest)
    };
    let holders: BTreeSet<NodeId> = reports.iter().filter(counts).map(|report| report.node).collect();
    let definition = store.as_store();
    let (mut slices, mut lacking) = (0, BTreeSet::new());
    for partition in cluster.ring.partitions() {
        let lists = [Some(replicas(&definition, partition)), replicas_to_come(&definition, partition)];
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

/// Whether a push may still go live by itself: it was never served. What was served comes back by an order of its own only, so
/// whoever goes on with a push undoes no rollback.
pub fn goes_on(store: &ReadOnlyStore, number: ArtifactNumber) -> bool {
    store.artifact(number).is_some_and(|artifact| artifact.standing == Standing::Staging)
}
