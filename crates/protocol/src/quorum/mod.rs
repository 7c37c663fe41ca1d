//! Quorums: the only place in the system that counts acknowledgements.
//!
//! One request, one machine: [`Get`] for a get, [`Write`] for a put or a delete, [`MultiGet`] and [`MultiWrite`]
//! for many keys with one message per node. Each is started with the key's candidates and options, tells its driver
//! what to send, and answers exactly once: an `Answer`, or a `Refresh` when a replica knows a newer ring. After the
//! answer it goes on until stragglers are repaired or hinted; then [`deadline`](Get::deadline) is `None`. Before a
//! write is refused because too few nodes seem to be there, a [`Probe`] asks those that are suspected. Which node stamps
//! a write and then drives it, [`Stamp`] decides. A [`Walk`] reads a partition in order, from as many replicas as a get.
//!
//! ```text
//!             hedge_after                                  deadline
//!   start ────────┼───────────────────────────────────────────┼
//!     │ first     │ one more node for each answer that        │ answer with what is there;
//!     │ wave      │ is missing; `required` is now enough      │ park hints for stragglers
//!     └─ a failure or a suspicion brings in the next node at once
//! ```
//!
//! Every machine is total: events may come late, twice, in any order, from nodes that were never asked, or belong
//! to another generation; none of that panics, counts twice or answers twice. Positive evidence wins: an
//! acknowledgement counts even after the same node was reported as failed.
//!
//! The rules, why they are so, and what was rejected: `docs/design/quorum.md`.
//!
//! Counts outside of requests (of holders before a hint is given up, of replicas that a walk reads) are here, too:
//! [`Holders`], [`Walk`].
//!
//! **Architecture Invariant:** nobody else compares a number of answers with R or W; `tidy` refuses it.

mod counts;
#[cfg(test)]
mod fixtures;
mod get;
mod lagging;
mod machine;
mod multi;
mod multi_get;
mod multi_write;
mod options;
#[cfg(test)]
mod planted;
mod probe;
mod replica_error;
mod stamp;
mod walk;
mod write;

pub use counts::{
    Holders, Spared, answers_required, can_be_met, hold_every_write, holders_promised, meet_every_quorum,
    one_answer_suffices, values_can_be_told,
};
pub use get::{Get, GetAction, GetActions, GetEvent, GetFailure, GetOutcome};
pub use lagging::{Behind, Lagging};
pub use machine::Machine;
pub use multi::KeyIndex;
pub use multi_get::{MultiGet, MultiGetAction, MultiGetEvent};
pub use multi_write::{MultiWrite, MultiWriteAction, MultiWriteEvent};
pub use options::{
    Candidates, FALLBACKS_MAX, QuorumOptions, absence_can_be_told, own_record_suffices, own_write_suffices,
};
pub use probe::{Probe, ProbeAction, ProbeEvent, Reach, can_be_driven};
pub use replica_error::{Errors, ReplicaError};
pub use stamp::{
    Stamp, StampAction, StampActions, StampEntry, StampEvent, StampKeys, StampOptions, StampOutcome,
    StampReply,
};
pub use walk::{PageAsk, Record, TooFew, Walk, WalkPosition};
pub use write::{Local, Origin, Write, WriteAction, WriteActions, WriteEvent, WriteOutcome};
