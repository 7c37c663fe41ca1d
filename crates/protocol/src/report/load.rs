//! What work a node has done, and what it could do: counters that only grow, of the node and of its partitions.
//!
//! Whoever wants rates asks twice, and divides what the counters grew by the time between, which is the node's own
//! (`uptime_ms`). A node that began anew says so by its incarnation, and counts from 0 again.
//!
//! What a node fetches for repair and moves, and what it scans, is no work here. What others send it for those, it cannot
//! tell from writes: that counts as puts.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use model::PartitionId;
use serde::{Deserialize, Serialize};

/// Most partitions of which a node tells each for itself; the rest it tells as a sum. Some 150 KB of JSON.
pub const PARTITIONS_TOLD: usize = 2048;

/// What a node has done since its process began, and what it may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Since the process began, by its monotonic clock: when all of this was counted.
    pub uptime_ms: u64,
    /// How long its workers were on a processor since then, summed; `None` where nobody counts that.
    pub ran_us: Option<u64>,
    /// How long its workers had work and no processor since then, summed; `None` where nobody counts that.
    pub waited_us: Option<u64>,
    /// How long all threads of its process were on a processor since that began, summed; `None` where nobody counts that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_us: Option<u64>,
    /// Its workers.
    pub workers: u32,
    /// Processors that the process may use: those that it may run on, or less where a control group bounds it.
    pub processors: f64,
    /// Keys that clients had it get since the process began. A write that depends on what is there reads it first, which
    /// counts as well.
    pub coordinated_gets: u64,
    /// Keys that clients had it put or delete since the process began.
    pub coordinated_puts: u64,
    /// Of the writes that it stamped, those of clients that asked any node: it stamps those itself, whatever its place.
    #[serde(default)]
    pub own_stamped: u64,
    /// Free bytes of its disk, where that is known.
    pub disk_available_bytes: Option<u64>,
    /// All bytes of its disk, where that is known.
    pub disk_total_bytes: Option<u64>,
    /// The partitions with most work lately, by id: all in which it has a part, or [`PARTITIONS_TOLD`] of them.
    pub partitions: Vec<PartitionLoad>,
    /// The work for all other partitions together.
    pub rest: WorkDone,
    /// How many those are.
    pub rest_partitions: u32,
    /// Bytes that it holds of those.
    pub rest_bytes: u64,
}

/// What a node has done for one partition of the ring since its process began, and what it holds of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartitionLoad {
    /// Which.
    pub partition: PartitionId,
    /// What was done for it.
    #[serde(flatten)]
    pub work: WorkDone,
    /// Bytes of keys and records in force that the node holds of it, over all stores that take writes.
    pub bytes: u64,
    /// Where its work lately halves, if it is much of the node's and not all for one bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub middle: Option<Middle>,
}

/// A cut that leaves two parts of a partition with about as much work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Middle {
    /// The first token of the second part: a bucket begins there.
    pub at: u64,
    /// How much of the work was for the first part, in permille.
    pub permille: u32,
}

/// A key that had much work lately, by a sample of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotKey {
    /// The partition.
    pub partition: PartitionId,
    /// The key; of bytes that are no text the escapes of ASCII.
    pub key: String,
    /// How often it was noted.
    pub noted: u64,
    /// How often any key of the partition was.
    pub of: u64,
}

impl Default for PartitionLoad {
    fn default() -> PartitionLoad {
        PartitionLoad { partition: PartitionId(0), work: WorkDone::default(), bytes: 0, middle: None }
    }
}

/// Work for keys, in keys and not in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkDone {
    /// Gets that the node answered as a replica.
    pub gets: u64,
    /// Writes that it merged as a replica.
    pub puts: u64,
    /// Writes that it stamped as a replica.
    pub stamped: u64,
    /// Of the gets, those that it drove itself: it asks itself first, whatever its place.
    #[serde(default)]
    pub own_gets: u64,
}

impl LoadReport {
    /// All work for partitions, those included that are told as a sum.
    pub fn work(&self) -> WorkDone {
        self.rest + self.partitions.iter().map(|load| load.work).sum::<WorkDone>()
    }
}

impl WorkDone {
    /// What was done since `earlier`; nothing of a kind of which less was counted, since the counters then began anew.
    pub fn since(self, earlier: WorkDone) -> WorkDone {
        WorkDone {
            gets: self.gets.saturating_sub(earlier.gets),
            puts: self.puts.saturating_sub(earlier.puts),
            stamped: self.stamped.saturating_sub(earlier.stamped),
            own_gets: self.own_gets.saturating_sub(earlier.own_gets),
        }
    }

    /// How many operations that was.
    pub fn operations(self) -> u64 {
        self.gets.saturating_add(self.puts).saturating_add(self.stamped)
    }
}

impl Add for WorkDone {
    type Output = WorkDone;
    fn add(self, other: WorkDone) -> WorkDone {
        WorkDone {
            gets: self.gets.saturating_add(other.gets),
            puts: self.puts.saturating_add(other.puts),
            stamped: self.stamped.saturating_add(other.stamped),
            own_gets: self.own_gets.saturating_add(other.own_gets),
        }
    }
}

impl AddAssign for WorkDone {
    fn add_assign(&mut self, other: WorkDone) {
        *self = *self + other;
    }
}

impl Sum for WorkDone {
    fn sum<I: Iterator<Item = WorkDone>>(work: I) -> WorkDone {
        work.fold(WorkDone::default(), Add::add)
    }
}
