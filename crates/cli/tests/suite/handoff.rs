//! Hints and deletes between real processes: nodes are killed and started again, and everything arrives, once.

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Cluster, tontine};
use crate::observe::{
    await_calm, await_no_hints, await_records, await_views, held, put, records, statuses, until,
};
use crate::traffic::{CLIENTS, Traffic};

/// Where keys lie: key, replicas, fallbacks.
fn routes(cluster: &Cluster, keys: usize) -> Vec<(String, Vec<u64>, Vec<u64>)> {
    let keys: Vec<String> = (0..keys).map(|number| format!("key-{number}")).collect();
    let mut words = vec!["route"];
    words.extend(keys.iter().map(String::as_str));
    let answer = cluster.json(&words);
    let nodes = |value: &Json| value.as_array().unwrap().iter().map(|node| node.as_u64().unwrap()).collect();
    let found = keys.into_iter().zip(answer.as_array().unwrap());
    found.map(|(key, route)| (key, nodes(&route["replicas"]), nodes(&route["fallbacks"]))).collect()
}

/// The state of collection at each node; null while it does not answer.
fn collections(cluster: &Cluster) -> Vec<Json> {
    statuses(cluster).iter().map(|status| status["collection"].clone()).collect()
}

#[test]
fn a_write_reaches_its_replica_although_the_holder_of_its_hint_dies_before_delivery() {
    let mut cluster = Cluster::with(5, &[]);
    await_calm(&cluster);
    let routes = routes(&cluster, 200);
    let (_, replicas, fallbacks) = &routes[0];
    let (target, holder) = (replicas[0], fallbacks[0]);
    let keys: Vec<String> = routes
        .iter()
        .filter(|(_, replicas, fallbacks)| replicas.contains(&target) && fallbacks[0] == holder)
        .map(|(key, ..)| key.clone())
        .collect();
    let (target_node, holder_node) = (target as usize, holder as usize);
    cluster.end_node(target_node, Signal::KILL);
    await_views(&cluster, target, &["down"], 4);
    for key in &keys {
        cluster.run(&["put", key, "kept"]).exits(0);
    }
    let all_held = |found: &Vec<Json>| {
        let hints = found[holder_node - 1]["hints"].as_array().cloned().unwrap_or_default();
        hints.iter().any(|hint| hint["target"] == target && hint["hints"] == keys.len())
    };
    until("the fallback holds all hints", || statuses(&cluster), all_held);
    cluster.end_node(holder_node, Signal::KILL);
    cluster.start_node_again(target_node);
    await_views(&cluster, target, &["alive"], 3);
    cluster.start_node_again(holder_node);
    await_no_hints(&cluster);
    let here = held(&cluster, target as u32, &keys);
    for key in &keys {
        let values = here.get(key.as_bytes()).map(|set| set.versions()).unwrap_or_default();
        let kept = model::Value::Present("kept".into());
        assert!(matches!(values, [version] if version.value == kept), "{key} at n{target}: {values:?}");
    }
}

/// The deletion and the node's old records meet when it is back; nothing may be forgotten before that.
#[test]
fn keys_deleted_while_a_replica_was_down_stay_deleted_and_leave_no_tombstone_when_it_is_back() {
    let mut cluster = Cluster::with(3, &[]);
    put(&cluster, 0..20, "old");
    await_records(&cluster, 20);
    cluster.end_node(3, Signal::KILL);
    let keys: Vec<String> = (0..20).map(|number| format!("key-{number}")).collect();
    let words: Vec<&str> = std::iter::once("delete").chain(keys.iter().map(String::as_str)).collect();
    cluster.run(&words).exits(0);
    until("tombstones wait for the third node", || collections(&cluster), |seen| seen[0]["waits_for"] == 3);
    assert_eq!(records(&cluster), [Some(20), Some(20), None], "nothing is forgotten");
    let advice = cluster.run(&["doctor"]).exits(1).text();
    assert!(advice.contains("20 tombstones wait for n3: "), "{advice}");
    let shown = cluster.run(&["status"]).exits(1).text();
    let cells: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let column = |title: &str| {
        let heads = cells.iter().find(|cells| cells.first() == Some(&"NODE")).expect("a table");
        heads.iter().position(|head| *head == title).unwrap()
    };
    let first = cells.iter().find(|cells| cells.first() == Some(&"n1")).unwrap();
    assert_eq!((first[column("RECORDS")], first[column("TOMBSTONES")]), ("0", "20"), "{shown}");

    cluster.start_node_again(3);
    let none_left = |seen: &Vec<Json>| seen.iter().all(|collection| collection["tombstones"] == 0);
    until("no tombstone is left", || collections(&cluster), none_left);
    await_records(&cluster, 0);
    await_no_hints(&cluster);
    for node in 1..=3 {
        for key in ["key-0", "key-19"] {
            cluster.run(&["get", key, "--connect", &cluster.native(node)]).exits(1);
        }
    }
    assert_eq!(held(&cluster, 3, &keys).len(), 0);
    cluster.run(&["put", "key-0", "new"]).exits(0);
    assert_eq!(cluster.run(&["get", "key-0"]).exits(0).text(), "new\n");
}

/// Ends three of five nodes, one after the other, and starts each again. The puts of unknown outcome.
fn restart_three_of_five(signal: Signal) -> Vec<String> {
    let mut cluster = Cluster::with(5, &[]);
    await_calm(&cluster);
    let traffic = Traffic::start(&cluster);
    for node in 1..=3 {
        traffic.await_more(300);
        cluster.end_node(node, signal);
        traffic.await_more(300);
        cluster.start_node_again(node);
        await_calm(&cluster);
    }
    traffic.await_more(300);
    let heard = traffic.end();
    assert_eq!(heard.failed, Vec::<String>::new());
    await_no_hints(&cluster);
    heard.check(&cluster);
    heard.unknown
}

#[test]
fn three_of_five_nodes_restarted_one_by_one_under_load_fail_no_request_and_leave_none_in_doubt() {
    let unknown = restart_three_of_five(Signal::TERM);
    // A node that stops answers what it has taken in, and whoever heard that it stops asks it nothing more.
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn three_of_five_nodes_killed_one_by_one_under_load_fail_no_request() {
    let unknown = restart_three_of_five(Signal::KILL);
    assert!(unknown.len() <= 3 * CLIENTS, "{unknown:?}: more than nodes had under way when they were killed");
}

/// What the benchmark shows is for reading; that it comes to its end is for testing.
#[test]
#[ignore = "a benchmark of seconds; ./check --full process runs it"]
fn the_benchmark_of_handoff_kills_a_node_brings_it_back_and_compares() {
    let words = "bench handoff --before 2 --away 2 --after 6 --records 300 --connections 2 --quiet --json";
    let report = tontine(&words.split(' ').collect::<Vec<_>>());
    let report = report.json()["scenario"].clone();
    let figure =
        |name: &str| report["figures"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {report}"));
    assert!(figure("away_s") >= 2.0 && figure("keys_compared") > 0.0, "{report}");
    assert_eq!(figure("requests_failed"), 0.0, "{report}");
}
