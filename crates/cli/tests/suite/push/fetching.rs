//! How artifacts come to a node: from where it was when it was killed, and from replicas when the source is gone.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rustix::process::Signal;

use super::{KEYS, build, in_words, number_of};
use crate::cluster::Cluster;
use crate::observe::{metric, until};

const FETCHED: &str = "tontine_artifacts_fetched_bytes_total";
/// What a node may fetch in a second here, so that a fetch can be killed under way, also where looking takes seconds.
const CEILING: &str = "--fetch-ceiling=2097152";
/// Bytes that may be under way when a node is killed, in four chunks of which each has a block that is not verified yet.
const UNDER_WAY: u64 = 4 << 20;

fn state(cluster: &Cluster, node: usize) -> String {
    let listed = cluster.json(&["artifact", "list", "words"]);
    listed["stores"][0]["artifacts"][0]["nodes"][node - 1]["state"].as_str().unwrap_or_default().to_owned()
}

fn bytes_below(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    files.filter(std::fs::Metadata::is_file).map(|file| file.len()).sum()
}

fn served_at(cluster: &Cluster, node: u16) -> u64 {
    number_of(&in_words(&cluster.resp(node)).call(&[b"GET", b"word7"]))
}

#[test]
fn a_node_that_is_killed_in_mid_fetch_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let one = build(folder.path(), 1);
    let total = bytes_below(&Path::new(&one).join("chunks"));
    let mut cluster = Cluster::with(3, &[CEILING]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one, "--timeout-s", "0"]);
    let fetched = |cluster: &Cluster| metric(cluster, 2, FETCHED) as u64;
    let before = until("half of it is there", || fetched(&cluster), |bytes| *bytes >= total / 2);
    assert!(before < total, "it is under way: {before} of {total} bytes");
    cluster.end_node(2, Signal::KILL);
    cluster.start_node_again(2);
    until("the killed node has all of it", || state(&cluster, 2), |state| state == "staged");
    let again = fetched(&cluster);
    assert!(again > 0 && again <= total - before + UNDER_WAY, "{again} more after {before} of {total} bytes");
    let served = || cluster.json(&["artifact", "list", "words"])["stores"][0]["served"].clone();
    until("it is served", served, |number| *number == 1);
    assert_eq!(served_at(&cluster, 2), 1);
}

#[test]
fn a_node_without_its_artifacts_gets_them_from_replicas_when_the_source_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let one = build(folder.path(), 1);
    let mut cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one]).exits(0);
    assert!(metric(&cluster, 3, FETCHED) > (KEYS * 1000) as f64, "a node with N = 3 of 3 has all of it");
    std::fs::remove_dir_all(&one).unwrap();
    cluster.end_node(3, Signal::TERM);
    let artifacts = cluster.data().join("node-3/artifacts");
    assert!(artifacts.is_dir(), "{}", artifacts.display());
    std::fs::remove_dir_all(&artifacts).unwrap();
    cluster.start_node_again(3);
    until("the node has all of it again", || state(&cluster, 3), |state| state == "staged");
    assert_eq!(served_at(&cluster, 3), 1);
    let of_replicas = |node| metric(&cluster, node, "tontine_artifacts_given_bytes_total");
    let given = of_replicas(1) + of_replicas(2);
    let fetched = metric(&cluster, 3, FETCHED);
    assert!(
        given > 0.0 && fetched > (KEYS * 1000) as f64,
        "{given} bytes were given by others, {fetched} taken"
    );
    // One that is damaged where it lies is replaced by a replica's, too.
    let chunks = artifacts.join("words/chunks");
    let chunk = std::fs::read_dir(&chunks).unwrap().next().unwrap().unwrap().path();
    let sound = std::fs::read(&chunk).unwrap();
    let mut flipped = sound.clone();
    flipped.iter_mut().for_each(|byte| *byte ^= 1);
    // In place: cutting a file that is mapped is another harm.
    File::options().write(true).open(&chunk).unwrap().write_all(&flipped).unwrap();
    let read = || {
        let mut redis = in_words(&cluster.resp(3));
        for key in (0..KEYS).step_by(5) {
            assert_eq!(number_of(&redis.call(&[b"GET", format!("word{key}").as_bytes()])), 1);
        }
        std::fs::read(&chunk).is_ok_and(|bytes| bytes == sound)
    };
    until("the damaged chunk is replaced", read, |same| *same);
}
