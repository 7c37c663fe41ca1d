//! A ring as JSON: one entry for each partition, in order.
//!
//! What a reader can tell from the entries before is left out, so that 16,384 partitions fit a document: an id that is
//! one more than the neighbour's, and a start as far behind the neighbour's as that lies behind its own neighbour's.

use serde::{Deserialize, Serialize};

use super::{Coming, Partition, PartitionId, Ring, RingError};
use crate::Unknown;
use crate::generation::Generation;
use crate::node::NodeId;

/// One partition, as far as those before do not tell.
#[derive(Serialize, Deserialize)]
pub(super) struct PartitionEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<PartitionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    nodes: Vec<NodeId>,
    #[serde(default, skip_serializing_if = "is_first")]
    since: Generation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    coming: Option<Coming>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<NodeId>,
    #[serde(flatten)]
    unknown: Unknown,
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

impl TryFrom<Vec<PartitionEntry>> for Ring {
    type Error = RingError;

    fn try_from(entries: Vec<PartitionEntry>) -> Result<Self, RingError> {
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
            let PartitionEntry { nodes, since, coming, owner, unknown, .. } = entry;
            partitions.push(Partition { id, start, nodes, since, coming, owner, unknown });
        }
        Ring::new(partitions)
    }
}

impl From<Ring> for Vec<PartitionEntry> {
    fn from(ring: Ring) -> Self {
        let known: Vec<_> =
            (0..ring.partitions.len()).map(|position| expected(&ring.partitions[..position])).collect();
        let entry =
            |(partition, (id, start)): (Partition, (Option<PartitionId>, Option<u64>))| PartitionEntry {
                id: (Some(partition.id) != id).then_some(partition.id),
                start: (Some(partition.start) != start).then_some(partition.start),
                nodes: partition.nodes,
                since: partition.since,
                coming: partition.coming,
                owner: partition.owner,
                unknown: partition.unknown,
            };
        ring.partitions.into_iter().zip(known).map(entry).collect()
    }
}
