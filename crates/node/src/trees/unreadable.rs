//! Places of records that cannot be read. Whoever can read the records says which are left (`crate::stores`).
//!
//! Must never: forget a place at which nobody has read a record since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use model::{PartitionId, Token};
use runtime::locks::Mutex;

/// Places that are remembered of one partition. With more, it counts as unreadable until the node is started again.
pub(crate) const PLACES_MAX: usize = 4096;

/// Places of one store.
#[derive(Default)]
pub(crate) struct Unreadable {
    /// There is at least one; while there is none, nobody takes the lock.
    any: AtomicBool,
    places: Mutex<BTreeMap<PartitionId, BTreeSet<Token>>>,
}

impl Unreadable {
    /// A record with this token could not be read.
    pub(crate) fn note(&self, partition: PartitionId, token: Token) {
        let mut places = self.places.lock();
        let of = places.entry(partition).or_default();
        if of.len() < PLACES_MAX {
            of.insert(token);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Those of a partition.
    pub(crate) fn of(&self, partition: PartitionId) -> BTreeSet<Token> {
        if !self.any.load(Ordering::Acquire) {
            return BTreeSet::new();
        }
        self.places.lock().get(&partition).cloned().unwrap_or_default()
    }

    /// The partitions that have some.
    pub(crate) fn partitions(&self) -> Vec<PartitionId> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.places.lock().keys().copied().collect()
    }

    /// A record with this token can be read again, or is gone.
    pub(crate) fn mended(&self, partition: PartitionId, token: Token) {
        let mut places = self.places.lock();
        if let Some(of) = places.get_mut(&partition)
            // One that is full may have left some out.
            && of.len() < PLACES_MAX
        {
            of.remove(&token);
        }
        places.retain(|_, of| !of.is_empty());
        self.any.store(!places.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: PartitionId = PartitionId(3);

    #[test]
    fn a_place_is_forgotten_when_it_is_mended_and_others_stay() {
        let known = Unreadable::default();
        assert_eq!(known.of(HERE), BTreeSet::new());
        known.note(HERE, Token(1));
        known.note(HERE, Token(2));
        known.note(PartitionId(4), Token(1));
        known.mended(HERE, Token(1));
        assert_eq!(known.of(HERE), [Token(2)].into());
        known.mended(HERE, Token(2));
        assert_eq!((known.of(HERE), known.of(PartitionId(4))), (BTreeSet::new(), [Token(1)].into()));
        assert!(!known.places.lock().contains_key(&HERE), "a partition without one is not told of");
        known.mended(PartitionId(4), Token(1));
        assert!(!known.any.load(Ordering::Acquire), "nobody has to look any more");
    }

    /// What was left out may still be unreadable.
    #[test]
    fn a_partition_with_more_damaged_places_than_are_remembered_stays_unreadable() {
        let known = Unreadable::default();
        let all = || (0..PLACES_MAX as u64).map(Token);
        all().skip(1).for_each(|token| known.note(HERE, token));
        known.mended(HERE, Token(7));
        assert_eq!(known.of(HERE).len(), PLACES_MAX - 2, "none was left out so far");
        all().for_each(|token| known.note(HERE, token));
        known.note(HERE, Token(u64::MAX));
        assert_eq!(known.of(HERE).len(), PLACES_MAX);
        all().for_each(|token| known.mended(HERE, token));
        assert_eq!(known.of(HERE).len(), PLACES_MAX);
    }
}
