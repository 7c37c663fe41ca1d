//! The collection epoch: how far the cluster has forgotten.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number that all nodes of a cluster share and that only grows: with each round that forgets deletions.
///
/// Whatever replicas hand each other carries the epoch at which it was read; what was read before a round is not
/// accepted after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
