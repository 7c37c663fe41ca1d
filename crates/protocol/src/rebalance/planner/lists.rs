//! From replicas to a partition's whole list: with the fallbacks behind them.

use model::limits::FALLBACKS_LISTED;
use model::{Cluster, NodeId, Role};

/// Who may be a fallback.
pub(super) struct Lists {
    nodes: Vec<NodeId>,
}

impl Lists {
    /// Of a cluster that these nodes leave.
    pub(super) fn of(cluster: &Cluster, leaving: &[NodeId]) -> Self {
        let may = |node: &&model::Node| node.role != Role::Leaving && !leaving.contains(&node.id);
        Lists { nodes: cluster.nodes.iter().filter(may).map(|node| node.id).collect() }
    }

    /// The list of the partition at this position: its replicas, those of its present fallbacks that may stay, and the
    /// next nodes by id, beginning at another one for each partition.
    pub(super) fn list(&self, position: usize, replicas: &[NodeId], before: &[NodeId]) -> Vec<NodeId> {
        let mut list = replicas.to_vec();
        let present = &before[replicas.len().min(before.len())..];
        let kept = present.iter().copied().filter(|node| self.nodes.binary_search(node).is_ok());
        for node in kept.chain(self.in_turn(position)) {
            if list.len() == replicas.len() + FALLBACKS_LISTED {
                break;
            }
            if !list.contains(&node) {
                list.push(node);
            }
        }
        list
    }

    fn in_turn(&self, position: usize) -> impl Iterator<Item = NodeId> {
        let count = self.nodes.len();
        (0..count).map(move |step| self.nodes[(position + step) % count])
    }
}
