//! Forgetting deletions: finding keys that are nothing but tombstones, cleaning replicas of them, and removing them.
//! `tombstones` knows which keys to look at; when and together with whom is the business of `collection`.

use bytes::Bytes;
use model::limits::FRAME_BYTES_MAX;
use model::{PartitionId, Token, Value, Version, VersionSet, WallMillis};
use storage::{Change, ScanCursor, ScanLimit, StorageError};
use wire::messages::Failure;

use super::record::{decode, refuse};
use super::store::{KeyPlace, LocalStore};
#[cfg(test)]
use super::tombstones::Tombstones;
use super::tombstones::WalkPlace;

impl LocalStore {
    /// With room for this many keys.
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
        self.tombstones.resume_at(place);
    }

    /// Where the last walk ran out of room.
    pub(crate) fn tombstones_resume(&self) -> Option<WalkPlace> {
        self.tombstones.take_resume()
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
        assert!(tombstones.is_deleted(), "only what is deleted is forgotten");
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
            self.note(KeyPlace { partition, token: self.token(&key) }, &key, None, &set);
        }
        Ok(page.next)
    }
}
