//! Counts of replicas outside of requests: whoever needs R or W of them asks here.
//!
//! **Architecture Invariant:** what is counted is replicas, each once; a node that was not asked never counts.

use model::{NodeId, PreferenceList, Store};
use smallvec::SmallVec;

/// Whether a request may ask for so many of a store's replicas.
pub fn can_be_met(required: u8, definition: &Store) -> bool {
    required <= definition.consistency.replicas
}

/// Answers that a get of this store must have, or holders where these are more: R, or what monotonic reads need.
pub fn answers_required(definition: &Store) -> u8 {
    definition.consistency.reads_required.max(definition.read_holders())
}

/// Whether what so many of a partition's other replicas hold contains each write that was acknowledged by
/// `writes_required` of its `replicas`: each such write is with W − 1 of the N − 1 others, and N − W + 1 of them
/// overlap with these.
pub fn hold_every_write(others: usize, replicas: usize, writes_required: usize) -> bool {
    others > replicas.saturating_sub(writes_required)
}

/// The replicas that must hold what a hint holds before its holder may drop it undelivered.
///
/// When the write was acknowledged W replicas were promised. The hint may be one of these copies, so W others than
/// its target must have the content; all that are there get it.
#[derive(Clone, Debug)]
pub struct Holders {
    required: usize,
    /// Replicas that are there, each with whether it has acknowledged.
    nodes: SmallVec<[(NodeId, bool); 3]>,
}

impl Holders {
    /// The holders of a key's hint for `target`; `None` while fewer than W replicas other than it are there.
    pub fn of(
        definition: &Store,
        preference: &PreferenceList,
        target: NodeId,
        is_there: impl Fn(NodeId) -> bool,
    ) -> Option<Holders> {
        let required = usize::from(definition.consistency.writes_required);
        let there = preference.replicas().iter().filter(|&&node| node != target && is_there(node));
        let nodes: SmallVec<_> = there.map(|&node| (node, false)).collect();
        (nodes.len() >= required).then_some(Holders { required, nodes })
    }

    /// The replicas that get the content.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|&(node, _)| node)
    }

    /// A replica has the content, durably.
    pub fn acknowledged(&mut self, node: NodeId) {
        self.nodes.iter_mut().filter(|(other, _)| *other == node).for_each(|(_, has)| *has = true);
    }

    /// Whether the hint may be dropped.
    pub fn suffice(&self) -> bool {
        self.nodes.iter().filter(|(_, has)| *has).count() >= self.required
    }
}

/// The replicas whose records are read side by side by a walk over a partition: R of them, so that together they hold
/// each write that W have acknowledged. A replica that fails comes last.
#[derive(Clone, Debug)]
pub struct Readers {
    /// In the order in which they are asked.
    replicas: Vec<NodeId>,
    /// At most the number of replicas.
    required: usize,
    /// Failures since the round began.
    failures: usize,
}

impl Readers {
    /// Of a store's partition with these replicas.
    pub fn of(definition: &Store, preference: &PreferenceList) -> Readers {
        let replicas = preference.replicas().to_vec();
        let required = usize::from(definition.consistency.reads_required).min(replicas.len());
        Readers { replicas, required, failures: 0 }
    }

    /// Whom to read now.
    pub fn chosen(&self) -> &[NodeId] {
        &self.replicas[..self.required]
    }

    /// Forgets failures: those of an earlier page say nothing of this one.
    pub fn begin(&mut self) {
        self.failures = 0;
    }

    /// A replica has failed and comes last. True when as many have failed as there are replicas: once more round.
    pub fn failed(&mut self, node: NodeId) -> bool {
        self.replicas.retain(|&other| other != node);
        self.replicas.push(node);
        self.failures += 1;
        self.failures.is_multiple_of(self.replicas.len())
    }
}

#[cfg(test)]
mod tests {
    use model::{Consistency, Partition, PartitionId, StoreName};

    use super::*;

    fn store(replicas: u8, reads_required: u8, writes_required: u8) -> (Store, PreferenceList) {
        let consistency = Consistency { replicas, reads_required, writes_required };
        let store = Store::new(StoreName::new("counted").unwrap(), consistency).unwrap();
        let nodes = (1..=5).map(NodeId).collect();
        let preference = PreferenceList::of(&store, &Partition::settled(PartitionId(0), 0, nodes));
        (store, preference)
    }

    #[test]
    fn a_hint_is_dropped_when_w_others_than_its_target_hold_it_each_counted_once() {
        let (definition, preference) = store(3, 2, 2);
        for target in (1..=3).map(NodeId) {
            let mut holders = Holders::of(&definition, &preference, target, |_| true).unwrap();
            let others: Vec<_> = holders.nodes().collect();
            assert!(others.len() == 2 && !others.contains(&target), "{others:?}");
            holders.acknowledged(target);
            holders.acknowledged(NodeId(4));
            holders.acknowledged(others[0]);
            holders.acknowledged(others[0]);
            assert!(!holders.suffice(), "one of two, twice");
            holders.acknowledged(others[1]);
            assert!(holders.suffice());
        }
    }

    #[test]
    fn a_hint_stays_while_fewer_than_w_others_than_its_target_are_there() {
        let (definition, preference) = store(3, 2, 2);
        assert!(Holders::of(&definition, &preference, NodeId(1), |node| node != NodeId(2)).is_none());
        // A target that is no replica any more takes no place.
        let holders = Holders::of(&definition, &preference, NodeId(9), |node| node != NodeId(2)).unwrap();
        assert_eq!(holders.nodes().collect::<Vec<_>>(), [NodeId(1), NodeId(3)]);
        let (all, preference) = store(3, 1, 3);
        assert!(Holders::of(&all, &preference, NodeId(1), |_| true).is_none(), "its own copy is needed");
    }

    #[test]
    fn a_walk_reads_r_replicas_and_asks_the_one_that_failed_last() {
        let (definition, preference) = store(3, 2, 2);
        let mut readers = Readers::of(&definition, &preference);
        assert_eq!(readers.chosen(), [NodeId(1), NodeId(2)]);
        assert!(!readers.failed(NodeId(1)));
        assert_eq!(readers.chosen(), [NodeId(2), NodeId(3)]);
        assert!(!readers.failed(NodeId(3)));
        assert!(readers.failed(NodeId(2)), "each has failed once");
        readers.begin();
        assert!(!readers.failed(NodeId(1)), "and begins anew");
    }

    /// Every way to lose one copy of a write that W of N acknowledged, for all small N and W.
    #[test]
    fn so_many_others_hold_every_write_and_one_fewer_may_not() {
        for (replicas, writes) in (1..=7_usize).flat_map(|n| (1..=n).map(move |w| (n, w))) {
            // The write is with this node and the first W - 1 others; those merged with last meet it last.
            let meets = |others: usize| others + (writes - 1) > replicas - 1;
            for others in 0..replicas {
                let enough = hold_every_write(others, replicas, writes);
                assert_eq!(enough, meets(others), "{others} others, N={replicas}, W={writes}");
            }
        }
    }

    #[test]
    fn a_request_may_ask_for_all_replicas_and_no_more() {
        let (definition, _) = store(3, 2, 2);
        assert!(can_be_met(3, &definition) && !can_be_met(4, &definition));
        assert_eq!(answers_required(&definition), 2);
        let monotonic = Store { reads: model::store::Reads::Monotonic, ..store(3, 1, 2).0 };
        assert_eq!(answers_required(&monotonic), 3, "N + 1 - R hold what is shown");
    }
}
