//! What a room finds that asks the plain hash where a key lies, in stores whose keys lie in windows.
//!
//! Each of these bugs would be one wrong call in its own room. Here it is planted at the port that the room uses, as
//! what that call would lead to: the room looks at another place, and does not meet the key.

use model::{Placement, Token};

use crate::swarm::{PARTITIONS, Setup};

/// Where the keys of a run lie, beside where the plain hash says.
#[derive(Clone, Debug, Default)]
pub struct ByHash {
    placement: Placement,
    /// Bits of a token that do not tell its bucket.
    within: u32,
}

impl ByHash {
    /// Of a run's stores.
    pub fn of(setup: &Setup) -> ByHash {
        let buckets = setup.buckets.max(PARTITIONS as u32);
        ByHash { placement: setup.placement(), within: u64::BITS - buckets.trailing_zeros() }
    }

    /// Whether the plain hash of a key names the bucket in which it lies.
    pub fn finds(&self, key: &[u8]) -> bool {
        let bucket = |token: Token| token.0 >> self.within;
        bucket(self.placement.token(key)) == bucket(Token::of(key))
    }

    /// Whether the plain hash of a hint's key names the bucket in which it lies. The name of a hint is that of its
    /// store, a zero byte, and its key.
    pub fn finds_hint(&self, name: &[u8]) -> bool {
        let key = name.iter().position(|byte| *byte == 0).map_or(name, |zero| &name[zero + 1..]);
        self.finds(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::convicts;
    use crate::plant::Plant;
    use crate::run::play;

    #[test]
    fn must_not_1_a_walk_hint_repair_or_round_asks_the_plain_hash_and_misses_a_key() {
        for plant in [Plant::WalksByHash, Plant::HintsByHash, Plant::RepairsByHash, Plant::CollectsByHash] {
            assert!(convicts(plant, 1), "{plant:?}");
            // It is the bug that convicts, and it is none where keys lie by their hash.
            let planted = Setup::planted(1, plant);
            for clean in [Setup { plant: None, ..planted.clone() }, Setup { theta: None, ..planted }] {
                let found = play(clean).violations;
                assert!(found.is_empty(), "{plant:?}: {:?}", found.first());
            }
        }
    }

    #[test]
    fn the_plain_hash_finds_all_keys_by_hash_and_few_in_windows() {
        let key = |number: u32| format!("k{number}").into_bytes();
        let found = |theta| {
            let by_hash = ByHash::of(&Setup { theta, ..Setup::ordinary(1) });
            (0..100).filter(|number| by_hash.finds(&key(*number))).count()
        };
        assert_eq!(found(None), 100);
        assert!(found(Some(4)) < 40, "{}", found(Some(4)));
        let by_hash = ByHash::of(&Setup { theta: Some(4), ..Setup::ordinary(1) });
        let hints = (0..100).map(|number| [b"tuples\0", &key(number)[..]].concat());
        assert_eq!(hints.filter(|name| by_hash.finds_hint(name)).count(), found(Some(4)));
    }

    #[test]
    fn a_tenth_of_the_runs_have_windows_and_half_of_those_name_groups() {
        let setups: Vec<Setup> =
            (1..=1000).map(Setup::of_seed).filter(|setup| setup.theta.is_some()).collect();
        let groups = setups.iter().filter(|setup| setup.groups > 0).count();
        assert!(
            (60..140).contains(&setups.len()) && (groups * 4 > setups.len()),
            "{groups} of {}",
            setups.len()
        );
        for setup in setups {
            let placement = setup.placement();
            let windows = placement.windows().expect("it has a theta");
            let keys: Vec<_> = (0..setup.keys).map(|number| setup.key(number)).collect();
            let parts = |key: &[u8]| windows.parts(key).expect("it fits").group.to_vec();
            let named: std::collections::BTreeSet<Vec<u8>> = keys.iter().map(|key| parts(key)).collect();
            assert_eq!(named.len() as u32, setup.groups.max(1).min(setup.keys), "{:?}", setup.seed);
            assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
        }
    }
}
