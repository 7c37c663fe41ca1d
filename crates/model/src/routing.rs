//! Routing: from a partition to the ordered nodes that a request may use.
//!
//! *Consistent* routing takes the partition's own list. *Zoned* (a number of replicas per zone) and *everywhere*
//! (every node is a replica) become further variants of [`Routing`]; they change [`PreferenceList::of`] and
//! [`replicas`], and nothing else.

use smallvec::SmallVec;

use crate::key::Token;
use crate::node::{Node, NodeId, Zone};
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
    /// By proximity: for each node the position of the first replica in its zone, or [`FAR`]. Otherwise empty.
    near: SmallVec<[u8; 8]>,
}

/// Of a node in whose zone no replica lies.
const FAR: u8 = u8::MAX;

/// The nodes that should hold a store's keys in `partition`: the beginning of every preference list for them.
pub fn replicas<'a>(store: &Store, partition: &'a Partition) -> &'a [NodeId] {
    match Routing::Consistent {
        Routing::Consistent => {
            let count = usize::from(store.consistency.replicas).min(partition.nodes.len());
            &partition.nodes[..count]
        }
    }
}

impl PreferenceList {
    /// The list of `store` for keys in `partition`.
    ///
    /// A partition that lists fewer than N nodes has that many replicas and no fallback.
    pub fn of(store: &Store, partition: &Partition) -> Self {
        match Routing::Consistent {
            Routing::Consistent => PreferenceList {
                nodes: SmallVec::from_slice(&partition.nodes),
                replicas: replicas(store, partition).len(),
                near: SmallVec::new(),
            },
        }
    }

    /// The same replicas, and as fallbacks all other nodes of the cluster, beginning at another one for each token.
    pub(crate) fn spread(mut self, nodes: &[Node], token: Token) -> Self {
        self.nodes.truncate(self.replicas);
        self.nodes.extend(others(nodes, self.replicas()));
        let fallbacks = &mut self.nodes[self.replicas..];
        // The high bits choose the partition, so its keys differ in the low ones.
        let first = ((token.0 & u64::from(u32::MAX)) * fallbacks.len() as u64) >> 32;
        fallbacks.rotate_left(first as usize);
        self
    }

    /// The same replicas, and as fallbacks all other nodes of the cluster: those in the zone of the first replica, then
    /// of the second, and so on; last those in zones without a replica.
    pub(crate) fn by_zone(mut self, nodes: &[Node]) -> Self {
        let zone =
            |id: NodeId| -> Option<&Zone> { nodes.iter().find(|node| node.id == id).map(|node| &node.zone) };
        let zones: SmallVec<[Option<&Zone>; 8]> = self.replicas().iter().map(|&id| zone(id)).collect();
        let near = |id: NodeId| {
            let own = zone(id);
            let position = own.and_then(|_| zones.iter().position(|zone| *zone == own));
            position.and_then(|position| u8::try_from(position).ok()).unwrap_or(FAR)
        };
        // In the partition's order where it lists them, so that neighbours on the ring come first within a zone.
        let mut fallbacks: SmallVec<[NodeId; 8]> = SmallVec::from_slice(self.fallbacks());
        fallbacks.extend(others(nodes, &self.nodes));
        fallbacks.retain(|id| zone(*id).is_some());
        fallbacks.sort_by_key(|&id| near(id));
        self.nodes.truncate(self.replicas);
        self.nodes.extend(fallbacks);
        self.near = self.nodes.iter().map(|&id| near(id)).collect();
        self
    }

    /// The same nodes, with the replicas in turn from this one on, which may be any number.
    pub fn beginning_at(mut self, replica: usize) -> Self {
        let first = replica.checked_rem(self.replicas).unwrap_or(0);
        self.nodes[..self.replicas].rotate_left(first);
        if !self.near.is_empty() {
            self.near[..self.replicas].rotate_left(first);
        }
        self
    }

    /// Whether `fallback` is better placed than others to stand in for `replica`: it lies in the same zone, and the
    /// store cares. Both must be on the list.
    pub fn is_near(&self, fallback: NodeId, replica: NodeId) -> bool {
        let near = |id: NodeId| {
            let position = self.nodes.iter().position(|&node| node == id)?;
            self.near.get(position).copied().filter(|&near| near != FAR)
        };
        near(fallback).is_some_and(|zone| near(replica) == Some(zone))
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

/// The nodes that are not on the list, by id.
fn others<'a>(nodes: &'a [Node], known: &[NodeId]) -> impl Iterator<Item = NodeId> + use<'a> {
    let known: SmallVec<[NodeId; 8]> = SmallVec::from_slice(known);
    nodes.iter().map(|node| node.id).filter(move |id| !known.contains(id))
}
