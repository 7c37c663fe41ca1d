//! What a plan of the autopilot keeps: what was seen, what is predicted, and what came of it.
//!
//! Plans keep it and the autopilot's verdicts show it, so it lies with plans, which know nothing of verdicts.
//!
//! **Architecture Invariant:** nothing here decides: `protocol::rebalance::balancer` does.

use serde::{Deserialize, Serialize};

use crate::node::NodeId;
use crate::ring::PartitionId;

/// By which rule it decides what moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Utilisation becomes even, by acts of which each gains more than it costs. Documents that name no rule mean this one.
    #[default]
    Even,
    /// A node above one threshold gives a random partition to a node below another one.
    Thresholds,
    /// The busiest node gives its dearest partition to the idlest, at each look. Only simulation and replay know it.
    Greedy,
    /// As [`Rule::Even`], but no list gets another order. Only simulation and replay know it.
    NoReordering,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 4] = [Rule::Even, Rule::Thresholds, Rule::Greedy, Rule::NoReordering];

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Rule::Even => "even",
            Rule::Thresholds => "thresholds",
            Rule::Greedy => "greedy",
            Rule::NoReordering => "no-reordering",
        }
    }

    /// The rule with this word.
    pub fn named(word: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.word() == word)
    }

    /// Whether a cluster may follow it. The others are there to be compared with.
    pub fn may_be_set(self) -> bool {
        matches!(self, Rule::Even | Rule::Thresholds)
    }
}

/// How a node stood when something was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAt {
    /// The node.
    pub node: NodeId,
    /// How old its word was, in milliseconds.
    pub age_ms: u64,
    /// What it can carry, in thousandths of a processor.
    pub capacity: u64,
    /// What its partitions took of that.
    pub load: u64,
    /// What requests of clients took that it only passed on, and work that belongs to no partition.
    pub beside: u64,
    /// The load, in permille of the capacity.
    pub utilisation: u64,
    /// The standard deviation of the utilisation's mean, in permille of the capacity.
    pub deviation: u64,
    /// How full its disk is, in permille, where that is known.
    pub disk: Option<u64>,
}

/// What a node exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Excess {
    /// The mean of all, by more than is allowed.
    Mean,
    /// What a node may use at most.
    Most,
    /// How full a disk may be.
    Disk,
    /// Nothing: it is new, and holds less than its share.
    Joins,
    /// Nothing: it is dead, and a standby takes its places.
    Dead,
}

/// What may be done with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Act {
    /// Two nodes trade their places in its list.
    Reorder {
        /// The partition.
        partition: PartitionId,
        /// The node that is relieved.
        from: NodeId,
        /// The other one.
        to: NodeId,
    },
    /// A copy goes to another node.
    Copy {
        /// The partition.
        partition: PartitionId,
        /// The node that gives its place.
        from: NodeId,
        /// The node that takes it.
        to: NodeId,
    },
}

impl Act {
    /// The partition.
    pub fn partition(&self) -> PartitionId {
        let (Act::Reorder { partition, .. } | Act::Copy { partition, .. }) = *self;
        partition
    }
}

/// Why something that was thought of is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LostBecause {
    /// It makes nothing better.
    NoGain,
    /// What it gains is within three deviations of the noise.
    Noise,
    /// Copying costs more than it gains while it stays.
    Copying,
    /// The target would be where the source was.
    TargetAsBusy,
    /// The partition was moved or reordered lately.
    Rests,
    /// Its replicas would lie in fewer zones.
    Zones,
    /// The target's disk is full.
    Disk,
    /// The batch is full: it may come with the next one.
    Later,
}

/// How many candidates were not taken for one reason, and one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Why.
    pub because: LostBecause,
    /// How many.
    pub count: u64,
    /// The one that would have gained most.
    pub example: Act,
}

/// What is predicted of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// The highest utilisation then, in permille.
    pub largest: u64,
    /// The same in permille of the mean.
    pub largest_over_mean: u64,
    /// By how much the sum of capacity times utilisation squared falls, in thousandths of a processor.
    pub gain: u64,
    /// Bytes that are copied, at most.
    pub bytes: u64,
    /// About how long copying takes, in seconds.
    pub seconds: u64,
}

/// Why a plan of the autopilot was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// By which rule it was decided.
    #[serde(default)]
    pub policy: Rule,
    /// The node that is relieved first.
    pub node: NodeId,
    /// What it exceeds.
    pub exceeds: Excess,
    /// All nodes as they were seen.
    pub seen: Vec<NodeAt>,
    /// The mean utilisation, in permille.
    pub mean: u64,
    /// The highest one.
    pub largest: u64,
    /// Over how many milliseconds.
    pub window_ms: u64,
    /// What is done.
    pub acts: u64,
    /// Where a partition is cut in two, if one is: that is all that is done then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<CutAt>,
    /// Of these, how many copy nothing.
    pub reorders: u64,
    /// How many candidates were thought of.
    pub thought_of: u64,
    /// Why the others are not done.
    pub lost: Vec<Lost>,
    /// What is predicted.
    pub predicted: Predicted,
}

/// Where a partition is cut in two, so that one of them can go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutAt {
    /// The partition.
    pub partition: PartitionId,
    /// The first token of the second part.
    pub at: u64,
    /// How much of its work is for the first part, in permille.
    pub permille: u32,
    /// What one of them allows then.
    pub then: Act,
}

/// What came of it, a minute after it settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CameOf {
    /// When it was looked at, in milliseconds since 1970.
    pub at_ms: u64,
    /// Compared with what was predicted.
    pub came: Came,
    /// The highest utilisation, in permille; 0 where nobody could say.
    pub largest: u64,
    /// The same in permille of the mean.
    pub largest_over_mean: u64,
}

/// How it came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Came {
    /// As was predicted, or better.
    AsPredicted,
    /// Better than before, and not as was predicted.
    Less,
    /// No better than before.
    Worse,
    /// Nobody could say: load or nodes were others by then, or nodes were silent.
    Unknown,
}
