//! The control plane: what observes a cluster and acts for its headmaster.
//!
//! It creates a cluster, and runs it: [`headmaster`] reads documents and asks nodes, and does what
//! `protocol::headmaster` decides. Agents follow.
//!
//! **Architecture Invariant:** control can do only what the wire and the coordination service offer; it never
//! touches `node` or `storage`. It decides nothing about the cluster document.

pub mod bootstrap;
pub mod elasticity;
pub mod election;
pub mod headmaster;
pub mod lease;
mod tenure;
