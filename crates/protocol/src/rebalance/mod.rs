//! Changing who owns what, while it is used.
//!
//! A move is no procedure that somebody drives. The ring document says how far each partition is; nodes act on it by
//! themselves and say how far they are ([`Facts`](crate::report::Facts)); [`steps`] says from document and facts which
//! document may follow. [`planner`] says which moves fulfil a wish. Whoever holds the headmaster's office publishes that, by
//! compare-and-set: it keeps no journal, and two of them cannot do harm.
//!
//! The argument, and what was rejected: `docs/design/rebalance.md`.
//!
//! **Architecture Invariant:** nobody else decides that a partition takes its next step.

pub mod balancer;
pub mod entering;
pub mod lengths;
pub mod lint;
pub mod planner;
pub mod replay;
pub mod steps;
