//! Reads that never go backwards.

use std::time::Duration;

use bytes::Bytes;
use client::ClientOptions;
use client::peers::{Call, Peers};
use model::versions::Stamp;
use model::{Actor, Generation, NodeId, Reads, Store, StoreName, Timestamp, Value, VersionSet};
use runtime::Ports;
use wire::messages::{Peer, ReplicaGet, ReplicaMerge, Request, RequestOptions, Response, Role, Terms};

use crate::cluster::{PATIENCE, RunningCluster, store};

async fn ask(peers: &std::sync::Arc<Peers>, node: u32, request: Request) -> Response {
    match peers.call(NodeId(node), request) {
        Call::Ready(answer) => answer.unwrap(),
        Call::Pending(future) => future.await.unwrap(),
    }
}

fn written(value: &'static str) -> VersionSet {
    let mut set = VersionSet::default();
    let actor = Actor { node: NodeId(1), incarnation: 1, birth: 1 };
    let value = Value::Present(Bytes::from(value));
    set.put(Stamp { actor, timestamp: Timestamp(1), expires: None, value }, None);
    set
}

/// The write-backs of a get are refused, because the others have come further in collection rounds than the node it has
/// read from. The get reads again until that node has learned of it as well; it once failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monotonic_get_reads_again_when_a_round_has_come_in_between() {
    let monotonic = Store { reads: Reads::Monotonic, ..store(3, 1, 1) };
    let cluster = RunningCluster::start((3, 3), monotonic, |_| {}).await;
    let options = ClientOptions { deadline: PATIENCE, hedge_after: PATIENCE, ..ClientOptions::default() };
    let store = cluster.client(options).await.store("default").unwrap();
    let held = |key: &str| {
        let replica = cluster.nodes[0].replica();
        let view = replica.view().get();
        let route = view.route(&view.stores()[0], key.as_bytes());
        view.stores()[0].merge(route.place, key.as_bytes(), &written("v")).unwrap();
    };
    let further = |epoch: u64| {
        for node in &cluster.nodes[1..] {
            let replica = node.replica();
            replica.epochs().hear(model::Epoch(epoch), Generation(1), replica.standing());
            assert_eq!(replica.epochs().tag(), model::Epoch(epoch));
        }
        // Its own fence comes to the first node a little later.
        let late = cluster.nodes[0].clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            late.replica().epochs().hear(model::Epoch(epoch), Generation(1), late.replica().standing());
        });
    };
    held("a");
    further(5);
    assert_eq!(store.get("a").await.unwrap().value(), Some(Bytes::from("v")));
    held("b");
    further(9);
    for found in store.multi_get(["b"], &RequestOptions::default()).await.unwrap() {
        assert_eq!(found.unwrap().value(), Some(Bytes::from("v")));
    }
}

/// One of three replicas has a write that nobody acknowledged. A get with R = 1 that shows it must leave it where
/// every other get with R = 1 finds it: everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_misses_what_an_earlier_monotonic_get_has_shown() {
    let monotonic = Store { reads: Reads::Monotonic, ..store(3, 1, 1) };
    let cluster = RunningCluster::start((3, 3), monotonic, |_| {}).await;
    let peers = Peers::new(Ports::os().unwrap(), Peer::Node { id: NodeId(9), incarnation: 1 }, None);
    peers.learn(cluster.nodes[0].replica().view().get().cluster());
    let options = ClientOptions { deadline: PATIENCE, hedge_after: PATIENCE, ..ClientOptions::default() };
    let store = cluster.client(options).await.store("default").unwrap();
    let name = StoreName::new("default").unwrap();
    let merge = |key: &str| {
        let entries = [(Bytes::copy_from_slice(key.as_bytes()), written("v"))].into_iter().collect();
        let (store, generation) = ((&name).into(), Generation(1));
        Request::ReplicaMerge(ReplicaMerge {
            since: Generation(1),
            store,
            generation,
            epoch: model::Epoch(0),
            hint_for: None,
            entries,
        })
    };
    for (number, key) in ["a", "b", "c"].into_iter().enumerate() {
        ask(&peers, number as u32 + 1, merge(key)).await;
    }
    assert_eq!(store.get("a").await.unwrap().value(), Some(Bytes::from("v")));
    for found in store.multi_get(["b", "c"], &RequestOptions::default()).await.unwrap() {
        assert_eq!(found.unwrap().value(), Some(Bytes::from("v")));
    }
    for node in 1..=3 {
        let keys = ["a", "b", "c"].into_iter().map(Bytes::from).collect();
        let get = ReplicaGet {
            terms: Terms { since: Generation(1), role: Role::Replica },
            store: (&name).into(),
            generation: Generation(1),
            keys,
        };
        let Response::ReplicaGot(got) = ask(&peers, node, Request::ReplicaGet(get)).await else { panic!() };
        assert!(got.sets.iter().all(|set| *set == Ok(written("v"))), "node {node} lacks some: {got:?}");
    }
}
