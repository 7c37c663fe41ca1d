//! What a node says when it serves, for people and for programs.

use model::{Node, ReadOnlyStore, Store};
use serde_json::{Value as Json, json};

/// A node for programs; with its process, if it has one or shares one.
pub(crate) fn node_json(node: &Node, process: Option<u32>) -> Json {
    json!({
        "node": node.id,
        "zone": node.zone,
        "native": node.native,
        "resp": node.resp,
        "http": node.http,
        "process_id": process,
    })
}

/// What a node says when it serves. Tests and tools read it.
pub(crate) fn ready_line(node: &Node) -> String {
    let [resp, http] = [&node.resp, &node.http].map(|address| address.as_deref().unwrap_or("-"));
    format!(
        "node {}  zone {}  native {}  redis (resp) {resp}  http {http}",
        node.id.0, node.zone, node.native
    )
}

/// The stores of a cluster for programs.
pub(crate) fn stores_json(stores: &[Store]) -> Json {
    let store = |store: &Store| {
        json!({
            "store": store.name,
            "replicas": store.consistency.replicas,
            "reads_required": store.consistency.reads_required,
            "writes_required": store.consistency.writes_required,
            "step": store.step(),
            "coming": store.coming.as_ref().map(|coming| coming.consistency),
            "resolver": store.resolver,
            "sloppy": store.sloppy,
            "fallback_order": store.fallbacks,
            "reads": store.reads,
            "value_bytes_max": store.value_bytes_max,
            "siblings_max": store.siblings_max,
        })
    };
    stores.iter().map(store).collect()
}

/// The read-only stores of a cluster for programs.
pub(crate) fn read_only_json(stores: &[ReadOnlyStore]) -> Json {
    let store = |store: &ReadOnlyStore| {
        json!({
            "store": store.name,
            "replicas": store.replicas,
            "kept": store.kept.unwrap_or(1),
            "served": store.served().map(|served| served.number),
        })
    };
    stores.iter().map(store).collect()
}
