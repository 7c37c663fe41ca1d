//! The keys of a store, page by page.

use std::collections::BTreeMap;

use protocol::admission::Load;
use serde_json::{Value as Json, json};

use super::Web;
use crate::support::{lonely_node, lonely_node_with_users};

/// The lines of a page without its last one, and where the next page begins.
async fn page(web: &mut Web, query: &str) -> (Vec<Json>, Option<String>) {
    page_of(web, "default", query).await
}

async fn page_of(web: &mut Web, store: &str, query: &str) -> (Vec<Json>, Option<String>) {
    let reply = web.ask(&format!("GET /v1/stores/{store}/keys?{query}"), "", "").await;
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    assert_eq!(reply.headers["content-type"], "application/x-ndjson");
    let text = String::from_utf8(reply.body).unwrap();
    let mut lines: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.pop().unwrap();
    match last.get("after") {
        Some(after) => (lines, Some(after.as_str().unwrap().to_owned())),
        None => {
            assert_eq!(last, json!({ "end": true }));
            (lines, None)
        }
    }
}

/// How often each key is listed, and on how many pages.
async fn walk(web: &mut Web, query: &str) -> (BTreeMap<String, usize>, usize) {
    let (mut seen, mut after, mut pages) = (BTreeMap::new(), String::new(), 0);
    loop {
        let query = if after.is_empty() { query.to_owned() } else { format!("{query}&after={after}") };
        let (lines, next) = page(web, &query).await;
        pages += 1;
        for line in lines {
            *seen.entry(line["key"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        match next {
            Some(next) => after = next,
            None => return (seen, pages),
        }
    }
}

async fn fill(web: &mut Web, count: usize) {
    let operations: Vec<Json> = (0..count)
        .map(|key| json!({ "op": "put", "key": format!("k{key}"), "value": format!("v{key}") }))
        .collect();
    let body = json!({ "operations": operations }).to_string();
    let json = "content-type: application/json\r\n";
    assert_eq!(web.ask("POST /v1/stores/default/batch", json, body).await.status, 200);
}

#[tokio::test]
async fn every_key_is_on_one_page_and_the_last_page_says_so() {
    let (_node, mut web) = Web::open().await;
    assert_eq!(page(&mut web, "").await, (Vec::new(), None), "an empty store is one page");
    fill(&mut web, 3_000).await;
    web.ask("DELETE /v1/stores/default/keys/k7", "", "").await.is(204, "");
    for (query, pages) in
        [("limit=100", 29..=31), ("", 3..=4), ("limit=10000", 1..=1), ("limit=1000&values=true", 3..=4)]
    {
        let (seen, took) = walk(&mut web, query).await;
        assert_eq!(seen.len(), 2_999, "{query}");
        assert!(seen.values().all(|&times| times == 1) && !seen.contains_key("k7"), "{query}");
        assert!(pages.contains(&took), "{query}: {took} pages");
    }
    let (lines, _) = page(&mut web, "limit=10").await;
    assert_eq!(lines.len(), 10);
}

#[tokio::test]
async fn a_prefix_selects_keys_and_pages_without_any_are_skipped() {
    let (_node, mut web) = Web::open().await;
    fill(&mut web, 2_000).await;
    let (seen, _) = walk(&mut web, "prefix=k199&limit=3").await;
    assert_eq!(seen.len(), 11, "k199 and k1990 to k1999: {seen:?}");
    assert!(walk(&mut web, "prefix=nothing").await.0.is_empty());
    assert_eq!(walk(&mut web, "prefix=").await.0.len(), 2_000);
}

#[tokio::test]
async fn values_come_with_their_keys_as_in_a_batch() {
    let (_node, mut web) = Web::open().await;
    web.put("text", "hello").await.is(204, "");
    web.put("%ff", "\0").await.is(204, "");
    let (lines, next) = page(&mut web, "values=true").await;
    assert_eq!((lines.len(), next), (2, None));
    let of = |name: &str, key: &str| lines.iter().find(|line| line[name] == key).unwrap().clone();
    let text = of("key", "text");
    assert_eq!((&text["value"], &text["status"]), (&"hello".into(), &200.into()));
    assert_eq!(text["context"], web.get("text").await.etag().trim_matches('"'));
    assert_eq!(of("key64", "/w==")["value64"], "AA==");
    let (bare, _) = page(&mut web, "values=false").await;
    assert!(bare.contains(&json!({ "key": "text" })) && bare.contains(&json!({ "key64": "/w==" })));

    let cart = "/v1/stores/siblings/keys/cart";
    let first = web.ask(&format!("PUT {cart}"), "", "first").await;
    let seen = format!("if-match: {}\r\n", first.etag());
    for value in ["left", "right"] {
        web.ask(&format!("PUT {cart}"), &seen, value).await.is(204, "");
    }
    let (lines, _) = page_of(&mut web, "siblings", "values=true").await;
    assert_eq!((&lines[0]["status"], lines[0]["values64"].as_array().unwrap().len()), (&300.into(), 2));
}

#[tokio::test]
async fn long_values_end_a_page_early_and_no_key_is_left_out() {
    let (node, worker) = lonely_node(|_| {}).await;
    let mut web = Web::to_with(&worker, 1 << 20);
    let value = "v".repeat(3 << 20);
    for key in 0..24 {
        web.put(&format!("long{key}"), &value).await.is(204, "");
    }
    let (seen, pages) = walk(&mut web, "values=true").await;
    assert_eq!((seen.len(), seen.values().all(|&times| times == 1)), (24, true));
    assert!(pages >= 2, "{pages} pages");
    assert_eq!(walk(&mut web, "").await.1, 1, "keys alone are short");
    super::bounds::until("nothing is under way", || node.admission().load() == Load::default()).await;
}

#[tokio::test]
async fn a_page_that_makes_no_sense_is_refused() {
    let (_node, mut web) = Web::open().await;
    for query in [
        "after=x",
        "after=-1",
        "after=9007199254740992",
        "limit=0",
        "limit=10001",
        "values=1",
        "r=1",
        "prefix=%zz",
    ] {
        web.ask(&format!("GET /v1/stores/default/keys?{query}"), "", "").await.refuses(400, "malformed");
    }
    web.ask("GET /v1/stores/nothing/keys", "", "").await.refuses(400, "unknown-store");
    let other = web.ask("POST /v1/stores/default/keys", "", "").await;
    other.refuses(405, "unknown-request");
    assert_eq!(other.headers["allow"], "GET, HEAD");
    assert_eq!(web.ask("HEAD /v1/stores/default/keys", "", "").await.status, 200);
}

#[tokio::test]
async fn pages_need_the_right_to_scan_the_store() {
    let users: &[(&str, &[&str])] =
        &[("root", &["admin"]), ("shop", &["read:default", "write:default"]), ("walker", &["scan:default"])];
    let (_node, worker) = lonely_node_with_users(users, |_| {}).await;
    let mut web = Web::to(&worker);
    let get = "GET /v1/stores/default/keys?values=true";
    web.ask(get, "", "").await.refuses(401, "unauthenticated");
    web.ask(get, "authorization: Bearer shop\r\n", "").await.refuses(403, "forbidden");
    assert_eq!(web.ask(get, "authorization: Bearer walker\r\n", "").await.status, 200);
    let other = "GET /v1/stores/siblings/keys";
    web.ask(other, "authorization: Bearer walker\r\n", "").await.refuses(403, "forbidden");
}
