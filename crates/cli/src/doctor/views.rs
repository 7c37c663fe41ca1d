//! What the doctor says of nodes that answer here, and that other nodes avoid all the same: these send such a node nothing,
//! so that the next node that goes may be one too many.

use std::collections::{BTreeMap, BTreeSet};

use client::Client;
use model::NodeId;
use protocol::gossip::NodeLiveness;
use protocol::report::{Parts, Report};

use super::LOOK_AGAIN;
use super::finding::{Code, Finding};
use crate::output::program;
use crate::status::{NodeStatus, is_up};

/// Why a node avoids another, by the two.
type Avoided = BTreeMap<(NodeId, NodeId), String>;

/// One finding for each node that others avoid, and avoided a second ago: after a start, and on a busy machine, some do
/// for a moment.
pub(super) async fn avoided(client: &Client, nodes: &[NodeStatus]) -> Vec<Finding> {
    let first = ask(client, nodes).await;
    if first.is_empty() {
        return Vec::new();
    }
    tokio::time::sleep(LOOK_AGAIN).await;
    let again = ask(client, nodes).await;
    findings(again.into_iter().filter(|(pair, _)| first.contains_key(pair)).collect())
}

async fn ask(client: &Client, nodes: &[NodeStatus]) -> Avoided {
    let views = nodes.iter().filter(|status| status.answer.is_ok()).map(|status| async move {
        // A node that does not tell may know better.
        client.report(status.node.id, Parts::NODES).await.ok()
    });
    let views = futures_util::future::join_all(views).await;
    views.iter().flatten().flat_map(|view| avoided_by(view, nodes)).collect()
}

/// The nodes that answer here and are not alive to the one whose view this is.
fn avoided_by(view: &Report, nodes: &[NodeStatus]) -> Avoided {
    let seen = view.nodes.iter().flatten();
    let avoided = seen.filter(|seen| seen.state != NodeLiveness::Alive && is_up(nodes, seen.node));
    avoided.map(|seen| ((view.node, seen.node), format!("{}, {}", seen.state.name(), seen.why))).collect()
}

fn findings(avoided: Avoided) -> Vec<Finding> {
    let finding = |node: NodeId| {
        let by: Vec<String> = avoided
            .iter()
            .filter(|((_, seen), _)| *seen == node)
            .map(|((viewer, _), why)| format!("to {viewer} ({why})"))
            .collect();
        Finding {
            code: Code::NodeAvoided,
            node: Some(node),
            store: None,
            what: format!("{node} answers here, and is not alive {}", by.join(", ")),
            next: format!(
                "wait some seconds before another node is stopped; if this persists, check the network between these nodes, \
                 and compare their views: {} node list --all-views",
                program()
            ),
        }
    };
    let nodes: BTreeSet<NodeId> = avoided.keys().map(|&(_, node)| node).collect();
    nodes.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use model::{Generation, WallMillis};
    use protocol::report::{NodeLoad, NodeSeen, Status};

    use super::super::tests::{answering, away};
    use super::*;

    #[test]
    fn a_node_that_answers_here_and_that_others_avoid_is_named_with_their_reasons() {
        let nodes = [answering(1, Status::default()), answering(2, Status::default()), away(3)];
        let seen = |id, state, why: &str| NodeSeen {
            node: NodeId(id),
            zone: None,
            native: None,
            state,
            why: why.to_owned(),
            phi: 0.0,
            heard_ms_ago: 0,
            heard: true,
            said: NodeLoad::default(),
        };
        let says_nothing = Report::new(NodeId(2), 1, WallMillis(0), Generation(1));
        let view = vec![
            seen(1, NodeLiveness::Left, "it announced that it was stopping"),
            seen(2, NodeLiveness::Alive, "this node"),
            seen(3, NodeLiveness::Down, "it repeatedly refused connections"),
        ];
        let view = Report { nodes: Some(view), ..says_nothing.clone() };
        let found = findings(avoided_by(&view, &nodes));
        assert_eq!(found.len(), 1, "n3 does not answer: that is another finding");
        assert!(found[0].is_bad());
        assert_eq!(
            found[0].what,
            "n1 answers here, and is not alive to n2 (left, it announced that it was stopping)"
        );
        assert!(avoided_by(&says_nothing, &nodes).is_empty());
    }
}
