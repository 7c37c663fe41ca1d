//! Reaping: a value whose time was over for longer than clocks may differ becomes a tombstone with the same dot.
//!
//! Each replica reaps by itself. Vectors and dots stay, so hash trees do not change, replicas that have reaped and
//! replicas that have not compare as equal, and a copy that comes late meets an event that is known already. What is
//! left is collected like any tombstone (`docs/design/healing.md`, *Expiry*). `expiring` knows which keys to look at.
//!
//! Must never: reap by an entry instead of by the record.

use std::borrow::Cow;
#[cfg(test)]
use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use model::{PartitionId, VersionSet, WallMillis};
use storage::{Change, StorageError};
use wire::messages::Failure;

#[cfg(test)]
use super::expiring::Expiring;
use super::expiring::{Due, Reaped};
use super::record::{decode, encode, refuse};
use super::store::{KeyPlace, LocalStore};

impl LocalStore {
    /// With room for this many keys that expire.
    #[cfg(test)]
    fn remembering_expiring(mut self, margin: Duration, entries_max: usize) -> Self {
        self.expiring = Arc::new(Expiring::limited(margin, entries_max));
        self
    }

    /// Remembers a key whose record is about to hold a value that expires, if no entry stands for it.
    pub(super) fn note_expiry(
        &self,
        place: KeyPlace,
        key: &[u8],
        replaced: Option<&Bytes>,
        expires: WallMillis,
    ) {
        // Then there is an entry, or a walk will find the key.
        if replaced.and_then(wire::versions::peek_expiry).is_some_and(|before| before <= expires) {
            return;
        }
        let due = Due { token: place.token, fingerprint: storage::fingerprint(key) };
        self.expiring.add(expires, due);
    }

    /// Contents as they may be stored at `now`: without the bytes of values whose time is over for every clock.
    pub(super) fn without_expired<'s>(&self, set: &'s VersionSet) -> Cow<'s, VersionSet> {
        let mut set = Cow::Borrowed(set);
        if set.expires_min().is_some() {
            let over = self.expiring.over(self.clock().wall());
            if set.versions().iter().any(|version| version.is_over(over)) {
                set.to_mut().reap(over);
            }
        }
        set
    }

    /// Keys whose time may have come at `now`. They are not known any more until they were reaped, or put back.
    pub(crate) fn take_due(&self, now: WallMillis, keys_max: usize) -> Vec<Due> {
        self.expiring.take(now, keys_max)
    }

    /// Reaps what is over at `now` in the record of a key, and remembers when it is due next.
    ///
    /// # Errors
    /// What the engine refuses; the key will be looked at again a minute later.
    pub(crate) fn reap(&self, partition: PartitionId, due: Due, now: WallMillis) -> Result<Reaped, Failure> {
        let again = |error: StorageError| {
            self.expiring.add_again(now, due);
            refuse(error)
        };
        let mut reaped = Reaped::default();
        let found = self.engine().find(partition, due.token, due.fingerprint).map_err(again)?;
        for (key, _) in found {
            let place = KeyPlace { partition, token: due.token };
            let once = self.reap_one(place, &key, now).map_err(again)?;
            (reaped.values, reaped.bytes) = (reaped.values + once.values, reaped.bytes + once.bytes);
        }
        self.expiring.count_reaped(reaped);
        Ok(reaped)
    }

    fn reap_one(&self, place: KeyPlace, key: &[u8], now: WallMillis) -> Result<Reaped, StorageError> {
        let over = self.expiring.over(now);
        let mut reaped = Reaped::default();
        self.update(place, key, &mut |record| {
            let Some(Ok((own, mut set))) = record.map(|record| decode(record, place.partition)) else {
                return Change::Keep;
            };
            let (values, bytes) = set.reap(over);
            assert!(
                set.versions().iter().all(|version| !version.is_over(over)),
                "reaping leaves nothing that is over"
            );
            // The entry is taken: the key needs another if something of it is left to expire.
            self.note(place, key, None, &set);
            if values == 0 {
                return Change::Keep;
            }
            reaped = Reaped { values: values as u64, bytes };
            Change::Put(encode(own, &set))
        })?;
        Ok(reaped)
    }

    /// Entries of the index.
    pub(crate) fn expiring_known(&self) -> usize {
        self.expiring.len()
    }

    /// Values that were reaped since the start, and their bytes.
    pub(crate) fn reaped(&self) -> Reaped {
        self.expiring.reaped()
    }

    /// Whether keys that the index had no room for may be due at `now`, so that all records must be walked. Whoever
    /// asks walks them.
    pub(crate) fn expiring_overflowed(&self, now: WallMillis) -> bool {
        self.expiring.take_overflowed(now)
    }
}

#[cfg(test)]
mod trials;
