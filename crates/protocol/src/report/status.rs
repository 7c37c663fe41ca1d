//! A node's process, its disk and its stores.

use model::{Consistency, Epoch, NodeId, Resolver, StoreName, WallMillis};
use serde::{Deserialize, Serialize};

use super::{ChoreReport, StoreDemand};

/// How a node is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster that it belongs to.
    pub cluster: String,
    /// The version of its program.
    pub version: String,
    /// The kind of its storage engine.
    pub engine: String,
    /// Since its process started.
    pub uptime_s: u64,
    /// Where it runs.
    pub place: Installation,
    /// Links of the native protocol.
    pub native_connections: u64,
    /// Connections of Redis clients.
    pub resp_connections: u64,
    /// Whether it requires a password of Redis clients.
    pub password_required: bool,
    /// Its use of TLS; `None` where it speaks none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsStatus>,
    /// Requests that it has admitted and not yet answered.
    pub requests_running: u64,
    /// Their bytes.
    pub request_bytes: u64,
    /// Commands of Redis clients since it started.
    pub resp_commands_total: u64,
    /// Free bytes of its disk.
    pub disk_available_bytes: u64,
    /// All bytes of its disk, where that is known.
    pub disk_total_bytes: Option<u64>,
    /// Bytes that writes may take before they are refused, where that is known.
    pub room_bytes: Option<u64>,
    /// Why its storage has stopped, if it has.
    pub storage_stopped: Option<String>,
    /// The hints that it holds, by target.
    pub hints: Vec<HintsHeld>,
    /// Bytes of the hints that it holds.
    pub hint_bytes: u64,
    /// Bytes of hints that it holds at most.
    pub hint_bytes_max: u64,
    /// Hints that it refused because it held this many bytes, since it started.
    pub hints_refused_total: u64,
    /// Bytes of the largest hint for which its disk has no room; 0 for none.
    pub hint_bytes_wanted: u64,
    /// How it collects tombstones, once it does.
    pub collection: Option<CollectionReport>,
    /// Its work in the background; empty from an earlier program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chores: Vec<ChoreReport>,
    /// Its stores that take writes.
    pub stores: Vec<StoreStatus>,
}

/// How a node uses TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsStatus {
    /// When its certificate expires, in milliseconds since 1970, where that can be read.
    pub certificate_expires_ms: Option<WallMillis>,
    /// Whether it takes connections without TLS, too.
    pub plain_accepted: bool,
}

/// Where a node runs, for the people who look after it. A node that is not a separate process has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installation {
    /// Its process, on its machine.
    pub process_id: u32,
    /// Absolute path of its data.
    pub data_directory: String,
    /// Absolute path of the embedded coordination service, or the ensemble's address, as the node knows it now.
    pub coordination_directory: String,
}

/// Hints that a node holds for one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintsHeld {
    /// The node that they are for.
    pub target: NodeId,
    /// How many.
    pub hints: u64,
    /// What happens with them.
    pub state: HintsState,
    /// How many leave it in a second.
    pub hints_per_second: u64,
    /// Bytes a second that it sends at most.
    pub rate_bytes_per_second: u64,
    /// Batches that failed in a row.
    pub failures: u64,
    /// Hints that were delivered since the node started.
    pub delivered_total: u64,
    /// Hints that went to another node, since the node started.
    pub readdressed_total: u64,
    /// Hints that were dropped because of their age, since the node started.
    pub expired_total: u64,
}

/// What happens with hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintsState {
    /// Their target is not alive.
    Holding,
    /// They are on their way.
    Delivering,
    /// The last batch failed; it is tried again.
    Pausing,
}

/// How a node collects tombstones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionReport {
    /// Its collection epoch.
    pub epoch: Epoch,
    /// Whether it has verified that epoch against the cluster's since it started.
    pub compared: bool,
    /// Tombstones that wait, as far as it knows without looking.
    pub tombstones: u64,
    /// The node without which the last round could not go on.
    pub waits_for: Option<NodeId>,
    /// Rounds that were completed, since it started.
    pub rounds_total: u64,
    /// Rounds that were broken off, since it started.
    pub rounds_broken_total: u64,
    /// Records that were collected, since it started.
    pub records_collected_total: u64,
}

/// A store as one node holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Its name.
    pub store: StoreName,
    /// Its numbers.
    #[serde(flatten)]
    pub consistency: Consistency,
    /// What it does with concurrent versions.
    pub resolver: Resolver,
    /// Records, those with nothing but tombstones included.
    pub records: u64,
    /// Bytes of keys and values that are in force.
    pub live_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Corrupt records found since the node started.
    pub corrupt_records_total: u64,
    /// Those of them that good copies have not replaced.
    pub corrupt_records_left: u64,
    /// Corrupt places of the log whose keys are not known.
    pub corrupt_unplaced: u64,
    /// Bytes of the largest put for which the disk has no room; 0 for none.
    pub put_bytes_wanted: u64,
    /// Puts that were refused for want of room, since the node started.
    pub puts_refused_total: u64,
    /// Syncs since the node started.
    pub syncs_total: u64,
    /// Bytes that compaction has written since the node started.
    pub compacted_bytes_total: u64,
    /// Keys with a value that expires, as far as the node knows without looking.
    pub expiring_keys: u64,
    /// Expired values that were removed, since the node started.
    pub expired_values_reaped_total: u64,
    /// Their bytes.
    pub expired_bytes_reaped_total: u64,
    /// What clients asked of it, since the node started; `None` from an earlier program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<StoreDemand>,
}

impl StoreStatus {
    /// A store that holds nothing.
    pub fn empty(store: StoreName, consistency: Consistency, resolver: Resolver) -> StoreStatus {
        StoreStatus {
            store,
            consistency,
            resolver,
            records: 0,
            live_bytes: 0,
            disk_bytes: 0,
            memory_bytes: 0,
            corrupt_records_total: 0,
            corrupt_records_left: 0,
            corrupt_unplaced: 0,
            put_bytes_wanted: 0,
            puts_refused_total: 0,
            syncs_total: 0,
            compacted_bytes_total: 0,
            expiring_keys: 0,
            expired_values_reaped_total: 0,
            expired_bytes_reaped_total: 0,
            demand: None,
        }
    }
}

impl Status {
    /// Records of all its stores, those with nothing but tombstones included.
    pub fn records(&self) -> u64 {
        self.stores.iter().map(|store| store.records).sum()
    }

    /// Bytes of keys and values that are in force, of all its stores.
    pub fn live_bytes(&self) -> u64 {
        self.stores.iter().map(|store| store.live_bytes).sum()
    }

    /// Keys of which it holds nothing but tombstones, as far as it knows without looking.
    pub fn tombstones(&self) -> u64 {
        self.collection.as_ref().map_or(0, |collection| collection.tombstones)
    }
}
