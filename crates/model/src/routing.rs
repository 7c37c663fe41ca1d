//! Routing: from a partition to the ordered nodes that a request may use.
//!
//! *Consistent* routing takes the partition's own list. *Zoned* (a number of replicas per zone) and *everywhere*
//! (every node is a replica) become further variants of [`Routing`]; they change [`PreferenceList::of`] and nothing
//! else.

use smallvec::SmallVec;

use crate::node::NodeId;
use crate::ring::Partition;
use crate::store::Store;

/// How a store picks its replicas from a partition's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// The first N of the list.
    #[default]
    Consistent,
}

/// The ordered nodes for one key: N replicas, then fallbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferenceList {
    nodes: SmallVec<[NodeId; 8]>,
    replicas: usize,
}

impl PreferenceList {
    /// The list of `store` for keys in `partition`.
    ///
    /// A partition that lists fewer than N nodes has that many replicas and no fallback.
    pub fn of(store: &Store, partition: &Partition) -> Self {
        match Routing::Consistent {
            Routing::Consistent => PreferenceList {
                nodes: SmallVec::from_slice(&partition.nodes),
                replicas: usize::from(store.consistency.replicas).min(partition.nodes.len()),
            },
        }
    }

    /// The nodes that should hold the key.
    pub fn replicas(&self) -> &[NodeId] {
        &self.nodes[..self.replicas]
    }

    /// The nodes that stand in for replicas that are down, in order.
    pub fn fallbacks(&self) -> &[NodeId] {
        &self.nodes[self.replicas..]
    }

    /// Whether `node` should hold the key.
    pub fn is_replica(&self, node: NodeId) -> bool {
        self.replicas().contains(&node)
    }
}
