//! Many keys in one request.

use std::time::Duration;

use protocol::admission::Load;
use serde_json::{Value as Json, json};

use super::{Reply, Web};
use crate::support::{Connection, lonely_node, lonely_node_with_users};

const JSON: &str = "content-type: application/json\r\n";

impl Web {
    async fn batch(&mut self, operations: Json) -> Reply {
        self.batch_to("default", operations).await
    }

    async fn batch_to(&mut self, store: &str, operations: Json) -> Reply {
        let body = json!({ "operations": operations }).to_string();
        self.ask(&format!("POST /v1/stores/{store}/batch"), JSON, body).await
    }
}

/// The results of a batch that was carried out.
#[track_caller]
fn results(reply: &Reply) -> Vec<Json> {
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    assert_eq!(reply.headers["content-type"], "application/json");
    reply.json()["results"].as_array().unwrap().clone()
}

fn statuses(results: &[Json]) -> Vec<u64> {
    results.iter().map(|result| result["status"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn each_key_of_a_batch_gets_the_result_it_would_get_alone() {
    let (_node, mut web) = Web::open().await;
    web.put("read", "here").await.is(204, "");
    web.put("gone", "soon").await.is(204, "");
    let reply = web
        .batch(json!([
            { "op": "put", "key": "a", "value": "text" },
            { "op": "get", "key": "read" },
            { "op": "put", "key64": "/wA=", "value64": "AP8=" },
            { "op": "get", "key": "absent" },
            { "op": "delete", "key": "gone" },
            { "op": "put", "key": "read2", "value": "v", "if": "present" },
            { "op": "put", "key": "", "value": "v" },
            { "op": "put", "key": "short", "value": "v", "ttl": "1s" },
        ]))
        .await;
    let results = results(&reply);
    assert_eq!(statuses(&results), [204, 200, 204, 404, 204, 412, 400, 204], "{results:?}");
    assert_eq!((&results[1]["value"], &results[1]["key"]), (&"here".into(), &"read".into()));
    assert_eq!(results[1]["context"], web.get("read").await.etag().trim_matches('"'));
    assert_eq!((&results[2]["key64"], &results[3]["error"]["kind"]), (&"/wA=".into(), &"not-found".into()));
    let kinds = [&results[5], &results[6]].map(|result| result["error"]["kind"].as_str().unwrap());
    assert_eq!(kinds, ["condition-failed", "key-empty"]);
    web.get("a").await.is(200, "text");
    let bytes = web.get("%ff%00").await;
    assert_eq!((bytes.status, &bytes.body[..]), (200, &b"\0\xff"[..]));
    assert_eq!(web.get("gone").await.status, 404);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(web.get("short").await.status, 404);
    assert_eq!(self::results(&web.batch(json!([])).await), [] as [Json; 0]);
}

#[tokio::test]
async fn a_context_of_a_batch_merges_siblings_and_siblings_are_listed() {
    let (_node, mut web) = Web::open().await;
    let put = |value: &str, context: &Json| match context.is_null() {
        true => json!([{ "op": "put", "key": "cart", "value": value }]),
        false => json!([{ "op": "put", "key": "cart", "value": value, "context": context }]),
    };
    let first = results(&web.batch_to("siblings", put("first", &Json::Null)).await)[0]["context"].clone();
    for value in ["left", "right"] {
        assert_eq!(statuses(&results(&web.batch_to("siblings", put(value, &first)).await)), [204]);
    }
    let get = json!([{ "op": "get", "key": "cart" }]);
    let both = results(&web.batch_to("siblings", get.clone()).await).remove(0);
    assert_eq!((&both["status"], both["values64"].as_array().unwrap().len()), (&300.into(), 2));
    results(&web.batch_to("siblings", put("both", &both["context"])).await);
    assert_eq!(results(&web.batch_to("siblings", get).await)[0]["value"], "both");
}

#[tokio::test]
async fn a_batch_that_makes_no_sense_does_nothing() {
    let (node, worker) = lonely_node(|_| {}).await;
    let mut web = Web::to(&worker);
    let put = r#"{"op":"put","key":"a","value":"v"}"#;
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    for body in [
        String::new(),
        "[]".to_owned(),
        format!("{{\"operations\":[{put},{put}]}}"),
        format!("{{\"operations\":[{put},{{\"op\":\"get\",\"key\":\"b\",\"more\":{deep}}}]}}"),
        format!("{{\"operations\":[{put}],\"more\":{deep}}}"),
        format!("{{\"operations\":[{put},{deep}]}}"),
        format!("{{\"operations\":[{put}"),
    ] {
        web.ask("POST /v1/stores/default/batch", JSON, &body).await.refuses(400, "malformed");
    }
    let body = format!("{{\"operations\":[{put}]}}");
    for (path, lines, status, kind) in [
        ("nothing/batch", JSON, 400, "unknown-store"),
        ("default/batch?ttl=1s", JSON, 400, "malformed"),
        ("default/batch?w=2", JSON, 400, "malformed"),
        ("default/batch", "", 400, "malformed"),
        ("default/batch", "content-type: application/octet-stream\r\n", 400, "malformed"),
        ("default/batch", "content-type: application/json\r\ncontent-encoding: gzip\r\n", 400, "malformed"),
        ("default/batch", "content-type: text/plain\r\n", 403, "foreign-origin"),
    ] {
        web.ask(&format!("POST /v1/stores/{path}"), lines, &body).await.refuses(status, kind);
    }
    // What curl -d says by itself.
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let refused = web.ask("POST /v1/stores/default/batch", form, &body).await;
    refused.refuses(403, "foreign-origin");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("-H 'Content-Type: application/json'"), "{message}");
    let other = web.ask("GET /v1/stores/default/batch", "", "").await;
    other.refuses(405, "unknown-request");
    assert_eq!(other.headers["allow"], "POST");
    let mut redis = Connection::to(node, &worker);
    redis.ask("DBSIZE", ":0\r\n").await;
}

#[tokio::test]
async fn a_batch_is_limited_in_keys_and_bytes_and_a_value_by_its_store() {
    let (_node, worker) = lonely_node(|_| {}).await;
    let mut web = Web::to(&worker);
    let gets = |count: usize| (0..count).map(|at| json!({ "op": "get", "key": at.to_string() })).collect();
    assert_eq!(results(&web.batch(gets(10_000)).await).len(), 10_000);
    web.batch(gets(10_001)).await.refuses(400, "too-many-keys");
    let head = "POST /v1/stores/default/batch HTTP/1.1\r\nhost: localhost\r\n";
    web.send(format!("{head}{JSON}content-length: {}\r\n\r\n", (32 << 20) + 1).as_bytes()).await;
    web.reply(false).await.refuses(413, "frame-too-long");
    let mut web = Web::to_with(&worker, 1 << 20);
    let value = "v".repeat((16 << 20) + 1);
    let reply = web
        .batch(json!([{ "op": "put", "key": "long", "value": value }, { "op": "put", "key": "b", "value": "v" }]))
        .await;
    let results = results(&reply);
    assert_eq!(statuses(&results), [413, 204], "{:?}", results[0]["error"]);
}

#[tokio::test]
async fn a_batch_and_its_answer_are_accounted_for_until_the_answer_is_read() {
    let (node, worker) = lonely_node(|_| {}).await;
    let mut web = Web::to_with(&worker, 1 << 20);
    let value = "v".repeat(1 << 20);
    web.put("a", &value).await.is(204, "");
    let load = || node.admission().load();
    let mut reader = Web::to_with(&worker, 1024);
    let body = json!({ "operations": [{ "op": "get", "key": "a" }] }).to_string();
    let head = "POST /v1/stores/default/batch HTTP/1.1\r\nhost: localhost\r\n";
    reader.send(format!("{head}{JSON}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
    super::bounds::until("the answer is counted", || load().bytes >= value.len()).await;
    assert_eq!(load().requests, 0, "it has been carried out");
    let read = reader.reply(false).await;
    assert_eq!(results(&read)[0]["value"].as_str().unwrap().len(), value.len());
    super::bounds::until("nothing is under way", || load() == Load::default()).await;
}

/// A batch whose answer finds no room must not be called failed: it was carried out.
#[tokio::test]
async fn a_batch_whose_answer_finds_no_room_still_says_what_was_written() {
    let (node, worker) = lonely_node(|config| config.requests.limits.node_bytes_max = 256 * 1024).await;
    let mut web = Web::to_with(&worker, 1 << 20);
    web.put("long", &"v".repeat(90_000)).await.is(204, "");
    // Another answer takes the room of this one.
    let mut slow = Web::to_with(&worker, 64);
    slow.send(b"GET /v1/stores/default/keys/long HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    super::bounds::until("it holds room", || node.admission().load().bytes >= 90_000).await;
    let batch = json!([{ "op": "put", "key": "b", "value": "v" }, { "op": "get", "key": "long" }]);
    let results = results(&web.batch(batch).await);
    assert_eq!(statuses(&results), [204, 503], "{results:?}");
    assert_eq!(results[1]["error"]["kind"], "overloaded");
    web.get("b").await.is(200, "v");
}

#[tokio::test]
async fn a_forbidden_key_of_a_batch_does_not_refuse_the_others() {
    let shop: &[&str] = &["read:default/mine:", "write:default/mine:"];
    let (_node, worker) = lonely_node_with_users(&[("root", &["admin"]), ("shop", shop)], |_| {}).await;
    let mut web = Web::to(&worker);
    let root = "authorization: Bearer root\r\n";
    for key in ["mine:a", "theirs:a"] {
        web.ask(&format!("PUT /v1/stores/default/keys/{key}"), root, "v").await.is(204, "");
    }
    let body = json!({ "operations": [
        { "op": "get", "key": "mine:a" },
        { "op": "get", "key": "theirs:a" },
        { "op": "put", "key": "theirs:b", "value": "v" },
        { "op": "put", "key": "mine:b", "value": "v" },
    ]})
    .to_string();
    web.ask("POST /v1/stores/default/batch", JSON, &body).await.refuses(401, "unauthenticated");
    let lines = format!("{JSON}authorization: Bearer shop\r\n");
    let results = results(&web.ask("POST /v1/stores/default/batch", &lines, &body).await);
    assert_eq!(statuses(&results), [200, 403, 403, 204], "{results:?}");
    assert_eq!(results[1]["error"]["kind"], "forbidden");
    web.ask("GET /v1/stores/default/keys/theirs:b", root, "").await.refuses(404, "not-found");
    web.ask("GET /v1/stores/default/keys/mine:b", root, "").await.is(200, "v");
}
