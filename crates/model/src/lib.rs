//! What a cluster *is*: keys, versions, nodes, zones, partitions, rings, stores, routing.
//!
//! Everything here is a plain value with its laws.
//! Nothing here reads a clock, rolls a die, allocates an id from the outside world, or knows bytes on a network.
//!
//! **Architecture Invariant:** `model` depends on no other crate of the workspace and performs no effect.

pub mod access;
pub mod artifacts;
pub mod balance;
pub mod cluster;
pub mod elasticity;
pub mod epoch;
pub mod generation;
pub mod key;
pub mod limits;
pub mod node;
pub mod order;
pub mod placement;
pub mod plan;
pub mod ring;
pub mod routing;
pub mod store;
pub mod timestamp;
pub mod unquoted;
pub mod versions;

pub use artifacts::{ArtifactNumber, ArtifactOrder, ListedArtifact, ManifestDigest, ReadOnlyStore};
pub use cluster::{ArtifactsError, Cluster, ClusterError, ClusterId, CreateStoreError};
pub use epoch::Epoch;
pub use generation::Generation;
pub use key::{Key, KeyError, Token};
pub use node::{Node, NodeId, Role, Weight, WeightError, Zone};
pub use placement::{FeedKey, KeyPattern, Placement, PlacementError, Windows};
pub use ring::{Coming, Partition, PartitionId, Ring, RingError, Step};
pub use routing::{PreferenceList, Sets};
pub use store::{Consistency, FallbackOrder, Reads, Resolver, Store, StoreError, StoreName};
pub use timestamp::{Moment, Timestamp, WallMillis};
pub use versions::{Actor, Context, Dot, Value, Vector, Version, VersionSet};

/// Fields of a document that this program does not know: a later one wrote them, and they survive a rewrite.
pub type Unknown = std::collections::BTreeMap<String, serde_json::Value>;
