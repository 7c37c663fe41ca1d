//! Events as they happen.

use std::time::Duration;

use node::events::Event;
use protocol::admission::Load;

use super::Web;
use super::bounds::until;
use crate::support::{lonely_node, lonely_node_with_users};

impl Web {
    /// Asks for events, and reads the head of the answer.
    async fn follow(&mut self, query: &str, lines: &str) {
        let accept = "accept: text/event-stream\r\n";
        let head = format!("GET /v1/events{query} HTTP/1.1\r\nhost: localhost\r\n{accept}{lines}\r\n");
        self.send(head.as_bytes()).await;
        let reply = self.reply(false).await;
        assert_eq!((reply.status, &*reply.headers["content-type"]), (200, "text/event-stream"));
        assert_eq!(
            (&*reply.headers["transfer-encoding"], &*reply.headers["connection"]),
            ("chunked", "close")
        );
    }

    /// Reads until this has come, and takes out all up to there.
    async fn until(&mut self, what: &str) -> String {
        loop {
            let text = String::from_utf8_lossy(&self.input).into_owned();
            if let Some(at) = text.find(what) {
                return String::from_utf8(self.input.drain(..at + what.len()).collect()).unwrap();
            }
            self.more().await;
        }
    }
}

fn suspected(why: &str) -> Event {
    Event::PeerSuspected { peer: model::NodeId(2), why: why.to_owned() }
}

#[tokio::test]
async fn each_event_is_sent_when_it_happens_and_a_reader_resumes_where_it_was() {
    let (node, worker) = lonely_node(|_| {}).await;
    let mut web = Web::to(&worker);
    web.follow("", "").await;
    web.until("\"kind\":\"node-started\"").await;
    node.events().record(suspected("first"));
    let told = web.until("is suspected: first").await;
    let id = told.rsplit("id: ").next().unwrap().lines().next().unwrap().to_owned();
    drop(web);
    node.events().record(suspected("second"));
    let mut again = Web::to(&worker);
    again.follow("", &format!("last-event-id: {id}\r\n")).await;
    let told = again.until("is suspected: second").await;
    assert!(!told.contains("first") && !told.contains("node-started"), "{told}");
    let (run, after) = id.split_once('-').unwrap();
    let mut by_name = Web::to(&worker);
    by_name.follow(&format!("?run={run}&after={after}"), "").await;
    assert!(!by_name.until("is suspected: second").await.contains("first"));
    // An id of another start, or of another server, begins anew.
    for other in [format!("1{id}"), "abc".to_owned()] {
        let mut anew = Web::to(&worker);
        anew.follow("", &format!("last-event-id: {other}\r\n")).await;
        anew.until("\"kind\":\"node-started\"").await;
    }
}

#[tokio::test]
async fn readers_of_events_are_limited_and_leave_connections_to_others() {
    let (node, worker) = lonely_node(|config| config.requests.limits.connections_max = 8).await;
    let mut readers = Vec::new();
    for _ in 0..2 {
        let mut reader = Web::to(&worker);
        reader.follow("", "").await;
        readers.push(reader);
    }
    let mut web = Web::to(&worker);
    web.ask("GET /v1/events", "accept: text/event-stream\r\n", "").await.refuses(503, "overloaded");
    web.put("a", "v").await.is(204, "");
    let numbers = String::from_utf8(web.ask("GET /metrics", "", "").await.body).unwrap();
    assert!(numbers.contains("tontine_http_event_readers 2\n"), "{numbers}");
    let head = web.ask("HEAD /v1/events", "", "").await;
    assert_eq!((head.status, &*head.headers["content-type"]), (200, "application/json"));
    drop(readers);
    until("their places are free", || {
        // A write finds out that an end is gone.
        node.events().record(suspected("again"));
        node.admission().connections() == 1
    })
    .await;
    Web::to(&worker).follow("", "").await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_disconnected_and_holds_nothing() {
    let (node, worker) =
        lonely_node(|config| config.requests.limits.rest_time_max = Duration::from_millis(100)).await;
    let mut web = Web::to_with(&worker, 1024);
    web.follow("", "").await;
    for round in 0..2_000 {
        node.events().record(suspected(&format!("{round} {}", "x".repeat(400))));
    }
    until("it is parted with", || node.admission().connections() == 0).await;
    until("nothing is under way", || node.admission().load() == Load::default()).await;
}

#[tokio::test]
async fn a_stopping_node_ends_event_streams_and_users_without_the_right_get_none() {
    let users: &[(&str, &[&str])] = &[("root", &["admin"]), ("shop", &["read:*"])];
    let (node, worker) = lonely_node_with_users(users, |_| {}).await;
    let mut web = Web::to(&worker);
    let accept = "accept: text/event-stream\r\n";
    web.ask("GET /v1/events", accept, "").await.refuses(401, "unauthenticated");
    let shop = format!("{accept}authorization: Bearer shop\r\n");
    web.ask("GET /v1/events", &shop, "").await.refuses(403, "forbidden");
    web.ask("GET /v1/events?wait=1s", &format!("{accept}authorization: Bearer root\r\n"), "")
        .await
        .refuses(400, "malformed");
    web.follow("", "authorization: Bearer root\r\n").await;
    web.until("node-started").await;
    let began = tokio::time::Instant::now();
    node.leave().await;
    web.until("\r\n0\r\n\r\n").await;
    assert!(web.is_closed().await && began.elapsed() < Duration::from_secs(1));
}
