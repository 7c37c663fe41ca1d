//! Invariant 1 at the moment when it is promised: a write that is acknowledged has W copies that are as durable as the
//! store's setting says, and goes on having them.
//!
//! A copy is a replica's own record, or a hint for that replica at another node; W copies lie on W different nodes.
//! A node from which a fault took copies, within the run's budget, after the write was asked, may lack its own. What
//! a collection round removed may be gone.
//!
//! A hint counts wherever its target is: one that stood in for a replica may reach it when that has left the partition.
//! It is a copy there until what that node alone holds is given back, if a fallback stood in for the write at all.
//!
//! Where the last write wins, a copy holds the write's value or that of a later one, not only its dot.

use std::collections::BTreeMap;

use model::{Dot, NodeId, Timestamp, VersionSet};

use super::siblings;
use crate::history::Remains;

/// The event that a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableEvent {
    /// Its name.
    pub dot: Dot,
    /// When it was stamped.
    pub timestamp: Timestamp,
}

/// Copies of a write on different nodes: for each replica that has one, the node where it lies. `strict`: no fallback
/// stood in for it.
pub fn copies(held: &Remains, event: DurableEvent, strict: bool) -> BTreeMap<NodeId, NodeId> {
    let mut lies: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    let former = held.former.iter().filter(|_| !strict);
    let own = held.replicas.iter().chain(former).map(|(node, set)| (*node, *node, set));
    let hints = held.hints.iter().map(|(holder, target, set)| (*target, *holder, set));
    for (replica, node, set) in own.chain(hints) {
        if holds(held.store, set, event) {
            lies.entry(replica).or_default().push(node);
        }
    }
    let mut taken: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for &replica in lies.keys() {
        place(replica, &lies, &mut taken, &mut Vec::new());
    }
    taken.into_iter().map(|(node, replica)| (replica, node)).collect()
}

/// Finds a separate node for a replica's copy; others may have to change theirs for it.
fn place(
    replica: NodeId,
    lies: &BTreeMap<NodeId, Vec<NodeId>>,
    taken: &mut BTreeMap<NodeId, NodeId>,
    tried: &mut Vec<NodeId>,
) -> bool {
    for &node in &lies[&replica] {
        if tried.contains(&node) {
            continue;
        }
        tried.push(node);
        let free = match taken.get(&node).copied() {
            None => true,
            Some(other) => place(other, lies, taken, tried),
        };
        if free {
            taken.insert(node, replica);
            return true;
        }
    }
    false
}

/// Whether a set holds the write, or what replaced it.
pub fn holds(store: &str, set: &VersionSet, event: DurableEvent) -> bool {
    let later = || {
        let rank = |dot, timestamp| (timestamp, dot) >= (event.timestamp, event.dot);
        set.versions().iter().any(|version| rank(version.dot, version.timestamp))
    };
    set.vector().covers(event.dot) && !set.versions().is_empty() && (store == siblings::STORE || later())
}

#[cfg(test)]
mod tests {
    use super::super::examples::Story;
    use super::*;

    const N: [NodeId; 4] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];

    fn event(node: u32, count: u64) -> DurableEvent {
        DurableEvent { dot: Story::dot(node, count), timestamp: Timestamp(count) }
    }

    fn held(replicas: &[(u32, VersionSet)], hints: &[(NodeId, NodeId, VersionSet)]) -> Remains {
        Remains { store: "default", hints: hints.to_vec(), ..Story::remains(replicas) }
    }

    #[test]
    fn a_replicas_record_and_a_hint_at_another_node_are_copies() {
        let set = Story::set(&[(Story::dot(1, 1), "a")], &[]);
        let nothing = VersionSet::default;
        let both = held(&[(1, set.clone()), (2, nothing())], &[(N[3], N[1], set.clone())]);
        assert_eq!(
            copies(&both, event(1, 1), true).into_iter().collect::<Vec<_>>(),
            [(N[0], N[0]), (N[1], N[3])]
        );
        let beside = held(&[(1, set.clone()), (2, nothing())], &[(N[0], N[1], set.clone())]);
        assert_eq!(
            copies(&beside, event(1, 1), true).len(),
            1,
            "a hint beside the holder's own copy is no second one"
        );
        let twice = held(&[(1, set.clone()), (2, nothing())], &[(N[3], N[0], set)]);
        assert_eq!(copies(&twice, event(1, 1), true).len(), 1, "nor is a hint for who has it");
    }

    #[test]
    fn copies_are_matched_with_distinct_nodes_where_possible() {
        let set = Story::set(&[(Story::dot(1, 1), "a")], &[]);
        let nothing = VersionSet::default;
        let hints = [(N[0], N[1], set.clone()), (N[3], N[0], set.clone())];
        let held = held(&[(1, set), (2, nothing())], &hints);
        assert_eq!(
            copies(&held, event(1, 1), true).into_iter().collect::<Vec<_>>(),
            [(N[0], N[3]), (N[1], N[0])]
        );
    }

    /// Seed 12348: a hint for a replica that went reached it after it had left the partition.
    #[test]
    fn a_former_replicas_leftover_is_a_copy_of_a_sloppy_write() {
        let set = Story::set(&[(Story::dot(1, 1), "a")], &[]);
        let held = Remains { former: vec![(N[3], set.clone())], ..held(&[(1, set)], &[]) };
        assert_eq!(copies(&held, event(1, 1), true).len(), 1);
        assert_eq!(copies(&held, event(1, 1), false).len(), 2);
    }

    #[test]
    fn a_dot_covered_by_an_older_value_is_not_a_copy_where_the_last_write_wins() {
        let older = Story::set(&[(Story::dot(2, 1), "old")], &[Story::dot(1, 5)]);
        assert!(!holds("default", &older, event(1, 5)));
        assert!(holds(siblings::STORE, &older, event(1, 5)), "there a context decides");
        let later = Story::set(&[(Story::dot(2, 6), "new")], &[Story::dot(1, 5)]);
        assert!(holds("default", &later, event(1, 5)));
        assert!(!holds("default", &Story::set(&[(Story::dot(2, 6), "new")], &[]), event(1, 5)));
        assert!(!holds("default", &VersionSet::default(), event(1, 5)));
    }
}
