//! Forgetting deletions for good: rounds that end with tombstones removed everywhere, and none of what they covered
//! able to come back.
//!
//! ```text
//!  initiator (Round)            every node (Participant)
//!   Confirm ───────────────────▶ keep the keys clean from now on, clean what is not, sync   ──▶ confirmed
//!   Open    ── coordination service: a new epoch E, greater than all before
//!   Fence   ───────────────────▶ remember E durably, accept nothing read before E            ──▶ fenced
//!   Complete ─ coordination service: E is completed; the document is still the same one
//!   Fence   ───────────────────▶ (again) still the same process?                             ──▶ fenced
//!   Collect ───────────────────▶ remove what is nothing but the tombstones                   ──▶ collected
//! ```
//!
//! A key that a node cannot make clean costs that key only: the round goes on without it. A round that ends early says
//! so (*release*), so that nobody guards its keys for longer.
//!
//! The argument is in `docs/design/healing.md`; `explore` plays every interleaving of a small cluster against it.
//!
//! **Architecture Invariant:** nothing here reads a record or a clock. Whoever carries out a step does it in the
//! order that is written at each function, or the argument does not hold.

mod participant;
mod round;

#[cfg(test)]
mod explore;
#[cfg(test)]
mod planted;

pub use participant::{
    Confirm, FenceStep, GUARD_TIME, GUARDS_MAX, Heard, Participant, Remembered, RoundRefusal, Start,
    judge_start,
};
pub use round::{ROUND_TIME, Round, RoundAction, RoundEnd, RoundEvent, RoundStage};

/// Which round: drawn by chance by whoever starts it, so that no two are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoundId(pub u64);
