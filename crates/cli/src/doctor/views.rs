//! What the doctor says of nodes that answer here, and that other nodes avoid all the same: these send such a node nothing,
//! so that the next node that goes may be one too many.

use std::collections::{BTreeMap, BTreeSet};

use client::Client;
use serde_json::Value as Json;

use super::LOOK_AGAIN;
use super::finding::{Code, Finding};
use crate::node_list;
use crate::output::program;
use crate::status::{NodeStatus, is_up};

/// Why a node avoids another, by the two.
type Avoided = BTreeMap<(u64, u64), String>;

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
        (status.id(), node_list::ask(client, status.node.id).await.unwrap_or(Json::Null))
    });
    let views = futures_util::future::join_all(views).await;
    views.iter().flat_map(|(viewer, view)| avoided_by(*viewer, view, nodes)).collect()
}

/// The nodes that answer here and are not alive to `viewer`.
fn avoided_by(viewer: u64, view: &Json, nodes: &[NodeStatus]) -> Avoided {
    let seen = view["nodes"].as_array().into_iter().flatten().filter_map(|seen| {
        let (node, state) = (seen["node"].as_u64()?, seen["state"].as_str()?);
        let why = seen["why"].as_str().unwrap_or(state);
        (state != "alive" && is_up(nodes, node)).then(|| ((viewer, node), format!("{state}, {why}")))
    });
    seen.collect()
}

fn findings(avoided: Avoided) -> Vec<Finding> {
    let finding = |node: u64| {
        let by: Vec<String> = avoided
            .iter()
            .filter(|((_, seen), _)| *seen == node)
            .map(|((viewer, _), why)| format!("to n{viewer} ({why})"))
            .collect();
        Finding {
            code: Code::NodeAvoided,
            node: Some(node),
            store: None,
            what: format!("n{node} answers here, and is not alive {}", by.join(", ")),
            next: format!(
                "wait some seconds before another node is stopped; if this persists, check the network between these nodes, \
                 and compare their views: {} node list --all-views",
                program()
            ),
        }
    };
    let nodes: BTreeSet<u64> = avoided.keys().map(|&(_, node)| node).collect();
    nodes.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use model::Node;
    use serde_json::json;

    use super::*;

    fn status(id: u32, up: bool) -> NodeStatus {
        let node: Node = serde_json::from_value(json!({
            "id": id, "zone": "a", "native": "127.0.0.1:1", "resp": "127.0.0.1:2",
        }))
        .unwrap();
        let error = client::ClientError::Unreachable { detail: "no process listens there".to_owned() };
        NodeStatus { node, answer: up.then(|| json!({})).ok_or(error), ahead_ms: None }
    }

    #[test]
    fn a_node_that_answers_here_and_that_others_avoid_is_named_with_their_reasons() {
        let nodes = [status(1, true), status(2, true), status(3, false)];
        let view = json!({ "nodes": [
            { "node": 1, "state": "left", "why": "it announced that it was stopping" },
            { "node": 2, "state": "alive", "why": "this node" },
            { "node": 3, "state": "down", "why": "it repeatedly refused connections" },
        ] });
        let found = findings(avoided_by(2, &view, &nodes));
        assert_eq!(found.len(), 1, "n3 does not answer: that is another finding");
        assert!(found[0].is_bad());
        assert_eq!(
            found[0].what,
            "n1 answers here, and is not alive to n2 (left, it announced that it was stopping)"
        );
        assert!(avoided_by(2, &Json::Null, &nodes).is_empty());
    }
}
