//! Work on the project itself: `tidy`, which holds the tree against its own rules, and `mutants`, which asks what no test would notice.
//!
//! It is a crate of the workspace so that it needs nothing but `cargo`; no crate of the product may depend on it.

pub mod mutants;
pub mod tidy;
