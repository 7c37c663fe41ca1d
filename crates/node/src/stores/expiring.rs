//! Which keys of a store hold values that expire, as far as is known without looking.
//!
//! The index holds one entry of 16 bytes for a key (second, token, fingerprint): when the key may have to be looked at.
//! A write looks at the index only if its value expires, and changes it only if the record that it replaces did not
//! have an entry that is early enough; whoever takes an entry finds out when the key is really due.
//!
//! Must never: grow without bound. At the limit the latest entries are dropped, and a walk finds them when their time
//! comes near.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{Token, WallMillis};
use runtime::locks::Mutex;

/// Entries of one store at most: 64 MiB, and up to half as much again for the tree that they are in.
const ENTRIES_MAX: usize = 4 << 20;
/// How long a value stays after it expired, so that no node forgets what another, whose clock is behind, still shows.
/// Clocks that differ by more are found in front of their node (`Answers::confirm`), not here.
pub const EXPIRY_MARGIN: Duration = Duration::from_secs(600);

/// How long after a refusal of the engine a key is looked at again.
const AGAIN_MS: u64 = 60_000;

/// Keys that hold values that expire.
pub(crate) struct Expiring {
    entries: Mutex<Entries>,
    margin_ms: u64,
    reaped: AtomicU64,
    reaped_bytes: AtomicU64,
}

struct Entries {
    /// Ordered by second, then token, then fingerprint. At most `entries_max`, none beyond `complete_before`.
    known: BTreeSet<u128>,
    entries_max: usize,
    /// From this second on keys may be missing.
    complete_before: u32,
}

/// A key whose time may have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) token: Token,
    pub(super) fingerprint: u32,
}

/// What reaping a key came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reaped {
    pub(crate) values: u64,
    pub(crate) bytes: u64,
}

/// The first full second at which all of this millisecond is over; the last there is for what lies beyond 2106.
pub(super) fn second(at: WallMillis) -> u32 {
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
        assert!(self.known.len() <= self.entries_max, "the index has a limit");
        debug_assert!(
            self.known.last().is_none_or(|last| (last >> 96) as u32 <= self.complete_before),
            "what lies beyond the time up to which the index is complete is found by a walk"
        );
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

    pub(super) fn limited(margin: Duration, entries_max: usize) -> Self {
        let entries = Entries { known: BTreeSet::new(), entries_max, complete_before: u32::MAX };
        Expiring {
            entries: Mutex::new(entries),
            margin_ms: u64::try_from(margin.as_millis()).unwrap_or(u64::MAX),
            reaped: AtomicU64::new(0),
            reaped_bytes: AtomicU64::new(0),
        }
    }

    /// A key may have to be looked at when this time is over for every clock.
    pub(super) fn add(&self, at: WallMillis, due: Due) {
        self.entries.lock().add(second(at), due);
    }

    /// A key shall be looked at again some time after `now`.
    pub(super) fn add_again(&self, now: WallMillis, due: Due) {
        let later = now.0.saturating_sub(self.margin_ms).saturating_add(AGAIN_MS);
        self.add(WallMillis(later), due);
    }

    /// Entries whose time is over at `now`, earliest first. They are not known any more.
    pub(super) fn take(&self, now: WallMillis, keys_max: usize) -> Vec<Due> {
        let over = self.over(now).0 / 1000;
        self.entries.lock().take(u32::try_from(over).unwrap_or(u32::MAX), keys_max)
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.entries.lock().known.len()
    }

    /// Whether keys that there was no room for may be due at `now`. Whoever asks looks for them.
    pub(super) fn take_overflowed(&self, now: WallMillis) -> bool {
        let mut entries = self.entries.lock();
        let over = self.over(now).0 / 1000;
        let walk = entries.complete_before < u32::MAX && u64::from(entries.complete_before) <= over;
        if walk {
            entries.complete_before = u32::MAX;
        }
        walk
    }

    /// Values were reaped.
    pub(super) fn count_reaped(&self, reaped: Reaped) {
        self.reaped.fetch_add(reaped.values, Ordering::Relaxed);
        self.reaped_bytes.fetch_add(reaped.bytes, Ordering::Relaxed);
    }

    /// Values that were reaped since the start, and their bytes.
    pub(super) fn reaped(&self) -> Reaped {
        Reaped {
            values: self.reaped.load(Ordering::Relaxed),
            bytes: self.reaped_bytes.load(Ordering::Relaxed),
        }
    }

    /// The latest time that is over for every clock at `now`.
    pub(super) fn over(&self, now: WallMillis) -> WallMillis {
        WallMillis(now.0.saturating_sub(self.margin_ms))
    }

    /// Whether an entry stands for a key at this time or earlier.
    #[cfg(test)]
    pub(super) fn stands_for(&self, due: Due, expires: WallMillis) -> bool {
        let stands = |entry: &u128| {
            (entry >> 32) as u64 == due.token.0
                && *entry as u32 == due.fingerprint
                && (entry >> 96) as u32 <= second(expires)
        };
        self.entries.lock().known.iter().any(stands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(number: u64) -> Due {
        Due { token: Token(number << 40 | 7), fingerprint: number as u32 }
    }

    #[test]
    fn entries_come_once_and_in_the_order_of_their_time() {
        let expiring = Expiring::limited(Duration::from_secs(10), 100);
        let mut entries = expiring.entries.lock();
        for (at, number) in [(30, 1), (10, 2), (20, 3), (10, 2)] {
            entries.add(at, due(number));
        }
        assert_eq!(entries.take(9, 10), []);
        assert_eq!(entries.take(20, 1), [due(2)]);
        assert_eq!(entries.take(20, 10), [due(3)]);
        assert_eq!(entries.take(u32::MAX, 10), [due(1)]);
    }

    #[test]
    fn the_latest_entries_are_dropped_at_the_limit_and_the_cutoff_is_known() {
        let expiring = Expiring::limited(Duration::from_secs(10), 3);
        let mut entries = expiring.entries.lock();
        for number in [50, 10, 40, 20, 30, 45, 60] {
            entries.add(number, due(u64::from(number)));
        }
        assert_eq!(entries.complete_before, 40);
        assert_eq!(entries.take(u32::MAX, 10), [due(10), due(20), due(30)]);
    }

    #[test]
    fn a_walk_is_due_once_dropped_entries_have_expired_by_every_clock() {
        let expiring = Expiring::limited(Duration::from_secs(10), 1);
        let far = WallMillis(u64::MAX);
        expiring.add(WallMillis(40_000), due(40));
        assert!(!expiring.take_overflowed(far), "nothing was dropped, so nothing is looked for");
        expiring.add(WallMillis(30_000), due(30));
        assert!(!expiring.take_overflowed(WallMillis(49_999)), "a second is missing for the slowest clock");
        assert!(expiring.take_overflowed(WallMillis(50_000)));
        assert!(!expiring.take_overflowed(far), "the caller has looked");
        expiring.add(WallMillis(20_000), due(20));
        assert!(expiring.take_overflowed(WallMillis(90_000)), "more was dropped since");
    }

    #[test]
    fn a_second_is_not_over_before_its_milliseconds_are() {
        assert_eq!([0, 1, 1000, 1001].map(|at| second(WallMillis(at))), [0, 1, 1, 2]);
        assert_eq!(second(WallMillis(u64::MAX)), u32::MAX);
    }
}
