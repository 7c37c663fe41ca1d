//! Days of load under the autopilot: what must not happen, played for hours on a few seeds. `sim balance` plays more.

use std::time::Duration;

use model::balance::Mode;
use model::plan::Rule;
use sim::balance::{Weather, play};

/// Hours that a day has here.
const HOURS: u64 = 7;

fn short(seed: u64) -> Weather {
    Weather { lasts: Duration::from_secs(HOURS * 3600), ..Weather::of_seed(seed) }
}

#[test]
fn must_not_1_constant_noisy_load_moves_partitions_for_ever() {
    for seed in [3, 5] {
        let day = play(seed, Weather { shifts: None, succession: None, ..short(seed) });
        // What a batch may do is bounded, so it takes some; then noise alone is left, and moves next to nothing.
        assert!(day.most() <= 8, "seed {seed}: {day:?}");
        assert_eq!((day.returns, day.flips, day.mode), (0, 0, Mode::On), "seed {seed}");
        let (before, after) = day.imbalance[0];
        assert!(after <= before.min(1.3), "seed {seed}: {before} to {after}");
    }
}

#[test]
fn must_not_2_a_partition_returns_to_a_node_within_its_residence_time() {
    for seed in [1, 2] {
        let day = play(seed, short(seed));
        assert_eq!((day.returns, day.flips), (0, 0), "seed {seed}: {day:?}");
        assert!(day.copies + day.reorders > 0, "seed {seed} shows nothing");
    }
}

#[test]
fn must_not_9_headmasters_that_end_half_way_move_no_more_partitions() {
    let weather = Weather { succession: Some(Duration::from_secs(97)), ..short(4) };
    let day = play(4, weather);
    assert_eq!((day.returns, day.flips), (0, 0), "{day:?}");
}

#[test]
fn other_policies_are_compared_with_ours_and_only_guarded_ones_move_little() {
    let rule = |rule| {
        let day = play(7, Weather { lasts: Duration::from_secs(4 * 3600), rule, replicas: 1, ..short(7) });
        (day.plans.iter().sum::<u64>(), day.copies, day.reorders, day.returns)
    };
    let (plans, _, _, returns) = rule(Rule::Even);
    assert!((1..20).contains(&plans) && returns == 0, "{plans} plans, {returns} returns");
    let (plans, copies, reorders, _) = rule(Rule::Thresholds);
    assert_eq!((plans, reorders), (copies, 0), "it gives one partition after the other");
    let (plans, copies, _, returns) = rule(Rule::Greedy);
    assert!(plans > 100 && copies > 100 && returns > 10, "greedy: {plans} plans, {returns} returns");
    assert_eq!(rule(Rule::NoReordering).2, 0);
}
