//! What the coordination crate promises, on its implementations.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod counted;
mod documents;
mod embedded;
mod ids;
mod memory;
mod migrate;
mod processes;
mod registrations;
mod zookeeper;
