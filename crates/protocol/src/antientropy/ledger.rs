//! Which partitions of a node that lost its records are whole again.
//!
//! A node without its records has acknowledged writes that it no longer holds. A partition is whole when it was merged
//! with N - W + 1 of the other replicas: each write that was acknowledged by W replicas, this one among them, is with
//! W - 1 of the N - 1 others, and so many sets must overlap.
//!
//! That counts replicas which have not themselves lost their records. If so few of them are left, W or more replicas
//! lost theirs, and what is lost cannot be found anywhere; then the partition is as whole as it can be when it was
//! merged with all the others. A node that enters a partition goes that way only beside a replica that has all of its
//! own: the last one that holds a record which it cannot read must not be relieved of it.
//!
//! **Architecture Invariant:** a partition that is not whole does not answer gets.

use std::collections::{BTreeMap, BTreeSet};

use model::{Generation, NodeId, PartitionId};

use crate::quorum::hold_every_write;

/// The partitions of one store that are incomplete.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    incomplete: BTreeMap<PartitionId, Merged>,
    /// Partitions in the beginning.
    total: usize,
}

#[derive(Clone, Debug, Default)]
struct Merged {
    /// All of these were asked by a document in which the partition is as it is since this generation.
    since: Generation,
    whole: BTreeSet<NodeId>,
    themselves_incomplete: BTreeSet<NodeId>,
}

/// What makes a partition whole, by the store's definition and the ring of now.
#[derive(Clone, Copy, Debug)]
pub struct Required<'a> {
    /// Since which generation the partition is as it is. With whom it was merged before tells nothing: others may have
    /// been its replicas, and those of now may have lacked then what they hold.
    pub since: Generation,
    /// N: replicas of the partition.
    pub replicas: usize,
    /// W of the store.
    pub writes_required: usize,
    /// The replicas that answer gets, but for this node; where it enters, all old ones.
    pub others: &'a [NodeId],
    /// The one whose place this node takes: what that one has acknowledged is all that could be missing.
    pub donor: Option<NodeId>,
    /// This node enters the partition: it has lost nothing, and those who hold it may go.
    pub enters: bool,
}

impl Ledger {
    /// With these partitions to refill.
    pub fn new(incomplete: impl IntoIterator<Item = PartitionId>) -> Ledger {
        let incomplete: BTreeMap<_, _> = incomplete.into_iter().map(|id| (id, Merged::default())).collect();
        Ledger { total: incomplete.len(), incomplete }
    }

    /// With what is left to refill of `total` partitions.
    pub fn resumed(incomplete: impl IntoIterator<Item = PartitionId>, total: usize) -> Ledger {
        let ledger = Ledger::new(incomplete);
        Ledger { total: total.max(ledger.total), ..ledger }
    }

    /// Partitions that are incomplete, in order.
    pub fn incomplete(&self) -> impl Iterator<Item = PartitionId> {
        self.incomplete.keys().copied()
    }

    /// Whether this one is.
    pub fn is_incomplete(&self, partition: PartitionId) -> bool {
        self.incomplete.contains_key(&partition)
    }

    /// How many are incomplete, and how many were in the beginning.
    pub fn progress(&self) -> (usize, usize) {
        (self.incomplete.len(), self.total)
    }

    /// A document makes the node bring this partition in: whatever it was merged with before counts for nothing.
    pub fn begin(&mut self, partition: PartitionId) {
        if self.incomplete.insert(partition, Merged::default()).is_none() {
            self.total += 1;
        }
    }

    /// Whether the partition, which is as it is since such a generation, still needs what this node holds.
    pub fn wants(&self, partition: PartitionId, since: Generation, node: NodeId) -> bool {
        let merged = self.incomplete.get(&partition);
        merged.is_some_and(|merged| merged.since != since || !merged.whole.contains(&node))
    }

    /// A partition was merged with all that `peer` held; true when it is whole now.
    pub fn merged(
        &mut self,
        partition: PartitionId,
        peer: NodeId,
        peer_is_whole: bool,
        required: Required<'_>,
    ) -> bool {
        let Some(merged) = self.incomplete.get_mut(&partition) else { return false };
        let since = required.since;
        if merged.since != since {
            *merged = Merged { since, ..Merged::default() };
        }
        if peer_is_whole {
            merged.whole.insert(peer);
            merged.themselves_incomplete.remove(&peer);
        } else if !merged.whole.contains(&peer) {
            merged.themselves_incomplete.insert(peer);
        }
        self.check();
        self.settle(partition, required)
    }

    /// Whether the partition is whole under these requirements; then it is incomplete no more.
    pub fn settle(&mut self, partition: PartitionId, required: Required<'_>) -> bool {
        let Some(merged) = self.incomplete.get(&partition) else { return false };
        let Required { since, replicas, writes_required, others, donor, enters } = required;
        let nobody = Merged::default();
        let merged = if merged.since == since { merged } else { &nobody };
        let whole = others.iter().filter(|node| merged.whole.contains(node)).count();
        let any = |node: &&NodeId| merged.whole.contains(node) || merged.themselves_incomplete.contains(node);
        let all = others.iter().filter(any).count() == others.len() && (whole > 0 || !enters);
        let inherits = donor.is_some_and(|donor| merged.whole.contains(&donor));
        let done = inherits || hold_every_write(whole, replicas, writes_required) || all;
        if done {
            self.incomplete.remove(&partition);
        }
        done
    }

    /// What holds after every merge.
    fn check(&self) {
        assert!(self.incomplete.len() <= self.total, "each that became incomplete was counted");
        debug_assert!(
            self.incomplete.values().all(|merged| merged.whole.is_disjoint(&merged.themselves_incomplete)),
            "a replica is whole or it is not"
        );
    }

    /// The ring has changed: what is no longer this node's needs no refilling.
    pub fn keep(&mut self, mine: impl Fn(PartitionId) -> bool) {
        self.incomplete.retain(|&id, _| mine(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(3);

    fn ledger_after(n: usize, w: usize, peers: &[(u32, bool)]) -> bool {
        let others: Vec<NodeId> = (2..=n as u32).map(NodeId).collect();
        let since = Generation(5);
        let required =
            Required { since, replicas: n, writes_required: w, others: &others, donor: None, enters: false };
        let mut ledger = Ledger::new([P]);
        let mut whole = ledger.settle(P, required);
        for &(peer, peer_is_whole) in peers {
            whole |= ledger.merged(P, NodeId(peer), peer_is_whole, required);
        }
        assert_eq!(whole, !ledger.is_incomplete(P));
        whole
    }

    #[test]
    fn enough_whole_replicas_make_it_whole() {
        assert!(!ledger_after(3, 2, &[(2, true)]));
        assert!(!ledger_after(3, 2, &[(2, true), (2, true)]), "the same one twice");
        assert!(ledger_after(3, 2, &[(2, true), (3, true)]));
        assert!(ledger_after(3, 3, &[(3, true)]));
        assert!(ledger_after(5, 3, &[(2, true), (3, true), (4, true)]));
        assert!(!ledger_after(5, 3, &[(2, true), (3, true), (4, false)]));
        assert!(ledger_after(5, 3, &[(2, true), (3, true), (4, false), (5, true)]));
    }

    #[test]
    fn when_all_others_lost_theirs_too_all_of_them_must_be_asked() {
        assert!(!ledger_after(3, 2, &[(2, false)]));
        assert!(ledger_after(3, 2, &[(2, false), (3, false)]));
        assert!(ledger_after(1, 1, &[]), "there is nobody to ask");
        assert!(ledger_after(3, 1, &[(2, true), (3, true)]), "W = 1: nobody else need have it");
    }

    #[test]
    fn the_one_whose_place_it_takes_is_enough_if_that_one_is_whole() {
        let others = [NodeId(1), NodeId(2), NodeId(3)];
        let (since, donor) = (Generation(5), Some(NodeId(2)));
        let required =
            Required { since, replicas: 3, writes_required: 2, others: &others, donor, enters: true };
        let mut ledger = Ledger::new([P]);
        assert!(!ledger.merged(P, NodeId(1), true, required), "some other one");
        assert!(!ledger.merged(P, NodeId(2), false, required), "it lost its records itself");
        assert!(ledger.merged(P, NodeId(2), true, required));
        ledger.begin(P);
        assert!(ledger.is_incomplete(P) && ledger.wants(P, since, NodeId(2)), "another move");
        assert_eq!(ledger.progress(), (1, 2));
    }

    /// A node that entered counted with what it held at an earlier step, though it had not compared since then.
    #[test]
    fn merges_of_an_earlier_step_count_for_nothing() {
        let required = |since, others| Required {
            since: Generation(since),
            replicas: 2,
            writes_required: 2,
            others,
            donor: None,
            enters: false,
        };
        let mut ledger = Ledger::new([P]);
        let (old, new) = ([NodeId(2), NodeId(3)], [NodeId(3)]);
        let at_joint = Required { replicas: 3, ..required(5, &old) };
        assert!(!ledger.merged(P, NodeId(3), true, at_joint));
        assert!(!ledger.wants(P, Generation(5), NodeId(3)) && ledger.wants(P, Generation(6), NodeId(3)));
        assert!(!ledger.settle(P, required(6, &new)), "it is asked again");
        assert!(ledger.merged(P, NodeId(3), true, required(6, &new)));
    }

    /// Every write that W replicas acknowledged, fewer than W of which lost their disks, is with one of those asked.
    #[test]
    fn each_acknowledged_write_is_at_one_of_those_asked() {
        for n in 1..=5usize {
            for w in 1..=n {
                for acked in 0..1u32 << n {
                    for lost in 0..1u32 << n {
                        let mine = 1;
                        if acked.count_ones() as usize != w || lost & mine == 0 || acked & mine == 0 {
                            continue;
                        }
                        if lost.count_ones() as usize >= w {
                            continue;
                        }
                        for asked in 0..1u32 << n {
                            let peers: Vec<(u32, bool)> = (1..n as u32)
                                .filter(|bit| asked >> bit & 1 == 1)
                                .map(|bit| (bit + 1, lost >> bit & 1 == 0))
                                .collect();
                            if ledger_after(n, w, &peers) {
                                let found = acked & !lost & asked & !mine;
                                assert_ne!(
                                    found, 0,
                                    "n {n} w {w} acked {acked:b} lost {lost:b} asked {asked:b}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_node_that_enters_beside_replicas_that_all_lost_theirs_waits_until_one_of_them_is_whole() {
        let others = [NodeId(1), NodeId(2)];
        let since = Generation(5);
        let required =
            Required { since, replicas: 3, writes_required: 2, others: &others, donor: None, enters: true };
        let mut ledger = Ledger::new([P]);
        assert!(!ledger.merged(P, NodeId(1), false, required));
        assert!(!ledger.merged(P, NodeId(2), false, required), "what they cannot read would go with them");
        assert!(ledger.merged(P, NodeId(2), true, required));
    }

    #[test]
    fn a_ledger_that_is_read_again_goes_on_where_it_was() {
        let ledger = Ledger::resumed([PartitionId(3), PartitionId(9)], 5);
        assert_eq!(ledger.progress(), (2, 5));
        assert!(ledger.incomplete().eq([PartitionId(3), PartitionId(9)]));
        assert_eq!(Ledger::resumed([P], 0).progress(), (1, 1), "never fewer than there are");
    }

    #[test]
    fn what_is_no_longer_the_nodes_needs_no_refilling() {
        let mut ledger = Ledger::new((0..4).map(PartitionId));
        ledger.keep(|partition| partition.0 % 2 == 1);
        assert!(ledger.incomplete().eq([PartitionId(1), PartitionId(3)]));
        assert_eq!(ledger.progress(), (2, 4));
    }
}
