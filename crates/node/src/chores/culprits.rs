//! What a chore was at when it panicked: its next rounds come to that last, so that one bad partition stops no other.
//!
//! ```text
//!   panicked at: 1 2 3 4 ──▶ 1 2 │ 3 4 ──▶ panicked at 1 2: 3 4 │ 1 │ 2 ──▶ 3 4 went well: 1 │ 2
//! ```
//!
//! Partitions that were tried together are halved with each panic, so of a thousand the bad one is alone after ten.
//! What went well is postponed no more.
//!
//! It outlives the chore: it lies with what the chore works for.
//!
//! Must never: leave something out. What is postponed comes last, and comes.

use std::collections::{BTreeMap, BTreeSet};

use model::{PartitionId, StoreName};
use runtime::locks::Mutex;

/// A partition of a store at which a chore may have panicked.
pub(crate) type Culprit = (StoreName, PartitionId);

/// Those of one chore.
#[derive(Default)]
pub(crate) struct Culprits(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// What the round is at.
    tried: Vec<(StoreName, Vec<PartitionId>)>,
    /// Each to be tried together, in this order, behind all others.
    groups: Vec<Vec<Culprit>>,
}

impl Known {
    fn take_tried(&mut self) -> Vec<Culprit> {
        let tried = std::mem::take(&mut self.tried).into_iter();
        tried.flat_map(|(store, ids)| ids.into_iter().map(move |id| (store.clone(), id))).collect()
    }

    fn acquit(&mut self, whom: &[Culprit]) {
        let whom: BTreeSet<&Culprit> = whom.iter().collect();
        self.groups.iter_mut().for_each(|group| group.retain(|culprit| !whom.contains(culprit)));
        self.groups.retain(|group| !group.is_empty());
    }
}

impl Culprits {
    /// A round begins: what the one before was at, and has not ended, is postponed. Says what is to come last.
    pub(crate) fn round(&self) -> Postponed {
        let mut known = self.0.lock();
        let tried = known.take_tried();
        // Their place is the last one from now on.
        known.acquit(&tried);
        let (first, second) = tried.split_at(tried.len() / 2);
        let halves = [first, second].into_iter().filter(|half| !half.is_empty());
        known.groups.extend(halves.map(<[Culprit]>::to_vec));
        let places = known.groups.iter().enumerate();
        let places =
            places.flat_map(|(place, group)| group.iter().map(move |culprit| (culprit.clone(), place)));
        Postponed { places: places.collect(), groups: known.groups.clone() }
    }

    /// The round comes to these partitions, too.
    pub(crate) fn begin(&self, store: &StoreName, partitions: impl IntoIterator<Item = PartitionId>) {
        self.0.lock().tried.push((store.clone(), partitions.into_iter().collect()));
    }

    /// What the round was at went well.
    pub(crate) fn over(&self) {
        let mut known = self.0.lock();
        if known.groups.is_empty() {
            return known.tried.clear();
        }
        let tried = known.take_tried();
        known.acquit(&tried);
    }

    /// These went well, or there is nothing to do about them any more.
    pub(crate) fn acquit(&self, whom: &[Culprit]) {
        self.0.lock().acquit(whom);
    }
}

/// What comes last in a round.
pub(crate) struct Postponed {
    /// Each with its group.
    places: BTreeMap<Culprit, usize>,
    groups: Vec<Vec<Culprit>>,
}

impl Postponed {
    /// Each to be tried together, in this order.
    pub(crate) fn groups(&self) -> &[Vec<Culprit>] {
        &self.groups
    }

    /// In which of the groups this is.
    pub(crate) fn place(&self, store: &StoreName, partition: PartitionId) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        self.places.get(&(store.clone(), partition)).copied()
    }

    /// Orders work of which each piece has its own turn: what is postponed comes last.
    pub(crate) fn order<W>(&self, work: &mut [W], is: impl Fn(&W, &Culprit) -> bool) {
        let turn = |piece: &W| {
            let found = self.groups.iter().position(|group| group.iter().any(|culprit| is(piece, culprit)));
            found.map_or(0, |position| position + 1)
        };
        if !self.groups.is_empty() {
            work.sort_by_cached_key(turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(name: &str) -> StoreName {
        StoreName::new(name).unwrap()
    }

    fn groups(culprits: &Culprits) -> Vec<Vec<u32>> {
        let round = culprits.round();
        round.groups().iter().map(|group| group.iter().map(|(_, id)| id.0).collect()).collect()
    }

    fn begin(culprits: &Culprits, partitions: impl IntoIterator<Item = u32>) {
        culprits.begin(&store("s"), partitions.into_iter().map(PartitionId));
    }

    #[test]
    fn what_panics_is_halved_and_comes_last_until_it_goes_well() {
        let culprits = Culprits::default();
        begin(&culprits, 0..4);
        culprits.over();
        assert_eq!(groups(&culprits), Vec::<Vec<u32>>::new(), "all went well");
        begin(&culprits, 1..=4);
        assert_eq!(groups(&culprits), [[1, 2], [3, 4]]);
        begin(&culprits, [1, 2]);
        assert_eq!(groups(&culprits), [vec![3, 4], vec![1], vec![2]], "it panicked again");
        begin(&culprits, [3, 4]);
        culprits.over();
        begin(&culprits, [1]);
        assert_eq!(groups(&culprits), [[2], [1]], "it panicked alone, and the other one is tried before it");
        culprits.acquit(&[(store("s"), PartitionId(1))]);
        assert_eq!(groups(&culprits), [[2]]);
    }

    #[test]
    fn one_bad_partition_of_many_is_alone_after_as_many_panics_as_it_can_be_halved() {
        let (culprits, bad) = (Culprits::default(), 700);
        let (mut panics, mut done) = (0, BTreeSet::new());
        begin(&culprits, 0..1024);
        while panics < 11 {
            let next = groups(&culprits);
            let panicked = next.iter().find(|group| {
                begin(&culprits, (*group).iter().copied());
                if group.contains(&bad) {
                    return true;
                }
                culprits.over();
                done.extend((*group).iter().copied());
                false
            });
            panics += 1;
            assert!(panicked.is_some(), "the bad one is never left out");
        }
        assert_eq!(done.len(), 1023, "all others were done meanwhile");
        assert_eq!(groups(&culprits), [[bad]]);
    }

    #[test]
    fn pieces_of_work_come_in_the_order_of_blame_behind_all_others() {
        let culprits = Culprits::default();
        for partition in [5, 3] {
            begin(&culprits, [partition]);
            culprits.round();
        }
        let (round, mut work) = (culprits.round(), [1, 3, 4, 5, 6]);
        round.order(&mut work, |piece, (_, id)| id.0 == *piece);
        assert_eq!(work, [1, 4, 6, 5, 3]);
        assert_eq!(round.place(&store("s"), PartitionId(3)), Some(1));
        assert_eq!(round.place(&store("t"), PartitionId(3)), None);
    }
}
