//! Keys by HTTP, on real processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::Cluster;
use crate::observe::{await_views, until};
use crate::resp::{Redis, Reply};

/// An answer.
#[derive(Debug)]
struct Web {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Web {
    /// Sends one request on its own connection.
    fn ask(address: &str, request: &str, lines: &str, body: &[u8]) -> Web {
        let host = if lines.contains("host: ") { String::new() } else { format!("host: {address}\r\n") };
        let head = format!(
            "{request} HTTP/1.1\r\n{host}{lines}content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Web { status, head, body: answer[end + 4..].to_vec() }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn json(&self) -> Json {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn line(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    #[track_caller]
    fn is(&self, status: u16, text: &str) {
        assert_eq!((self.status, self.text().as_str()), (status, text), "{}", self.head);
    }

    #[track_caller]
    fn refuses(&self, status: u16, kind: &str) {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.text());
        assert_eq!(self.json()["error"]["kind"], kind);
    }
}

/// The path of a key.
fn path(store: &str, key: &str) -> String {
    format!("/v1/stores/{store}/keys/{key}")
}

#[test]
fn a_key_goes_in_at_one_node_and_comes_out_at_every_door_of_the_others() {
    let cluster = Cluster::start();
    let [one, two, three] = [1, 2, 3].map(|node| cluster.http(node));
    let greeting = path("default", "greeting");
    let put = Web::ask(&one, &format!("PUT {greeting}"), "", b"hello");
    put.is(204, "");
    let got = Web::ask(&two, &format!("GET {greeting}"), "", b"");
    got.is(200, "hello");
    assert_eq!(got.line("etag"), put.line("etag"));
    assert_eq!(got.line("tontine-sloppy"), None);
    let mut redis = Redis::connect(&cluster.resp(3));
    assert_eq!(redis.call(&[b"GET", b"greeting"]), Reply::Bulk(Some(b"hello".to_vec())));
    assert_eq!(cluster.run(&["get", "greeting"]).exits(0).text(), "hello\n");
    Web::ask(&three, &format!("DELETE {greeting}?w=3"), "", b"").is(204, "");
    Web::ask(&two, &format!("GET {greeting}"), "", b"").refuses(404, "not-found");

    let value: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let large = path("default", "%00%ff%2F");
    Web::ask(&two, &format!("PUT {large}"), "", &value).is(204, "");
    assert!(Web::ask(&three, &format!("GET {large}"), "", b"").body == value);

    let curl = std::process::Command::new("curl")
        .args(["-sS", "--fail", "-X", "PUT", "-d", "by curl", &format!("http://{one}{greeting}")])
        .status();
    // Where there is none, the other requests are all that is asked.
    if let Ok(status) = curl {
        assert!(status.success(), "{status}");
        Web::ask(&three, &format!("GET {greeting}"), "", b"").is(200, "by curl");
    }
}

#[test]
fn concurrent_puts_at_two_nodes_are_siblings_and_a_put_with_their_etag_merges_them() {
    let cluster = Cluster::start();
    let cart = path("siblings", "cart");
    let first = Web::ask(&cluster.http(1), &format!("PUT {cart}?w=3"), "", b"milk");
    let seen = format!("if-match: {}\r\n", first.line("etag").unwrap());
    for (node, value) in [(1, "eggs"), (2, "bread")] {
        Web::ask(&cluster.http(node), &format!("PUT {cart}?w=3"), &seen, value.as_bytes()).is(204, "");
    }
    let both = Web::ask(&cluster.http(3), &format!("GET {cart}?r=3"), "", b"");
    assert_eq!(both.status, 300, "{}", both.head);
    let document = both.json();
    let mut values: Vec<&str> =
        document["values"].as_array().unwrap().iter().filter_map(Json::as_str).collect();
    values.sort_unstable();
    assert_eq!(values, ["YnJlYWQ=", "ZWdncw=="]);
    let seen = format!("if-match: {}\r\n", both.line("etag").unwrap());
    Web::ask(&cluster.http(3), &format!("PUT {cart}?w=3"), &seen, b"eggs, bread").is(204, "");
    Web::ask(&cluster.http(1), &format!("GET {cart}"), "", b"").is(200, "eggs, bread");
}

#[test]
fn not_found_is_never_said_where_too_few_replicas_answer() {
    let cluster = Cluster::start();
    let left = cluster.http(1);
    let (here, absent) = (path("default", "here"), path("default", "absent"));
    Web::ask(&left, &format!("PUT {here}?w=3"), "", b"v").is(204, "");
    Web::ask(&left, &format!("GET {absent}?r=3"), "", b"").refuses(404, "not-found");
    for node in [2, 3] {
        cluster.end_node(node, Signal::KILL);
    }
    for node in [2, 3] {
        await_views(&cluster, node, &["down"], 1);
    }
    let began = Instant::now();
    for request in [format!("GET {absent}?timeout=2s"), format!("HEAD {absent}?timeout=2s")] {
        let answer = Web::ask(&left, &request, "", b"");
        assert_eq!(answer.status, 503, "{}", answer.head);
    }
    Web::ask(&left, &format!("GET {here}?timeout=2s"), "", b"").refuses(503, "insufficient-replicas");
    for lines in ["", "if-none-match: *\r\n", "if-match: *\r\n"] {
        let answer = Web::ask(&left, &format!("PUT {absent}?timeout=2s"), lines, b"v");
        assert_eq!(answer.status, 503, "{}\n{}", answer.head, answer.text());
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    Web::ask(&left, &format!("GET {absent}?r=1"), "", b"").refuses(404, "not-found");
    Web::ask(&left, &format!("GET {here}?r=1"), "", b"").is(200, "v");
    Web::ask(&left, "GET /health", "", b"").is(200, "alive\n");
}

#[test]
fn a_write_that_may_have_happened_is_504_and_never_called_failed() {
    let cluster = Cluster::start();
    let key = path("default", "doubtful");
    // They hang, so nobody knows yet that they do not answer.
    for node in [2, 3] {
        cluster.signal_node(node, Signal::STOP);
    }
    let put = Web::ask(&cluster.http(1), &format!("PUT {key}?timeout=300ms"), "", b"v");
    for node in [2, 3] {
        cluster.signal_node(node, Signal::CONT);
    }
    assert_eq!(put.status, 504, "{}\n{}", put.head, put.text());
    assert_eq!(put.json()["error"]["outcome"], "unknown");
}

#[test]
fn a_batch_tells_of_each_write_whether_it_may_have_happened() {
    let cluster = Cluster::start();
    let json = "content-type: application/json\r\n";
    let batch = |address: &str, more: &str, body: &str| {
        Web::ask(address, &format!("POST /v1/stores/default/batch{more}"), json, body.as_bytes())
    };
    let statuses = |answer: &Web| -> Vec<u64> {
        assert_eq!(answer.status, 200, "{}\n{}", answer.head, answer.text());
        let document = answer.json();
        document["results"].as_array().unwrap().iter().map(|one| one["status"].as_u64().unwrap()).collect()
    };
    let keys: Vec<String> =
        (0..200).map(|key| format!(r#"{{"op":"put","key":"k{key}","value":"v"}}"#)).collect();
    let puts = format!(r#"{{"operations":[{}]}}"#, keys.join(","));
    assert_eq!(statuses(&batch(&cluster.http(1), "?w=3", &puts)), [204; 200]);
    assert_eq!(
        statuses(&batch(&cluster.http(2), "", &puts.replace("put", "get").replace(r#","value":"v""#, ""))),
        [200; 200]
    );
    // They hang, so nobody knows yet that they do not answer.
    for node in [2, 3] {
        cluster.signal_node(node, Signal::STOP);
    }
    let mixed =
        r#"{"operations":[{"op":"put","key":"doubtful","value":"v"},{"op":"put","key":"","value":"v"}]}"#;
    let doubtful = batch(&cluster.http(1), "?w=3&timeout=300ms", mixed);
    for node in [2, 3] {
        cluster.signal_node(node, Signal::CONT);
    }
    assert_eq!(statuses(&doubtful), [504, 400], "{}", doubtful.text());
    assert_eq!(doubtful.json()["results"][0]["error"]["outcome"], "unknown");
}

#[test]
fn pages_of_keys_go_on_at_any_node_and_none_is_silently_short() {
    let cluster = Cluster::start();
    let addresses = [1, 2, 3].map(|node| cluster.http(node));
    let keys: Vec<String> =
        (0..700).map(|key| format!(r#"{{"op":"put","key":"k{key}","value":"v"}}"#)).collect();
    let puts = format!(r#"{{"operations":[{}]}}"#, keys.join(","));
    let json = "content-type: application/json\r\n";
    let written = Web::ask(&addresses[0], "POST /v1/stores/default/batch?w=3", json, puts.as_bytes());
    assert_eq!(written.status, 200, "{}", written.text());
    let (mut seen, mut path) =
        (std::collections::BTreeSet::new(), "/v1/stores/default/keys?limit=100".to_owned());
    for turn in 0.. {
        let page = Web::ask(&addresses[turn % 3], &format!("GET {path}"), "", b"");
        assert_eq!(page.status, 200, "{}", page.text());
        let lines: Vec<Json> = page.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (last, lines) = lines.split_last().unwrap();
        for line in lines {
            assert!(seen.insert(line["key"].as_str().unwrap().to_owned()), "{line} is there twice");
        }
        match last["after"].as_str() {
            Some(after) => path = format!("/v1/stores/default/keys?limit=100&after={after}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 700);
    for node in [2, 3] {
        cluster.end_node(node, Signal::KILL);
    }
    for node in [2, 3] {
        await_views(&cluster, node, &["down"], 1);
    }
    Web::ask(&addresses[0], "GET /v1/stores/default/keys", "", b"").refuses(503, "insufficient-replicas");
}

/// A document that any node answers with.
#[track_caller]
fn document(address: &str, path: &str) -> Json {
    let answer = Web::ask(address, &format!("GET {path}"), "", b"");
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    assert_eq!(answer.line("content-type"), Some("application/json"));
    answer.json()
}

#[test]
fn orders_and_documents_go_through_any_node() {
    let cluster = Cluster::start();
    let [one, two] = [1, 2].map(|node| cluster.http(node));
    let json = "content-type: application/json\r\n";
    let weigh = br#"{"verb":"weigh","node":2,"weight":200}"#;
    let given = Web::ask(&one, "POST /v1/orders?wait=30s", json, weigh);
    assert_eq!(given.status, 200, "{}", given.text());
    let told = given.json();
    assert_eq!(told["answer"]["done"]["code"], "node-weighs", "{told}");
    let number = told["number"].as_u64().unwrap();
    // Another node learns of the answer a moment later.
    let answer = || document(&two, &format!("/v1/orders/{number}"))["answer"].clone();
    until("the other node knows the answer", answer, |answer| *answer == told["answer"]);
    // A node follows the new document a moment after the order is done.
    let weight = || {
        let known = document(&one, "/v1/cluster");
        let nodes = known["nodes"].as_array().unwrap().iter();
        nodes.clone().find(|node| node["id"] == 2).unwrap()["weight"].clone()
    };
    until("the node follows the document with the weight", weight, |weight| *weight == 200);
    // How long it has been silent depends on how busy the machine is.
    assert!(document(&two, "/v1/office")["headmaster"].is_object());

    let refused = Web::ask(&two, "POST /v1/orders?wait=30s", json, br#"{"verb":"apply","plan":77}"#);
    refused.refuses(409, "plan-unknown");
    assert_eq!(refused.json()["error"]["facts"]["plan"], 77);
    let number = refused.json()["number"].as_u64().unwrap();
    let outcome = || document(&one, &format!("/v1/orders/{number}"))["answer"]["outcome"].clone();
    until("the other node knows the refusal", outcome, |outcome| *outcome == "refused");
    Web::ask(&two, "POST /v1/orders", json, br#"{"verb":"dance"}"#).refuses(400, "malformed");

    let wish = br#"{"verb":"create","wish":{"for":"rebalance"},"consent":{}}"#;
    let created = Web::ask(&two, "POST /v1/orders?wait=30s", json, wish);
    assert_ne!(created.status, 500, "{}", created.text());
    let plans = document(&one, "/v1/plans");
    assert!(plans["plans"].is_array(), "{plans}");

    let control = br#"{"order":"start"}"#;
    assert_eq!(Web::ask(&one, "POST /v1/repair", json, control).status, 200);
    for path in
        ["/v1/status", "/v1/nodes", "/v1/moves", "/v1/load", "/v1/load/keys", "/v1/repair", "/v1/artifacts"]
    {
        assert_eq!(document(&one, path)["node"], 1, "{path}");
    }
    let seen = document(&one, "/v1/nodes");
    assert_eq!(seen["nodes"].as_array().unwrap().len(), 3, "{seen}");
}

#[test]
fn events_are_told_as_they_happen_and_their_reader_keeps_no_node_from_stopping() {
    let mut cluster = Cluster::start();
    let mut reader = TcpStream::connect(cluster.http(1)).unwrap();
    reader.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    reader
        .write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n")
        .unwrap();
    let mut told = Vec::new();
    let mut read_until = |what: &str, reader: &mut TcpStream| {
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&told).contains(what) {
            let count = reader.read(&mut buffer).unwrap();
            assert!(count > 0, "{what} is not in {}", String::from_utf8_lossy(&told));
            told.extend_from_slice(&buffer[..count]);
        }
    };
    read_until("\"kind\":\"node-started\"", &mut reader);
    cluster.end_node(3, Signal::KILL);
    read_until("\"kind\":\"peer-down\"", &mut reader);
    let began = Instant::now();
    cluster.end_node(1, Signal::TERM);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "the stream has an end: {}", rest.escape_ascii());
    cluster.start_node_again(1);
}

#[test]
fn a_web_page_and_a_client_without_the_password_get_nothing_from_a_real_node() {
    let cluster =
        Cluster::with_environment(1, &["--http-name=kv.example"], &[("TONTINE_PASSWORD", "open-sesame-7")]);
    let (address, key) = (cluster.http(1), path("default", "secret"));
    let bearer = "authorization: Bearer open-sesame-7\r\n";
    Web::ask(&address, &format!("PUT {key}"), bearer, b"v").is(204, "");
    for lines in [
        "host: evil.example\r\n",
        "origin: http://evil.example\r\n",
        "origin: null\r\n",
        "sec-fetch-site: same-site\r\n",
    ] {
        for request in [format!("GET {key}"), format!("PUT {key}"), "GET /metrics".to_owned()] {
            let answer = Web::ask(&address, &request, &format!("{lines}{bearer}"), b"");
            answer.refuses(403, "foreign-origin");
            assert!(!answer.head.contains("access-control-"), "{}", answer.head);
        }
    }
    for request in [format!("GET {key}"), format!("DELETE {key}"), "GET /metrics".to_owned()] {
        Web::ask(&address, &request, "authorization: Bearer open-sesame-8\r\n", b"")
            .refuses(401, "unauthenticated");
        Web::ask(&address, &request, "", b"").refuses(401, "unauthenticated");
    }
    Web::ask(&address, "GET /ready", "", b"").is(200, "ready\n");
    Web::ask(&address, &format!("GET {key}"), &format!("host: kv.example\r\n{bearer}"), b"").is(200, "v");
    let numbers = Web::ask(&address, "GET /metrics", bearer, b"").text();
    assert!(
        numbers.contains("tontine_http_requests_total{store=\"default\",outcome=\"refused\"}"),
        "{numbers}"
    );
    assert!(numbers.contains("tontine_node_errors_total{code=\"foreign-origin\"} 12\n"), "{numbers}");
}

#[test]
fn clients_see_no_failure_while_nodes_stop_one_after_the_other() {
    let mut cluster = Cluster::start();
    let key = path("default", "steady");
    Web::ask(&cluster.http(1), &format!("PUT {key}?w=3"), "", b"v").is(204, "");
    for node in [1_u16, 2, 3] {
        let other = cluster.http(node % 3 + 1);
        let mut kept = TcpStream::connect(cluster.http(node)).unwrap();
        kept.write_all(format!("GET {key} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).unwrap();
        let mut first = [0; 12];
        kept.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        cluster.end_node(usize::from(node), Signal::TERM);
        // It was between two requests: its end is an end, and nothing is cut off.
        let mut rest = Vec::new();
        kept.read_to_end(&mut rest).unwrap();
        assert!(rest.ends_with(b"\r\n\r\nv"), "{}", rest.escape_ascii());
        Web::ask(&other, &format!("GET {key}"), "", b"").is(200, "v");
        cluster.start_node_again(usize::from(node));
    }
}

#[test]
fn a_read_only_store_is_read_and_takes_no_writes() {
    let cluster = Cluster::start();
    let (table, artifact) = (cluster.write("counts.tsv", "the\t23\nof\t13\n"), cluster.file("words-1"));
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    let early = Web::ask(&cluster.http(1), &format!("GET {}", path("words", "the")), "", b"");
    assert_ne!(early.status, 200, "nothing is served yet");
    cluster
        .run(&["artifact", "build", &table, "--key=1", "--value=2", "-s", "words", "--to", &artifact])
        .exits(0);
    cluster.run(&["artifact", "push", &artifact]).exits(0);
    for node in [1, 2, 3] {
        let address = cluster.http(node);
        Web::ask(&address, &format!("GET {}", path("words", "the")), "", b"").is(200, "23");
        Web::ask(&address, &format!("GET {}", path("words", "none")), "", b"").refuses(404, "not-found");
        let put = Web::ask(&address, &format!("PUT {}", path("words", "the")), "", b"24");
        put.refuses(405, "read-only");
        assert_eq!(put.line("allow"), Some("GET, HEAD"));
    }
}
