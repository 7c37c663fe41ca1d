//! HTTP/2: many requests on one connection, each by itself. TLS, over which it is offered, is not played here.

mod bounds;
mod raw;

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use node::Worker;
use protocol::admission::Load;
use runtime::http::{HeaderMap, Request};
use serde_json::Value as Json;

use super::bounds::until;
use crate::support::{Connection, lonely_node, lonely_node_with_users};

/// A connection to the HTTP door, by HTTP/2.
#[derive(Clone)]
struct Peer {
    sender: SendRequest<Bytes>,
}

/// An answer.
#[derive(Debug)]
struct Reply {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    #[track_caller]
    fn is(&self, status: u16, body: &str) {
        assert_eq!((self.status, &*String::from_utf8_lossy(&self.body)), (status, body), "{self:?}");
    }

    #[track_caller]
    fn refuses(&self, status: u16, kind: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let error: Json = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(error["error"]["kind"], kind, "{error}");
    }

    fn line(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl Peer {
    async fn to(worker: &Worker) -> Peer {
        Peer::with(worker, 1 << 16).await.0
    }

    /// Also says when the connection has ended, and how.
    async fn with(worker: &Worker, buffer: usize) -> (Peer, tokio::task::JoinHandle<Result<(), h2::Error>>) {
        let (stream, theirs) = tokio::io::duplex(buffer);
        let door = worker.http.clone();
        tokio::spawn(async move { door.serve_streams(theirs, "192.0.2.7:40001".to_owned()).await });
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        (Peer { sender }, tokio::spawn(connection))
    }

    /// Begins a request to this host; its body comes by what is handed back.
    async fn begin_at(
        &self,
        host: &str,
        request: &str,
        lines: &[(&str, &str)],
        ends: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let (method, path) = request.split_once(' ').unwrap();
        let uri = format!("https://{host}{path}");
        let mut head = Request::builder().method(method).uri(uri).body(()).unwrap();
        for (name, value) in lines {
            let name: runtime::http::header::HeaderName = name.parse().unwrap();
            head.headers_mut().append(name, value.parse().unwrap());
        }
        let mut ready = self.sender.clone().ready().await.unwrap();
        ready.send_request(head, ends).unwrap()
    }

    /// Begins a GET of this path, if the connection takes one more.
    async fn try_begin(&self, path: &str) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let head = Request::builder().uri(format!("https://localhost{path}")).body(()).unwrap();
        self.sender.clone().ready().await?.send_request(head, true)
    }

    async fn begin(&self, request: &str, ends: bool) -> (ResponseFuture, SendStream<Bytes>) {
        self.begin_at("127.0.0.1:7601", request, &[], ends).await
    }

    async fn ask(&self, request: &str, lines: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        let body = body.into();
        let (answer, mut sending) = self.begin_at("127.0.0.1:7601", request, lines, body.is_empty()).await;
        if !body.is_empty() {
            sending.send_data(body, true).unwrap();
        }
        reply(answer).await.unwrap()
    }

    /// The path of a request that waits until something happens to the node.
    async fn waiting(&self) -> String {
        let page = self.ask("GET /v1/events", &[], "").await;
        let page: Json = serde_json::from_slice(&page.body).unwrap();
        format!("/v1/events?run={}&after={}&wait=30s", page["run"], page["next"])
    }

    async fn get(&self, key: &str) -> Reply {
        self.ask(&format!("GET /v1/stores/default/keys/{key}"), &[], "").await
    }

    async fn put(&self, key: &str, value: &str) -> Reply {
        self.ask(&format!("PUT /v1/stores/default/keys/{key}"), &[], value.to_owned()).await
    }
}

/// Reads an answer to its end.
async fn reply(answer: ResponseFuture) -> Result<Reply, h2::Error> {
    let (head, mut body) = answer.await?.into_parts();
    let body = rest(&mut body).await?;
    Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
}

async fn rest(body: &mut RecvStream) -> Result<Bytes, h2::Error> {
    let mut all = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

#[tokio::test]
async fn a_key_is_put_read_and_deleted_by_http_2() {
    let (_node, worker) = lonely_node(|_| {}).await;
    let peer = Peer::to(&worker).await;
    peer.get("greeting").await.refuses(404, "not-found");
    let written = peer.put("greeting", "hello").await;
    written.is(204, "");
    assert_eq!(written.line("content-length"), None, "there is nothing behind it");
    let got = peer.get("greeting").await;
    got.is(200, "hello");
    assert_eq!(got.line("etag"), written.line("etag"));
    for (name, value) in [
        ("content-type", "application/octet-stream"),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
        ("content-length", "5"),
    ] {
        assert_eq!(got.line(name), Some(value));
    }
    let head = peer.ask("HEAD /v1/stores/default/keys/greeting", &[], "").await;
    head.is(200, "");
    assert_eq!(head.line("content-length"), Some("5"));
    peer.put("greeting", "").await.is(204, "");
    peer.get("greeting").await.is(200, "");
    let large = "v".repeat(1 << 20);
    peer.put("large", &large).await.is(204, "");
    peer.get("large").await.is(200, &large);
    peer.ask("DELETE /v1/stores/default/keys/greeting", &[], "").await.is(204, "");
    peer.get("greeting").await.refuses(404, "not-found");
    peer.ask("GET /v1/nothing", &[], "").await.refuses(400, "unknown-request");
    assert_eq!(peer.ask("PATCH /health", &[], "").await.line("allow"), Some("GET, HEAD"));
    assert_eq!(peer.get("%zz").await.status, 400);
}

#[tokio::test]
async fn requests_of_one_connection_do_not_wait_for_each_other() {
    let (node, worker) = lonely_node(|_| {}).await;
    let peer = Peer::to(&worker).await;
    let (waiting, _) = peer.try_begin(&peer.waiting().await).await.unwrap();
    let accept = [("accept", "text/event-stream")];
    let (following, _) = peer.begin_at("localhost", "GET /v1/events", &accept, true).await;
    let following = following.await.unwrap();
    assert_eq!((following.status().as_u16(), following.headers().get("connection")), (200, None));
    let mut events = following.into_body();
    for number in 0..50 {
        peer.put(&format!("k{number}"), "v").await.is(204, "");
    }
    let asked: Vec<_> = (0..50).map(|number| format!("k{number}")).collect();
    let all = futures_util::future::join_all(asked.iter().map(|key| peer.get(key))).await;
    assert!(all.iter().all(|reply| reply.status == 200));
    let mut told = String::new();
    let event = node::events::Event::PeerSuspected { peer: model::NodeId(2), why: "late".to_owned() };
    node.events().record(event);
    while !told.contains("is suspected: late") {
        let piece = events.data().await.unwrap().unwrap();
        events.flow_control().release_capacity(piece.len()).unwrap();
        told.push_str(std::str::from_utf8(&piece).unwrap());
    }
    assert_eq!(waiting.await.unwrap().status(), 200, "it has waited for that, too");
    // A reader that resets its stream is none any more, and its connection goes on.
    drop(events);
    let metrics = || async { peer.ask("GET /metrics", &[], "").await };
    for _ in 0..1_000 {
        if String::from_utf8_lossy(&metrics().await.body).contains("tontine_http_event_readers 0\n") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the reader stays");
}

#[tokio::test]
async fn a_request_by_http_2_names_one_host_and_comes_from_no_foreign_web_page() {
    let (node, worker) = lonely_node(|_| {}).await;
    let peer = Peer::to(&worker).await;
    let put = "PUT /v1/stores/default/keys/a";
    for (host, lines, status, kind) in [
        ("evil.example", vec![], 403, "foreign-origin"),
        ("user@127.0.0.1", vec![], 403, "foreign-origin"),
        ("127.0.0.1:7601", vec![("host", "evil.example")], 400, "malformed"),
        ("evil.example", vec![("host", "127.0.0.1:7601")], 400, "malformed"),
        ("127.0.0.1", vec![("host", "127.0.0.1"), ("host", "127.0.0.1")], 400, "malformed"),
        ("127.0.0.1:7601", vec![("origin", "https://evil.example")], 403, "foreign-origin"),
        ("127.0.0.1:7601", vec![("origin", "http://127.0.0.1:7601")], 403, "foreign-origin"),
        ("127.0.0.1:7601", vec![("sec-fetch-site", "cross-site")], 403, "foreign-origin"),
        ("127.0.0.1:7601", vec![("content-length", "1"), ("content-length", "1")], 400, "malformed"),
    ] {
        let (answer, mut sending) = peer.begin_at(host, put, &lines, false).await;
        // It may be refused before.
        let _ = sending.send_data(Bytes::from_static(b"x"), true);
        let answer = reply(answer).await.unwrap();
        answer.refuses(status, kind);
    }
    let (answer, _) = peer.begin_at("127.0.0.1:7601", put, &[("host", "127.0.0.1:7601")], true).await;
    reply(answer).await.unwrap().is(204, "");
    let own = [("origin", "https://127.0.0.1:7601")];
    let (answer, _) = peer.begin_at("127.0.0.1:7601", "GET /health", &own, true).await;
    reply(answer).await.unwrap().is(200, "alive\n");
    let mut redis = Connection::to(node, &worker);
    redis.ask("GET a", "$0\r\n\r\n").await;
}

#[tokio::test]
async fn a_head_over_its_limits_is_refused_by_http_2() {
    let (_node, worker) = lonely_node(|_| {}).await;
    let peer = Peer::to(&worker).await;
    let many: Vec<_> = (0..101).map(|_| ("x", "y")).collect();
    let reply = peer.ask("GET /health", &many, "").await;
    reply.refuses(431, "malformed");
    let long = "x".repeat(33 * 1024);
    assert_eq!(peer.ask("GET /health", &[("x", &long)], "").await.status, 431);
    let key = "%61".repeat(4096);
    let etag = format!("\"{}\"", "a".repeat(6000));
    let reply = peer.ask(&format!("PUT /v1/stores/default/keys/{key}"), &[("if-match", &etag)], "v").await;
    reply.refuses(400, "malformed");
    peer.put(&key, "long").await.is(204, "");
    peer.get(&"a".repeat(4096)).await.is(200, "long");
}

#[tokio::test]
async fn each_stream_has_its_own_user_judged_by_the_current_document() {
    let (_node, worker) =
        lonely_node_with_users(&[("root", &["admin"]), ("shop", &["read:default/shop:"])], |_| {}).await;
    let peer = Peer::to(&worker).await;
    let get = |key: &'static str, secret: &'static str| {
        let peer = peer.clone();
        async move {
            let bearer = format!("Bearer {secret}");
            peer.ask(&format!("GET /v1/stores/default/keys/{key}"), &[("authorization", &bearer)], "").await
        }
    };
    for _ in 0..3 {
        get("shop:a", "shop").await.refuses(404, "not-found");
        get("other", "shop").await.refuses(403, "forbidden");
        get("other", "root").await.refuses(404, "not-found");
        get("shop:a", "wrong").await.refuses(401, "unauthenticated");
        peer.get("shop:a").await.refuses(401, "unauthenticated");
    }
}

#[tokio::test]
async fn a_body_of_the_wrong_length_or_given_up_half_way_writes_nothing_by_http_2() {
    let (node, worker) = lonely_node(|_| {}).await;
    let peer = Peer::to(&worker).await;
    for length in ["4", "6"] {
        let lines = [("content-length", length)];
        let (answer, mut sending) =
            peer.begin_at("localhost", "PUT /v1/stores/default/keys/a", &lines, false).await;
        sending.send_data(Bytes::from_static(b"hello"), true).unwrap();
        let error = reply(answer).await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR), "{length}");
    }
    let (answer, mut sending) = peer.begin("PUT /v1/stores/default/keys/a", false).await;
    sending.send_data(Bytes::from(vec![b'v'; 40_000]), false).unwrap();
    until("it is counted", || node.admission().load().bytes >= 40_000).await;
    sending.send_reset(Reason::CANCEL);
    assert!(reply(answer).await.is_err());
    until("nothing is left", || node.admission().load() == Load::default()).await;
    let lines = [("expect", "100-continue"), ("content-length", "5")];
    let (mut answer, mut sending) =
        peer.begin_at("localhost", "PUT /v1/stores/default/keys/b", &lines, false).await;
    let told = poll_fn(|context| answer.poll_informational(context)).await;
    assert_eq!(told.unwrap().unwrap().status(), 100, "its body is wanted");
    sending.send_data(Bytes::from_static(b"hello"), true).unwrap();
    reply(answer).await.unwrap().is(204, "");
    let mut redis = Connection::to(node, &worker);
    redis.ask("DBSIZE", ":1\r\n").await;
}

#[tokio::test]
async fn a_stopping_node_answers_its_open_streams() {
    let (node, worker) = lonely_node(|_| {}).await;
    let (peer, ended) = Peer::with(&worker, 1 << 16).await;
    let (_quiet, quiet_ended) = Peer::with(&worker, 1 << 16).await;
    let (answer, mut sending) = peer.begin("PUT /v1/stores/default/keys/a", false).await;
    sending.send_data(Bytes::from_static(b"hel"), false).unwrap();
    peer.put("b", "v").await.is(204, "");
    node.leave().await;
    // The next answer tells the client to open no more streams here.
    peer.ask("GET /ready", &[], "").await.refuses(503, "shutting-down");
    sending.send_data(Bytes::from_static(b"lo"), true).unwrap();
    reply(answer).await.unwrap().is(204, "");
    ended.await.unwrap().unwrap();
    assert!(peer.sender.clone().ready().await.is_err(), "it takes no more");
    let settling = tokio::spawn(async move { node.settle().await });
    quiet_ended.await.unwrap().unwrap();
    settling.await.unwrap();
}
