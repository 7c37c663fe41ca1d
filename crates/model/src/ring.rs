//! Rings: a sorted list of partitions, each with its boundary and its explicit, ordered list of replicas (D3).
//!
//! One structure serves equal slices, golden-ratio slices and live splits: nothing may assume that slices are equal,
//! that partition ids are positions, or that their number is fixed.
//!
//! A partition that moves says so itself: it has a next list, with the step at which it is. Nodes and clients act on
//! what the document says and on nothing else. Why four steps suffice: `docs/design/rebalance.md`.
//!
//! ```text
//!   step          gets ask      writes need W of      those that enter
//!   (settled)     nodes         nodes
//!   copying       nodes         nodes                 bring the partition in
//!   joint         nodes         nodes and coming      compare once more
//!   reading-new   coming        nodes and coming
//!   (settled)     what was coming is `nodes` now
//! ```

mod document;
pub mod golden;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Unknown;
use crate::generation::Generation;
use crate::key::Token;
use crate::limits::PARTITIONS_MAX;
use crate::node::NodeId;

/// A slice of one token space: the unit of ownership and of movement. The id outlives splits of its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartitionId(pub u32);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// One partition: tokens from `start` up to the next partition's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its id.
    pub id: PartitionId,
    /// First token that belongs to it.
    pub start: u64,
    /// Nodes in order of preference: the first N hold the replicas of a store with factor N, the rest are fallbacks.
    pub nodes: Vec<NodeId>,
    /// Requests for it that were formed under an older generation are refused. Never above the document's generation.
    pub since: Generation,
    /// Where it moves to, while it does.
    pub coming: Option<Coming>,
    /// Whose partition it is, on a golden ring: its list is this node and the next along the ring, in whatever order. On
    /// any other ring nobody's. Requests never use it.
    pub owner: Option<NodeId>,
    /// Fields of a later program.
    pub unknown: Unknown,
}

/// The list that a partition moves to, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coming {
    /// How far.
    pub step: Step,
    /// The list that becomes [`Partition::nodes`].
    pub nodes: Vec<NodeId>,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// How far a partition has come on its way to other nodes; one that is settled has no next list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Requests go to the old nodes alone; those that enter bring the partition in.
    Copying,
    /// Writes need both; reads ask the old. Those that enter compare once more.
    Joint,
    /// Writes need both; reads ask the new.
    ReadingNew,
}

impl Step {
    /// Whether writes need the new nodes, too.
    pub fn writes_both(self) -> bool {
        self != Step::Copying
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Copying => "copying",
            Step::Joint => "joint",
            Step::ReadingNew => "reading-new",
        })
    }
}

impl Partition {
    /// A partition that does not move, and is as old as its cluster.
    pub fn settled(id: PartitionId, start: u64, nodes: Vec<NodeId>) -> Self {
        let since = Generation::default();
        Partition { id, start, nodes, since, coming: None, owner: None, unknown: Unknown::new() }
    }

    /// How far it has come, while it moves.
    pub fn step(&self) -> Option<Step> {
        self.coming.as_ref().map(|coming| coming.step)
    }

    /// The list that gets are answered by.
    pub fn reading(&self) -> &[NodeId] {
        match &self.coming {
            Some(Coming { step: Step::ReadingNew, nodes, .. }) => nodes,
            _ => &self.nodes,
        }
    }

    /// The other list that writes need, while they need both.
    pub fn also_written(&self) -> Option<&[NodeId]> {
        match &self.coming {
            Some(Coming { step: Step::Joint, nodes, .. }) => Some(nodes),
            Some(Coming { step: Step::ReadingNew, .. }) => Some(&self.nodes),
            Some(Coming { step: Step::Copying, .. }) | None => None,
        }
    }
}

/// The partitions of one token space, sorted by start; the first starts at 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<document::PartitionEntry>", into = "Vec<document::PartitionEntry>")]
pub struct Ring {
    partitions: Vec<Partition>,
    /// `Some(shift)` while all slices are equal and a power of two in number: lookup is one shift.
    equal_shift: Option<u32>,
    /// Positions in `partitions`, sorted by id.
    by_id: Vec<u32>,
}

/// Why a list of partitions is no ring.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// A ring has 1 to [`PARTITIONS_MAX`] partitions.
    #[error("a ring has 1 to {PARTITIONS_MAX} partitions, got {count}")]
    Count {
        /// How many were given.
        count: usize,
    },
    /// The first partition must start at token 0, the others strictly after their neighbour.
    #[error("partition {partition} does not start after its neighbour (the first starts at 0)")]
    Order {
        /// The offender.
        partition: PartitionId,
    },
    /// Partition ids are unique.
    #[error("partition {partition} appears twice")]
    Twice {
        /// The offender.
        partition: PartitionId,
    },
    /// A partition lists at least one node, and none twice; so does its next list.
    #[error("partition {partition} lists no node, or one twice")]
    Nodes {
        /// The offender.
        partition: PartitionId,
    },
    /// On a golden ring each partition belongs to a node, and on any other none does.
    #[error("partition {partition} belongs to a node and others do not, or the other way round")]
    Owner {
        /// The first that differs from the first of all.
        partition: PartitionId,
    },
    /// Only the partition behind another one may leave out where it starts, and only one behind two others how.
    #[error(
        "the partition at position {position} does not say where it starts, or has an id beyond the largest"
    )]
    Unsaid {
        /// Its position, from 0.
        position: usize,
    },
}

impl Ring {
    /// Checks the invariants and takes the partitions.
    pub fn new(partitions: Vec<Partition>) -> Result<Self, RingError> {
        if partitions.is_empty() || partitions.len() > PARTITIONS_MAX {
            return Err(RingError::Count { count: partitions.len() });
        }
        for (position, partition) in partitions.iter().enumerate() {
            let ordered = match position {
                0 => partition.start == 0,
                _ => partition.start > partitions[position - 1].start,
            };
            if !ordered {
                return Err(RingError::Order { partition: partition.id });
            }
            let coming = partition.coming.as_ref().map(|coming| &coming.nodes);
            if !std::iter::once(&partition.nodes).chain(coming).all(|nodes| is_list(nodes)) {
                return Err(RingError::Nodes { partition: partition.id });
            }
        }
        let is_golden = partitions[0].owner.is_some();
        if let Some(other) = partitions.iter().find(|partition| partition.owner.is_some() != is_golden) {
            return Err(RingError::Owner { partition: other.id });
        }
        let mut by_id: Vec<u32> = (0..partitions.len() as u32).collect();
        by_id.sort_by_key(|&position| partitions[position as usize].id);
        let id = |position: &u32| partitions[*position as usize].id;
        if let Some(twice) = by_id.windows(2).find(|pair| id(&pair[0]) == id(&pair[1])) {
            return Err(RingError::Twice { partition: id(&twice[0]) });
        }
        let equal_shift = equal_shift(&partitions);
        Ok(Ring { partitions, equal_shift, by_id })
    }

    /// Equal slices over `nodes` in turn; each list holds every node, neighbours in different zones first.
    ///
    /// `nodes` pairs each node with its zone. `count` is rounded up to a power of two.
    ///
    /// # Panics
    /// When `nodes` is empty.
    pub fn equal_slices(count: usize, nodes: &[(NodeId, crate::Zone)]) -> Self {
        Ring::equal_slices_listing(count, nodes, nodes.len())
    }

    /// Equal slices as [`Ring::equal_slices`], with at most this many nodes in each list.
    ///
    /// # Panics
    /// When `nodes` is empty, or nothing is to be listed.
    pub fn equal_slices_listing(count: usize, nodes: &[(NodeId, crate::Zone)], listed: usize) -> Self {
        assert!(listed > 0, "each partition belongs to some node");
        assert!(!nodes.is_empty(), "a ring needs at least one node");
        let count = count.clamp(1, PARTITIONS_MAX).next_power_of_two();
        let order = zones_in_turn(nodes);
        let partitions = (0..count)
            .map(|position| {
                let start =
                    if position == 0 { 0 } else { (position as u64) << (64 - count.trailing_zeros()) };
                let nodes = preference(&order, position, listed.min(order.len()));
                Partition::settled(PartitionId(position as u32), start, nodes)
            })
            .collect();
        Ring::new(partitions).expect("equal slices are sorted, distinct and owned")
    }

    /// The partition that a token falls into.
    pub fn partition(&self, token: Token) -> &Partition {
        let position = match self.equal_shift {
            Some(64) => 0,
            Some(shift) => (token.0 >> shift) as usize,
            None => self.partitions.partition_point(|p| p.start <= token.0) - 1,
        };
        &self.partitions[position]
    }

    /// All partitions, sorted by start.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Whether a partition names a node, as a replica, a fallback, a coming one, or its owner.
    pub fn lists(&self, node: NodeId) -> bool {
        self.partitions.iter().any(|partition| {
            let coming = partition.coming.iter().flat_map(|coming| &coming.nodes);
            partition.nodes.iter().chain(coming).chain(&partition.owner).any(|&listed| listed == node)
        })
    }

    /// The partition with this id, if the ring has it.
    pub fn get(&self, id: PartitionId) -> Option<&Partition> {
        self.position(id).map(|position| &self.partitions[position])
    }

    /// The first and last token of the partition with this id, if the ring has it.
    pub fn bounds(&self, id: PartitionId) -> Option<(Token, Token)> {
        let position = self.position(id)?;
        let end = self.partitions.get(position + 1).map_or(u64::MAX, |next| next.start - 1);
        Some((Token(self.partitions[position].start), Token(end)))
    }

    /// Whether no partition is on its way.
    pub fn is_settled(&self) -> bool {
        self.partitions.iter().all(|partition| partition.coming.is_none())
    }

    /// The least power of two of equal slices of which all partitions can be made, as far as there may be so many.
    pub(crate) fn buckets_min(&self) -> u32 {
        let bits = |partition: &Partition| 64 - partition.start.trailing_zeros();
        let most = self.partitions.iter().map(bits).max().unwrap_or(0);
        1 << most.min(PARTITIONS_MAX.trailing_zeros())
    }

    fn position(&self, id: PartitionId) -> Option<usize> {
        let found = self.by_id.binary_search_by_key(&id, |&position| self.partitions[position as usize].id);
        found.ok().map(|index| self.by_id[index] as usize)
    }
}

/// Whether a list names some node, and none twice.
fn is_list(nodes: &[NodeId]) -> bool {
    let twice = |(position, node): (usize, &NodeId)| nodes[..position].contains(node);
    !nodes.is_empty() && !nodes.iter().enumerate().any(twice)
}

impl TryFrom<Vec<Partition>> for Ring {
    type Error = RingError;
    fn try_from(partitions: Vec<Partition>) -> Result<Self, RingError> {
        Ring::new(partitions)
    }
}

impl From<Ring> for Vec<Partition> {
    fn from(ring: Ring) -> Self {
        ring.partitions
    }
}

/// The shift that finds a token's partition, if the slices are equal and their number a power of two.
fn equal_shift(partitions: &[Partition]) -> Option<u32> {
    let count = partitions.len();
    if !count.is_power_of_two() {
        return None;
    }
    let shift = 64 - count.trailing_zeros();
    let equal = partitions.iter().enumerate().skip(1).all(|(i, p)| p.start == (i as u64) << shift);
    equal.then_some(shift)
}

/// The nodes, ordered so that neighbours lie in different zones as far as possible.
fn zones_in_turn(nodes: &[(NodeId, crate::Zone)]) -> Vec<(NodeId, crate::Zone)> {
    let mut zones: std::collections::BTreeMap<&crate::Zone, Vec<NodeId>> = Default::default();
    for (id, zone) in nodes {
        zones.entry(zone).or_default().push(*id);
    }
    let deepest = zones.values().map(Vec::len).max().unwrap_or(0);
    let mut order = Vec::with_capacity(nodes.len());
    for depth in 0..deepest {
        for (zone, members) in &zones {
            if let Some(id) = members.get(depth) {
                order.push((*id, (*zone).clone()));
            }
        }
    }
    order
}

/// Rotates `order` to `position`, then brings one node of each further zone forward, keeping the rest in turn, until
/// `listed` are chosen.
///
/// After each full turn the stride between neighbours grows, so that a node's load falls on all the others when it
/// dies, not on one.
fn preference(order: &[(NodeId, crate::Zone)], position: usize, listed: usize) -> Vec<NodeId> {
    let count = order.len();
    let first = position % count;
    let mut rest: Vec<usize> = (1..count).map(|step| (first + step) % count).collect();
    if !rest.is_empty() {
        let turn = (position / count) % rest.len();
        rest.rotate_left(turn);
    }
    let mut chosen = vec![first];
    while chosen.len() < listed && !rest.is_empty() {
        let is_fresh = |&i: &usize| !chosen.iter().any(|&used| order[used].1 == order[i].1);
        let fresh = rest.iter().position(is_fresh).unwrap_or(0);
        chosen.push(rest.remove(fresh));
    }
    chosen.into_iter().map(|i| order[i].0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zone;

    fn nodes(zones: &[&str]) -> Vec<(NodeId, Zone)> {
        zones.iter().enumerate().map(|(i, z)| (NodeId(i as u32 + 1), Zone(z.to_string()))).collect()
    }

    #[test]
    fn every_token_falls_into_the_partition_whose_bounds_hold_it() {
        let equal = Ring::equal_slices(8, &nodes(&["a", "b", "c"]));
        let mut unequal: Vec<Partition> = equal.clone().into();
        unequal.remove(3);
        let unequal = Ring::new(unequal).unwrap();
        for ring in [equal, unequal, Ring::equal_slices(1, &nodes(&["a"]))] {
            for token in (0..64).map(|i| (i as u64) << 58).chain([u64::MAX, 1, (1 << 61) - 1]) {
                let partition = ring.partition(Token(token));
                let (first, last) = ring.bounds(partition.id).unwrap();
                assert!((first.0..=last.0).contains(&token), "{token:x} in {partition:?}");
            }
        }
    }

    #[test]
    fn the_first_nodes_of_every_list_lie_in_different_zones() {
        let ring = Ring::equal_slices(64, &nodes(&["a", "a", "b", "b", "c", "c"]));
        let zone = |id: NodeId| ["a", "a", "b", "b", "c", "c"][id.0 as usize - 1];
        for partition in ring.partitions() {
            let zones: std::collections::BTreeSet<_> =
                partition.nodes[..3].iter().map(|&id| zone(id)).collect();
            assert_eq!(zones.len(), 3, "{partition:?}");
            assert_eq!(partition.nodes.len(), 6);
        }
    }

    #[test]
    fn replicas_are_spread_evenly() {
        let ring = Ring::equal_slices(1024, &nodes(&["a", "b", "c", "d", "e"]));
        let mut owned = std::collections::BTreeMap::new();
        for partition in ring.partitions() {
            for node in &partition.nodes[..3] {
                *owned.entry(*node).or_insert(0) += 1;
            }
        }
        let (least, most) = (owned.values().min().unwrap(), owned.values().max().unwrap());
        assert!(most - least <= 8, "{owned:?}");
    }

    #[test]
    fn a_ring_with_a_hole_or_a_double_is_refused() {
        let good: Vec<Partition> = Ring::equal_slices(4, &nodes(&["a", "b"])).into();
        let mut late = good.clone();
        late[0].start = 1;
        assert_eq!(Ring::new(late), Err(RingError::Order { partition: PartitionId(0) }));
        let mut twice = good.clone();
        twice[2].id = PartitionId(1);
        assert_eq!(Ring::new(twice), Err(RingError::Twice { partition: PartitionId(1) }));
        let mut lonely = good;
        lonely[1].nodes.clear();
        assert_eq!(Ring::new(lonely), Err(RingError::Nodes { partition: PartitionId(1) }));
    }
}
