//! What elasticity is about: machines that a cluster of any engine runs on, and what is intended with each.
//!
//! ```text
//!   Policy ─┐
//!           ├─▶ Fleet: one document for each managed cluster ─▶ Machine: one state, one deadline, one intention
//!   Order ──┘         ▲ what providers and engines say: [`adapter`]
//! ```
//!
//! Paper `004_…` (TIRAMOLA) has the idea: any engine grows and shrinks by what monitoring sees.
//!
//! Must never: hold a secret, or a command line. A document names an adapter; the file beside the controller says what that
//! is.

pub mod adapter;
mod capacity;
mod decision;
mod fleet;
mod history;
mod look;
mod machine;
mod policy;
mod source;
mod words;

pub use capacity::{Capacity, Costs, GAIN_MIN, Observed};
pub use decision::{Decision, HeldChange, Reading, Reason, RuleVerdict};
pub use fleet::{Charge, DECISIONS_MAX, Fleet, FleetOrder, FleetOrderGiven, ORDERS_MAX, Paused, Resize};
pub use history::History;
pub use look::Look;
pub use machine::{Machine, MachineState, Token};
pub use policy::{
    Budget, Cooldowns, Deadlines, Direction, Measure, Mode, Money, Objective, Policy, PolicyError, Rule,
    Sizing, Spread,
};
pub use source::{SOURCES_MAX, Source, SourceKind};
pub use words::first_words;
