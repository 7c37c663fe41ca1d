//! Gets from their start to their end, as stories.

use expect_test::{Expect, expect};

use crate::script::run;

fn check(script: &str, expected: Expect) {
    expected.assert_eq(&run(script));
}

#[test]
fn a_get_on_one_replica_is_answered_by_it() {
    check(
        "get replicas=1 fallbacks=0 required=1 own=n1\nn1 answers a:1",
        expect![[r#"
        get replicas=1 fallbacks=0 required=1 own=n1  (until 100)
            fetch n1
        n1 answers a:1  (end)
            answer a:1 from 1
    "#]],
    );
}

#[test]
fn a_get_asks_its_own_node_first_and_only_as_many_as_it_needs() {
    check(
        "get own=n3\nn3 answers a:1\nn1 answers a:1",
        expect![[r#"
        get own=n3  (until 10)
            fetch n3
            fetch n1
        n3 answers a:1  (until 10)
        n1 answers a:1  (end)
            answer a:1 from 2
    "#]],
    );
}

#[test]
fn a_get_repairs_what_turned_out_stale_after_the_answer() {
    check(
        "get preferred=3 fallbacks=0
         n1 answers a:1
         @10
         n3 answers a:1
         n2 answers a:1>b:1",
        expect![[r#"
            get preferred=3 fallbacks=0  (until 100)
                fetch n1
                fetch n2
                fetch n3
            n1 answers a:1  (until 100)
            n3 answers a:1  (until 100)
                answer a:1 from 2
            n2 answers a:1>b:1  (end)
                repair n1 with b:1
                repair n3 with b:1
        "#]],
    );
}

#[test]
fn a_get_returns_both_siblings_and_repairs_both_replicas() {
    check(
        "get\nn2 answers a:1\nn1 answers b:1",
        expect![[r#"
        get  (until 10)
            fetch n1
            fetch n2
        n2 answers a:1  (until 10)
        n1 answers b:1  (end)
            answer a:1+b:1 from 2
            repair n1 with a:1+b:1
            repair n2 with a:1+b:1
    "#]],
    );
}

#[test]
fn a_get_turns_to_the_next_replica_when_one_fails_and_to_fallbacks_after_them() {
    check(
        "get
         n1 fails unreachable
         n2 fails lost
         n3 answers -
         n4 answers a:1",
        expect![[r#"
            get  (until 10)
                fetch n1
                fetch n2
            n1 fails unreachable  (until 10)
                fetch n3
            n2 fails lost  (until 100)
                fetch n4
                fetch n5
            n3 answers -  (until 100)
            n4 answers a:1  (until 100)
                answer a:1 from 2, sloppy
        "#]],
    );
}

#[test]
fn a_get_hedges_late_nodes_with_growing_patience() {
    check(
        "get\n@99\nn5 answers a:1\nn2 answers a:1\nn1 answers -",
        expect![[r#"
            get  (until 10)
                fetch n1
                fetch n2
            @10  (until 30)
                fetch n3
            @30  (until 100)
            n5 answers a:1  (until 100)
            n2 answers a:1  (until 100)
            n1 answers -  (until 100)
                answer a:1 from 2
        "#]],
    );
}

#[test]
fn a_get_does_not_count_on_suspected_nodes() {
    check(
        "get suspected=n1,n2\nn3 answers a:1\nn1 answers -\nn4 answers -",
        expect![[r#"
            get suspected=n1,n2  (until 100)
                fetch n3
                fetch n1
                fetch n2
                fetch n4
                fetch n5
            n3 answers a:1  (until 100)
            n1 answers -  (until 100)
                answer a:1 from 2
            n4 answers -  (until 100)
        "#]],
    );
}

#[test]
fn a_get_asks_nodes_that_lag_last_and_counts_on_them() {
    check(
        "get own=n1 lagging=n1\nn2 answers a:1\nn3 fails lost\nn1 answers -",
        expect![[r#"
        get own=n1 lagging=n1  (until 10)
            fetch n2
            fetch n3
        n2 answers a:1  (until 10)
        n3 fails lost  (until 10)
            fetch n1
        n1 answers -  (end)
            answer a:1 from 2
            repair n1 with a:1
    "#]],
    );
    check(
        "get own=n1 lagging=n2,n3 suspected=n3\nn1 answers a:1\nn2 answers -",
        expect![[r#"
        get own=n1 lagging=n2,n3 suspected=n3  (until 10)
            fetch n1
            fetch n2
        n1 answers a:1  (until 10)
        n2 answers -  (end)
            answer a:1 from 2
            repair n2 with a:1
    "#]],
    );
}

#[test]
fn a_strict_get_fails_when_too_few_replicas_are_left() {
    check(
        "get strict\nn1 fails overloaded\nn2 fails lost",
        expect![[r#"
        get strict  (until 10)
            fetch n1
            fetch n2
        n1 fails overloaded  (until 100)
            fetch n3
        n2 fails lost  (end)
            fail InsufficientReplicas { answered: 0, required: 2 } n1: overloaded. n2: no reply.
    "#]],
    );
}

#[test]
fn a_get_fails_at_its_deadline_and_says_so() {
    check(
        "get strict required=3\nn1 answers a:1\n@100\nn2 answers a:1",
        expect![[r#"
        get strict required=3  (until 100)
            fetch n1
            fetch n2
            fetch n3
        n1 answers a:1  (until 100)
        @100  (end)
            fail DeadlinePassed { answered: 1, required: 3 }
        n2 answers a:1  (end)
    "#]],
    );
}

#[test]
fn a_get_under_an_old_ring_is_started_again_and_counts_nothing_twice() {
    check(
        "get\nn1 answers a:1\nn2 fails stale\nn3 answers a:1",
        expect![[r#"
        get  (until 10)
            fetch n1
            fetch n2
        n1 answers a:1  (until 10)
        n2 fails stale  (end)
            refresh to 8
        n3 answers a:1  (end)
    "#]],
    );
}

#[test]
fn a_replica_that_calls_our_own_generation_stale_is_merely_failing() {
    check(
        "get\nn1 fails confused\nn2 answers -\nn3 answers -",
        expect![[r#"
        get  (until 10)
            fetch n1
            fetch n2
        n1 fails confused  (until 10)
            fetch n3
        n2 answers -  (until 10)
        n3 answers -  (end)
            answer - from 2
    "#]],
    );
}

#[test]
fn a_monotonic_get_answers_at_once_when_its_replicas_agree() {
    check(
        "get held=2\nn1 answers a:1\nn2 answers a:1",
        expect![[r#"
        get held=2  (until 10)
            fetch n1
            fetch n2
        n1 answers a:1  (until 10)
        n2 answers a:1  (end)
            answer a:1 from 2
    "#]],
    );
}

#[test]
fn a_monotonic_get_writes_back_what_only_some_have_before_it_answers() {
    check(
        "get held=2\nn1 answers a:1\nn2 answers a:1>b:1\nn1 stores 0",
        expect![[r#"
        get held=2  (until 10)
            fetch n1
            fetch n2
        n1 answers a:1  (until 10)
        n2 answers a:1>b:1  (until 10)
            write back to n1 in round 0: b:1
        n1 stores 0  (end)
            answer b:1 from 2
    "#]],
    );
}

#[test]
fn a_monotonic_get_writes_back_elsewhere_when_a_replica_refuses_or_is_late() {
    check(
        "get held=2\nn1 answers -\nn2 answers a:1\n@10\nn1 refuses 0\nn3 stores 0",
        expect![[r#"
        get held=2  (until 10)
            fetch n1
            fetch n2
        n1 answers -  (until 10)
        n2 answers a:1  (until 10)
            write back to n1 in round 0: a:1
        @10  (until 100)
            write back to n3 in round 0: a:1
        n1 refuses 0  (until 100)
        n3 stores 0  (end)
            answer a:1 from 2
    "#]],
    );
}

#[test]
fn a_monotonic_get_that_learns_more_while_it_writes_back_begins_again() {
    check(
        "get held=2 preferred=3
         n1 answers a:1
         n3 answers -
         @10
         n2 answers a:1>b:1
         n3 stores 0
         n1 stores 1",
        expect![[r#"
            get held=2 preferred=3  (until 100)
                fetch n1
                fetch n2
                fetch n3
            n1 answers a:1  (until 100)
            n3 answers -  (until 10)
            @10  (until 20)
                write back to n3 in round 0: a:1
            n2 answers a:1>b:1  (until 20)
                write back to n1 in round 1: b:1
            n3 stores 0  (until 20)
            n1 stores 1  (end)
                answer b:1 from 3
                repair n3 with b:1
        "#]],
    );
}

#[test]
fn a_monotonic_get_fails_when_too_few_replicas_take_what_it_read() {
    check(
        "get held=3 required=1 preferred=1
         n1 answers a:1
         n2 fails overloaded
         n3 fails unreachable
         n2 stores 0
         n3 refuses 0",
        expect![[r#"
            get held=3 required=1 preferred=1  (until 100)
                fetch n1
                fetch n2
                fetch n3
            n1 answers a:1  (until 10)
            n2 fails overloaded  (until 10)
            n3 fails unreachable  (until 100)
                write back to n2 in round 0: a:1
                write back to n3 in round 0: a:1
            n2 stores 0  (until 100)
            n3 refuses 0  (end)
                fail NotHeld { holders: 2, required: 3 } n2: overloaded. n3: overloaded.
        "#]],
    );
}

#[test]
fn only_a_node_that_was_asked_sends_a_get_to_a_newer_ring() {
    check(
        "get required=1\nn3 fails stale\nn9 fails stale\nn1 fails stale",
        expect![[r#"
            get required=1  (until 10)
                fetch n1
            n3 fails stale  (until 10)
            n9 fails stale  (until 10)
            n1 fails stale  (end)
                refresh to 8
        "#]],
    );
}

#[test]
fn a_get_turns_to_no_more_than_it_must_have_once_it_has_lost_patience() {
    check(
        "get preferred=3\nn1 answers a:1\n@10",
        expect![[r#"
            get preferred=3  (until 10)
                fetch n1
                fetch n2
                fetch n3
            n1 answers a:1  (until 10)
            @10  (until 100)
        "#]],
    );
}

#[test]
fn a_get_that_waits_for_more_than_it_must_have_is_answered_at_its_deadline() {
    check(
        "get required=1 preferred=2 hedge=200\nn1 answers a:1\n@100",
        expect![[r#"
            get required=1 preferred=2 hedge=200  (until 100)
                fetch n1
                fetch n2
            n1 answers a:1  (until 100)
            @100  (end)
                answer a:1 from 1
        "#]],
    );
}

#[test]
fn a_damaged_copy_is_repaired_when_other_replicas_hold_something() {
    check(
        "get\nn1 fails corrupt\nn2 answers a:1\nn3 answers a:1",
        expect![[r#"
            get  (until 10)
                fetch n1
                fetch n2
            n1 fails corrupt  (until 10)
                fetch n3
            n2 answers a:1  (until 10)
            n3 answers a:1  (end)
                answer a:1 from 2
                repair n1 with a:1
        "#]],
    );
    check(
        "get\nn1 fails corrupt\nn2 answers -\nn3 answers -",
        expect![[r#"
            get  (until 10)
                fetch n1
                fetch n2
            n1 fails corrupt  (until 10)
                fetch n3
            n2 answers -  (until 10)
            n3 answers -  (end)
                answer - from 2
        "#]],
    );
}

#[test]
fn a_monotonic_get_has_more_patience_with_each_wave_of_late_replicas() {
    check(
        "get replicas=7 held=2 required=1
         n1 answers a:1
         n2 answers -
         @12
         n3 refuses 0
         @99",
        expect![[r#"
            get replicas=7 held=2 required=1  (until 10)
                fetch n1
                fetch n2
            n1 answers a:1  (until 10)
            n2 answers -  (until 10)
                write back to n2 in round 0: a:1
            @10  (until 30)
                write back to n3 in round 0: a:1
            n3 refuses 0  (until 32)
                write back to n4 in round 0: a:1
            @32  (until 72)
                write back to n5 in round 0: a:1
            @72  (until 100)
                write back to n6 in round 0: a:1
        "#]],
    );
}

#[test]
fn a_monotonic_get_writes_back_to_a_replica_that_was_not_asked_before_one_that_is_silent() {
    check(
        "get held=2 required=1\nn1 answers a:1\n@10",
        expect![[r#"
            get held=2 required=1  (until 10)
                fetch n1
                fetch n2
            n1 answers a:1  (until 10)
            @10  (until 20)
                write back to n3 in round 0: a:1
        "#]],
    );
    check(
        "get held=2 required=1 suspected=n3\nn1 answers a:1\n@10",
        expect![[r#"
            get held=2 required=1 suspected=n3  (until 10)
                fetch n1
                fetch n2
            n1 answers a:1  (until 10)
            @10  (until 20)
                write back to n2 in round 0: a:1
        "#]],
    );
}

#[test]
fn a_get_that_has_found_nothing_waits_for_its_replicas_and_believes_no_fallback() {
    // Three replicas hung for a second: two empty fallbacks said *not found*, and the value was overwritten.
    check(
        "get suspected=n1,n2,n3\nn4 answers -\nn5 answers -\n@99\nn2 answers a:1\nn1 answers a:1",
        expect![[r#"
            get suspected=n1,n2,n3  (until 100)
                fetch n1
                fetch n2
                fetch n3
                fetch n4
                fetch n5
            n4 answers -  (until 100)
            n5 answers -  (until 100)
            n2 answers a:1  (until 100)
                answer a:1 from 3, sloppy
            n1 answers a:1  (until 100)
        "#]],
    );
    // Nobody comes: the answer is not *not found*.
    check(
        "get suspected=n1,n2,n3\nn4 answers -\nn5 answers -\n@100",
        expect![[r#"
        get suspected=n1,n2,n3  (until 100)
            fetch n1
            fetch n2
            fetch n3
            fetch n4
            fetch n5
        n4 answers -  (until 100)
        n5 answers -  (until 100)
        @100  (end)
            fail DeadlinePassed { answered: 0, required: 2 }
    "#]],
    );
}

#[test]
fn a_get_that_has_found_nothing_fails_at_once_when_nobody_else_can_answer() {
    check(
        "get\nn1 fails unreachable\nn2 fails unreachable\nn3 answers -\nn4 answers -\nn5 answers -",
        expect![[r#"
            get  (until 10)
                fetch n1
                fetch n2
            n1 fails unreachable  (until 10)
                fetch n3
            n2 fails unreachable  (until 100)
                fetch n4
                fetch n5
            n3 answers -  (until 100)
            n4 answers -  (until 100)
            n5 answers -  (end)
                fail InsufficientReplicas { answered: 1, required: 2 } n1: unreachable. n2: unreachable.
        "#]],
    );
}

#[test]
fn a_deletion_that_too_few_replicas_know_is_nothing_found() {
    check(
        "get\nn1 fails unreachable\nn2 fails unreachable\nn4 answers a:1\nn3 answers a:1>x:1\nn5 answers -",
        expect![[r#"
            get  (until 10)
                fetch n1
                fetch n2
            n1 fails unreachable  (until 10)
                fetch n3
            n2 fails unreachable  (until 100)
                fetch n4
                fetch n5
            n4 answers a:1  (until 100)
            n3 answers a:1>x:1  (until 100)
            n5 answers -  (end)
                fail InsufficientReplicas { answered: 1, required: 2 } n1: unreachable. n2: unreachable.
        "#]],
    );
}

#[test]
fn a_value_that_was_found_is_given_once_enough_nodes_were_heard() {
    check(
        "get\nn1 fails unreachable\nn2 fails unreachable\nn3 answers a:1\nn4 answers -\nn5 answers a:2",
        expect![[r#"
            get  (until 10)
                fetch n1
                fetch n2
            n1 fails unreachable  (until 10)
                fetch n3
            n2 fails unreachable  (until 100)
                fetch n4
                fetch n5
            n3 answers a:1  (until 100)
            n4 answers -  (until 100)
                answer a:1 from 2, sloppy
            n5 answers a:2  (end)
                repair n3 with a:2
        "#]],
    );
}
