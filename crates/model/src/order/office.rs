//! The state of the office of headmaster, as a node reads it in the coordination service.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Given;
use crate::balance::{Policy, Verdict};
use crate::generation::Generation;
use crate::node::{Node, NodeId};
use crate::plan::PlanSummary;

/// Who holds the office.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which process on which machine.
    pub process: String,
    /// For how long it has not renewed its lease, in milliseconds, if that is long overdue.
    pub silent_ms: Option<u64>,
}

/// The state of the office.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Office {
    /// The address of the coordination service.
    pub service: String,
    /// Why its documents cannot be read, if they cannot; then nothing below is known.
    pub unread: Option<String>,
    /// Whether they are on their way to another service.
    pub is_moving: bool,
    /// The generation of the cluster document there; `None` where there is none.
    pub generation: Option<Generation>,
    /// Nodes that are registered and are no members.
    pub waiting: Vec<Node>,
    /// Nodes that were members and have left, and whose processes still run.
    #[serde(default)]
    pub left: Vec<Node>,
    /// Who holds the office; `None` when nobody does.
    pub headmaster: Option<Holder>,
    /// The oldest order without an answer.
    pub order: Option<Given>,
    /// The plan that is under way.
    pub plan: Option<PlanSummary>,
    /// What the autopilot may do, and what it says.
    #[serde(default)]
    pub balancing: Option<Balancing>,
    /// Nodes, of members and of those that wait, that run on a fleet's machines, with the fleet's name. Its controller lets them
    /// join and leave.
    #[serde(default)]
    pub of_fleets: BTreeMap<NodeId, String>,
}

/// What the autopilot may do, and what it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balancing {
    /// The policy; `None` where none is kept, which means *observe*.
    pub policy: Option<Policy>,
    /// What it said last, if it has said anything.
    pub verdict: Option<Verdict>,
}
