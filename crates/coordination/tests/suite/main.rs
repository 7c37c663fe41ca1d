//! What the coordination crate promises, on its implementations.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod documents;
mod embedded;
mod memory;
mod processes;
mod zookeeper;
