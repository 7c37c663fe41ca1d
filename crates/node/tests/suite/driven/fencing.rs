//! A node's part in collection rounds: confirming, fencing, collecting, and what comes in meanwhile.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::coordinator::{Replicas, Scope};
use client::peers::CallError;
use coordination::documents;
use model::{Cluster, Epoch, Generation, NodeId, StoreName, Timestamp, Value, VersionSet};
use protocol::collection::RoundId;
use storage::ScanLimit;
use wire::error::ErrorCode;
use wire::messages::{
    Collect, CollectConfirm, CollectConfirmed, CollectFence, CollectFenced, CollectRelease, Collectable,
    Collected, Condition, ReplicaGet, Request, Response, Role, StoreRef, Terms,
};

use super::collecting::report;
use super::home::{cluster, store};
use super::{
    Answer, Epochs, Home, KEY, Node, StartError, WorkerTransport, WriteOrder, amid, deleted, get, merge, old,
    own_copy, record, set, tombstone_at,
};

const ROUND: RoundId = RoundId(7);
/// Enough ways to lose what is not synced: a rule that is broken loses something in most of them.
const SEEDS: std::ops::Range<u64> = 0..6;

fn keys(sets: &[(&Bytes, VersionSet)]) -> Vec<Collectable> {
    let store = StoreRef::from(&StoreName::new("s").unwrap());
    sets.iter().map(|(key, set)| (store.clone(), ((*key).clone(), set.clone()))).collect()
}

/// Confirms that `KEY` is deleted.
fn confirm(home: &Home, node: &Node) -> CollectConfirmed {
    confirm_under(home, node, Generation(1), &deleted())
}

fn confirm_under(
    home: &Home,
    node: &Node,
    generation: Generation,
    tombstones: &VersionSet,
) -> CollectConfirmed {
    let keys = keys(&[(&KEY, tombstones.clone())]);
    let answer = home.ask(node, CollectConfirm { round: ROUND, generation, keys });
    let Ok(Response::CollectConfirmed(confirmed)) = answer else { panic!("{answer:?}") };
    confirmed
}

fn fence(home: &Home, node: &Node, epoch: u64, floor: Timestamp) -> Result<(), ErrorCode> {
    let answer = home.ask(node, CollectFence { round: ROUND, epoch: Epoch(epoch), floor });
    answer.map(|answer| assert_eq!(answer, Response::from(CollectFenced {}))).map_err(|failure| failure.code)
}

fn collect(home: &Home, node: &Node, tombstones: &VersionSet) -> u64 {
    let answer = home.ask(node, Collect { keys: keys(&[(&KEY, tombstones.clone())]) });
    let Ok(Response::Collected(Collected { records })) = answer else { panic!("{answer:?}") };
    records
}

/// What is parked for node 2.
fn hint(node: &Node) -> Option<VersionSet> {
    let all = ScanLimit { records_max: 9, bytes_max: 1 << 20 };
    let (hints, _) = node.replica().hints().page(NodeId(2), None, all).unwrap();
    hints.into_iter().next().map(|hint| hint.set)
}

/// Stores content at the node, in its record and in a hint for node 2.
fn store_both(home: &Home, node: &Node, content: &VersionSet) {
    for hint_for in [None, Some(2)] {
        let answer = home.call(node, merge(&KEY, content, 0, hint_for));
        assert!(matches!(answer, Ok(Response::ReplicaMerged(_))), "{answer:?}");
    }
}

/// The cluster a generation later, by which its set of nodes is another: collection rounds follow that.
fn later() -> Cluster {
    Cluster { generation: Generation(2), nodes_changed: Generation(2), ..cluster() }
}

#[test]
fn confirmed_tombstones_survive_a_power_cut() {
    for seed in SEEDS {
        let home = Home::new();
        let node = home.start();
        store_both(&home, &node, &old());
        // Taken in without a copy on the disk, as from a peer.
        home.adopt(&node, later());
        confirm_under(&home, &node, Generation(2), &deleted());
        home.cut(node, seed);
        let copy = own_copy(&home.disk).expect("a copy was written when the node joined");
        assert_eq!(copy.generation, Generation(2), "seed {seed}");
        let node = home.start();
        assert!(record(&node, &KEY).includes(&deleted()), "seed {seed}: the record");
        assert!(hint(&node).is_some_and(|hint| hint.includes(&deleted())), "seed {seed}: the hint");
    }
}

#[test]
fn an_unclean_hint_is_clean_once_its_holder_has_confirmed() {
    let home = Home::new();
    let node = home.start();
    store_both(&home, &node, &old());
    assert_eq!(confirm(&home, &node).left_out, Vec::<u32>::new());
    assert!(record(&node, &KEY).includes(&deleted()));
    assert!(hint(&node).unwrap().includes(&deleted()));
}

#[test]
fn a_hint_that_holds_only_tombstones_stays_until_they_are_collected() {
    let home = Home::new();
    let node = home.start();
    store_both(&home, &node, &deleted());
    confirm(&home, &node);
    assert!(hint(&node).is_some_and(|hint| hint.includes(&deleted())), "it may be one of two copies");
    fence(&home, &node, 1, deleted().timestamp_max()).unwrap();
    assert!(hint(&node).is_some(), "others may not have fenced");
    assert_eq!(collect(&home, &node, &deleted()), 2);
    assert!(hint(&node).is_none() && record(&node, &KEY).is_empty());
}

#[test]
fn unreadable_records_and_hints_give_way_to_the_tombstones() {
    let home = Home::new();
    let node = home.start();
    store_both(&home, &node, &old());
    for engine in [store(&node).engine(), node.replica().hints().engine()] {
        home.stage.run(engine.sync()).unwrap();
    }
    let value = b"the first value";
    let mut damaged = 0;
    for (path, bytes) in home.disk.files() {
        if let Some(at) = bytes.windows(value.len()).position(|window| window == value) {
            assert!(home.disk.flip_bit(&path, at as u64 + 3, 1));
            damaged += 1;
        }
    }
    assert_eq!(damaged, 2, "the record and the hint");
    assert_eq!(get(&node, &KEY), Err(ErrorCode::Corrupt));
    assert_eq!(confirm(&home, &node).left_out, Vec::<u32>::new());
    assert!(record(&node, &KEY).includes(&deleted()), "the tombstones have taken its place");
    // Before anybody reads hints, which forgets damaged ones as well.
    assert_eq!(node.replica().hints().damaged(), 1);
    assert!(hint(&node).is_none_or(|hint| hint.is_clean_of(&deleted())));
}

#[test]
fn a_key_that_cannot_be_made_clean_is_left_out() {
    let home = Home::new();
    let node = home.start();
    store_both(&home, &node, &old());
    let other = Bytes::from_static(b"unknown");
    let mut named = keys(&[(&KEY, deleted()), (&other, deleted()), (&other, tombstone_at(amid(120_000)))]);
    named[1].0 = StoreRef::from(&StoreName::new("elsewhere").unwrap());
    let answer = home.ask(&node, CollectConfirm { round: ROUND, generation: Generation(1), keys: named });
    let Ok(Response::CollectConfirmed(mut confirmed)) = answer else { panic!("{answer:?}") };
    confirmed.left_out.sort_unstable();
    assert_eq!(confirmed.left_out, [1, 2], "a store that is not there, and a stamp of the future");
}

#[test]
fn records_and_hints_merged_under_a_guard_are_cleaned() {
    let home = Home::new();
    let node = home.start();
    confirm(&home, &node);
    store_both(&home, &node, &old());
    assert!(record(&node, &KEY).includes(&deleted()), "it came between confirm and fence");
    assert!(hint(&node).unwrap().includes(&deleted()));
}

#[test]
fn a_hint_that_a_coordinator_parks_under_a_guard_is_cleaned() {
    let home = Home::new();
    let node = home.start();
    confirm(&home, &node);
    let transport =
        WorkerTransport::new(node.replica().clone(), node.antientropy().peers().clone(), Arc::new(|_| {}));
    let store = store(&node);
    let scope = Scope {
        cluster: node.replica().view().get().cluster().clone(),
        definition: store.shared_definition().clone(),
        store: store.reference().clone(),
        contents: client::coordinator::Contents::Versions,
        epoch: Epoch(0),
    };
    transport.park(&scope, NodeId(2), &KEY, &old());
    assert!(hint(&node).unwrap().includes(&deleted()));
}

/// The power goes between confirm and fence.
#[test]
fn a_node_that_forgot_its_confirmation_does_not_fence() {
    let home = Home::new();
    let node = home.start();
    confirm(&home, &node);
    home.cut(node, 3);
    let node = home.start();
    assert_eq!(fence(&home, &node, 1, Timestamp(10)), Err(ErrorCode::ConditionFailed));
    assert_eq!(node.replica().epochs().tag(), Epoch(0));
    confirm(&home, &node);
    home.ask(&node, CollectRelease { round: ROUND }).unwrap();
    assert_eq!(fence(&home, &node, 1, Timestamp(10)), Err(ErrorCode::ConditionFailed), "it let go");
}

#[test]
fn a_fence_is_remembered_after_a_power_cut() {
    for seed in SEEDS {
        let home = Home::new();
        let node = home.start();
        store_both(&home, &node, &old());
        confirm(&home, &node);
        fence(&home, &node, 5, amid(100)).unwrap();
        home.cut(node, seed);
        let node = home.start();
        let known = node.replica().epochs().known();
        assert_eq!((known.epoch, known.generation, known.floor), (Epoch(5), Generation(1), amid(100)));
        let late = home.call(&node, merge(&KEY, &old(), 4, None));
        assert!(matches!(late, Ok(Response::StaleEpoch(ref stale)) if stale.epoch == Epoch(5)), "{late:?}");
    }
}

#[test]
fn older_contents_are_refused_on_every_way_in() {
    let home = Home::new();
    let node = home.start();
    home.adopt(&node, later());
    confirm_under(&home, &node, Generation(2), &deleted());
    fence(&home, &node, 5, Timestamp(10)).unwrap();
    for hint_for in [None, Some(2)] {
        let mut late = merge(&KEY, &old(), 4, hint_for);
        late.generation = Generation(2);
        let answer = home.call(&node, late);
        assert!(
            matches!(answer, Ok(Response::StaleEpoch(ref stale)) if stale.epoch == Epoch(5)),
            "{answer:?}"
        );
        // Under the document of before: whoever sends it may count a node that is no member any more.
        let answer = home.call(&node, merge(&KEY, &old(), 5, hint_for));
        let Err(CallError::Refused(failure)) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.code, ErrorCode::StaleGeneration);
        assert!(failure.cluster.is_some(), "with the newer document, to go on at once");
    }
    assert!(record(&node, &KEY).is_empty() && hint(&node).is_none());
    assert_eq!(node.replica().epochs().tag(), Epoch(5));
}

#[test]
fn an_epoch_is_taken_over_only_under_a_known_document_that_names_the_node() {
    let home = Home::new();
    let node = home.start();
    let mut news = merge(&KEY, &old(), 9, None);
    news.generation = Generation(2);
    home.call(&node, news.clone()).unwrap();
    assert_eq!(node.replica().epochs().tag(), Epoch(0), "it may have been removed, and not know it");
    let mut without = later();
    without.nodes.retain(|member| member.id != NodeId(1));
    home.adopt(&node, without);
    home.call(&node, news.clone()).unwrap();
    assert_eq!(node.replica().epochs().tag(), Epoch(0), "it was removed");
    let again = Cluster { generation: Generation(3), ..cluster() };
    home.adopt(&node, again);
    home.call(&node, news).unwrap();
    assert_eq!(node.replica().epochs().tag(), Epoch(9));
}

#[test]
fn a_disk_that_missed_a_completed_round_is_not_accepted() {
    let home = Home::new();
    let node = home.start();
    home.cut(node, 1);
    home.stage.run(documents::complete_epoch(&home.service.open(), Epoch(4))).unwrap();
    let refused = home.try_start().err().expect("it missed a round");
    assert!(matches!(refused, StartError::RolledBack { completed: Epoch(4), .. }), "{refused}");
    // With the service away it starts, takes over nothing, and takes no part, until they are compared.
    home.stage.end_tasks();
    home.disk.kill();
    home.service.set_available(false);
    let node = home.start();
    home.call(&node, merge(&KEY, &old(), 9, None)).unwrap();
    assert_eq!(node.replica().epochs().tag(), Epoch(0));
    let keys = keys(&[(&KEY, deleted())]);
    let confirm = CollectConfirm { round: ROUND, generation: Generation(1), keys };
    assert_eq!(home.ask(&node, confirm).unwrap_err().code, ErrorCode::ConditionFailed);
    assert!(!node.replica().epochs().compare_with(Epoch(4)));
    assert!(!node.replica().epochs().is_compared());
}

#[test]
fn a_node_compares_its_disk_when_the_service_is_back() {
    let mut home = Home::new();
    home.config.repair.collection.interval = Duration::from_secs(1);
    let node = home.start();
    home.cut(node, 1);
    home.service.set_available(false);
    let node = home.start();
    home.stage.pass(Duration::from_secs(5));
    assert!(!node.replica().epochs().is_compared());
    assert_eq!(report(&node).waits_for, Some(node.id()), "it starts no round before");
    home.service.set_available(true);
    home.stage.until(|| node.replica().epochs().is_compared());
}

/// A round collects what was confirmed. What came between confirm and collect stays, newer tombstones included.
#[test]
fn only_what_the_tombstones_cover_is_collected() {
    let newer = [
        set(&deleted(), 8, amid(5), Value::Present(Bytes::from_static(b"new"))),
        set(&deleted(), 8, amid(5), Value::Tombstone),
    ];
    for newer in newer {
        let home = Home::new();
        let node = home.start();
        store_both(&home, &node, &deleted());
        confirm(&home, &node);
        store_both(&home, &node, &newer);
        fence(&home, &node, 1, Timestamp(10)).unwrap();
        assert_eq!(collect(&home, &node, &deleted()), 0);
        assert!(record(&node, &KEY).includes(&newer), "the record");
        assert!(hint(&node).unwrap().includes(&newer), "the hint");
    }
    let home = Home::new();
    let node = home.start();
    store_both(&home, &node, &old());
    let alive = Collect { keys: keys(&[(&KEY, old())]) };
    // Whoever asks to collect what is not deleted is not obeyed.
    assert_eq!(home.ask(&node, alive), Ok(Collected { records: 0 }.into()));
    assert!(record(&node, &KEY).includes(&old()));
}

fn put(node: &Node, order: WriteOrder) -> Result<Timestamp, ErrorCode> {
    let (view, store) = (node.replica().view().get(), store(node));
    let stamped = store.stamp(view.route(&store, &KEY).place, &KEY, order);
    stamped.map(|stamped| stamped.set.timestamp_max()).map_err(|failure| failure.code)
}

fn order() -> WriteOrder {
    let value = Value::Present(Bytes::from_static(b"new"));
    WriteOrder { context: None, condition: Condition::None, expires: None, value }
}

/// The tombstone's clock was ahead of this node's: what is written next must be later all the same.
#[test]
fn a_forgotten_deletion_stays_a_floor_for_later_stamps_over_a_power_cut() {
    let home = Home::new();
    let node = home.start();
    let ahead = tombstone_at(amid(50_000));
    // Its own copy comes by no merge, so that nothing but the floor says how far the other clock is.
    let keys = keys(&[(&KEY, ahead.clone())]);
    home.ask(&node, CollectConfirm { round: ROUND, generation: Generation(1), keys }).unwrap();
    fence(&home, &node, 1, ahead.timestamp_max()).unwrap();
    assert!(put(&node, order()).unwrap() > ahead.timestamp_max());
    home.cut(node, 0);
    let node = home.start();
    assert!(put(&node, order()).unwrap() > ahead.timestamp_max(), "after a power cut");
}

#[test]
fn a_fence_whose_floor_is_far_ahead_is_refused() {
    let home = Home::new();
    let node = home.start();
    confirm(&home, &node);
    assert_eq!(fence(&home, &node, 1, amid(120_000)), Err(ErrorCode::ConditionFailed));
    assert_eq!(node.replica().epochs().known().floor, Timestamp(0));
}

/// Nothing is left of what the context saw, and nothing here says so but the floor.
#[test]
fn a_context_from_before_a_forgotten_deletion_is_obsolete_after_a_restart() {
    let home = Home::new();
    let node = home.start();
    store_both(&home, &node, &old());
    let context = record(&node, &KEY).context();
    confirm(&home, &node);
    fence(&home, &node, 1, deleted().timestamp_max()).unwrap();
    assert_eq!(collect(&home, &node, &deleted()), 2);
    // A removal may be undone by a power cut; this one is not.
    home.stage.run(store(&node).engine().sync()).unwrap();
    home.cut(node, 0);
    let node = home.start();
    assert!(record(&node, &KEY).is_empty(), "nothing is left but the floor");
    for condition in [Condition::IfCurrent, Condition::Touch] {
        let late = WriteOrder { context: Some(context.clone()), condition, ..order() };
        assert_eq!(put(&node, late), Err(ErrorCode::Obsolete), "{condition:?}");
    }
    put(&node, order()).unwrap();
}

/// The file that the epoch is in is replaced in one step: whenever the power goes, it says what it said before or after.
#[test]
fn a_power_cut_while_a_fence_is_written_loses_no_earlier_fence() {
    for operations in 0..8 {
        let home = Home::new();
        let node = home.start();
        confirm(&home, &node);
        fence(&home, &node, 1, Timestamp(10)).unwrap();
        confirm(&home, &node);
        home.disk.power_off_after(Some(operations));
        let next = CollectConfirm { round: RoundId(8), generation: Generation(1), keys: keys(&[]) };
        let fenced = home.ask(&node, next).is_ok_and(|_| {
            let fence = CollectFence { round: RoundId(8), epoch: Epoch(2), floor: Timestamp(20) };
            home.ask(&node, fence).is_ok()
        });
        home.cut(node, operations);
        let known = Epochs::open(Arc::new(home.disk.clone())).unwrap().known();
        let said = (known.epoch, known.floor);
        let after = (Epoch(2), Timestamp(20));
        assert!(said == after || (!fenced && said == (Epoch(1), Timestamp(10))), "{operations}: {said:?}");
    }
}

/// What a get or a merge waits for is not lost on the way: a wire answers a merge as the node does.
#[test]
fn a_node_answers_over_a_wire_as_it_does_directly() {
    let home = Home::new();
    let (node, second) = (home.start(), home.beside(2));
    let peer = second.start();
    home.serve(&peer, |_| None::<Answer>);
    let merge = Request::ReplicaMerge(merge(&KEY, &old(), 0, None));
    let call = node.antientropy().peers().call(NodeId(2), merge);
    let clock: Arc<dyn runtime::Clock> = Arc::new(home.stage.clone());
    assert!(home.stage.run(call.within(&clock, Duration::from_secs(1))).is_ok());
    let asked = ReplicaGet {
        terms: Terms { since: Generation(1), role: Role::Replica },
        store: StoreRef::from(&StoreName::new("s").unwrap()),
        generation: Generation(1),
        keys: [KEY].into_iter().collect(),
    };
    let Ok(Response::ReplicaGot(got)) = second.call(&peer, asked) else { panic!() };
    assert_eq!(got.sets[0].as_ref().unwrap(), &record(&peer, &KEY));
}
