//! Group commit: one task writes and syncs for everybody.
//!
//! ```text
//! writer   update ──► tail (memory)      durable ──► waits, or writes to the file itself and is done
//! committer            └── after the interval: one write, one sync of each segment that has news ──► wakes all
//! ```
//!
//! Must never: acknowledge what a sync has not covered when the setting promises it, or try again after a failed
//! sync: what such a sync left behind is unknown, so the engine stops.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use runtime::DiskError;
use tokio::sync::oneshot;

use super::core::{Core, Waiter};
use super::options::Durability;
use crate::{Commit, Durable, StorageError};

/// With syncs every so often, a writer that is this far ahead of them waits: a device slower than its writers must
/// not let the unsynced bytes grow without bound.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;

/// With syncs left to the system: how long an update that nobody waits for may stay out of the file.
const FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// How often a full disk is tried again.
const FULL_INTERVAL: Duration = Duration::from_millis(100);

/// What the committer does until the engine stops.
pub(super) async fn run(core: Arc<Core>) {
    let interval = match core.options.durability {
        Durability::Always => None,
        Durability::Every { .. } => core.options.sync_interval(),
        Durability::System => Some(FLUSH_INTERVAL),
    };
    while !core.refusing.load(Ordering::Acquire) {
        core.committer.notified().await;
        if let Some(interval) = interval {
            core.clock.sleep(interval).await;
        }
        core.dirty.store(false, Ordering::Release);
        let mut outcome = core.commit(false).await;
        while outcome == Err(StorageError::Full) && !core.refusing.load(Ordering::Acquire) {
            core.clock.sleep(FULL_INTERVAL).await;
            outcome = core.commit(false).await;
        }
        core.janitor.notify_one();
    }
}

impl Core {
    pub(super) fn durable(&self, commit: Commit) -> Durable {
        if self.fatal.get().is_some() {
            return answered(Err(self.refusal()));
        }
        match self.options.durability {
            Durability::Always => self.wait_for(commit.0),
            Durability::Every { .. } | Durability::System => {
                if let Err(error) = self.tail.flush_to(&*self.disk, commit.0) {
                    return answered(Err(self.refused(error).unwrap_or(StorageError::Full)));
                }
                match self.options.durability {
                    Durability::System => Durable::Already,
                    _ => self.wait_for(commit.0.saturating_sub(UNSYNCED_BYTES_MAX)),
                }
            }
        }
    }

    fn wait_for(&self, position: u64) -> Durable {
        if self.tail.synced.load(Ordering::Acquire) >= position {
            return Durable::Already;
        }
        let mut waiters = self.waiters.lock();
        // Whoever publishes a sync, a failure or the end takes this lock afterwards.
        if self.tail.synced.load(Ordering::Acquire) >= position {
            return Durable::Already;
        }
        if self.refusing.load(Ordering::Acquire) {
            return answered(Err(self.refusal()));
        }
        let (answer, answers) = oneshot::channel();
        waiters.push(Waiter { position, answer });
        drop(waiters);
        self.committer.notify_one();
        Durable::Waits(Box::pin(async move { answers.await.unwrap_or(Err(StorageError::Closed)) }))
    }

    /// Writes everything that waits, rotates when the segment is long enough, and syncs when the setting (or
    /// `force`) asks for it. `Full`: what waits goes on waiting.
    pub(super) async fn commit(&self, force: bool) -> Result<(), StorageError> {
        let _one_at_a_time = self.committing.lock().await;
        if self.fatal.get().is_some() {
            return Err(self.refusal());
        }
        let mut rotated = false;
        let written = self.tail.flush(&*self.disk).and_then(|()| {
            let bytes = self.options.segment_bytes;
            rotated = self.tail.rotate(&*self.disk, &self.segments, &self.segment_next, bytes)?;
            Ok(())
        });
        self.look_at_space();
        let full = match written {
            Ok(()) => false,
            Err(DiskError::Full) => true,
            Err(error) => return Err(self.fail(&error)),
        };
        self.full.store(full, Ordering::Release);
        if force || rotated || self.options.durability != Durability::System {
            self.sync().await?;
        }
        if full { Err(self.answer_full()) } else { Ok(()) }
    }

    /// How much writers may still take, now.
    pub(super) fn room(&self) -> Result<u64, StorageError> {
        self.check()?;
        self.look_at_space();
        match self.full.load(Ordering::Acquire) {
            true => Ok(0),
            false => Ok(u64::try_from(self.space.load(Ordering::Relaxed)).unwrap_or(0)),
        }
    }

    /// Sees how much writers may still take.
    pub(super) fn look_at_space(&self) {
        let left = self.disk.available_bytes().saturating_sub(self.tail.end().waiting as u64);
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        let reserve = i64::try_from(self.options.reserve_bytes).unwrap_or(i64::MAX);
        self.space.store(left.saturating_sub(reserve), Ordering::Relaxed);
    }

    /// Syncs everything that is in the file, oldest first, and wakes who waited for it.
    async fn sync(&self) -> Result<(), StorageError> {
        let (point, position) = self.tail.written_end();
        if self.tail.synced.load(Ordering::Acquire) >= position
            && self.unsynced_from.load(Ordering::Relaxed) >= point.segment
        {
            return Ok(());
        }
        let mut named = false;
        for segment in self.segments.logs_between(self.unsynced_from.load(Ordering::Relaxed), point.segment) {
            let written = segment.written.load(Ordering::Acquire);
            let Some(file) = segment.file() else { continue };
            if segment.synced.load(Ordering::Relaxed) < written {
                file.sync().await.map_err(|error| self.fail(&error))?;
                self.syncs.fetch_add(1, Ordering::Relaxed);
                named |= segment.synced.fetch_max(written, Ordering::Relaxed) == 0;
            }
        }
        if named {
            let synced = self.disk.sync_directory(&self.directory).await;
            synced.map_err(|error| self.fail(&error))?;
        }
        self.unsynced_from.store(point.segment, Ordering::Relaxed);
        self.tail.synced_to(point, position);
        self.answer(|waiter| (waiter.position <= position).then_some(Ok(())));
        Ok(())
    }

    fn answer_full(&self) -> StorageError {
        let written = self.tail.written.load(Ordering::Acquire);
        self.answer(|waiter| (waiter.position > written).then_some(Err(StorageError::Full)));
        StorageError::Full
    }

    /// Answers all waiters for whom there is an answer.
    pub(super) fn answer(&self, answer: impl Fn(&Waiter) -> Option<Result<(), StorageError>>) {
        let mut waiters = self.waiters.lock();
        let mut position = 0;
        while position < waiters.len() {
            match answer(&waiters[position]) {
                Some(outcome) => {
                    let _ = waiters.swap_remove(position).answer.send(outcome);
                }
                None => position += 1,
            }
        }
    }
}

fn answered(outcome: Result<(), StorageError>) -> Durable {
    Durable::Waits(Box::pin(std::future::ready(outcome)))
}
