//! The control plane over the coordination service in memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod changes;
mod election;
mod headmaster;
mod orders;
mod played;
mod push;
mod renumbering;
mod reshaping;
