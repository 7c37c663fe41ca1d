//! A read-only store in the swarm: a user who pushes and takes back, sources that do harm, and readers.
//!
//! ```text
//!   user ─▶ orders ─▶ cluster document ─▶ nodes fetch from sources ─▶ a headmaster swaps
//!                         │ observed                                        │
//!                         ▼                                                 ▼
//!                        book: what was built, what was served when, what readers were told ─▶ invariant 10
//! ```
//!
//! In reading order: [`crate::book`], `pushing` is the user, `reading` the readers, `ending` the last words of a run.
//!
//! Must never: tell a node anything but through documents and the network.

mod ending;
mod pushing;
mod reading;

use crate::host::Host;

pub use ending::end;
pub use pushing::push;
pub use reading::read;

/// The user's host: no node and no client has it.
pub const USER: Host = Host(93);
/// Hosts of readers begin after this one.
const READERS: u32 = 200;
/// Numbers of readers begin after those of all other clients.
const READER_FIRST: u32 = 300;

/// The hosts of a run's readers.
pub fn readers(count: u32) -> impl Iterator<Item = Host> {
    (1..=count).map(|number| Host(READERS + number))
}
