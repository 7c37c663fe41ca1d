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
use model::limits::FRAME_BYTES_MAX;
use model::{PartitionId, Token, Value, Version, VersionSet, WallMillis};
use parking_lot::Mutex;
use storage::{Change, ScanCursor, ScanLimit, StorageError};
use wire::messages::Failure;

use super::store::{KeyPlace, LocalStore, decode, refuse};

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
    fn of_at_most(keys_max: usize) -> Self {
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

    fn is_full(&self) -> bool {
        self.len() >= self.keys_max
    }
}

impl LocalStore {
    /// With room for so many keys.
    #[cfg(test)]
    pub(crate) fn remembering_tombstones(mut self, keys_max: usize) -> Self {
        self.tombstones = std::sync::Arc::new(Tombstones::of_at_most(keys_max));
        self
    }

    /// Keys that may be nothing but tombstones here, in the order of their tokens.
    pub(crate) fn tombstones_after(
        &self,
        after: Option<&(Token, Bytes)>,
        keys_max: usize,
    ) -> Vec<(Token, Bytes)> {
        self.tombstones.after(after, keys_max)
    }

    /// How many such keys are known.
    pub(crate) fn tombstones_known(&self) -> usize {
        self.tombstones.len()
    }

    /// Whether some were not remembered for want of room, and there is room now. Whoever asks walks.
    pub(crate) fn tombstones_overflowed(&self) -> bool {
        self.tombstones.take_overflowed()
    }

    /// Whether no more would be remembered.
    pub(crate) fn tombstones_full(&self) -> bool {
        self.tombstones.is_full()
    }

    /// A walk has found no more room at this place, so another one is due, which begins there.
    pub(crate) fn tombstones_unwalked(&self, place: WalkPlace) {
        self.tombstones.overflowed.store(true, Ordering::Relaxed);
        *self.tombstones.resume.lock() = Some(place);
    }

    /// Where the last walk ran out of room.
    pub(crate) fn tombstones_resume(&self) -> Option<WalkPlace> {
        self.tombstones.resume.lock().take()
    }

    /// The key turned out not to be one.
    pub(crate) fn tombstone_gone(&self, place: &(Token, Bytes)) {
        self.tombstones.remove(place.0, &place.1);
    }

    /// The key's tombstones, if it is nothing else: `Some(None)` while one of them is from the future, and must not be
    /// forgotten before that is there, because no later stamp may be smaller, or because others still show the value.
    pub(crate) fn tombstone(
        &self,
        place: KeyPlace,
        key: &[u8],
        now: WallMillis,
    ) -> Option<Option<VersionSet>> {
        let record = self.engine().get(place.partition, place.token, key).ok()??;
        let (_, set) = decode(&record, place.partition).ok()?;
        let past = || set.timestamp_max().wall() <= now && !set.is_reaped_before(now);
        set.is_deleted().then(|| past().then_some(set.clone()))
    }

    /// Merges tombstones into the record if it is not clean of them. They take the place of one that cannot be read:
    /// once they are forgotten, nobody has anything to repair it with, and it must not be found again.
    ///
    /// # Errors
    /// What the engine refuses.
    pub(crate) fn cleanse(
        &self,
        place: KeyPlace,
        key: &[u8],
        tombstones: &VersionSet,
    ) -> Result<(), Failure> {
        let held = match self.engine().get(place.partition, place.token, key) {
            Ok(None) => return Ok(()),
            Ok(Some(record)) => decode(&record, place.partition).ok().map(|(_, set)| set),
            Err(StorageError::Corrupt { .. }) => None,
            Err(error) => return Err(refuse(error)),
        };
        match held.is_some_and(|held| held.is_clean_of(tombstones)) {
            true => Ok(()),
            false => self.merge(place, key, tombstones).map(|_| ()),
        }
    }

    /// Removes the record if it says nothing but these tombstones; whether it did.
    ///
    /// # Errors
    /// What the engine refuses.
    pub(crate) fn forget(
        &self,
        place: KeyPlace,
        key: &Bytes,
        tombstones: &VersionSet,
    ) -> Result<bool, Failure> {
        let removed = self
            .update(place, key, &mut |record| {
                let set = record.and_then(|record| decode(record, place.partition).ok()).map(|(_, set)| set);
                // What covers no more than the tombstones is worth no more than they are. A value under the dot of a
                // tombstone has expired, and was not reaped here yet.
                let dead =
                    |version: &Version| version.value == Value::Tombstone || tombstones.holds(version.dot);
                let covered = set.is_some_and(|mut set| {
                    let gone = !set.versions().is_empty() && set.versions().iter().all(dead);
                    set.reap(WallMillis(u64::MAX));
                    gone && tombstones.includes(&set)
                });
                if covered { Change::Remove } else { Change::Keep }
            })
            .map_err(refuse)?
            .is_some();
        if removed {
            self.tombstones.remove(place.token, key);
        }
        Ok(removed)
    }

    /// Remembers the tombstones, and the values that expire, of one page of a partition; where the next one begins.
    ///
    /// # Errors
    /// What the engine refuses.
    pub(crate) fn note_tombstones(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        records_max: usize,
    ) -> Result<Option<ScanCursor>, Failure> {
        let limit = ScanLimit { records_max, bytes_max: FRAME_BYTES_MAX };
        let page = self.scan(partition, after, limit)?;
        for (key, set) in page.records {
            self.note(KeyPlace { partition, token: Token::of(&key) }, &key, None, &set);
        }
        Ok(page.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_is_due_for_what_had_no_room_and_only_when_there_is_room_again() {
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
}
