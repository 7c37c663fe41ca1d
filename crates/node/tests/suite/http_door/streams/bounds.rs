//! What a stream or a connection may hold by HTTP/2, and what others have of a node all the same.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use h2::Reason;
use protocol::admission::Load;
use runtime::http::streams::{RESETS_FREE, STREAMS_MAX};
use tokio::io::AsyncWriteExt;

use super::raw::{Frames, RESET, frame};
use super::{Peer, reply, rest, until};
use crate::support::lonely_node;

const CANCEL: [u8; 4] = [0, 0, 0, 8];
const ENHANCE_YOUR_CALM: u32 = 11;

#[tokio::test]
async fn a_thousand_streams_that_are_reset_at_once_cost_others_nothing() {
    let (node, worker) = lonely_node(|_| {}).await;
    let other = Peer::to(&worker).await;
    other.put("a", "v").await.is(204, "");
    let mut flood = Frames::open(&worker, 1 << 20).await;
    let mut bytes = Vec::new();
    for _ in 0..1_000 {
        let (stream, asking) = flood.asking("/v1/stores/default/keys/a");
        bytes.extend([asking, frame(RESET, 0, stream, &CANCEL)].concat());
    }
    flood.stream.write_all(&bytes).await.unwrap();
    assert_eq!(flood.ended().await, ENHANCE_YOUR_CALM);
    other.get("a").await.is(200, "v");
    drop(flood);
    until("one connection is left", || node.admission().connections() == 1).await;
    assert_eq!(node.admission().load(), Load::default());
}

#[tokio::test]
async fn too_many_streams_that_are_begun_and_reset_end_their_connection() {
    let (node, worker) = lonely_node(|_| {}).await;
    let other = Peer::to(&worker).await;
    let (flooding, ended) = Peer::with(&worker, 1 << 16).await;
    let waiting = flooding.waiting().await;
    // Those that are answered pay for as many that are not.
    for _ in 0..19 {
        flooding.get("a").await.refuses(404, "not-found");
    }
    let mut begun = 0;
    while !ended.is_finished() {
        let Ok((_answer, mut sending)) = flooding.try_begin(&waiting).await else { break };
        begun += 1;
        // The node has begun with it.
        tokio::time::sleep(Duration::from_millis(2)).await;
        sending.send_reset(Reason::CANCEL);
        other.get("a").await.refuses(404, "not-found");
        assert!(begun < RESETS_FREE + 40, "it goes on for ever");
    }
    let error = ended.await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM), "{error}");
    assert!(begun > RESETS_FREE + 20, "after {begun}");
    until("one connection is left", || node.admission().connections() == 1).await;
    assert_eq!(node.admission().load(), Load::default());
}

#[tokio::test]
async fn no_byte_of_http_2_is_outside_the_admission_account() {
    let (node, worker) = lonely_node(|_| {}).await;
    let load = || node.admission().load();
    let value = "v".repeat(1 << 20);
    let peer = Peer::to(&worker).await;
    let lines = [("content-length", &*value.len().to_string())];
    let (answer, mut sending) =
        peer.begin_at("localhost", "PUT /v1/stores/default/keys/a", &lines, false).await;
    sending.send_data(Bytes::from(value[..1 << 19].to_owned()), false).unwrap();
    until("half a value is counted", || load().bytes >= 1 << 19).await;
    assert!(load().bytes <= value.len() + 16 * 1024, "an announced length reserves nothing: {:?}", load());
    sending.send_data(Bytes::from(value[1 << 19..].to_owned()), true).unwrap();
    reply(answer).await.unwrap().is(204, "");
    until("nothing is under way", || load() == Load::default()).await;
    // A request that waits for its body counts before a byte of that has come.
    let waiting = join_all((0..3).map(|_| peer.begin("PUT /v1/stores/default/keys/b", false))).await;
    until("each is counted", || load().bytes >= waiting.len() * 10 * 1024).await;
    drop(waiting);
    until("nothing is under way", || load() == Load::default()).await;
    // An answer counts until its reader has taken it, each for itself.
    let (first, _) = peer.begin("GET /v1/stores/default/keys/a", true).await;
    let (second, _) = peer.begin("GET /v1/stores/default/keys/a", true).await;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    until("both are counted", || load() == Load { requests: 0, bytes: 2 * value.len() }).await;
    drop(second);
    until("one is left", || load() == Load { requests: 0, bytes: value.len() }).await;
    assert_eq!(rest(&mut first.into_body()).await.unwrap().len(), value.len());
    until("nothing is under way", || load() == Load::default()).await;
    assert_eq!(node.admission().connections(), 1);
    drop((peer, sending));
    until("no connection is left", || node.admission().connections() == 0).await;
}

#[tokio::test]
async fn a_slow_stream_does_not_take_room_from_its_neighbours() {
    let (node, worker) = lonely_node(|config| {
        config.requests.limits.node_bytes_max = 1 << 20;
        config.requests.limits.slow_time_min = Duration::from_millis(50);
    })
    .await;
    let peer = Peer::to(&worker).await;
    let (slow, mut sending) = peer.begin("PUT /v1/stores/default/keys/slow", false).await;
    sending.send_data(Bytes::from(vec![b's'; 200_000]), false).unwrap();
    until("it holds room", || node.admission().load().bytes >= 200_000).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    let value = "q".repeat(400_000);
    let lines = [("content-length", "400000")];
    peer.ask("PUT /v1/stores/default/keys/quick", &lines, value.clone()).await.is(204, "");
    reply(slow).await.unwrap().refuses(503, "overloaded");
    until("nothing is under way", || node.admission().load() == Load::default()).await;
    // The same of an answer that is not read: its stream is reset, and the connection goes on. A client that reads
    // nothing of one stream must leave windows for others.
    let (unread, _) = peer.begin("GET /v1/stores/default/keys/quick", true).await;
    let mut unread = unread.await.unwrap().into_body();
    until("its answer holds room", || node.admission().load().bytes == value.len()).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    let quick = Peer::to(&worker).await;
    quick.get("quick").await.is(200, &value);
    let error = rest(&mut unread).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::CANCEL), "{error}");
    peer.get("slow").await.refuses(404, "not-found");
    until("nothing is under way", || node.admission().load() == Load::default()).await;
}

#[tokio::test]
async fn a_stalled_stream_is_ended_and_its_connection_goes_on() {
    let rest_time = Duration::from_millis(50);
    let (node, worker) = lonely_node(|config| config.requests.limits.rest_time_max = rest_time).await;
    let peer = Peer::to(&worker).await;
    let value = "v".repeat(200_000);
    peer.put("a", &value).await.is(204, "");
    let (standing, mut sending) = peer.begin("PUT /v1/stores/default/keys/b", false).await;
    sending.send_data(Bytes::from_static(b"hel"), false).unwrap();
    reply(standing).await.unwrap().refuses(408, "malformed");
    // Its window is shut, because nothing is read.
    let (unread, _) = peer.begin("GET /v1/stores/default/keys/a", true).await;
    let mut unread = unread.await.unwrap().into_body();
    until("its answer is counted", || node.admission().load().bytes == value.len()).await;
    until("it is cut off", || node.admission().load() == Load::default()).await;
    assert_eq!(rest(&mut unread).await.unwrap_err().reason(), Some(Reason::CANCEL));
    tokio::time::sleep(3 * rest_time).await;
    peer.get("a").await.is(200, &value);
}

#[tokio::test]
async fn a_reader_of_rare_events_is_not_ended_as_too_slow() {
    let rest_time = Duration::from_millis(50);
    let (node, worker) = lonely_node(|config| config.requests.limits.rest_time_max = rest_time).await;
    let peer = Peer::to(&worker).await;
    let accept = [("accept", "text/event-stream")];
    let (following, _) = peer.begin_at("localhost", "GET /v1/events", &accept, true).await;
    let mut events = following.await.unwrap().into_body();
    for number in 0..5 {
        tokio::time::sleep(2 * rest_time).await;
        let event =
            node::events::Event::PeerSuspected { peer: model::NodeId(2), why: format!("why {number}") };
        node.events().record(event);
        let mut told = String::new();
        while !told.contains(&format!("why {number}")) {
            let piece = events.data().await.unwrap().unwrap();
            events.flow_control().release_capacity(piece.len()).unwrap();
            told.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }
}

#[tokio::test]
async fn readers_of_events_on_one_connection_are_limited_and_leave_room_for_others() {
    let (_node, worker) = lonely_node(|_| {}).await;
    let (peer, other) = (Peer::to(&worker).await, Peer::to(&worker).await);
    let follow = async |peer: &Peer| {
        let accept = [("accept", "text/event-stream")];
        peer.begin_at("localhost", "GET /v1/events", &accept, true).await.0.await.unwrap()
    };
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(follow(&peer).await);
    }
    assert!(readers.iter().all(|reader| reader.status() == 200));
    assert_eq!(follow(&peer).await.status(), 503);
    assert_eq!(follow(&other).await.status(), 200);
    drop(readers.pop());
    for _ in 0..1_000 {
        if follow(&peer).await.status() == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the place of a reader that left is not free");
}

#[tokio::test]
async fn an_unread_body_takes_no_window_from_other_streams() {
    let (_node, worker) = lonely_node(|_| {}).await;
    let peer = Peer::to(&worker).await;
    let waiting = format!("GET {}", peer.waiting().await);
    let mut all = Vec::new();
    for _ in 0..3 {
        let (answer, mut sending) = peer.begin(&waiting, false).await;
        sending.send_data(Bytes::from(vec![b'x'; 60_000]), false).unwrap();
        all.push((answer, sending));
    }
    let value = "v".repeat(200_000);
    let put = peer.put("a", &value);
    tokio::time::timeout(Duration::from_secs(20), put).await.expect("its window is open").is(204, "");
}

#[tokio::test]
async fn a_client_that_reads_nothing_from_its_connection_is_disconnected() {
    let rest_time = Duration::from_millis(50);
    let (node, worker) = lonely_node(|config| config.requests.limits.rest_time_max = rest_time).await;
    let peer = Peer::to(&worker).await;
    peer.put("a", &"v".repeat(60_000)).await.is(204, "");
    for path in ["/v1/stores/default/keys/a", "/health", "/v1/stores/default/keys/none"] {
        let mut silent = Frames::open(&worker, 512).await;
        for _ in 0..STREAMS_MAX {
            let (_, asking) = silent.asking(path);
            // It may be parted with before all are asked.
            let _ = silent.stream.write_all(&asking).await;
        }
        until("it is parted with", || node.admission().connections() == 1).await;
        until("nothing is under way", || node.admission().load() == Load::default()).await;
    }
    peer.get("none").await.refuses(404, "not-found");
}

#[tokio::test]
async fn streams_over_the_limit_are_refused_in_a_way_that_lets_clients_retry() {
    let (_node, worker) = lonely_node(|_| {}).await;
    let waiting = Peer::to(&worker).await.waiting().await;
    let mut raw = Frames::open(&worker, 1 << 20).await;
    for _ in 0..=STREAMS_MAX {
        let (_, asking) = raw.asking(&waiting);
        raw.stream.write_all(&asking).await.unwrap();
    }
    loop {
        let frame = raw.next().await.unwrap();
        if frame.kind == RESET {
            assert_eq!(frame.body, u32::from(Reason::REFUSED_STREAM).to_be_bytes());
            return;
        }
    }
}

#[tokio::test]
async fn a_connection_over_the_limit_is_told_so_by_http_2() {
    let (_node, worker) = lonely_node(|config| config.requests.limits.connections_max = 1).await;
    let first = Peer::to(&worker).await;
    first.ask("GET /health", &[], "").await.is(200, "alive\n");
    let mut raw = Frames::open(&worker, 1 << 16).await;
    assert_eq!(raw.next().await.unwrap().body, b"", "its settings");
    let said = raw.next().await.unwrap();
    assert_eq!(said.reason(), ENHANCE_YOUR_CALM);
    assert!(String::from_utf8_lossy(&said.body[8..]).contains("1 client connections"), "{said:?}");
    let (_second, ended) = Peer::with(&worker, 1 << 16).await;
    let error = ended.await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM), "{error}");
}

#[tokio::test]
async fn a_connection_that_does_not_speak_http_2_is_closed() {
    let (node, worker) = lonely_node(|_| {}).await;
    let long = [b"TONTINE\x01\n".as_slice(), &[0; 64]].concat();
    let broken = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xff; 64]].concat();
    for bytes in [b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".as_slice(), &long, &broken] {
        let (mut stream, theirs) = tokio::io::duplex(1 << 16);
        let door = worker.http.clone();
        let served = tokio::spawn(async move { door.serve_streams(theirs, "192.0.2.9:1".to_owned()).await });
        stream.write_all(bytes).await.unwrap();
        tokio::time::timeout(Duration::from_secs(20), served).await.unwrap().unwrap();
        assert_eq!(node.admission().connections(), 0);
    }
}
