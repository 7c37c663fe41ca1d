//! Golden rings: one partition for each node, and a newcomer that gets the smaller part of the widest one (ZStore's rings,
//! paper 003, 4.2).
//!
//! ```text
//!   n1                        n1 | n2                    n1 | n3 | n2
//!   |----------------------|  |-------------|--------|   |-------|-----|--------|
//!                             cut by the golden ratio    n1's was the widest again
//! ```
//!
//! A partition's list is its owner and the next along the ring. The owner is kept beside the list, because load may bring
//! another replica to its head, and because a join says whose a part will be before anything moves.
//!
//! Must never: decide how a request is routed. Lists alone do that.

use super::{Partition, PartitionId, Ring};
use crate::node::NodeId;

/// The part of a partition that stays with its owner: the golden ratio, less one.
const STAYS: f64 = 0.618_033_988_749_895;

impl Ring {
    /// A golden ring of these nodes, as if they had joined one after another; each list holds `listed` nodes at most.
    /// `None` where the ring would need narrower partitions than one of `buckets`.
    ///
    /// # Panics
    /// When there is no node, `buckets` is no power of two, or nothing is to be listed.
    pub fn golden(nodes: &[NodeId], buckets: u32, listed: usize) -> Option<Ring> {
        assert!(
            listed > 0 && buckets.is_power_of_two(),
            "a ring lists nodes, and has a power of two buckets"
        );
        let (first, rest) = nodes.split_first().expect("a ring needs at least one node");
        // In buckets: where each part begins, its id, and whose it is.
        let mut parts = vec![(0, PartitionId(0), *first)];
        for (node, id) in rest.iter().zip(1..) {
            let end = |position: usize| parts.get(position + 1).map_or(buckets, |next: &(u32, _, _)| next.0);
            let widths: Vec<u64> =
                (0..parts.len()).map(|position| u64::from(end(position) - parts[position].0)).collect();
            let position = widest(&widths);
            let stays = golden_part(widths[position])?;
            let start = parts[position].0 + u32::try_from(stays).expect("a part of so many buckets");
            parts.insert(position + 1, (start, PartitionId(id), *node));
        }
        let owners: Vec<NodeId> = parts.iter().map(|(_, _, owner)| *owner).collect();
        let bits = buckets.trailing_zeros();
        let start = |bucket: u32| if bucket == 0 { 0 } else { u64::from(bucket) << (64 - bits) };
        let settled = |(part, nodes): (&(u32, PartitionId, NodeId), Vec<NodeId>)| Partition {
            owner: Some(part.2),
            ..Partition::settled(part.1, start(part.0), nodes)
        };
        let partitions = parts.iter().zip(along(&owners, listed)).map(settled).collect();
        Some(Ring::new(partitions).expect("parts are sorted, distinct and owned"))
    }

    /// Whether it is a golden one.
    pub fn is_golden(&self) -> bool {
        self.partitions[0].owner.is_some()
    }

    /// Whose each partition is, in the order of the ring; nothing on any other than a golden ring.
    pub fn owners(&self) -> Vec<NodeId> {
        self.partitions.iter().filter_map(|partition| partition.owner).collect()
    }
}

/// How much of a partition of this many buckets stays with its owner; `None` of a single one, which cannot be cut.
pub fn golden_part(buckets: u64) -> Option<u64> {
    let stays = (buckets as f64 * STAYS).round() as u64;
    (buckets > 1).then(|| stays.clamp(1, buckets - 1))
}

/// The position of the widest, the first of those that are as wide.
pub fn widest(widths: &[u64]) -> usize {
    (0..widths.len()).rev().max_by_key(|position| widths[*position]).unwrap_or(0)
}

/// The list of each partition by whose each is: the owner and the next along the ring, each once.
pub fn along(owners: &[NodeId], listed: usize) -> Vec<Vec<NodeId>> {
    let count = owners.len();
    let list = |position: usize| {
        let mut list: Vec<NodeId> = Vec::new();
        for node in (0..count).map(|step| owners[(position + step) % count]) {
            if list.len() < listed && !list.contains(&node) {
                list.push(node);
            }
        }
        list
    };
    (0..count).map(list).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u32) -> Vec<NodeId> {
        (1..=count).map(NodeId).collect()
    }

    /// The node with most over the mean, as `docs/design/placement.md` counts it.
    fn unevenness(count: u32) -> f64 {
        let ring = Ring::golden(&nodes(count), 4096, 3).unwrap();
        let mut starts: Vec<u64> = ring.partitions().iter().map(|one| one.start >> 52).collect();
        starts.push(4096);
        let most = starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        most as f64 * f64::from(count) / 4096.0
    }

    #[test]
    fn golden_rings_are_as_even_as_the_table_says() {
        for (count, expected) in
            [(1, 1.0), (2, 1.24), (5, 1.18), (12, 1.75), (20, 1.80), (50, 1.72), (100, 1.32)]
        {
            let found = unevenness(count);
            assert!((found - expected).abs() < 0.006, "{count} nodes: {found}, not {expected}");
        }
    }

    #[test]
    fn each_node_has_one_partition_and_lists_are_the_next_along_the_ring() {
        let ring = Ring::golden(&nodes(7), 4096, 4).unwrap();
        let owners = ring.owners();
        let mut sorted = owners.clone();
        sorted.sort();
        assert_eq!(sorted, nodes(7));
        for (position, partition) in ring.partitions().iter().enumerate() {
            let next: Vec<NodeId> = (0..4).map(|step| owners[(position + step) % 7]).collect();
            assert_eq!(partition.nodes, next);
        }
        assert!(ring.is_golden());
    }

    #[test]
    fn a_ring_of_more_nodes_than_buckets_cannot_be() {
        assert!(Ring::golden(&nodes(16), 16, 1).is_some());
        assert_eq!(Ring::golden(&nodes(17), 16, 1), None);
        assert_eq!(Ring::golden(&nodes(2), 1, 1), None);
    }

    #[test]
    fn two_partitions_of_one_node_count_once_in_lists() {
        let owners = [1, 1, 2, 3].map(NodeId);
        let lists = along(&owners, 2);
        assert_eq!(lists, [[1, 2], [1, 2], [2, 3], [3, 1]].map(|list| list.map(NodeId).to_vec()));
    }

    #[test]
    fn an_owner_survives_its_document_and_a_ring_is_golden_as_a_whole() {
        let ring = Ring::golden(&nodes(3), 4096, 3).unwrap();
        let read: Ring = serde_json::from_str(&serde_json::to_string(&ring).unwrap()).unwrap();
        assert_eq!(read, ring);
        let mut mixed: Vec<Partition> = ring.into();
        mixed[1].owner = None;
        let id = mixed[1].id;
        assert_eq!(Ring::new(mixed), Err(super::super::RingError::Owner { partition: id }));
    }
}
