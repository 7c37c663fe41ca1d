//! Comparisons and refills amid which something fails, is damaged, or changes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use model::{Cluster, Epoch, Generation, NodeId, Store, StoreName, Timestamp, Value, VersionSet};
use parking_lot::Mutex;
use protocol::report::Comparison;
use runtime::disk::simulated::{DiskOperation, Fault};
use storage::Change;
use wire::error::ErrorCode;
use wire::messages::{AnswererState, RecordsGot, Request, Response, StaleEpoch, StoreRef, TreeSummed};

use super::home::{cluster, damage_at, store};
use super::pairs::{content, damage, equal, events, first, keys_of, metric};
use super::rebalance::Three;
use super::{Answer, Event, Home, KEY, Node, Stage, failing, get, merge, old, record, set};

/// Bytes of a record before its key.
const HEADER: u64 = 48;

fn compare(home: &Home, node: &Node, peer: u32) {
    node.antientropy().ask_for(NodeId(peer));
    home.stage.pass(Duration::from_secs(2));
}

/// What the first comparison that ended from now on came to.
fn outcome(home: &Home, node: &Node, amid: impl FnOnce()) -> Comparison {
    node.antientropy().ask_for(NodeId(2));
    home.stage.until(|| !node.antientropy().report().peers.is_empty());
    amid();
    node.antientropy().report().peers[0].outcome
}

/// What the real node says, after this many seconds.
pub(super) fn later(stage: &Stage, peer: &Weak<Node>, request: &Request, seconds: u64) -> Answer {
    let timer = (stage as &dyn runtime::Clock).sleep(Duration::from_secs(seconds));
    let (peer, request) = (peer.upgrade().unwrap().antientropy().clone(), request.clone());
    Answer::Later(Box::pin(async move {
        timer.await;
        peer.answer(request).await.unwrap_or_else(Response::Failure)
    }))
}

#[test]
fn a_record_that_the_peer_cannot_read_is_not_counted_as_compared() {
    let (home, node, second, peer, _) = equal();
    let keys = keys_of(0, 5).split_off(3);
    keys.iter().for_each(|key| drop(second.call(&peer, merge(key, &content(10), 0, None)).unwrap()));
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    home.serve(&peer, move |request| match request {
        Request::RecordsGet(get) if failing.load(Ordering::Relaxed) => {
            let sets = get.keys.iter().map(|key| match *key == get.keys[0] {
                true => Err(ErrorCode::Corrupt),
                false => Ok(content(10)),
            });
            Some(RecordsGot { epoch: Epoch(0), sets: sets.collect() }.into())
        }
        _ => None,
    });
    let outcome = outcome(&home, &node, || fails.store(false, Ordering::Relaxed));
    let numbers = (outcome.keys_differing, outcome.sets_pulled, outcome.failed);
    assert_eq!((numbers, outcome.complete), ((2, 1, 1), false), "{outcome:?}");
    home.stage.until(|| keys.iter().all(|key| record(&node, key) == content(10)));
}

#[test]
fn a_record_that_cannot_be_merged_here_is_not_counted_as_compared() {
    let (home, node, second, peer, keys) = equal();
    let newer = set(&first(&keys[0]), 8, Timestamp(30), Value::Present("newer".into()));
    second.call(&peer, merge(&keys[0], &newer, 0, None)).unwrap();
    let (disk, failed) = (home.disk.clone(), AtomicBool::new(false));
    home.serve(&peer, move |request| {
        if matches!(request, Request::RecordsGet(_)) && !failed.swap(true, Ordering::Relaxed) {
            disk.inject(Fault::next(DiskOperation::Read, 2));
        }
        None
    });
    let outcome = outcome(&home, &node, || ());
    assert_eq!((outcome.failed, outcome.complete), (1, false), "{outcome:?}");
    home.stage.until(|| record(&node, &keys[0]) == newer);
}

#[test]
fn a_record_that_turns_unreadable_before_its_push_is_not_counted_as_compared() {
    let (home, node, _second, peer, _) = equal();
    let keys = keys_of(0, 5).split_off(3);
    for key in &keys {
        let value = format!("the value of {} and of nothing else", String::from_utf8_lossy(key));
        let value = [value.as_bytes(), &vec![7; 1 << 20]].concat();
        let large = set(&VersionSet::default(), 9, Timestamp(1), Value::Present(value.into()));
        home.call(&node, merge(key, &large, 0, None)).unwrap();
    }
    let (disk, damaged) = (home.disk.clone(), AtomicBool::new(false));
    home.serve(&peer, move |request| {
        // Each takes its own message.
        if let Request::ReplicaMerge(merge) = request
            && !damaged.swap(true, Ordering::Relaxed)
        {
            let other = keys.iter().find(|key| **key != merge.entries[0].0);
            damage_at(&disk, other.unwrap(), 0);
        }
        None
    });
    let outcome = outcome(&home, &node, || ());
    let numbers = (outcome.sets_pulled, outcome.sets_pushed, outcome.failed);
    assert_eq!((numbers, outcome.complete), ((0, 1, 1), false), "{outcome:?}");
}

/// Else it would push what the peer refuses for ever.
#[test]
fn a_node_learns_the_epoch_by_which_a_peer_refuses_its_push() {
    let (home, node, _second, peer, _) = equal();
    home.call(&node, merge(&KEY, &old(), 0, None)).unwrap();
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = refused.clone();
    home.serve(&peer, move |request| match request {
        Request::ReplicaMerge(merge) if merge.epoch < Epoch(3) => {
            counted.fetch_add(1, Ordering::Relaxed);
            Some(StaleEpoch { epoch: Epoch(3) }.into())
        }
        _ => None,
    });
    node.antientropy().ask_for(NodeId(2));
    home.stage.until(|| record(&peer, &KEY) == old());
    assert_eq!(refused.load(Ordering::Relaxed), 1);
}

/// By an older document the peer may be no replica, and would keep what nobody looks for there.
#[test]
fn a_peer_takes_a_push_only_under_the_document_that_made_it_a_replica() {
    let (home, node, second, peer, _) = equal();
    let mut newer = Cluster { generation: Generation(2), ..cluster() };
    newer.stores[0].since = Generation(2);
    home.call(&node, merge(&KEY, &old(), 0, None)).unwrap();
    home.adopt(&node, newer.clone());
    let pushed = Arc::new(AtomicUsize::new(0));
    let counted = pushed.clone();
    home.serve(&peer, move |request| {
        counted.fetch_add(usize::from(matches!(request, Request::ReplicaMerge(_))), Ordering::Relaxed);
        None
    });
    compare(&home, &node, 2);
    assert!(pushed.load(Ordering::Relaxed) > 0 && record(&peer, &KEY).is_empty());
    second.adopt(&peer, newer);
    home.stage.until(|| record(&peer, &KEY) == old());
}

/// Asks for records under a document that says otherwise of the replicas would be in vain.
#[test]
fn a_newer_document_breaks_a_comparison_off_only_where_it_changes_the_partitions() {
    for (accepted, expected) in [(1, true), (2, false)] {
        let (home, node, second, peer, _) = equal();
        second.call(&peer, merge(&KEY, &old(), 0, None)).unwrap();
        let newer =
            Cluster { generation: Generation(2), generation_accepted_min: Generation(accepted), ..cluster() };
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (its, its_peer, heard) = (Arc::downgrade(&node), Arc::downgrade(&peer), asked.clone());
        let stage = home.stage.clone();
        home.serve(&peer, move |request| {
            match request {
                Request::TreeNodes(nodes) if nodes.generation == Generation(1) => {
                    its.upgrade().unwrap().offer(newer.clone());
                    return Some(later(&stage, &its_peer, request, 3));
                }
                Request::KeyDigests(digests) => heard.lock().push(digests.generation),
                _ => {}
            }
            None
        });
        node.antientropy().ask_for(NodeId(2));
        home.stage.until(|| node.replica().view().adopted() == Generation(2));
        home.stage.pass(Duration::from_secs(5));
        assert_eq!(asked.lock().contains(&Generation(1)), expected, "accepted since {accepted}");
        assert_eq!(record(&node, &KEY), old());
    }
}

/// A get met damage, and by the time that it is looked at only the tree knows better.
#[test]
fn damage_mended_with_an_older_record_is_compared_and_a_whole_record_is_not() {
    let (home, node, second, peer, keys) = equal();
    let place = |key: &Bytes| node.replica().view().get().partition_at(model::Token::of(key)).0;
    let raw = |key: &Bytes| {
        let mut raw = None;
        let look = &mut |record: Option<&Bytes>| {
            raw = record.cloned();
            Change::Keep
        };
        store(&node).engine().update(place(key).partition, place(key).token, key, look).unwrap();
        raw.unwrap()
    };
    let put = |key: &Bytes, raw: &Bytes| {
        let change = &mut |_: Option<&Bytes>| Change::Put(raw.clone());
        store(&node).engine().update(place(key).partition, place(key).token, key, change).unwrap();
    };
    let peers = || node.antientropy().report().peers;
    let met = |key: &Bytes| store(&node).note_corrupt(place(key).partition, place(key).token);
    met(&keys[0]);
    home.stage.pass(Duration::from_secs(3));
    assert_eq!((events(&node, &["corrupt-met"]).len(), peers()), (1, vec![]), "it is as it was");
    let newer = set(&first(&keys[1]), 8, Timestamp(30), Value::Present("newer".into()));
    let before = raw(&keys[1]);
    home.call(&node, merge(&keys[1], &newer, 0, None)).unwrap();
    second.call(&peer, merge(&keys[1], &newer, 0, None)).unwrap();
    put(&keys[1], &before);
    met(&keys[1]);
    home.stage.pass(Duration::from_secs(3));
    assert_eq!(record(&node, &keys[1]), newer);
    assert_eq!(peers()[0].peer, NodeId(2));
}

#[test]
fn every_record_is_read_once_in_a_scrub_period_and_damage_is_mended() {
    const PERIOD: Duration = Duration::from_secs(600);
    let mut home = Home::new().syncing();
    home.config.repair.antientropy.scrub_period = PERIOD;
    let second = home.beside(2);
    let (node, peer) = (home.start(), second.start());
    home.serve(&peer, |_| None);
    home.stage.pass(Duration::from_secs(1));
    let keys = [keys_of(0, 3), keys_of(1, 3)].concat();
    for key in &keys {
        home.call(&node, merge(key, &first(key), 0, None)).unwrap();
        second.call(&peer, merge(key, &first(key), 0, None)).unwrap();
    }
    damage(&home, &keys[4]);
    let told = || {
        let scrub = node.antientropy().report().scrub;
        [scrub.passes, scrub.partitions, scrub.partitions_done, scrub.corrupt_records_total]
    };
    let read = || metric(&node, "tontine_scrub_records_total");
    let at = home.stage.clone();
    let until = |seconds: u64| {
        let deadline = model::Moment { nanos: Duration::from_secs(seconds).as_nanos() as u64 };
        at.run((&at as &dyn runtime::Clock).sleep_until(deadline));
    };
    // The first pass began before there was a record, with nothing to read.
    until(590);
    assert_eq!((told(), read()), ([0, 0, 0, 0], 0));
    until(890);
    assert_eq!((told(), read()), ([1, 2, 0, 0], 0));
    until(910);
    assert_eq!((told(), read()), ([1, 2, 1, 0], 3));
    until(1210);
    assert_eq!((told(), read()), ([2, 2, 0, 1], 6));
    for key in &keys {
        assert_eq!(record(&node, key), first(key));
    }
}

#[test]
fn a_scrub_reads_large_partitions_in_many_steps_and_ends_soon_after_the_node_stops() {
    let (home, node, _second, _peer, _) = equal();
    for key in keys_of(0, 1003).split_off(3) {
        home.call(&node, merge(&key, &content(10), 0, None)).unwrap();
    }
    for key in keys_of(1, 6).split_off(3) {
        home.call(&node, merge(&key, &content(10), 0, Some(3))).unwrap();
    }
    assert_eq!(home.stage.run(node.antientropy().scrub_now()), 1009);
    node.antientropy().close();
    let read = home.stage.run(node.antientropy().scrub_now());
    assert!((3..700).contains(&read), "one step of each partition, and no hint: {read}");
}

#[test]
fn a_comparison_of_two_stores_shows_their_joint_progress() {
    let mut document = cluster();
    let more = Store { name: StoreName::new("t").unwrap(), ..document.stores[0].clone() };
    document.stores.push(more);
    let home = Home::of(&document);
    let second = home.beside(2);
    let (node, peer) = (home.start(), second.start());
    for name in ["s", "t"] {
        let reference = StoreRef::from(&StoreName::new(name).unwrap());
        let merge = wire::messages::ReplicaMerge { store: reference, ..merge(&KEY, &old(), 0, None) };
        second.call(&peer, merge).unwrap();
    }
    let shown = Arc::new(Mutex::new(Vec::new()));
    let (its, seen) = (Arc::downgrade(&node), shown.clone());
    home.serve(&peer, move |request| {
        if let Request::KeyDigests(_) = request {
            let running = its.upgrade().unwrap().antientropy().report().running.unwrap();
            seen.lock().push((running.store, running.partitions, running.partitions_done));
        }
        None
    });
    home.stage.pass(Duration::from_secs(2));
    compare(&home, &node, 2);
    let at = |store: &str, done: u64| (store.to_owned(), 4, done);
    assert_eq!(*shown.lock(), [at("s", 1), at("t", 3)]);
}

/// The key of a damaged header is not known, so nothing but a comparison of all there is brings it back.
#[test]
fn damage_of_unknown_keys_is_reported_until_every_other_replica_was_compared() {
    let (home, node, _second, _peer, keys) = equal();
    let third = home.beside(3);
    let other = third.start();
    for key in &keys {
        third.call(&other, merge(key, &first(key), 0, None)).unwrap();
    }
    home.cut(node, 0);
    let header = HEADER - 20 + keys[0].len() as u64;
    damage_at(&home.disk, &keys[0], header);
    let node = home.start();
    let unplaced = |node: &Node| store(node).engine().repairable().unwrap().damage().unplaced;
    let complete = |node: &Node| metric(node, "tontine_antientropy_sessions_total{outcome=\"complete\"}");
    home.stage.pass(Duration::from_secs(2));
    assert_eq!((complete(&node), unplaced(&node)), (0, 1));
    compare(&home, &node, 2);
    assert_eq!((record(&node, &keys[0]), unplaced(&node)), (first(&keys[0]), 1), "the third is not compared");
    home.serve(&other, |_| Some(failing(ErrorCode::StorageFailed)));
    compare(&home, &node, 3);
    home.stage.pass(Duration::from_secs(20));
    home.stage.until(|| node.antientropy().report().running.is_none());
    assert_eq!(unplaced(&node), 1, "the third has said nothing");
    // Partitions may have other replicas by a newer document: all is compared anew.
    home.adopt(&node, Cluster { generation: Generation(2), ..cluster() });
    home.serve(&other, |_| None);
    home.stage.until(|| complete(&node) == 2);
    assert_eq!(unplaced(&node), 1, "the second was compared under an older document");
    compare(&home, &node, 2);
    assert_eq!((complete(&node), unplaced(&node)), (3, 0));
}

pub(super) type Others = Vec<(Home, Arc<Node>)>;

/// A node whose disk was lost, in this many buckets, and the two others, with some keys; it is not started again yet.
fn lost(buckets: u32) -> (Home, Others, Vec<Bytes>) {
    lost_from(Home::of(&Cluster { buckets, ..cluster() }))
}

/// The same, of a home that was not started so far.
pub(super) fn lost_from(home: Home) -> (Home, Others, Vec<Bytes>) {
    let node = home.start();
    home.cut(node, 0);
    home.disk.wipe();
    let keys = [keys_of(0, 3), keys_of(1, 3)].concat();
    let others = [2, 3].map(|id| {
        let other = home.beside(id);
        let node = other.start();
        keys.iter().for_each(|key| drop(other.call(&node, merge(key, &first(key), 0, None)).unwrap()));
        (other, node)
    });
    (home, others.into(), keys)
}

/// Partitions that were lost, and that are not whole yet.
pub(super) fn left(node: &Node) -> usize {
    node.antientropy().report().refill.map_or(0, |refill| refill.partitions_left as usize)
}

/// Partitions that documents make the node bring in, and that are not whole yet.
pub(super) fn entering(node: &Node) -> u64 {
    metric(node, "tontine_refill_entering_partitions")
}

/// It had everything when it gave it, and has lost it since.
#[test]
fn a_peer_that_restarts_during_an_exchange_makes_no_partition_whole() {
    let (home, others, _) = lost(2);
    let is_another = Arc::new(AtomicBool::new(true));
    for (_, node) in &others {
        let is_another = is_another.clone();
        home.serve(node, move |request| match request {
            Request::TreeSums(sums) if sums.sums.is_empty() && is_another.load(Ordering::Relaxed) => {
                let standing = AnswererState { incarnation: 99, adopted: Generation(1) };
                let (differing, unready, incomplete) = (Vec::new(), Vec::new(), Vec::new());
                Some(TreeSummed { standing, differing, unready, incomplete }.into())
            }
            _ => None,
        });
    }
    let node = home.start();
    home.stage.pass(Duration::from_secs(20));
    assert_eq!(left(&node), 2);
    is_another.store(false, Ordering::Relaxed);
    home.stage.until(|| left(&node) == 0);
}

/// By the newer document others may hold the partition, and may have acknowledged more.
#[test]
fn an_exchange_that_ends_under_another_document_makes_no_partition_whole() {
    let (home, others, _) = lost(2);
    let mut newer = Cluster { generation: Generation(2), ..cluster() };
    newer.stores[0].since = Generation(2);
    let node = Arc::new(Mutex::new(Weak::<Node>::new()));
    for (_, peer) in &others {
        let (its, its_peer, newer, stage) =
            (node.clone(), Arc::downgrade(peer), newer.clone(), home.stage.clone());
        home.serve(peer, move |request| match request {
            Request::TreeSums(sums) if sums.sums.is_empty() => {
                its.lock().upgrade().unwrap().offer(newer.clone());
                Some(later(&stage, &its_peer, request, 3))
            }
            // Nobody else knows of that document.
            Request::TreeSums(sums) if sums.generation > Generation(1) => Some(Answer::Silence),
            _ => None,
        });
    }
    let started = home.start();
    *node.lock() = Arc::downgrade(&started);
    home.stage.until(|| started.replica().view().adopted() == Generation(2));
    home.stage.pass(Duration::from_secs(20));
    assert_eq!(left(&started), 2);
}

#[test]
fn a_long_refill_reports_progress_every_ten_seconds_and_resumes_after_a_power_cut() {
    let (home, others, keys) = lost(32);
    let slow = |seconds: u64| {
        for (_, peer) in &others {
            let (its, stage) = (Arc::downgrade(peer), home.stage.clone());
            home.serve(peer, move |request| match request {
                Request::TreeSums(_) => Some(later(&stage, &its, request, seconds)),
                _ => None,
            });
        }
    };
    let told = |node: &Node| events(node, &["refill-went"]);
    slow(2);
    let node = home.start();
    home.stage.until(|| left(&node) == 0);
    home.stage.pass(Duration::from_secs(5));
    assert_eq!(told(&node), [Event::RefillWent { left: 8, partitions: 32 }], "eight, then sixteen");
    for key in &keys {
        assert_eq!(get(&node, key), Ok(first(key)));
    }
    home.cut(node, 0);
    home.disk.wipe();
    let node = home.start();
    home.stage.until(|| left(&node) == 8);
    home.stage.pass(Duration::from_secs(1));
    home.cut(node, 0);
    others.iter().for_each(|(other, _)| home.wires.script(other.config.member.id, |_| Answer::Silence));
    let node = home.start();
    assert_eq!(left(&node), 8);
}

/// Each in vain takes time, and what others could give would wait for it.
#[test]
fn a_peer_that_refuses_is_asked_once_in_a_round_of_a_refill() {
    let (home, others, _) = lost(16);
    let asked = Arc::new(Mutex::new(Vec::new()));
    for (other, peer) in &others {
        let (asked, id) = (asked.clone(), other.config.member.id);
        home.serve(peer, move |request| {
            if matches!(request, Request::TreeSums(_)) {
                asked.lock().push(id);
            }
            Some(failing(ErrorCode::StorageFailed))
        });
    }
    let _node = home.start();
    home.stage.until(|| asked.lock().len() >= 12);
    let asked = asked.lock()[..12].chunks(4).map(<[NodeId]>::to_vec).collect::<Vec<_>>();
    // Four attempts with each, and then a round in which they may answer again.
    assert_eq!(asked, [2, 3, 2].map(|id| vec![NodeId(id); 4]));
}

/// Rounds follow the older document while the newer one becomes durable, and by that one this node holds nothing.
#[test]
fn a_new_partition_stays_incomplete_while_its_document_becomes_durable() {
    let mut three = Three::new(2);
    let (_, to) = three.ends();
    let stage = three.homes[0].stage.clone();
    for node in &three.nodes {
        three.homes[0]
            .serve(node, |request| matches!(request, Request::TreeSums(_)).then_some(Answer::Silence));
    }
    let place = three.nodes.iter().position(|node| node.id() == to).unwrap();
    three.homes[place].disk.set_sync_delay(Some(Arc::new(move |path: &str| {
        let seconds = if path.contains("cluster.json") { 30 } else { 0 };
        (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(seconds))
    })));
    three.begin();
    three.homes[0].stage.pass(Duration::from_secs(5));
    assert_eq!(get(three.node(to), &three.keys[0]), Err(ErrorCode::Refilling));
}

/// It has all that the others acknowledged, so asking them as well would bring the same again.
#[test]
fn a_node_that_enters_brings_everything_in_from_its_donor() {
    let mut three = Three::new(2);
    let (from, to) = three.ends();
    let asked = Arc::new(Mutex::new(Vec::new()));
    for node in &three.nodes {
        let (asked, id) = (asked.clone(), node.id());
        three.homes[0].serve(node, move |request| {
            if matches!(request, Request::RecordsPage(_)) {
                asked.lock().push(id);
            }
            None
        });
    }
    three.begin();
    three.homes[0].stage.until(|| three.told(to).entered.iter().any(|entered| entered.whole));
    assert!(three.holds_all(to));
    let asked = asked.lock();
    assert!(!asked.is_empty() && asked.iter().all(|id| *id == from), "{asked:?}");
    assert_eq!(events(three.node(to), &["refill-started", "refill-ended"]), [], "nothing was lost");
}

/// A drain of two of five nodes with 572 records took seven minutes on a busy machine. Each of 20,000 buckets of stores cost
/// waits for others, and hardly any held a byte.
#[test]
fn many_small_buckets_are_waited_for_together() {
    let mut document = cluster();
    document.buckets = 512;
    let mut three = Three::over(document);
    let (_, to) = three.ends();
    let asked = Arc::new(AtomicUsize::new(0));
    for node in &three.nodes {
        let (stage, its, asked) = (three.homes[0].stage.clone(), Arc::downgrade(node), asked.clone());
        three.homes[0].serve(node, move |request| {
            asked.fetch_add(usize::from(!matches!(request, Request::RecordsPage(_))), Ordering::Relaxed);
            Some(later(&stage, &its, request, 1))
        });
    }
    three.begin();
    let clock: &dyn runtime::Clock = &three.homes[0].stage;
    let began = clock.now();
    three.homes[0].stage.until(|| three.told(to).entered.iter().any(|entered| entered.whole));
    assert!(three.holds_all(to));
    let (waited, asked) = (clock.now().since(began).as_secs(), asked.load(Ordering::Relaxed));
    assert!(waited < 45, "{waited} waits of a second each, one after the other");
    assert!(asked < 32, "{asked} questions that were none for records");
}
