//! What the bytes are (golden), that nothing is lost on the way (round trips), and that no input does harm (hostile).

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod allocations;
mod antientropy;
mod artifacts;
mod collection;
mod error_codes;
mod golden;
mod hostile;
mod orders;
mod records;
mod report;
mod resp_commands;
mod resp_replies;
mod round_trips;
mod samples;
mod strategies;
