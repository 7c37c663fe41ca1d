//! Why nothing is done, or what is.

use serde::{Deserialize, Serialize};

use super::policy::{Hours, Mode};
use crate::node::{LifeSign, NodeId, Zone};
use crate::plan::{self, Decision, Lost, NodeAt};
use crate::ring::PartitionId;
use crate::store::StoreName;

/// What is wrong with a node's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Implausible {
    /// By its own clock another time has passed than by the headmaster's.
    Clock {
        /// By its clock, in milliseconds.
        its_ms: u64,
        /// By the headmaster's.
        ours_ms: u64,
    },
    /// Its workers say that they ran for longer than they can.
    Ran {
        /// As it says, in thousandths of a processor.
        ran: u64,
        /// As they can.
        workers: u64,
    },
    /// An operation costs it so much more or less than others that it must have miscounted.
    Cost {
        /// In permille of what it costs the median of nodes.
        permille: u64,
    },
}

/// Why no standby takes the places of a node that is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum HeldBack {
    /// No member is a standby that is registered and holds nothing.
    NoStandby,
    /// An operator said so.
    Vetoed,
    /// The autopilot only observes.
    Observes,
    /// A store asks a single replica: what only the dead node holds would be given up.
    Store {
        /// The store.
        store: StoreName,
    },
    /// All members of a zone are away: more likely a switch or a hall than so many machines.
    Zone {
        /// The zone.
        zone: Zone,
    },
    /// Another node was replaced less than ten minutes ago.
    Recent {
        /// This many seconds are missing.
        seconds: u64,
    },
    /// These are hours in which the autopilot only observes.
    Quiet {
        /// The hours.
        hours: Hours,
    },
    /// Another node comes first: one is replaced at a time.
    Later {
        /// That one.
        node: NodeId,
    },
    /// A plan is carried out.
    Plan {
        /// Its number.
        plan: u64,
    },
    /// Something speaks for its being alive, or cannot be known.
    Alive {
        /// What.
        because: LifeSign,
    },
    /// No majority of members hears each other, so that the office may be on the wrong side.
    NoMajority,
    /// The planner refuses it.
    Wish {
        /// Why.
        because: plan::PlanRefusal,
    },
    /// The standby does not say how far it is.
    Deaf {
        /// The standby.
        node: NodeId,
    },
}

impl HeldBack {
    /// Its code.
    pub fn code(&self) -> &'static str {
        match self {
            HeldBack::NoStandby => "no-standby",
            HeldBack::Vetoed => "vetoed",
            HeldBack::Observes => "observes",
            HeldBack::Store { .. } => "store",
            HeldBack::Zone { .. } => "zone",
            HeldBack::Recent { .. } => "recent",
            HeldBack::Quiet { .. } => "quiet",
            HeldBack::Later { .. } => "later",
            HeldBack::Plan { .. } => "plan",
            HeldBack::Alive { .. } => "alive",
            HeldBack::NoMajority => "no-majority",
            HeldBack::Wish { .. } => "wish",
            HeldBack::Deaf { .. } => "deaf",
        }
    }
}

/// A member that is away, and what becomes of its places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    /// The node.
    pub node: NodeId,
    /// For how many seconds this headmaster has seen no sign of life.
    pub seconds: u64,
    /// After how many a standby takes its places.
    pub after_s: u64,
    /// Which one, if there is one.
    pub by: Option<NodeId>,
    /// Whether half of that time has passed.
    pub announced: bool,
    /// Why it is not done, if it is not.
    pub held: Option<HeldBack>,
}

impl Away {
    /// Whether the other says the same, but for figures that change all the time.
    pub fn is_like(&self, other: &Away) -> bool {
        let code = |away: &Away| away.held.as_ref().map(HeldBack::code);
        (self.node, self.by, self.announced, code(self))
            == (other.node, other.by, other.announced, code(other))
    }
}

/// What the autopilot says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum Says {
    /// It is off.
    Off,
    /// It has not seen enough yet.
    Gathers {
        /// This many seconds at least are missing.
        seconds: u64,
    },
    /// A plan is carried out, and nothing is decided meanwhile.
    PlanUnderWay {
        /// Its number.
        plan: u64,
    },
    /// Somebody created a plan lately and has not applied it: what it was computed from stays as it is for ten minutes.
    PlanWaits {
        /// Its number.
        plan: u64,
    },
    /// A member does not answer.
    NodeSilent {
        /// The node.
        node: NodeId,
        /// Why not.
        detail: String,
    },
    /// A node does not say what its workers do.
    NoFigures {
        /// The node.
        node: NodeId,
    },
    /// What a node says cannot be.
    NotBelieved {
        /// The node.
        node: NodeId,
        /// What.
        what: Implausible,
    },
    /// No node exceeds a limit.
    Balanced,
    /// The busiest node is above the mean by more than is allowed, and has little to do.
    Idle {
        /// The node.
        node: NodeId,
    },
    /// The busiest node is above the mean by more than is allowed, but noise could make it seem so: it is looked at for
    /// longer.
    Unsure {
        /// The node.
        node: NodeId,
    },
    /// A node is busy with what belongs to no partition: requests of clients that it passes on. No move changes that.
    Coordinates {
        /// The node.
        node: NodeId,
    },
    /// Nodes exceed limits, and nothing that was thought of may be done.
    NothingHelps {
        /// The busiest node.
        node: NodeId,
        /// The partition that costs it most.
        #[serde(default)]
        dearest: Option<PartitionId>,
    },
    /// A disk is fuller than it should be, and nothing that may be moved changes that.
    DiskFull {
        /// The node.
        node: NodeId,
    },
    /// All nodes are over their limit: the cluster needs more of them.
    AllFull,
    /// This would be done, if it were on.
    Would {
        /// What.
        decision: Box<Decision>,
    },
    /// It would be done, but these are hours in which it only observes.
    Quiet {
        /// The hours.
        hours: Hours,
        /// What would be done.
        decision: Box<Decision>,
    },
    /// It was decided to act.
    Acts {
        /// The plan.
        plan: u64,
    },
}

impl Says {
    /// Its code.
    pub fn code(&self) -> &'static str {
        match self {
            Says::Off => "off",
            Says::Gathers { .. } => "gathers",
            Says::PlanUnderWay { .. } => "plan-under-way",
            Says::PlanWaits { .. } => "plan-waits",
            Says::NodeSilent { .. } => "node-silent",
            Says::NoFigures { .. } => "no-figures",
            Says::NotBelieved { .. } => "not-believed",
            Says::Balanced => "balanced",
            Says::Idle { .. } => "idle",
            Says::Unsure { .. } => "unsure",
            Says::Coordinates { .. } => "coordinates",
            Says::NothingHelps { .. } => "nothing-helps",
            Says::DiskFull { .. } => "disk-full",
            Says::AllFull => "all-full",
            Says::Would { .. } => "would",
            Says::Quiet { .. } => "quiet",
            Says::Acts { .. } => "acts",
        }
    }

    /// The node that it is about, if it is about one.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Says::NodeSilent { node, .. }
            | Says::NoFigures { node }
            | Says::NotBelieved { node, .. }
            | Says::Idle { node }
            | Says::Unsure { node }
            | Says::Coordinates { node }
            | Says::DiskFull { node }
            | Says::NothingHelps { node, .. } => Some(*node),
            Says::Would { decision } | Says::Quiet { decision, .. } => Some(decision.node),
            _ => None,
        }
    }

    /// Whether the other says the same, but for figures that change all the time.
    pub fn is_like(&self, other: &Says) -> bool {
        let about = |says: &Says| match says {
            Says::PlanUnderWay { plan } | Says::PlanWaits { plan } | Says::Acts { plan } => {
                (Some(*plan), None)
            }
            Says::NothingHelps { dearest, .. } => (None, *dearest),
            _ => (None, None),
        };
        self.code() == other.code() && self.node() == other.node() && about(self) == about(other)
    }
}

/// What the autopilot thinks at present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// When that was, in milliseconds since 1970.
    pub at_ms: u64,
    /// In which mode.
    pub mode: Mode,
    /// Why the policy that is kept cannot be read, if it cannot: the last one that could goes on.
    pub policy_unread: Option<String>,
    /// What it says.
    pub says: Says,
    /// All nodes as they were seen; none where nothing was seen.
    pub seen: Vec<NodeAt>,
    /// The mean utilisation, in permille.
    pub mean: u64,
    /// How many candidates were thought of.
    pub thought_of: u64,
    /// Why they are not done.
    pub lost: Vec<Lost>,
    /// Members that are away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<Away>,
}
