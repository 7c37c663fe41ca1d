//! Real drivers, held to the rules of their models: one test for each rule, listed in `docs/design/drivers.md`.
//!
//! ```text
//!   one thread, its own time ── Stage
//!      Home: a simulated disk, a memory service ── Node (real) ◀── wires ──▶ scripts, or other homes' nodes
//! ```
//!
//! A [`Home`] starts the real node. Other nodes are scripts at the end of a wire, or real nodes behind one, so a test
//! chooses what is said at each moment, and when the power goes.
//!
//! Unit tests of the crate that start a node take [`home`] and [`keeper`] from here, by `src/driven.rs`.
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
pub(crate) mod keeper;
mod keeping;
mod ordering;
mod outdated;
mod paging;
mod pairs;
mod panicking;
mod parting;
mod reading;
mod rebalance;
mod refilling;
mod scrubbing;
mod stage;
mod telling;
mod told;
mod wires;

// What the tests use of the crate, named in one place.

use node::engines::{Engines, LogEngines};
use node::epochs::Epochs;
use node::events::Event;
use node::front::{AtHand, Position, StretchLimit};
use node::stores::{LocalStore, WriteOrder};
use node::transport::WorkerTransport;
use node::view::Adopt;
use node::{Node, NodeConfig, StartError, own_copy};

use home::{Home, KEY, amid, deleted, get, merge, old, record, set, tombstone_at};
use stage::Stage;
use wires::{Answer, Wires, failing};
