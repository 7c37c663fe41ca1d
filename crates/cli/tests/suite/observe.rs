//! What a cluster tells about itself, for tests that wait until something is so, and what its nodes really hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Client, ClientOptions, StoreHandle};
use model::{Dot, NodeId, Token, VersionSet};
use runtime::Ports;
use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Cluster, PATIENCE, signal};

/// Records of one page.
const PAGE: u32 = 1_000;

/// Looks until what is seen is as it should be.
#[track_caller]
pub(crate) fn until<T: Debug>(what: &str, mut look: impl FnMut() -> T, is_so: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = look();
        if is_so(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "never: {what}; the last look saw {seen:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The reports of all nodes; null where one does not answer.
fn reports(cluster: &Cluster) -> Vec<Json> {
    let document = cluster.run(&["status", "--json"]).json();
    document["nodes"].as_array().unwrap().iter().map(|node| node["report"].clone()).collect()
}

/// The incarnation of a node that answers.
pub(crate) fn incarnation(cluster: &Cluster, node: usize) -> u64 {
    reports(cluster)[node - 1]["incarnation"].as_u64().unwrap()
}

/// How a node is; null while it does not answer.
pub(crate) fn status(cluster: &Cluster, node: usize) -> Json {
    statuses(cluster).swap_remove(node - 1)
}

/// How all nodes are.
pub(crate) fn statuses(cluster: &Cluster) -> Vec<Json> {
    reports(cluster).iter().map(|report| report["status"].clone()).collect()
}

/// Records of each node, tombstones included; nothing while it does not answer.
pub(crate) fn records(cluster: &Cluster) -> Vec<Option<u64>> {
    let sum = |status: &Json| {
        let stores = status["stores"].as_array()?;
        Some(stores.iter().filter_map(|store| store["records"].as_u64()).sum())
    };
    statuses(cluster).iter().map(sum).collect()
}

/// Waits until every node holds this many records.
#[track_caller]
pub(crate) fn await_records(cluster: &Cluster, count: u64) {
    let all = |seen: &Vec<Option<u64>>| seen.iter().all(|records| *records == Some(count));
    until(&format!("{count} records everywhere"), || records(cluster), all);
}

/// Holder, target and number of all hints that wait; nothing while a node does not answer.
pub(crate) fn hints(cluster: &Cluster) -> Option<Vec<(u64, u64, u64)>> {
    let mut found = Vec::new();
    for report in reports(cluster) {
        for hint in report["status"]["hints"].as_array()? {
            let number = |value: &Json| value.as_u64().unwrap();
            found.push((number(&report["node"]), number(&hint["target"]), number(&hint["hints"])));
        }
    }
    Some(found.into_iter().filter(|hint| hint.2 > 0).collect())
}

/// Waits until every node answers and none holds a hint.
#[track_caller]
pub(crate) fn await_no_hints(cluster: &Cluster) {
    until("no hints", || hints(cluster), |found| found.as_ref().is_some_and(Vec::is_empty));
}

/// What each node believes about `of`, by viewer; nodes that do not answer are left out.
fn views(cluster: &Cluster, of: u64) -> Vec<(u64, String)> {
    let answer = cluster.run(&["node", "list", "--all-views", "--json", "--deadline=2s"]).json();
    let state = |view: &Json| {
        let seen = view["nodes"].as_array()?.iter().find(|node| node["node"] == of)?;
        Some((view["node"].as_u64()?, seen["state"].as_str()?.to_owned()))
    };
    answer["views"].as_array().unwrap().iter().filter_map(state).filter(|(viewer, _)| *viewer != of).collect()
}

/// Waits until `viewers` others say one of `states` about a node, and all of them do.
#[track_caller]
pub(crate) fn await_views(cluster: &Cluster, of: u64, states: &[&str], viewers: usize) {
    let all = |views: &Vec<(u64, String)>| {
        views.len() == viewers && views.iter().all(|(_, state)| states.contains(&state.as_str()))
    };
    until(&format!("all say {states:?} about n{of}"), || views(cluster, of), all);
}

/// Waits until everybody knows that everybody is alive.
#[track_caller]
pub(crate) fn await_calm(cluster: &Cluster) {
    for node in 1..=u64::from(cluster.nodes) {
        await_views(cluster, node, &["alive"], usize::from(cluster.nodes) - 1);
    }
}

/// The state of repair at a node.
pub(crate) fn repair(cluster: &Cluster, node: usize) -> Json {
    let document = cluster.run(&["repair", "status", "--json"]).json();
    document["nodes"][node - 1]["repair"].clone()
}

/// Sums over the hash trees of a node's stores; nothing while it does not answer.
pub(crate) fn tree_sum(cluster: &Cluster, node: usize, field: &str) -> Option<u64> {
    let trees = repair(cluster, node)["trees"].clone();
    Some(trees.as_array()?.iter().filter_map(|tree| tree[field].as_u64()).sum())
}

/// A number of a node's metrics: the sum over all labels.
pub(crate) fn metric(cluster: &Cluster, node: usize, name: &str) -> f64 {
    let text = cluster.run(&["metrics", &format!("--from={node}")]).exits(0).text();
    let lines = text.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ') || rest.starts_with('{'))
    });
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Writes keys, all with one value.
pub(crate) fn put(cluster: &Cluster, keys: std::ops::Range<u32>, value: &str) {
    let lines: String = keys.map(|key| format!("key-{key}\t{value}\n")).collect();
    let file = cluster.write("keys.tsv", lines);
    cluster.run(&["load", &file, "--key", "1", "--value", "2"]).exits(0);
}

/// Addresses of all nodes.
pub(crate) fn addresses(cluster: &Cluster) -> Vec<String> {
    (1..=cluster.nodes).map(|node| cluster.native(node)).collect()
}

/// The default store, for a client inside of a runtime.
pub(crate) async fn connect(addresses: Vec<String>) -> StoreHandle {
    // However slow the machine is: a request that takes long has not failed.
    let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let client = Client::connect(&addresses, Ports::os().unwrap(), options).await.unwrap();
    client.store("default").unwrap()
}

/// What one node holds itself of these keys, asked of nobody else.
pub(crate) fn held(cluster: &Cluster, node: u32, keys: &[String]) -> BTreeMap<Bytes, VersionSet> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
        let client = Client::connect(&addresses(cluster), Ports::os().unwrap(), options).await.unwrap();
        let (cluster, store) = (client.cluster(), client.store("default").unwrap());
        let partition = |key: &String| cluster.ring.partition(Token::of(key.as_bytes())).id;
        let partitions: BTreeSet<_> = keys.iter().map(partition).collect();
        let mut found = BTreeMap::new();
        for partition in partitions {
            let mut after = None;
            loop {
                let page = store.scan(NodeId(node), partition, after.take(), PAGE).await.unwrap();
                found.extend(
                    page.records.into_iter().filter(|(key, _)| keys.iter().any(|k| k.as_bytes() == key)),
                );
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        found
    })
}

/// Who wrote what: every dot that any node holds for these keys, with its key and value.
#[derive(Default)]
pub(crate) struct Dots(BTreeMap<(Bytes, Dot), model::Value>);

impl Dots {
    /// Looks at all nodes. No dot may name two writes, also not one of an earlier look.
    #[track_caller]
    pub(crate) fn look(&mut self, cluster: &Cluster, keys: &[String]) {
        for node in 1..=u32::from(cluster.nodes) {
            for (key, set) in held(cluster, node, keys) {
                for version in set.versions() {
                    let known = self.0.entry((key.clone(), version.dot)).or_insert(version.value.clone());
                    assert_eq!(*known, version.value, "{} names two writes of {key:?}", version.dot);
                }
            }
        }
    }

    /// Incarnations under which a node has stamped.
    pub(crate) fn incarnations(&self, node: u32) -> BTreeSet<u64> {
        let stamped = self.0.keys().filter(|(_, dot)| dot.actor.node == NodeId(node));
        stamped.map(|(_, dot)| dot.actor.incarnation).collect()
    }
}

/// The process that holds the office of headmaster.
pub(crate) fn headmaster(cluster: &Cluster) -> u32 {
    let service = cluster.data().join("coordination").display().to_string();
    let candidate = || {
        let words = ["coordination", "show", "/headmaster", "--coordination", &service, "--json"];
        let shown = cluster.run(&words);
        // Where none was ever elected, there is no such document.
        let documents = (shown.code == 0).then(|| shown.json())?["documents"].as_array()?.clone();
        let data = documents.iter().find(|one| one["path"] != "/headmaster")?["data"].as_str()?.to_owned();
        let candidate: Json = serde_json::from_str(&data).ok()?;
        candidate["process"].as_str()?.split(' ').nth(1)?.parse().ok()
    };
    until("a headmaster", candidate, Option::is_some).unwrap()
}

/// Kills the headmaster, and waits for its successor.
pub(crate) fn kill_headmaster(cluster: &Cluster) {
    let before = headmaster(cluster);
    signal(before, Signal::KILL);
    until("another headmaster", || headmaster(cluster), |process| *process != before);
}
