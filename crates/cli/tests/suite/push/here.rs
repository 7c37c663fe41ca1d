//! What happens to an artifact's files under a node, and what a node may have of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::{build_of, in_words, number_of};
use crate::cluster::{Cluster, PATIENCE};
use crate::observe::{metric, until};
use crate::resp::{Redis, Reply};

/// Keys of a table: enough for more than one chunk.
const KEYS: u64 = 400;
const FETCHED: &str = "tontine_artifacts_fetched_bytes_total";

/// The files of a directory with their bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    paths.filter_map(|path| Some((path.clone(), std::fs::read(&path).ok()?))).collect()
}

fn artifacts_of(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.data().join(format!("node-{node}/artifacts"))
}

fn state(cluster: &Cluster, node: usize, number: u64) -> String {
    let listed = cluster.json(&["artifact", "list", "words"]);
    let artifacts = listed["stores"][0]["artifacts"].as_array().cloned().unwrap_or_default();
    let of_this = artifacts.into_iter().find(|artifact| artifact["number"] == number).unwrap_or_default();
    of_this["nodes"][node - 1]["state"].as_str().unwrap_or_default().to_owned()
}

/// Every key has its value, of this artifact.
fn all_are_of(redis: &mut Redis, number: u64) {
    for key in 0..KEYS {
        assert_eq!(number_of(&redis.call(&[b"GET", format!("word{key}").as_bytes()])), number, "word{key}");
    }
}

#[test]
fn served_files_that_are_cut_longer_or_removed_under_a_node_cost_no_answer_and_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let one = build_of(folder.path(), 1, KEYS);
    let cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one]).exits(0);
    let artifacts = artifacts_of(&cluster, 3);
    let chunks = artifacts.join("words/chunks");
    let sound = files(&chunks);
    assert!(sound.len() > 1, "{:?}", sound.keys());
    let (first, last) = (sound.keys().next().unwrap().clone(), sound.keys().last().unwrap().clone());
    let mut redis = in_words(&cluster.resp(3));
    all_are_of(&mut redis, 1);
    let set_length = |path: &Path, length: u64| {
        std::fs::File::options().write(true).open(path).unwrap().set_len(length).unwrap();
    };
    let harms: [(&str, &dyn Fn()); 4] = [
        ("a file is removed", &|| std::fs::remove_file(&first).unwrap()),
        ("a file is cut", &|| set_length(&last, 100)),
        ("a file is longer", &|| set_length(&first, sound[&first].len() as u64 + 1)),
        ("the directory is removed", &|| std::fs::remove_dir_all(&artifacts).unwrap()),
    ];
    for (what, harm) in harms {
        harm();
        all_are_of(&mut redis, 1);
        until(what, || files(&chunks) == sound, |same| *same);
        all_are_of(&mut redis, 1);
    }
    assert_eq!(state(&cluster, 3, 1), "staged");
}

#[test]
fn a_list_tells_how_long_a_swap_took_to_the_last_node_unless_one_has_started_since() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &build_of(folder.path(), 1, KEYS)]).exits(0);
    let listed = |cluster: &Cluster| cluster.json(&["artifact", "list", "words"])["stores"][0].clone();
    let known = until("all nodes tell", || listed(&cluster), |store| store["swap_ms"].is_u64());
    assert!(
        known["artifacts"][0]["nodes"].as_array().unwrap().iter().all(|node| node["serving_ms"].is_u64())
    );
    let text = cluster.run(&["artifact", "list", "words"]).exits(0).text();
    assert!(text.starts_with("store words (N=3) serves artifact 1, on the last node "), "{text}");
    cluster.end_node(2, Signal::TERM);
    cluster.start_node_again(2);
    let store = until(
        "it is back",
        || listed(&cluster),
        |store| store["artifacts"][0]["nodes"][1]["state"] == "staged",
    );
    assert!(
        store["swap_ms"].is_null() && store["artifacts"][0]["nodes"][1]["serving_ms"].is_null(),
        "{store}"
    );
}

/// The source is gone and no other node has the table, so nobody can answer; but nobody says that there is nothing.
#[test]
fn nodes_whose_artifacts_are_gone_say_not_here_and_never_absent() {
    let folder = tempfile::tempdir().unwrap();
    let one = build_of(folder.path(), 1, KEYS);
    let mut cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one]).exits(0);
    let away = format!("{one}-away");
    std::fs::rename(&one, &away).unwrap();
    cluster.stop();
    (1..=3).for_each(|node| std::fs::remove_dir_all(artifacts_of(&cluster, node)).unwrap());
    cluster.start_again();
    for node in 1..=3 {
        until("a node lacks it and knows", || state(&cluster, node, 1), |state| state == "failed");
        let mut redis = in_words(&cluster.resp(node as u16));
        for key in (0..KEYS).step_by(40) {
            let reply = redis.call(&[b"GET", format!("word{key}").as_bytes()]);
            assert!(matches!(reply, Reply::Error(_)), "word{key} at node {node}: {reply:?}");
        }
    }
    let refused = cluster.run(&["get", "word7", "-s", "words"]).exits(2);
    let says = |words: &str| refused.stderr.contains(words);
    assert!(says("artifact-not-here") && says("n1 does not hold the artifact"), "{}", refused.stderr);
    std::fs::rename(&away, &one).unwrap();
    for node in 1..=3 {
        until("a node has it again", || state(&cluster, node, 1), |state| state == "staged");
        all_are_of(&mut in_words(&cluster.resp(node as u16)), 1);
    }
}

#[test]
fn a_table_above_what_a_node_may_hold_is_refused_there_before_its_first_byte_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (build_of(folder.path(), 1, KEYS), build_of(folder.path(), 2, KEYS));
    let mut cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one]).exits(0);
    let there: usize = files(&Path::new(&one).join("chunks")).values().map(Vec::len).sum();
    let limit = there + there / 2;
    cluster.end_node(3, Signal::TERM);
    cluster.start_node_with_words(3, &[&format!("--artifact-bytes-max={limit}")]);
    cluster.run(&["artifact", "push", &two, "--replicas", "2"]).exits(0);
    until("the third node refuses it", || state(&cluster, 3, 2), |state| state == "failed");
    let listed = cluster.run(&["artifact", "list", "words"]).exits(0).text();
    let needs =
        format!("n3 does not fetch artifact 2 of store words: it needs {there} bytes, artifacts take ");
    let allowed = format!(
        "and {limit} bytes are allowed; delete artifacts of the store, or start the node with a greater"
    );
    assert!(listed.contains(&needs) && listed.contains(&allowed), "{listed}");
    assert_eq!(metric(&cluster, 3, FETCHED), 0.0, "not one byte of it was fetched");
    assert_eq!(
        files(&artifacts_of(&cluster, 3).join("words/chunks")).len(),
        files(&Path::new(&one).join("chunks")).len()
    );
    let found = cluster.run(&["doctor", "--json"]).exits(1).text();
    assert!(found.contains("artifact-over-limit"), "{found}");
    all_are_of(&mut in_words(&cluster.resp(3)), 2);
    // What is here stays, and is served again.
    cluster.run(&["artifact", "rollback", "words"]).exits(0);
    until(
        "all nodes serve the first one",
        || number_of(&in_words(&cluster.resp(3)).call(&[b"GET", b"word7"])),
        |number| *number == 1,
    );
    cluster.run(&["artifact", "swap", "words", "2", "--replicas", "2"]).exits(0);
    cluster.run(&["artifact", "delete", "words", "1"]).exits(0);
    until("there is room for it", || state(&cluster, 3, 2), |state| state == "staged");
    assert!(metric(&cluster, 3, FETCHED) >= there as f64, "within {PATIENCE:?}");
    all_are_of(&mut in_words(&cluster.resp(3)), 2);
}
