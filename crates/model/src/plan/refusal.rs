//! Why a wish cannot be fulfilled.

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, NumbersError};
use crate::node::{Node, NodeId, Weight};
use crate::ring::PartitionId;

/// Why a wish cannot be fulfilled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum PlanRefusal {
    /// The cluster has no such node.
    NodeUnknown {
        /// The node.
        node: NodeId,
    },
    /// The ring has no such partition.
    PartitionUnknown {
        /// The partition.
        partition: PartitionId,
    },
    /// A partition moves already: one plan at a time.
    Moves {
        /// The partition.
        partition: PartitionId,
    },
    /// A node that shall give up its place has none.
    NotHeld {
        /// The partition.
        partition: PartitionId,
        /// The node.
        node: NodeId,
    },
    /// A node that shall take a place has one already.
    HeldAlready {
        /// The partition.
        partition: PartitionId,
        /// The node.
        node: NodeId,
    },
    /// A node that gives away what it holds takes nothing new.
    TakesNothing {
        /// The node.
        node: NodeId,
        /// Whether it is called gone: then it is replaced.
        #[serde(default)]
        is_gone: bool,
    },
    /// Fewer nodes would be left than replicas are needed.
    TooFewNodes {
        /// Nodes that are left.
        left: usize,
        /// Replicas that are needed.
        needed: usize,
        /// Members that the wish does not let go, and that count as leaving all the same: of an earlier drain.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        leaving: Vec<NodeId>,
    },
    /// Replicas would lie in fewer zones than they can at present.
    TooFewZones {
        /// Zones then.
        left: usize,
        /// Zones at present.
        before: usize,
    },
    /// The document would be too large.
    TooLarge {
        /// Partitions that it would have.
        partitions: usize,
        /// Bytes that it would have, as far as it would be written.
        bytes: usize,
        /// Bytes that it may have.
        bytes_max: usize,
    },
    /// The ring would have too many partitions.
    TooMany {
        /// Partitions that it would have.
        partitions: usize,
        /// Partitions that it may have.
        partitions_max: usize,
    },
    /// A partition cannot be cut there.
    Cut {
        /// The partition.
        partition: PartitionId,
        /// Where.
        at: u64,
        /// The first and the last token at which it can be cut.
        between: (u64, u64),
        /// Tokens of a bucket: cuts are multiples of it.
        tokens: u64,
    },
    /// A partition is one bucket: it cannot be cut at all.
    Narrow {
        /// The partition.
        partition: PartitionId,
        /// Buckets of the cluster.
        buckets: u32,
    },
    /// Not every partition can be cut: one is a single bucket.
    NotDoubled {
        /// The partition.
        partition: PartitionId,
        /// Buckets of the cluster.
        buckets: u32,
    },
    /// Two partitions cannot become one: they are no neighbours.
    NoNeighbours {
        /// The first.
        partition: PartitionId,
        /// The second.
        other: PartitionId,
        /// The neighbours of the first.
        neighbours: Vec<PartitionId>,
    },
    /// The numbers of a store cannot change, or do and nothing else changes meanwhile.
    Numbers(NumbersError),
    /// The ring is a golden one, on which that is not done.
    Golden {
        /// What was wished for, by its kind.
        wish: String,
    },
    /// The ring is no golden one, on which alone nodes join by a cut.
    NotGolden,
    /// The node has a partition of the golden ring.
    HasPartition {
        /// The node.
        node: NodeId,
        /// Its partition.
        partition: PartitionId,
    },
    /// A golden ring knows neither weights nor zones, and the node has another one than the others.
    Uneven {
        /// The node.
        node: NodeId,
        /// Its weight.
        weight: u32,
        /// Its zone.
        zone: String,
        /// The zone of the others.
        zone_wanted: String,
    },
    /// Nobody has measured which partition has most load.
    NoFigures {
        /// Whether the autopilot is off, so that nobody measures.
        is_off: bool,
        /// After how many seconds there will be figures, if anybody can say so.
        seconds: Option<u64>,
    },
    /// No cut is known that halves the load of the partition with most.
    NotHalved {
        /// The partition.
        partition: PartitionId,
    },
    /// Two partitions cannot become one before they lie on the same nodes.
    OtherLists {
        /// The first.
        partition: PartitionId,
        /// The second.
        other: PartitionId,
    },
}

impl From<NumbersError> for PlanRefusal {
    fn from(error: NumbersError) -> PlanRefusal {
        PlanRefusal::Numbers(error)
    }
}

impl Cluster {
    /// Why a node gets no partition of this golden ring: its weight or zone is another than that of the others. Nothing on
    /// any other ring.
    pub fn uneven_on_golden(&self, node: &Node) -> Option<PlanRefusal> {
        let mut owners = self.ring.owners().into_iter().filter(|owner| *owner != node.id);
        let zone_wanted = owners.find_map(|owner| self.node(owner)).map(|owner| &owner.zone)?;
        (node.weight != Weight::default() || node.zone != *zone_wanted).then(|| PlanRefusal::Uneven {
            node: node.id,
            weight: node.weight.get(),
            zone: node.zone.0.clone(),
            zone_wanted: zone_wanted.0.clone(),
        })
    }
}
