//! Adopting documents, and what a node answers for by them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::peers::CallError;
use model::{Cluster, Generation, NodeId, Partition, PartitionId, Ring, Token, VersionSet};
use protocol::collection::RoundId;
use protocol::report::Parts;
use wire::error::ErrorCode;
use wire::messages::{
    CollectConfirm, KeyDigests, RecordsGet, RecordsPage, ReplicaGet, ReplicaMerge, Request, Response, Role,
    Scan, StoreRef, Terms, TreeNodes,
};

use super::home::{cluster, set};
use super::{Home, Node, merge, old, own_copy, record};

/// The document of this generation, in which nothing else has changed.
fn later(generation: u64) -> Cluster {
    Cluster { generation: Generation(generation), ..cluster() }
}

/// A document by which each key has one replica, and node 1 does not hold them all.
fn apart() -> Cluster {
    let mut cluster = cluster();
    let store = &mut cluster.stores[0].consistency;
    (store.replicas, store.reads_required, store.writes_required) = (1, 1, 1);
    cluster
}

/// A key that `node` holds by this document, or does not.
fn key_of(cluster: &Cluster, node: NodeId, is_held: bool) -> Bytes {
    let holds = |key: &Bytes| cluster.route(&cluster.stores[0], Token::of(key)).1.is_replica(node) == is_held;
    (0..).map(|number| Bytes::from(format!("key-{number}"))).find(holds).unwrap()
}

fn partition_of(cluster: &Cluster, key: &Bytes) -> PartitionId {
    cluster.ring.partition(Token::of(key)).id
}

/// The generation that the node tells the others.
fn told(node: &Node) -> u64 {
    node.report(Parts::NODES).nodes.unwrap()[0].said.generation.unwrap().0
}

fn refusal(answer: Result<Response, CallError>) -> wire::messages::Failure {
    match answer {
        Err(CallError::Refused(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

fn under(merge: ReplicaMerge, generation: u64, since: u64) -> ReplicaMerge {
    ReplicaMerge { generation: Generation(generation), since: Generation(since), ..merge }
}

fn a_get(key: &Bytes, generation: u64, role: Role) -> ReplicaGet {
    let store = StoreRef::from(&cluster().stores[0].name);
    let terms = Terms { since: Generation(1), role };
    ReplicaGet { terms, store, generation: Generation(generation), keys: [key.clone()].into_iter().collect() }
}

#[test]
fn a_document_is_followed_and_reported_only_once_it_is_durable() {
    let home = Home::new();
    let node = home.start();
    assert_eq!(told(&node), 1);
    let stage = home.stage.clone();
    home.disk.set_sync_delay(Some(Arc::new(move |path: &str| {
        let seconds = if path.contains("cluster.json") { 30 } else { 0 };
        (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(seconds))
    })));
    node.offer(later(2));
    home.stage.pass(Duration::from_secs(20));
    assert_eq!(
        (node.replica().view().generation(), told(&node)),
        (Generation(1), 1),
        "it is not durable yet"
    );
    home.stage.until(|| told(&node) == 2);
    assert_eq!(node.replica().view().generation(), Generation(2));
    home.disk.crash(7);
    assert_eq!(own_copy(&home.disk).unwrap().generation, Generation(2), "it was told of");
}

#[test]
fn a_document_that_cannot_be_made_durable_is_not_adopted_but_tried_again() {
    let home = Home::new();
    let node = home.start();
    home.disk.set_capacity(Some(0));
    node.offer(later(2));
    home.stage.pass(Duration::from_secs(5));
    assert_eq!((node.replica().view().generation(), told(&node)), (Generation(1), 1));
    home.disk.set_capacity(None);
    home.stage.until(|| told(&node) == 2);
}

/// Its disk filled up between the first file of its start and the copy. Nothing newer ever came, so it held up all
/// collection until its next start.
#[test]
fn a_node_without_room_for_its_copy_at_its_start_writes_it_once_there_is_room() {
    // Room for what a start needs, and for no more.
    let begun = (0..4096).step_by(16).find_map(|bytes| {
        let home = Home::new();
        home.disk.set_capacity(Some(bytes));
        let node = home.try_start().ok()?;
        Some((home, node))
    });
    let (home, node) = begun.expect("a start needs little room");
    home.stage.pass(Duration::from_secs(5));
    assert_eq!(node.replica().view().adopted(), Generation(0), "it starts with less than the copy needs");
    let confirm = CollectConfirm { round: RoundId(7), generation: Generation(1), keys: Vec::new() };
    home.ask(&node, confirm.clone()).expect_err("it might begin by an older document");
    home.disk.set_capacity(None);
    home.stage.until(|| node.replica().view().adopted() == Generation(1));
    home.ask(&node, confirm).unwrap();
    home.disk.crash(7);
    assert_eq!(own_copy(&home.disk).unwrap().generation, Generation(1));
}

#[test]
fn a_newer_request_waits_for_its_document_and_is_refused_if_that_does_not_arrive() {
    let home = Home::new();
    let node = home.start();
    let key = Bytes::from_static(b"k");
    let failure = refusal(home.call(&node, under(merge(&key, &old(), 0, None), 2, 2)));
    assert_eq!(failure.code, ErrorCode::Behind, "{failure}");
    assert!(record(&node, &key).is_empty());
    // A newer document that has left the key where it was is no reason to wait.
    home.call(&node, under(merge(&key, &old(), 0, None), 2, 1)).unwrap();
    assert_eq!(record(&node, &key), old());
    // The service has it, and so it comes in time.
    let mut next = later(2);
    let mut partitions: Vec<Partition> = next.ring.clone().into();
    partitions.iter_mut().for_each(|partition| partition.since = Generation(2));
    next.ring = Ring::new(partitions).unwrap();
    home.publish(&next);
    let written = set(&old(), 9, model::Timestamp(7), model::Value::Tombstone);
    let merged = home.call(&node, under(merge(&key, &written, 0, None), 2, 2)).unwrap();
    assert!(matches!(&merged, Response::ReplicaMerged(merged) if merged.generation == Generation(2)));
}

#[test]
fn an_older_request_is_refused_only_for_a_partition_that_has_changed() {
    let home = Home::new();
    let node = home.start();
    let mut next = later(2);
    let mut partitions: Vec<Partition> = next.ring.clone().into();
    partitions[1].since = Generation(2);
    next.ring = Ring::new(partitions).unwrap();
    node.offer(next.clone());
    home.stage.until(|| node.replica().view().generation() == Generation(2));
    for number in 0..20 {
        let key = Bytes::from(format!("key-{number}"));
        let (answer, read) =
            (home.call(&node, merge(&key, &old(), 0, None)), home.call(&node, a_get(&key, 1, Role::Replica)));
        match partition_of(&next, &key) {
            PartitionId(0) => {
                answer.unwrap();
                read.unwrap();
            }
            _ => {
                let (failure, read) = (refusal(answer), refusal(read));
                assert_eq!(
                    (failure.code, read.code),
                    (ErrorCode::StaleGeneration, ErrorCode::StaleGeneration)
                );
                assert!(failure.cluster.is_some() && read.cluster.is_some());
                assert!(record(&node, &key).is_empty());
            }
        }
    }
}

#[test]
fn a_node_that_does_not_hold_a_key_neither_stores_it_nor_answers_for_it() {
    let (home, apart) = (Home::of(&apart()), apart());
    let node = home.start();
    let (theirs, mine) = (key_of(&apart, NodeId(1), false), key_of(&apart, NodeId(1), true));
    let store = StoreRef::from(&apart.stores[0].name);
    let (partition, generation) = (partition_of(&apart, &theirs), Generation(1));
    let answer = home.call(&node, merge(&theirs, &old(), 0, None));
    assert_eq!(refusal(answer).code, ErrorCode::NotReplica);
    let answer = home.call(&node, merge(&theirs, &old(), 0, Some(1)));
    assert_eq!(refusal(answer).code, ErrorCode::NotReplica, "a hint for a node that does not hold the key");
    assert_eq!(refusal(home.call(&node, a_get(&theirs, 1, Role::Replica))).code, ErrorCode::NotReplica);
    assert_eq!(refusal(home.call(&node, a_get(&mine, 1, Role::StandIn))).code, ErrorCode::NotReplica);
    home.call(&node, a_get(&theirs, 1, Role::StandIn)).unwrap();
    home.call(&node, a_get(&mine, 1, Role::Replica)).unwrap();
    let scan = Scan {
        since: Generation(1),
        store: store.clone(),
        generation,
        partition,
        after: None,
        records_max: 10,
        bytes_max: 1000,
    };
    assert_eq!(refusal(home.call(&node, scan)).code, ErrorCode::NotReplica, "no empty page");
    let span = protocol::antientropy::merkle::Span { bits: 1, prefix: u64::from(partition.0) };
    let store = || store.clone();
    let asked: [Request; 4] = [
        TreeNodes { store: store(), generation, spans: vec![(partition, (span, 2))] }.into(),
        KeyDigests { store: store(), generation, spans: vec![(partition, span)] }.into(),
        RecordsGet { store: store(), generation, keys: vec![theirs.clone()] }.into(),
        RecordsPage { store: store(), generation, partition, from: Token(0) }.into(),
    ];
    for request in asked {
        let name = request.name();
        let answer = home.stage.run(node.antientropy().clone().answer(request));
        assert_eq!(answer.expect_err(name).code, ErrorCode::NotReplica, "{name}");
    }
    // A caller that follows an older document is told what is new.
    node.offer(Cluster { generation: Generation(2), ..apart });
    home.stage.until(|| node.replica().view().generation() == Generation(2));
    let failure = refusal(home.call(&node, merge(&theirs, &old(), 0, None)));
    assert_eq!((failure.code, failure.cluster.is_some()), (ErrorCode::StaleGeneration, true));
    assert_eq!(record(&node, &theirs), VersionSet::default());
}
