//! Adapters of elasticity as real processes: machines that are started once, and a cluster that grows and shrinks by verbs.

mod local;
mod page;
pub(crate) mod speaking;
pub(crate) mod tontine;
