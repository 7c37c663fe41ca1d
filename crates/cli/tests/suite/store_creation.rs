//! Stores that a running cluster gets: they are there on all nodes at once, and after restarts, and on nodes that were
//! down as they were created.

use serde_json::json;

use crate::cluster::Cluster;
use crate::resp::{Redis, Reply};

fn names(cluster: &Cluster) -> Vec<String> {
    let listed = cluster.json(&["store", "list"]);
    let stores = listed["stores"].as_array().unwrap();
    stores.iter().map(|store| store["store"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_store_is_created_while_the_cluster_runs_and_is_there_after_a_restart() {
    let mut cluster = Cluster::with(3, &[]);
    let created = cluster.run(&["store", "create", "carts", "--resolver=siblings", "--reads=monotonic"]);
    let text = created.exits(0).text();
    assert!(text.starts_with("created store carts: N=3 R=2 W=2, concurrent versions are kept\n"), "{text}");
    assert_eq!(names(&cluster), ["carts", "default", "siblings"]);
    cluster.run(&["put", "cart:7", "milk", "-s", "carts"]).exits(0);
    for node in 1..=3 {
        let mut redis = Redis::connect(&cluster.resp(node));
        assert_eq!(redis.call(&[b"TONTINE.STORE", b"carts"]), Reply::Status("OK".to_owned()));
        assert_eq!(redis.call(&[b"GET", b"cart:7"]), Reply::Bulk(Some(b"milk".to_vec())), "node {node}");
    }
    assert_eq!(cluster.run(&["get", "cart:7"]).code, 1, "another store is another set of keys");
    cluster.restart();
    assert_eq!(names(&cluster), ["carts", "default", "siblings"]);
    let text = cluster.run(&["get", "cart:7", "-s", "carts", "-r", "3"]).exits(0).text();
    assert_eq!(text, "milk\n");
}

#[test]
fn a_node_that_was_down_opens_a_new_store_when_it_is_back_and_catches_up() {
    let mut cluster = Cluster::with(3, &[]);
    cluster.kill_node(2);
    let text = cluster.run(&["store", "create", "late"]).exits(0).text();
    assert!(text.contains("n2 has not opened it yet; it will when it can be reached again"), "{text}");
    for key in 0..20 {
        cluster.run(&["put", &format!("key-{key}"), "v", "-s", "late"]).exits(0);
    }
    cluster.start_node_again(2);
    let complete = |cluster: &Cluster| {
        let found = (0..20).map(|key| cluster.run(&["get", &format!("key-{key}"), "-s", "late", "-r", "3"]));
        found.filter(|answer| answer.code == 0).count()
    };
    let begun = std::time::Instant::now();
    while complete(&cluster) < 20 {
        assert!(begun.elapsed() < crate::cluster::PATIENCE, "n2 does not serve the store");
    }
}

#[test]
fn a_store_that_cannot_be_is_refused_with_the_reason_and_changes_nothing() {
    let cluster = Cluster::start();
    let before = cluster.json(&["store", "list"]);
    let exists = cluster.run(&["store", "create", "default"]);
    exists.fails_with("store default exists already");
    let refused = cluster.run(&["store", "create", "default", "-o", "json"]).fails_in_json();
    assert_eq!((&refused["kind"], &refused["code"]), (&json!("store-exists"), &json!("store")));
    assert_eq!(refused["facts"], json!({ "code": "exists", "facts": { "store": "default" } }));
    let wide = cluster.run(&["store", "create", "wide", "--consistency=4,2,2"]);
    wide.fails_with("4 replicas of each key, and a partition of the ring lists 3 nodes; add nodes with");
    cluster.run(&["store", "create", "Wrong"]).fails_with("must be 1 to 64 of a-z 0-9 _ -");
    cluster.run(&["store", "create", "wrong", "--consistency=3,4,2"]).fails_with("1 <= R <= N");
    cluster
        .run(&["store", "create", "wrong", "--value-bytes-max=0"])
        .fails_with("1 to 16777216 bytes, got 0");
    cluster.run(&["store", "create", "wrong", "--siblings-max=65"]).fails_with("1 to 64, got 65");
    cluster.run(&["store", "create", "wrong", "-s", "carts"]).fails_with("the name of the new store");
    assert_eq!(cluster.json(&["store", "list"]), before);
}
