//! Invariant 6, as far as nodes go: some time after all faults have ended every move has ended, each node follows that,
//! and nothing lies where it does not belong. That the replicas then hold exactly what was written, the other judges
//! say: they read each key of the run on its replicas of the end, wherever these were in the beginning.

use model::{NodeId, PartitionId};

use super::Violation;

/// What is left of moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOver {
    /// Partitions that still move.
    pub moving: Vec<PartitionId>,
    /// A store whose numbers still change.
    pub changing: Option<String>,
    /// Nodes that follow an older document.
    pub behind: Vec<NodeId>,
    /// Plans that were begun and have not ended, and what has become of them.
    pub plans: Vec<(u64, String)>,
    /// Orders without an answer.
    pub orders: Vec<u64>,
    /// Node, store, partition, and records that the node holds of it although they are not its own.
    pub leftovers: Vec<(NodeId, String, PartitionId, u64)>,
}

/// What should not be left.
pub fn check(left: &LeftOver) -> Vec<Violation> {
    let moving =
        left.moving.iter().map(|id| format!("partition {id} still moves, long after the last fault"));
    let changing =
        left.changing.iter().map(|store| format!("store {store} still changes, long after the last fault"));
    let behind = left
        .behind
        .iter()
        .map(|node| format!("{node} follows an older document, long after it was published"));
    let leftovers = left.leftovers.iter().map(|(node, store, id, records)| {
        format!("{node} still holds {records} records of partition {id} of {store}, which is not its own")
    });
    let plans = left.plans.iter().map(|(plan, word)| format!("plan {plan} is still {word}"));
    let orders = left.orders.iter().map(|order| format!("order {order} has no answer"));
    let wrong = moving.chain(changing).chain(behind).chain(leftovers).chain(plans).chain(orders);
    wrong.map(|detail| Violation { invariant: 6, about: None, detail }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_left_of_a_move_is_a_broken_promise() {
        assert_eq!(check(&LeftOver::default()), []);
        let left = LeftOver {
            moving: vec![PartitionId(1)],
            changing: Some("s".to_owned()),
            behind: vec![NodeId(2)],
            plans: vec![(6, "applying".to_owned())],
            orders: vec![7],
            leftovers: vec![(NodeId(3), "default".to_owned(), PartitionId(4), 5)],
        };
        let details: Vec<String> = check(&left).into_iter().map(|violation| violation.to_string()).collect();
        assert_eq!(details.len(), 6);
        assert!(details[1].contains("store s still changes"), "{}", details[1]);
        assert!(details[3].contains("n3 still holds 5 records of partition p4 of default"), "{}", details[3]);
    }
}
