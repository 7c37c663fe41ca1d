//! The control plane: what changes a cluster's agreed documents.
//!
//! Today it creates a cluster; the headmaster, its agents and its plans follow.
//!
//! **Architecture Invariant:** control can do only what the wire and the coordination service offer; it never
//! touches `node` or `storage`.

pub mod bootstrap;
pub mod headmaster;
