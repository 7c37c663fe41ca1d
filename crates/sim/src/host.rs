//! A machine on the simulated network, by its number.
//!
//! It has its own room because both the network and what is known of trouble on it name hosts.
//!
//! Must never: know which of them are nodes; rooms above number theirs as they like.

/// One machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host(pub u32);
