//! Pushes of artifacts upon the one that is served: nodes fetch what changed and make the chunks themselves.

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value as Json;

use super::{VALUE_BYTES, in_words, more_answers, number_of, read_on};
use crate::cluster::{Cluster, PATIENCE, tontine};
use crate::observe::{metric, until};

/// Keys whose values change with each artifact: one in twenty.
const CHANGING: u64 = 125;
/// All the others.
const STILL: u64 = 19 * CHANGING;

/// Builds artifact `number`, upon a parent if there is one. Gives what was built and where.
fn build(folder: &Path, number: u64, parent: Option<&str>) -> (Json, String) {
    let mut records = String::new();
    for key in 0..CHANGING {
        writeln!(records, "word{key}\t{number}:{key:0>VALUE_BYTES$}").unwrap();
    }
    for key in 0..STILL {
        writeln!(records, "still{key}\t0:{key:0>VALUE_BYTES$}").unwrap();
    }
    let input = folder.join(format!("{number}.tsv"));
    std::fs::write(&input, records).unwrap();
    let output = folder.join(format!("words-{number}")).to_str().unwrap().to_owned();
    let (input, number) = (input.to_str().unwrap(), number.to_string());
    let mut words = vec!["artifact", "build", input, "--key", "1", "--value", "2", "-s", "words", "--json"];
    words.extend(["--to", &output, "--number", &number]);
    words.extend(parent.iter().flat_map(|parent| ["--parent", *parent]));
    (tontine(&words).exits(0).json(), output)
}

/// What each node tells of an artifact.
fn told(cluster: &Cluster, number: u64) -> Vec<Json> {
    let listed = cluster.json(&["artifact", "list", "words"]);
    let artifacts = listed["stores"][0]["artifacts"].as_array().cloned().unwrap();
    let found = artifacts.into_iter().find(|artifact| artifact["number"] == number);
    found.and_then(|found| found["nodes"].as_array().cloned()).unwrap_or_default()
}

/// Names of the files of chunks that a node has.
fn files(cluster: &Cluster, node: u64) -> Vec<String> {
    let directory = cluster.data().join(format!("node-{node}")).join("artifacts/words/chunks");
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn every_value_is_of(cluster: &Cluster, node: u16, number: u64) {
    let mut redis = in_words(&cluster.resp(node));
    for key in 0..CHANGING {
        assert_eq!(number_of(&redis.call(&[b"GET", format!("word{key}").as_bytes()])), number, "word{key}");
    }
    for key in (0..STILL).step_by(7) {
        assert_eq!(number_of(&redis.call(&[b"GET", format!("still{key}").as_bytes()])), 0, "still{key}");
    }
}

#[test]
fn a_child_goes_live_and_back_under_reads_and_nodes_fetch_its_deltas_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (_, one) = build(folder.path(), 1, None);
    let (built, two) = build(folder.path(), 2, Some(&one));
    let delta_bytes = built["delta_bytes"].as_f64().unwrap();
    assert!(built["deltas"].as_u64().unwrap() > 5 && built["chunks_same"] != built["chunks"], "{built}");
    assert!(delta_bytes < built["file_bytes"].as_f64().unwrap() * 0.06, "{built}");
    let cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one]).exits(0);
    let came = |node| metric(&cluster, node, "tontine_artifacts_fetched_bytes_total");
    let before = [1, 2, 3].map(came);
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let seen: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let _stops = super::Stops(&stop);
        let readers: Vec<_> = [1, 2, 3]
            .map(|node| {
                let (address, stop, answers) = (cluster.resp(node), &stop, &answers);
                scope.spawn(move || read_on(&address, CHANGING, stop, answers))
            })
            .into();
        more_answers(&answers, 6);
        cluster.run(&["artifact", "push", &two]).exits(0);
        more_answers(&answers, 6);
        cluster.run(&["artifact", "rollback", "words"]).exits(0);
        more_answers(&answers, 6);
        cluster.run(&["artifact", "swap", "words", "2"]).exits(0);
        more_answers(&answers, 6);
        for node in 1..=3 {
            let mut redis = in_words(&cluster.resp(node));
            let served = || number_of(&redis.call(&[b"GET", b"word1"]));
            until("each node serves the last", served, |number| *number == 2);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    for seen in &seen {
        assert!(seen.len() <= 4 && (seen[0], seen.last()) == (1, Some(&2)), "{seen:?}");
    }
    let artifacts = cluster.json(&["artifact", "list", "words"])["stores"][0]["artifacts"].clone();
    assert_eq!((&artifacts[0]["parent"], &artifacts[1]["parent"]), (&Json::Null, &1.into()), "{artifacts}");
    for node in told(&cluster, 2) {
        let fetched = node["bytes_fetched"].as_f64().unwrap();
        assert_eq!(node["bytes_fetched"], node["bytes_fetched_as_deltas"], "{node}");
        assert!(
            fetched > 0.9 * delta_bytes && fetched <= 1.1 * delta_bytes,
            "{delta_bytes} of deltas: {node}"
        );
        assert_eq!((&node["bytes"], &node["state"]), (&node["bytes_total"], &Json::from("staged")), "{node}");
    }
    for node in 1..=3 {
        // With the lists of blocks, from wherever.
        let share = (came(node) - before[node - 1]) / delta_bytes;
        println!("n{node} fetched {share:.4} times the bytes of the deltas, {delta_bytes}");
        assert!(share <= 1.1, "n{node}");
        assert!(metric(&cluster, node, "tontine_artifacts_merged_bytes_total") > 15e6);
        assert_eq!(metric(&cluster, node, "tontine_artifacts_unused_deltas_total"), 0.0);
        every_value_is_of(&cluster, node as u16, 2);
    }
}

#[test]
fn a_damaged_or_interrupted_delta_blocks_no_push() {
    let folder = tempfile::tempdir().unwrap();
    let (_, one) = build(folder.path(), 1, None);
    let (built, two) = build(folder.path(), 2, Some(&one));
    let mut cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one]).exits(0);
    // One delta is damaged at the source.
    let shown = tontine(&["artifact", "show", &two, "--json"]).exits(0).json();
    let mut deltas =
        shown["chunks"].as_array().unwrap().iter().filter_map(|chunk| chunk["delta"]["digest"].as_str());
    let damaged = Path::new(&two).join("chunks").join(deltas.next_back().unwrap());
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    // A node is killed as soon as it merges.
    let mut push = cluster.command(&["artifact", "push", &two]).spawn().unwrap();
    let begun = Instant::now();
    while !files(&cluster, 2).iter().any(|name| name.ends_with(".merging")) {
        assert!(begun.elapsed() < PATIENCE, "node 2 merges nothing");
    }
    cluster.end_node(2, Signal::KILL);
    every_value_is_of(&cluster, 1, served(&cluster));
    cluster.start_node_again(2);
    assert!(push.wait().unwrap().success());
    for node in 1..=3 {
        let number = || number_of(&in_words(&cluster.resp(node)).call(&[b"GET", b"word1"]));
        until("the child is served", number, |number| *number == 2);
        every_value_is_of(&cluster, node, 2);
    }
    let events = cluster.run(&["events", "--json"]).exits(0).text();
    assert!(events.matches("artifact-delta-unused").count() >= 2, "{events}");
    for node in told(&cluster, 2).iter().filter(|node| node["node"] != 2) {
        let (all, deltas) = (&node["bytes_fetched"], &node["bytes_fetched_as_deltas"]);
        assert!(all.as_f64().unwrap() > deltas.as_f64().unwrap() && deltas.as_f64().unwrap() > 0.0, "{node}");
    }
    // What merges and deltas have left goes.
    let names = |node| files(&cluster, node);
    let chunks = built["chunks"].as_u64().unwrap() as usize;
    for node in 1..=3 {
        until(
            "only chunks are left",
            || names(node),
            |names| names.iter().all(|name| name.len() == 32) && names.len() <= 2 * chunks,
        );
    }
}

fn served(cluster: &Cluster) -> u64 {
    number_of(&in_words(&cluster.resp(1)).call(&[b"GET", b"word1"]))
}
