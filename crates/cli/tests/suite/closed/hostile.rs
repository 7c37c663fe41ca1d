//! What a client may not do, whatever it says that it is.

use std::time::{Duration, Instant};

use bytes::Bytes;
use model::{Epoch, Generation, VersionSet};
use protocol::collection::RoundId;
use wire::ErrorCode;
use wire::messages::{
    ClusterGet, Collect, CollectCandidates, CollectConfirm, CollectFence, CollectRelease, Delete, Gossip,
    MetricsGet, Put, RecordsPage, ReplicaGet, ReplicaMerge, ReportGet, Request, RequestOptions, Response,
    Role, Scan, Terms,
};

use super::*;
use crate::cluster::tontine;

fn put(key: &'static str, value: &'static str) -> Put {
    let (generation, options) = (Generation(1), RequestOptions::default());
    let (key, value) = (Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()));
    let (context, expires, condition) = Default::default();
    Put { store: store(), generation, options, key, context, expires, condition, value }
}

fn merge() -> ReplicaMerge {
    let entries = vec![(Bytes::from_static(b"k"), VersionSet::default())].into();
    let (since, generation, epoch, hint_for) = (Generation(0), Generation(1), Epoch(0), None);
    ReplicaMerge { since, store: store(), generation, epoch, hint_for, entries }
}

fn gossip(from: u32) -> Gossip {
    Gossip { from: NodeId(from), generation: Generation(1), rows: Vec::new() }
}

/// One frame made two of three nodes hold the third for *left*, and `doctor` said healthy.
#[test]
fn a_gossip_frame_of_a_client_is_refused() {
    let closed = Closed::start();
    let root = closed.root();
    block_on(async {
        // A program that calls itself a node, and shows no certificate.
        let (_, answer) = closed.greet(None, node_peer(2)).await;
        assert!(
            matches!(&answer, Response::Failure(failure) if failure.code == ErrorCode::Unauthenticated),
            "{answer:?}"
        );
        for secret in [None, Some(root.as_str())] {
            let mut client = closed.client(secret).await;
            assert_eq!(client.refused(gossip(2)).await, ErrorCode::Forbidden);
        }
        // A node is heard, so the test would notice if nobody were.
        let (mut node, welcome) = closed.greet(Some("node-2"), node_peer(2)).await;
        assert!(matches!(welcome, Response::Welcome(_)), "{welcome:?}");
        assert!(matches!(node.ask(gossip(2)).await, Response::Gossiped(_)));
    });
    closed.run(&["doctor"]).exits(0);
}

/// A program that said *node 99* had a tombstone collected on every replica.
#[test]
fn node_99_collects_no_tombstone() {
    let closed = Closed::start();
    closed.run(&["put", "k", "v"]).exits(0);
    closed.run(&["delete", "k"]).exits(0);
    let root = closed.root();
    block_on(async {
        let (_, answer) = closed.greet(None, node_peer(99)).await;
        assert!(
            matches!(&answer, Response::Failure(failure) if failure.code == ErrorCode::Unauthenticated),
            "{answer:?}"
        );
        let mut client = closed.client(Some(&root)).await;
        let steps: [Request; 5] = [
            CollectCandidates { after: None, keys_max: 10, bytes_max: 1000 }.into(),
            CollectConfirm { round: RoundId(1), generation: Generation(1), keys: Vec::new() }.into(),
            CollectFence { round: RoundId(1), epoch: Epoch(1), floor: model::Timestamp::default() }.into(),
            Collect { keys: Vec::new() }.into(),
            CollectRelease { round: RoundId(1) }.into(),
        ];
        for step in steps {
            assert_eq!(client.refused(step).await, ErrorCode::Forbidden);
        }
    });
    let versions = closed.run(&["siblings", "k"]).text();
    assert!(versions.contains("(deleted)"), "{versions}");
}

/// With a password for Redis clients, the native port read and wrote without it.
#[test]
fn the_native_port_answers_nothing_without_a_secret() {
    let closed = Closed::start();
    closed.run(&["put", "k", "v"]).exits(0);
    block_on(async {
        let mut nobody = closed.client(None).await;
        let terms = Terms { since: Generation(0), role: Role::Replica };
        let (generation, keys) = (Generation(1), vec![Bytes::from_static(b"k")].into());
        let requests: [Request; 7] = [
            get("k").into(),
            put("k", "mine").into(),
            ReplicaGet { terms, store: store(), generation, keys }.into(),
            ClusterGet {}.into(),
            MetricsGet {}.into(),
            ReportGet { parts: protocol::report::Parts::STATUS }.into(),
            Scan {
                since: Generation(0),
                store: store(),
                generation,
                partition: model::PartitionId(0),
                after: None,
                records_max: 10,
                bytes_max: 1000,
            }
            .into(),
        ];
        for request in requests {
            assert_eq!(nobody.refused(request).await, ErrorCode::Unauthenticated);
        }
        // A guess changes nothing.
        let secret = SecretText(format!("tontine_{}", "A".repeat(43)));
        let guess = Authenticate { user: "root".to_owned(), secret };
        assert_eq!(nobody.refused(guess).await, ErrorCode::Unauthenticated);
        assert_eq!(nobody.refused(get("k")).await, ErrorCode::Unauthenticated);
    });
    assert_eq!(closed.run(&["get", "k"]).text().trim(), "v");
    let bare = closed.run_with(None, &["get", "k"]);
    bare.fails_with("has given no secret");
}

/// Replica-merge was taken from every client: it could make a key what it liked, on one replica.
#[test]
fn a_replica_merge_of_a_client_is_refused_and_its_repairs_go_through_nodes() {
    let closed = Closed::start();
    let root = closed.root();
    block_on(async {
        let mut client = closed.client(Some(&root)).await;
        assert_eq!(client.refused(merge()).await, ErrorCode::Forbidden);
        let page = RecordsPage {
            store: store(),
            generation: Generation(1),
            partition: model::PartitionId(0),
            from: model::Token(0),
        };
        assert_eq!(client.refused(page).await, ErrorCode::Forbidden);
    });
    // A store whose gets write back before they answer.
    closed.run(&["store", "create", "steady", "--reads", "monotonic"]).exits(0);
    closed.run(&["put", "k", "v", "-s", "steady"]).exits(0);
    closed.cluster.end_node(1, rustix::process::Signal::KILL);
    closed.run(&["put", "k", "w", "-s", "steady"]).exits(0);
    assert_eq!(closed.run(&["get", "k", "-s", "steady"]).exits(0).text().trim(), "w");
    assert_eq!(closed.run(&["mget", "k", "-s", "steady"]).exits(0).code, 0);
}

#[test]
fn a_user_does_no_more_than_its_rights_say() {
    let closed = Closed::start();
    let shop = closed.user("shop", &["read:default/u:", "write:default/u:", "read:siblings"]);
    let monitor = closed.user("monitor", &["observe"]);
    let run = |words: &[&str]| closed.run_with(Some(&shop), words);
    run(&["put", "u:1", "v"]).exits(0);
    assert_eq!(run(&["get", "u:1"]).exits(0).text().trim(), "v");
    for words in [
        &["put", "v:1", "x"][..],
        &["get", "v:1"],
        &["put", "u:1", "x", "-s", "siblings"],
        &["keys"],
        &["user", "create", "more", "admin", "--secret-to", "/nowhere/at/all"],
        &["user", "remove", "root"],
        &["store", "create", "mine"],
        &["metrics"],
    ] {
        let answer = run(words);
        assert_eq!(answer.code, 2, "{words:?}: {}", answer.text());
    }
    run(&["get", "v:1"]).fails_with("forbidden");
    run(&["user", "remove", "root"]).fails_with("admin");
    let observe = |words: &[&str]| closed.run_with(Some(&monitor), words);
    observe(&["metrics"]).exits(0);
    observe(&["status"]).exits(0);
    observe(&["get", "u:1"]).fails_with("forbidden");
    observe(&["store", "create", "mine"]).fails_with("operate");
    // Who ordered is the node's word.
    closed.run(&["user", "grant", "shop", "scan:default", "--take", "read:siblings"]).exits(0);
    let listed = closed.run(&["user", "list", "--json"]).json();
    let rights = listed["users"].as_array().unwrap().iter().find(|user| user["user"] == "shop").unwrap();
    assert_eq!(rights["rights"], serde_json::json!(["read:default/u:", "write:default/u:", "scan:default"]));
    closed.run(&["user", "remove", "root"]).fails_with("last one with the right admin");
}

#[test]
fn a_removed_user_and_a_replaced_secret_are_served_no_longer() {
    let closed = Closed::start();
    let file = closed.user("shop", &["read:default", "write:default"]);
    let secret = std::fs::read_to_string(&file).unwrap();
    block_on(async {
        let mut link = closed.client(Some(secret.trim())).await;
        assert!(matches!(link.ask(put("k", "v")).await, Response::Written(_)));
        let mut second = closed.client(Some(secret.trim())).await;
        // Two secrets at a time, so that one is replaced under load.
        let next = closed.cluster.file("shop.next");
        closed.run(&["user", "rotate", "shop", "--secret-to", &next]).exits(0);
        let fresh = std::fs::read_to_string(&next).unwrap();
        let mut third = closed.client(Some(fresh.trim())).await;
        assert!(matches!(second.ask(get("k")).await, Response::Got(_)));
        closed.run(&["user", "rotate", "shop", "--finish"]).exits(0);
        refused_soon(&mut second).await;
        assert!(matches!(third.ask(get("k")).await, Response::Got(_)));
        closed.run(&["user", "remove", "shop"]).exits(0);
        refused_soon(&mut third).await;
        assert_eq!(link.refused(put("k", "w")).await, ErrorCode::Unauthenticated);
        let delete = Delete {
            store: store(),
            generation: Generation(1),
            options: RequestOptions::default(),
            key: Bytes::from_static(b"k"),
            context: None,
            condition: Default::default(),
        };
        assert_eq!(link.refused(delete).await, ErrorCode::Unauthenticated);
    });
    assert_eq!(closed.run(&["get", "k"]).exits(0).text().trim(), "v");
    closed.run_with(Some(&file), &["get", "k"]).fails_with("no user's");
}

/// Within five seconds of the command a standing link is refused.
async fn refused_soon(link: &mut Raw) {
    let began = Instant::now();
    while !matches!(link.ask(get("k")).await, Response::Failure(failure) if failure.code == ErrorCode::Unauthenticated)
    {
        assert!(began.elapsed() < REMOVED_WITHIN, "it is still served");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_certificate_of_another_authority_makes_no_node() {
    let closed = Closed::start();
    let folder = closed.cluster.file("other");
    tontine(&["cert", "init", &folder]).exits(0);
    tontine(&["cert", "node", &folder, "node-2", "127.0.0.1"]).exits(0);
    let own = Some((format!("{folder}/node-2.pem").into(), format!("{folder}/node-2.key").into()));
    let tls = Tls::read(TlsFiles { authority: closed.tls("authority.pem"), own }).unwrap();
    let network = TcpNetwork::dialing(Dialing::Tls(tls as Arc<dyn Handshakes>));
    let refused = block_on(network.connect(&closed.cluster.native(1))).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("alert") || refused.contains("certificate"), "{refused}");
}
