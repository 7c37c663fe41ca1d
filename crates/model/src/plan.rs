//! Plans: what shall become of the ring, why, and how far that is.
//!
//! A plan never changes once it is created. What changes is its state beside it, which only a headmaster writes;
//! a plan without one has only been created. Whether a partition has moved is said by the ring alone: the state tells
//! people.
//!
//! Reasons are data: a code and facts. What a person reads is made where the person is.
//!
//! **Architecture Invariant:** nothing here chooses what moves (`protocol::rebalance::planner` does), nor when a step is
//! due (`protocol::rebalance::steps`).

mod decision;
mod handover;
mod refusal;
mod reshape;
mod state;
mod waiting;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::generation::Generation;
use crate::node::NodeId;
use crate::ring::{Partition, PartitionId};
use crate::store::{Consistency, StoreName};

pub use decision::{Act, Came, CameOf, CutAt, Decision, Excess, Lost, LostBecause, NodeAt, Predicted, Rule};
pub use handover::{Handover, OwnerChange};
pub use refusal::PlanRefusal;
pub use reshape::{Cut, Reshape, Reshaped};
pub use state::{Phase, PlanHeld, PlanPage, PlanState, PlanSummary, Planned, Progress, Reason};
pub use waiting::{Blocked, Waiting};

/// What shall become of the ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Wish {
    /// Each serving node holds its share, by weight.
    Spread,
    /// These nodes hold nothing any more.
    Drain {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// A node takes the places of another one.
    Replace {
        /// The one that gives up its places.
        node: NodeId,
        /// The one that takes them.
        by: NodeId,
    },
    /// A node takes the place of another one in some partitions.
    Move {
        /// Which partitions.
        partitions: Vec<PartitionId>,
        /// The one that gives up its place.
        from: NodeId,
        /// The one that takes it.
        to: NodeId,
    },
    /// A partition is cut in two.
    Split {
        /// Which.
        partition: PartitionId,
        /// The first token of its second part; `None` cuts it in the middle.
        at: Option<u64>,
    },
    /// Two neighbours become one partition.
    Merge {
        /// One.
        partition: PartitionId,
        /// The other.
        other: PartitionId,
    },
    /// A node that has no partition of a golden ring gets one.
    Join {
        /// Which node.
        node: NodeId,
        /// What is cut for it.
        cut: JoinCut,
    },
    /// Every partition is cut in the middle.
    Double,
    /// A store gets other numbers of replicas, and of those that must answer.
    Numbers {
        /// The store.
        store: String,
        /// The next N, R and W.
        numbers: Consistency,
    },
    /// Partitions lie as load wants it: the autopilot wishes that.
    Balance {
        /// Where to.
        placed: Vec<Placed>,
    },
}

/// What is cut for a node that joins a golden ring. A partition that is left over from another cut is given to it uncut,
/// unless it is said where to cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cut", rename_all = "kebab-case")]
pub enum JoinCut {
    /// The widest partition, by the golden ratio.
    #[default]
    Widest,
    /// The one with most load, where that halves: a headmaster with figures makes [`JoinCut::At`] of it.
    Hottest,
    /// This one, there.
    At {
        /// Which partition.
        partition: PartitionId,
        /// The first token of the part that the node gets.
        at: u64,
    },
}

/// The replicas of a partition, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The partition.
    pub partition: PartitionId,
    /// Its replicas, without fallbacks.
    pub replicas: Vec<NodeId>,
}

/// What a plan may do without being asked again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consent {
    /// The replicas of a partition may lie in fewer zones than they could before.
    pub fewer_zones: bool,
    /// Gets of a store may miss acknowledged writes, where they could not before.
    pub weaker: bool,
}

/// A partition gets another list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Which.
    pub partition: PartitionId,
    /// Its list at present.
    pub from: Vec<NodeId>,
    /// Its next list.
    pub to: Vec<NodeId>,
    /// Nodes that must bring it in; none when only the order or the fallbacks change.
    pub entering: Vec<NodeId>,
}

/// A store gets other numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renumber {
    /// Which.
    pub store: StoreName,
    /// Its numbers at present.
    pub from: Consistency,
    /// Its next numbers.
    pub to: Consistency,
    /// Partitions of the ring: all of them take part.
    pub partitions: usize,
    /// Copies of partitions that are brought in somewhere.
    pub copies: usize,
}

impl Renumber {
    /// The nodes that bring a partition's part of the store in.
    pub fn entering<'a>(&self, partition: &'a Partition) -> &'a [NodeId] {
        let (from, to) = (usize::from(self.from.replicas), usize::from(self.to.replicas));
        partition.nodes.get(from..to.min(partition.nodes.len())).unwrap_or_default()
    }
}

/// What a plan changes: one of four.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PlanChange {
    /// Partitions get other lists.
    Moves {
        /// In the order of the ring; none when there is nothing to do.
        moves: Vec<Move>,
    },
    /// Partitions get other bounds.
    Reshape {
        /// What must have settled before: two that become one must lie on the same nodes.
        moves: Vec<Move>,
        /// What becomes of bounds then.
        reshape: Reshape,
    },
    /// A store gets other numbers.
    Numbers(Renumber),
    /// Partitions of a golden ring get other owners.
    Golden {
        /// What is said before anything moves: whose each partition will be, and what is cut for that.
        handover: Handover,
        /// The partitions that get other lists then.
        moves: Vec<Move>,
        /// Partitions that become one when all that has settled, each with the one behind it, in this order.
        joins: Vec<(PartitionId, PartitionId)>,
    },
}

impl PlanChange {
    /// The partitions that get other lists.
    pub fn moves(&self) -> &[Move] {
        match self {
            PlanChange::Moves { moves }
            | PlanChange::Reshape { moves, .. }
            | PlanChange::Golden { moves, .. } => moves,
            PlanChange::Numbers(_) => &[],
        }
    }

    /// What becomes of bounds.
    pub fn reshape(&self) -> Option<&Reshape> {
        if let PlanChange::Reshape { reshape, .. } = self { Some(reshape) } else { None }
    }

    /// The store that gets other numbers.
    pub fn numbers(&self) -> Option<&Renumber> {
        if let PlanChange::Numbers(numbers) = self { Some(numbers) } else { None }
    }

    /// The document from which its moves begin: on a golden ring partitions have been cut by then.
    pub fn before_moves<'a>(&self, cluster: &'a Cluster) -> Cow<'a, Cluster> {
        match self {
            PlanChange::Golden { handover, .. } if handover.stands(&cluster.ring) == Reshaped::Due => {
                handover.apply(cluster, usize::MAX).map_or(Cow::Borrowed(cluster), Cow::Owned)
            }
            _ => Cow::Borrowed(cluster),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        match self {
            PlanChange::Moves { moves } => moves.is_empty(),
            PlanChange::Golden { handover, moves, joins } => {
                handover.is_empty() && moves.is_empty() && joins.is_empty()
            }
            PlanChange::Reshape { .. } | PlanChange::Numbers(_) => false,
        }
    }

    /// How many copies of partitions are brought in somewhere.
    pub fn copies(&self) -> usize {
        match self {
            PlanChange::Numbers(numbers) => numbers.copies,
            _ => self.moves().iter().map(|one| one.entering.len()).sum(),
        }
    }

    /// How many partitions it is about: those that move, or all of them when a store gets other numbers.
    pub fn partitions(&self) -> usize {
        match self {
            PlanChange::Numbers(numbers) => numbers.partitions,
            _ => self.moves().len(),
        }
    }

    /// The copies that are brought in somewhere, by the ring as it is.
    pub fn entering(&self, cluster: &Cluster) -> Vec<(NodeId, PartitionId)> {
        match self {
            PlanChange::Numbers(numbers) => {
                let partitions = cluster.ring.partitions().iter();
                let entering = |one| numbers.entering(one).iter().map(|&node| (node, one.id));
                partitions.flat_map(entering).collect()
            }
            _ => {
                let moves = self.moves().iter();
                moves.flat_map(|one| one.entering.iter().map(|&node| (node, one.partition))).collect()
            }
        }
    }
}

/// An amount of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Records.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
}

/// How fast a plan was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPace {
    /// Its number.
    pub plan: u64,
    /// How much its busiest node brought in within a second, in bytes: records, and buckets of stores, counted like bytes.
    pub cost_per_second: u64,
}

/// What shall change, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDocument {
    /// The order by which it was created.
    pub order: u64,
    /// Who gave that order.
    pub by: String,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// What is wished for.
    pub wish: Wish,
    /// What it may do without being asked again.
    pub consent: Consent,
    /// The document from which it was computed.
    pub generation: Generation,
    /// What it changes.
    pub change: PlanChange,
    /// Places of each node as a replica: at present, and then.
    pub places: BTreeMap<NodeId, (usize, usize)>,
    /// About how much is brought in, by what the nodes hold; `None` when they did not say.
    pub estimate: Option<Size>,
    /// Buckets of stores that are brought in somewhere, full or empty.
    pub units: u64,
    /// How fast this cluster carried out the last plan that tells; `None` when it has carried out none like this one.
    pub pace: Option<PlanPace>,
    /// Steps that cannot be taken while nodes that are away stay away.
    pub blocked: Vec<Blocked>,
    /// Why the autopilot made it; `None` when somebody ordered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Box<Decision>>,
}

impl PlanDocument {
    /// How many bytes it has as a document.
    pub fn bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(usize::MAX, |text| text.len())
    }
}
