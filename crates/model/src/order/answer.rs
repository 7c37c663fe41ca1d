//! What came of an order.

use serde::{Deserialize, Serialize};

use super::OrderRefusal;
use crate::access::UserName;
use crate::balance::Policy;
use crate::generation::Generation;
use crate::node::{NodeId, Role, Weight};
use crate::store::{Consistency, StoreName};

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum OrderOutcome {
    /// It was carried out. A plan that was applied has only begun.
    Done {
        /// What was done.
        done: Done,
        /// The plan that it was about.
        plan: Option<u64>,
        /// The cluster document by which that is so.
        generation: Generation,
    },
    /// Nothing was changed.
    Refused {
        /// Why not.
        refusal: OrderRefusal,
        /// What it was refused for passes by itself: after this many milliseconds it may be given again.
        again_after_ms: Option<u64>,
    },
}

impl OrderOutcome {
    /// Whether it was carried out.
    pub fn is_done(&self) -> bool {
        matches!(self, OrderOutcome::Done { .. })
    }

    /// The plan that it was about, if it was carried out.
    pub fn plan(&self) -> Option<u64> {
        if let OrderOutcome::Done { plan, .. } = self { *plan } else { None }
    }

    /// Why it was refused, if it was.
    pub fn refusal(&self) -> Option<&OrderRefusal> {
        if let OrderOutcome::Refused { refusal, .. } = self { Some(refusal) } else { None }
    }
}

impl From<OrderRefusal> for OrderOutcome {
    fn from(refusal: OrderRefusal) -> OrderOutcome {
        OrderOutcome::Refused { refusal, again_after_ms: None }
    }
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum Done {
    /// A plan was created.
    PlanCreated,
    /// There is nothing to move, so no plan was created.
    NothingToMove,
    /// A plan is being carried out.
    PlanBegun {
        /// Partitions that get other lists.
        moves: usize,
        /// Partitions that are cut in two.
        cuts: usize,
        /// Whether two partitions become one.
        joins: bool,
        /// The store that gets other numbers, and which.
        numbers: Option<(StoreName, Consistency)>,
    },
    /// A plan is being aborted: what has not settled goes back.
    PlanAborting,
    /// A plan that had not begun was ended.
    PlanAborted,
    /// No partition of the plan takes a step.
    PlanPaused,
    /// They take steps again.
    PlanResumed,
    /// The store has these numbers already.
    NumbersStand,
    /// The node is a member now, and holds no data.
    NodeAdmitted {
        /// The node.
        node: NodeId,
    },
    /// The node is a member already.
    NodeIsMember {
        /// The node.
        node: NodeId,
    },
    /// The node has no data to give, and leaves when it holds nothing at all.
    NodeLeaves {
        /// The node.
        node: NodeId,
    },
    /// The node is gone, and was a replica of no partition.
    NodeGone {
        /// The node.
        node: NodeId,
        /// Records that it was known to hold, of which other nodes may lack some: these are given up.
        records: u64,
    },
    /// The node is no member any more.
    NodeRemoved {
        /// The node.
        node: NodeId,
    },
    /// The node has this weight.
    NodeWeighs {
        /// The node.
        node: NodeId,
        /// Its weight.
        weight: Weight,
    },
    /// The node has this role.
    NodeCast {
        /// The node.
        node: NodeId,
        /// Its role.
        role: Role,
    },
    /// The cluster document says where the node is.
    NodeReaddressed {
        /// The node.
        node: NodeId,
    },
    /// The store is there.
    StoreCreated {
        /// The store.
        store: StoreName,
    },
    /// The autopilot follows this policy.
    PolicyStands {
        /// The policy.
        policy: Box<Policy>,
    },
    /// The read-only store lists and serves what was asked for.
    ArtifactsChanged {
        /// The store.
        store: StoreName,
    },
    /// The user is as was asked for.
    UserChanged {
        /// The user.
        user: UserName,
    },
}
