//! What this node brings in, and how far it is with that.
//!
//! A document that brings something here makes it *incomplete* before the node follows it; [`super::refill`]
//! fetches it. What is remembered here is for the next step: with whom it was merged, since when. That need not be
//! durable: a process that starts again compares again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use model::{Cluster, Generation, NodeId, PartitionId, StoreName, Token};
use protocol::rebalance::entering::{Part, left_to_merge, takes_part};
use protocol::report::Entered;
use protocol::report::PartitionEntered;

use crate::view::View;

/// How far this node is with what it enters, by bucket.
#[derive(Default)]
pub(crate) struct Entering(BTreeMap<PartitionId, One>);

/// How far it is with one of them, or with all those of a partition.
#[derive(Clone, Default)]
struct One {
    entered: Entered,
    /// Records that came with whole pages since this process started and were not here before, and their bytes.
    came: (u64, u64),
}

impl One {
    /// How far it is with both: merged with whom each was merged with.
    fn and(mut self, other: &One) -> One {
        self.entered.generation = self.entered.generation.min(other.entered.generation);
        self.entered.merged.retain(|store, peers| {
            let also = other.entered.merged.get(store);
            peers.retain(|peer| also.is_some_and(|also| also.contains(peer)));
            !peers.is_empty()
        });
        self.came = (self.came.0 + other.came.0, self.came.1 + other.came.1);
        self
    }
}

/// Buckets with a store's name, and with whom each may yet merge.
type Left = BTreeMap<(PartitionId, StoreName), Vec<NodeId>>;

impl Entering {
    /// The node follows this view. What it did at an earlier step tells nothing of the present one.
    pub(crate) fn follow(&mut self, view: &View, (node, incarnation): (NodeId, u64)) {
        let mut entered = std::mem::take(&mut self.0);
        let definitions = view.cluster().definitions();
        for bucket in view.buckets().partitions() {
            if !definitions.iter().any(|store| takes_part(store, bucket, node)) {
                continue;
            }
            let generation = view.cluster().stepped_since(bucket);
            let mut one = entered.remove(&bucket.id).unwrap_or_default();
            if (one.entered.generation, one.entered.incarnation) != (generation, incarnation) {
                one.entered = Entered { incarnation, generation, ..Entered::default() };
            }
            self.0.insert(bucket.id, one);
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

    /// What is left to merge, until no step waits for this node any more. A step of a partition waits for nodes with which
    /// all its buckets were merged.
    pub(crate) fn left(&self, view: &View, node: NodeId) -> Left {
        let mut left = Left::new();
        for (id, (buckets, one)) in self.by_partition(view) {
            let Some(partition) = view.cluster().ring.get(id) else { continue };
            let whole = buckets.iter().all(|bucket| has_records(view, *bucket));
            let entered = Entered { whole, ..one.entered };
            for (store, peers) in left_to_merge(view.cluster(), partition, node, &entered) {
                for bucket in &buckets {
                    let merged = self.0[bucket].entered.merged.get(&store);
                    let lacks = |peer: &&NodeId| merged.is_none_or(|merged| !merged.contains(peer));
                    left.insert((*bucket, store.clone()), peers.iter().filter(lacks).copied().collect());
                }
            }
        }
        left
    }

    /// How far it is with each partition; `is_whole` says whether all of a bucket is here.
    pub(crate) fn report(
        &self,
        view: &View,
        is_whole: impl Fn(PartitionId) -> bool,
    ) -> Vec<PartitionEntered> {
        let told = |(id, (buckets, one)): (PartitionId, (Vec<PartitionId>, One))| {
            let whole = buckets.into_iter().all(&is_whole);
            PartitionEntered::of(id, Entered { whole, ..one.entered }, one.came)
        };
        self.by_partition(view).into_iter().map(told).collect()
    }

    /// Partitions with their buckets, and how far it is with all of these.
    fn by_partition(&self, view: &View) -> BTreeMap<PartitionId, (Vec<PartitionId>, One)> {
        let mut all: BTreeMap<PartitionId, (Vec<PartitionId>, One)> = BTreeMap::new();
        for (bucket, one) in &self.0 {
            match all.entry(view.owner(*bucket).id) {
                Entry::Vacant(vacant) => {
                    vacant.insert((vec![*bucket], one.clone()));
                }
                Entry::Occupied(mut known) => {
                    let (buckets, sum) = known.get_mut();
                    buckets.push(*bucket);
                    *sum = std::mem::take(sum).and(one);
                }
            }
        }
        all
    }
}

/// Whether nothing of a bucket is missing here, of any store.
pub(crate) fn has_records(view: &View, bucket: PartitionId) -> bool {
    view.stores().iter().all(|store| !store.trees().is_incomplete(bucket))
}

/// The buckets of stores that a newer document makes a node bring in if it followed `before` until then.
pub(crate) fn begun(node: NodeId, before: Option<&Cluster>, after: &Cluster) -> Vec<(String, PartitionId)> {
    let mut begun = Vec::new();
    let buckets = after.by_bucket();
    for store in &after.stores {
        for bucket in buckets.partitions() {
            let earlier = before.map(|before| {
                // A store that it did not know was empty, and lay where it would have lain.
                let known = before.stores.iter().find(|known| known.name == store.name).unwrap_or(store);
                Part::of(known, before.ring.partition(Token(bucket.start)), node)
            });
            if Part::of(store, bucket, node).begins_incomplete(earlier) {
                begun.push((store.name.to_string(), bucket.id));
            }
        }
    }
    begun
}

#[cfg(test)]
mod tests {
    use protocol::rebalance::steps;

    use super::*;
    use crate::driven::home::{Home, cluster};

    #[test]
    fn a_partition_counts_as_merged_only_when_every_bucket_is() {
        let mut before = cluster();
        before.buckets = 8;
        before.stores[0].consistency.replicas = 2;
        let home = Home::of(&before);
        let (node, own) = (home.start(), NodeId(1));
        let is_other = |p: &&model::Partition| !p.nodes[..2].contains(&own);
        let Some((id, nodes)) = before.ring.partitions().iter().find(is_other).map(|p| (p.id, &p.nodes))
        else {
            panic!("the node is a replica of all");
        };
        let moving = steps::begin(&before, &[(id, vec![nodes[0], own, nodes[1]])]).unwrap();
        let generation = moving.generation;
        home.adopt(&node, moving);
        let view = node.replica().view().get();
        let mut entering = Entering::default();
        entering.follow(&view, (own, 1));
        let buckets: Vec<PartitionId> = entering.0.keys().copied().collect();
        assert_eq!(buckets.len(), 4);
        for (position, bucket) in buckets.iter().enumerate() {
            let told = entering.report(&view, |_| true);
            assert!(told.iter().all(|one| one.merged.is_empty()), "{position} of 4 buckets: {told:?}");
            let store = &view.stores()[0].definition().name;
            entering.merged(store, *bucket, (nodes[1], generation));
        }
        assert!(!entering.report(&view, |_| true)[0].merged.is_empty());
    }
}
