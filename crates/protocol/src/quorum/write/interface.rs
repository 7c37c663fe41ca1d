//! What a write is told, what it wants done, and how it ends.

use model::{Generation, NodeId};
use smallvec::SmallVec;

use crate::quorum::replica_error::{Errors, ReplicaError};

/// Where a write comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The coordinator's node, which has stamped the write. Clients never drive writes: they cannot hold hints.
    pub own: NodeId,
    /// What the coordinator's own store has done with it.
    pub local: Local,
    /// Whether an earlier attempt at this same write (same dot) may have been applied anywhere.
    pub possible: bool,
}

/// What the coordinator's own store has done with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Applied it, as a replica. [`WriteEvent::Acknowledged`] from the own node follows when it is durable.
    Applied,
    /// Refused it, although it is a replica.
    Refused(ReplicaError),
    /// Nothing: the coordinator is no replica.
    NotReplica,
}

/// What has happened to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEvent {
    /// A replica holds the write durably, or a fallback holds the hint that it was sent.
    Acknowledged {
        /// Who.
        node: NodeId,
        /// The generation by which it went.
        generation: Generation,
        /// Whether it already held something that replaces the write.
        superseded: bool,
    },
    /// A node has refused, or no reply will come.
    Failed {
        /// Who.
        node: NodeId,
        /// Why.
        error: ReplicaError,
    },
    /// The moment that [`Write::deadline`](super::Write::deadline) named has come.
    Elapsed,
}

/// What shall be done for a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteAction {
    /// Merge the write at this replica.
    Merge {
        /// Where.
        node: NodeId,
    },
    /// Let this fallback (possibly the own node) hold a durable hint.
    SendHint {
        /// Who holds it.
        holder: NodeId,
        /// The replica that it is for.
        target: NodeId,
    },
    /// Hold a hint at the coordinator itself. Its outcome is not reported back.
    ParkHint {
        /// The replica that it is for.
        target: NodeId,
    },
    /// Tell the caller. Comes at most once, and never beside a [`WriteAction::Refresh`].
    Answer(WriteOutcome),
    /// A replica knows a newer ring: start the same write (same dot) again under it, even past the deadline, so
    /// that it answers and leaves its hints. This machine has ended without an answer.
    Refresh {
        /// The replica's generation, newer than the request's.
        generation: Generation,
        /// What [`Origin::possible`] must say for the new attempt.
        possible: bool,
    },
}

/// Actions of one step; those of a key with up to three replicas need no allocation.
pub type WriteActions = SmallVec<[WriteAction; 4]>;

/// How a write ended for its caller (D7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Enough replicas, or sloppily their stand-ins, hold it durably.
    Done {
        /// How many replicas hold it or have a stand-in that does.
        acks: u8,
        /// Whether stand-ins were needed to get this many.
        sloppy: bool,
        /// Whether some node already held something that replaces the write.
        superseded: bool,
    },
    /// No node has applied it and none will.
    Failed {
        /// How many must acknowledge.
        required: u8,
        /// What the nodes said.
        errors: Errors,
    },
    /// It may have been applied, or may yet be.
    Indeterminate {
        /// How many have acknowledged.
        acks: u8,
        /// How many must.
        required: u8,
        /// What the nodes said that failed.
        errors: Errors,
    },
}
