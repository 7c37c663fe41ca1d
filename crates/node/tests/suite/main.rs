//! What a node does with records, identities and commands, without a second node.

mod door;
mod hints;
mod identity;
mod stores;
mod support;
