//! Why a node did not do its part.

use model::{Generation, NodeId};
use smallvec::SmallVec;
use std::fmt;

/// Why a node did not do its part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaError {
    /// The request never left for the node: no connection, or its queue is full.
    Unreachable,
    /// The request may have arrived, the reply did not: the connection broke, or time ran out.
    Lost,
    /// The node has too much to do.
    Overloaded,
    /// The node is shutting down or has not finished starting.
    Unavailable,
    /// The node's disk is full: it takes no writes.
    DiskFull,
    /// The node's disk failed; a write may or may not survive there.
    StorageFailed,
    /// The node's copy is damaged: its checksum does not match.
    Corrupt,
    /// The node's ring is newer than the request's.
    StaleGeneration {
        /// Generation that the node is at.
        generation: Generation,
    },
    /// The node's ring is older than the key's place on the request's.
    Behind,
    /// The node does not know the store.
    UnknownStore,
    /// The caller has no right to it.
    Forbidden,
    /// The key has as many siblings as the store allows.
    TooManySiblings,
    /// The value is longer than the store allows.
    ValueTooLong,
    /// The key does not fit the pattern of the store's keys.
    KeyUnfit,
    /// The key's whole record is longer than the node's storage holds.
    RecordTooLong,
    /// The node does not hold the artifact that the request names, or the part of it that has the key.
    NotHere,
    /// What it would answer is more than the coordinator takes in.
    AnswerTooLong,
}

/// The errors behind an outcome, by node in order of preference.
pub type Errors = SmallVec<[(NodeId, ReplicaError); 3]>;

impl ReplicaError {
    /// Whether the node has certainly not applied the request and never will.
    ///
    /// This holds only if a node answers each request that it received once: a node that received a frame twice
    /// must not apply one copy and refuse the other.
    pub fn is_definite(self) -> bool {
        match self {
            ReplicaError::Lost | ReplicaError::StorageFailed => false,
            ReplicaError::Unreachable
            | ReplicaError::Overloaded
            | ReplicaError::Unavailable
            | ReplicaError::DiskFull
            | ReplicaError::Corrupt
            | ReplicaError::StaleGeneration { .. }
            | ReplicaError::Behind
            | ReplicaError::UnknownStore
            | ReplicaError::Forbidden
            | ReplicaError::TooManySiblings
            | ReplicaError::ValueTooLong
            | ReplicaError::KeyUnfit
            | ReplicaError::RecordTooLong
            | ReplicaError::NotHere
            | ReplicaError::AnswerTooLong => true,
        }
    }
}

impl fmt::Display for ReplicaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplicaError::Unreachable => f.write_str("unreachable"),
            ReplicaError::Lost => f.write_str("no reply"),
            ReplicaError::Overloaded => f.write_str("overloaded"),
            ReplicaError::Unavailable => f.write_str("starting or stopping"),
            ReplicaError::DiskFull => f.write_str("disk full"),
            ReplicaError::StorageFailed => f.write_str("storage failed"),
            ReplicaError::Corrupt => f.write_str("damaged copy"),
            ReplicaError::StaleGeneration { generation } => {
                write!(f, "the request's ring is older than generation {}", generation.0)
            }
            ReplicaError::Behind => f.write_str("its ring is older than the request's"),
            ReplicaError::UnknownStore => f.write_str("unknown store"),
            ReplicaError::Forbidden => f.write_str("no right to it"),
            ReplicaError::TooManySiblings => f.write_str("too many siblings"),
            ReplicaError::ValueTooLong => f.write_str("value too long"),
            ReplicaError::KeyUnfit => f.write_str("the key does not fit"),
            ReplicaError::RecordTooLong => f.write_str("record too long"),
            ReplicaError::NotHere => f.write_str("does not hold the artifact"),
            ReplicaError::AnswerTooLong => f.write_str("answer too long"),
        }
    }
}

impl std::error::Error for ReplicaError {}
