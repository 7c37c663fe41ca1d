//! How a log engine is set up.

use std::sync::Arc;
use std::time::Duration;

use runtime::{Clock, Tasks};

/// When a write may be acknowledged, and what a power cut can cost. The end of the process (a crash, SIGKILL) costs
/// no acknowledged write under any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged when a sync has covered it; many writers share one sync. A power cut costs nothing.
    Always,
    /// Acknowledged when it is in the file; synced at most this later (plus the time of one sync). A power cut costs
    /// the writes of that time.
    Every {
        /// Milliseconds between the first unsynced write and the sync that covers it.
        milliseconds: u64,
    },
    /// Acknowledged when it is in the file; synced when a segment is full, at a snapshot and at close. A power cut
    /// costs what the system had not written back by itself (on Linux about 30 seconds), or a segment.
    System,
}

impl Default for Durability {
    /// Every 10 ms.
    fn default() -> Self {
        Durability::Every { milliseconds: 10 }
    }
}

/// Settings of a log engine.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// When a write may be acknowledged. Default: [`Durability::Every`] 10 milliseconds.
    pub durability: Durability,
    /// A segment is closed and a new one begun when it has this many bytes; at most 1 GiB. Default: 64 MiB.
    pub segment_bytes: u64,
    /// Bytes of the disk that writers may not take: compaction, snapshots and removals use them to make room again.
    /// Below it a put is refused with `Full`, unless it takes at most half of the space of the record that it replaces:
    /// such a put may use half of the reserve. Default: 128 MiB.
    pub reserve_bytes: u64,
    /// Bytes logged after which the index is written down, so that a restart after a crash reads at most about this
    /// much again. Default: 256 MiB. (Four times the size of the index when that is more.)
    pub snapshot_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            durability: Durability::default(),
            segment_bytes: 64 << 20,
            reserve_bytes: 128 << 20,
            snapshot_bytes: 256 << 20,
        }
    }
}

impl LogOptions {
    /// These settings, with values beyond the limits brought back to them.
    pub(super) fn within_limits(mut self) -> LogOptions {
        self.segment_bytes = self.segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        self
    }

    /// How long a write may stay unsynced, where that is bounded by time.
    pub(super) fn sync_interval(&self) -> Option<Duration> {
        match self.durability {
            Durability::Every { milliseconds } => Some(Duration::from_millis(milliseconds)),
            Durability::Always | Durability::System => None,
        }
    }
}

/// Small enough for tests that rotate often.
const SEGMENT_BYTES_MIN: u64 = 512;

/// Offsets are 32 bits wide and a segment may overshoot by one record.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The doors that an engine uses beside the disk.
#[derive(Clone)]
pub struct EnginePorts {
    /// For the pauses between syncs and between the steps of compaction.
    pub clock: Arc<dyn Clock>,
    /// Where the committer and compaction run.
    pub tasks: Arc<dyn Tasks>,
}
