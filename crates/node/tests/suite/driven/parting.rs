//! Hints that go another way than to their target, and what operators hear of them and of their orders.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::peers::Witness;
use futures_util::FutureExt;
use model::{Cluster, Consistency, Generation, NodeId, PartitionId, Ring, Store, StoreName, VersionSet};
use parking_lot::Mutex;
use protocol::gossip::Experience;
use protocol::report::{Parts, RepairPart};
use runtime::disk::simulated::{Fault, Operation};
use storage::ScanLimit;
use wire::error::ErrorCode;
use wire::messages::{
    AntiEntropyControl, AntiEntropyOrder, Merged, ReplicaMerge, ReplicaMerged, Request, Response, StoreRef,
};

use super::home::{cluster, store};
use super::keeper::{Keeper, empty};
use super::repairing::{content, equal, events, first, keys_of, metric};
use super::{Answer, Event, Home, KEY, Node, failing, merge, old, record};

const TARGET: NodeId = NodeId(2);

/// Keys that a node was sent, in order.
type Got = Arc<Mutex<Vec<Bytes>>>;

/// Node 3 takes what comes.
fn third(home: &Home) -> Got {
    let got = Got::default();
    let kept = got.clone();
    home.wires.script(NodeId(3), move |request| {
        let Request::ReplicaMerge(batch) = request else { return Answer::Silence };
        kept.lock().extend(batch.entries.iter().map(|(key, _)| key.clone()));
        let outcomes = batch.entries.iter().map(|_| Ok(Merged::Changed)).collect();
        ReplicaMerged { generation: Generation(1), outcomes }.into()
    });
    got
}

fn hints(node: &Node) -> u64 {
    node.replica().hints().count(TARGET)
}

fn park(home: &Home, node: &Node, key: &'static str, of: &str) {
    let reference = StoreRef::from(&StoreName::new(of).unwrap());
    let key = Bytes::from_static(key.as_bytes());
    let parked = ReplicaMerge { store: reference, ..merge(&key, &old(), 0, Some(2)) };
    let answer = home.call(node, parked);
    assert!(matches!(answer, Ok(Response::ReplicaMerged(_))), "{answer:?}");
}

/// Ages count from seconds on.
fn impatient(home: &mut Home) {
    home.config.handoff.age_max = Duration::from_secs(10);
    home.config.handoff.sweep_every = Duration::from_secs(1);
}

fn lose(node: &Node, other: NodeId) {
    Witness::experienced(&**node.gossip(), other, Experience::Unreachable);
}

/// Where all nodes hold another store, `t`, too, with so many acknowledgements for each write.
fn of_two_stores(writes_required: u8) -> Cluster {
    let mut document = cluster();
    let all = Consistency { replicas: 3, reads_required: 2, writes_required };
    document.stores.push(Store::new(StoreName::new("t").unwrap(), all).unwrap());
    document
}

/// The cluster of one store after node 2 has left.
fn smaller() -> Cluster {
    let mut smaller = Cluster { generation: Generation(2), ..cluster() };
    smaller.nodes_changed = smaller.generation;
    smaller.nodes.remove(1);
    let zones: Vec<_> = smaller.nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    smaller.ring = Ring::equal_slices(2, &zones);
    smaller
}

/// The hint may be the only copy of what was acknowledged.
#[test]
fn a_hint_for_a_node_that_left_stays_where_its_content_could_not_be_made_durable() {
    let home = Home::new().syncing();
    let node = home.start();
    park(&home, &node, "k", "s");
    let fault = Fault::next(Operation::Sync, u64::MAX);
    home.disk.inject(Fault { path_part: "stores/".to_owned(), ..fault });
    node.offer(smaller());
    home.stage.pass(Duration::from_secs(20));
    assert_eq!(hints(&node), 1);
    assert_eq!(metric(&node, "tontine_handoff_hints_readdressed_total"), 0);
    home.cut(node, 0);
    home.disk.clear_faults();
    let node = home.start();
    home.stage.until(|| hints(&node) == 0);
    home.cut(node, 0);
    assert_eq!(record(&home.start(), &KEY), old());
}

#[test]
fn hints_for_a_node_that_left_go_to_all_replicas_of_their_keys_and_that_is_told() {
    let home = Home::of(&of_two_stores(2)).syncing();
    let got = third(&home);
    let node = home.start();
    const KEYS: [&str; 3] = ["a", "b", "c"];
    KEYS.iter().for_each(|key| park(&home, &node, key, "s"));
    // Nobody has a place for this one any more.
    park(&home, &node, "d", "t");
    node.offer(smaller());
    home.stage.until(|| node.replica().hints().pending() == [(TARGET, 1)]);
    let mut got = got.lock().clone();
    got.sort();
    assert_eq!(got, KEYS);
    KEYS.iter().for_each(|key| assert_eq!(record(&node, &Bytes::from_static(key.as_bytes())), old()));
    assert_eq!(metric(&node, "tontine_handoff_hints_readdressed_total"), 3);
    let held = node.report(Parts::STATUS).status.unwrap().hints;
    let of = held.iter().find(|held| held.target == TARGET).unwrap();
    assert_eq!((of.readdressed_total, of.delivered_total), (3, 0), "{of:?}");
}

/// Writes go on while many hints find another way.
#[test]
fn hints_that_change_while_others_are_readdressed_arrive_as_they_are_then() {
    let home = Home::new().syncing();
    third(&home);
    let node = home.start();
    let keys = keys_of(0, 250);
    keys.iter().for_each(|key| drop(home.call(&node, merge(key, &first(key), 0, Some(2))).unwrap()));
    let stage = home.stage.clone();
    home.disk.set_sync_delay(Some(Arc::new(move |path: &str| {
        let seconds = if path.contains("stores/") { 5 } else { 0 };
        (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(seconds))
    })));
    node.offer(smaller());
    home.stage.until(|| keys.iter().any(|key| record(&node, key) == first(key)));
    let newer = content(10);
    let store = store(&node);
    keys.iter().for_each(|key| {
        node.replica().hints().park(TARGET, store.definition(), key, &newer).unwrap().unwrap();
    });
    home.disk.set_sync_delay(None);
    home.stage.until(|| hints(&node) == 0);
    for key in &keys {
        assert!(record(&node, key).includes(&newer), "{key:?}");
    }
    assert_eq!(metric(&node, "tontine_handoff_hints_readdressed_total"), 250, "each once");
    assert_eq!(metric(&node, "tontine_handoff_batches_failed_total"), 0, "a change is no fault");
}

/// Of two replicas of each key, the one that is not the target.
#[test]
fn a_hint_that_is_given_up_goes_to_the_replicas_of_its_own_key_only() {
    let mut document = cluster();
    let two = Consistency { replicas: 2, reads_required: 1, writes_required: 1 };
    document.stores = vec![Store::new(StoreName::new("s").unwrap(), two).unwrap()];
    let zones: Vec<_> = document.nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    (document.ring, document.buckets) = (Ring::equal_slices(12, &zones), 16);
    let mut home = Home::of(&document);
    impatient(&mut home);
    let got = third(&home);
    home.wires.script(TARGET, |_| failing(ErrorCode::Overloaded));
    let node = home.start();
    lose(&node, TARGET);
    let view = node.replica().view().get();
    let keys = (0..).map(|number| Bytes::from(format!("key {number}")));
    let writes =
        |id, key: &Bytes| view.writes(NodeId(id), &store(&node), view.partition_at(model::Token::of(key)).1);
    let both: Vec<Bytes> = [1, 3]
        .map(|id| keys.clone().find(|key| writes(2, key) && writes(id, key)).unwrap())
        .into_iter()
        .collect();
    both.iter().for_each(|key| drop(home.call(&node, merge(key, &old(), 0, Some(2))).unwrap()));
    assert_eq!(hints(&node), 2);
    home.stage.until(|| hints(&node) == 0);
    assert_eq!(got.lock()[..], both[1..]);
    assert_eq!((record(&node, &both[0]), record(&node, &both[1])), (old(), VersionSet::default()));
}

/// Two others must hold what two acknowledged, and one of them is away.
#[test]
fn a_hint_is_not_given_up_while_too_few_others_are_there() {
    let mut home = Home::new();
    impatient(&mut home);
    let got = third(&home);
    home.wires.script(TARGET, |_| Answer::Silence);
    let node = home.start();
    [2, 3].iter().for_each(|id| lose(&node, NodeId(*id)));
    park(&home, &node, "k", "s");
    home.stage.pass(Duration::from_secs(30));
    assert_eq!((hints(&node), got.lock().len()), (1, 0));
    assert!(record(&node, &KEY).is_empty());
    assert_eq!(metric(&node, "tontine_handoff_batches_failed_total"), 0, "nobody was asked");
}

#[test]
fn hints_that_were_given_up_are_told_of_every_ten_seconds_at_most_and_none_is_forgotten() {
    let mut home = Home::of(&of_two_stores(3));
    impatient(&mut home);
    third(&home);
    home.wires.script(TARGET, |_| Answer::Silence);
    let node = home.start();
    lose(&node, TARGET);
    let told = || -> Vec<u64> {
        let of = |event| match event {
            Event::HintsExpired { target: TARGET, hints } => hints,
            other => panic!("{other:?}"),
        };
        events(&node, &["hints-expired"]).into_iter().map(of).collect()
    };
    let pass = |seconds| home.stage.pass(Duration::from_secs(seconds));
    // Never given up: three others would have to hold it.
    park(&home, &node, "for ever", "t");
    park(&home, &node, "a", "s");
    pass(4);
    ["b", "c"].iter().for_each(|key| park(&home, &node, key, "s"));
    pass(9);
    assert_eq!((hints(&node), told()), (3, vec![1]));
    pass(6);
    assert_eq!((hints(&node), told()), (1, vec![1]), "not yet");
    pass(4);
    assert_eq!(told(), [1, 2]);
    pass(2);
    park(&home, &node, "e", "s");
    pass(13);
    assert_eq!((hints(&node), told()), (1, vec![1, 2, 1]), "at once: the last time is long ago");
}

/// Stores are sent apart. Of one of them the target says nothing: what it says of the other is not for its hints.
#[test]
fn an_answer_without_all_of_its_outcomes_is_for_no_hint_of_it_and_for_none_of_another_store() {
    let home = Home::of(&of_two_stores(2));
    home.wires.script(TARGET, |request| {
        let Request::ReplicaMerge(batch) = request else { return Answer::Silence };
        let count = if batch.store.as_str() == "s" { 0 } else { batch.entries.len() };
        let outcomes = vec![Ok(Merged::Changed); count].into_iter().collect();
        ReplicaMerged { generation: Generation(1), outcomes }.into()
    });
    let node = home.start();
    const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    KEYS.iter().for_each(|key| ["s", "t"].iter().for_each(|of| park(&home, &node, key, of)));
    home.stage.pass(Duration::from_secs(20));
    let limit = ScanLimit { records_max: 100, bytes_max: 1 << 20 };
    let left = node.replica().hints().page(TARGET, None, limit).unwrap().0;
    let stores: Vec<&str> = left.iter().map(|hint| hint.store.as_str()).collect();
    assert_eq!(stores, ["s"; 6]);
    assert_eq!(metric(&node, "tontine_handoff_hints_delivered_total"), 6);
}

fn order(
    home: &Home,
    node: &Node,
    order: AntiEntropyOrder,
    store: Option<&str>,
    partition: Option<u32>,
) -> Result<(), ErrorCode> {
    let control =
        AntiEntropyControl { order, store: store.map(str::to_owned), partition: partition.map(PartitionId) };
    home.stage
        .run(node.antientropy().clone().answer(control.into()))
        .map(|_| ())
        .map_err(|failure| failure.code)
}

#[test]
fn of_a_read_only_store_a_scrub_of_all_of_it_can_be_ordered_and_nothing_else() {
    use AntiEntropyOrder::{Look, Scrub, Start, Stop};
    let keeper = Keeper::configured(vec![empty("words")], &[], |_| {});
    let (home, node) = (&keeper.home, &keeper.node);
    let scrubbed = || node.antientropy().report().scrub.last_asked.map(|last| last.run.partitions_done);
    for what in [Look, Scrub, Start, Stop] {
        assert_eq!(order(home, node, what, Some("words"), Some(0)), Err(ErrorCode::ReadOnly), "{what:?}");
        let all = if what == Scrub { Ok(()) } else { Err(ErrorCode::ReadOnly) };
        assert_eq!(order(home, node, what, Some("words"), None), all, "{what:?}");
        assert_eq!(order(home, node, what, Some("none"), None), Err(ErrorCode::UnknownStore), "{what:?}");
    }
    home.stage.pass(Duration::from_secs(1));
    assert_eq!(scrubbed(), None, "it has no records");
    home.call(node, merge(&keys_of(1, 1)[0], &old(), 0, None)).unwrap();
    for what in [Look, Stop, Start, Scrub] {
        assert_eq!(order(home, node, what, Some("s"), Some(1)), Ok(()), "{what:?}");
    }
    home.stage.pass(Duration::from_secs(1));
    assert_eq!(scrubbed(), Some(1));
}

#[test]
fn as_many_as_256_parts_can_be_stopped_and_one_more_when_one_of_them_is_started() {
    use AntiEntropyOrder::{Start, Stop};
    let mut document = cluster();
    let zones: Vec<_> = document.nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    (document.ring, document.buckets) = (Ring::equal_slices(300, &zones), 512);
    let home = Home::of(&document);
    let node = home.start();
    let ids: Vec<u32> = document.ring.partitions().iter().map(|partition| partition.id.0).collect();
    for id in &ids[..256] {
        assert_eq!(order(&home, &node, Stop, None, Some(*id)), Ok(()));
    }
    let parts = || -> Vec<Option<PartitionId>> {
        node.antientropy().report().stopped_parts.iter().map(|part| part.partition).collect()
    };
    assert_eq!(order(&home, &node, Stop, None, Some(ids[256])), Err(ErrorCode::Malformed));
    assert_eq!(parts().len(), 256);
    assert_eq!(order(&home, &node, Start, None, Some(ids[7])), Ok(()));
    assert_eq!((parts().len(), parts().contains(&Some(PartitionId(ids[7])))), (255, false));
    assert_eq!(order(&home, &node, Stop, None, Some(ids[256])), Ok(()));
    assert_eq!(parts().last(), Some(&Some(PartitionId(ids[256]))));
}

#[test]
fn an_order_that_a_restart_may_forget_says_so_and_is_in_force_until_then() {
    let home = Home::new();
    let node = home.start();
    let fault = Fault::next(Operation::Create, 1);
    home.disk.inject(Fault { path_part: "repair-stopped".to_owned(), ..fault });
    let control = AntiEntropyControl { order: AntiEntropyOrder::Stop, store: None, partition: None };
    let failure = home.stage.run(node.antientropy().clone().answer(control.into())).unwrap_err();
    assert_eq!(failure.code, ErrorCode::StorageFailed);
    assert!(failure.detail.contains("is stopped, but a restart may forget it"), "{}", failure.detail);
    assert!(node.antientropy().report().stopped);
}

/// The order comes while the peer is asked for keys.
#[test]
fn an_order_to_stop_a_store_breaks_off_the_comparison_of_it_that_runs() {
    let (home, node, second, peer, _) = equal();
    second.call(&peer, merge(&KEY, &old(), 0, None)).unwrap();
    let its = Mutex::new(Some(node.antientropy().clone()));
    home.serve(&peer, move |request| {
        if let Request::KeyDigests(_) = request
            && let Some(antientropy) = its.lock().take()
        {
            let store = Some("s".to_owned());
            let control = AntiEntropyControl { order: AntiEntropyOrder::Stop, store, partition: None };
            // The order is in force before it is remembered.
            let _ = antientropy.answer(control.into()).now_or_never();
        }
        None
    });
    node.antientropy().ask_for(TARGET);
    home.stage.pass(Duration::from_secs(5));
    let stopped = RepairPart { store: Some("s".to_owned()), partition: None };
    assert_eq!(node.antientropy().report().stopped_parts, [stopped]);
    assert!(record(&node, &KEY).is_empty());
    assert_eq!(order(&home, &node, AntiEntropyOrder::Start, Some("s"), None), Ok(()));
    home.stage.until(|| record(&node, &KEY) == old());
}

/// Whoever asks must know whether the node has been restarted since.
#[test]
fn a_node_tells_of_its_moves_under_its_incarnation() {
    let home = Home::new();
    let told = |node: &Node| node.report(Parts::MOVES).facts().unwrap().incarnation.unwrap();
    let node = home.start();
    let first = told(&node);
    home.cut(node, 0);
    let second = told(&home.start());
    assert!(0 < first && first < second, "{first}, then {second}");
}
