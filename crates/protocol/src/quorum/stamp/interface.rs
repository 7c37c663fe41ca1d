//! What the stamping of writes is told, what it wants done, and how it ends for each key.

use std::time::Duration;

use model::{Generation, Moment, NodeId};
use smallvec::SmallVec;

use crate::quorum::multi::KeyIndex;
use crate::quorum::options::Candidates;

/// Who asks for a write, and which nodes may stamp it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampEntry {
    /// A client, at any node or in its own library.
    Client,
    /// A client whose write depends on a condition. The first replica that is up judges all of these; a fallback, which
    /// does not know the key, judges none.
    Exclusive,
    /// Another node passed it on; it goes no further.
    Passed,
}

/// What a request for stamps wants. The same for every key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampOptions {
    /// The node that drives the request. `None` in a client's library, which asks fallbacks to pass a write on when no
    /// replica takes it.
    pub own: Option<NodeId>,
    /// Who asks.
    pub entry: StampEntry,
    /// Further attempts, each over all candidates, after pauses that double.
    pub retries: u32,
    /// When nothing more is begun, and silence of another node leaves the write in doubt.
    pub deadline: Moment,
}

/// What has happened to writes that need a stamp.
#[derive(Clone, Debug)]
pub enum StampEvent<'a> {
    /// The keys of a [`StampAction::Route`] have these candidates now.
    Routed {
        /// Generation of the ring that the candidates come from.
        generation: Generation,
        /// Whether the own node may stamp as a fallback when no replica takes a write without a condition.
        sloppy: bool,
        /// The keys with their candidates.
        routes: &'a [(KeyIndex, Candidates<'a>)],
    },
    /// The own node must not begin these keys of a [`StampAction::Route`], whoever would stamp them.
    Barred {
        /// Which.
        keys: &'a [KeyIndex],
    },
    /// What a node that was asked has said, or that nothing more will come from it.
    Replied {
        /// Who.
        node: NodeId,
        /// The reply for each key.
        replies: &'a [(KeyIndex, StampReply)],
    },
    /// The moment that [`Stamp::deadline`](super::Stamp::deadline) named has come.
    Elapsed,
}

/// What a node that was asked says to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampReply {
    /// It stamped the write and brought it to its quorum.
    Written,
    /// The request never left for it.
    Unreachable,
    /// It refused.
    Refused {
        /// Whether it certainly did nothing and will do nothing.
        certain: bool,
        /// Whether the same request may succeed later, or elsewhere.
        retryable: bool,
        /// Generation of the ring that it handed over with its refusal.
        ring: Option<Generation>,
    },
    /// The request may have arrived, the reply did not.
    Lost,
}

/// Keys of one message; those of a single write need no allocation.
pub type StampKeys = SmallVec<[KeyIndex; 2]>;

/// What shall be done for writes that need a stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StampAction {
    /// Wait for `pause` (with jitter), then tell the candidates of these keys under the newest ring, with
    /// [`StampEvent::Routed`] and [`StampEvent::Barred`]. While there is a pause nothing else is under way.
    Route {
        /// Which, ascending.
        keys: StampKeys,
        /// For how long to wait first; none at the beginning and after news.
        pause: Duration,
    },
    /// Let this node (possibly the own one) stamp these keys and bring them to their quorums.
    Ask {
        /// Which.
        node: NodeId,
        /// Keys that nobody else has begun, ascending.
        keys: StampKeys,
        /// How long a connection to it may take to open before it counts as unreachable; `None` for as long as ever.
        patience: Option<Duration>,
    },
    /// Stamp these keys at the own node although no replica takes them, as a hint for the target of each.
    StandIn {
        /// The own node.
        node: NodeId,
        /// Each key with the replica that the hint is for, ascending.
        keys: SmallVec<[(KeyIndex, NodeId); 1]>,
    },
    /// Tell the caller of this key. Each key comes once.
    Answer {
        /// Which.
        key: KeyIndex,
        /// How it ended.
        outcome: StampOutcome,
    },
}

/// Actions of one step; those of a single key need no allocation.
pub type StampActions = SmallVec<[StampAction; 2]>;

/// How a key's write ended for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampOutcome {
    /// The node that was asked last has written it.
    Written,
    /// It was certainly not written, and the last refusal says why: no other node would do better, or may be asked.
    Refused,
    /// It may have been written by this node, or may yet be.
    InDoubt {
        /// Who was asked last.
        node: NodeId,
    },
    /// It was certainly not written: every candidate was asked as often as may be, or time was over.
    Exhausted,
    /// It was passed on to a node that is no replica of it. Certainly not written.
    NotHere,
}
