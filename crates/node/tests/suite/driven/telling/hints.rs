//! The same of hints: what became of them, and what nobody waits for any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use expect_test::{Expect, expect};
use model::{Generation, NodeId};
use parking_lot::Mutex;
use protocol::report::{HintsHeld, Parts};
use wire::error::ErrorCode;
use wire::messages::{Merged, ReplicaMerged, Request, Response};

use super::super::pairs::{damage, equal, events, first, keys_of, metric};
use super::super::parting::{TARGET, impatient, lose, of_two_stores, park, smaller, third};
use super::super::told::Told;
use super::super::{Answer, Event, Home, KEY, Node, failing, merge, record};

fn all_merged(count: usize) -> Answer {
    let outcomes = vec![Ok(Merged::Changed); count];
    ReplicaMerged { generation: Generation(1), outcomes: outcomes.into_iter().collect() }.into()
}

fn park_all(home: &Home, node: &Node, keys: &[&'static str]) {
    keys.iter().for_each(|key| park(home, node, key, "s"));
}

/// What operators see of hints for node 2.
fn of_target(node: &Node) -> HintsHeld {
    let held = node.report(Parts::STATUS).status.unwrap().hints;
    held.into_iter().find(|held| held.target == TARGET).unwrap()
}

/// What is told when hints have come to their target.
fn of_delivered_hints() -> Expect {
    expect![[r#"
        hints-drained: hints 5, target 2
        tontine_handoff_hint_bytes 123 > 0
        tontine_handoff_hints_delivered_total 2 > 5
        tontine_handoff_hints_pending 3 > 0
        hints.0.delivered_total is gone
        hints.0.expired_total is gone
        hints.0.failures is gone
        hints.0.hints is gone
        hints.0.readdressed_total is gone
        hints.0.state is gone
        hints.0.target is gone
    "#]]
}

#[test]
fn the_status_of_hints_shows_their_outcomes() {
    let home = Home::new();
    let stage = home.stage.clone();
    let count = AtomicUsize::new(0);
    home.wires.script(TARGET, move |request| {
        let Request::ReplicaMerge(batch) = request else { return failing(ErrorCode::UnknownRequest) };
        match count.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let timer = (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(3));
                let outcomes = batch.entries.iter().map(|(key, _)| match &key[..] {
                    b"a" | b"b" => Ok(Merged::Changed),
                    _ => Err(ErrorCode::ValueTooLarge),
                });
                let outcomes = outcomes.collect();
                Answer::Later(Box::pin(async move {
                    timer.await;
                    ReplicaMerged { generation: Generation(1), outcomes }.into()
                }))
            }
            1 | 2 => failing(ErrorCode::Overloaded),
            _ => all_merged(batch.entries.len()),
        }
    });
    let node = home.start();
    let mut told = Told::of(&node);
    park_all(&home, &node, &["a", "b", "c", "d", "e"]);
    // Nobody has looked so far.
    told.check(&expect![[r#"
        hints.0.delivered_total 0
        hints.0.expired_total 0
        hints.0.failures 0
        hints.0.hints 5
        hints.0.readdressed_total 0
        hints.0.state "holding"
        hints.0.target 2
        tontine_handoff_hint_bytes 0 > 205
        tontine_handoff_hints_pending 0 > 5
    "#]]);
    home.stage.pass(Duration::from_millis(2_500));
    told.check(&expect![[r#"
        hints-parked: hints 5, target 2
        hints.0.state "holding" > "delivering"
    "#]]);
    home.stage.until(|| node.replica().hints().count(TARGET) == 3);
    // A pause of 200 ms, and the next one is longer. One batch failed for its hints, two as a whole.
    home.stage.until(|| of_target(&node).failures == 2);
    told.check(&expect![[r#"
        hints.0.delivered_total 0 > 2
        hints.0.failures 0 > 2
        hints.0.hints 5 > 3
        hints.0.state "delivering" > "pausing"
        tontine_handoff_batches_failed_total 0 > 3
        tontine_handoff_hint_bytes 205 > 123
        tontine_handoff_hints_delivered_total 0 > 2
        tontine_handoff_hints_pending 5 > 3
    "#]]);
    home.stage.until(|| node.replica().hints().count(TARGET) == 0);
    home.stage.pass(Duration::from_secs(2));
    told.check(&of_delivered_hints());
    let drained = events(&node, &["hints-drained"]);
    let [Event::HintsDrained { seconds: 3..=6, .. }] = drained[..] else { panic!("{drained:?}") };
    // A later one gets its own courier, and what was delivered before is no part of its story.
    park_all(&home, &node, &["f"]);
    home.stage.pass(Duration::from_secs(3));
    told.check(&expect![[r#"
        hints-parked: hints 1, target 2
        hints-drained: hints 1, target 2
        tontine_handoff_hints_delivered_total 5 > 6
    "#]]);
}

#[test]
fn refused_hints_are_reported_at_once_and_then_every_ten_seconds() {
    let mut home = Home::new();
    home.config.hints.bytes_max = 0;
    let node = home.start();
    let mut told = Told::of(&node);
    let refuse = |count: usize| {
        for _ in 0..count {
            let refused = home.call(&node, merge(&KEY, &super::super::old(), 0, Some(2)));
            let Ok(Response::ReplicaMerged(merged)) = refused else { panic!("{refused:?}") };
            assert_eq!(merged.outcomes[..], [Err(ErrorCode::Overloaded)]);
        }
    };
    home.stage.pass(Duration::from_secs(20));
    refuse(2);
    home.stage.pass(Duration::from_secs(2));
    told.check(&expect![[r#"
        hints-refused: bytes_max 0, hints 2
        hints_refused_total 0 > 2
        tontine_handoff_hints_refused_total 0 > 2
    "#]]);
    refuse(3);
    home.stage.pass(Duration::from_secs(5));
    refuse(1);
    told.check(&expect![[r#"
        hints_refused_total 2 > 6
        tontine_handoff_hints_refused_total 2 > 6
    "#]]);
    // Only those of which nobody has heard.
    home.stage.pass(Duration::from_secs(30));
    told.check(&expect![[r#"
        hints-refused: bytes_max 0, hints 4
    "#]]);
}

/// Two others must hold what two acknowledged: this node, and the third.
#[test]
fn old_hints_are_given_up_once_enough_others_hold_them_and_that_is_reported() {
    let mut home = Home::new();
    impatient(&mut home);
    home.wires.script(TARGET, |_| failing(ErrorCode::Overloaded));
    let (refuses, sent) = (Arc::new(Mutex::new(true)), Arc::new(AtomicUsize::new(0)));
    let (is_refused, counted) = (refuses.clone(), sent.clone());
    home.wires.script(NodeId(3), move |request| match request {
        Request::ReplicaMerge(_) if *is_refused.lock() => failing(ErrorCode::StorageFailed),
        Request::ReplicaMerge(batch) => {
            counted.fetch_add(batch.entries.len(), Ordering::Relaxed);
            all_merged(batch.entries.len())
        }
        _ => failing(ErrorCode::UnknownRequest),
    });
    let node = home.start();
    park_all(&home, &node, &["a", "b", "c"]);
    home.stage.pass(Duration::from_secs(40));
    assert_eq!((of_target(&node).hints, of_target(&node).expired_total), (3, 0));
    assert_eq!(events(&node, &["hints-expired", "hints-drained"]), []);
    let mut told = Told::of(&node);
    *refuses.lock() = false;
    home.stage.until(|| node.replica().hints().count(TARGET) == 0);
    home.stage.pass(Duration::from_secs(2));
    for key in ["a", "b", "c"] {
        assert_eq!(record(&node, &Bytes::from_static(key.as_bytes())), super::super::old());
    }
    assert_eq!(sent.load(Ordering::Relaxed), 3);
    told.check(&expect![[r#"
        hints-expired: hints 3, target 2
        tontine_handoff_hint_bytes 123 > 0
        tontine_handoff_hints_expired_total 0 > 3
        tontine_handoff_hints_pending 3 > 0
        hints.0.delivered_total is gone
        hints.0.expired_total is gone
        hints.0.failures is gone
        hints.0.hints is gone
        hints.0.readdressed_total is gone
        hints.0.state is gone
        hints.0.target is gone
    "#]]);
    assert_eq!(metric(&node, "tontine_handoff_hints_delivered_total"), 0);
    park_all(&home, &node, &["d"]);
    assert_eq!(of_target(&node).expired_total, 3, "since the start");
}

#[test]
fn hints_for_a_node_that_left_go_to_all_replicas_of_their_keys_and_that_is_reported() {
    let home = Home::of(&of_two_stores(2)).syncing();
    let got = third(&home);
    let node = home.start();
    const KEYS: [&str; 3] = ["a", "b", "c"];
    park_all(&home, &node, &KEYS);
    // Nobody has a place for this one any more.
    park(&home, &node, "d", "t");
    let mut told = Told::of(&node);
    node.offer(smaller());
    home.stage.until(|| node.replica().hints().pending() == [(TARGET, 1)]);
    let mut got = got.lock().clone();
    got.sort();
    assert_eq!(got, KEYS);
    KEYS.iter()
        .for_each(|key| assert_eq!(record(&node, &Bytes::from_static(key.as_bytes())), super::super::old()));
    assert_eq!(of_target(&node).delivered_total, 0, "it has left");
    told.check(&expect![[r#"
        generation-adopted: generation 2
        hints-parked: hints 3, target 3
        hints-drained: hints 3, target 3
        hints.0.failures 0 > 1
        hints.0.hints 4 > 1
        hints.0.readdressed_total 0 > 3
        tontine_handoff_batches_failed_total 0 > 3
        tontine_handoff_hint_bytes 164 > 41
        tontine_handoff_hints_delivered_total 0 > 3
        tontine_handoff_hints_pending 4 > 1
        tontine_handoff_hints_readdressed_total 0 > 3
        repair.trees.1.doubtful is gone
        repair.trees.1.repaired_records_total is gone
        repair.trees.1.store is gone
        repair.trees.1.trees is gone
    "#]]);
}

#[test]
fn hints_given_up_are_all_reported_but_at_most_every_ten_seconds() {
    let mut home = Home::of(&of_two_stores(3));
    impatient(&mut home);
    third(&home);
    home.wires.script(TARGET, |_| Answer::Silence);
    let node = home.start();
    lose(&node, TARGET);
    let pass = |seconds| home.stage.pass(Duration::from_secs(seconds));
    let mut told = Told::of(&node);
    // Never given up: three others would have to hold it.
    park(&home, &node, "for ever", "t");
    park(&home, &node, "a", "s");
    pass(4);
    park_all(&home, &node, &["b", "c"]);
    pass(9);
    told.check(&expect![[r#"
        hints-parked: hints 2, target 2
        hints-expired: hints 1, target 2
        hints.0.delivered_total 0
        hints.0.expired_total 1
        hints.0.failures 0
        hints.0.hints 3
        hints.0.readdressed_total 0
        hints.0.state "holding"
        hints.0.target 2
        tontine_handoff_hint_bytes 0 > 130
        tontine_handoff_hints_expired_total 0 > 1
        tontine_handoff_hints_pending 0 > 3
    "#]]);
    // They are gone, and not told of yet.
    pass(6);
    told.check(&expect![[r#"
        hints.0.expired_total 1 > 3
        hints.0.hints 3 > 1
        tontine_handoff_hint_bytes 130 > 48
        tontine_handoff_hints_expired_total 1 > 3
        tontine_handoff_hints_pending 3 > 1
    "#]]);
    pass(4);
    told.check(&expect![[r#"
        hints-expired: hints 2, target 2
    "#]]);
    pass(2);
    park_all(&home, &node, &["e"]);
    // At once: the last time is long ago.
    pass(13);
    told.check(&expect![[r#"
        hints-expired: hints 1, target 2
        hints.0.expired_total 3 > 4
        tontine_handoff_hints_expired_total 3 > 4
    "#]]);
}

/// What such a hint held comes to its target by comparing, if anybody has it.
#[test]
fn a_scrub_finds_an_unreadable_hint_and_asks_for_a_comparison_with_its_target() {
    let (home, node, _second, _peer, _) = equal();
    node.handoffs().stop();
    let hinted = keys_of(0, 6).split_off(3);
    for key in &hinted {
        home.call(&node, merge(key, &first(key), 0, Some(2))).unwrap();
    }
    damage(&home, &hinted[1]);
    let mut told = Told::of(&node);
    let scrubbed = home.stage.run(node.antientropy().scrub_now());
    assert_eq!(scrubbed, 9, "six records, and three hints");
    told.check(&expect![[r#"
        hints-corrupt: hints 1, target 2
        repair.asked 0 > 1
        repair.scrub.last_asked.bytes 378
        repair.scrub.last_asked.corrupt_records 0
        repair.scrub.last_asked.partitions 2
        repair.scrub.last_asked.partitions_done 2
        repair.scrub.last_asked.records 6
        repair.scrub.last_asked.store "s"
        repair.scrub.last_asked.wrong_leaves 0
        tontine_scrub_bytes_total 0 > 526
        tontine_scrub_corrupt_hints_total 0 > 1
        tontine_scrub_records_total 0 > 9
    "#]]);
    home.stage.pass(Duration::from_secs(3));
    told.check(&expect![[r#"
        repair.asked 1 > 0
        repair.peers.0.outcome.bytes 36
        repair.peers.0.outcome.complete true
        repair.peers.0.outcome.failed 0
        repair.peers.0.outcome.keys_differing 0
        repair.peers.0.outcome.partitions 2
        repair.peers.0.outcome.partitions_differing 0
        repair.peers.0.outcome.partitions_unready 0
        repair.peers.0.outcome.requests 1
        repair.peers.0.outcome.sets_pulled 0
        repair.peers.0.outcome.sets_pushed 0
        repair.peers.0.peer 2
        tontine_antientropy_bytes_total 0 > 36
        tontine_antientropy_sessions_total{outcome="complete"} 0 > 1
    "#]]);
}
