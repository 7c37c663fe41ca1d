//! What a node does by itself while partitions move, and how it tells how far it is.
//!
//! ```text
//!   document ──▶ entering: bring in, merge again, say so ──▶ told ──▶ headmaster ──▶ next document
//!           └──▶ leaving: give back, drop
//! ```
//!
//! **Architecture Invariant:** nothing here decides that a partition takes its next step: `protocol::rebalance` does.

pub(crate) mod course;
mod entering;
pub(crate) mod leaving;

use std::collections::BTreeMap;

use protocol::report::{Leftover, MovesReport};

use crate::antientropy::AntiEntropy;
use crate::stores::{LocalStore, ReadOnly};
use crate::view::View;
use model::readonly::Standing;
use model::{NodeId, Partition, PartitionId};
use protocol::rebalance::entering::Part;

pub(crate) use entering::{Entering, begun};

/// How far this node is, by which steps are decided.
pub(crate) fn report(antientropy: &AntiEntropy) -> MovesReport {
    let replica = antientropy.replica();
    // Before anything else: what is said of later documents then says too little, never too much.
    let adopted = replica.view().adopted();
    let view = replica.view().get();
    let hints = replica.hints().pending().into_iter().map(|(_, count)| count).sum();
    let has_artifacts = |id| {
        let partition = view.buckets().get(id);
        partition.is_none_or(|partition| {
            view.read_only_stores().iter().all(|store| has_artifacts(store, partition, replica.node()))
        })
    };
    let is_whole = |id| entering::has_records(&view, id) && has_artifacts(id);
    let entered = antientropy.refill().lock().entering().report(&view, is_whole);
    let leftovers = view.stores().iter().flat_map(|store| {
        let mut left: BTreeMap<PartitionId, u64> = BTreeMap::new();
        for (bucket, records) in leftovers(&view, store, replica.node()) {
            *left.entry(view.owner(bucket).id).or_default() += records;
        }
        let store = &store.definition().name;
        left.into_iter().map(|(partition, records)| Leftover { store: store.clone(), partition, records })
    });
    MovesReport { adopted, entered, leftovers: leftovers.collect(), hints }
}

/// Whether this node may answer for a partition that it enters from what a read-only store serves and keeps. What was never
/// served need not be here: its swap waits for old and new replicas.
fn has_artifacts(store: &ReadOnly, partition: &Partition, node: NodeId) -> bool {
    let mut served =
        store.listed().artifacts.iter().filter(|artifact| artifact.standing != Standing::Staging);
    Part::of(store.definition(), partition, node) != Part::Entering
        || served.all(|artifact| {
            let open = store.held().open(artifact.number, artifact.manifest);
            open.is_some_and(|open| open.whole_under() >= partition.since)
        })
}

/// The buckets of which this node holds records that are not its own, and how many.
fn leftovers(view: &View, store: &LocalStore, node: NodeId) -> Vec<(PartitionId, u64)> {
    let held = store.engine().partitions().into_iter().map(|held| (held.partition, held.records));
    let is_left = |id: PartitionId| {
        let bucket = view.buckets().get(id);
        bucket.is_some_and(|partition| Part::of(store.definition(), partition, node) == Part::Nothing)
    };
    held.filter(|(id, records)| *records > 0 && is_left(*id)).collect()
}
