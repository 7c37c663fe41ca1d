//! Who ordered what, and who was refused: the audit log of nodes that run as processes.

use serde_json::Value as Json;

use super::*;
use crate::observe::until;

impl Closed {
    /// The lines of all nodes' audit logs.
    fn audited(&self) -> Vec<Json> {
        let file = |node: u32| self.cluster.data().join(format!("log/node-{node}.audit.jsonl"));
        let text: String =
            (1..=3).map(|node| std::fs::read_to_string(file(node)).unwrap_or_default()).collect();
        text.lines().map(|line| serde_json::from_str(line).expect("each line is a document")).collect()
    }

    /// Waits until a line says all of this.
    fn await_audited(&self, facts: &[(&str, &str)]) -> Json {
        let says = |line: &Json| facts.iter().all(|(name, value)| line[*name] == *value);
        let found = until(
            &format!("a line with {facts:?}"),
            || self.audited().into_iter().find(says),
            Option::is_some,
        );
        found.unwrap()
    }
}

#[test]
fn orders_and_refusals_are_written_down_with_who_gave_them_and_from_where() {
    let closed = Closed::start();
    let shop = closed.user("shop", &["read:default/u:"]);
    closed.run(&["store", "create", "carts"]).exits(0);
    closed.run(&["store", "create", "carts"]).fails_with("carts");
    closed.run_with(Some(&shop), &["store", "create", "mine"]).fails_with("operate");
    closed.run_with(Some(&shop), &["get", "hidden-key"]).fails_with("forbidden");
    closed.run_with(None, &["get", "u:1"]).fails_with("has given no secret");

    let user = closed.await_audited(&[("event", "order"), ("order", "user")]);
    assert_eq!(user["what"], "create user shop with read:default/u:");
    let created = [("order", "create-store"), ("who", "user root"), ("outcome", "done")];
    let line = closed.await_audited(&created);
    assert!(line["what"].as_str().unwrap().starts_with("create store carts with N=3"), "{line}");
    assert!(line["id"].as_u64() > user["id"].as_u64() && line["generation"].as_u64() > Some(1), "{line}");
    assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:") && line["door"] == "native", "{line}");
    let line = closed.await_audited(&[("order", "create-store"), ("outcome", "refused")]);
    assert!(!line["code"].is_null() && line["why"].as_str().unwrap().contains("carts"), "{line}");
    let root = closed.tls("root.secret").display().to_string();
    let words = ["-H", "Content-Type: application/json", "-d", r#"{"verb":"weigh","node":2,"weight":200}"#];
    assert_eq!(closed.curl(Some(&root), "/v1/orders", &words).0, "200");
    closed.await_audited(&[("order", "weigh"), ("door", "http"), ("who", "user root"), ("outcome", "done")]);
    let order = [("event", "refusal"), ("who", "user shop"), ("what", "order-give"), ("code", "forbidden")];
    let line = closed.await_audited(&order);
    assert!(line["why"].as_str().unwrap().contains("has not the right operate"), "{line}");
    let line = closed.await_audited(&[("who", "user shop"), ("code", "forbidden"), ("what", "replica-get")]);
    assert!(line["why"].as_str().unwrap().ends_with("read:default") && line["from"] == "127.0.0.1", "{line}");
    closed.await_audited(&[("who", "nobody"), ("code", "unauthenticated")]);

    let text: String = closed.audited().iter().map(Json::to_string).collect();
    let secret = std::fs::read_to_string(&shop).unwrap();
    let digest: String = runtime::secret::digest_of(secret.trim().as_bytes()).into();
    for hidden in ["hidden-key", "tontine_", secret.trim(), &digest] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
}

#[test]
fn a_cluster_that_wants_no_audit_log_has_none() {
    let cluster = Cluster::with(1, &["--no-audit-log"]);
    cluster.run(&["store", "create", "carts"]).exits(0);
    assert!(!cluster.data().join("log/node-1.audit.jsonl").exists());
    drop(cluster);
    let cluster = Cluster::with(1, &[]);
    cluster.run(&["store", "create", "carts"]).exits(0);
    let file = cluster.data().join("log/node-1.audit.jsonl");
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    let line = until("the order is written down", read, |text| text.contains("create store carts"));
    assert!(line.contains(r#""who":"anyone","says":""#), "{line}");
}
