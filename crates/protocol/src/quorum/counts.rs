//! Counts of replicas outside of requests: whoever needs R or W of them asks here.
//!
//! **Architecture Invariant:** what is counted is replicas, each once; a node that was not asked never counts.

use model::{Consistency, NodeId, PreferenceList, Reads, Sets, Store};
use smallvec::SmallVec;

use super::options::saturated;

/// By how many fewer nodes each of the two sets of replicas gets by than the number that is required, while a store
/// changes its numbers: the set of the greater number needs all of them. Zero at all other times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spared {
    old: u8,
    new: u8,
}

impl Spared {
    /// What is required when the old and the new set need so many each, and what each of them is spared of that.
    pub fn of(old: u8, new: u8) -> (u8, Spared) {
        let required = old.max(new);
        (required, Spared { old: required - old, new: required - new })
    }

    /// What is spared of a number that a request names itself: of the smaller set no more is required than all of it.
    pub fn of_named(required: u8, old_replicas: u8, new_replicas: u8) -> Spared {
        if required > old_replicas.max(new_replicas) {
            return Spared::default();
        }
        let spared = |replicas: u8| required - required.min(replicas);
        Spared { old: spared(old_replicas), new: spared(new_replicas) }
    }

    /// The old set's for the new one, and the other way round.
    #[cfg(test)]
    pub(super) fn swapped(self) -> Spared {
        Spared { old: self.new, new: self.old }
    }

    /// Whether both sets need as many.
    pub(super) fn is_none(self) -> bool {
        self == Spared::default()
    }

    /// What nodes in the sets that count here get by with, of so many that are required.
    pub(super) fn needed(self, required: u8, old: bool) -> usize {
        usize::from(required.saturating_sub(if old { self.old } else { self.new }))
    }
}

/// How many nodes count in each of the two sets of replicas that a partition has while it moves. Of one that stays put
/// both counts are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tallies {
    old: usize,
    new: usize,
}

impl Tallies {
    /// Of nodes, each in its sets.
    #[inline]
    pub(super) fn of(nodes: impl Iterator<Item = Sets>) -> Tallies {
        let mut tallies = Tallies::default();
        nodes.for_each(|sets| tallies.add(sets));
        tallies
    }

    /// Of nodes, each in its sets, and of what each set is spared: enough are there when the least of this is what is
    /// required.
    #[inline]
    pub(super) fn with(spared: Spared, nodes: impl Iterator<Item = Sets>) -> Tallies {
        let mut tallies = Tallies { old: spared.old.into(), new: spared.new.into() };
        nodes.for_each(|sets| tallies.add(sets));
        tallies
    }

    /// Counts one more.
    #[inline]
    pub(super) fn add(&mut self, sets: Sets) {
        self.old += usize::from(sets.has_old());
        self.new += usize::from(sets.has_new());
    }

    /// In the set in which there are fewer: what is required must be there in both.
    #[inline]
    pub(super) fn least(self) -> u8 {
        saturated(self.old.min(self.new))
    }

    /// What each set lacks of this many.
    pub(super) fn lacking(self, required: u8) -> Tallies {
        let required = usize::from(required);
        Tallies { old: required.saturating_sub(self.old), new: required.saturating_sub(self.new) }
    }

    /// What is left of these counts beyond the others.
    pub(super) fn without(self, others: Tallies) -> Tallies {
        Tallies { old: self.old.saturating_sub(others.old), new: self.new.saturating_sub(others.new) }
    }

    /// Whether one more node of these sets would be counted in a set that is not at zero.
    pub(super) fn wants(self, sets: Sets) -> bool {
        (self.old > 0 && sets.has_old()) || (self.new > 0 && sets.has_new())
    }

    /// Takes off one node.
    pub(super) fn take(&mut self, sets: Sets) {
        self.old = self.old.saturating_sub(usize::from(sets.has_old()));
        self.new = self.new.saturating_sub(usize::from(sets.has_new()));
    }
}

/// Whether a get or a put of this store needs the answer of a single replica: what only one node holds may count.
pub fn one_answer_suffices(definition: &Store) -> bool {
    let Consistency { reads_required, writes_required, .. } = definition.consistency;
    reads_required == 1 || writes_required == 1
}

/// Whether a request may ask for this many of a store's replicas.
pub fn can_be_met(required: u8, definition: &Store) -> bool {
    required <= definition.numbers_read().replicas
}

/// Answers that a get of this store must have, or holders where these are more: R, or what monotonic reads need.
pub fn answers_required(definition: &Store) -> u8 {
    let numbers = definition.numbers_read();
    numbers.reads_required.max(definition.read_holders(numbers))
}

/// Whether a get of a fast sloppy store finds values at all where this many nodes are up: it gives one once R were heard.
pub fn values_can_be_told(definition: &Store, nodes_up: usize) -> bool {
    definition.sloppy
        && definition.reads == Reads::Fast
        && nodes_up >= usize::from(answers_required(definition))
}

/// Whether what so many of a partition's other replicas hold contains each write that was acknowledged by
/// `writes_required` of its `replicas`: each such write is with W − 1 of the N − 1 others, and N − W + 1 of them
/// overlap with these.
pub fn hold_every_write(others: usize, replicas: usize, writes_required: usize) -> bool {
    others > replicas.saturating_sub(writes_required)
}

/// So many of a partition's replicas that each quorum of `required` of them has one of these: when as many refuse a
/// request, it cannot succeed.
pub fn meet_every_quorum(replicas: usize, required: u8) -> usize {
    (replicas + 1).saturating_sub(usize::from(required)).max(1)
}

/// This many replicas of a store with these numbers hold what a write was acknowledged for, or a get has shown.
pub fn holders_promised(definition: &Store, numbers: Consistency) -> usize {
    numbers.writes_required.max(definition.read_holders(numbers)).into()
}

/// The replicas that must hold what a hint holds before its holder may drop it undelivered.
///
/// When the write was acknowledged W replicas were promised. The hint may be one of these copies, so W others than
/// its target must have the content; all that are there get it. While writes need two sets of replicas, W of each.
#[derive(Clone, Debug)]
pub struct Holders {
    required: u8,
    spared: Spared,
    /// Replicas that are there, each with its sets and whether it has acknowledged.
    nodes: SmallVec<[(NodeId, Sets, bool); 3]>,
}

impl Holders {
    /// The holders of a key's hint for `target`; `None` while fewer than W replicas other than it are there.
    pub fn of(
        definition: &Store,
        preference: &PreferenceList,
        target: NodeId,
        is_there: impl Fn(NodeId) -> bool,
    ) -> Option<Holders> {
        let (old, new) = definition.numbers_written();
        let (required, spared) = Spared::of(old.writes_required, new.writes_required);
        let there = preference.sets().filter(|&(node, _)| node != target && is_there(node));
        let nodes: SmallVec<_> = there.map(|(node, sets)| (node, sets, false)).collect();
        let holders = Holders { required, spared, nodes };
        let all = Tallies::with(spared, holders.nodes.iter().map(|&(_, sets, _)| sets));
        (all.least() >= required).then_some(holders)
    }

    /// The replicas that get the content.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|&(node, ..)| node)
    }

    /// A replica has the content, durably.
    pub fn acknowledged(&mut self, node: NodeId) {
        self.nodes.iter_mut().filter(|(other, ..)| *other == node).for_each(|(.., has)| *has = true);
    }

    /// Whether the hint may be dropped.
    pub fn suffice(&self) -> bool {
        let holding = self.nodes.iter().filter(|(.., has)| *has);
        Tallies::with(self.spared, holding.map(|&(_, sets, _)| sets)).least() >= self.required
    }
}

#[cfg(test)]
mod tests {
    use model::{Partition, PartitionId, StoreName};

    use super::*;
    use crate::quorum::fixtures::joint_preference;

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
    fn while_the_partition_moves_a_hint_stays_until_w_of_both_sets_hold_it() {
        let (definition, _) = store(2, 1, 2);
        let preference = joint_preference([&[NodeId(1), NodeId(2)], &[NodeId(2), NodeId(3)]]);
        // n1 is gone: of the old set only n2 is left, and W is 2.
        assert!(Holders::of(&definition, &preference, NodeId(1), |_| true).is_none());
        let (definition, _) = store(2, 2, 1);
        let mut holders = Holders::of(&definition, &preference, NodeId(2), |_| true).unwrap();
        assert_eq!(holders.nodes().collect::<Vec<_>>(), [NodeId(1), NodeId(3)]);
        holders.acknowledged(NodeId(1));
        assert!(!holders.suffice(), "no new replica holds it");
        holders.acknowledged(NodeId(3));
        assert!(holders.suffice());
    }

    #[test]
    fn a_set_with_fewer_replicas_than_a_request_names_is_spared_the_rest() {
        let spared = |old, new| Spared { old, new };
        assert_eq!(Spared::of_named(3, 2, 3), spared(1, 0));
        assert_eq!(Spared::of_named(3, 5, 1), spared(0, 2));
        assert_eq!(Spared::of_named(2, 2, 3), spared(0, 0), "both have as many");
        assert_eq!(Spared::of_named(4, 2, 3), spared(0, 0), "more than any set has cannot be met");
    }

    /// Every way to lose one copy of a write that W of N acknowledged, for all small N and W.
    #[test]
    fn enough_others_hold_every_write_and_one_fewer_may_not() {
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
    fn enough_refusing_nodes_stop_every_quorum_and_one_fewer_does_not() {
        for (replicas, required) in (1..=7_u8).flat_map(|n| (1..=n).map(move |quorum| (n, quorum))) {
            let refusing = meet_every_quorum(replicas.into(), required);
            let left = usize::from(replicas) - refusing;
            assert!(left < usize::from(required) && left + 1 >= usize::from(required));
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
