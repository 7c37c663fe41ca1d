//! Real drivers, held to the rules of their models: one test for each rule, listed in `docs/design/drivers.md`.
//!
//! ```text
//!   one thread, time of its own ── Stage
//!      Home: a simulated disk, a memory service ── Node (real) ◀── wires ──▶ scripts, or other homes' nodes
//! ```
//!
//! A [`Home`] starts the real node. Other nodes are scripts at the end of a wire, or real nodes behind one, so a test
//! chooses what is said at each moment, and when the power goes.
//!
//! Must never: sleep on a real clock, or call a decision of `protocol` in place of the driver that carries it out.

mod adopting;
mod answering;
mod changing;
mod collecting;
mod comparing;
mod delivering;
mod fencing;
mod healing;
pub(crate) mod home;
pub(crate) mod keeping;
mod mending;
mod moving;
mod outdated;
mod paging;
mod parting;
mod reading;
mod refilling;
mod repairing;
mod scrubbing;
mod stage;
mod wires;

pub(super) use home::{Home, KEY, amid, deleted, get, merge, old, record, set, tombstone_at};
pub(super) use stage::Stage;
pub(super) use wires::{Answer, Wires, failing};
