//! The native door, frame by frame.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use client::peers::{CallError, Peers};
use model::{Cluster, Generation, NodeId};
use node::view::View;
use protocol::gossip::{NodeLiveness, Row};
use runtime::{Link, Ports};
use wire::error::ErrorCode;
use wire::messages::{
    Failure, Gossip, Hello, Peer, Ping, ReplicaGet, Request, RequestOptions, Response, Role, Terms,
    VERSION_MAX, VERSION_MIN, decode_response, encode_request,
};

use crate::cluster::{RunningCluster, store};
use crate::support::lonely_node;

async fn answer(link: &mut Link) -> Response {
    let frame = link.receiver.receive().await.unwrap().expect("an answer");
    decode_response(frame).unwrap().1
}

/// Whoever speaks a later version learns that its request is unknown here, not that it is garbled.
#[tokio::test]
async fn a_request_that_does_not_decode_is_answered_with_the_reason_and_the_link_ends() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let address = cluster.nodes[0].replica().view().get().cluster().nodes[0].native.clone();
    for (frame, code) in [
        // A kind that no version has yet.
        (&b"\x7f\x80\x80\x10"[..], ErrorCode::UnknownRequest),
        // A replica-get that announces 16,777,215 keys.
        (b"\x23\x80\x80\x10\x01\x00\x01s\x07\xff\xff\xff\x07", ErrorCode::TooManyKeys),
        // A ping with a byte too many.
        (b"\x02\x80\x80\x10\x00", ErrorCode::Malformed),
    ] {
        let mut link = Ports::os().unwrap().network.connect(&address).await.unwrap();
        let peer = Peer::Client { name: "from the future".to_owned() };
        let hello = Request::Hello(Hello { version_min: 1, version_max: 99, cluster: None, peer });
        link.sender.send(&mut |body: &mut BytesMut| encode_request(1 << 16, &hello, body)).unwrap();
        let welcome = answer(&mut link).await;
        assert!(
            matches!(&welcome, Response::Welcome(welcome) if welcome.version == VERSION_MAX),
            "{welcome:?}"
        );
        link.sender.send(&mut |body: &mut BytesMut| body.extend_from_slice(frame)).unwrap();
        let refused = answer(&mut link).await;
        assert!(matches!(&refused, Response::Failure(failure) if failure.code == code), "{refused:?}");
        assert!(!matches!(link.receiver.receive().await, Ok(Some(_))), "the link has ended");
    }
}

#[tokio::test]
async fn a_replica_tells_its_generation() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let view = cluster.nodes[0].replica().view().get();
    let address = view.cluster().nodes[0].native.clone();
    let generation = view.cluster().generation;
    let got = asked(&address, replica_get(&view, generation)).await;
    assert!(matches!(&got, Response::ReplicaGot(got) if got.generation == generation), "{got:?}");
}

/// A client or node of another version hears which versions there are, and what to do.
#[tokio::test]
async fn a_peer_that_shares_no_version_is_refused_and_told_why() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let address = cluster.nodes[0].replica().view().get().cluster().nodes[0].native.clone();
    for (version_min, version_max) in [(1, VERSION_MIN - 1), (VERSION_MAX + 1, VERSION_MAX + 2)] {
        let mut link = Ports::os().unwrap().network.connect(&address).await.unwrap();
        let peer = Peer::Client { name: "of another version".to_owned() };
        let hello = Request::Hello(Hello { version_min, version_max, cluster: None, peer });
        link.sender.send(&mut |body: &mut BytesMut| encode_request(1 << 16, &hello, body)).unwrap();
        let Response::Failure(failure) = answer(&mut link).await else { panic!("it is refused") };
        assert_eq!(failure.code, ErrorCode::UnsupportedVersion);
        let said = format!(
            "the client speaks versions {version_min} to {version_max} of the protocol, and this node {VERSION_MIN} to \
             {VERSION_MAX}"
        );
        assert_eq!(failure.detail, said);
    }
}

/// Asks over its own link.
async fn asked(address: &str, request: Request) -> Response {
    asked_by(Peer::Client { name: "of a test".to_owned() }, address, request).await
}

async fn asked_by(peer: Peer, address: &str, request: Request) -> Response {
    let mut link = Ports::os().unwrap().network.connect(address).await.unwrap();
    let (version_min, version_max) = (VERSION_MIN, VERSION_MAX);
    let hello = Request::Hello(Hello { version_min, version_max, cluster: None, peer });
    link.sender.send(&mut |body: &mut BytesMut| encode_request(1 << 16, &hello, body)).unwrap();
    let welcome = answer(&mut link).await;
    assert!(matches!(&welcome, Response::Welcome(_)), "{welcome:?}");
    link.sender.send(&mut |body: &mut BytesMut| encode_request(2 << 16, &request, body)).unwrap();
    answer(&mut link).await
}

fn replica_get(view: &View, generation: Generation) -> Request {
    let terms = Terms { since: Generation::default(), role: Role::Replica };
    let store = view.stores()[0].reference().clone();
    let keys = [b"k"[..].into()].into_iter().collect();
    Request::ReplicaGet(ReplicaGet { terms, store, generation, keys })
}

/// A caller that follows a document that the node has forgotten is told all of the newest one.
#[tokio::test]
async fn a_refused_request_is_told_what_changed_since_its_document() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let current = cluster.nodes[0].replica().view();
    let before = current.get().cluster().clone();
    let address = before.nodes[0].native.clone();
    let mut newest = before.clone();
    // One more than it remembers.
    for _ in 0..9 {
        let generation = Generation(newest.generation.0 + 1);
        let accepted = Cluster { generation, generation_accepted_min: generation, ..(*newest).clone() };
        let stores = current.get().stores().to_vec();
        newest = Arc::new(accepted);
        current.replace(View::new(newest.clone(), stores));
    }
    let known = |generation| Cluster { generation, generation_accepted_min: generation, ..(*before).clone() };
    let (oldest, last) = (before.generation, Generation(newest.generation.0 - 1));
    for (generation, is_whole) in [(last, false), (oldest, true), (Generation(oldest.0 + 1), false)] {
        let refused = asked(&address, replica_get(&current.get(), generation)).await;
        let Response::Failure(Failure { code: ErrorCode::StaleGeneration, cluster: Some(told), .. }) =
            refused
        else {
            panic!("{refused:?}");
        };
        let whole: Option<Cluster> = serde_json::from_slice(&told).ok();
        assert_eq!(whole.is_some(), is_whole, "{generation:?}");
        let made = Cluster::handed_over(&told, &known(generation));
        assert_eq!(made.as_ref(), Some(&*newest), "{generation:?}");
    }
}

/// What was spent on finding out who can be reached is not given to the write once more.
#[tokio::test]
async fn a_request_goes_on_with_what_is_left_of_its_time() {
    let (_node, worker) = lonely_node(|_| {}).await;
    let (coordinator, clock) = (worker.service.front.coordinator(), &worker.service.ports.clock);
    let options = RequestOptions { deadline_ms: 60_000, required: Some(3), ..RequestOptions::default() };
    let began = clock.now();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let left = coordinator.what_is_left(&options, began);
    assert!(left.deadline_ms <= 59_980 && left.required == Some(3), "{left:?}");
    // A moment is left to whoever has spent all of it, so that it ends as it does at its deadline.
    let options = RequestOptions { deadline_ms: 1, ..options };
    assert_eq!(coordinator.what_is_left(&options, began).deadline_ms, 1);
}

/// One frame of an ordinary client, with a huge incarnation, made other nodes hold a third for *left*.
#[tokio::test]
async fn gossip_of_a_client_is_refused_and_changes_no_belief() {
    let cluster = RunningCluster::start((2, 2), store(2, 1, 1), |_| {}).await;
    let view = cluster.nodes[0].replica().view().get();
    let address = view.cluster().nodes[0].native.clone();
    let generation = view.cluster().generation;
    let row = Row { left: true, heartbeat: u64::MAX, ..Row::new(NodeId(2), u64::MAX, generation) };
    let gossip = Request::Gossip(Gossip { from: NodeId(2), generation, rows: vec![row] });
    let refused = asked(&address, gossip).await;
    let is_refused =
        matches!(&refused, Response::Failure(failure) if failure.code == ErrorCode::UnknownRequest);
    assert!(is_refused, "{refused:?}");
    let seen = format!("{:?}", cluster.nodes[0].gossip().seen());
    assert!(!seen.contains(&u64::MAX.to_string()), "{seen}");
}

/// What a node says of itself is believed, so nobody else may say it in its name.
#[tokio::test]
async fn gossip_in_the_name_of_another_node_or_incarnation_is_refused() {
    let cluster = RunningCluster::start((3, 1), store(2, 1, 1), |_| {}).await;
    let view = cluster.nodes[0].replica().view().get();
    let (address, generation) = (view.cluster().nodes[0].native.clone(), view.cluster().generation);
    let told = |from: u32, incarnation| {
        let row = Row { left: true, ..Row::new(NodeId(from), incarnation, generation) };
        let gossip = Request::Gossip(Gossip { from: NodeId(from), generation, rows: vec![row] });
        asked_by(Peer::Node { id: NodeId(2), incarnation: 5 }, &address, gossip)
    };
    for (from, incarnation) in [(3, 5), (2, u64::MAX)] {
        let refused = told(from, incarnation).await;
        let is_refused =
            matches!(&refused, Response::Failure(failure) if failure.code == ErrorCode::Malformed);
        assert!(is_refused, "{refused:?}");
    }
    let is_left = |node| cluster.nodes[0].gossip().state(NodeId(node)) == NodeLiveness::Left;
    assert!(!is_left(2) && !is_left(3));
    let taken = told(2, 5).await;
    assert!(matches!(taken, Response::Gossiped(_)), "{taken:?}");
    assert!(is_left(2));
}

/// After two nodes have changed places, what one says of itself must not pass for what the other says.
#[tokio::test]
async fn a_node_that_answers_at_the_address_of_another_is_not_taken_for_it() {
    let cluster = RunningCluster::start((2, 2), store(2, 1, 1), |_| {}).await;
    let mut document = (**cluster.nodes[0].replica().view().get().cluster()).clone();
    document.nodes[0].native = document.nodes[1].native.clone();
    let peers = Peers::new(Ports::os().unwrap(), Peer::Node { id: NodeId(9), incarnation: 1 }, None);
    peers.learn(&document);
    let clock = peers.ports().clock.clone();
    let asked = |node| peers.call(NodeId(node), Ping {}.into()).within(&clock, Duration::from_secs(10));
    assert!(matches!(asked(2).await, Ok(Response::Pong(_))));
    let Err(CallError::Unreachable { reason }) = asked(1).await else { panic!("n2 answers for n1") };
    assert!(reason.starts_with("n2 answers at "), "{reason}");
}
