//! What a headmaster asks nodes, as a port.

use std::collections::BTreeMap;

use model::{Cluster, NodeId};
use protocol::headmaster::{Ask, Said};
use runtime::BoxFuture;

/// What nodes answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// By node: what it said, or why it said nothing.
    pub said: BTreeMap<NodeId, Result<Said, String>>,
    /// Whether a process, be it one that is stopped, listens where signs of life were looked for.
    pub listens: bool,
}

/// Asks nodes.
pub trait Reports: Send + Sync {
    /// What these nodes say. Asks all at once, and does not wait long for any of them.
    fn ask<'a>(&'a self, cluster: &'a Cluster, ask: &'a Ask) -> BoxFuture<'a, Reported>;
}
