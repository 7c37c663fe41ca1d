//! Rings: a sorted list of partitions, each with its boundary and its explicit, ordered list of replicas (D3).
//!
//! One structure serves equal slices, golden-ratio slices and live splits: nothing may assume that slices are equal,
//! that partition ids are positions, or that their number is fixed.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its id.
    pub id: PartitionId,
    /// First token that belongs to it.
    pub start: u64,
    /// Nodes in order of preference: the first N hold the replicas of a store with factor N, the rest are fallbacks.
    pub nodes: Vec<NodeId>,
}

/// The partitions of one token space, sorted by start; the first starts at 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Partition>", into = "Vec<Partition>")]
pub struct Ring {
    partitions: Vec<Partition>,
    /// `Some(shift)` while all slices are equal and a power of two in number: lookup is one shift.
    equal_shift: Option<u32>,
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
    /// A partition lists at least one node, and none twice.
    #[error("partition {partition} lists no node, or one twice")]
    Nodes {
        /// The offender.
        partition: PartitionId,
    },
}

impl Ring {
    /// Checks the invariants and takes the partitions.
    pub fn new(partitions: Vec<Partition>) -> Result<Self, RingError> {
        if partitions.is_empty() || partitions.len() > PARTITIONS_MAX {
            return Err(RingError::Count { count: partitions.len() });
        }
        let mut ids = std::collections::BTreeSet::new();
        for (position, partition) in partitions.iter().enumerate() {
            let ordered = match position {
                0 => partition.start == 0,
                _ => partition.start > partitions[position - 1].start,
            };
            if !ordered {
                return Err(RingError::Order { partition: partition.id });
            }
            if !ids.insert(partition.id) {
                return Err(RingError::Twice { partition: partition.id });
            }
            let distinct: std::collections::BTreeSet<_> = partition.nodes.iter().collect();
            if partition.nodes.is_empty() || distinct.len() != partition.nodes.len() {
                return Err(RingError::Nodes { partition: partition.id });
            }
        }
        let equal_shift = equal_shift(&partitions);
        Ok(Ring { partitions, equal_shift })
    }

    /// Equal slices over `nodes` in turn; each list holds every node, neighbours in different zones first.
    ///
    /// `nodes` pairs each node with its zone. `count` is rounded up to a power of two.
    ///
    /// # Panics
    /// When `nodes` is empty.
    pub fn equal_slices(count: usize, nodes: &[(NodeId, crate::Zone)]) -> Self {
        assert!(!nodes.is_empty(), "a ring needs at least one node");
        let count = count.clamp(1, PARTITIONS_MAX).next_power_of_two();
        let order = zones_in_turn(nodes);
        let partitions = (0..count)
            .map(|position| Partition {
                id: PartitionId(position as u32),
                start: if position == 0 { 0 } else { (position as u64) << (64 - count.trailing_zeros()) },
                nodes: preference(&order, position),
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

    /// The first and last token of the partition with this id, if the ring has it.
    pub fn bounds(&self, id: PartitionId) -> Option<(Token, Token)> {
        let position = self.partitions.iter().position(|p| p.id == id)?;
        let end = self.partitions.get(position + 1).map_or(u64::MAX, |next| next.start - 1);
        Some((Token(self.partitions[position].start), Token(end)))
    }
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

/// Rotates `order` to `position`, then brings one node of each further zone forward, keeping the rest in turn.
///
/// After each full turn the stride between neighbours grows, so that a node's load falls on all the others when it
/// dies, not on one.
fn preference(order: &[(NodeId, crate::Zone)], position: usize) -> Vec<NodeId> {
    let count = order.len();
    let first = position % count;
    let mut rest: Vec<usize> = (1..count).map(|step| (first + step) % count).collect();
    if !rest.is_empty() {
        let turn = (position / count) % rest.len();
        rest.rotate_left(turn);
    }
    let mut chosen = vec![first];
    while !rest.is_empty() {
        let used: std::collections::BTreeSet<_> = chosen.iter().map(|&i| &order[i].1).collect();
        let fresh = rest.iter().position(|&i| !used.contains(&order[i].1)).unwrap_or(0);
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
