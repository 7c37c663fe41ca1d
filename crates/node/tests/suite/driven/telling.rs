//! What repair and handoff tell of themselves, to the last record, byte and hint: a story, and then all of its events,
//! and what of the metrics and the report is another than before.
//!
//! Times and rates are left out; what depends on them is asserted beside the story.

mod hints;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use expect_test::{Expect, expect};
use futures_util::FutureExt;
use model::{PartitionId, Timestamp, Value};
use parking_lot::Mutex;
use storage::Change;
use wire::error::ErrorCode;
use wire::messages::{AntiEntropyControl, AntiEntropyOrder, Request, Response};

use super::healing::left;
use super::home::store;
use super::pairs::{bytes_of, content, damage, equal, events, first, keys_of, metric};
use super::parting::TARGET;
use super::told::{Told, check_part};
use super::{Event, Home, KEY, Node, failing, get, merge, record, set};

/// What is told when a comparison has mended what a scrub found.
fn of_a_mended_scrub() -> Expect {
    expect![[r#"
        repair-ended: complete true, keys 2, peer 2, pulled 2, pushed 0
        trees-counted: records 3, store "s", trees 1
        repair.asked 2 > 0
        repair.peers.0.outcome.bytes 454
        repair.peers.0.outcome.complete true
        repair.peers.0.outcome.failed 0
        repair.peers.0.outcome.keys_differing 2
        repair.peers.0.outcome.partitions 2
        repair.peers.0.outcome.partitions_differing 1
        repair.peers.0.outcome.partitions_unready 0
        repair.peers.0.outcome.requests 4
        repair.peers.0.outcome.sets_pulled 2
        repair.peers.0.outcome.sets_pushed 0
        repair.peers.0.peer 2
        repair.running.keys_left 0
        repair.running.partitions 2
        repair.running.partitions_done 0
        repair.running.peer 3
        repair.running.progress.bytes 0
        repair.running.progress.complete false
        repair.running.progress.failed 0
        repair.running.progress.keys_differing 0
        repair.running.progress.partitions 0
        repair.running.progress.partitions_differing 0
        repair.running.progress.partitions_unready 0
        repair.running.progress.requests 1
        repair.running.progress.sets_pulled 0
        repair.running.progress.sets_pushed 0
        repair.running.store "s"
        repair.trees.0.repaired_records_total 0 > 2
        tontine_antientropy_bytes_total 0 > 454
        tontine_antientropy_counted_records_total 0 > 3
        tontine_antientropy_keys_differing_total 0 > 2
        tontine_antientropy_repaired_records_total 0 > 2
        tontine_antientropy_sessions_total{outcome="complete"} 0 > 1
        tontine_antientropy_sets_total{way="pulled"} 0 > 2
    "#]]
}

#[test]
fn a_requested_scrub_tells_what_it_read_and_found_and_has_it_mended() {
    let (home, node, _second, _peer, keys) = equal();
    let mut told = Told::of(&node);
    let scrub = || home.stage.run(node.antientropy().scrub_now());
    assert_eq!(scrub(), 6);
    told.check(&expect![[r#"
        repair.scrub.last_asked.bytes 378
        repair.scrub.last_asked.corrupt_records 0
        repair.scrub.last_asked.partitions 2
        repair.scrub.last_asked.partitions_done 2
        repair.scrub.last_asked.records 6
        repair.scrub.last_asked.store "s"
        repair.scrub.last_asked.wrong_leaves 0
        tontine_scrub_bytes_total 0 > 378
        tontine_scrub_records_total 0 > 6
    "#]]);
    // Two of the first partition; each of its leaves is wrong now.
    damage(&home, &keys[0]);
    damage(&home, &keys[1]);
    assert_eq!(scrub(), 6);
    told.check(&expect![[r#"
        corrupt-found: partition 0, records 2, store "s"
        leaves-recounted: leaves 2, partition 0, store "s"
        repair.asked 0 > 2
        repair.scrub.corrupt_records_total 0 > 2
        repair.scrub.last_asked.bytes 378 > 252
        repair.scrub.last_asked.corrupt_records 0 > 2
        repair.scrub.last_asked.wrong_leaves 0 > 2
        repair.scrub.wrong_leaves_total 0 > 2
        tontine_scrub_bytes_total 378 > 630
        tontine_scrub_corrupt_records_total 0 > 2
        tontine_scrub_records_total 6 > 12
        tontine_scrub_wrong_leaves_total 0 > 2
    "#]]);
    // Nobody asked for a comparison: the scrub has.
    home.stage.pass(Duration::from_secs(3));
    for key in &keys {
        assert_eq!(record(&node, key), first(key));
    }
    told.check(&of_a_mended_scrub());
    assert_eq!(scrub(), 6, "there is no more to be found");
    told.check(&expect![[r#"
        repair.scrub.last_asked.bytes 252 > 378
        repair.scrub.last_asked.corrupt_records 2 > 0
        repair.scrub.last_asked.wrong_leaves 2 > 0
        tontine_scrub_bytes_total 630 > 1008
        tontine_scrub_records_total 12 > 18
    "#]]);
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
    assert_eq!(node.antientropy().report().trees[0].trees, 2);
    let mut told = Told::of(&node);
    node.antientropy().ask_for(TARGET);
    home.stage.pass(Duration::from_secs(2));
    for key in [&pulled, &pushed, &both] {
        assert_eq!(record(&node, key), record(&peer, key), "{key:?}");
    }
    told.check(&expect![[r#"
        repair-ended: complete true, keys 3, peer 2, pulled 2, pushed 2
        repair.peers.0.outcome.bytes 1920
        repair.peers.0.outcome.complete true
        repair.peers.0.outcome.failed 0
        repair.peers.0.outcome.keys_differing 3
        repair.peers.0.outcome.partitions 2
        repair.peers.0.outcome.partitions_differing 2
        repair.peers.0.outcome.partitions_unready 0
        repair.peers.0.outcome.requests 6
        repair.peers.0.outcome.sets_pulled 2
        repair.peers.0.outcome.sets_pushed 2
        repair.peers.0.peer 2
        tontine_antientropy_bytes_total 0 > 1920
        tontine_antientropy_keys_differing_total 0 > 3
        tontine_antientropy_sessions_total{outcome="complete"} 0 > 1
        tontine_antientropy_sets_total{way="pulled"} 0 > 2
        tontine_antientropy_sets_total{way="pushed"} 0 > 2
    "#]]);
    // Equal by now: no event, and two sums.
    node.antientropy().ask_for(TARGET);
    home.stage.pass(Duration::from_secs(2));
    told.check(&expect![[r#"
        repair.peers.0.outcome.bytes 1920 > 36
        repair.peers.0.outcome.keys_differing 3 > 0
        repair.peers.0.outcome.partitions_differing 2 > 0
        repair.peers.0.outcome.requests 6 > 1
        repair.peers.0.outcome.sets_pulled 2 > 0
        repair.peers.0.outcome.sets_pushed 2 > 0
        tontine_antientropy_bytes_total 1920 > 1956
        tontine_antientropy_sessions_total{outcome="complete"} 1 > 2
    "#]]);
}

#[test]
fn damage_met_by_requests_is_reported_once_with_its_places_and_mended() {
    let (home, node, _second, _peer, keys) = equal();
    let mut told = Told::of(&node);
    damage(&home, &keys[3]);
    damage(&home, &keys[5]);
    for key in [&keys[3], &keys[5], &keys[3]] {
        assert_eq!(get(&node, key), Err(ErrorCode::Corrupt));
    }
    told.check(&expect![[r#"
        tontine_node_corrupt_reads_total 0 > 3
    "#]]);
    home.stage.pass(Duration::from_secs(3));
    for key in &keys {
        assert_eq!(get(&node, key), Ok(first(key)));
    }
    told.check(&expect![[r#"
        corrupt-met: partition 1, records 2, store "s"
        repair-ended: complete true, keys 2, peer 2, pulled 2, pushed 0
        trees-counted: records 3, store "s", trees 1
        repair.peers.0.outcome.bytes 454
        repair.peers.0.outcome.complete true
        repair.peers.0.outcome.failed 0
        repair.peers.0.outcome.keys_differing 2
        repair.peers.0.outcome.partitions 2
        repair.peers.0.outcome.partitions_differing 1
        repair.peers.0.outcome.partitions_unready 0
        repair.peers.0.outcome.requests 4
        repair.peers.0.outcome.sets_pulled 2
        repair.peers.0.outcome.sets_pushed 0
        repair.peers.0.peer 2
        repair.running.keys_left 0
        repair.running.partitions 2
        repair.running.partitions_done 0
        repair.running.peer 3
        repair.running.progress.bytes 0
        repair.running.progress.complete false
        repair.running.progress.failed 0
        repair.running.progress.keys_differing 0
        repair.running.progress.partitions 0
        repair.running.progress.partitions_differing 0
        repair.running.progress.partitions_unready 0
        repair.running.progress.requests 1
        repair.running.progress.sets_pulled 0
        repair.running.progress.sets_pushed 0
        repair.running.store "s"
        repair.trees.0.repaired_records_total 0 > 2
        tontine_antientropy_bytes_total 0 > 454
        tontine_antientropy_counted_records_total 0 > 3
        tontine_antientropy_keys_differing_total 0 > 2
        tontine_antientropy_repaired_records_total 0 > 2
        tontine_antientropy_sessions_total{outcome="complete"} 0 > 1
        tontine_antientropy_sets_total{way="pulled"} 0 > 2
        tontine_scrub_bytes_total 0 > 63
        tontine_scrub_records_total 0 > 4
    "#]]);
}

#[test]
fn trees_that_were_counted_anew_are_reported_with_their_records() {
    let (home, node, _second, _peer, _) = equal();
    let doubt = |node: &Node| {
        [0, 1].iter().for_each(|id| store(node).trees().writing(PartitionId(*id)).doubt());
    };
    let mut told = Told::of(&node);
    doubt(&node);
    told.check(&expect![[r#"
        repair.trees.0.doubtful 0 > 2
        tontine_antientropy_doubtful_trees 0 > 2
    "#]]);
    home.stage.pass(Duration::from_secs(2));
    told.check(&expect![[r#"
        trees-counted: records 6, store "s", trees 2
        repair.trees.0.doubtful 2 > 0
        tontine_antientropy_counted_records_total 0 > 6
        tontine_antientropy_doubtful_trees 2 > 0
    "#]]);
    // Nobody wants to be told of trees of nothing.
    let third = home.beside(3);
    let empty = third.start();
    doubt(&empty);
    let mut told = Told::of(&empty);
    home.stage.pass(Duration::from_secs(2));
    assert_eq!(events(&empty, &["trees-counted"]), []);
    told.check(&expect![[r#"
        repair.trees.0.doubtful 2 > 0
        tontine_antientropy_doubtful_trees 2 > 0
    "#]]);
}

#[test]
fn a_lost_disk_is_reported_with_what_is_left_and_what_arrived() {
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
    check_part(
        &before,
        &expect![[r#"
        bytes 0
        partitions 2
        partitions_left 2
        records 0
        stores.0.partitions 2
        stores.0.partitions_left 2
        stores.0.store "s"
    "#]],
    );
    let watched = ["incomplete", "lost", "entering"];
    let watched = watched.map(|name| metric(&node, &format!("tontine_refill_{name}_partitions")));
    assert_eq!(watched, [2, 2, 0]);
    let mut told = Told::of(&node);
    *opened.lock() = true;
    home.stage.until(|| left(&node) == 0);
    home.stage.pass(Duration::from_secs(5));
    keys.iter().for_each(|key| assert_eq!(get(&node, key), Ok(first(key))));
    told.check(&expect![[r#"
        refill-ended: bytes 450, partitions 2, records 6
        repair.refill.bytes 0 > 450
        repair.refill.partitions_left 2 > 0
        repair.refill.records 0 > 6
        repair.refill.stores.0.partitions_left 2 > 0
        tontine_refill_bytes_total 0 > 450
        tontine_refill_incomplete_partitions 2 > 0
        tontine_refill_records_total 0 > 6
    "#]]);
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

/// A disk that gives back what was there before, and a checksum that holds: nothing but the tree knows better.
#[test]
fn a_scrub_finds_a_record_older_than_its_tree_and_has_it_mended() {
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
    told.check(&expect![[r#"
        leaves-recounted: leaves 1, partition 0, store "s"
        repair.asked 0 > 2
        repair.scrub.last_asked.bytes 378
        repair.scrub.last_asked.corrupt_records 0
        repair.scrub.last_asked.partitions 2
        repair.scrub.last_asked.partitions_done 2
        repair.scrub.last_asked.records 6
        repair.scrub.last_asked.store "s"
        repair.scrub.last_asked.wrong_leaves 1
        repair.scrub.wrong_leaves_total 0 > 1
        tontine_scrub_bytes_total 0 > 378
        tontine_scrub_records_total 0 > 6
        tontine_scrub_wrong_leaves_total 0 > 1
    "#]]);
    home.stage.pass(Duration::from_secs(3));
    assert_eq!(record(&node, key), newer);
    told.check(&expect![[r#"
        repair-ended: complete true, keys 1, peer 2, pulled 1, pushed 0
        repair.asked 2 > 0
        repair.peers.0.outcome.bytes 346
        repair.peers.0.outcome.complete true
        repair.peers.0.outcome.failed 0
        repair.peers.0.outcome.keys_differing 1
        repair.peers.0.outcome.partitions 2
        repair.peers.0.outcome.partitions_differing 1
        repair.peers.0.outcome.partitions_unready 0
        repair.peers.0.outcome.requests 4
        repair.peers.0.outcome.sets_pulled 1
        repair.peers.0.outcome.sets_pushed 0
        repair.peers.0.peer 2
        repair.running.keys_left 0
        repair.running.partitions 2
        repair.running.partitions_done 0
        repair.running.peer 3
        repair.running.progress.bytes 0
        repair.running.progress.complete false
        repair.running.progress.failed 0
        repair.running.progress.keys_differing 0
        repair.running.progress.partitions 0
        repair.running.progress.partitions_differing 0
        repair.running.progress.partitions_unready 0
        repair.running.progress.requests 1
        repair.running.progress.sets_pulled 0
        repair.running.progress.sets_pushed 0
        repair.running.store "s"
        tontine_antientropy_bytes_total 0 > 346
        tontine_antientropy_keys_differing_total 0 > 1
        tontine_antientropy_sessions_total{outcome="complete"} 0 > 1
        tontine_antientropy_sets_total{way="pulled"} 0 > 1
    "#]]);
}

#[test]
fn a_running_comparison_shows_its_progress_and_an_order_to_stop_breaks_it_off() {
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
    check_part(
        &shown.lock().take().unwrap(),
        &expect![[r#"
        keys_left 0
        partitions 2
        partitions_done 1
        peer 2
        progress.bytes 292
        progress.complete false
        progress.failed 0
        progress.keys_differing 0
        progress.partitions 2
        progress.partitions_differing 1
        progress.partitions_unready 0
        progress.requests 3
        progress.sets_pulled 0
        progress.sets_pushed 0
        store "s"
    "#]],
    );
    let asked = asked.lock();
    assert_eq!(asked.len(), 3, "sums, nodes and keys, and no record: {asked:?}");
    assert!(record(&node, &KEY).is_empty());
    told.check(&expect![[r#"
        repair-ended: complete false, keys 1, peer 2, pulled 0, pushed 0
        repair.peers.0.outcome.bytes 311
        repair.peers.0.outcome.complete false
        repair.peers.0.outcome.failed 0
        repair.peers.0.outcome.keys_differing 1
        repair.peers.0.outcome.partitions 2
        repair.peers.0.outcome.partitions_differing 1
        repair.peers.0.outcome.partitions_unready 0
        repair.peers.0.outcome.requests 3
        repair.peers.0.outcome.sets_pulled 0
        repair.peers.0.outcome.sets_pushed 0
        repair.peers.0.peer 2
        repair.stopped false > true
        tontine_antientropy_bytes_total 0 > 311
        tontine_antientropy_keys_differing_total 0 > 1
        tontine_antientropy_sessions_total{outcome="incomplete"} 0 > 1
    "#]]);
}

/// What a look at partition 0 shows.
fn of_the_first_partition() -> Expect {
    expect![[r#"
        0.compared_with.0 2
        0.compared_with.1 3
        0.doubtful 0
        0.incomplete false
        0.partition 0
        0.records 3
        0.repaired_records_total 0
        0.store "s"
        0.trees 1
    "#]]
}

#[test]
fn a_look_at_one_partition_reports_only_the_tree_of_that_partition() {
    let (home, node, _second, _peer, _) = equal();
    home.call(&node, merge(&keys_of(1, 4)[3], &content(10), 0, None)).unwrap();
    let look = |partition: Option<u32>, expected: Expect| {
        let partition = partition.map(PartitionId);
        let control = AntiEntropyControl { order: AntiEntropyOrder::Look, store: None, partition };
        let answer = home.stage.run(node.antientropy().clone().answer(control.into()));
        let Ok(Response::ReportGot(got)) = answer else { panic!("{answer:?}") };
        let trees = got.report().unwrap().repair.unwrap().trees;
        check_part(&trees, &expected);
        if let Some(id) = partition {
            let bytes = store(&node).trees().look(id, |tree| tree.bytes()).unwrap();
            assert_eq!(trees[0].tree_bytes, bytes as u64);
        }
    };
    look(Some(0), of_the_first_partition());
    look(
        Some(1),
        expect![[r#"
        0.compared_with.0 2
        0.compared_with.1 3
        0.doubtful 0
        0.incomplete false
        0.partition 1
        0.records 4
        0.repaired_records_total 0
        0.store "s"
        0.trees 1
    "#]],
    );
    store(&node).trees().writing(PartitionId(1)).doubt();
    look(Some(0), of_the_first_partition());
    look(
        Some(1),
        expect![[r#"
        0.compared_with.0 2
        0.compared_with.1 3
        0.doubtful 1
        0.incomplete false
        0.partition 1
        0.repaired_records_total 0
        0.store "s"
        0.trees 1
    "#]],
    );
    look(
        None,
        expect![[r#"
        0.doubtful 1
        0.repaired_records_total 0
        0.store "s"
        0.trees 2
    "#]],
    );
    assert!(home.disk.contents("repair-stopped").is_none(), "nothing was ordered");
}
