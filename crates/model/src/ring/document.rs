//! A ring as JSON: one entry for each partition, in order.
//!
//! What a reader can tell from the entries before is left out, so that 16,384 partitions fit a document: an id that is
//! one more than the neighbour's, and a start as far behind the neighbour's as that lies behind its own neighbour's.
//!
//! A ring in which nothing has moved yet is written in full, so that a program of the first version can read it: nodes
//! and clients of both versions serve together while a cluster is upgraded.

use serde::{Deserialize, Serialize};

use super::{Coming, Partition, PartitionId, Ring, RingError};
use crate::Unknown;
use crate::cluster::Generation;
use crate::node::NodeId;

/// One partition, as far as those before do not tell.
#[derive(Serialize, Deserialize)]
pub(super) struct Entry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<PartitionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    nodes: Vec<NodeId>,
    #[serde(default, skip_serializing_if = "is_first")]
    since: Generation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    coming: Option<Coming>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// Most partitions of a ring that is written in full: about a quarter of what a document may have.
const FULL_MAX: usize = 4096;

impl Ring {
    /// Whether a program of the first version, which knows no moves, understands the ring as it is written.
    pub(crate) fn is_plain(&self) -> bool {
        let plain = |partition: &Partition| {
            partition.coming.is_none() && is_first(&partition.since) && partition.unknown.is_empty()
        };
        self.partitions.len() <= FULL_MAX && self.partitions.iter().all(plain)
    }
}

fn is_first(generation: &Generation) -> bool {
    *generation == Generation::default()
}

/// What the next entry need not say.
fn expected(before: &[Partition]) -> (Option<PartitionId>, Option<u64>) {
    let id = before.last().map_or(Some(0), |last| last.id.0.checked_add(1)).map(PartitionId);
    let start = match before {
        [.., second, last] => last.start.checked_add(last.start - second.start),
        _ => None,
    };
    (id, start)
}

impl TryFrom<Vec<Entry>> for Ring {
    type Error = RingError;

    fn try_from(entries: Vec<Entry>) -> Result<Self, RingError> {
        let mut partitions: Vec<Partition> = Vec::with_capacity(entries.len());
        for entry in entries {
            let position = partitions.len();
            let (id, start) = expected(&partitions);
            let (Some(id), Some(start)) = (entry.id.or(id), entry.start.or(start)) else {
                return Err(RingError::Unsaid { position });
            };
            if partitions.last().is_some_and(|last| last.start >= start) {
                return Err(RingError::Order { partition: id });
            }
            let Entry { nodes, since, coming, unknown, .. } = entry;
            partitions.push(Partition { id, start, nodes, since, coming, unknown });
        }
        Ring::new(partitions)
    }
}

impl From<Ring> for Vec<Entry> {
    fn from(ring: Ring) -> Self {
        let full = ring.is_plain();
        let known: Vec<_> =
            (0..ring.partitions.len()).map(|position| expected(&ring.partitions[..position])).collect();
        let entry = |(partition, (id, start)): (Partition, (Option<PartitionId>, Option<u64>))| Entry {
            id: (full || Some(partition.id) != id).then_some(partition.id),
            start: (full || Some(partition.start) != start).then_some(partition.start),
            nodes: partition.nodes,
            since: partition.since,
            coming: partition.coming,
            unknown: partition.unknown,
        };
        ring.partitions.into_iter().zip(known).map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::node::Zone;

    /// A partition as the first version read it.
    #[derive(Deserialize)]
    struct First {
        id: u32,
        start: u64,
        nodes: Vec<u32>,
    }

    /// New nodes once handed out only what differs from the neighbour, and every client of the first version failed with
    /// "missing field `id`" as soon as the last node was upgraded.
    #[test]
    fn a_program_of_the_first_version_reads_a_ring_in_which_nothing_has_moved() {
        let nodes = [1, 2, 3].map(|id| (NodeId(id), Zone("a".to_owned())));
        let ring = Ring::equal_slices(1024, &nodes);
        let read: Vec<First> = serde_json::from_slice(&serde_json::to_vec(&ring).unwrap()).unwrap();
        let read: Vec<_> = read.into_iter().map(|first| (first.id, first.start, first.nodes)).collect();
        let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
        let own: Vec<_> =
            ring.partitions().iter().map(|own| (own.id.0, own.start, ids(&own.nodes))).collect();
        assert_eq!(read, own);
    }
}
