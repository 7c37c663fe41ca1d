//! Whose partitions of a golden ring will be: said before anything moves, by a separate document.
//!
//! A newcomer's partition is cut from another one first. Both halves keep their list, so no record is touched; then the
//! second half moves as any partition does. A headmaster that ends between the two has a successor that finds the cut in
//! the ring, and goes on.
//!
//! Must never: change a list.

use serde::{Deserialize, Serialize};

use super::refusal::PlanRefusal;
use super::reshape::{Cut, Reshape, Reshaped, first_free};
use crate::cluster::Cluster;
use crate::generation::Generation;
use crate::node::NodeId;
use crate::ring::{Partition, PartitionId, Ring};

/// A partition of a golden ring gets another owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerChange {
    /// Which partition.
    pub partition: PartitionId,
    /// Whose it is.
    pub from: NodeId,
    /// Whose it will be.
    pub to: NodeId,
}

/// What is cut, and whose partitions will be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// A partition that is cut in two, with one owner for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// Partitions that get another owner, in the order of the ring.
    pub owners: Vec<OwnerChange>,
}

impl Handover {
    /// A part of a partition for a node: from this token on.
    ///
    /// # Errors
    /// When the partition cannot be cut there.
    pub fn cut(
        cluster: &Cluster,
        (partition, at): (PartitionId, u64),
        (from, to): (NodeId, NodeId),
    ) -> Result<Handover, PlanRefusal> {
        Reshape::split(cluster, partition, Some(at))?;
        let second = PartitionId(first_free(cluster)?);
        let cut = Some(Cut { partition, at, second });
        Ok(Handover { cut, owners: vec![OwnerChange { partition: second, from, to }] })
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.cut.is_none() && self.owners.is_empty()
    }

    /// Whether the ring says it already.
    pub fn stands(&self, ring: &Ring) -> Reshaped {
        let cut = self.cut.as_ref().map(|cut| cut.stands(ring));
        let owned = |side: fn(&OwnerChange) -> NodeId| {
            let is_so = |change: &OwnerChange| {
                let known = ring.get(change.partition);
                // The second part has the owner of the first until it is cut off.
                let is_to_be_cut = cut == Some(Reshaped::Due) && self.cuts_off(change.partition);
                is_to_be_cut || known.is_some_and(|known| known.owner == Some(side(change)))
            };
            self.owners.iter().all(is_so)
        };
        match cut {
            None | Some(Reshaped::Done) if owned(|change| change.to) => Reshaped::Done,
            None | Some(Reshaped::Due) if owned(|change| change.from) => Reshaped::Due,
            _ => Reshaped::Changed,
        }
    }

    /// The document that says it.
    ///
    /// # Errors
    /// When a partition moves, or the document would have more than `bytes_max` bytes.
    pub fn apply(&self, cluster: &Cluster, bytes_max: usize) -> Result<Cluster, PlanRefusal> {
        let cut = match &self.cut {
            Some(cut) => Reshape::Cut { cuts: vec![cut.clone()] }.apply(cluster, usize::MAX)?,
            None => cluster.clone(),
        };
        let owned = owned(&cut, |partition| {
            let change = self.owners.iter().find(|change| change.partition == partition.id)?;
            Some(change.to)
        });
        let next = Cluster { generation: Generation(cluster.generation.0 + 1), ..owned };
        let (partitions, bytes) = (next.ring.partitions().len(), next.document_bytes());
        if bytes > bytes_max {
            return Err(PlanRefusal::TooLarge { partitions, bytes, bytes_max });
        }
        Ok(next)
    }

    /// The document by which partitions go back to their owners, but for those that have settled elsewhere; `None` where
    /// none does. A cut stays: both parts belong to one node then, and the next one that joins gets the second.
    pub fn taken_back(
        &self,
        cluster: &Cluster,
        has_settled: impl Fn(PartitionId) -> bool,
    ) -> Option<Cluster> {
        let back = owned(cluster, |partition| {
            let change = self.owners.iter().find(|change| change.partition == partition.id)?;
            let goes_back = partition.owner == Some(change.to) && !has_settled(partition.id);
            goes_back.then_some(change.from)
        });
        (back.ring != cluster.ring)
            .then(|| Cluster { generation: Generation(cluster.generation.0 + 1), ..back })
    }

    fn cuts_off(&self, partition: PartitionId) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.second == partition)
    }
}

/// The cluster, with other owners of some partitions.
fn owned(cluster: &Cluster, owner: impl Fn(&Partition) -> Option<NodeId>) -> Cluster {
    let of = |partition: &Partition| Partition {
        owner: owner(partition).or(partition.owner),
        ..partition.clone()
    };
    let partitions = cluster.ring.partitions().iter().map(of).collect();
    let ring = Ring::new(partitions).expect("only owners are others");
    Cluster { ring, ..cluster.clone() }
}
