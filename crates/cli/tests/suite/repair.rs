//! Replicas that come back to the same content by themselves, on real processes and real files.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::cluster::{Cluster, PATIENCE};

/// Three nodes that compare every second.
fn cluster() -> Cluster {
    Cluster::with(3, &["--repair-period-s=1", "--durability=always"])
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How repair stands at a node.
fn repair(cluster: &Cluster, node: usize) -> Json {
    let document = cluster.run(&["repair", "status", "--json"]).json();
    document["nodes"][node - 1].clone()
}

/// Sums over the stores of a node.
fn tree_sum(cluster: &Cluster, node: usize, field: &str) -> u64 {
    let trees = repair(cluster, node)["trees"].clone();
    trees.as_array().into_iter().flatten().filter_map(|tree| tree[field].as_u64()).sum()
}

fn records(cluster: &Cluster, node: usize) -> u64 {
    let status = cluster.run(&["status", "--json"]).json();
    let stores = status["nodes"][node - 1]["status"]["stores"].clone();
    stores.as_array().into_iter().flatten().filter_map(|store| store["records"].as_u64()).sum()
}

fn put(cluster: &Cluster, keys: std::ops::Range<u32>, value: &str) {
    let lines: String = keys.map(|key| format!("key-{key}\t{value}\n")).collect();
    let file = cluster.write(&format!("{}.tsv", value.replace(' ', "-")), lines);
    cluster.run(&["load", &file, "--key", "1", "--value", "2"]).exits(0);
}

/// Files of a node's default store that hold records.
fn segments(cluster: &Cluster, node: usize) -> Vec<PathBuf> {
    let store = cluster.data().join(format!("node-{node}/stores/default"));
    let files = std::fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|kind| kind == "log" || kind == "compacted"))
        .collect();
    files.sort();
    files
}

#[test]
fn a_flipped_bit_in_a_data_file_is_found_and_repaired_from_a_replica() {
    let cluster = cluster();
    put(&cluster, 0..100, "a value that is long enough to be found");
    until("all replicas", || (1..=3).all(|node| records(&cluster, node) == 100));
    let file = segments(&cluster, 2).pop().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let wanted = b"long enough";
    let at = bytes.windows(wanted.len()).position(|window| window == wanted).unwrap();
    bytes[at] ^= 4;
    {
        use std::os::unix::fs::FileExt;
        // In place: the node has the file open.
        let open = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        open.write_all_at(&bytes[at..=at], at as u64).unwrap();
    }
    cluster.run(&["repair", "start", "--scrub"]).exits(0);
    until("the record is repaired", || tree_sum(&cluster, 2, "repaired_records_total") == 1);
    assert_eq!(repair(&cluster, 2)["scrub"]["corrupt_records_total"], 1);
    assert_eq!(records(&cluster, 2), 100);
    // A second look finds nothing.
    let passes = || repair(&cluster, 2)["scrub"]["corrupt_records_total"].clone();
    cluster.run(&["repair", "start", "--scrub"]).exits(0);
    for key in 0..100 {
        cluster.run(&["get", &format!("key-{key}")]).exits(0);
    }
    assert_eq!(passes(), 1);
}

#[test]
fn operators_see_how_repair_stands_and_can_stop_and_start_it() {
    let cluster = cluster();
    put(&cluster, 0..10, "v");
    cluster.run(&["repair", "stop"]).exits(0);
    assert!((1..=3).all(|node| repair(&cluster, node)["stopped"] == true));
    cluster.run(&["repair", "start", "--store", "default", "--partition", "7"]).exits(0);
    until("every node has compared one partition", || {
        (1..=3).all(|node| {
            let peers = repair(&cluster, node)["peers"].clone();
            let peers = peers.as_array().cloned().unwrap_or_default();
            peers.len() == 2 && repair(&cluster, node)["stopped"] == false
        })
    });
    let text = cluster.run(&["repair", "status"]).exits(0).text();
    assert!(text.contains("NODE") && text.contains("n3"), "{text}");
    cluster.run(&["repair", "start", "--store", "nowhere"]).fails_with("nowhere");
}

#[test]
fn a_clean_stop_remembers_the_hash_trees_and_a_crash_has_them_counted() {
    let mut cluster = Cluster::with(1, &["--repair-period-s=1"]);
    put(&cluster, 0..300, "v");
    cluster.stop();
    assert!(cluster.data().join("node-1/trees").exists());
    cluster.start_again();
    assert!(!cluster.data().join("node-1/trees").exists(), "nobody finds them twice");
    assert_eq!(tree_sum(&cluster, 1, "doubtful"), 0);
    cluster.run(&["repair", "start", "--scrub"]).exits(0);
    let read = || repair(&cluster, 1)["scrub"]["wrong_leaves_total"].as_u64();
    until("the scrub has answered", || read() == Some(0));
}
