//! What a node says when it serves, for people and for programs.

use model::Node;
use serde_json::{Value as Json, json};

/// A node for programs; with its process, if it has one of its own or shares one.
pub(crate) fn node_json(node: &Node, process: Option<u32>) -> Json {
    json!({
        "id": node.id,
        "zone": node.zone,
        "native": node.native,
        "resp": node.resp,
        "process_id": process,
    })
}

/// What a node says when it serves. Tests and tools read it.
pub(crate) fn ready_line(node: &Node) -> String {
    let resp = node.resp.as_deref().unwrap_or("-");
    format!("node {}  zone {}  native {}  redis (resp) {resp}", node.id.0, node.zone, node.native)
}
