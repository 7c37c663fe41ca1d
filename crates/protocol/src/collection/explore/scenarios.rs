//! What is explored, and that each planted bug is found by it.

use super::*;
use crate::collection::planted::with;
use crate::explore::WORLDS_MAX;

/// Visits every world of a scenario; the number of them.
fn explore(scenario: Scenario) -> Result<usize, String> {
    let mut sets = Sets::default();
    let world = World::new(scenario, &mut sets);
    crate::explore::explore(Explored { world, scenario, sets: &RefCell::new(sets) }, WORLDS_MAX)
}

const PLAIN: Scenario = Scenario {
    sends: 1,
    crashes: 1,
    service_away: false,
    restores: 0,
    rounds_beside: 0,
    lost: 0,
    unsure: 0,
    damages: 0,
    writes: false,
    old_hint: false,
    joins: None,
    leaves: None,
};

/// Duplicates, crashes, and a second write.
const WRITES: Scenario = Scenario { crashes: 1, sends: 1, writes: true, ..PLAIN };
/// A hint of before the delete is still held.
const HINTED: Scenario = Scenario { old_hint: true, ..PLAIN };
/// Answers are lost while contents are under way.
const LOSSES: Scenario = Scenario { crashes: 0, sends: 2, lost: 1, ..PLAIN };
/// Some node cannot make the key clean.
const UNSURE: Scenario = Scenario { unsure: 1, ..HINTED };
/// A record or hint cannot be read.
const DAMAGED: Scenario = Scenario { crashes: 0, sends: 1, damages: 1, ..HINTED };
/// A disk is replaced by its copy.
const RESTORED: Scenario = Scenario { crashes: 0, restores: 1, service_away: true, ..PLAIN };
/// The service is away when a process starts.
const AWAY: Scenario = Scenario { service_away: true, ..PLAIN };
/// A round of somebody else raises the epoch in between.
const TWO: Scenario = Scenario { crashes: 0, rounds_beside: 1, joins: Some(2), ..PLAIN };
/// A third node joins.
const JOINS: Scenario = Scenario { crashes: 0, sends: 2, joins: Some(2), ..PLAIN };
/// The second node is removed while it is away.
const LEAVES: Scenario = Scenario { crashes: 0, sends: 2, leaves: Some(1), ..PLAIN };

fn holds(scenario: Scenario) {
    let worlds = explore(scenario).unwrap_or_else(|story| panic!("{story}"));
    assert!(worlds > 1000, "a scenario in which something happens");
}

fn catches(bug: Bug, scenario: Scenario) {
    let verdict = with(bug, || explore(scenario));
    assert!(verdict.is_err(), "{bug:?} must be found");
}

#[test]
fn a_late_duplicate_and_a_crash_bring_nothing_back_and_lose_no_write() {
    holds(WRITES);
}

#[test]
fn a_hint_written_before_the_delete_brings_nothing_back() {
    holds(HINTED);
}

#[test]
fn an_initiator_that_hears_no_answer_leaves_nothing_half_done() {
    holds(LOSSES);
}

#[test]
fn a_key_that_one_node_cannot_make_clean_is_not_forgotten() {
    holds(UNSURE);
}

#[test]
fn what_cannot_be_read_brings_nothing_back_when_it_can_be_read_again() {
    holds(DAMAGED);
}

#[test]
fn a_restored_disk_brings_nothing_back() {
    holds(RESTORED);
}

#[test]
fn a_node_that_starts_without_the_service_brings_nothing_back() {
    holds(AWAY);
}

#[test]
fn two_rounds_at_once_do_not_harm_each_other() {
    holds(TWO);
}

#[test]
fn a_node_that_joins_during_a_round_gets_nothing_deleted() {
    holds(JOINS);
}

#[test]
fn a_node_that_was_removed_brings_nothing_back() {
    holds(LEAVES);
}

#[test]
fn every_planted_bug_is_found() {
    for (bug, scenario) in [
        (Bug::OpensEarly, TWO),
        (Bug::SkipsAConfirm, LOSSES),
        (Bug::CollectsWhatWasLeftOut, UNSURE),
        (Bug::PassesOverDamage, DAMAGED),
        (Bug::SkipsAFence, AWAY),
        (Bug::SkipsTheCheck, RESTORED),
        (Bug::IgnoresTheDocument, JOINS),
        (Bug::FencesWithoutGuard, PLAIN),
        (Bug::GuardsNothing, PLAIN),
        (Bug::AcceptsStaleTags, PLAIN),
        (Bug::HearsUnderAnyDocument, LEAVES),
        (Bug::AcceptsOldDocuments, LEAVES),
        (Bug::TrustsEveryDisk, RESTORED),
        (Bug::HearsBeforeComparing, RESTORED),
        (Bug::SkipsSync, PLAIN),
        (Bug::ForgetsTheEpoch, AWAY),
        (Bug::LeavesHints, HINTED),
        (Bug::DropsHintsEarly, PLAIN),
        (Bug::CollectsAnything, WRITES),
        (Bug::ForgetsTheFloor, WRITES),
        (Bug::TagsLate, PLAIN),
    ] {
        catches(bug, scenario);
    }
}
