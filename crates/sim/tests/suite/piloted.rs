//! Runs with the autopilot on: it really acts, dead nodes are replaced, and no judge convicts it.

use sim::piloting::PilotCounts;
use sim::run::play;
use sim::swarm::Setup;

/// Seeds that are played.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=10;
/// In at least this many of them the autopilot acts on loads, and in that many it replaces a node: below that the runs
/// show nothing any more.
const WITH_PLANS_MIN: u64 = 5;
const WITH_REPLACED_MIN: u64 = 2;

#[test]
fn must_not_2_and_8_the_autopilot_brings_nothing_back_and_replaces_no_live_node() {
    let mut counts = PilotCounts::default();
    for seed in SEEDS {
        let report = play(Setup::of_seed(seed).with_autopilot());
        assert_eq!(report.violations, [], "sim run --autopilot --seed {seed} --verbose");
        counts += report.played.piloted;
    }
    assert!(counts.with_plans >= WITH_PLANS_MIN, "{counts:?}");
    assert!(counts.with_replaced >= WITH_REPLACED_MIN, "{counts:?}");
}

/// What a seed plays changes with the code; this one has found a bug. A node that an order had emptied counted as new,
/// and the autopilot gave it back what it had taken from it.
#[test]
fn seed_68_with_the_autopilot_which_once_found_a_bug_passes() {
    let report = play(Setup::of_seed(68).with_autopilot());
    assert_eq!(report.violations, [], "sim run --autopilot --seed 68 --verbose");
}

#[test]
fn a_seed_with_the_autopilot_played_twice_gives_one_trace() {
    let trace = || play(Setup::of_seed(1).with_autopilot()).trace;
    assert_eq!(trace(), trace());
}
