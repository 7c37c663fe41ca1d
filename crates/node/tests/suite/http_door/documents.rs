//! What operators ask, and who may.

use std::time::Duration;

use serde_json::Value as Json;

use super::Web;
use crate::support::{lonely_node, lonely_node_with_users};

const JSON: &str = "content-type: application/json\r\n";

/// Paths that are told to whom may observe.
const OBSERVED: [&str; 12] = [
    "/v1/status",
    "/v1/nodes",
    "/v1/moves",
    "/v1/load",
    "/v1/load/keys",
    "/v1/repair",
    "/v1/artifacts",
    "/v1/events",
    "/v1/orders/1",
    "/v1/plans",
    "/v1/plans/current",
    "/v1/office",
];

#[tokio::test]
async fn each_document_is_the_same_as_in_the_native_protocol() {
    let (_node, mut web) = Web::open().await;
    let cluster = web.ask("GET /v1/cluster", "", "").await;
    assert_eq!((cluster.status, &*cluster.headers["content-type"]), (200, "application/json"));
    let names: Vec<_> =
        cluster.json()["stores"].as_array().unwrap().iter().map(|s| s["name"].clone()).collect();
    assert_eq!(names, ["default", "siblings"]);
    for (path, part) in [
        ("/v1/status", "status"),
        ("/v1/nodes", "nodes"),
        ("/v1/moves", "moves"),
        ("/v1/load", "load"),
        ("/v1/load/keys", "keys"),
        ("/v1/repair", "repair"),
        ("/v1/artifacts", "artifacts"),
    ] {
        let report = web.ask(&format!("GET {path}"), "", "").await;
        assert_eq!(report.status, 200, "{path}");
        let report = report.json();
        assert!(!report[part].is_null() && report["node"] == 1, "{path}: {report}");
        let parts = ["status", "nodes", "moves", "load", "keys", "repair", "artifacts"];
        assert_eq!(parts.iter().filter(|part| !report[*part].is_null()).count(), 1, "{path}");
    }
    let scrub = web.ask("POST /v1/repair", JSON, r#"{"order":"scrub","store":"default"}"#).await;
    assert!(!scrub.json()["repair"].is_null());
    let office = web.ask("GET /v1/office", "", "").await.json();
    assert!(office["headmaster"].is_null() && office["generation"] == 1, "{office}");
    let plans = web.ask("GET /v1/plans", "", "").await;
    assert_eq!(plans.status, 200);
}

/// Whether a value is of a type of JSON schema.
fn is_of(value: &Json, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        kind => panic!("{kind} is in no schema of a document"),
    }
}

#[tokio::test]
async fn each_document_matches_its_openapi_schema() {
    let (_node, mut web) = Web::open().await;
    let told = web.ask("GET /v1/openapi.json", "", "").await.json();
    assert_eq!(told["openapi"], "3.1.0");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
    let golden: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(told == golden, "it is the one in the reference");
    for path in OBSERVED.into_iter().chain(["/v1/cluster", "/v1/openapi.json"]) {
        let pattern = path.replace("orders/1", "orders/{number}").replace("current", "{plan}");
        let answer = &told["paths"][&pattern]["get"]["responses"]["200"]["content"]["application/json"];
        let name = answer["schema"]["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        let schema = &told["components"]["schemas"][name];
        let document = web.ask(&format!("GET {path}"), "", "").await.json();
        assert!(document.is_object(), "{path}: {document}");
        for field in schema["required"].as_array().into_iter().flatten() {
            assert!(document.get(field.as_str().unwrap()).is_some(), "{path} has no {field}");
        }
        for (field, kind) in schema["properties"].as_object().into_iter().flatten() {
            if let (Some(value), Some(kind)) = (document.get(field), kind["type"].as_str()) {
                assert!(is_of(value, kind), "{field} of {path} is no {kind}: {value}");
            }
        }
    }
}

#[tokio::test]
async fn events_come_as_a_page_and_a_wait_for_the_next_one_ends() {
    let (node, mut web) = Web::open().await;
    let page = web.ask("GET /v1/events?limit=1", "", "").await.json();
    assert_eq!(page["events"][0]["kind"], "node-started");
    let (run, next) = (page["run"].as_u64().unwrap(), node.events().recorded());
    let began = tokio::time::Instant::now();
    let none = web.ask(&format!("GET /v1/events?run={run}&after={next}&wait=50ms"), "", "").await.json();
    assert_eq!(none["events"].as_array().unwrap().len(), 0);
    assert!(began.elapsed() >= Duration::from_millis(50));
    // A node that stops does not wait for it.
    let path = format!("GET /v1/events?run={run}&after={}&wait=30s", next + 1_000);
    let waiting = tokio::spawn(async move { web.ask(&path, "", "").await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    node.leave().await;
    let answer = tokio::time::timeout(Duration::from_secs(2), waiting).await.unwrap().unwrap();
    assert_eq!((answer.status, &*answer.headers["connection"]), (200, "close"));
}

#[tokio::test]
async fn malformed_requests_for_documents_are_refused() {
    let (_node, mut web) = Web::open().await;
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    for (request, lines, body) in [
        ("GET /v1/status?store=default", "", ""),
        ("GET /v1/repair?partition=x", "", ""),
        ("GET /v1/events?after=x", "", ""),
        ("GET /v1/events?wait=31s", "", ""),
        ("GET /v1/orders/0", "", ""),
        ("GET /v1/orders/current", "", ""),
        ("GET /v1/orders/%zz", "", ""),
        ("GET /v1/plans/x", "", ""),
        ("POST /v1/orders", JSON, ""),
        ("POST /v1/orders", JSON, "{}"),
        ("POST /v1/orders", JSON, &deep),
        ("POST /v1/orders", JSON, &format!(r#"{{"verb":"apply","plan":{deep}}}"#)),
        ("POST /v1/orders", "", r#"{"verb":"apply","plan":1}"#),
        ("POST /v1/repair", JSON, r#"{"order":"look"}"#),
        ("POST /v1/repair", JSON, r#"{"order":"start","more":1}"#),
        ("POST /v1/repair", "", r#"{"order":"start"}"#),
    ] {
        web.ask(request, lines, body).await.refuses(400, "malformed");
    }
    web.ask("POST /v1/orders", "content-type: text/plain\r\n", "{}").await.refuses(403, "foreign-origin");
    let other = web.ask("DELETE /v1/orders/1", "", "").await;
    other.refuses(405, "unknown-request");
    assert_eq!(other.headers["allow"], "GET, HEAD");
    let long = vec![b' '; (1 << 20) + 1];
    web.ask("POST /v1/orders", JSON, long).await.refuses(413, "frame-too-long");
    let (_node, worker) = lonely_node(|_| {}).await;
    let order = Web::to(&worker).ask("POST /v1/orders", JSON, r#"{"verb":"apply","plan":1}"#).await;
    order.refuses(503, "no-headmaster");
}

#[tokio::test]
async fn documents_need_the_same_rights_as_in_the_native_protocol() {
    let users: &[(&str, &[&str])] = &[
        ("root", &["admin"]),
        ("shop", &["read:*", "write:*", "scan:*"]),
        ("monitor", &["observe"]),
        ("operator", &["operate"]),
    ];
    let (_node, worker) = lonely_node_with_users(users, |_| {}).await;
    let mut web = Web::to(&worker);
    let as_user = |name: &str| format!("authorization: Bearer {name}\r\n");
    for path in OBSERVED.into_iter().chain(["/v1/cluster"]) {
        let get = format!("GET {path}");
        web.ask(&get, "", "").await.refuses(401, "unauthenticated");
        web.ask(&get, &as_user("nobody"), "").await.refuses(401, "unauthenticated");
        for name in ["monitor", "operator", "root"] {
            assert_eq!(web.ask(&get, &as_user(name), "").await.status, 200, "{path} for {name}");
        }
        match path {
            "/v1/cluster" => assert_eq!(web.ask(&get, &as_user("shop"), "").await.status, 200),
            _ => web.ask(&get, &as_user("shop"), "").await.refuses(403, "forbidden"),
        }
    }
    let (control, apply) = (r#"{"order":"start"}"#, r#"{"verb":"apply","plan":1}"#);
    let user = r#"{"verb":"user","user":{"change":"remove","user":"shop"}}"#;
    for (path, body) in [("/v1/repair", control), ("/v1/orders", apply), ("/v1/orders", user)] {
        let post = format!("POST {path}");
        web.ask(&post, JSON, body).await.refuses(401, "unauthenticated");
        for name in ["shop", "monitor"] {
            let lines = format!("{JSON}{}", as_user(name));
            web.ask(&post, &lines, body).await.refuses(403, "forbidden");
        }
    }
    let lines = |name: &str| format!("{JSON}{}", as_user(name));
    assert_eq!(web.ask("POST /v1/repair", &lines("operator"), control).await.status, 200);
    web.ask("POST /v1/orders", &lines("operator"), user).await.refuses(403, "forbidden");
    web.ask("POST /v1/orders", &lines("root"), user).await.refuses(503, "no-headmaster");
}
