//! Whether the engine still works, and why not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::StorageError;

/// Open; then closed, failed, or both. Nothing leads back.
#[derive(Default)]
pub(super) struct Life {
    /// Why the engine refuses all work, once the disk has broken a promise.
    fatal: OnceLock<String>,
    closed: AtomicBool,
    /// `fatal` is set, or `closed` is: one load for every call.
    refusing: AtomicBool,
}

impl Life {
    /// True when all work is refused.
    pub(super) fn is_refusing(&self) -> bool {
        self.refusing.load(Ordering::Acquire)
    }

    /// True when the disk has broken a promise.
    pub(super) fn has_failed(&self) -> bool {
        self.fatal.get().is_some()
    }

    /// Refuses once the engine has been closed or has failed.
    pub(super) fn check(&self) -> Result<(), StorageError> {
        match self.is_refusing() {
            false => Ok(()),
            true => Err(self.refusal()),
        }
    }

    /// Why work is refused. Only an engine that refuses has an answer.
    pub(super) fn refusal(&self) -> StorageError {
        match self.fatal.get() {
            Some(reason) => StorageError::Fatal { reason: reason.clone() },
            None => {
                assert!(
                    self.closed.load(Ordering::Acquire),
                    "an engine refuses when it failed or was closed"
                );
                StorageError::Closed
            }
        }
    }

    /// Refuses all work from now on; true for the first failure, whose reason stays.
    pub(super) fn fail(&self, reason: String) -> bool {
        let first = self.fatal.set(reason).is_ok();
        self.refusing.store(true, Ordering::Release);
        first
    }

    /// Refuses all work from now on; true when it was closed before.
    pub(super) fn close(&self) -> bool {
        let before = self.closed.swap(true, Ordering::AcqRel);
        self.refusing.store(true, Ordering::Release);
        before
    }
}
