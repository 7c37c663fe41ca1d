//! What a session asks of its driver, and what it is told.

use bytes::Bytes;
use model::{PartitionId, Token};

use super::SessionOutcome;
use crate::antientropy::merkle::{Digest, Span};

/// Names one request of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What the session asks of its driver, which answers with the event of the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAction {
    /// Send the own sums of these partitions; [`SessionEvent::Summed`].
    CompareSums {
        /// The request.
        request: RequestId,
        /// The partitions.
        partitions: Vec<PartitionId>,
    },
    /// Ask the peer, and look here, for the sums of the parts of these spans; [`SessionEvent::Descended`].
    Descend {
        /// The request.
        request: RequestId,
        /// Partition, span, and how many bits the parts shall have.
        spans: Vec<(PartitionId, Span, u8)>,
    },
    /// Ask the peer, and look here, for the keys of these spans with their digests; [`SessionEvent::Listed`].
    List {
        /// The request.
        request: RequestId,
        /// The spans.
        spans: Vec<(PartitionId, Span)>,
    },
    /// Get what the peer holds of these keys and merge it here; [`SessionEvent::Pulled`].
    Pull {
        /// The request.
        request: RequestId,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Send the peer what is held here of these keys, to merge it; [`SessionEvent::Pushed`].
    Push {
        /// The request.
        request: RequestId,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Get a page of the partition from the peer, from this token on, and merge it here; [`SessionEvent::Paged`].
    Page {
        /// The request.
        request: RequestId,
        /// The partition.
        partition: PartitionId,
        /// Where the page begins.
        from: Token,
    },
    /// Note that this partition was merged with everything that the peer held when the session began with it.
    Settle {
        /// The partition.
        partition: PartitionId,
    },
    /// The session is over.
    End(SessionOutcome),
}

/// What has happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The peer has compared the sums.
    Summed {
        /// Partitions that differ, each with the bits of the shallower of the two trees.
        differing: Vec<(PartitionId, u8)>,
        /// Partitions that cannot be compared now: a tree is doubtful, or it is not the peer's.
        unready: Vec<PartitionId>,
    },
    /// The sums of the parts of each span, here and there; `None` where one of the two cannot say.
    Descended {
        /// In the order of the request's spans.
        parts: Vec<Option<(Vec<Digest>, Vec<Digest>)>>,
    },
    /// The keys of the first spans of the request, at least of one; the others are asked for again.
    Listed {
        /// For each span, the keys and digests here and there; `None` where one of the two cannot say.
        keys: Vec<Option<Listing>>,
        /// Bytes that travelled.
        bytes: u64,
    },
    /// The first keys of the request, at least one, were merged here.
    Pulled {
        /// How many were taken care of.
        done: usize,
        /// Those of which the peer lacks something.
        push: Vec<Bytes>,
        /// Those that neither could be read there nor merged here.
        failed: usize,
        /// Bytes that travelled.
        bytes: u64,
    },
    /// The first keys of the request, at least one, were merged by the peer.
    Pushed {
        /// How many were taken care of.
        done: usize,
        /// Those that the peer refused.
        failed: usize,
        /// Bytes that travelled.
        bytes: u64,
    },
    /// A page was merged here, durably.
    Paged {
        /// Where the next one begins; `None` when this was the last.
        next: Option<Token>,
        /// Records that changed something here.
        merged: usize,
        /// Records that could not be merged here.
        failed: usize,
        /// Bytes that travelled.
        bytes: u64,
    },
    /// There is no answer and will be none.
    Failed,
}

impl SessionEvent {
    /// An answer that took care of nothing would be asked for without end.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            SessionEvent::Listed { keys, .. } => keys.is_empty(),
            SessionEvent::Pulled { done, .. } | SessionEvent::Pushed { done, .. } => *done == 0,
            _ => false,
        }
    }
}

/// Keys with their digests, here and there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Here.
    pub mine: Vec<(Bytes, Digest)>,
    /// There.
    pub theirs: Vec<(Bytes, Digest)>,
}
