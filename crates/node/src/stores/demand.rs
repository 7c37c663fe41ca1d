//! What clients asked of one store: how many keys their reads name, and how much they write. Counters only grow.
//!
//! ```text
//!   Redis, HTTP, thin clients ──▶ Front: reads, whole ──┐
//!   clients that drive reads ───▶ native door: parts ───┼──▶ `tontine store advise`
//!   stamps ─────────────────────────────────────────────┘
//! ```
//!
//! Must never: count what other nodes ask, which has been counted where it was driven; take a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use model::limits::MULTI_KEYS_MAX;
use protocol::report::{KeyCounts, StoreDemand};

/// Up to here each number of keys is its own class.
const EXACT: usize = 32;
/// Classes of each power of two above.
const STEPS: usize = 16;
/// All classes.
const CLASSES: usize = class(MULTI_KEYS_MAX) + 1;

/// What was asked since the start.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    stamped: AtomicU64,
    reads: Classes,
    parts: Classes,
}

#[derive(Debug)]
struct Classes([AtomicU64; CLASSES]);

impl Default for Classes {
    fn default() -> Self {
        Classes(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Demand {
    /// A write was stamped here.
    pub(crate) fn add_stamped(&self) {
        self.stamped.fetch_add(1, Ordering::Relaxed);
    }

    /// A read of this many keys is driven here; one of a single key does not count.
    pub(crate) fn add_read(&self, keys: usize) {
        self.reads.add(keys);
    }

    /// A client asked for this many keys of a read that it drives itself.
    pub(crate) fn add_part(&self, keys: usize) {
        self.parts.add(keys);
    }

    /// What was asked so far.
    pub(crate) fn report(&self) -> StoreDemand {
        StoreDemand {
            stamped_total: self.stamped.load(Ordering::Relaxed),
            reads_whole: self.reads.told(),
            reads_in_parts: self.parts.told(),
        }
    }
}

impl Classes {
    fn add(&self, keys: usize) {
        if keys > 1 {
            self.0[class(keys).min(CLASSES - 1)].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn told(&self) -> KeyCounts {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(class, count)| (least(class), count)).collect()
    }
}

const fn class(keys: usize) -> usize {
    if keys < EXACT {
        return keys;
    }
    let power = keys.ilog2() as usize;
    EXACT + (power - 5) * STEPS + (keys >> (power - 4)) - STEPS
}

/// The least number of keys of a class.
fn least(class: usize) -> u32 {
    let keys = match class.checked_sub(EXACT) {
        None => class,
        Some(above) => (STEPS + above % STEPS) << (above / STEPS + 1),
    };
    keys as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_are_exact_and_large_ones_lose_a_sixteenth_at_most() {
        for keys in 0..=MULTI_KEYS_MAX {
            let told = least(class(keys)) as usize;
            assert!(told <= keys && keys - told <= keys / 16, "{keys} {told}");
            assert!(keys >= EXACT || told == keys);
        }
    }

    #[test]
    fn demand_ignores_reads_of_one_key_and_takes_reads_of_any_size() {
        let demand = Demand::default();
        [1, 20, 20, 500, 1_000_000].into_iter().for_each(|keys| demand.add_read(keys));
        demand.add_part(7);
        demand.add_stamped();
        let reads_whole = vec![(20, 2), (496, 1), (9_728, 1)];
        assert_eq!(
            demand.report(),
            StoreDemand { stamped_total: 1, reads_whole, reads_in_parts: vec![(7, 1)] }
        );
    }
}
