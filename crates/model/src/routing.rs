//! Routing: from a partition to the ordered nodes that a request may use.
//!
//! *Consistent* routing takes the partition's own list. *Zoned* (a number of replicas per zone) and *everywhere*
//! (every node is a replica) become further variants of [`Routing`]; they change [`PreferenceList::of`] and
//! [`first_n`], and nothing else.
//!
//! While a partition moves, or a store changes its numbers, two sets of replicas may count: [`PreferenceList::replicas`] answer gets,
//! [`PreferenceList::writers`] take writes, and [`Sets`] says in which of the two a writer counts. A node that enters is
//! no fallback, also while it only copies.

use smallvec::SmallVec;

use crate::key::Token;
use crate::node::{Node, NodeId, Role, Zone};
use crate::ring::{Partition, Ring, Step};
use crate::store::{Consistency, Store};

/// How a store picks its replicas from a partition's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// The first N of the list.
    #[default]
    Consistent,
}

/// The ordered nodes for one key: N replicas, then those that only take writes, then fallbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferenceList {
    nodes: SmallVec<[NodeId; 8]>,
    replicas: usize,
    /// At least as many; equal while writes need one set of replicas.
    writers: usize,
    /// While writes need two sets of replicas, those of each writer. Otherwise empty.
    sets: SmallVec<[Sets; 8]>,
    /// By proximity: for each node the position of the first replica in its zone, or [`FAR`]. Otherwise empty.
    near: SmallVec<[u8; 8]>,
}

/// In which of the two sets of replicas of a partition a node counts. In one that does not move both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// In the old one: it leaves.
    Old,
    /// In the new one: it enters.
    New,
    /// In both: it stays.
    Both,
}

impl Sets {
    /// Whether it counts in the old set.
    pub fn has_old(self) -> bool {
        self != Sets::New
    }

    /// Whether it counts in the new set.
    pub fn has_new(self) -> bool {
        self != Sets::Old
    }
}

/// Of a node in whose zone no replica lies.
const FAR: u8 = u8::MAX;

/// The part of a partition's list that holds a store's keys, by these numbers of the store.
fn first_n(numbers: Consistency, nodes: &[NodeId]) -> &[NodeId] {
    match Routing::Consistent {
        Routing::Consistent => &nodes[..usize::from(numbers.replicas).min(nodes.len())],
    }
}

/// How far a store's keys in `partition` have come on their way to other replicas: with the partition, or with the
/// store. Never do both change at once.
pub fn step(store: &Store, partition: &Partition) -> Option<Step> {
    partition.step().or(store.step())
}

/// The nodes that answer gets of a store's keys in `partition`: the beginning of every preference list for them.
pub fn replicas<'a>(store: &Store, partition: &'a Partition) -> &'a [NodeId] {
    match (step(store, partition), replicas_to_come(store, partition)) {
        (Some(Step::ReadingNew), Some(coming)) => coming,
        _ => replicas_before(store, partition),
    }
}

/// The nodes that are replicas of a store's keys in `partition` when it has settled, if it moves or the store's numbers
/// change: those that are no replicas at present bring it in.
pub fn replicas_to_come<'a>(store: &Store, partition: &'a Partition) -> Option<&'a [NodeId]> {
    match &partition.coming {
        Some(coming) => Some(first_n(store.numbers_to_come(), &coming.nodes)),
        None => store.coming.as_ref().map(|coming| first_n(coming.consistency, &partition.nodes)),
    }
}

/// The nodes that are replicas of a store's keys in `partition`, or were until it began to move, or the store to change.
pub fn replicas_before<'a>(store: &Store, partition: &'a Partition) -> &'a [NodeId] {
    first_n(store.consistency, &partition.nodes)
}

/// Whether `node` holds a store's keys in `partition`, or is about to, or did until it began to move: what such a node has of
/// them it keeps.
pub fn holds(store: &Store, partition: &Partition, node: NodeId) -> bool {
    replicas_before(store, partition).contains(&node)
        || replicas_to_come(store, partition).is_some_and(|nodes| nodes.contains(&node))
}

/// The tokens, first and last, of each partition in which `node` [`holds`] a store's keys; ascending.
pub fn slices_held(ring: &Ring, store: &Store, node: NodeId) -> Vec<(Token, Token)> {
    let partitions = ring.partitions();
    let ends = partitions.iter().skip(1).map(|next| next.start - 1).chain([u64::MAX]);
    let each = partitions.iter().zip(ends).filter(|(partition, _)| holds(store, partition, node));
    each.map(|(partition, end)| (Token(partition.start), Token(end))).collect()
}

/// The nodes of `partition` that take writes of a store's keys as replicas, each once; those that answer gets first.
pub fn writers<'a>(store: &Store, partition: &'a Partition) -> impl Iterator<Item = NodeId> + 'a {
    let replicas = replicas(store, partition);
    let others = match step(store, partition) {
        Some(Step::Joint) => replicas_to_come(store, partition).unwrap_or_default(),
        Some(Step::ReadingNew) => replicas_before(store, partition),
        Some(Step::Copying) | None => &[],
    };
    let others = others.iter().filter(|node| !replicas.contains(node));
    replicas.iter().chain(others).copied()
}

/// Whether writes of a store's keys in `partition` need two sets of replicas.
pub fn is_joint(store: &Store, partition: &Partition) -> bool {
    step(store, partition).is_some_and(Step::writes_both)
}

impl PreferenceList {
    /// The list of `store` for keys in `partition`.
    ///
    /// A partition that lists fewer than N nodes has that many replicas and no fallback.
    pub fn of(store: &Store, partition: &Partition) -> Self {
        let Some(new) = replicas_to_come(store, partition) else {
            let replicas = replicas_before(store, partition).len();
            let nodes = SmallVec::from_slice(&partition.nodes);
            let (sets, near) = Default::default();
            return PreferenceList { nodes, replicas, writers: replicas, sets, near };
        };
        let old = replicas_before(store, partition);
        let mut nodes: SmallVec<[NodeId; 8]> = writers(store, partition).collect();
        let (replicas, writers) = (replicas(store, partition).len(), nodes.len());
        let mut sets = SmallVec::new();
        if is_joint(store, partition) {
            sets.extend(nodes.iter().map(|node| match (old.contains(node), new.contains(node)) {
                (true, true) => Sets::Both,
                (true, false) => Sets::Old,
                (false, _) => Sets::New,
            }));
        }
        let is_replica = |node: &NodeId| old.contains(node) || new.contains(node);
        nodes.extend(partition.reading().iter().copied().filter(|node| !is_replica(node)));
        PreferenceList { nodes, replicas, writers, sets, near: SmallVec::new() }
    }

    /// The same replicas, and as fallbacks all other nodes of the cluster, beginning at another one for each token.
    /// Nodes that enter or leave stand in for nobody.
    pub(crate) fn spread(mut self, nodes: &[Node], entering: &[NodeId], token: Token) -> Self {
        self.nodes.truncate(self.writers);
        let known: SmallVec<[NodeId; 8]> = self.writers().iter().chain(entering).copied().collect();
        self.nodes.extend(others(nodes, known));
        let fallbacks = &mut self.nodes[self.writers..];
        // The high bits choose the partition, so its keys differ in the low ones.
        let first = ((token.0 & u64::from(u32::MAX)) * fallbacks.len() as u64) >> 32;
        fallbacks.rotate_left(first as usize);
        self
    }

    /// The same replicas, and as fallbacks all other nodes of the cluster: those in the zone of the first replica, then
    /// of the second, and so on; last those in zones without a replica. Nodes that enter or leave stand in for nobody.
    pub(crate) fn by_zone(mut self, nodes: &[Node], entering: &[NodeId]) -> Self {
        let zone =
            |id: NodeId| -> Option<&Zone> { nodes.iter().find(|node| node.id == id).map(|node| &node.zone) };
        let zones: SmallVec<[Option<&Zone>; 8]> = self.writers().iter().map(|&id| zone(id)).collect();
        let near = |id: NodeId| {
            let own = zone(id);
            let position = own.and_then(|_| zones.iter().position(|zone| *zone == own));
            position.and_then(|position| u8::try_from(position).ok()).unwrap_or(FAR)
        };
        // In the partition's order where it lists them, so that neighbours on the ring come first within a zone.
        let mut fallbacks: SmallVec<[NodeId; 8]> = SmallVec::from_slice(self.fallbacks());
        let known: SmallVec<[NodeId; 8]> = self.nodes.iter().chain(entering).copied().collect();
        fallbacks.extend(others(nodes, known));
        fallbacks.retain(|id| zone(*id).is_some());
        fallbacks.sort_by_key(|&id| near(id));
        self.nodes.truncate(self.writers);
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
        if !self.sets.is_empty() {
            self.sets[..self.replicas].rotate_left(first);
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

    /// The nodes that should hold the key and answer gets.
    pub fn replicas(&self) -> &[NodeId] {
        &self.nodes[..self.replicas]
    }

    /// The nodes that should hold the key: those that answer gets, and then, while the partition moves, those that
    /// only take writes.
    pub fn writers(&self) -> &[NodeId] {
        &self.nodes[..self.writers]
    }

    /// In which sets each of the [`writers`](Self::writers) counts.
    pub fn sets(&self) -> impl Iterator<Item = (NodeId, Sets)> {
        let sets = self.sets.iter().copied().chain(std::iter::repeat(Sets::Both));
        self.writers().iter().copied().zip(sets)
    }

    /// Whether writes need two sets of replicas.
    pub fn is_joint(&self) -> bool {
        !self.sets.is_empty()
    }

    /// The nodes that stand in for replicas that are down, in order.
    pub fn fallbacks(&self) -> &[NodeId] {
        &self.nodes[self.writers..]
    }

    /// Whether `node` should hold the key and answer gets.
    pub fn is_replica(&self, node: NodeId) -> bool {
        self.replicas().contains(&node)
    }

    /// Whether `node` should hold the key.
    pub fn is_writer(&self, node: NodeId) -> bool {
        self.writers().contains(&node)
    }
}

/// The nodes that are not on the list and do not leave, by id.
fn others(nodes: &[Node], known: SmallVec<[NodeId; 8]>) -> impl Iterator<Item = NodeId> {
    let may = move |node: &&Node| node.role != Role::Leaving && !known.contains(&node.id);
    nodes.iter().filter(may).map(|node| node.id)
}
