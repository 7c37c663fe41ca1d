//! Pushes and rollbacks that are refused, and the command that the refusal names.

use super::harm::{Damaged, KEYS, await_served, await_state, begin, serving, wish};
use super::{build_of, in_words, number_of};
use crate::cluster::{Cluster, Signal};

/// The words behind `run` in a message.
fn advised<'a>(said: &'a str, begins: &'a str) -> Vec<&'a str> {
    let (_, rest) = said.split_once(&format!("`tontine {begins}")).expect("it says what to run");
    begins
        .split(' ')
        .chain(rest.split_once('`').unwrap().0.split(' '))
        .filter(|word| !word.is_empty())
        .collect()
}

#[test]
fn a_rollback_beside_a_dead_node_is_refused_with_the_command_that_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = serving(folder.path());
    cluster.run(&["artifact", "push", &build_of(folder.path(), 2, KEYS)]).exits(0);
    cluster.end_node(3, Signal::KILL);
    let refused = cluster.run(&["artifact", "rollback", "words"]).exits(2);
    assert!(refused.stderr.contains("n3 does not answer") && !refused.stderr.contains("lack"), "{refused:?}");
    let command = advised(&refused.stderr, "artifact rollback");
    assert_eq!(command, ["artifact", "rollback", "words", "--replicas", "2"]);
    cluster.run(&command).exits(0);
    for node in [1, 2] {
        assert_eq!(number_of(&in_words(&cluster.resp(node)).call(&[b"GET", b"word7"])), 1);
    }
}

/// It once said nothing but that the node refused the connection.
#[test]
fn a_push_that_waits_for_a_dead_node_names_it_and_the_command_that_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = serving(folder.path());
    cluster.end_node(3, Signal::KILL);
    let two = build_of(folder.path(), 2, KEYS);
    let above = "--replicas 4 is above the 3 replicas that store words has of each slice";
    for refused in [&["push", &two][..], &["swap", "words", "1"], &["rollback", "words"]] {
        cluster.run(&[&["artifact"], refused, &["--replicas", "4"]].concat()).fails_with(above);
    }
    let late = cluster.run(&["artifact", "push", &two, "--timeout-s", "3"]).exits(3).stderr;
    assert!(late.contains("it waits for n3: to see what is wrong there, run `"), "{late}");
    assert!(late.contains("tontine doctor`"), "{late}");
    let (_, command) = late.split_once("tontine artifact push ").expect("it says what to run");
    let words: Vec<&str> = command.split_once('`').unwrap().0.split(' ').collect();
    assert_eq!(words, [&two, "--replicas", "2"]);
    cluster.run(&[&["artifact", "push"], &words[..]].concat()).exits(0);
    assert_eq!(number_of(&in_words(&cluster.resp(1)).call(&[b"GET", b"word7"])), 2);
}

/// Its wish was once published, and nodes tried for ever.
#[test]
fn a_source_without_a_readable_manifest_is_refused_before_a_wish_is_published() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::with(3, &["--allow-sources=file:///nowhere"]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    let one = build_of(folder.path(), 1, KEYS);
    for verb in ["push", "stage"] {
        let refused = cluster.run(&["artifact", verb, &one, "--timeout-s", "2"]).exits(2).stderr;
        assert!(refused.contains("cannot read artifact 1 of store words at file://"), "{refused}");
        assert!(refused.contains("nothing was listed"), "{refused}");
    }
    let listed = cluster.json(&["artifact", "list", "words"])["stores"][0]["artifacts"].clone();
    assert_eq!(listed, serde_json::json!([]));
}

/// Each change of the document makes every node say for a moment that it holds nothing by it.
#[test]
fn a_rollback_right_after_another_change_is_not_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = serving(folder.path());
    cluster.run(&["artifact", "push", &build_of(folder.path(), 2, KEYS)]).exits(0);
    for round in 0..6 {
        let change = begin(&cluster, &["store", "create", &format!("more{round}"), "--read-only"]);
        match round % 2 {
            0 => cluster.run(&["artifact", "rollback", "words"]).exits(0),
            _ => cluster.run(&["artifact", "swap", "words", "2"]).exits(0),
        };
        assert!(change.wait_with_output().unwrap().status.success());
    }
}

#[test]
fn a_push_whose_source_has_moved_or_that_was_aborted_goes_live_when_it_is_pushed_again() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = serving(folder.path());
    // The source moves while nodes try.
    let two = Damaged::build(folder.path(), 2);
    wish(&cluster, &two.directory, 2, &["--replicas", "2"]);
    await_state(&cluster, 2, ["failed"; 3]);
    two.mend();
    let moved = format!("{}-elsewhere", two.directory);
    std::fs::rename(&two.directory, &moved).unwrap();
    cluster.run(&["artifact", "push", &moved, "--timeout-s", "0"]);
    await_served(&cluster, 2);
    let artifact = |number: u64| {
        let listed = cluster.json(&["artifact", "list", "words"]);
        let artifacts = listed["stores"][0]["artifacts"].as_array().unwrap().clone();
        artifacts.into_iter().find(|artifact| artifact["number"] == number)
    };
    assert!(artifact(2).unwrap()["source"].as_str().unwrap().ends_with("-elsewhere"));
    // Watching again changes nothing of the wish.
    let three = Damaged::build(folder.path(), 3);
    wish(&cluster, &three.directory, 3, &["--replicas", "2", "--abort-after-s=600"]);
    let wished = artifact(3).unwrap()["push"].clone();
    assert!(wished["replicas"] == 2 && wished["abort_at"].is_u64(), "{wished}");
    wish(&cluster, &three.directory, 3, &[]);
    assert_eq!(artifact(3).unwrap()["push"], wished);
    cluster.run(&["artifact", "abort", "words", "3"]).exits(0);
    let aborted = cluster.run(&["artifact", "push", &three.directory, "--abort-after-s", "0"]).exits(2);
    assert!(aborted.stderr.contains("was aborted"), "{aborted:?}");
    assert!(artifact(3).is_none());
    three.mend();
    cluster.run(&["artifact", "push", &three.directory]).exits(0);
    assert_eq!(number_of(&in_words(&cluster.resp(1)).call(&[b"GET", b"word7"])), 3);
}

#[test]
fn a_store_keeps_as_many_artifacts_as_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = serving(folder.path());
    let kept = cluster.json(&["store", "set", "words", "--artifacts-kept", "2"]);
    assert_eq!((&kept["kept"], &kept["kept_before"]), (&2.into(), &1.into()));
    for number in 2..=4 {
        cluster.run(&["artifact", "push", &build_of(folder.path(), number, 20)]).exits(0);
    }
    let numbers = || {
        let listed = cluster.json(&["artifact", "list", "words"]);
        let numbers = listed["stores"][0]["artifacts"].as_array().unwrap().clone();
        numbers.iter().map(|artifact| artifact["number"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(), [2, 3, 4]);
    for served in [3, 2] {
        cluster.run(&["artifact", "rollback", "words"]).exits(0);
        assert_eq!(number_of(&in_words(&cluster.resp(2)).call(&[b"GET", b"word7"])), served);
    }
    cluster.run(&["artifact", "rollback", "words"]).fails_with("keeps no artifact");
    assert_eq!(numbers(), [2, 3, 4]);
    cluster.run(&["store", "create", "more", "--read-only", "--artifacts-kept", "3"]).exits(0);
    let stores = cluster.json(&["store", "list"])["read_only_stores"].clone();
    assert_eq!((&stores[0]["kept"], &stores[1]["kept"]), (&3.into(), &2.into()), "{stores}");
    cluster.run(&["store", "set", "words", "--artifacts-kept", "7"]).fails_with("7 is not in 1..=6");
    cluster.run(&["store", "set", "default", "--artifacts-kept", "2"]).fails_with("takes writes");
}
