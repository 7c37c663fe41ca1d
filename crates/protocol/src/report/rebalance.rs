//! How far a node is with partitions that move: what `protocol::rebalance::steps` decides by, and what is left behind.

use std::collections::{BTreeMap, BTreeSet};

use model::{Generation, NodeId, PartitionId, StoreName};
use serde::{Deserialize, Serialize};

use super::{Entered, NodeFacts};

/// How far a node is with what moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebalanceReport {
    /// It has adopted the document of this generation: that is durable at the node, and nothing that was admitted under an
    /// older one is still being carried out.
    pub adopted: Generation,
    /// Partitions that it enters.
    pub entered: Vec<PartitionEntered>,
    /// Records that it holds of partitions that are not its own.
    pub leftovers: Vec<Leftover>,
    /// Hints that it holds.
    pub hints: u64,
}

/// How far a node is with a partition that it enters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionEntered {
    /// Which.
    pub partition: PartitionId,
    /// It had adopted the document of this generation when it said so, and what follows was done since.
    pub generation: Generation,
    /// Whether it has brought in all that it must, for each store of which it becomes a replica.
    pub whole: bool,
    /// By store: the old replicas that it has merged with, each of which was whole and had adopted `generation`.
    pub merged: BTreeMap<StoreName, BTreeSet<NodeId>>,
    /// Records that it has brought in since its process started, each once.
    pub records: u64,
    /// Their bytes. What travels again to be compared is not among them.
    pub bytes: u64,
}

/// Records of a partition that is not the node's own, which it gives back and drops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Of which store.
    pub store: StoreName,
    /// Of which partition.
    pub partition: PartitionId,
    /// How many.
    pub records: u64,
}

impl PartitionEntered {
    /// Of what a step may depend on, and the records and bytes that have come.
    pub fn of(partition: PartitionId, entered: Entered, (records, bytes): (u64, u64)) -> Self {
        let Entered { generation, whole, merged, .. } = entered;
        PartitionEntered { partition, generation, whole, merged, records, bytes }
    }

    /// What a step may depend on.
    pub fn entered(&self, incarnation: u64) -> Entered {
        let PartitionEntered { generation, whole, ref merged, .. } = *self;
        Entered { incarnation, generation, whole, merged: merged.clone() }
    }
}

impl RebalanceReport {
    /// What a step may depend on, said under this incarnation.
    pub fn facts(&self, incarnation: u64) -> NodeFacts {
        let entered = self.entered.iter();
        NodeFacts {
            incarnation: Some(incarnation),
            adopted: Some((incarnation, self.adopted)),
            gone: false,
            entered: entered.map(|entered| (entered.partition, entered.entered(incarnation))).collect(),
        }
    }
}
