//! Other bounds of partitions: changes of the document alone, which touch no record.
//!
//! Below the view everything is keyed by buckets, fixed slices of the token space. A partition is made of whole buckets,
//! so it may be cut between two of them, or joined with its neighbour, while it is used. Both cost a generation, like a
//! step of a move: requests that were formed before are refused with the news, because a walk of a partition must not
//! take the part that is left of it for the whole.
//!
//! Neither is done to a partition that moves: what nodes say of a move names the partition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::refusal::PlanRefusal;
use crate::cluster::Cluster;
use crate::generation::Generation;
use crate::key::Token;
use crate::limits::PARTITIONS_MAX;
use crate::ring::{Partition, PartitionId, Ring};

/// What becomes of bounds, once the moves of a plan have settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reshape {
    /// Partitions are cut in two.
    Cut {
        /// Where, in the order of the ring.
        cuts: Vec<Cut>,
    },
    /// Two partitions become one.
    Join {
        /// The first, whose id stays.
        partition: PartitionId,
        /// The one behind it.
        other: PartitionId,
    },
}

/// A partition is cut in two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Which: the first part keeps the id.
    pub partition: PartitionId,
    /// The first token of the second part.
    pub at: u64,
    /// The id of the second part.
    pub second: PartitionId,
}

/// Whether bounds are changed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshaped {
    /// Not yet.
    Due,
    /// Yes.
    Done,
    /// The ring is another: it was changed by another hand.
    Changed,
}

impl Reshape {
    /// Of one partition: at this token, or in the middle.
    ///
    /// # Errors
    /// When it cannot be cut there.
    pub fn split(cluster: &Cluster, partition: PartitionId, at: Option<u64>) -> Result<Reshape, PlanRefusal> {
        let known = cluster.ring.get(partition).ok_or(PlanRefusal::PartitionUnknown { partition })?;
        let (at, second) = (cut(cluster, known, at)?, PartitionId(first_free(cluster)?));
        Ok(Reshape::Cut { cuts: vec![Cut { partition, at, second }] })
    }

    /// Of every partition, in the middle.
    ///
    /// # Errors
    /// When one is too narrow, or there would be too many.
    pub fn double(cluster: &Cluster) -> Result<Reshape, PlanRefusal> {
        let partitions = cluster.ring.partitions();
        check_count(2 * partitions.len())?;
        let cuts = partitions.iter().zip(first_free(cluster)?..).map(|(partition, second)| {
            let at = cut(cluster, partition, None).map_err(|refusal| match refusal {
                PlanRefusal::Narrow { partition, buckets } => PlanRefusal::NotDoubled { partition, buckets },
                refusal => refusal,
            })?;
            Ok(Cut { partition: partition.id, at, second: PartitionId(second) })
        });
        Ok(Reshape::Cut { cuts: cuts.collect::<Result<_, PlanRefusal>>()? })
    }

    /// Of two neighbours, in whichever order they are named.
    ///
    /// # Errors
    /// When they are no neighbours.
    pub fn merge(
        cluster: &Cluster,
        partition: PartitionId,
        other: PartitionId,
    ) -> Result<Reshape, PlanRefusal> {
        let find = |id: PartitionId| {
            let position = cluster.ring.partitions().iter().position(|known| known.id == id);
            position.ok_or(PlanRefusal::PartitionUnknown { partition: id })
        };
        match (find(partition)?, find(other)?) {
            (first, second) if second == first + 1 => Ok(Reshape::Join { partition, other }),
            (first, second) if first == second + 1 => {
                Ok(Reshape::Join { partition: other, other: partition })
            }
            (first, _) => {
                let beside = [first.checked_sub(1), first.checked_add(1)].into_iter().flatten();
                let known = cluster.ring.partitions();
                let neighbours = beside.filter_map(|at| known.get(at)).map(|known| known.id).collect();
                Err(PlanRefusal::NoNeighbours { partition, other, neighbours })
            }
        }
    }

    /// Whether the ring is already what it makes of it.
    pub fn stands(&self, ring: &Ring) -> Reshaped {
        let all = match self {
            Reshape::Cut { cuts } => cuts.iter().map(|cut| cut.stands(ring)).collect(),
            Reshape::Join { partition, other } => vec![joined(ring, *partition, *other)],
        };
        let first = all.first().copied().unwrap_or(Reshaped::Changed);
        if all.iter().all(|one| *one == first) { first } else { Reshaped::Changed }
    }

    /// The document that has these bounds.
    ///
    /// # Errors
    /// When a partition moves, two that become one lie on different nodes, or the document would have more than
    /// `bytes_max` bytes.
    pub fn apply(&self, cluster: &Cluster, bytes_max: usize) -> Result<Cluster, PlanRefusal> {
        let generation = Generation(cluster.generation.0 + 1);
        let partitions = match self {
            Reshape::Cut { cuts } => divided(cluster, cuts, generation)?,
            Reshape::Join { partition, other } => one(cluster, *partition, *other, generation)?,
        };
        let count = partitions.len();
        check_count(count)?;
        let ring =
            Ring::new(partitions).expect("cuts lie within their partitions, and neighbours are joined");
        let reshaped = Cluster { generation, ring, ..cluster.clone() };
        let bytes = reshaped.document_bytes();
        if bytes > bytes_max {
            return Err(PlanRefusal::TooLarge { partitions: count, bytes, bytes_max });
        }
        Ok(reshaped)
    }
}

impl Cut {
    pub(super) fn stands(&self, ring: &Ring) -> Reshaped {
        let holds = |tokens: (Token, Token)| (tokens.0.0 + 1..=tokens.1.0).contains(&self.at);
        match (ring.get(self.second), ring.bounds(self.partition)) {
            (Some(second), Some(first)) if second.start == self.at && first.1.0 + 1 == self.at => {
                Reshaped::Done
            }
            (None, Some(whole)) if holds(whole) => Reshaped::Due,
            _ => Reshaped::Changed,
        }
    }
}

fn joined(ring: &Ring, partition: PartitionId, other: PartitionId) -> Reshaped {
    match (ring.bounds(partition), ring.get(other)) {
        (Some(_), None) => Reshaped::Done,
        (Some((_, last)), Some(second)) if last.0.checked_add(1) == Some(second.start) => Reshaped::Due,
        _ => Reshaped::Changed,
    }
}

/// The partitions, with some of them cut in two.
fn divided(cluster: &Cluster, cuts: &[Cut], since: Generation) -> Result<Vec<Partition>, PlanRefusal> {
    let cuts: BTreeMap<PartitionId, &Cut> = cuts.iter().map(|cut| (cut.partition, cut)).collect();
    if let Some(&partition) = cuts.keys().find(|&&id| cluster.ring.get(id).is_none()) {
        return Err(PlanRefusal::PartitionUnknown { partition });
    }
    let mut partitions = Vec::with_capacity(cluster.ring.partitions().len() + cuts.len());
    for partition in cluster.ring.partitions() {
        let Some(&&Cut { at, second, .. }) = cuts.get(&partition.id) else {
            partitions.push(partition.clone());
            continue;
        };
        check_settled(partition)?;
        let first = Partition { since, ..partition.clone() };
        let second = Partition { id: second, start: at, ..first.clone() };
        partitions.extend([first, second]);
    }
    Ok(partitions)
}

/// The partitions, with two of them as one.
fn one(
    cluster: &Cluster,
    partition: PartitionId,
    other: PartitionId,
    since: Generation,
) -> Result<Vec<Partition>, PlanRefusal> {
    let get = |id| cluster.ring.get(id).ok_or(PlanRefusal::PartitionUnknown { partition: id });
    let (first, second) = (get(partition)?, get(other)?);
    check_settled(first)?;
    check_settled(second)?;
    if first.owner != second.owner {
        return Err(PlanRefusal::Golden { wish: "merge".to_owned() });
    }
    if cluster.replicas_in(&first.nodes) != cluster.replicas_in(&second.nodes) {
        return Err(PlanRefusal::OtherLists { partition, other });
    }
    let joined = Partition { since, ..first.clone() };
    let rest = cluster.ring.partitions().iter().filter(|known| known.id != other);
    Ok(rest.map(|known| if known.id == partition { &joined } else { known }.clone()).collect())
}

fn check_settled(partition: &Partition) -> Result<(), PlanRefusal> {
    match partition.coming {
        Some(_) => Err(PlanRefusal::Moves { partition: partition.id }),
        None => Ok(()),
    }
}

/// Where a partition is cut, if it can be cut there.
fn cut(cluster: &Cluster, partition: &Partition, at: Option<u64>) -> Result<u64, PlanRefusal> {
    let buckets = cluster.buckets;
    let narrow = PlanRefusal::Narrow { partition: partition.id, buckets };
    let Some(tokens) = cluster.bucket_tokens() else { return Err(narrow) };
    let (first, last) = cluster.ring.bounds(partition.id).expect("it is of this ring");
    let whole = (last.0 - first.0) / tokens + 1;
    if whole < 2 {
        return Err(narrow);
    }
    let between = (first.0 + tokens, first.0 + (whole - 1) * tokens);
    let at = at.unwrap_or(first.0 + whole / 2 * tokens);
    let fits = (between.0..=between.1).contains(&at) && at.is_multiple_of(tokens);
    if fits { Ok(at) } else { Err(PlanRefusal::Cut { partition: partition.id, at, between, tokens }) }
}

/// The least id above all that the ring has.
pub(super) fn first_free(cluster: &Cluster) -> Result<u32, PlanRefusal> {
    let partitions = cluster.ring.partitions();
    let last = partitions.iter().map(|partition| partition.id.0).max().unwrap_or(0);
    last.checked_add(1)
        .ok_or(PlanRefusal::TooMany { partitions: partitions.len() + 1, partitions_max: PARTITIONS_MAX })
}

fn check_count(partitions: usize) -> Result<(), PlanRefusal> {
    let partitions_max = PARTITIONS_MAX;
    if partitions > partitions_max {
        Err(PlanRefusal::TooMany { partitions, partitions_max })
    } else {
        Ok(())
    }
}
