//! Deletes that stay deleted: rounds between real nodes, and what comes too late for them.

use protocol::report::Parts;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::peers::Call;
use client::{ClientOptions, DeleteOptions, PutOptions};
use model::{Epoch, Generation, NodeId, VersionSet};
use node::Node;
use wire::messages::{Condition, ReplicaMerge, Request, Response};

use crate::cluster::{PATIENCE, RunningCluster, store};

async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn cluster(interval: Duration) -> RunningCluster {
    RunningCluster::start((3, 3), store(3, 2, 2), |config| config.repair.collection.interval = interval).await
}

/// Records and their bytes at a node.
fn held(node: &Node) -> (u64, u64) {
    let stats = node.replica().view().get().stores()[0].engine().stats();
    (stats.records, stats.live_bytes)
}

fn record(node: &Node, key: &Bytes) -> VersionSet {
    let view = node.replica().view().get();
    let store = &view.stores()[0];
    store.get(view.route(store, key).place, key).unwrap()
}

/// A message of before, as it arrives at the node.
fn arrives(node: &Node, key: &Bytes, set: &VersionSet, hint_for: Option<NodeId>) -> Response {
    let store = node.replica().view().get().stores()[0].reference().clone();
    let entries = [(key.clone(), set.clone())].into_iter().collect();
    let merge = ReplicaMerge {
        since: Generation(1),
        store,
        generation: Generation(1),
        epoch: Epoch(0),
        hint_for,
        entries,
    };
    match node.replica().call(Request::ReplicaMerge(merge)) {
        Call::Ready(answer) => answer.unwrap(),
        Call::Pending(_) => panic!("nothing of before is stored"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_keys_leave_nothing_behind_and_late_messages_bring_nothing_back() {
    let cluster = cluster(Duration::from_millis(20)).await;
    let client = cluster.client(ClientOptions::default()).await.store("default").unwrap();
    let keys: Vec<Bytes> = (0..50).map(|number| format!("k{number}").into()).collect();
    for key in &keys {
        client.put(key.clone(), "old", PutOptions::default()).await.unwrap();
    }
    // Two of three acknowledge; this one may be the third.
    wait_until("the first node has all of them", || held(&cluster.nodes[0]).0 == 50).await;
    let old = record(&cluster.nodes[0], &keys[0]);
    let full = held(&cluster.nodes[0]);
    assert!(full.0 == 50 && !old.is_empty(), "{full:?}");
    for key in &keys {
        client.delete(key.clone(), DeleteOptions::default()).await.unwrap();
    }
    wait_until("tombstones stay", || cluster.nodes.iter().all(|node| held(node) == (0, 0))).await;
    for node in &cluster.nodes {
        let epoch = node.replica().epochs().tag();
        assert!(epoch > Epoch(0));
        for hint_for in [None, Some(NodeId(2))] {
            let Response::StaleEpoch(stale) = arrives(node, &keys[0], &old, hint_for) else {
                panic!("a late message was stored");
            };
            assert!(stale.epoch >= epoch);
        }
        assert_eq!((held(node), node.replica().hints().pending()), ((0, 0), vec![]));
    }
    assert_eq!(client.get(keys[0].clone()).await.unwrap().value(), None);
    client.put(keys[0].clone(), "new", PutOptions::default()).await.unwrap();
    assert_eq!(client.get(keys[0].clone()).await.unwrap().value(), Some("new".into()));
    // A round counts when it ends, which is after its last record went.
    wait_until("all are counted", || {
        let status = cluster.nodes[0].report(Parts::STATUS).status.unwrap();
        let collection = status.collection.unwrap();
        collection.records_collected_total >= 50 && collection.waits_for.is_none()
    })
    .await;
}

/// A touch once brought back what had been deleted since it was read: with the tombstone everything was forgotten that
/// made its context an old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conditional_write_with_a_context_from_before_a_forgotten_deletion_is_obsolete() {
    let cluster = cluster(Duration::from_millis(20)).await;
    let client = cluster.client(ClientOptions::default()).await.store("default").unwrap();
    let key = Bytes::from("k");
    client.put(key.clone(), "old", PutOptions::default()).await.unwrap();
    let found = client.get(key.clone()).await.unwrap();
    client.delete(key.clone(), DeleteOptions::default()).await.unwrap();
    wait_until("the tombstone stays", || cluster.nodes.iter().all(|node| held(node) == (0, 0))).await;
    for condition in [Condition::IfCurrent, Condition::Touch] {
        let options = PutOptions { condition, ..PutOptions::after(&found) };
        let refused = client.put(key.clone(), "old", options).await.unwrap_err();
        assert!(refused.is_obsolete(), "{condition:?}: {refused}");
    }
    assert_eq!(client.get(key.clone()).await.unwrap().value(), None);
    // A context that has seen that there is nothing is current, and one that is younger than the deletion as well.
    let options = PutOptions { condition: Condition::IfCurrent, ..PutOptions::default() };
    let nothing = client.get(key.clone()).await.unwrap();
    let first = PutOptions { context: Some(nothing.context()), ..options.clone() };
    client.put(key.clone(), "new", first).await.unwrap();
    let seen = client.get(key.clone()).await.unwrap();
    client.put(key.clone(), "newer", PutOptions { context: Some(seen.context()), ..options }).await.unwrap();
    assert_eq!(client.get(key).await.unwrap().value(), Some("newer".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_while_rounds_run_and_each_key_keeps_its_last_write() {
    let cluster = cluster(Duration::from_millis(1)).await;
    let client = cluster.client(ClientOptions::default()).await.store("default").unwrap();
    let writer = |name: &'static str| {
        let client = client.clone();
        async move {
            for number in 0..150 {
                let key = format!("{name}{}", number % 5);
                client.put(key.clone(), number.to_string(), PutOptions::default()).await.unwrap();
                let found = client.get(key.clone()).await.unwrap();
                assert_eq!(found.value(), Some(number.to_string().into()), "a write is read back");
                client.delete(key.clone(), DeleteOptions::default()).await.unwrap();
                assert_eq!(client.get(key.clone()).await.unwrap().value(), None, "a delete is read back");
                if number % 10 == 9 {
                    client.put(key, "kept", PutOptions::default()).await.unwrap();
                }
            }
        }
    };
    futures_util::future::join(writer("a"), writer("b")).await;
    for name in ["a", "b"] {
        for (number, kept) in [(0, None), (4, Some(Bytes::from("kept")))] {
            let found = client.get(format!("{name}{number}")).await.unwrap();
            assert_eq!(found.value(), kept, "{name}{number}");
        }
    }
    let rounds = cluster.nodes[0].replica().epochs().tag();
    assert!(rounds > Epoch(1), "rounds ran meanwhile: {rounds}");
    wait_until("tombstones stay", || cluster.nodes.iter().all(|node| held(node).0 == 2)).await;
}
