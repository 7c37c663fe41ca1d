//! When maintenance runs, and what it has cost. What it does is in `compaction` and `snapshot_writer`.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{MutexGuard, Notify};

/// Shared by the janitor and a close.
#[derive(Default)]
pub(super) struct Maintenance {
    janitor: Notify,
    /// Held over one piece of maintenance (a compaction, a snapshot).
    at_work: tokio::sync::Mutex<()>,
    compacted_bytes: AtomicU64,
}

impl Maintenance {
    /// Lets the janitor look for work.
    pub(super) fn wake(&self) {
        self.janitor.notify_one();
    }

    /// Waits until there may be work.
    pub(super) async fn woken(&self) {
        self.janitor.notified().await;
    }

    /// Waits until no other piece of maintenance is under way, and keeps others away.
    pub(super) async fn begin(&self) -> MutexGuard<'_, ()> {
        self.at_work.lock().await
    }

    /// Compaction has written so much.
    pub(super) fn count_compacted(&self, bytes: u64) {
        assert!(self.at_work.try_lock().is_err(), "only maintenance compacts, one piece at a time");
        self.compacted_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes written by compaction.
    pub(super) fn compacted_bytes(&self) -> u64 {
        self.compacted_bytes.load(Ordering::Relaxed)
    }
}
