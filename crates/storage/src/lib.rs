//! Where records rest: the engine traits and their engines.
//!
//! An engine maps (partition, key) to opaque record bytes, atomically per key. What the bytes mean (versions,
//! tombstones, expiry) is the business of `node::stores`; an engine never looks inside.
//!
//! **Architecture Invariant:** engines know no version, no quorum, no copy of a record elsewhere and no network.

pub mod artifacts;
mod engine;
mod error;
mod forward;
mod hash;
mod log;
mod memory;
mod partitions;
mod walk;

pub use engine::{
    Change, Commit, DamageStats, Durable, EngineStats, Head, Held, Met, Remains, RepairableEngine, Room,
    ScanCursor, ScanLimit, ScanPage, StorageEngine,
};
pub use error::StorageError;
pub use hash::fingerprint;
pub use log::{Durability, EnginePorts, LogEngine, LogOptions};
pub use memory::MemoryEngine;
pub use partitions::Partitions;
