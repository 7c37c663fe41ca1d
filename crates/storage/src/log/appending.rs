//! The end of the log and all who wait for it: what is appended, how far it is synced, and who is told.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::life::Life;
use super::tail::{Point, Tail};
use crate::engine::Durable;
use crate::error::StorageError;

/// The log's end, as writers and the committer share it.
pub(super) struct Appending {
    tail: Tail,
    /// The lowest segment id that may hold unsynced bytes of the log. Only grows.
    unsynced_from: AtomicU32,
    /// Writers that wait for a position beyond what is synced.
    waiters: Mutex<Vec<Waiter>>,
    /// Something was appended that the committer has not seen.
    dirty: AtomicBool,
    committer: Notify,
    /// Held over one commit, so that the committer, a snapshot and a close do not overlap.
    committing: tokio::sync::Mutex<()>,
    syncs: AtomicU64,
}

/// A writer that waits until the log is synced up to a position.
pub(super) struct Waiter {
    pub(super) position: u64,
    answer: oneshot::Sender<Result<(), StorageError>>,
}

impl Appending {
    pub(super) fn new(tail: Tail, unsynced_from: u32) -> Appending {
        assert!(unsynced_from <= tail.end().point.segment, "the log ends behind what is not synced of it");
        Appending {
            tail,
            unsynced_from: AtomicU32::new(unsynced_from),
            waiters: Mutex::new(Vec::new()),
            dirty: AtomicBool::new(false),
            committer: Notify::new(),
            committing: tokio::sync::Mutex::new(()),
            syncs: AtomicU64::new(0),
        }
    }

    pub(super) fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Wakes the committer, whatever there is to do.
    pub(super) fn wake(&self) {
        self.committer.notify_one();
    }

    /// Something was appended: wakes the committer, unless it knows.
    pub(super) fn note(&self) {
        if !self.dirty.swap(true, Ordering::AcqRel) {
            self.committer.notify_one();
        }
    }

    /// Waits until somebody wakes the committer.
    pub(super) async fn woken(&self) {
        self.committer.notified().await;
    }

    /// The committer is about to look at everything that was appended so far.
    pub(super) fn seen(&self) {
        self.dirty.store(false, Ordering::Release);
    }

    /// Waits until no other commit is under way, and keeps others away.
    pub(super) async fn begin_commit(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.committing.lock().await
    }

    /// Waits until the log is synced up to a position.
    pub(super) fn wait_for(&self, position: u64, life: &Life) -> Durable {
        if self.tail.synced() >= position {
            return Durable::Already;
        }
        let mut waiters = self.waiters.lock();
        // Whoever publishes a sync, a failure or the end takes this lock afterwards.
        if self.tail.synced() >= position {
            return Durable::Already;
        }
        if life.is_refusing() {
            return Durable::now(Err(life.refusal()));
        }
        let (answer, answers) = oneshot::channel();
        waiters.push(Waiter { position, answer });
        drop(waiters);
        self.wake();
        Durable::Waits(Box::pin(async move { answers.await.unwrap_or(Err(StorageError::Closed)) }))
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

    /// The lowest segment that may hold unsynced bytes.
    pub(super) fn unsynced_from(&self) -> u32 {
        self.unsynced_from.load(Ordering::Relaxed)
    }

    /// Everything up to here survives a power cut: all who waited for it are told.
    pub(super) fn synced_to(&self, point: Point, position: u64) {
        let before = self.unsynced_from.swap(point.segment, Ordering::Relaxed);
        assert!(
            before <= point.segment,
            "what is synced stays so: from {before}, then from {}",
            point.segment
        );
        self.tail.synced_to(point, position);
        self.answer(|waiter| (waiter.position <= position).then_some(Ok(())));
    }

    /// A file was synced.
    pub(super) fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Times that a file was synced.
    pub(super) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Panics unless what is synced is written, what is written was appended, and those who wait have a reason to.
    pub(super) fn validate(&self) {
        let waiters = self.waiters.lock();
        let (synced, written, end) = (self.tail.synced(), self.tail.written(), self.tail.end().position);
        assert!(synced <= written && written <= end, "{synced} synced, {written} written, {end} appended");
        let satisfied = waiters.iter().filter(|waiter| waiter.position <= synced).count();
        assert!(satisfied == 0, "{satisfied} writers wait for what is synced up to {synced}");
    }
}
