//! The control plane: what changes a cluster's agreed documents.
//!
//! It creates a cluster, and runs it: the [`headmaster`] carries out [`orders`] and [`plans`]. Agents follow.
//!
//! **Architecture Invariant:** control can do only what the wire and the coordination service offer; it never
//! touches `node` or `storage`.

pub mod bootstrap;
pub mod headmaster;
pub mod orders;
pub mod plans;
