//! How gets ended that this node drove: what an operator should know of, and a client may not be able to tell.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::error::ErrorCode;
use wire::messages::{Failure, Got};

/// Counts of one store's gets since the start, other than of those that R replicas have answered.
#[derive(Debug, Default)]
pub(crate) struct GetNumbers {
    sloppy: AtomicU64,
    unavailable: AtomicU64,
}

impl GetNumbers {
    /// Counts a get of one key.
    pub(crate) fn count(&self, answer: &Result<Got, Failure>) {
        match answer {
            Ok(got) if got.sloppy => self.sloppy.fetch_add(1, Ordering::Relaxed),
            // The values before it have filled the answer: it was not read.
            Err(failure) if failure.code != ErrorCode::FrameTooLong => {
                self.unavailable.fetch_add(1, Ordering::Relaxed)
            }
            _ => 0,
        };
    }

    /// Gets that gave a value which fewer than R replicas had answered.
    pub(crate) fn sloppy(&self) -> u64 {
        self.sloppy.load(Ordering::Relaxed)
    }

    /// Gets that failed because too few replicas answered.
    pub(crate) fn unavailable(&self) -> u64 {
        self.unavailable.load(Ordering::Relaxed)
    }
}
