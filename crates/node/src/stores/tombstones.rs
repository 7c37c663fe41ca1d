//! Which keys of a store are nothing but tombstones here, as far as is known without looking.
//!
//! Whoever stores a tombstone adds its key; nobody removes one for a later write, so a put costs nothing. Whoever takes
//! candidates looks at their records, and drops those that have changed. What was there before the process began is
//! found by one walk in the background.
//!
//! Must never: grow without bound. At the limit keys are not remembered; a later walk finds them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use model::Token;
use parking_lot::Mutex;

/// Keys that one store remembers at most: 16 MiB with keys of 100 bytes.
const KEYS_MAX: usize = 100_000;

/// Keys with tombstones.
#[derive(Default)]
pub(crate) struct Tombstones {
    keys: Mutex<BTreeMap<(Token, Bytes), ()>>,
    overflowed: AtomicBool,
}

impl Tombstones {
    /// A tombstone was stored.
    pub(crate) fn add(&self, token: Token, key: &[u8]) {
        let mut keys = self.keys.lock();
        if keys.len() < KEYS_MAX {
            keys.insert((token, Bytes::copy_from_slice(key)), ());
        } else {
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
        keys.range((from, std::ops::Bound::Unbounded))
            .take(keys_max)
            .map(|(place, ())| place.clone())
            .collect()
    }

    /// How many are known.
    pub(crate) fn len(&self) -> usize {
        self.keys.lock().len()
    }

    /// Whether some were not remembered since this was last asked, so that a walk is due.
    pub(crate) fn take_overflowed(&self) -> bool {
        self.overflowed.swap(false, Ordering::Relaxed)
    }
}
