//! How a node keeps its records equal to those of its peers, and whole.

use std::fmt;

use model::{NodeId, PartitionId, StoreName};
use serde::{Deserialize, Serialize};

/// The state of repair at a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RepairReport {
    /// Whether an operator has stopped all of it.
    pub stopped: bool,
    /// What an operator has stopped while the rest goes on.
    pub stopped_parts: Vec<RepairPart>,
    /// How often it compares with a peer.
    pub period_s: u64,
    /// Peers with which it was asked to compare, and has not.
    pub asked: u64,
    /// The comparison that runs.
    pub running: Option<Comparing>,
    /// The last comparison with each peer.
    pub peers: Vec<Compared>,
    /// The hash trees of each store, or of the partition that was asked about.
    pub trees: Vec<StoreTrees>,
    /// How far verifying its own records is.
    pub scrub: Scrub,
    /// How far it is with what it lost; `null` when nothing was lost.
    pub refill: Option<RefillReport>,
}

/// A store, a partition, or a partition of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairPart {
    /// Only this store; all when absent.
    pub store: Option<String>,
    /// Only this partition; all when absent.
    pub partition: Option<PartitionId>,
}

impl fmt::Display for RepairPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.partition, &self.store) {
            (Some(id), Some(store)) => write!(f, "partition {id} of store {store}"),
            (Some(id), None) => write!(f, "partition {id}"),
            (None, Some(store)) => write!(f, "store {store}"),
            (None, None) => f.write_str("everything"),
        }
    }
}

/// A comparison under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparing {
    /// With which node.
    pub peer: NodeId,
    /// The store that it is at.
    pub store: String,
    /// For how long.
    pub seconds: f64,
    /// Partitions that it compares, of all stores.
    pub partitions: u64,
    /// Those that were compared to the end.
    pub partitions_done: u64,
    /// Keys known to differ that were not exchanged yet.
    pub keys_left: u64,
    /// What it has done so far.
    pub progress: Comparison,
}

/// A comparison that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// With which node.
    pub peer: NodeId,
    /// Since it ended.
    pub seconds_ago: f64,
    /// How long it took.
    pub took_ms: f64,
    /// What it has done.
    pub outcome: Comparison,
}

/// What a comparison has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// Every partition was compared to the end, and everything that was found to differ was exchanged.
    pub complete: bool,
    /// Partitions compared.
    pub partitions: u64,
    /// Of them, those that differed.
    pub partitions_differing: u64,
    /// Of them, those that could not be compared now.
    pub partitions_unready: u64,
    /// Keys found to differ.
    pub keys_differing: u64,
    /// Sets that were got and merged here.
    pub sets_pulled: u64,
    /// Sets that were sent to the peer.
    pub sets_pushed: u64,
    /// Keys, spans and partitions that could not be taken care of.
    pub failed: u64,
    /// Requests made.
    pub requests: u64,
    /// Bytes of keys, digests and sets that travelled.
    pub bytes: u64,
}

/// The hash trees of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreTrees {
    /// Which.
    pub store: StoreName,
    /// Trees.
    pub trees: u64,
    /// Those that must be built anew before they can be compared.
    pub doubtful: u64,
    /// Bytes of memory that they take.
    pub tree_bytes: u64,
    /// Records that repair has mended, since the node started.
    pub repaired_records_total: u64,
    /// The partition that was asked about.
    #[serde(flatten)]
    pub only: Option<PartitionTree>,
}

/// What is said of one partition of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionTree {
    /// Which.
    pub partition: PartitionId,
    /// Its records; `null` while its tree is built anew.
    pub records: Option<u64>,
    /// Whether the node has not all of it.
    pub incomplete: bool,
    /// The other replicas; `null` where the node is none.
    pub compared_with: Option<Vec<NodeId>>,
}

/// How far a node is with verifying its own records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scrub {
    /// Passes over everything, since the node started.
    pub passes: u64,
    /// Partitions of this pass.
    pub partitions: u64,
    /// Those that were read.
    pub partitions_done: u64,
    /// A scrub that was asked for and runs.
    pub running: Option<ScrubRun>,
    /// The last scrub that was asked for and has ended.
    pub last_asked: Option<Scrubbed>,
    /// Corrupt records found since the node started.
    pub corrupt_records_total: u64,
    /// Wrong leaves of hash trees found since the node started.
    pub wrong_leaves_total: u64,
}

/// A scrub that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScrubRun {
    /// The store that it is at.
    pub store: String,
    /// For how long it runs, or ran.
    pub seconds: f64,
    /// Partitions that it reads.
    pub partitions: u64,
    /// Those that were read.
    pub partitions_done: u64,
    /// Records that were read.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that are corrupt.
    pub corrupt_records: u64,
    /// Leaves of hash trees that did not fit the records.
    pub wrong_leaves: u64,
}

/// A scrub that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scrubbed {
    /// Since it ended.
    pub seconds_ago: f64,
    /// What it read and found.
    #[serde(flatten)]
    pub run: ScrubRun,
}

/// How far a node is with records that it lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RefillReport {
    /// Partitions that were lost.
    pub partitions: u64,
    /// Those that are not whole.
    pub partitions_left: u64,
    /// Records that have come since the node started.
    pub records: u64,
    /// Bytes that travelled for them.
    pub bytes: u64,
    /// For how long.
    pub seconds: f64,
    /// Records that come in a second, where that is known.
    pub records_per_second: Option<u64>,
    /// Bytes that come in a second, where that is known.
    pub bytes_per_second: Option<u64>,
    /// How long it will take if it goes on like this, where that is known.
    pub seconds_left: Option<u64>,
    /// The same by store.
    pub stores: Vec<StoreRefill>,
}

impl RefillReport {
    /// Whether something is missing.
    pub fn is_under_way(&self) -> bool {
        self.partitions_left > 0
    }
}

/// How far a node is with a store that it lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRefill {
    /// Which.
    pub store: StoreName,
    /// Its partitions that were lost.
    pub partitions: u64,
    /// Those that are not whole.
    pub partitions_left: u64,
}
