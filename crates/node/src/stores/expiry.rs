//! Which keys of a store hold values that expire, as far as is known without looking, and reaping: a value whose time
//! was over for longer than clocks may differ becomes a tombstone with the same dot.
//!
//! Each replica reaps by itself. Vectors and dots stay, so hash trees do not change, replicas that have reaped and
//! replicas that have not compare as equal, and a copy that comes late meets an event that is known already. What is
//! left is collected like any tombstone (`docs/design/healing.md`, *Expiry*).
//!
//! The index holds one entry of 16 bytes for a key (second, token, fingerprint): when the key may have to be looked at.
//! A write looks at the index only if its value expires, and changes it only if the record that it replaces did not
//! have an entry that is early enough; whoever takes an entry finds out when the key is really due.
//!
//! Must never: reap by an entry instead of by the record, or grow without bound. At the limit the latest entries are
//! dropped, and a walk finds them when their time comes near.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{PartitionId, Token, VersionSet, WallMillis};
use parking_lot::Mutex;
use storage::{Change, StorageError};
use wire::messages::Failure;

use super::store::{KeyPlace, LocalStore, decode, encode, refuse};

/// Entries of one store at most: 64 MiB, and up to half as much again for the tree that they are in.
const ENTRIES_MAX: usize = 4 << 20;
/// How long a value stays after it expired, so that no node forgets what another, whose clock is behind, still shows.
/// Clocks that differ by more are found in front of their node (`Answers::confirm`), not here.
pub const EXPIRY_MARGIN: Duration = Duration::from_secs(600);

/// Keys that hold values that expire.
pub(crate) struct Expiring {
    entries: Mutex<Entries>,
    margin_ms: u64,
    reaped: AtomicU64,
    reaped_bytes: AtomicU64,
}

struct Entries {
    /// Ordered by second, then token, then fingerprint.
    known: BTreeSet<u128>,
    entries_max: usize,
    /// From this second on keys may be missing.
    complete_before: u32,
}

/// A key whose time may have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) token: Token,
    fingerprint: u32,
}

/// What reaping a key came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reaped {
    pub(crate) values: u64,
    pub(crate) bytes: u64,
}

/// The first full second at which all of this millisecond is over; the last there is for what lies beyond 2106.
fn second(at: WallMillis) -> u32 {
    u32::try_from(at.0.div_ceil(1000)).unwrap_or(u32::MAX)
}

impl Entries {
    fn add(&mut self, second: u32, due: Due) {
        if second >= self.complete_before {
            return;
        }
        let Due { token, fingerprint } = due;
        self.known.insert(u128::from(second) << 96 | u128::from(token.0) << 32 | u128::from(fingerprint));
        if self.known.len() > self.entries_max
            && let Some(last) = self.known.pop_last()
        {
            self.complete_before = (last >> 96) as u32;
        }
    }

    fn take(&mut self, up_to: u32, entries_max: usize) -> Vec<Due> {
        let due = |entry: &u128| (entry >> 96) as u32 <= up_to;
        let mut taken = Vec::new();
        while taken.len() < entries_max && self.known.first().is_some_and(due) {
            let entry = self.known.pop_first().expect("there is a first one");
            taken.push(Due { token: Token((entry >> 32) as u64), fingerprint: entry as u32 });
        }
        taken
    }
}

impl Expiring {
    pub(crate) fn new(margin: Duration) -> Self {
        Expiring::limited(margin, ENTRIES_MAX)
    }

    fn limited(margin: Duration, entries_max: usize) -> Self {
        let entries = Entries { known: BTreeSet::new(), entries_max, complete_before: u32::MAX };
        Expiring {
            entries: Mutex::new(entries),
            margin_ms: u64::try_from(margin.as_millis()).unwrap_or(u64::MAX),
            reaped: AtomicU64::new(0),
            reaped_bytes: AtomicU64::new(0),
        }
    }

    /// The latest time that is over for every clock at `now`.
    fn over(&self, now: WallMillis) -> WallMillis {
        WallMillis(now.0.saturating_sub(self.margin_ms))
    }
}

impl LocalStore {
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
        self.expiring.entries.lock().add(second(expires), due);
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
        let over = self.expiring.over(now).0 / 1000;
        self.expiring.entries.lock().take(u32::try_from(over).unwrap_or(u32::MAX), keys_max)
    }

    /// Reaps what is over at `now` in the record of a key, and remembers when it is due next.
    ///
    /// # Errors
    /// What the engine refuses; the key will be looked at again a minute later.
    pub(crate) fn reap(&self, partition: PartitionId, due: Due, now: WallMillis) -> Result<Reaped, Failure> {
        let again = |error: StorageError| {
            let later = WallMillis(now.0.saturating_sub(self.expiring.margin_ms).saturating_add(60_000));
            self.expiring.entries.lock().add(second(later), due);
            refuse(error)
        };
        let mut reaped = Reaped::default();
        let found = self.engine().find(partition, due.token, due.fingerprint).map_err(again)?;
        for (key, _) in found {
            let place = KeyPlace { partition, token: due.token };
            let once = self.reap_one(place, &key, now).map_err(again)?;
            (reaped.values, reaped.bytes) = (reaped.values + once.values, reaped.bytes + once.bytes);
        }
        self.expiring.reaped.fetch_add(reaped.values, Ordering::Relaxed);
        self.expiring.reaped_bytes.fetch_add(reaped.bytes, Ordering::Relaxed);
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
        self.expiring.entries.lock().known.len()
    }

    /// Values that were reaped since the start, and their bytes.
    pub(crate) fn reaped(&self) -> Reaped {
        Reaped {
            values: self.expiring.reaped.load(Ordering::Relaxed),
            bytes: self.expiring.reaped_bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether keys that the index had no room for may be due at `now`, so that all records must be walked. Whoever
    /// asks walks them.
    pub(crate) fn expiring_overflowed(&self, now: WallMillis) -> bool {
        let mut entries = self.expiring.entries.lock();
        let over = self.expiring.over(now).0 / 1000;
        let walk = entries.complete_before < u32::MAX && u64::from(entries.complete_before) <= over;
        if walk {
            entries.complete_before = u32::MAX;
        }
        walk
    }
}

#[cfg(test)]
mod trials;
