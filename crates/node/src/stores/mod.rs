//! The stores of this node: what a get, a put and a merge do to one record of one replica.
//!
//! This is the only place that turns version sets into stored records and back. Each operation is atomic for its
//! key, because it runs inside the engine's update. Quorums are somebody else's business.
//!
//! Of the two kinds of stores this is about the one that takes writes; [`ReadOnly`] is the other.
//!
//! A stored record is the version set and, beside it, the actor under which *this* node stamps the key. A record
//! that came from elsewhere has none, so the next stamp here mints a new one (see `model::versions`).

mod compare;
mod demand;
mod expiring;
mod expiry;
mod forgetting;
mod gets;
mod overwrite;
mod read_only;
mod record;
mod scan;
mod stamper;
mod store;
mod tombstones;
mod unreadable;
mod write_order;

pub use expiring::EXPIRY_MARGIN;
pub(crate) use gets::GetNumbers;
pub(crate) use read_only::FileIdentity;
pub use read_only::{Open, OpenArtifacts, ReadOnly};
pub(crate) use record::{decode, encode, refuse};
pub use scan::Census;
pub use stamper::Stamper;
pub use store::{KeyPlace, LocalStore};
pub use write_order::{Stamped, WriteOrder};
pub(crate) use write_order::{check_condition, check_key, check_size, stamp};

#[cfg(test)]
mod trials;
