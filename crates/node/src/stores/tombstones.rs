//! Which keys of a store are nothing but tombstones here, as far as is known without looking.
//!
//! Whoever stores a tombstone adds its key; nobody removes one for a later write, so a put costs nothing. Whoever takes
//! candidates looks at their records, and drops those that have changed. What was there before the process began is
//! found by one walk in the background.
//!
//! Must never: grow without bound. At the limit keys are not remembered; a later walk finds them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use model::{PartitionId, Token};
use runtime::locks::Mutex;
use storage::ScanCursor;

/// Keys that one store remembers at most: 16 MiB with keys of 100 bytes.
const KEYS_MAX: usize = 100_000;

/// Keys with tombstones.
pub(crate) struct Tombstones {
    keys: Mutex<BTreeSet<(Token, Bytes)>>,
    keys_max: usize,
    overflowed: AtomicBool,
    /// Where a walk ran out of room: the next one begins there.
    resume: Mutex<Option<WalkPlace>>,
}

/// A partition, and how far a walk of it had come.
pub(crate) type WalkPlace = (PartitionId, Option<ScanCursor>);

impl Default for Tombstones {
    fn default() -> Self {
        Tombstones::of_at_most(KEYS_MAX)
    }
}

impl Tombstones {
    pub(super) fn of_at_most(keys_max: usize) -> Self {
        let (keys, overflowed, resume) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        Tombstones { keys, keys_max, overflowed, resume }
    }

    /// A tombstone was stored.
    pub(crate) fn add(&self, token: Token, key: &[u8]) {
        let mut keys = self.keys.lock();
        let place = (token, Bytes::copy_from_slice(key));
        if keys.len() < self.keys_max {
            keys.insert(place);
        } else if !keys.contains(&place) {
            self.overflowed.store(true, Ordering::Relaxed);
        }
        assert!(keys.len() <= self.keys_max, "what is remembered has a limit");
    }

    /// There is none any more.
    pub(crate) fn remove(&self, token: Token, key: &Bytes) {
        self.keys.lock().remove(&(token, key.clone()));
    }

    /// The first keys after this place.
    pub(crate) fn after(&self, after: Option<&(Token, Bytes)>, keys_max: usize) -> Vec<(Token, Bytes)> {
        let keys = self.keys.lock();
        let from = after.map_or(std::ops::Bound::Unbounded, |place| std::ops::Bound::Excluded(place.clone()));
        keys.range((from, std::ops::Bound::Unbounded)).take(keys_max).cloned().collect()
    }

    /// How many are known.
    pub(crate) fn len(&self) -> usize {
        self.keys.lock().len()
    }

    /// Whether a walk is due, which finds what was not remembered: not before there is room for much of it, because a
    /// walk reads everything. Whoever asks walks.
    pub(crate) fn take_overflowed(&self) -> bool {
        self.len() <= self.keys_max / 2 && self.overflowed.swap(false, Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.keys_max
    }

    /// A walk has found no more room at this place, so another one is due, which begins there.
    pub(super) fn resume_at(&self, place: WalkPlace) {
        self.overflowed.store(true, Ordering::Relaxed);
        *self.resume.lock() = Some(place);
    }

    /// Where the last walk ran out of room.
    pub(super) fn take_resume(&self) -> Option<WalkPlace> {
        self.resume.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_for_dropped_tombstones_is_due_only_once_there_is_room_again() {
        let tombstones = Tombstones::of_at_most(4);
        let places: Vec<(Token, Bytes)> =
            (0..4).map(|number| (Token(number), Bytes::from(format!("k{number}")))).collect();
        for (token, key) in places.iter().chain(&places) {
            tombstones.add(*token, key);
        }
        assert!(!tombstones.overflowed.load(Ordering::Relaxed), "what is known needs no room");
        tombstones.add(Token(9), b"one more");
        assert!(!tombstones.take_overflowed(), "there is no room");
        tombstones.remove(places[0].0, &places[0].1);
        assert!(!tombstones.take_overflowed(), "there is hardly room");
        tombstones.remove(places[1].0, &places[1].1);
        assert!(tombstones.take_overflowed());
        assert!(!tombstones.take_overflowed(), "one walk is enough");
    }

    #[test]
    fn a_walk_that_ran_out_of_room_is_resumed_once() {
        let tombstones = Tombstones::of_at_most(4);
        assert_eq!(tombstones.take_resume(), None);
        let place = (PartitionId(3), Some(ScanCursor { token: Token(7), key: Bytes::from("k") }));
        tombstones.resume_at(place.clone());
        assert!(tombstones.take_overflowed(), "another walk is due");
        assert_eq!(tombstones.take_resume(), Some(place));
        assert_eq!(tombstones.take_resume(), None, "the next one begins at the beginning");
    }
}
