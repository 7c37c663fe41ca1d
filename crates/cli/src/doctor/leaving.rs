//! What the doctor says of nodes whose way out of the cluster has stopped half way, and of processes that have outlived it.

use model::order::Office;
use model::plan::Wish;
use model::{Cluster, Node, NodeId, Role};

use super::finding::{Code, Finding};
use crate::output::program;

/// Nodes that count as leaving while no plan moves their data, and nodes that have left and still run.
pub(super) fn found(cluster: &Cluster, seen: &Office) -> Vec<Finding> {
    // One that is gone is told by the finding about its silence, and one that no list names leaves by itself.
    let stays = |node: &&Node| node.role == Role::Leaving && !node.gone && cluster.ring.lists(node.id);
    let stays = cluster.nodes.iter().filter(stays).filter(|node| !is_moved_off(seen, node.id));
    // By a newer document than the office was read by, it may have become a member meanwhile.
    let left = seen.left.iter().filter(|node| cluster.node(node.id).is_none());
    stays.map(|node| leaving(node.id)).chain(left.map(has_left)).collect()
}

/// Whether the plan that is under way moves the data of a node elsewhere, or may.
fn is_moved_off(seen: &Office, node: NodeId) -> bool {
    seen.plan.as_ref().is_some_and(|plan| match &plan.wish {
        Some(Wish::Drain { nodes }) => nodes.contains(&node),
        Some(Wish::Replace { node: replaced, .. }) => *replaced == node,
        Some(_) => false,
        None => true,
    })
}

fn leaving(node: NodeId) -> Finding {
    let (program, id) = (program(), node.0);
    Finding {
        code: Code::NodeLeaving,
        node: Some(node),
        store: None,
        what: format!(
            "{node} counts as leaving, and no plan moves its data elsewhere: its drain was aborted, so it serves what it has \
             and gets nothing new"
        ),
        next: format!("keep it: {program} node recommission {id}; or let it go: {program} node drain {id}"),
    }
}

fn has_left(node: &Node) -> Finding {
    Finding {
        code: Code::NodeLeft,
        node: Some(node.id),
        store: None,
        what: format!(
            "{} at {} has left the cluster, and its process still runs: it takes no part any more",
            node.id, node.native
        ),
        next: "stop its process; started with an empty data directory and no --id, it is a new node that can join"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use model::plan::{Phase, PlanSummary};
    use model::{Ring, Zone};

    use super::*;

    fn node(id: u32) -> Node {
        Node::new(NodeId(id), Zone("a".to_owned()), format!("10.0.0.{id}:7401"), None)
    }

    fn plan(wish: Wish) -> PlanSummary {
        PlanSummary {
            number: 7,
            wish: Some(wish),
            phase: Some(Phase::Applying),
            partitions: 1,
            settled: 0,
            created_ms: 0,
            by: "ann at h1".to_owned(),
            unread: None,
        }
    }

    /// The doctor said *healthy* of both.
    #[test]
    fn a_node_that_still_leaves_after_an_aborted_drain_is_named_and_so_is_a_process_whose_node_has_left() {
        let ring = Ring::golden(&[1, 2].map(NodeId), 16, 1).unwrap();
        let mut cluster = Cluster::new("c", [1, 2, 3].map(node).into(), ring, Vec::new());
        let mut seen = Office { left: vec![node(4), node(3)], ..Office::default() };
        let said = |cluster: &Cluster, seen: &Office| {
            let found = found(cluster, seen);
            assert!(!found.iter().any(Finding::is_bad));
            found.into_iter().map(|one| (one.code, one.node.unwrap().0, one.next)).collect::<Vec<_>>()
        };
        let only =
            |found: Vec<(Code, u32, String)>| found.into_iter().map(|one| (one.0, one.1)).collect::<Vec<_>>();
        let left = (Code::NodeLeft, 4);
        assert_eq!(only(said(&cluster, &seen)), [left], "n3 is a member again by a newer document");
        cluster.nodes[1].role = Role::Leaving;
        cluster.nodes[2].role = Role::Leaving;
        let found = said(&cluster, &seen);
        assert!(
            found[0].2.contains(" node recommission 2;") && found[0].2.ends_with(" node drain 2"),
            "{found:?}"
        );
        assert_eq!(only(found), [(Code::NodeLeaving, 2), left], "n3 holds nothing, and leaves by itself");
        seen.plan = Some(plan(Wish::Drain { nodes: vec![NodeId(1)] }));
        assert_eq!(only(said(&cluster, &seen)), [(Code::NodeLeaving, 2), left]);
        seen.plan = Some(plan(Wish::Drain { nodes: vec![NodeId(2)] }));
        assert_eq!(only(said(&cluster, &seen)), [left], "its data moves");
        seen.plan = None;
        cluster.nodes[1].gone = true;
        assert_eq!(only(said(&cluster, &seen)), [left]);
    }
}
