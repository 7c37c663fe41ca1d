//! What a get found.

use bytes::Bytes;
use model::{Context, Version, VersionSet, WallMillis};
use wire::error::ErrorCode;
use wire::messages::{Failure, Got};

/// The state of a key as its read quorum knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub(crate) set: VersionSet,
    pub(crate) now: WallMillis,
    pub(crate) replicas_answered: u8,
    pub(crate) sloppy: bool,
    pub(crate) merged: bool,
}

impl Found {
    /// What a get has answered, looked at now.
    ///
    /// # Errors
    /// When no value is left of it, and too few replicas have answered to say that there is none.
    pub(crate) fn of(got: Got, now: WallMillis) -> Result<Found, Failure> {
        let Got { set, replicas_answered, sloppy } = got;
        if sloppy && set.live(now).next().is_none() {
            let detail = "too few replicas can answer, and the value that was found has just expired";
            return Err(Failure::new(ErrorCode::InsufficientReplicas, detail));
        }
        Ok(Found { set, now, replicas_answered, sloppy, merged: false })
    }

    /// The value that last-write-wins shows; `None` when the key was never written, was deleted, or has expired.
    pub fn value(&self) -> Option<Bytes> {
        self.set.winner().and_then(|winner| winner.live(self.now)).cloned()
    }

    /// Every concurrent value, in a fixed order. More than one means that writers did not see each other.
    pub fn values(&self) -> impl Iterator<Item = &Bytes> {
        self.set.versions().iter().filter_map(|version| version.live(self.now))
    }

    /// Every version that nothing known has replaced, deletions included.
    pub fn versions(&self) -> &[Version] {
        self.set.versions()
    }

    /// When it was read: what expires is judged by it.
    pub fn now(&self) -> WallMillis {
        self.now
    }

    /// What this get has seen, for the next put to hand back.
    pub fn context(&self) -> Context {
        self.set.context()
    }

    /// The whole state, for tools.
    pub fn set(&self) -> &VersionSet {
        &self.set
    }

    /// How many nodes answered.
    pub fn replicas_answered(&self) -> u8 {
        self.replicas_answered
    }

    /// Whether siblings were found, and their merge was written before this was read.
    pub fn is_merged(&self) -> bool {
        self.merged
    }

    /// Whether fallbacks had to answer for replicas, so that an acknowledged write may have been missed.
    pub fn is_sloppy(&self) -> bool {
        self.sloppy
    }
}
