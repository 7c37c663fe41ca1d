//! Every planted bug is caught by the judge of the invariant that it breaks, in a run of a whole cluster; and the
//! same runs without it are clean.

use sim::plant::Plant;
use sim::run::play;
use sim::swarm::Setup;

/// Seeds within which each plant must be caught.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;

fn convicts(plant: Plant) {
    let caught = SEEDS.into_iter().find(|&seed| {
        let report = play(Setup::planted(seed, plant));
        report.violations.iter().any(|violation| violation.invariant == plant.breaks())
    });
    assert!(caught.is_some(), "{plant:?} must break invariant {}", plant.breaks());
    let innocent = Setup { plant: None, ..Setup::planted(caught.unwrap_or(1), plant) };
    assert_eq!(play(innocent).violations, [], "without the plant the same run is clean");
}

#[test]
fn a_disk_that_lies_about_syncs_loses_acknowledged_writes() {
    convicts(Plant::LyingDisk);
}

#[test]
fn engines_that_acknowledge_before_a_write_is_durable_are_caught_at_that_moment() {
    convicts(Plant::AcksEarly);
}

#[test]
fn engines_that_answer_with_the_previous_sync_are_caught() {
    convicts(Plant::AcksOneBehind);
}

#[test]
fn hints_that_are_acknowledged_before_they_are_durable_are_caught() {
    convicts(Plant::HintsAckedEarly);
}

#[test]
fn an_engine_that_forgets_loses_acknowledged_writes() {
    convicts(Plant::ForgetfulEngine);
}

#[test]
fn an_engine_that_answers_with_old_records_makes_reads_miss_writes() {
    convicts(Plant::StaleEngine);
}

#[test]
fn a_network_that_changes_bytes_returns_values_nobody_wrote() {
    convicts(Plant::TamperingNetwork);
}

#[test]
fn a_node_that_stamps_under_an_old_identity_uses_dots_twice() {
    convicts(Plant::RewoundIdentity);
}

#[test]
fn a_client_that_drops_its_context_leaves_phantom_siblings() {
    convicts(Plant::DroppedContext);
}

#[test]
fn an_engine_that_keeps_removed_hints_never_drains() {
    convicts(Plant::HoardedHints);
}

#[test]
fn gets_that_answer_without_writing_back_go_backwards() {
    convicts(Plant::HastyReads);
}

#[test]
fn a_client_that_overwrites_unread_siblings_makes_them_vanish() {
    convicts(Plant::ForgottenRead);
}

#[test]
fn engines_that_forget_deletions_on_their_own_bring_deleted_values_back() {
    convicts(Plant::HastyCollection);
}

#[test]
fn nodes_that_reap_by_their_own_clock_take_values_away_too_early() {
    convicts(Plant::HastyReaping);
}

#[test]
fn nodes_that_never_compare_never_become_equal() {
    convicts(Plant::IdleRepair);
}

#[test]
fn nodes_that_overlook_differing_leaves_never_become_equal() {
    convicts(Plant::OverlookedLeaves);
}

#[test]
fn an_engine_that_does_not_check_its_reads_returns_values_nobody_wrote() {
    convicts(Plant::UncheckedReads);
}

#[test]
fn sessions_that_set_documents_whatever_their_version_lose_steps_of_moves() {
    convicts(Plant::VersionsIgnored);
}

#[test]
fn sessions_that_hide_a_nodes_last_start_let_an_older_disk_pass_for_the_newest() {
    convicts(Plant::PastHidden);
}

#[test]
fn nodes_that_never_scrub_an_unread_artifact_keep_its_damage() {
    convicts(Plant::ArtifactsUnscrubbed);
}

/// Plain clients alone hear too little to find everything, but they find what their own judge is there for, and what
/// they are shown is judged like what others get.
#[test]
fn planted_bugs_are_caught_even_with_redis_clients_only() {
    for (plant, words) in [
        (Plant::ForgetfulEngine, "was acknowledged, but"),
        (Plant::ForgetfulEngine, "was shown nothing"),
        (Plant::StaleEngine, "though the later"),
        (Plant::TamperingNetwork, "was never written"),
    ] {
        let plain = |seed| Setup { clients: 0, redis_clients: 3, ..Setup::planted(seed, plant) };
        let convicts = |seed| play(plain(seed)).violations.iter().any(|found| found.detail.contains(words));
        let caught = SEEDS.into_iter().find(|&seed| convicts(seed));
        let caught = caught.unwrap_or_else(|| panic!("{plant:?}: no seed says {words:?}"));
        assert_eq!(play(Setup { plant: None, ..plain(caught) }).violations, [], "{plant:?}");
    }
}

/// Two requests of one connection, and of two, meet at different workers of one node.
#[test]
fn a_planted_bug_is_caught_on_nodes_with_several_workers() {
    let setup = |seed| Setup { workers: 3, redis_clients: 2, ..Setup::planted(seed, Plant::StaleEngine) };
    let breaks = |seed| play(setup(seed)).violations.iter().any(|found| found.invariant == 7);
    let caught = SEEDS.into_iter().find(|&seed| breaks(seed)).expect("stale answers are caught");
    assert_eq!(play(Setup { plant: None, ..setup(caught) }).violations, []);
}
