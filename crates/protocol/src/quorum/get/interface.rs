//! What a get is told, what it wants done, and how it ends.

use model::{Generation, NodeId, VersionSet};
use smallvec::SmallVec;

use crate::quorum::replica_error::{Errors, ReplicaError};

/// What has happened to a get.
#[derive(Clone, Debug)]
pub enum GetEvent {
    /// A node has answered.
    Answered {
        /// Who.
        node: NodeId,
        /// The generation by which it went.
        generation: Generation,
        /// What it holds; for a fallback including its hints.
        set: VersionSet,
    },
    /// A node has failed to answer.
    Failed {
        /// Who.
        node: NodeId,
        /// Why.
        error: ReplicaError,
    },
    /// A node holds what was written back to it, or more.
    Stored {
        /// Who.
        node: NodeId,
        /// The generation by which it went.
        generation: Generation,
        /// The round of the [`GetAction::WriteBack`].
        round: u8,
    },
    /// A node has not taken what was written back to it, or nobody knows.
    NotStored {
        /// Who.
        node: NodeId,
        /// The round of the [`GetAction::WriteBack`].
        round: u8,
        /// Why.
        error: ReplicaError,
    },
    /// The moment that [`Get::deadline`](super::Get::deadline) named has come.
    Elapsed,
}

/// What shall be done for a get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetAction {
    /// Ask this node what it holds. The own node is asked like any other.
    Fetch {
        /// Whom.
        node: NodeId,
    },
    /// Tell the caller. Comes at most once, and never beside a [`GetAction::Refresh`].
    Answer(GetOutcome),
    /// Merge this set at a replica and tell with [`GetEvent::Stored`] or [`GetEvent::NotStored`]: the caller waits.
    WriteBack {
        /// Where.
        node: NodeId,
        /// To be named by the reply.
        round: u8,
        /// What.
        set: VersionSet,
    },
    /// Merge this set at a replica that lacks part of it. Nobody waits for the reply.
    Repair {
        /// Where.
        node: NodeId,
        /// What.
        set: VersionSet,
    },
    /// A replica knows a newer ring: start the request again under it. This machine has ended without an answer.
    Refresh {
        /// The replica's generation, newer than the request's.
        generation: Generation,
    },
}

/// Actions of one step; those of a key with up to three replicas need no allocation.
pub type GetActions = SmallVec<[GetAction; 4]>;

/// How a get ended for its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// Enough nodes have answered.
    Done {
        /// Everything they hold, merged; not yet resolved by the store's resolver.
        set: VersionSet,
        /// How many nodes have answered, fallbacks included.
        answered: u8,
        /// Whether fallbacks were needed to get this many.
        sloppy: bool,
    },
    /// Too few nodes have answered.
    Failed {
        /// In which way.
        reason: GetFailure,
        /// What the nodes said that failed.
        errors: Errors,
    },
}

/// In which way too few nodes have answered a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetFailure {
    /// So many have failed that the rest is too few.
    InsufficientReplicas {
        /// How many have answered.
        answered: u8,
        /// How many must.
        required: u8,
    },
    /// Enough have answered, but too few replicas took what the answers amount to before the deadline.
    NotHeld {
        /// How many hold it.
        holders: u8,
        /// How many must.
        required: u8,
    },
    /// The deadline came first.
    DeadlinePassed {
        /// How many have answered.
        answered: u8,
        /// How many must.
        required: u8,
    },
}
