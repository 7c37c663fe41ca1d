//! Other bounds of partitions: changes of the document alone, which touch no record.
//!
//! Below the view everything is keyed by buckets, fixed slices of the token space. So a partition may be cut, or joined
//! with its neighbour, while it is used, also while it moves: both parts are at its step.

use model::limits::PARTITIONS_MAX;
use model::{Cluster, Generation, Partition, PartitionId, Ring};

use super::refusal::Refusal;

/// Partitions are cut at multiples of so many tokens: as narrow as all of them are in the largest ring.
pub const CUT_TOKENS: u64 = (u64::MAX / PARTITIONS_MAX as u64) + 1;

/// The document in which a partition is cut in two: at this token, or in the middle. The first part keeps the id, the
/// second gets the next one that the ring does not have.
///
/// # Errors
/// When it cannot be cut there, or the document would have more than `bytes_max` bytes.
pub fn split(
    cluster: &Cluster,
    partition: PartitionId,
    at: Option<u64>,
    bytes_max: usize,
) -> Result<Cluster, Refusal> {
    let mut partitions = cluster.ring.partitions().to_vec();
    let unknown = Refusal::PartitionUnknown { partition };
    let position = partitions.iter().position(|known| known.id == partition).ok_or(unknown)?;
    let cut = cut(cluster, &partitions[position], at)?;
    let second = Partition { id: next_id(&partitions)?, start: cut, ..partitions[position].clone() };
    partitions.insert(position + 1, second);
    reshaped(cluster, partitions, bytes_max)
}

/// The document in which every partition is cut in the middle.
///
/// # Errors
/// When one is too narrow, or the document would have more than `bytes_max` bytes.
pub fn double(cluster: &Cluster, bytes_max: usize) -> Result<Cluster, Refusal> {
    let before = cluster.ring.partitions();
    let mut next = next_id(before)?.0;
    let mut partitions = Vec::with_capacity(before.len() * 2);
    for partition in before {
        let start = cut(cluster, partition, None)?;
        partitions.push(partition.clone());
        partitions.push(Partition { id: PartitionId(next), start, ..partition.clone() });
        next = next.checked_add(1).ok_or_else(|| too_many(before.len() * 2))?;
    }
    reshaped(cluster, partitions, bytes_max)
}

/// The document in which a partition and the one behind it are one. Both must lie on the same nodes and stay put: what
/// does not is first brought together by moves.
///
/// # Errors
/// When they cannot become one.
pub fn merge(cluster: &Cluster, partition: PartitionId, other: PartitionId) -> Result<Cluster, Refusal> {
    let mut partitions = cluster.ring.partitions().to_vec();
    let find = |id: PartitionId| {
        let position = partitions.iter().position(|known| known.id == id);
        position.ok_or(Refusal::PartitionUnknown { partition: id })
    };
    let (first, second) = (find(partition)?, find(other)?);
    if second != first + 1 {
        return Err(Refusal::NoNeighbours { partition, other });
    }
    if let Some(moving) = [first, second].into_iter().find(|&at| partitions[at].coming.is_some()) {
        return Err(Refusal::Moves { partition: partitions[moving].id });
    }
    let replicas = |at: usize| super::replicas(cluster, &partitions[at].nodes);
    if replicas(first) != replicas(second) {
        return Err(Refusal::OtherLists { partition, other });
    }
    let gone = partitions.remove(second);
    partitions[first].since = partitions[first].since.max(gone.since);
    reshaped(cluster, partitions, usize::MAX)
}

/// Where a partition is cut, if it can be cut there.
fn cut(cluster: &Cluster, partition: &Partition, at: Option<u64>) -> Result<u64, Refusal> {
    let (first, last) = cluster.ring.bounds(partition.id).expect("it is of this ring");
    let aligned = |token: u64| token / CUT_TOKENS * CUT_TOKENS;
    let least = aligned(first.0).checked_add(CUT_TOKENS).filter(|&least| least <= last.0);
    let between = least.map(|least| (least, aligned(last.0)));
    let at = at.unwrap_or_else(|| aligned(first.0 + (last.0 - first.0) / 2 + 1));
    let fits = between.is_some_and(|(least, most)| (least..=most).contains(&at)) && aligned(at) == at;
    if fits { Ok(at) } else { Err(Refusal::Cut { partition: partition.id, at, between }) }
}

fn next_id(partitions: &[Partition]) -> Result<PartitionId, Refusal> {
    let last = partitions.iter().map(|partition| partition.id.0).max().unwrap_or(0);
    last.checked_add(1).map(PartitionId).ok_or_else(|| too_many(partitions.len() + 1))
}

fn too_many(partitions: usize) -> Refusal {
    Refusal::TooMany { partitions, partitions_max: PARTITIONS_MAX }
}

fn reshaped(cluster: &Cluster, partitions: Vec<Partition>, bytes_max: usize) -> Result<Cluster, Refusal> {
    let count = partitions.len();
    if count > PARTITIONS_MAX {
        return Err(too_many(count));
    }
    let ring = Ring::new(partitions).expect("cuts lie within their partitions");
    let generation = Generation(cluster.generation.0 + 1);
    let reshaped = Cluster { generation, ring, ..cluster.clone() };
    let bytes = reshaped.document_bytes();
    if bytes > bytes_max {
        return Err(Refusal::TooLarge { partitions: count, bytes, bytes_max });
    }
    Ok(reshaped)
}
