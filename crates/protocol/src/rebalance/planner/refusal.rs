//! Why a wish cannot be fulfilled.

use std::fmt;

use model::cluster::NumbersError;
use model::{NodeId, PartitionId};

/// Why a wish cannot be fulfilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
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
    },
    /// Fewer nodes would be left than replicas are needed.
    TooFewNodes {
        /// Nodes that are left.
        left: usize,
        /// Replicas that are needed.
        needed: usize,
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
    /// Two partitions cannot become one before they lie on the same nodes.
    OtherLists {
        /// The first.
        partition: PartitionId,
        /// The second.
        other: PartitionId,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NodeUnknown { node } => write!(f, "the cluster has no node {node}"),
            Refusal::PartitionUnknown { partition } => write!(f, "the ring has no partition {partition}"),
            Refusal::Moves { partition } => {
                write!(
                    f,
                    "partition {partition} is still moving: wait until it has settled, or abort its plan"
                )
            }
            Refusal::Numbers(error) => write!(f, "{error}{}", advice(error)),
            Refusal::NotHeld { partition, node } => {
                write!(f, "{node} is no replica of partition {partition}")
            }
            Refusal::HeldAlready { partition, node } => {
                write!(f, "{node} is a replica of partition {partition} already")
            }
            Refusal::TakesNothing { node } => write!(f, "{node} is leaving: it takes no new data"),
            Refusal::TooFewNodes { left, needed } => {
                write!(f, "{left} nodes would be left to hold data, and {needed} replicas are needed")
            }
            Refusal::TooFewZones { left, before } => write!(
                f,
                "replicas would lie in {left} zones, and they can lie in {before} at present: accept fewer zones to go \
                 on"
            ),
            Refusal::TooLarge { partitions, bytes, bytes_max } => write!(
                f,
                "a cluster document with {partitions} partitions has {bytes} bytes, over the limit of {bytes_max}"
            ),
            Refusal::TooMany { partitions, partitions_max } => {
                write!(f, "the ring would have {partitions} partitions, over the limit of {partitions_max}")
            }
            Refusal::Cut { partition, at, between: (first, last), tokens } => write!(
                f,
                "partition {partition} cannot be cut at token {at}: it can be cut from {first} to {last}, at multiples \
                 of {tokens}, where buckets begin; leave out the token to cut it in the middle"
            ),
            Refusal::Narrow { partition, buckets } => write!(
                f,
                "partition {partition} cannot be cut: it is one bucket, and the cluster was made with {buckets} buckets, \
                 so it has at most {buckets} partitions; a new cluster may have more: export the data and load it there"
            ),
            Refusal::NotDoubled { partition, buckets } => write!(
                f,
                "not every partition can be cut: {partition} is one bucket of the {buckets} that the cluster was made \
                 with; cut those that are wider with `tontine plan create split`"
            ),
            Refusal::NoNeighbours { partition, other, neighbours } => {
                write!(f, "partitions {partition} and {other} are no neighbours: ")?;
                match &neighbours[..] {
                    [] => write!(f, "{partition} is the only partition"),
                    [one] => write!(f, "{partition} can be merged with {one}"),
                    all => {
                        let all: Vec<String> = all.iter().map(PartitionId::to_string).collect();
                        write!(f, "{partition} can be merged with {}", all.join(" or "))
                    }
                }
            }
            Refusal::OtherLists { partition, other } => write!(
                f,
                "partitions {partition} and {other} lie on different nodes; bring them together with a new plan: \
                 `tontine plan create merge {partition} {other}`"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<NumbersError> for Refusal {
    fn from(error: NumbersError) -> Refusal {
        Refusal::Numbers(error)
    }
}

/// What may be done when the numbers of a store cannot change.
fn advice(error: &NumbersError) -> &'static str {
    match error {
        NumbersError::Zones { .. } => ": move partitions first, or accept it with --accept-fewer-zones",
        NumbersError::Weaker { .. } => ": accept it with --accept-weaker",
        NumbersError::Nodes { .. } | NumbersError::Listed { .. } => {
            ": add nodes first, and give them data with `tontine plan create spread`"
        }
        NumbersError::Changes { .. } | NumbersError::Moves { .. } => {
            ": wait until it has settled, or abort its plan"
        }
        NumbersError::NoStore { .. } => "; list them with `tontine store list`",
        NumbersError::Same { .. } | NumbersError::Store(_) => "",
    }
}
