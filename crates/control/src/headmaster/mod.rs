//! The headmaster: the one process that changes a cluster's shared documents.
//!
//! Several processes may stand for the office; one holds it ([`crate::election`]). It listens nowhere: it has a session with
//! the coordination service and a client. Without one, data flows and only changes wait (D6).
//!
//! ```text
//!   documents ──▶ office: observe ──▶ protocol::headmaster: decide ──▶ office: act ──▶ documents, by compare-and-set
//!   nodes ──────▶ reports ───┘
//! ```
//!
//! **Architecture Invariant:** nothing of the office lives in memory alone. A successor computes what to do next from
//! the documents and the facts, so that the end of a headmaster is the end of nothing.

pub mod asking;
pub mod office;
pub mod reports;
mod share;
pub mod tenure;
