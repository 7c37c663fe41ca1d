//! How replicas *decide*: everything that waits, counts, retries or chooses, as machines without I/O.
//!
//! A machine is started with what is known, is told what has happened (events, past participles), and says what
//! shall be done (actions, imperatives). It is handed the time and never asks for it; whoever drives it wakes it at
//! its `deadline()`. So the same decisions run in production, in simulation and in an exhaustive test.
//!
//! ```text
//!             events, now                    Fetch, Merge, Repair …
//!   driver ─────────────────▶ machine ─────────────────────────────▶ driver ──▶ network, disk
//!   (client, node, control)      └── deadline() ──▶ clock
//! ```
//!
//! **Architecture Invariant:** a machine never awaits and never performs an effect; a driver never decides.
//! `protocol` depends on `model` alone.

pub mod admission;
pub mod antientropy;
pub mod artifacts;
pub mod collection;
pub mod elasticity;
#[cfg(test)]
mod explore;
pub mod gossip;
pub mod handoff;
pub mod headmaster;
pub mod lateness;
pub mod pace;
pub mod pipeline;
#[cfg(test)]
mod planted;
pub mod quorum;
pub mod rebalance;
pub mod report;
