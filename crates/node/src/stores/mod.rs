//! The stores of this node: what a get, a put and a merge do to one record of one replica.
//!
//! This is the only place that turns version sets into stored records and back. Each operation is atomic for its
//! key, because it runs inside the engine's update. Quorums are somebody else's business.
//!
//! A stored record is the version set and, beside it, the actor under which *this* node stamps the key. A record
//! that came from elsewhere has none, so the next stamp here mints a new one (see `model::versions`).

mod expiry;
mod overwrite;
mod scan;
mod stamper;
mod store;
mod tombstones;

pub use expiry::EXPIRY_MARGIN;
pub use scan::Census;
pub use stamper::Stamper;
pub use store::{KeyPlace, LocalStore, Stamped, WriteOrder};
pub(crate) use store::{check_condition, check_size, decode, encode, refuse, stamp};
