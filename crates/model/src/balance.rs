//! The autopilot: what it may do, what it sees, what it decides, and why.
//!
//! Its *policy* is a document that an operator changes by order. What it decides is a plan, which keeps the [`Decision`](crate::plan::Decision);
//! that nothing is to be done is a [`Verdict`], one document that is rewritten. Reasons are data: a code and facts.
//!
//! Shares are permille, and loads thousandths of a processor: documents hold whole numbers.
//!
//! **Architecture Invariant:** nothing here decides (`protocol::rebalance::balancer` does).

mod policy;
mod verdict;

pub use policy::{Hours, Join, Mode, Policy, PolicyChange, SettingError, Settings, Turned};
pub use verdict::{Away, HeldBack, Implausible, Says, Verdict};
