//! How much writers may still take of the disk.
//!
//! The disk is looked at now and then, and what is appended in between is counted down. Below the reserve puts are
//! refused before anything is written; the reserve is for removals and compaction, without which no room comes back.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::engine::Room;
use crate::error::StorageError;

/// What is left, and what there was no room for.
pub(super) struct Space {
    /// Bytes of the disk that writers may not take.
    reserve: u64,
    /// Bytes that writers may still take, as of the last look minus what was appended since. Below zero when removals
    /// or compaction have used of the reserve.
    left: AtomicI64,
    /// The last write to the file was refused for want of space.
    full: AtomicBool,
    /// Bytes of the largest put that was refused and that there was no room for at any look since; 0 for none.
    wanted: AtomicU64,
    /// Puts refused. Counted before `wanted` is set: where something is wanted, something was refused.
    refused: AtomicU64,
}

impl Space {
    pub(super) fn new(reserve: u64) -> Space {
        Space {
            reserve,
            left: AtomicI64::new(0),
            full: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The disk has been looked at: so much is available, of which so much waits to be written.
    pub(super) fn look(&self, available: u64, waiting: u64) {
        let left = i64::try_from(available.saturating_sub(waiting)).unwrap_or(i64::MAX);
        let left = left.saturating_sub(i64::try_from(self.reserve).unwrap_or(i64::MAX));
        self.left.store(left, Ordering::Relaxed);
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted > 0 && !self.is_full() && u64::try_from(left).is_ok_and(|left| left >= wanted) {
            // A larger one that is refused at this moment stays.
            let _ = self.wanted.compare_exchange(wanted, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The log has grown by so much.
    pub(super) fn take(&self, bytes: u64) {
        self.left.fetch_sub(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// Whether there is room for a put. One that takes at most half of what it replaces makes room in the end (a
    /// delete is such a put where a tombstone is remembered): it may use half of the reserve.
    ///
    /// # Errors
    /// [`StorageError::Full`]; the put is counted as refused.
    pub(super) fn check(&self, space: u64, replaced: u64) -> Result<(), StorageError> {
        debug_assert!(space > 0, "every record takes at least its header");
        let makes_room = space.saturating_mul(2) <= replaced;
        let lent = if makes_room { self.reserve / 2 } else { 0 };
        let left = self.left.load(Ordering::Relaxed).saturating_add_unsigned(lent);
        if !self.is_full() && i64::try_from(space).is_ok_and(|space| left >= space) {
            return Ok(());
        }
        self.refuse(space);
        Err(StorageError::Full)
    }

    /// A put of this many bytes was refused.
    fn refuse(&self, space: u64) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.wanted.fetch_max(space, Ordering::Release);
    }

    /// A write to the file was taken, or refused for want of space.
    pub(super) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Release);
    }

    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// True when compaction should hurry: nothing is left for writers, or not enough for one that was refused.
    pub(super) fn is_short(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.is_full()
            || u64::try_from(left).is_ok_and(|left| left < self.wanted.load(Ordering::Relaxed))
            || left <= 0
    }

    pub(super) fn room(&self) -> Room {
        let bytes = match self.is_full() {
            true => 0,
            false => u64::try_from(self.left.load(Ordering::Relaxed)).unwrap_or(0),
        };
        let wanted = self.wanted.load(Ordering::Acquire);
        let room = Room { bytes, wanted, refused: self.refused.load(Ordering::Relaxed) };
        assert!(
            room.wanted == 0 || room.refused > 0,
            "room is missing only where a put was refused: {room:?}"
        );
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_put_is_remembered_until_there_is_room_for_it() {
        let space = Space::new(1000);
        space.look(1500, 100);
        assert_eq!(space.room(), Room { bytes: 400, wanted: 0, refused: 0 });
        assert_eq!((space.check(400, 0), space.is_short()), (Ok(()), false));
        assert_eq!(space.check(401, 0), Err(StorageError::Full));
        assert_eq!(space.check(480, 0), Err(StorageError::Full));
        assert_eq!(space.room(), Room { bytes: 400, wanted: 480, refused: 2 });
        assert!(space.is_short(), "there is room, but not for what was refused");
        space.look(1479, 0);
        assert!(space.is_short());
        space.look(1480, 0);
        assert_eq!((space.room().wanted, space.is_short()), (0, false));
        assert_eq!(space.room().refused, 2);
    }

    #[test]
    fn a_put_that_makes_room_uses_half_of_the_reserve_and_no_more() {
        let space = Space::new(1000);
        space.look(1000, 0);
        assert_eq!(space.check(500, 1000), Ok(()));
        assert_eq!(space.check(500, 999), Err(StorageError::Full));
        assert_eq!(space.check(501, 2000), Err(StorageError::Full));
        space.take(100);
        assert_eq!(space.check(401, 1000), Err(StorageError::Full));
        assert_eq!(space.check(400, 1000), Ok(()));
    }

    #[test]
    fn a_disk_that_refused_a_write_has_no_room_whatever_it_says_is_available() {
        let space = Space::new(0);
        space.look(u64::MAX, 0);
        space.set_full(true);
        assert_eq!(space.check(1, 1000), Err(StorageError::Full));
        assert_eq!((space.room().bytes, space.is_short()), (0, true));
        space.look(u64::MAX, 0);
        assert_eq!(space.room().wanted, 1, "nothing says that there is room again");
        space.look(1, 0);
        space.set_full(false);
        assert!(!space.is_short(), "there is just enough for what was refused");
        space.look(u64::MAX, 0);
        assert_eq!((space.room().wanted, space.is_short()), (0, false));
    }
}
