//! What a cluster *is*: keys, versions, nodes, zones, partitions, rings, stores, routing.
//!
//! Everything here is a plain value with its laws.
//! Nothing here reads a clock, rolls a die, allocates an id from the outside world, or knows bytes on a network.
//!
//! **Architecture Invariant:** `model` depends on no other crate of the workspace and performs no effect.

pub mod cluster;
pub mod epoch;
pub mod key;
pub mod limits;
pub mod node;
pub mod ring;
pub mod routing;
pub mod store;
pub mod timestamp;
pub mod versions;

pub use cluster::{Cluster, Generation};
pub use epoch::Epoch;
pub use key::{Key, KeyError, Token};
pub use node::{Node, NodeId, Zone};
pub use ring::{Partition, PartitionId, Ring, RingError};
pub use routing::PreferenceList;
pub use store::{Consistency, FallbackOrder, Reads, Resolver, Store, StoreError, StoreName};
pub use timestamp::{Moment, Timestamp, WallMillis};
pub use versions::{Actor, Context, Dot, Value, Vector, Version, VersionSet};
