//! Which slots go where, so that all have as many.

use std::collections::{BTreeMap, BTreeSet};

use super::map::{Id, SLOTS};

/// The slots that one takes from the others until it has its share, each with its owner. Whoever has most gives next. A slot
/// that is `fixed` counts for its owner, and is not taken from it.
pub(super) fn incoming(
    owners: &[Id],
    holders: &BTreeSet<Id>,
    taker: &Id,
    fixed: impl Fn(u16) -> bool,
) -> Vec<(u16, Id)> {
    let mut slots = BTreeMap::from_iter(holders.iter().map(|id| (id, (0, Vec::new()))));
    slots.entry(taker).or_default();
    for (slot, owner) in (0..SLOTS).zip(owners) {
        if let Some((has, given)) = slots.get_mut(owner) {
            *has += 1;
            given.extend((!fixed(slot)).then_some(slot));
        }
    }
    let share = usize::from(SLOTS) / slots.len();
    let (has, _) = slots.remove(taker).unwrap_or_default();
    let mut taken = Vec::new();
    while has + taken.len() < share {
        let most =
            slots.iter_mut().filter(|(_, (_, given))| !given.is_empty()).max_by_key(|(_, (has, _))| *has);
        let Some((giver, (has, given))) = most else { break };
        *has -= 1;
        taken.extend(given.pop().map(|slot| (slot, (*giver).clone())));
    }
    taken.sort();
    taken
}

/// Where these slots of one go, each with its new owner. Whoever has fewest takes next.
pub(super) fn outgoing(owners: &[Id], takers: &BTreeSet<Id>, leaving: &[u16]) -> Vec<(u16, Id)> {
    let count = |id: &Id| owners.iter().filter(|owner| *owner == id).count();
    let mut counts = BTreeMap::from_iter(takers.iter().map(|id| (id, count(id))));
    let mut lacks: BTreeMap<&Id, usize> = BTreeMap::new();
    for _ in leaving {
        let Some((id, has)) = counts.iter_mut().min_by_key(|(_, has)| **has) else { break };
        *has += 1;
        *lacks.entry(id).or_default() += 1;
    }
    // Neighbours stay together: spans are what the list of members is made of.
    let takers = lacks.into_iter().flat_map(|(id, times)| std::iter::repeat_n(id.clone(), times));
    leaving.iter().copied().zip(takers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> Id {
        Id::parse(&format!("{number:040x}")).unwrap()
    }

    fn counts(owners: &[Id]) -> Vec<usize> {
        let mut counts: BTreeMap<&Id, usize> = BTreeMap::new();
        owners.iter().for_each(|owner| *counts.entry(owner).or_default() += 1);
        counts.into_values().collect()
    }

    #[test]
    fn a_cluster_stays_even_while_it_grows_and_shrinks() {
        let mut owners: Vec<Id> = (0..16_384).map(|slot| id(slot * 3 / 16_384)).collect();
        let mut holders: BTreeSet<Id> = (0..3).map(id).collect();
        for newcomer in 3..9 {
            let taken = incoming(&owners, &holders, &id(newcomer), |_| false);
            assert_eq!(taken.len(), 16_384 / (newcomer + 1));
            for (slot, owner) in taken {
                assert_eq!(owners[usize::from(slot)], owner);
                owners[usize::from(slot)] = id(newcomer);
            }
            holders.insert(id(newcomer));
            let counts = counts(&owners);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 2, "{counts:?}");
        }
        for leaver in 0..6 {
            holders.remove(&id(leaver));
            let own = |slot: &u16| owners[usize::from(*slot)] == id(leaver);
            let leaving: Vec<u16> = (0..SLOTS).filter(own).collect();
            let gone = outgoing(&owners, &holders, &leaving);
            assert_eq!(gone.len(), leaving.len());
            gone.into_iter().for_each(|(slot, owner)| owners[usize::from(slot)] = owner);
            let counts = counts(&owners);
            assert_eq!(counts.len(), holders.len());
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 2, "{counts:?}");
        }
    }

    /// The last batch of a drain that is taken back is on its way to the third one, whose highest slots it becomes.
    #[test]
    fn slots_that_are_on_their_way_are_not_taken_and_others_are_in_their_place() {
        let mut owners: Vec<Id> = (0..16_384).map(|slot| id(slot * 4 / 16_384)).collect();
        let holders: BTreeSet<Id> = (0..3).map(id).collect();
        owners[16_384 - 128..].fill(id(2));
        let taken = incoming(&owners, &holders, &id(3), |slot| slot >= 16_384 - 64);
        assert_eq!(taken.len(), 128);
        assert!(taken.iter().all(|(slot, owner)| *slot < 16_384 - 64 && *owner == id(2)));
    }

    #[test]
    fn what_has_its_share_takes_nothing_and_nobody_gives_to_nobody() {
        let owners: Vec<Id> = (0..16_384).map(|slot| id(slot * 4 / 16_384)).collect();
        let holders: BTreeSet<Id> = (0..4).map(id).collect();
        assert_eq!(incoming(&owners, &holders, &id(2), |_| false), []);
        assert_eq!(outgoing(&owners, &BTreeSet::new(), &[1, 2]), []);
    }
}
