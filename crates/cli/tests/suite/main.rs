//! The shipped binary as users run it: real processes, real sockets, real disks.
//!
//! Every test has its own folder and ports, and ends each process that it started by its id, also when it
//! fails.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod absence;
mod adapters;
mod artifact;
mod autopilot;
mod balance;
mod closed;
mod cluster;
mod credentials;
mod detection;
mod disks;
mod elastic;
mod elastic_sources;
mod export;
mod feeds;
mod golden;
mod handoff;
mod http_door;
mod keys;
mod lifecycle;
mod load;
mod locks;
mod logs;
mod machines;
mod migrate;
mod moves;
mod observe;
mod passwords;
mod protocols;
mod push;
mod real_input;
mod refusals;
mod repair;
mod reshaping;
mod resp;
mod rust_guide;
mod serve;
#[cfg(feature = "sources")]
mod sources;
mod store_creation;
mod strangers;
mod traffic;
mod typed;
mod unwritten;
mod upgrade;
mod vocabulary;
mod voldemort;
