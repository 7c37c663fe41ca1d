//! Deletes that stay deleted, at this node: what it accepts, and its part in collection rounds.
//!
//! [`Epochs`] stands before every merge; `answers` carries out the steps of a round that others start; `rounds`
//! starts them, and `walk` finds what they would not hear of. What is decided, and why it holds, is in `protocol::collection` and `docs/design/healing.md`.
//!
//! **Architecture Invariant:** contents of other nodes reach a record or a hint only past [`Epochs::guard_contents`].

mod answers;
mod epochs;
mod rounds;
mod walk;

pub(crate) use answers::Answers;
pub use epochs::{Admitted, Epochs};
pub(crate) use rounds::Service;
pub use rounds::{Collection, CollectionOptions, INTERVAL};
