//! What a headmaster asks nodes, as a port: how far they are with what moves, how much they hold,
//! and which artifacts.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Cluster, NodeId, PartitionId, StoreName};
use protocol::push;
use protocol::rebalance::NodeFacts;
use runtime::BoxFuture;

use crate::plans::Size;

/// What one node says of moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What steps may depend on.
    pub facts: NodeFacts,
    /// By partition that it enters: what it has brought in since its process started.
    pub copied: BTreeMap<PartitionId, Size>,
    /// Records that it holds of partitions that are not its own.
    pub leftovers: u64,
    /// Hints that it holds.
    pub hints: u64,
}

/// What speaks for a node's being alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Whether a process, be it one that is stopped, listens at its address.
    pub listens: bool,
    /// By other node: for how long it has heard nothing of the node; or why it does not say.
    pub silent_for: Vec<(NodeId, Result<Silence, String>)>,
}

/// For how long a node has heard nothing of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Since the last sign of life, or since the node that says so started.
    pub lasts: Duration,
    /// Whether it has heard anything of the other one since it started.
    pub heard_before: bool,
}

/// What nodes answered; the error says why one did not.
pub type Reported = Vec<(NodeId, Result<Report, String>)>;

/// Asks nodes.
pub trait Reports: Send + Sync {
    /// How far these nodes are with what moves. Asks all at once, and does not wait long for any of them.
    fn moves<'a>(&'a self, cluster: &'a Cluster, nodes: &'a [NodeId]) -> BoxFuture<'a, Reported>;

    /// How much each of these nodes holds; one that does not answer is left out.
    fn sizes<'a>(
        &'a self,
        cluster: &'a Cluster,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, BTreeMap<NodeId, Size>>;

    /// Which artifacts all nodes hold; one that does not answer is left out.
    fn artifacts<'a>(&'a self, cluster: &'a Cluster)
    -> BoxFuture<'a, BTreeMap<StoreName, Vec<push::Report>>>;

    /// Whether anybody hears of a node: its address is tried, and these nodes are asked.
    fn signs<'a>(
        &'a self,
        cluster: &'a Cluster,
        node: NodeId,
        witnesses: &'a [NodeId],
    ) -> BoxFuture<'a, Signs>;
}
