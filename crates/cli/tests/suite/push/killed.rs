//! Commands, nodes and the headmaster are killed in a swap, a rollback, an abort and a delete. Each is one change of the
//! document, so it has happened or has not, and the same command makes it happen.

use std::process::Child;
use std::time::Duration;

use serde_json::Value as Json;

use super::harm::{Damaged, KEYS, begin, serving, wish};
use super::{build_of, in_words, number_of};
use crate::cluster::{Cluster, Signal};
use crate::observe::{kill_headmaster, until};

/// Which artifacts are listed, and how they stand.
fn standings(cluster: &Cluster) -> Vec<(u64, String)> {
    let listed = until(
        "somebody lists",
        || cluster.run(&["artifact", "list", "words", "--json"]),
        |answer| answer.code == 0,
    );
    let artifacts = listed.json()["stores"][0]["artifacts"].as_array().cloned().unwrap_or_default();
    let standing = |artifact: &Json| {
        (artifact["number"].as_u64().unwrap(), artifact["standing"].as_str().unwrap().to_owned())
    };
    artifacts.iter().map(standing).collect()
}

/// Carries out an order while somebody is killed at some moment of it, and then until it is done.
fn order_under_fire(cluster: &mut Cluster, words: &[&str], after: &[(u64, &str)]) {
    let after: Vec<(u64, String)> =
        after.iter().map(|(number, standing)| (*number, (*standing).to_owned())).collect();
    let before = standings(cluster);
    assert_ne!(before, after);
    for victim in ["command", "node", "headmaster"] {
        // Where it has happened already, this one is refused.
        let mut order: Child = begin(cluster, words);
        // Not a bound on anything: kills shall fall into different moments of the order.
        std::thread::sleep(Duration::from_millis(match victim {
            "command" => 40,
            "node" => 60,
            _ => 20,
        }));
        match victim {
            "command" => order.kill().unwrap(),
            "node" => {
                // The first is the one that is asked.
                cluster.end_node(1, Signal::KILL);
                cluster.start_node_again(1);
            }
            _ => kill_headmaster(cluster),
        }
        order.wait_with_output().unwrap();
        let now = standings(cluster);
        assert!(now == before || now == after, "{words:?}, {victim} killed: {now:?}");
    }
    let done = || {
        if standings(cluster) != after {
            cluster.run(words);
        }
        standings(cluster)
    };
    until(&format!("{words:?} is done"), done, |now| *now == after);
}

fn await_serving(cluster: &Cluster, number: u64) {
    for node in 1..=3 {
        let served = || number_of(&in_words(&cluster.resp(node)).call(&[b"GET", b"word7"]));
        until("each node serves it", served, |served| *served == number);
    }
}

#[test]
#[ignore = "kills at every step, as exploration and simulation do; ./check --full process runs it"]
fn a_swap_a_rollback_an_abort_and_a_delete_happen_or_do_not_whoever_is_killed_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = serving(folder.path());
    cluster.run(&["artifact", "stage", &build_of(folder.path(), 2, KEYS)]).exits(0);
    order_under_fire(&mut cluster, &["artifact", "swap", "words", "2"], &[(1, "kept"), (2, "served")]);
    await_serving(&cluster, 2);
    order_under_fire(&mut cluster, &["artifact", "rollback", "words"], &[(1, "served"), (2, "kept")]);
    await_serving(&cluster, 1);
    let three = Damaged::build(folder.path(), 3);
    wish(&cluster, &three.directory, 3, &[]);
    order_under_fire(&mut cluster, &["artifact", "abort", "words", "3"], &[(1, "served"), (2, "kept")]);
    order_under_fire(&mut cluster, &["artifact", "delete", "words", "2"], &[(1, "served")]);
    await_serving(&cluster, 1);
    // No file stays of what is not listed.
    for node in 1..=3 {
        let directory = cluster.data().join(format!("node-{node}/artifacts/words"));
        let manifests = || {
            let entries = std::fs::read_dir(&directory).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name != "chunks").collect::<Vec<_>>()
        };
        until("one manifest is left", manifests, |names| names.len() == 1 && names[0].starts_with("1-"));
    }
}
