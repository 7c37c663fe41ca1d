//! The headmaster: the one process that changes a cluster's shared documents.
//!
//! Several processes may stand for the office; one holds it ([`election`]). It listens nowhere: it has a session with
//! the coordination service and a client. Without one, data flows and only changes wait (D6).
//!
//! ```text
//!   orders ──▶ answers, plans ──┐
//!                               ├──▶ one turn: what is due? ──▶ the next cluster document, by compare-and-set
//!   cluster document, facts ────┘
//! ```
//!
//! **Architecture Invariant:** nothing of the office lives in memory alone. A successor computes what to do next from
//! the documents and the facts, so that the end of a headmaster is the end of nothing.

pub mod asking;
mod conduct;
mod desk;
pub mod election;
pub mod lease;
mod members;
pub mod office;
mod push;
mod replacing;
pub mod reports;
pub mod tenure;
