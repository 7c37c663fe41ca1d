//! Numbers of agreed documents.
//!
//! Rings, stores and plans say since when they are as they are, and the cluster document holds them all: so the number
//! is below all of these.
//!
//! **Architecture Invariant:** a generation says which document is newer, never when it was written.

use serde::{Deserialize, Serialize};

/// Number of an agreed document: it only grows, and the older one always loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);
