//! Deletes that stay deleted: this node's part in collection rounds.
//!
//! [`crate::epochs`] comes before every merge; `answers` carries out the steps of a round that others start; `rounds`
//! starts them, and `walk` finds what they would not learn of. What is decided, and why it holds, is in
//! `protocol::collection` and `docs/design/healing.md`.
//!
//! **Architecture Invariant:** contents of other nodes reach a record or a hint only past [`crate::epochs::Epochs::guard_contents`].

mod answers;
mod rounds;
mod walk;

pub(crate) use answers::Answers;
pub(crate) use rounds::Service;
pub use rounds::{Collection, CollectionOptions, INTERVAL};
