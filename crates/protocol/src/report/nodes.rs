//! What a node believes about the others, and when it last heard of them.

use model::{Generation, NodeId, Zone};
use serde::{Deserialize, Serialize};

use crate::gossip::NodeLiveness;

/// One node as another one sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSeen {
    /// The node.
    pub node: NodeId,
    /// Its zone, where the cluster document names it.
    pub zone: Option<Zone>,
    /// Its address, where the cluster document names it.
    pub native: Option<String>,
    /// What is believed.
    pub state: NodeLiveness,
    /// Why, for people.
    pub why: String,
    /// How surprising its silence is.
    pub phi: f64,
    /// Since the last sign of life, or since the node that says so started.
    pub heard_ms_ago: u64,
    /// Whether anything was heard of it since the node that says so started.
    pub heard: bool,
    /// What it last said of itself; `null` in each field while nothing has come.
    #[serde(flatten)]
    pub said: NodeLoad,
}

/// What a node tells the others of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// Its incarnation.
    pub incarnation: Option<u64>,
    /// Its last heartbeat.
    pub heartbeat: Option<u64>,
    /// The generation that it has adopted.
    pub generation: Option<Generation>,
    /// Its collection epoch.
    pub epoch: Option<u64>,
    /// Operations that it carries out in a second.
    pub operations_per_second: Option<u64>,
    /// Bytes of keys and values that it holds.
    pub data_bytes: Option<u64>,
    /// Its links.
    pub links: Option<u32>,
}
