//! The controller of managed clusters: it reads their documents, asks adapters, and does what
//! [`protocol::elasticity`] decides.
//!
//! ```text
//!   /elasticity/fleets/… ──▶ office: observe ──▶ decide ──▶ ask, act ──▶ publish, by compare-and-set
//!   adapters (child processes) ──┤                             └──▶ adapters
//!   sources of measures ─────────┘
//! ```
//!
//! It runs in its own process, `tontine elastic run`, whose end ends nothing. Of several, one is elected.
//!
//! Must never: decide anything, or act on a document that it has not read in this turn.

pub mod adapters;
mod ask;
pub mod office;
mod rpc;
mod samples;
mod sources;
pub mod tenure;
mod troubles;
