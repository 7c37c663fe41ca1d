//! The laws of version sets, over reachable histories.

use model::{Resolver, Value, Version, VersionSet, WallMillis};
use proptest::prelude::*;

use super::histories::{Knowing, World, steps};
use super::subjects::Real;

fn merged(one: &VersionSet, other: &VersionSet) -> VersionSet {
    let mut merged = one.clone();
    merged.merge(other);
    merged
}

fn resolved(set: &VersionSet) -> VersionSet {
    let mut resolved = set.clone();
    resolved.resolve(Resolver::LastWriteWins);
    resolved
}

/// Any three states that some replicas were in at some time.
fn any_three(
    steps: &[super::histories::Step],
    picks: [prop::sample::Index; 3],
) -> Result<[Knowing<Real>; 3], TestCaseError> {
    let mut world = World::<Real>::new(None);
    world.play(steps).map_err(|violation| TestCaseError::fail(format!("{violation:?}")))?;
    Ok(picks.map(|pick| pick.get(&world.seen).clone()))
}

/// The same versions, some of which expire: every third event does, wherever it is.
fn expiring(set: &VersionSet) -> VersionSet {
    let expires = |mut version: Version| {
        let present = version.value != Value::Tombstone;
        let chosen = (u64::from(version.dot.actor.node.0) + version.dot.count).is_multiple_of(3);
        version.expires = (present && chosen).then_some(WallMillis(version.dot.count * 10));
        version
    };
    let versions = set.versions().iter().cloned().map(expires).collect();
    VersionSet::from_parts(set.vector().clone(), versions).expect("nothing but times has changed")
}

fn reaped(set: &VersionSet, now: u64) -> VersionSet {
    let mut reaped = expiring(set);
    reaped.reap(WallMillis(now));
    reaped
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn replicas_that_reap_at_different_times_end_with_the_same(
        steps in steps(),
        picks in any::<[prop::sample::Index; 3]>(),
        times in any::<[u8; 3]>(),
    ) {
        let states = any_three(&steps, picks)?.map(|knowing| knowing.state.full);
        let [a, b, c] = [0, 1, 2].map(|at| reaped(&states[at], u64::from(times[at])));
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        prop_assert_eq!(merged(&a, &a), a.clone());
        // What is known does not depend on who has reaped, so comparing by dots finds nothing to exchange.
        for (mine, theirs, plain) in [(&a, &b, (&states[0], &states[1])), (&b, &c, (&states[1], &states[2]))] {
            prop_assert_eq!(mine.includes(theirs), merged(mine, theirs) == *mine);
            let dots = |set: &VersionSet| set.versions().iter().map(|version| version.dot).collect::<Vec<_>>();
            prop_assert_eq!(dots(&merged(mine, theirs)), dots(&merged(plain.0, plain.1)));
        }
        // Reaped in the end, all is as if nobody had reaped before.
        let mut late = merged(&merged(&a, &b), &c);
        late.reap(WallMillis(u64::MAX));
        prop_assert_eq!(late, reaped(&merged(&merged(&states[0], &states[1]), &states[2]), u64::MAX));
    }

    #[test]
    fn siblings_are_exactly_the_concurrent_writes_and_last_write_wins_may_resolve_at_any_time(steps in steps()) {
        let mut world = World::<Real>::new(None);
        prop_assert_eq!(world.play(&steps), Ok(()));
    }

    #[test]
    fn merging_is_associative_commutative_and_idempotent(
        steps in steps(),
        picks in any::<[prop::sample::Index; 3]>(),
    ) {
        let [a, b, c] = any_three(&steps, picks)?.map(|knowing| knowing.state.full);
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        prop_assert_eq!(merged(&a, &a), a.clone());
        prop_assert_eq!(merged(&merged(&a, &b), &b), merged(&a, &b));
        prop_assert_eq!(merged(&a, &VersionSet::default()), a);
    }

    #[test]
    fn resolving_commutes_with_merging(steps in steps(), picks in any::<[prop::sample::Index; 3]>()) {
        let [a, b, c] = any_three(&steps, picks)?.map(|knowing| knowing.state.full);
        let late = resolved(&merged(&merged(&a, &b), &c));
        prop_assert_eq!(&resolved(&merged(&merged(&resolved(&a), &resolved(&b)), &resolved(&c))), &late);
        prop_assert_eq!(&resolved(&merged(&resolved(&a), &merged(&b, &c))), &late);
        prop_assert_eq!(resolved(&late), late, "resolving twice changes nothing");
    }

    #[test]
    fn a_state_includes_another_exactly_when_merging_it_changes_nothing(
        steps in steps(),
        picks in any::<[prop::sample::Index; 3]>(),
    ) {
        let [a, b, _] = any_three(&steps, picks)?.map(|knowing| knowing.state);
        for (a, b) in [(&a.full, &b.full), (&a.resolved, &b.resolved)] {
            prop_assert_eq!(a.includes(b), merged(a, b) == *a);
        }
    }

    #[test]
    fn vectors_order_states_as_the_writes_that_they_know(
        steps in steps(),
        picks in any::<[prop::sample::Index; 3]>(),
    ) {
        let [a, b, _] = any_three(&steps, picks)?;
        let (vector, other) = (a.state.full.vector(), b.state.full.vector());
        prop_assert_eq!(vector.descends(other), b.known & !a.known == 0);
        prop_assert_eq!(vector.partial_cmp(other), match (b.known & !a.known == 0, a.known & !b.known == 0) {
            (true, true) => Some(std::cmp::Ordering::Equal),
            (true, false) => Some(std::cmp::Ordering::Greater),
            (false, true) => Some(std::cmp::Ordering::Less),
            (false, false) => None,
        });
        prop_assert_eq!(b.state.full.is_seen_by(vector), b.known & !a.known == 0 || b.state.full.is_empty());
    }

    #[test]
    fn siblings_never_outnumber_writers_that_read_before_they_write(
        turns in prop::collection::vec((0..4_usize, 0..3_usize, any::<bool>()), 1..80),
    ) {
        const WRITERS: usize = 4;
        let mut replicas = vec![VersionSet::default(); 3];
        let mut contexts = vec![None; WRITERS];
        for (position, (writer, replica, exchange)) in turns.into_iter().enumerate() {
            if exchange {
                // Replicas pass on what the first one stamps, late and repeatedly.
                let passed = replicas[replica].clone();
                replicas[(replica + 1) % 3].merge(&passed);
                let returned = replicas[(replica + 2) % 3].clone();
                replicas[0].merge(&returned);
            }
            // Each writer reads, then writes with what it read while others did the same, and reads again.
            match contexts[writer].take() {
                None => contexts[writer] = Some(replicas[0].context()),
                Some(context) => {
                    let stamp = super::version_examples::stamp(0, 1, position as u64 + 1);
                    replicas[0].put(stamp, Some(&context.vector));
                }
            }
            for replica in &replicas {
                prop_assert!(replica.versions().len() <= WRITERS, "{:?}", replica.versions());
            }
        }
    }
}
