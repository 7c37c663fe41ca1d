//! Hash trees: whether two replicas of a partition hold the same, told by a few numbers (D8).
//!
//! ```text
//!   record ─► digest of key, vector, dots        16 bytes
//!   leaf   =  sum of the digests of its records  kept; a write adds new - old
//!   inner  =  sum of its leaves                  computed when somebody asks
//! ```
//!
//! A leaf covers the tokens that begin with the same bits, so trees of two depths, and parts of a split partition,
//! compare by adding. Sums do not care for order, and equal sums mean equal records but for a chance of 2⁻¹²⁸; they
//! are no protection against somebody who chooses keys in order to deceive.
//!
//! **Architecture Invariant:** a tree that may not be that of its records has no sum to give.

mod digest;
mod tree;

pub use digest::Digest;
pub use tree::{LEAF_RECORDS, Span, Tree, TreeDelta};
