//! Anti-entropy: how two replicas find out where they differ and become equal (D8).
//!
//! ```text
//!   all sums ─► the partitions that differ ─► spans of them, finer each time ─► leaves
//!                                                                               │
//!        equal ◄─ push what the peer lacks ◄─ pull and merge ◄─ keys and digests┘
//! ```
//!
//! - [`merkle`]: the hash trees whose sums are compared.
//! - [`session`]: one comparison with one peer, from the sums to the last record.
//! - [`schedule`]: when to compare with whom, so that every pair of nodes has its turn within a period.
//! - [`ledger`]: which partitions of a node that lost its disk have been refilled.
//!
//! [`crate::pace`] says how fast, so that requests do not notice.
//!
//! Comparing may come at any moment: what is found to differ because a write is just under way is merged once more,
//! which changes nothing. Equal replicas exchange one message and nothing else.
//!
//! **Architecture Invariant:** nothing here removes anything. Whole sets are merged, as everywhere.

pub mod ledger;
pub mod merkle;
pub mod schedule;
pub mod session;

pub use ledger::Ledger;
pub use schedule::Schedule;
pub use session::{Goal, Left, Options, RequestId, Session, SessionAction, SessionEvent, SessionOutcome};
