//! The client library against real nodes. Its tests are here because the crate `client` knows no node.

use protocol::report::Parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, ClientOptions, DeleteOptions, Merge, PutOptions};
use coordination::documents;
use model::{NodeId, Resolver, Ring, Store, VersionSet};
use node::Node;
use runtime::Ports;
use wire::error::ErrorCode;
use wire::messages::{Condition, RequestOptions};

use crate::cluster::{PATIENCE, RunningCluster, store};

/// Options of a client that waits as long as the slowest machine may take.
fn patient() -> ClientOptions {
    ClientOptions { deadline: PATIENCE, ..ClientOptions::default() }
}

fn required(required: u8) -> RequestOptions {
    RequestOptions { required: Some(required), ..RequestOptions::default() }
}

fn put_with(request: RequestOptions) -> PutOptions {
    PutOptions { request, ..PutOptions::default() }
}

fn siblings(replicas: u8, reads_required: u8, writes_required: u8) -> Store {
    Store { resolver: Resolver::Siblings, ..store(replicas, reads_required, writes_required) }
}

/// A context that has seen nothing: what is put with it replaces nothing.
fn seen_nothing() -> PutOptions {
    PutOptions { context: Some(VersionSet::default().context()), ..PutOptions::default() }
}

fn sorted(found: &client::Found) -> Vec<&[u8]> {
    let mut values: Vec<&[u8]> = found.values().map(|value| &value[..]).collect();
    values.sort_unstable();
    values
}

/// Unions the letters of all values.
fn letters(values: &[Bytes]) -> Bytes {
    let letters: std::collections::BTreeSet<u8> = values.iter().flatten().copied().collect();
    letters.into_iter().collect()
}

/// The nodes cannot pass anything on, so whatever is answered was asked at the right node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_goes_straight_to_a_node_that_holds_the_key() {
    let cluster = RunningCluster::start_apart(3, store(1, 1, 1)).await;
    let client = cluster.client(patient()).await;
    let store = client.store("default").unwrap();
    let key = |n: u32| format!("k{n}");
    for n in 0..60 {
        store.put(key(n), n.to_string(), PutOptions::default()).await.unwrap();
    }
    for n in 0..60 {
        assert_eq!(store.get(key(n)).await.unwrap().value(), Some(Bytes::from(n.to_string())));
    }
    let found =
        store.multi_get((0..60).map(key).collect::<Vec<_>>(), &RequestOptions::default()).await.unwrap();
    for (n, found) in found.into_iter().enumerate() {
        assert_eq!(found.unwrap().value(), Some(Bytes::from(n.to_string())));
    }
    let writes: Vec<usize> = cluster.nodes.iter().map(|node| keys_held(node)).collect();
    assert_eq!(writes.iter().sum::<usize>(), 60, "each key is at one node: {writes:?}");
    assert!(writes.iter().all(|&keys| keys > 0), "all nodes hold some: {writes:?}");
    let entries = (0..60).map(|n| (key(n), "again"));
    for written in store.multi_put(entries, &RequestOptions::default()).await.unwrap() {
        written.unwrap();
    }
    for n in 0..60 {
        store.delete(key(n), DeleteOptions::default()).await.unwrap();
        assert_eq!(store.get(key(n)).await.unwrap().value(), None);
    }
}

fn keys_held(node: &node::Node) -> usize {
    let view = node.replica().view().get();
    let stats = view.store("default").unwrap().engine().stats();
    usize::try_from(stats.records).unwrap()
}

/// Three replicas that only the client reaches: a get asks as many as it is told to, and a put is known to one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_may_ask_for_fewer_or_more_replicas_than_its_store() {
    let cluster = RunningCluster::start_apart(3, store(3, 2, 2)).await;
    let client = cluster.client(patient()).await;
    let store = client.store("default").unwrap();
    let written = store.put("k", "one copy", put_with(required(1))).await.unwrap();
    assert_eq!(written.acks, 1);
    let all = store.get_with("k", &required(3)).await.unwrap();
    assert_eq!((all.replicas_answered(), all.value().as_deref()), (3, Some(&b"one copy"[..])));

    // Two copies cannot be had: the node that stamped it keeps it, so nobody may call that failed.
    let outcome = store.put("k", "maybe", PutOptions::default()).await;
    assert!(matches!(outcome, Err(ClientError::Indeterminate { .. })), "{outcome:?}");
    assert_eq!(store.get_with("k", &required(3)).await.unwrap().value().as_deref(), Some(&b"maybe"[..]));

    // A mistake is named at once, not tried again until the deadline.
    let mistake = ClientError::TooFewReplicas { required: 4, replicas: 3 };
    assert_eq!(store.get_with("k", &required(4)).await.unwrap_err(), mistake);
    assert_eq!(store.put("k", "v", put_with(required(4))).await.unwrap_err(), mistake);
    assert_eq!(
        store
            .delete("k", DeleteOptions { request: required(4), ..DeleteOptions::default() })
            .await
            .unwrap_err(),
        mistake
    );
    assert_eq!(store.multi_get(vec!["k"], &required(4)).await.unwrap_err(), mistake);
    assert_eq!(store.multi_put([("k", "v")], &required(4)).await.unwrap_err(), mistake);
}

/// Node 2 takes everything and answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_deadline_a_get_has_failed_and_a_put_is_unknown() {
    let cluster = RunningCluster::start((2, 1), store(2, 2, 2), |_| {}).await;
    let client = cluster.client(patient()).await;
    let store = client.store("default").unwrap();
    let soon = RequestOptions { deadline_ms: 200, ..RequestOptions::default() };
    let error = store.get_with("k", &soon).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Failed { code: ErrorCode::InsufficientReplicas, .. })
            && error.is_retryable()
            && !error.is_indeterminate(),
        "{error:?}"
    );
    let error = store.put("k", "v", put_with(soon.clone())).await.unwrap_err();
    assert!(error.is_indeterminate() && !error.is_retryable(), "{error:?}");
    let error =
        store.delete("k", DeleteOptions { request: soon, ..DeleteOptions::default() }).await.unwrap_err();
    assert!(error.is_indeterminate(), "{error:?}");
}

#[tokio::test]
async fn a_request_that_certainly_was_not_done_says_so_with_its_reason() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let client = cluster.client(patient()).await;
    let Err(unknown) = client.store("nowhere") else { panic!("a store that is none") };
    let text = "store \"nowhere\" does not exist; the stores are: default";
    assert_eq!(unknown.to_string(), text);
    let store = client.store("default").unwrap();
    for key in [Vec::new(), vec![7; 4097]] {
        assert!(matches!(store.put(key, "v", PutOptions::default()).await, Err(ClientError::Key(_))));
    }
    let code = |error: ClientError| match error {
        ClientError::Failed { code, .. } => code,
        other => panic!("{other:?}"),
    };
    let large = store.put("k", vec![0; (16 << 20) + 1], PutOptions::default()).await.unwrap_err();
    assert_eq!(code(large), ErrorCode::ValueTooLarge);
    let absent = PutOptions { condition: Condition::IfPresent, ..PutOptions::default() };
    assert_eq!(code(store.put("k", "v", absent).await.unwrap_err()), ErrorCode::ConditionFailed);

    let seen = store.put("k", "1", PutOptions::default()).await.unwrap().context;
    store.put("k", "2", PutOptions::default()).await.unwrap();
    let late = PutOptions { context: Some(seen), ..PutOptions::default() };
    let obsolete = store.put("k", "3", late).await.unwrap_err();
    assert!(obsolete.is_obsolete() && !obsolete.is_retryable(), "{obsolete:?}");
    assert_eq!(store.get("k").await.unwrap().value().as_deref(), Some(&b"2"[..]));
}

#[tokio::test]
async fn an_overloaded_node_is_reported_as_such_once_all_attempts_are_used_up() {
    let cluster =
        RunningCluster::start((1, 1), store(1, 1, 1), |config| config.requests.limits.node_requests_max = 0)
            .await;
    for retries in [0, 2] {
        let client = cluster.client(ClientOptions { retries, ..patient() }).await;
        let error = client.store("default").unwrap().put("k", "v", PutOptions::default()).await.unwrap_err();
        assert!(
            matches!(error, ClientError::Failed { code: ErrorCode::Overloaded, .. }) && error.is_retryable(),
            "{error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn siblings_are_merged_by_the_hook_and_the_merge_is_written_back() {
    let cluster = RunningCluster::start((3, 3), siblings(3, 2, 2), |_| {}).await;
    let client = cluster.client(patient()).await;
    let plain = client.store("default").unwrap();
    for value in ["ab", "bc"] {
        plain.put("k", value, seen_nothing()).await.unwrap();
    }
    assert_eq!(sorted(&plain.get("k").await.unwrap()), [b"ab", b"bc"]);

    let merge: Merge = Arc::new(letters);
    let merging = plain.clone().with_merge(merge);
    let merged = merging.get("k").await.unwrap();
    assert_eq!((sorted(&merged), merged.is_merged()), (vec![&b"abc"[..]], true));
    let again = merging.get("k").await.unwrap();
    assert_eq!((sorted(&again), again.is_merged()), (vec![&b"abc"[..]], false));
    assert_eq!(sorted(&plain.get("k").await.unwrap()), [b"abc"]);
    let untouched = plain.resolve("nothing", letters).await.unwrap();
    assert_eq!((untouched.value(), untouched.is_merged()), (None, false));
}

/// The merge of what was read first does not cover what another writer puts meanwhile, so it is merged once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_leaves_out_nothing_that_was_put_while_it_was_made() {
    let cluster = RunningCluster::start((3, 3), siblings(3, 2, 2), |_| {}).await;
    let client = cluster.client(patient()).await;
    let store = client.store("default").unwrap();
    for value in ["a", "b"] {
        store.put("k", value, seen_nothing()).await.unwrap();
    }
    let (other, meanwhile) =
        (cluster.client(patient()).await.store("default").unwrap(), AtomicBool::new(true));
    let merge = |values: &[Bytes]| {
        if meanwhile.swap(false, Ordering::Relaxed) {
            let put = other.put("k", "c", seen_nothing());
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(put)).unwrap();
        }
        letters(values)
    };
    let found = store.resolve("k", merge).await.unwrap();
    assert_eq!((sorted(&found), found.is_merged()), (vec![&b"abc"[..]], true));
}

/// Two of three replicas are always there: nothing fails, and the one that went away is used again when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_while_a_node_is_away_and_finds_it_again() {
    let mut cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    let client = cluster.client(patient()).await;
    let store = client.store("default").unwrap();
    store.put("k", "0", put_with(required(3))).await.unwrap();
    for round in 0..2 {
        cluster.stop(round).await;
        for n in 0..20 {
            // A put whose node went away under it may have been done; the client never dresses that as a failure.
            match store.put(format!("k{n}"), "v", PutOptions::default()).await {
                Ok(_) | Err(ClientError::Indeterminate { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
            store.get(format!("k{n}")).await.unwrap();
        }
        assert_eq!(store.get("k").await.unwrap().value().as_deref(), Some(&b"0"[..]));
        cluster.start_again(round).await;
        let id = NodeId(u32::try_from(round).unwrap() + 1);
        // It is asked again as soon as somebody tries it and it answers.
        while client.report(id, Parts::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while store.get_with("k", &required(3)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The key's only replica is away, and its store knows no stand-ins: the other node answers that there are too few
/// replicas. Nothing was written then, so the client goes on trying, and the put is done when the replica is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_met_too_few_replicas_is_tried_again_while_there_is_time() {
    let strict = Store { sloppy: false, ..store(1, 1, 1) };
    let mut cluster = RunningCluster::start((2, 2), strict, |_| {}).await;
    let impatient = cluster.client(ClientOptions { retries: 0, ..patient() }).await;
    let client = cluster.client(ClientOptions { retries: 1_000, ..patient() }).await;
    let (impatient, store) = (impatient.store("default").unwrap(), client.store("default").unwrap());
    for n in 0..20 {
        store.put(format!("k{n}"), "v", PutOptions::default()).await.unwrap();
    }
    cluster.stop(1).await;
    let mut away = None;
    for n in 0..20 {
        match impatient.put(format!("k{n}"), "w", PutOptions::default()).await {
            Ok(_) => {}
            // The node has tried the replica, or knows already that it need not.
            Err(ClientError::Failed {
                code: ErrorCode::InsufficientReplicas | ErrorCode::Isolated, ..
            }) => away = Some(n),
            // The end of its link may come while the first of them is on its way.
            Err(ClientError::Indeterminate { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    let key = format!("k{}", away.expect("node 2 has some of the keys"));
    let putting = tokio::spawn(async move { store.put(key, "x", PutOptions::default()).await });
    cluster.start_again(1).await;
    assert!(!putting.await.unwrap().unwrap().sloppy);
}

#[tokio::test]
async fn a_client_connects_to_the_first_address_that_answers_and_names_all_that_do_not() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let address = cluster.nodes[0].replica().view().get().cluster().nodes[0].native.clone();
    let nobody = "127.0.0.1:1";
    let client = Client::connect(&[nobody, &address], Ports::os().unwrap(), patient()).await.unwrap();
    client.store("default").unwrap().put("k", "v", PutOptions::default()).await.unwrap();
    let Err(error) =
        Client::connect(&[nobody, "nowhere.invalid:7401"], Ports::os().unwrap(), patient()).await
    else {
        panic!("connected to nobody");
    };
    let text = error.to_string();
    assert!(text.contains(nobody) && text.contains("nowhere.invalid:7401"), "{text}");
}

/// A page is refused by a node that holds the partition no more. Whoever walks asks the nodes of the newer document next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_refused_for_a_newer_document_brings_that_document() {
    let cluster = RunningCluster::start((2, 2), store(1, 1, 1), |_| {}).await;
    let client = cluster.client(patient()).await;
    let handle = client.store("default").unwrap();
    let mut next = (*client.cluster()).clone();
    next.generation.0 += 1;
    let mut partitions = next.ring.partitions().to_vec();
    let (before, partition) = (partitions[0].nodes[0], partitions[0].id);
    partitions[0].nodes.swap(0, 1);
    partitions[0].since = next.generation;
    let after = partitions[0].nodes[0];
    next.ring = Ring::new(partitions).unwrap();
    documents::publish_cluster(&cluster.service.open(), &next).await.unwrap();
    let has_adopted = |node: &Arc<Node>| node.replica().view().get().cluster().generation == next.generation;
    let adopted = async {
        while !cluster.nodes.iter().all(has_adopted) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, adopted).await.expect("the nodes do not adopt the document");
    assert!(handle.cluster().generation < next.generation);
    let refused = handle.scan(before, partition, None, 10).await.unwrap_err();
    assert!(matches!(refused, ClientError::Failed { code: ErrorCode::StaleGeneration, .. }), "{refused}");
    assert_eq!(handle.cluster().generation, next.generation);
    // It is refilled first; what matters is that it is asked by the newer document.
    let answer = handle.scan(after, partition, None, 10).await;
    let refilling =
        |error: &ClientError| matches!(error, ClientError::Failed { code: ErrorCode::Refilling, .. });
    assert!(answer.as_ref().err().is_none_or(refilling), "{answer:?}");
}
