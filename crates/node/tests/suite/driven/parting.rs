//! Hints that go another way than to their target, and those that are read and sent amid a change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::peers::Witness;
use model::{Cluster, Consistency, Epoch, Generation, NodeId, Ring, Store, StoreName, VersionSet};
use parking_lot::Mutex;
use protocol::gossip::Experience;
use runtime::disk::simulated::{DiskOperation, Fault};
use storage::ScanLimit;
use wire::error::ErrorCode;
use wire::messages::{Merged, ReplicaMerge, ReplicaMerged, Request, Response, StaleEpoch, StoreRef};

use super::home::{cluster, store};
use super::pairs::{content, first, keys_of, metric};
use super::{Answer, Home, KEY, Node, failing, merge, old, record};

pub(super) const TARGET: NodeId = NodeId(2);

/// Keys that a node was sent, in order.
pub(super) type Got = Arc<Mutex<Vec<Bytes>>>;

/// Node 3 takes what comes.
pub(super) fn third(home: &Home) -> Got {
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

pub(super) fn park(home: &Home, node: &Node, key: &'static str, of: &str) {
    let reference = StoreRef::from(&StoreName::new(of).unwrap());
    let key = Bytes::from_static(key.as_bytes());
    let parked = ReplicaMerge { store: reference, ..merge(&key, &old(), 0, Some(2)) };
    let answer = home.call(node, parked);
    assert!(matches!(answer, Ok(Response::ReplicaMerged(_))), "{answer:?}");
}

/// Ages count from seconds on.
pub(super) fn impatient(home: &mut Home) {
    home.config.hints.handoff.age_max = Duration::from_secs(10);
    home.config.hints.handoff.sweep_every = Duration::from_secs(1);
}

pub(super) fn lose(node: &Node, other: NodeId) {
    Witness::experienced(&**node.gossip(), other, Experience::Unreachable);
}

/// Where all nodes hold another store, `t`, too, with this many acknowledgements for each write.
pub(super) fn of_two_stores(writes_required: u8) -> Cluster {
    let mut document = cluster();
    let all = Consistency { replicas: 3, reads_required: 2, writes_required };
    document.stores.push(Store::new(StoreName::new("t").unwrap(), all).unwrap());
    document
}

/// The cluster of one store after node 2 has left.
pub(super) fn smaller() -> Cluster {
    let mut smaller = Cluster { generation: Generation(2), ..cluster() };
    smaller.nodes_changed = smaller.generation;
    smaller.nodes.remove(1);
    let zones: Vec<_> = smaller.nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    smaller.ring = Ring::equal_slices(2, &zones);
    smaller
}

/// The hint may be the only copy of what was acknowledged.
#[test]
fn a_hint_for_a_node_that_left_stays_if_its_content_cannot_be_made_durable() {
    let home = Home::new().syncing();
    let node = home.start();
    park(&home, &node, "k", "s");
    let fault = Fault::next(DiskOperation::Sync, u64::MAX);
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

/// Writes go on while many hints find another way.
#[test]
fn hints_that_change_while_others_are_readdressed_arrive_with_their_change() {
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
fn a_hint_that_is_given_up_goes_only_to_replicas_of_its_key() {
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
fn a_hint_is_not_given_up_while_too_few_other_replicas_are_up() {
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

/// Stores are sent apart. Of one of them the target says nothing: what it says of the other is not for its hints.
#[test]
fn an_answer_with_missing_outcomes_removes_no_hint_of_its_store_or_of_another() {
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

/// A page lasts for many batches, and its target refuses what was read before the round.
#[test]
fn hints_read_before_a_round_and_unchanged_are_sent_under_the_new_epoch() {
    let home = Home::new();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (kept, stage) = (sent.clone(), home.stage.clone());
    home.wires.script(NodeId(2), move |request| {
        let Request::ReplicaMerge(batch) = request else { return failing(ErrorCode::UnknownRequest) };
        kept.lock().push(batch.epoch);
        if batch.epoch < Epoch(3) && kept.lock().len() > 2 {
            return StaleEpoch { epoch: Epoch(3) }.into();
        }
        let timer = (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(1));
        let outcomes = vec![Ok(Merged::Changed); batch.entries.len()].into_iter().collect();
        Answer::Later(Box::pin(async move {
            timer.await;
            ReplicaMerged { generation: Generation(1), outcomes }.into()
        }))
    });
    let node = home.start();
    for key in keys_of(0, 250) {
        home.call(&node, merge(&key, &content(10), 0, Some(2))).unwrap();
    }
    home.stage.until(|| !sent.lock().is_empty());
    node.replica().epochs().hear(Epoch(3), Generation(1), Some(Generation(1)));
    home.stage.until(|| node.replica().hints().count(NodeId(2)) == 0);
    let sent = sent.lock();
    assert!(sent.len() == 4 && sent[2..] == [Epoch(3), Epoch(3)], "{sent:?}");
    assert_eq!(metric(&node, "tontine_handoff_hints_delivered_total"), 250);
    assert_eq!(record(&node, &keys_of(0, 1)[0]), VersionSet::default());
}
