//! What people read of what is data everywhere below: answers to orders, reasons of plans, and whom they wait for.
//!
//! Each says what happened, why, and which command helps. `docs/reference/errors.md` lists the codes.
//!
//! **Architecture Invariant:** a command is named here and nowhere below `cli`.

mod asked;
mod balance;
mod codes;
mod orders;
mod plans;
mod refusals;
mod stores;
mod users;

pub(crate) use asked::asked;
pub(crate) use balance::{
    away, decision, in_short as decision_in_short, lost as balance_lost, nodes as balance_nodes, policy,
    says, settings, verdict, vetoed,
};
pub(crate) use codes::remedy;
pub(crate) use orders::{done, refused, why};
pub(crate) use plans::{blocked, held, reason};
pub(crate) use refusals::wish_refused;

use model::NodeId;

/// Nodes in a list.
pub(crate) fn names(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}
