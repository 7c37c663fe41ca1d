//! The conformance suite of storage engines, and what only the log engine promises: crashes, damage, full disks.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod artifacts;
mod compaction;
mod concurrent;
mod conformance;
mod crash;
mod crowd;
mod damage;
mod fetching;
mod full;
mod increments;
mod ledger;
mod lies;
mod limits;
mod pace;
mod planted;
mod reopen;
mod restart;
mod setup;
mod watched;
mod world;
