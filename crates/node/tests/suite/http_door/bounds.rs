//! What one client may hold of a node, and what others have of it all the same.

use std::time::Duration;

use protocol::admission::Load;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Web;
use crate::support::{Connection, lonely_node};

const HOST: &str = "host: localhost\r\n";

/// Waits until the condition holds.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not seen: {what}");
}

#[tokio::test]
async fn two_lengths_and_a_length_beside_chunks_write_nothing() {
    let (node, worker) = lonely_node(|_| {}).await;
    for lines in [
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: 5\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "content-length: five\r\n",
        "content-length: -5\r\n",
    ] {
        let mut web = Web::to(&worker);
        let head = format!("PUT /v1/stores/default/keys/smug HTTP/1.1\r\n{HOST}{lines}\r\n");
        let next = format!("PUT /v1/stores/default/keys/next HTTP/1.1\r\n{HOST}\r\n");
        web.send(format!("{head}5\r\nhello\r\n0\r\n\r\n{next}").as_bytes()).await;
        web.reply(false).await.refuses(400, "malformed");
        assert!(web.is_closed().await, "{lines:?}: nothing after it is believed");
    }
    let mut redis = Connection::to(node, &worker);
    redis.ask("DBSIZE", ":0\r\n").await;
}

#[tokio::test]
async fn a_body_of_the_wrong_length_writes_nothing() {
    let (node, worker) = lonely_node(|_| {}).await;
    for body in
        ["content-length: 6\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n6\r\nhello\r\n0\r\n\r\n"]
    {
        let mut web = Web::to(&worker);
        web.send(format!("PUT /v1/stores/default/keys/a HTTP/1.1\r\n{HOST}{body}").as_bytes()).await;
        web.stream.shutdown().await.unwrap();
        web.reply(false).await.refuses(400, "malformed");
        assert!(web.is_closed().await);
    }
    let mut redis = Connection::to(node, &worker);
    redis.ask("DBSIZE", ":0\r\n").await;
    let mut web = Web::to(&worker);
    let chunks = "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    let head = format!("PUT /v1/stores/default/keys/a HTTP/1.1\r\n{HOST}transfer-encoding: chunked\r\n\r\n");
    web.send(format!("{head}{chunks}").as_bytes()).await;
    web.reply(false).await.is(204, "");
    assert!(web.is_closed().await, "a chunked body is the last of its connection");
    redis.ask("GET a", "$11\r\nhello world\r\n").await;
}

#[tokio::test]
async fn a_head_or_value_over_its_limit_is_refused_before_all_of_it_has_arrived() {
    let (_node, worker) = lonely_node(|_| {}).await;
    let mut web = Web::to(&worker);
    web.send(format!("GET /health HTTP/1.1\r\n{HOST}x: {}", "x".repeat(32 * 1024)).as_bytes()).await;
    web.reply(false).await.refuses(431, "malformed");
    assert!(web.is_closed().await);
    let mut web = Web::to(&worker);
    let head = format!("PUT /v1/stores/default/keys/a HTTP/1.1\r\n{HOST}");
    web.send(format!("{head}content-length: {}\r\n\r\n", (16 << 20) + 1).as_bytes()).await;
    web.reply(false).await.refuses(413, "value-too-large");
    assert!(web.is_closed().await);
    let mut web = Web::to_with(&worker, 1 << 20);
    web.send(format!("{head}transfer-encoding: chunked\r\n\r\n2000000\r\n").as_bytes()).await;
    let piece = vec![b'a'; 1 << 20];
    // It is refused when it is longer than a value may be, and the rest is not read.
    for _ in 0..20 {
        let _ = tokio::time::timeout(Duration::from_millis(200), web.stream.write_all(&piece)).await;
    }
    web.reply(false).await.refuses(413, "value-too-large");
}

#[tokio::test]
async fn no_byte_of_http_is_outside_the_admission_account() {
    let (node, worker) = lonely_node(|_| {}).await;
    let mut web = Web::to(&worker);
    let value = "v".repeat(1 << 20);
    let head =
        format!("PUT /v1/stores/default/keys/a HTTP/1.1\r\n{HOST}content-length: {}\r\n\r\n", value.len());
    web.send(head.as_bytes()).await;
    web.send(&value.as_bytes()[..1 << 19]).await;
    let load = || node.admission().load();
    until("half a value is counted", || load().bytes >= 1 << 19).await;
    assert!(load().bytes <= value.len() + head.len(), "an announced length reserves nothing: {:?}", load());
    web.send(&value.as_bytes()[1 << 19..]).await;
    web.reply(false).await.is(204, "");
    until("nothing is under way", || load() == Load::default()).await;
    // An answer counts until its reader has taken it.
    let mut reader = Web::to_with(&worker, 1024);
    reader.send(format!("GET /v1/stores/default/keys/a HTTP/1.1\r\n{HOST}\r\n").as_bytes()).await;
    until("the answer is counted", || load() == Load { requests: 0, bytes: value.len() }).await;
    assert_eq!(reader.reply(false).await.body.len(), value.len());
    until("nothing is under way", || load() == Load::default()).await;
    // So does a connection.
    assert_eq!(node.admission().connections(), 2);
    drop((web, reader));
    until("no connection is left", || node.admission().connections() == 0).await;
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_gives_back_all_its_room() {
    let (node, worker) = lonely_node(|_| {}).await;
    for sent in ["PUT /v1/stores/default/keys/a HTTP/1.1\r\n", "GET"] {
        let mut web = Web::to(&worker);
        web.send(sent.as_bytes()).await;
    }
    let mut web = Web::to(&worker);
    let head = format!("PUT /v1/stores/default/keys/a HTTP/1.1\r\n{HOST}content-length: 1000000\r\n\r\n");
    web.send(format!("{head}{}", "v".repeat(60_000)).as_bytes()).await;
    until("its bytes are counted", || node.admission().load().bytes >= 60_000).await;
    drop(web);
    until("nothing is left", || node.admission().connections() == 0).await;
    assert_eq!(node.admission().load(), Load::default());
}

#[tokio::test]
async fn a_slow_client_does_not_take_room_from_others() {
    let (node, worker) = lonely_node(|config| {
        config.requests.limits.node_bytes_max = 1 << 20;
        config.requests.limits.slow_time_min = Duration::from_millis(50);
    })
    .await;
    let put = |key: &str, bytes: usize| {
        format!("PUT /v1/stores/default/keys/{key} HTTP/1.1\r\n{HOST}content-length: {bytes}\r\n\r\n")
    };
    let mut slow = Web::to_with(&worker, 1 << 20);
    slow.send(put("slow", 500_000).as_bytes()).await;
    slow.send(&vec![b's'; 300_000]).await;
    until("it holds room", || node.admission().load().bytes >= 300_000).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    let mut quick = Web::to_with(&worker, 1 << 20);
    quick.send(put("quick", 400_000).as_bytes()).await;
    quick.send(&vec![b'q'; 400_000]).await;
    quick.reply(false).await.is(204, "");
    slow.reply(false).await.refuses(503, "overloaded");
    assert!(slow.is_closed().await);
    assert_eq!(quick.ask("GET /v1/stores/default/keys/slow", "", "").await.status, 404);
}

/// Found by review: an answer kept what requests are admitted with for hours, at 64 KiB a minute.
#[tokio::test]
async fn a_slow_reader_does_not_take_room_from_others() {
    let (node, worker) = lonely_node(|config| {
        config.requests.limits.node_bytes_max = 1 << 20;
        config.requests.limits.slow_time_min = Duration::from_millis(50);
    })
    .await;
    let mut quick = Web::to_with(&worker, 1 << 20);
    let value = "v".repeat(400_000);
    quick.put("a", &value).await.is(204, "");
    let mut slow = Web::to_with(&worker, 1024);
    slow.send(format!("GET /v1/stores/default/keys/a HTTP/1.1\r\n{HOST}\r\n").as_bytes()).await;
    until("its answer holds room", || node.admission().load().bytes == value.len()).await;
    // There is room for another one, which is carried out at once.
    quick.put("b", &"b".repeat(100_000)).await.is(204, "");
    tokio::time::sleep(Duration::from_millis(60)).await;
    quick.get("a").await.is(200, &value);
    let mut rest = Vec::new();
    let _ = slow.stream.read_to_end(&mut rest).await;
    assert!(rest.len() < value.len(), "it is parted with: {}", rest.len());
    until("nothing is under way", || node.admission().load() == Load::default()).await;
    // A value that was written is not kept by a client that does not read so.
    let mut silent = Web::to_with(&worker, 64);
    let head =
        format!("PUT /v1/stores/default/keys/c HTTP/1.1\r\n{HOST}content-length: {}\r\n\r\n", value.len());
    silent.send(head.as_bytes()).await;
    silent.send(value.as_bytes()).await;
    until("nothing is under way", || node.admission().load() == Load::default()).await;
    quick.get("c").await.is(200, &value);
    silent.reply(false).await.is(204, "");
}

#[tokio::test]
async fn the_head_of_a_request_is_accounted_for_until_it_is_answered() {
    let (node, worker) = lonely_node(|config| config.requests.limits.node_bytes_max = 64 * 1024).await;
    let mut slow = Web::to_with(&worker, 1 << 20);
    let head = format!("PUT /v1/stores/default/keys/a HTTP/1.1\r\n{HOST}content-length: 36100\r\n\r\n");
    slow.send(head.as_bytes()).await;
    slow.send(&vec![b'v'; 36_000]).await;
    until("it holds most of the room of clients", || node.admission().load().bytes >= 36_000).await;
    let mut web = Web::to(&worker);
    web.get("b").await.refuses(404, "not-found");
    let lines = format!("x: {}\r\n", "x".repeat(15_000));
    web.ask("GET /v1/stores/default/keys/b", &lines, "").await.refuses(503, "overloaded");
    slow.send(&[b'v'; 100]).await;
    slow.reply(false).await.is(204, "");
    web.ask("GET /v1/stores/default/keys/b", &lines, "").await.refuses(404, "not-found");
}

#[tokio::test]
async fn a_stalled_client_is_disconnected() {
    let rest = Duration::from_millis(50);
    let (_node, worker) = lonely_node(|config| config.requests.limits.rest_time_max = rest).await;
    let mut web = Web::to(&worker);
    web.send(b"GET /health HTTP/1.1\r\n").await;
    web.reply(false).await.refuses(408, "malformed");
    assert!(web.is_closed().await);
    let mut quiet = Web::to(&worker);
    tokio::time::sleep(3 * rest).await;
    quiet.ask("GET /health", "", "").await.is(200, "alive\n");
}

#[tokio::test]
async fn a_connection_over_the_limit_is_told_so() {
    let (_node, worker) = lonely_node(|config| config.requests.limits.connections_max = 1).await;
    let mut first = Web::to(&worker);
    first.ask("GET /health", "", "").await.is(200, "alive\n");
    let mut second = Web::to(&worker);
    second.reply(false).await.refuses(503, "too-many-connections");
    assert!(second.is_closed().await);
    let mut redis = Connection::to(_node, &worker);
    redis.expect("-ERR max number of clients reached\r\n").await;
}
