//! Writes from their start to their end, as stories; and requests that end as they start.

use std::time::Duration;

use expect_test::{Expect, expect};
use model::{Moment, NodeId};
use protocol::quorum::{
    Candidates, Get, GetAction, GetActions, Local, Origin, QuorumOptions, Write, WriteActions,
    own_record_suffices, own_write_suffices,
};

use crate::script::{GENERATION, definition, partition, preference, run};

fn check(script: &str, expected: Expect) {
    expected.assert_eq(&run(script));
}

#[test]
fn a_write_on_one_replica_is_done_when_it_is_durable() {
    check(
        "write replicas=1 fallbacks=0 required=1 own=n1 applied\nn1 acknowledges",
        expect![[r#"
        write replicas=1 fallbacks=0 required=1 own=n1 applied  (until 100)
        n1 acknowledges  (end)
            done with 1
    "#]],
    );
}

#[test]
fn a_write_is_done_at_its_quorum_and_goes_on_until_all_replicas_have_it() {
    check(
        "write own=n1 applied\nn3 acknowledges\nn1 acknowledges\n@50\nn2 acknowledges",
        expect![[r#"
        write own=n1 applied  (until 10)
            merge at n2
            merge at n3
        n3 acknowledges  (until 10)
        n1 acknowledges  (until 100)
            done with 2
        n2 acknowledges  (end)
    "#]],
    );
}

#[test]
fn a_write_parks_a_hint_for_a_replica_that_stays_silent() {
    check(
        "write own=n1 applied\nn1 acknowledges\nn3 acknowledges\n@100\nn2 acknowledges",
        expect![[r#"
        write own=n1 applied  (until 10)
            merge at n2
            merge at n3
        n1 acknowledges  (until 10)
        n3 acknowledges  (until 100)
            done with 2
        @100  (end)
            park for n2
        n2 acknowledges  (end)
    "#]],
    );
}

#[test]
fn a_failed_replica_gets_a_stand_in_at_once_and_the_outcome_is_sloppy() {
    check(
        "write own=n1 applied
         n2 fails unreachable
         n1 acknowledges
         n4 acknowledges
         n3 fails lost
         n5 acknowledges",
        expect![[r#"
            write own=n1 applied  (until 10)
                merge at n2
                merge at n3
            n2 fails unreachable  (until 10)
                hint at n4 for n2
            n1 acknowledges  (until 10)
            n4 acknowledges  (until 100)
                done with 2, sloppy
            n3 fails lost  (until 100)
                hint at n5 for n3
            n5 acknowledges  (end)
        "#]],
    );
}

#[test]
fn a_slow_replica_gets_a_stand_in_when_acknowledgements_are_missing() {
    check(
        "write own=n1 applied\nn1 acknowledges\n@10\nn4 acknowledges\n@100",
        expect![[r#"
        write own=n1 applied  (until 10)
            merge at n2
            merge at n3
        n1 acknowledges  (until 10)
        @10  (until 30)
            hint at n4 for n2
        n4 acknowledges  (until 100)
            done with 2, sloppy
        @100  (end)
            park for n3
    "#]],
    );
}

#[test]
fn a_replica_and_its_own_stand_in_count_once() {
    check(
        "write own=n1 applied required=3
         n1 acknowledges
         n2 fails lost
         n4 acknowledges
         n2 acknowledges
         n3 acknowledges",
        expect![[r#"
            write own=n1 applied required=3  (until 10)
                merge at n2
                merge at n3
            n1 acknowledges  (until 10)
            n2 fails lost  (until 10)
                hint at n4 for n2
            n4 acknowledges  (until 10)
            n2 acknowledges  (until 10)
            n3 acknowledges  (end)
                done with 3
        "#]],
    );
}

#[test]
fn hints_pass_from_fallback_to_fallback_and_end_at_the_coordinator() {
    check(
        "write own=n1 applied
         n1 acknowledges
         n2 fails full
         n4 fails overloaded
         n5 fails lost
         n3 acknowledges",
        expect![[r#"
            write own=n1 applied  (until 10)
                merge at n2
                merge at n3
            n1 acknowledges  (until 10)
            n2 fails full  (until 10)
                hint at n4 for n2
            n4 fails overloaded  (until 100)
                hint at n5 for n2
            n5 fails lost  (until 100)
                park for n2
            n3 acknowledges  (end)
                done with 2
        "#]],
    );
}

#[test]
fn a_strict_write_keeps_hints_but_does_not_count_them() {
    check(
        "write own=n1 applied strict
         n1 acknowledges
         n2 fails unreachable
         n4 acknowledges
         n3 fails full
         n5 acknowledges",
        expect![[r#"
            write own=n1 applied strict  (until 100)
                merge at n2
                merge at n3
            n1 acknowledges  (until 100)
            n2 fails unreachable  (until 100)
                hint at n4 for n2
            n4 acknowledges  (until 100)
            n3 fails full  (until 100)
                hint at n5 for n3
                indeterminate with 1 of 2. n2: unreachable. n3: disk full.
            n5 acknowledges  (end)
        "#]],
    );
}

#[test]
fn a_write_that_everybody_refused_has_failed() {
    check(
        "write own=n1 refused=full
         n2 fails overloaded
         n3 fails unreachable
         n4 fails full
         n5 fails full",
        expect![[r#"
            write own=n1 refused=full  (until 10)
                merge at n2
                merge at n3
                hint at n4 for n1
            n2 fails overloaded  (until 100)
                hint at n5 for n2
            n3 fails unreachable  (until 100)
            n4 fails full  (until 100)
            n5 fails full  (end)
                failed, required 2. n1: disk full. n2: overloaded. n3: unreachable. n4: disk full. n5: disk full.
        "#]],
    );
}

#[test]
fn a_write_that_one_node_may_have_applied_is_indeterminate() {
    check(
        "write own=n1 refused=full fallbacks=0
         n2 fails lost
         n3 fails unreachable",
        expect![[r#"
            write own=n1 refused=full fallbacks=0  (until 100)
                merge at n2
                merge at n3
            n2 fails lost  (until 100)
                indeterminate with 0 of 2. n1: disk full. n2: no reply.
                park for n2
            n3 fails unreachable  (end)
                park for n3
        "#]],
    );
}

#[test]
fn a_failed_fsync_is_no_refusal() {
    check(
        "write replicas=1 fallbacks=1 required=1 strict own=n1 applied\nn1 fails broken",
        expect![[r#"
        write replicas=1 fallbacks=1 required=1 strict own=n1 applied  (until 100)
        n1 fails broken  (until 100)
            hint at n2 for n1
            indeterminate with 0 of 1. n1: storage failed.
    "#]],
    );
}

#[test]
fn a_fallback_that_coordinates_holds_the_first_hint_itself() {
    check(
        "write own=n5\nn2 fails unreachable\nn5 acknowledges\nn1 acknowledges\nn3 acknowledges",
        expect![[r#"
            write own=n5  (until 10)
                merge at n1
                merge at n2
                merge at n3
            n2 fails unreachable  (until 10)
                hint at n5 for n2
            n5 acknowledges  (until 10)
            n1 acknowledges  (until 100)
                done with 2, sloppy
            n3 acknowledges  (end)
        "#]],
    );
}

#[test]
fn a_suspected_replica_is_sent_the_write_and_has_a_stand_in_from_the_start() {
    check(
        "write own=n1 applied suspected=n2\nn1 acknowledges\nn2 acknowledges\nn3 acknowledges",
        expect![[r#"
            write own=n1 applied suspected=n2  (until 10)
                merge at n2
                merge at n3
                hint at n4 for n2
            n1 acknowledges  (until 10)
            n2 acknowledges  (until 100)
                done with 2
            n3 acknowledges  (end)
        "#]],
    );
}

#[test]
fn a_write_waits_for_what_it_prefers_until_it_loses_patience() {
    check(
        "write own=n1 applied preferred=3\nn1 acknowledges\nn2 acknowledges\n@10",
        expect![[r#"
        write own=n1 applied preferred=3  (until 10)
            merge at n2
            merge at n3
        n1 acknowledges  (until 10)
        n2 acknowledges  (until 10)
        @10  (until 100)
            done with 2
    "#]],
    );
}

#[test]
fn a_write_under_an_old_ring_is_started_again_and_says_that_it_may_have_happened() {
    check(
        "write own=n9\nn3 fails stale\nn1 acknowledges",
        expect![[r#"
        write own=n9  (until 10)
            merge at n1
            merge at n2
            merge at n3
        n3 fails stale  (end)
            refresh to 8, possible
        n1 acknowledges  (end)
    "#]],
    );
    check(
        "write own=n9\nn1 fails full\nn2 fails full\nn3 fails stale",
        expect![[r#"
        write own=n9  (until 10)
            merge at n1
            merge at n2
            merge at n3
        n1 fails full  (until 10)
            hint at n4 for n1
        n2 fails full  (until 100)
            hint at n5 for n2
        n3 fails stale  (end)
            refresh to 8, possible
    "#]],
    );
}

#[test]
fn a_newer_ring_changes_nothing_after_the_answer() {
    check(
        "write own=n1 applied\nn1 acknowledges\nn2 acknowledges\nn3 fails stale\nn4 acknowledges",
        expect![[r#"
            write own=n1 applied  (until 10)
                merge at n2
                merge at n3
            n1 acknowledges  (until 10)
            n2 acknowledges  (until 100)
                done with 2
            n3 fails stale  (until 100)
                hint at n4 for n3
            n4 acknowledges  (end)
        "#]],
    );
}

#[test]
fn a_superseded_write_is_acknowledged_and_told() {
    check(
        "write own=n1 applied\nn1 acknowledges\nn2 acknowledges superseded",
        expect![[r#"
        write own=n1 applied  (until 10)
            merge at n2
            merge at n3
        n1 acknowledges  (until 10)
        n2 acknowledges superseded  (until 100)
            done with 2, superseded
    "#]],
    );
}

#[test]
fn a_request_that_cannot_reach_its_quorum_is_answered_as_soon_as_its_own_copy_is_known() {
    check(
        "get replicas=1 fallbacks=0 required=2",
        expect![[r#"
        get replicas=1 fallbacks=0 required=2  (end)
            fail InsufficientReplicas { answered: 0, required: 2 }
    "#]],
    );
    check(
        "write replicas=1 fallbacks=0 required=2 own=n1 applied\nn1 acknowledges",
        expect![[r#"
            write replicas=1 fallbacks=0 required=2 own=n1 applied  (until 100)
            n1 acknowledges  (end)
                indeterminate with 1 of 2.
        "#]],
    );
}

#[test]
fn a_request_started_past_its_deadline_sends_nothing_and_leaves_hints() {
    check(
        "get own=n1 started=100",
        expect![[r#"
        get own=n1 started=100  (end)
            fail DeadlinePassed { answered: 0, required: 2 }
    "#]],
    );
    check(
        "write own=n1 applied started=100",
        expect![[r#"
        write own=n1 applied started=100  (end)
            indeterminate with 0 of 2. n1: no reply.
            park for n2
            park for n3
    "#]],
    );
    check(
        "write own=n9 possible started=100",
        expect![[r#"
        write own=n9 possible started=100  (end)
            indeterminate with 0 of 2.
            park for n1
            park for n2
            park for n3
    "#]],
    );
    check(
        "write own=n9 started=100",
        expect![[r#"
        write own=n9 started=100  (end)
            failed, required 2.
    "#]],
    );
}

#[test]
fn what_needs_nobody_else_is_what_a_machine_would_ask_nobody_else_for() {
    let options = |required| QuorumOptions {
        required,
        preferred: 0,
        sloppy: true,
        held: 0,
        spared: Default::default(),
        hedge_after: Duration::from_millis(10),
        deadline: Moment { nanos: u64::MAX },
        wall: Default::default(),
        generation: GENERATION,
        since: GENERATION,
    };
    for (replicas, required, own) in
        (1..=3).flat_map(|n| (1..=n).flat_map(move |r| (1..=5).map(move |own| (n, r, NodeId(own)))))
    {
        let preference = preference(replicas, 2);
        let candidates = Candidates { preference: &preference, suspected: &[], lagging: &[] };
        let (mut gets, mut writes) = (GetActions::new(), WriteActions::new());
        Get::start(candidates, Some(own), options(required), Moment::default(), &mut gets);
        let alone = gets[..] == [GetAction::Fetch { node: own }];
        assert_eq!(
            own_record_suffices(own, &definition(replicas, required), &partition(replicas, 2)),
            alone,
            "get on {own} of {replicas}"
        );
        let local = if preference.is_replica(own) { Local::Applied } else { Local::NotReplica };
        let origin = Origin { own, local, possible: false };
        Write::start(candidates, origin, options(required), Moment::default(), &mut writes);
        assert_eq!(
            own_write_suffices(own, &definition(replicas, required), &partition(replicas, 2)),
            writes.is_empty(),
            "write on {own} of {replicas}"
        );
    }
}

#[test]
fn a_write_has_more_patience_with_each_wave_of_stand_ins() {
    check(
        "write own=n1 applied fallbacks=4\nn1 acknowledges\n@99",
        expect![[r#"
            write own=n1 applied fallbacks=4  (until 10)
                merge at n2
                merge at n3
            n1 acknowledges  (until 10)
            @10  (until 30)
                hint at n4 for n2
            @30  (until 70)
                hint at n5 for n2
            @70  (until 100)
                hint at n6 for n2
        "#]],
    );
}

#[test]
fn a_write_that_a_replica_calls_stale_by_its_own_ring_is_merely_refused_there() {
    check(
        "write own=n1 applied\nn2 fails confused\nn1 acknowledges\nn3 acknowledges",
        expect![[r#"
            write own=n1 applied  (until 10)
                merge at n2
                merge at n3
            n2 fails confused  (until 10)
                hint at n4 for n2
            n1 acknowledges  (until 10)
            n3 acknowledges  (until 100)
                done with 2
        "#]],
    );
}
