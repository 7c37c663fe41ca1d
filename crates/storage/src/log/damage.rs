//! Which places of the log were found damaged, and what became of them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use runtime::locks::Mutex;

use crate::engine::DamageStats;

/// Damaged places that are told apart; beyond it they are no longer counted.
const PLACES_MAX: usize = 100_000;

/// Segment and offset.
pub(super) type DamagedPlace = (u32, u32);

/// What is known of a damaged place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// A key's entry points at it.
    Held,
    /// Found at opening, with no entry that points at it: the key cannot be known.
    Unplaced,
    /// Discarded, or settled.
    Gone,
}

/// The damaged places that were met.
pub(super) struct Damage {
    known: Mutex<Known>,
}

struct Known {
    places: BTreeMap<DamagedPlace, Fate>,
    /// How many of the places are not gone, and how many of these are unplaced.
    left: u64,
    unplaced: u64,
}

impl Known {
    fn set(&mut self, place: DamagedPlace, fate: Fate) {
        let count = |fate: Fate| (u64::from(fate != Fate::Gone), u64::from(fate == Fate::Unplaced));
        let before = self.places.insert(place, fate).map_or((0, 0), count);
        let after = count(fate);
        assert!(self.left >= before.0 && self.unplaced >= before.1, "each place was counted when it was met");
        self.left = self.left + after.0 - before.0;
        self.unplaced = self.unplaced + after.1 - before.1;
        assert!(
            self.unplaced <= self.left && self.left <= self.places.len() as u64,
            "what is left was found: {} unplaced, {} left, {} found",
            self.unplaced,
            self.left,
            self.places.len()
        );
    }
}

impl Damage {
    /// What opening found: places that entries point at, and others.
    pub(super) fn found(
        held: impl IntoIterator<Item = DamagedPlace>,
        unplaced: impl IntoIterator<Item = DamagedPlace>,
    ) -> Damage {
        let mut known = Known { places: BTreeMap::new(), left: 0, unplaced: 0 };
        unplaced.into_iter().for_each(|place| known.set(place, Fate::Unplaced));
        held.into_iter().for_each(|place| known.set(place, Fate::Held));
        Damage { known: Mutex::new(known) }
    }

    /// A record that an entry points at cannot be read; true when this is news.
    pub(super) fn meet(&self, place: DamagedPlace) -> bool {
        let mut known = self.known.lock();
        let room = known.places.len() < PLACES_MAX;
        match known.places.entry(place) {
            Entry::Vacant(_) if room => known.set(place, Fate::Held),
            Entry::Vacant(_) | Entry::Occupied(_) => return false,
        }
        true
    }

    /// All that were met.
    pub(super) fn places(&self) -> BTreeSet<DamagedPlace> {
        self.known.lock().places.keys().copied().collect()
    }

    /// A damaged record is in the index no more: nobody meets it again.
    pub(super) fn discard(&self, place: DamagedPlace) {
        let mut known = self.known.lock();
        if known.places.contains_key(&place) {
            known.set(place, Fate::Gone);
        }
    }

    /// Places without entries count as left no more.
    pub(super) fn settle_unplaced(&self) {
        let mut known = self.known.lock();
        let unplaced = |(&place, &fate): (&DamagedPlace, &Fate)| (fate == Fate::Unplaced).then_some(place);
        let settled: Vec<DamagedPlace> = known.places.iter().filter_map(unplaced).collect();
        settled.into_iter().for_each(|place| known.set(place, Fate::Gone));
        assert!(known.unplaced == 0, "all of them are settled");
    }

    pub(super) fn stats(&self) -> DamageStats {
        let known = self.known.lock();
        DamageStats { found: known.places.len() as u64, left: known.left, unplaced: known.unplaced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_counts_once_whatever_becomes_of_it() {
        let damage = Damage::found([(1, 64)], [(1, 0), (2, 0)]);
        let stats = |damage: &Damage| {
            let DamageStats { found, left, unplaced } = damage.stats();
            (found, left, unplaced)
        };
        assert_eq!(stats(&damage), (3, 3, 2));
        assert!(!damage.meet((1, 64)), "it is known");
        assert!(damage.meet((3, 8)));
        assert_eq!(stats(&damage), (4, 4, 2));
        // One that passed for unplaced turns out to have an entry, which is discarded: it is settled only once.
        damage.discard((1, 0));
        damage.discard((1, 0));
        assert_eq!(stats(&damage), (4, 3, 1));
        damage.settle_unplaced();
        damage.settle_unplaced();
        assert_eq!(stats(&damage), (4, 2, 0));
        damage.discard((9, 9));
        assert_eq!(stats(&damage), (4, 2, 0), "nobody has met it");
    }

    #[test]
    fn beyond_the_limit_places_are_not_counted() {
        let damage = Damage::found((0..PLACES_MAX as u32).map(|offset| (1, offset)), []);
        assert!(!damage.meet((2, 0)));
        assert_eq!(damage.stats().found, PLACES_MAX as u64);
        assert!(!damage.meet((1, 0)), "it is known");
    }
}
