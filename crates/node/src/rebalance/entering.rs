//! What this node brings in, and how far it is with that.
//!
//! A document that brings something here makes it *incomplete* before the node goes by it; `antientropy::refill` fetches
//! it. What is remembered here is for the next step: with whom it was merged, since when. That need not be durable: a
//! process that starts again compares again.

use std::collections::BTreeMap;

use model::{Cluster, Generation, NodeId, PartitionId, StoreName, Token};
use protocol::rebalance::Entered;
use protocol::rebalance::entering::{Part, left_to_merge};
use wire::messages::PartitionEntered;

/// How far this node is with the partitions that it enters.
#[derive(Default)]
pub(crate) struct Entering(BTreeMap<PartitionId, One>);

/// How far it is with one of them.
#[derive(Default)]
struct One {
    entered: Entered,
    /// Records that came with whole pages since this process started, and the bytes that travelled for them.
    came: (u64, u64),
}

/// Partitions with a store's name, and with whom each may yet merge.
type Left = BTreeMap<(PartitionId, StoreName), Vec<NodeId>>;

impl Entering {
    /// The node goes by this document. What it did at an earlier step tells nothing of the present one.
    pub(crate) fn follow(&mut self, cluster: &Cluster, (node, incarnation): (NodeId, u64)) {
        let mut entered = std::mem::take(&mut self.0);
        let definitions = cluster.definitions();
        for partition in cluster.ring.partitions() {
            let part = |store| Part::of(store, partition, node);
            if !definitions.iter().any(|store| part(store) == Part::Entering) {
                continue;
            }
            let generation = partition.since;
            let mut one = entered.remove(&partition.id).unwrap_or_default();
            if (one.entered.generation, one.entered.incarnation) != (generation, incarnation) {
                one.entered = Entered { incarnation, generation, ..Entered::default() };
            }
            self.0.insert(partition.id, one);
        }
    }

    /// A partition was merged with all that `peer` held, which was whole, after the peer had adopted `adopted`.
    pub(crate) fn merged(
        &mut self,
        store: &StoreName,
        partition: PartitionId,
        (peer, adopted): (NodeId, Generation),
    ) {
        if let Some(One { entered, .. }) = self.0.get_mut(&partition)
            && adopted >= entered.generation
        {
            entered.merged.entry(store.clone()).or_default().insert(peer);
        }
    }

    /// Records have come.
    pub(crate) fn came(&mut self, partition: PartitionId, records: u64, bytes: u64) {
        if let Some(One { came, .. }) = self.0.get_mut(&partition) {
            *came = (came.0 + records, came.1 + bytes);
        }
    }

    /// What is left to merge, until no step waits for this node any more.
    pub(crate) fn left(&self, cluster: &Cluster, node: NodeId) -> Left {
        let partitions = self.0.iter().filter_map(|(id, one)| Some((cluster.ring.get(*id)?, &one.entered)));
        let left = partitions.flat_map(|(partition, entered)| {
            let left = left_to_merge(cluster, partition, node, entered);
            left.into_iter().map(|(store, peers)| ((partition.id, store), peers))
        });
        left.collect()
    }

    /// How far it is with each; `is_whole` says whether all of it is here.
    pub(crate) fn told(&self, is_whole: impl Fn(PartitionId) -> bool) -> Vec<PartitionEntered> {
        let told = |(id, one): (&PartitionId, &One)| {
            let entered = Entered { whole: is_whole(*id), ..one.entered.clone() };
            PartitionEntered::of(*id, &entered, one.came)
        };
        self.0.iter().map(told).collect()
    }
}

/// The partitions of stores that a newer document makes a node bring in, which went by `before`.
pub(crate) fn begun(node: NodeId, before: Option<&Cluster>, after: &Cluster) -> Vec<(String, PartitionId)> {
    let mut begun = Vec::new();
    for store in &after.stores {
        for partition in after.ring.partitions() {
            let earlier = before.map(|before| {
                // A store that it did not know was empty, and lay where it would have lain.
                let known = before.stores.iter().find(|known| known.name == store.name).unwrap_or(store);
                Part::of(known, before.ring.partition(Token(partition.start)), node)
            });
            if Part::of(store, partition, node).begins_incomplete(earlier) {
                begun.push((store.name.to_string(), partition.id));
            }
        }
    }
    begun
}
