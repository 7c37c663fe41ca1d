//! Group commit: one task writes and syncs for everybody.
//!
//! ```text
//! writer   update ──► tail (memory)      durable ──► waits, or writes to the file itself and is done
//! committer            └── after the interval: one write, one sync of each segment that has news ──► wakes all
//! ```
//!
//! Whoever waits for a commit may go away: the next one begins where it was, and hears of a sync that failed meanwhile.
//!
//! Must never: acknowledge what a sync has not covered when the setting promises it, or try again after a failed
//! sync: what such a sync left behind is unknown, so the engine stops.

use std::sync::Arc;
use std::time::Duration;

use runtime::DiskError;

use super::core::Core;
use super::options::Durability;
use crate::engine::{Commit, Durable};
use crate::error::StorageError;

/// With syncs every so often, a writer that is this far ahead of them waits: a device slower than its writers must
/// not let the unsynced bytes grow without bound.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;

/// With syncs left to the system: how long an update that nobody waits for may stay out of the file.
const FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// How often a full disk is tried again.
const FULL_INTERVAL: Duration = Duration::from_millis(100);

/// What the committer does until the engine stops.
pub(super) async fn run(core: Arc<Core>) {
    let interval = match core.site.options.durability {
        Durability::Always => None,
        Durability::Every { .. } => core.site.options.sync_interval(),
        Durability::System => Some(FLUSH_INTERVAL),
    };
    while !core.life.is_refusing() {
        core.appending.woken().await;
        if let Some(interval) = interval {
            core.site.clock.sleep(interval).await;
        }
        core.appending.seen();
        let mut outcome = core.commit(false).await;
        while outcome == Err(StorageError::Full) && !core.life.is_refusing() {
            core.site.clock.sleep(FULL_INTERVAL).await;
            outcome = core.commit(false).await;
        }
        core.maintenance.wake();
    }
}

impl Core {
    pub(super) fn durable(&self, commit: Commit) -> Durable {
        debug_assert!(
            commit.0 <= self.appending.tail().end().position,
            "nobody waits for what was not written: {commit:?}"
        );
        if self.life.has_failed() {
            return Durable::now(Err(self.life.refusal()));
        }
        match self.site.options.durability {
            Durability::Always => self.appending.wait_for(commit.0, &self.life),
            Durability::Every { .. } | Durability::System => {
                if let Err(error) = self.appending.tail().flush_to(&*self.site.disk, commit.0) {
                    return Durable::now(Err(self.refused(error).unwrap_or(StorageError::Full)));
                }
                match self.site.options.durability {
                    Durability::System => Durable::Already,
                    _ => self.appending.wait_for(commit.0.saturating_sub(UNSYNCED_BYTES_MAX), &self.life),
                }
            }
        }
    }

    /// Writes everything that waits, rotates when the segment is long enough, and syncs when the setting (or
    /// `force`) asks for it. `Full`: what waits goes on waiting.
    pub(super) async fn commit(&self, force: bool) -> Result<(), StorageError> {
        let _one_at_a_time = self.appending.begin_commit().await;
        if self.life.has_failed() {
            return Err(self.life.refusal());
        }
        let mut rotated = false;
        let written = self.appending.tail().flush(&*self.site.disk).and_then(|()| {
            let bytes = self.site.options.segment_bytes;
            rotated = self.appending.tail().rotate(&*self.site.disk, &self.segments, bytes)?;
            Ok(())
        });
        self.look_at_space();
        let full = match written {
            Ok(()) => false,
            Err(DiskError::Full) => true,
            Err(error) => return Err(self.fail(&error)),
        };
        self.space.set_full(full);
        if force || rotated || self.site.options.durability != Durability::System {
            self.sync().await?;
        }
        if full { Err(self.answer_full()) } else { Ok(()) }
    }

    /// Syncs everything that is in the file, oldest first, and wakes who waited for it.
    async fn sync(&self) -> Result<(), StorageError> {
        let (point, position) = self.appending.tail().written_end();
        if self.appending.tail().synced() >= position && self.appending.unsynced_from() >= point.segment {
            return Ok(());
        }
        let mut news = Vec::new();
        for segment in self.segments.logs_between(self.appending.unsynced_from(), point.segment) {
            let written = segment.written();
            let Some(file) = segment.file() else { continue };
            if segment.synced() < written {
                file.sync().await.map_err(|error| self.fail(&error))?;
                self.appending.count_sync();
                news.push((segment, written));
            }
        }
        if news.iter().any(|(segment, _)| segment.synced() == 0) {
            let synced = self.site.disk.sync_directory(&self.site.directory).await;
            synced.map_err(|error| self.fail(&error))?;
        }
        // Not before: a caller who goes away during a sync must not leave a segment whose name a power cut takes.
        for (segment, written) in news {
            segment.note_synced(written);
        }
        self.appending.synced_to(point, position);
        Ok(())
    }

    fn answer_full(&self) -> StorageError {
        let written = self.appending.tail().written();
        self.appending.answer(|waiter| (waiter.position > written).then_some(Err(StorageError::Full)));
        StorageError::Full
    }
}
