//! Nodes and zones: who stores, and which of them fail together.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One storage process. Given once, never reused for another data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// One failure domain: a rack, a room, a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Zone(pub String);

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What everybody knows about one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its failure domain.
    pub zone: Zone,
    /// `host:port` of the native protocol.
    pub native: String,
    /// `host:port` of the RESP front door, if it has one.
    pub resp: Option<String>,
}
