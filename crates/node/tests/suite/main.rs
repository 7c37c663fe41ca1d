//! What a node does with records, identities and commands, without a second node.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod door;
mod hints;
mod identity;
mod stores;
mod support;
