//! Benchmarks: workloads, a driver that measures honestly, and the peers to measure against.
//!
//! ```text
//! generators ──► workload ──► driver ──► target (RESP, native) ──► a server: ours or a peer
//!                               │ samples processes (CPU, memory of every server and of itself)
//!                               ▼
//!                             report (text, JSON, comparison, Markdown)
//! ```
//!
//! Everything that is compared is compared by the same client code, in the same run, on the same machine, and
//! with CPU time per operation beside throughput: on a shared machine the former is the robust figure.
//! **Never** assert a time in a test: figures are for reading.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod compare;
pub mod driver;
pub mod generators;
pub mod peers;
pub mod processes;
pub mod reach;
pub mod report;
pub mod scenarios;
pub mod target;
pub mod workload;
