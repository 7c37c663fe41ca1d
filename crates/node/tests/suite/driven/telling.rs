//! What repair and handoff tell of themselves, to the last record, byte and hint: a story, and then all of its events,
//! and what of the metrics and the report is another than before.
//!
//! Times and rates are left out; what depends on them is asserted beside the story.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use expect_test::{Expect, expect};
use futures_util::FutureExt;
use model::{Generation, NodeId, PartitionId, Timestamp, Value};
use parking_lot::Mutex;
use protocol::report::{HintsHeld, Parts};
use storage::Change;
use wire::error::ErrorCode;
use wire::messages::{AntiEntropyControl, AntiEntropyOrder, Merged, ReplicaMerged, Request, Response};

use super::healing::left;
use super::home::store;
use super::pairs::{bytes_of, content, damage, equal, events, first, keys_of};
use super::parting::{TARGET, impatient, lose, of_two_stores, park, smaller, third};
use super::told::{Told, check_part};
use super::{Answer, Event, Home, KEY, Node, failing, get, merge, record, set};

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

#[test]
fn a_scrub_that_is_asked_for_tells_what_it_read_and_found_and_has_it_mended() {
    let (home, node, _second, _peer, keys) = equal();
    let mut told = Told::of(&node);
    let scrub = || home.stage.run(node.antientropy().scrub_now());
    assert_eq!(scrub(), 6);
    told.check(&expect![[""]]);
    // Two of the first partition; each of its leaves is wrong now.
    damage(&home, &keys[0]);
    damage(&home, &keys[1]);
    assert_eq!(scrub(), 6);
    told.check(&expect![[""]]);
    // Nobody asked for a comparison: the scrub has.
    home.stage.pass(Duration::from_secs(3));
    for key in &keys {
        assert_eq!(record(&node, key), first(key));
    }
    told.check(&expect![[""]]);
    assert_eq!(scrub(), 6, "there is no more to be found");
    told.check(&expect![[""]]);
}

#[test]
fn a_comparison_tells_what_differed_and_what_travelled() {
    let (home, node, second, peer, _) = equal();
    let [pulled, pushed, both] = ["only there", "only here", "other here"].map(Bytes::from);
    let (there, here) = (content(100), content(1000));
    second.call(&peer, merge(&pulled, &there, 0, None)).unwrap();
    home.call(&node, merge(&pushed, &here, 0, None)).unwrap();
    second.call(&peer, merge(&both, &there, 0, None)).unwrap();
    let newer = set(&there, 7, Timestamp(30), Value::Present("newer".into()));
    home.call(&node, merge(&both, &newer, 0, None)).unwrap();
    let mut told = Told::of(&node);
    node.antientropy().ask_for(TARGET);
    home.stage.pass(Duration::from_secs(2));
    for key in [&pulled, &pushed, &both] {
        assert_eq!(record(&node, key), record(&peer, key), "{key:?}");
    }
    told.check(&expect![[""]]);
    // Equal by now: no event, and two sums.
    node.antientropy().ask_for(TARGET);
    home.stage.pass(Duration::from_secs(2));
    told.check(&expect![[""]]);
}

#[test]
fn the_status_of_hints_tells_what_became_of_them() {
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
    told.check(&expect![[""]]);
    home.stage.pass(Duration::from_millis(2_500));
    told.check(&expect![[""]]);
    home.stage.until(|| node.replica().hints().count(TARGET) == 3);
    // A pause of 200 ms, and the next one is longer. One batch failed for its hints, two as a whole.
    home.stage.until(|| of_target(&node).failures == 2);
    told.check(&expect![[""]]);
    home.stage.until(|| node.replica().hints().count(TARGET) == 0);
    home.stage.pass(Duration::from_secs(2));
    told.check(&expect![[""]]);
    let drained = events(&node, &["hints-drained"]);
    let [Event::HintsDrained { seconds: 3..=6, .. }] = drained[..] else { panic!("{drained:?}") };
    // A later one gets a courier of its own, and what was delivered before is no part of its story.
    park_all(&home, &node, &["f"]);
    home.stage.pass(Duration::from_secs(3));
    told.check(&expect![[""]]);
}

#[test]
fn refused_hints_are_told_of_at_once_and_then_every_ten_seconds() {
    let mut home = Home::new();
    home.config.hints.bytes_max = 0;
    let node = home.start();
    let mut told = Told::of(&node);
    let refuse = |count: usize| {
        for _ in 0..count {
            let refused = home.call(&node, merge(&KEY, &super::old(), 0, Some(2)));
            let Ok(Response::ReplicaMerged(merged)) = refused else { panic!("{refused:?}") };
            assert_eq!(merged.outcomes[..], [Err(ErrorCode::Overloaded)]);
        }
    };
    home.stage.pass(Duration::from_secs(20));
    refuse(2);
    home.stage.pass(Duration::from_secs(2));
    told.check(&expect![[""]]);
    refuse(3);
    home.stage.pass(Duration::from_secs(5));
    refuse(1);
    told.check(&expect![[""]]);
    // Only those of which nobody has heard.
    home.stage.pass(Duration::from_secs(30));
    told.check(&expect![[""]]);
}

#[test]
fn damage_that_requests_met_is_told_of_once_with_its_places_and_mended() {
    let (home, node, _second, _peer, keys) = equal();
    let mut told = Told::of(&node);
    damage(&home, &keys[3]);
    damage(&home, &keys[5]);
    for key in [&keys[3], &keys[5], &keys[3]] {
        assert_eq!(get(&node, key), Err(ErrorCode::Corrupt));
    }
    told.check(&expect![[""]]);
    home.stage.pass(Duration::from_secs(3));
    for key in &keys {
        assert_eq!(get(&node, key), Ok(first(key)));
    }
    told.check(&expect![[""]]);
}

#[test]
fn trees_that_were_counted_anew_are_told_of_with_their_records() {
    let (home, node, _second, _peer, _) = equal();
    let doubt = |node: &Node| {
        [0, 1].iter().for_each(|id| store(node).trees().writing(PartitionId(*id)).doubt());
    };
    let mut told = Told::of(&node);
    doubt(&node);
    told.check(&expect![[""]]);
    home.stage.pass(Duration::from_secs(2));
    told.check(&expect![[""]]);
    // Nobody wants to hear of trees of nothing.
    let third = home.beside(3);
    let empty = third.start();
    doubt(&empty);
    let mut told = Told::of(&empty);
    home.stage.pass(Duration::from_secs(2));
    told.check(&expect![[""]]);
}

/// Two others must hold what two acknowledged: this node, and the third.
#[test]
fn hints_that_are_too_old_are_given_up_when_enough_others_hold_them_and_that_is_told() {
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
        assert_eq!(record(&node, &Bytes::from_static(key.as_bytes())), super::old());
    }
    assert_eq!(sent.load(Ordering::Relaxed), 3);
    told.check(&expect![[""]]);
    park_all(&home, &node, &["d"]);
    assert_eq!(of_target(&node).expired_total, 3, "since the start");
}

#[test]
fn a_lost_disk_tells_what_is_left_and_what_came() {
    let home = Home::new();
    let node = home.start();
    home.cut(node, 0);
    home.disk.wipe();
    let keys = [keys_of(0, 3), keys_of(1, 3)].concat();
    let opened = Arc::new(Mutex::new(false));
    let others = [2, 3].map(|id| home.beside(id));
    let peers = others.each_ref().map(Home::start);
    for (other, peer) in others.iter().zip(&peers) {
        keys.iter().for_each(|key| drop(other.call(peer, merge(key, &first(key), 0, None)).unwrap()));
        let is_open = opened.clone();
        home.serve(peer, move |_| (!*is_open.lock()).then(|| failing(ErrorCode::StorageFailed)));
    }
    let node = home.start();
    home.stage.pass(Duration::from_secs(5));
    let refill = || node.antientropy().report().refill.unwrap();
    let before = refill();
    assert_eq!((before.records_per_second, before.seconds_left), (Some(0), None));
    assert!((4.0..=5.0).contains(&before.seconds), "{before:?}");
    check_part(&before, &expect![[""]]);
    let mut told = Told::of(&node);
    *opened.lock() = true;
    home.stage.until(|| left(&node) == 0);
    home.stage.pass(Duration::from_secs(5));
    keys.iter().for_each(|key| assert_eq!(get(&node, key), Ok(first(key))));
    told.check(&expect![[""]]);
    let after = refill();
    let (bytes, seconds) = (after.bytes, after.seconds);
    let least: usize = keys.iter().map(|key| key.len() + bytes_of(&first(key))).sum();
    // Each peer may have been asked for all of it, and for four sums.
    let most = 2 * (least + 4 * 18);
    assert!((least..=most).contains(&(bytes as usize)), "{bytes} bytes, not {least} to {most}");
    let rates = [6, bytes].map(|count| Some((count as f64 / seconds) as u64));
    assert_eq!([after.records_per_second, after.bytes_per_second], rates);
    assert_eq!(after.seconds_left, Some(0));
    let ended = Event::RefillEnded { partitions: 2, records: 6, bytes, seconds: seconds as u64 };
    assert_eq!(
        events(&node, &["refill-started", "refill-ended"]),
        [Event::RefillStarted { partitions: 2 }, ended]
    );
}

#[test]
fn hints_for_a_node_that_left_go_to_all_replicas_of_their_keys_and_that_is_told() {
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
    KEYS.iter().for_each(|key| assert_eq!(record(&node, &Bytes::from_static(key.as_bytes())), super::old()));
    told.check(&expect![[""]]);
}

#[test]
fn hints_that_were_given_up_are_told_of_every_ten_seconds_at_most_and_none_is_forgotten() {
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
    told.check(&expect![[""]]);
    // They are gone, and not told of yet.
    pass(6);
    told.check(&expect![[""]]);
    pass(4);
    told.check(&expect![[""]]);
    pass(2);
    park_all(&home, &node, &["e"]);
    // At once: the last time is long ago.
    pass(13);
    told.check(&expect![[""]]);
}

/// A disk that gives back what was there before, and a checksum that holds: nothing but the tree knows better.
#[test]
fn a_record_that_is_older_than_its_tree_is_found_by_a_scrub_and_mended() {
    let (home, node, second, peer, keys) = equal();
    let key = &keys[1];
    let newer = set(&first(key), 8, Timestamp(30), Value::Present("newer".into()));
    let place = node.replica().view().get().partition_at(model::Token::of(key)).0;
    let mut before = None;
    let look = &mut |record: Option<&Bytes>| {
        before = record.cloned();
        Change::Keep
    };
    store(&node).engine().update(place.partition, place.token, key, look).unwrap();
    home.call(&node, merge(key, &newer, 0, None)).unwrap();
    second.call(&peer, merge(key, &newer, 0, None)).unwrap();
    let back = &mut |_: Option<&Bytes>| Change::Put(before.clone().unwrap());
    store(&node).engine().update(place.partition, place.token, key, back).unwrap();
    let mut told = Told::of(&node);
    assert_eq!((record(&node, key), home.stage.run(node.antientropy().scrub_now())), (first(key), 6));
    told.check(&expect![[""]]);
    home.stage.pass(Duration::from_secs(3));
    assert_eq!(record(&node, key), newer);
    told.check(&expect![[""]]);
}

/// What such a hint held comes to its target by comparing, if anybody has it.
#[test]
fn a_hint_that_cannot_be_read_is_found_by_a_scrub_which_asks_for_a_comparison_with_its_target() {
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
    told.check(&expect![[""]]);
    home.stage.pass(Duration::from_secs(3));
    told.check(&expect![[""]]);
}

#[test]
fn a_comparison_that_runs_shows_how_far_it_is_and_an_order_to_stop_breaks_it_off() {
    let (home, node, second, peer, _) = equal();
    second.call(&peer, merge(&KEY, &super::old(), 0, None)).unwrap();
    let (shown, asked) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
    let (its, seen, heard) = (Arc::downgrade(&node), shown.clone(), asked.clone());
    home.serve(&peer, move |request| {
        heard.lock().push(request.name());
        if let Request::KeyDigests(_) = request {
            let antientropy = its.upgrade().unwrap().antientropy().clone();
            *seen.lock() = antientropy.report().running;
            let control = AntiEntropyControl { order: AntiEntropyOrder::Stop, store: None, partition: None };
            // The order is in force before it is remembered.
            let _ = antientropy.answer(control.into()).now_or_never();
        }
        None
    });
    let mut told = Told::of(&node);
    node.antientropy().ask_for(TARGET);
    home.stage.pass(Duration::from_secs(5));
    check_part(&shown.lock().take().unwrap(), &expect![[""]]);
    let asked = asked.lock();
    assert_eq!(asked.len(), 3, "sums, nodes and keys, and no record: {asked:?}");
    assert!(record(&node, &KEY).is_empty());
    told.check(&expect![[""]]);
}

#[test]
fn a_look_at_one_partition_tells_of_its_tree_and_of_no_other() {
    let (home, node, _second, _peer, _) = equal();
    home.call(&node, merge(&keys_of(1, 4)[3], &content(10), 0, None)).unwrap();
    let look = |partition: Option<u32>, expected: Expect| {
        let partition = partition.map(PartitionId);
        let control = AntiEntropyControl { order: AntiEntropyOrder::Look, store: None, partition };
        let answer = home.stage.run(node.antientropy().clone().answer(control.into()));
        let Ok(Response::ReportGot(got)) = answer else { panic!("{answer:?}") };
        check_part(&got.report().unwrap().repair.unwrap().trees, &expected);
    };
    look(Some(0), expect![[""]]);
    look(Some(1), expect![[""]]);
    store(&node).trees().writing(PartitionId(1)).doubt();
    look(Some(0), expect![[""]]);
    look(Some(1), expect![[""]]);
    look(None, expect![[""]]);
    assert!(home.disk.contents("repair-stopped").is_none(), "nothing was ordered");
}
