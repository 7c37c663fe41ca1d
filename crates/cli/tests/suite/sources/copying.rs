//! Artifacts are built here, copied to S3 and HDFS, proved there, and pushed from there to three nodes.

use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;

use super::servers::{ACCESS_KEY, Hdfs, Nginx, S3, SECRET_KEY, free_port};
use crate::cluster::{Answer, Cluster, command};
use crate::observe::{metric, until};
use crate::push::{KEYS, VALUE_BYTES, build, in_words};
use crate::resp::Reply;

/// What a node may fetch in a second, so that a fetch can be killed half way.
const CEILING: &str = "--fetch-ceiling=4194304";
const FETCHED: &str = "tontine_artifacts_fetched_bytes_total";

/// A place behind a network, and what programs need to use it.
struct Place {
    /// A URL without a slash at its end, below which nothing is yet.
    url: String,
    environment: Vec<(&'static str, &'static str)>,
}

impl Place {
    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.url)
    }

    fn run(&self, words: &[&str]) -> Answer {
        let mut command = command(words);
        command.envs(self.environment.iter().copied()).stdin(Stdio::null());
        Answer::of(command.output().unwrap())
    }

    /// Copies, and says how many files there are and how many were sent.
    fn copy(&self, from: &str, to: &str) -> (u64, u64) {
        let copied = self.run(&["artifact", "copy", from, to, "--json"]).exits(0).json();
        (copied["files"].as_u64().unwrap(), copied["files_sent"].as_u64().unwrap())
    }
}

/// Copies that are broken off, repeated, refused, and of a damaged artifact.
fn copies_are_whole_or_not_there(place: &Place, folder: &Path, one: &str, two: &str) {
    let to = place.at("words-1");
    place.run(&["artifact", "show", &to]).fails_with("holds no artifact");
    // A source that is slow enough for a copy to be killed half way.
    let slow = Nginx::with(folder, free_port(), "limit_rate 4m; limit_rate_after 1m;");
    let mut words = command(&["artifact", "copy", &slow.url("words-1"), &to, "--jobs", "1"]);
    words.envs(place.environment.iter().copied()).stdin(Stdio::null()).stderr(Stdio::null());
    let mut copying = words.spawn().unwrap();
    let asked = || {
        let log = slow.requests();
        log.lines().filter(|line| line.contains("GET /words-1/chunks/")).count()
    };
    // Each chunk is asked for twice: the list of its blocks, and the rest. So two are there for sure.
    until("some chunks are there", asked, |count| *count >= 6);
    copying.kill().unwrap();
    copying.wait().unwrap();
    place.run(&["artifact", "show", &to]).fails_with("holds no artifact");
    let (files, sent) = place.copy(one, &to);
    assert!(sent > 0 && sent + 2 <= files, "{sent} of {files} were sent again");
    assert_eq!(place.copy(one, &to), (files, 0), "nothing is sent twice");
    let told = place.run(&["artifact", "check", &to]).exits(0).text();
    assert!(told.contains("sound"), "{told}");
    place.run(&["artifact", "copy", two, &to]).fails_with("holds artifact 1 of store words already");
    // From there to another place there, and back here.
    let (other, back) = (place.at("deeper/words-1"), folder.join("back"));
    assert_eq!(place.copy(&to, &other), (files, files));
    place.copy(&other, back.to_str().unwrap());
    place.run(&["artifact", "diff", one, back.to_str().unwrap()]).exits(0);
    // A damaged chunk is met on its way; then there is no manifest.
    let chunk = std::fs::read_dir(back.join("chunks")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&chunk).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&chunk, bytes).unwrap();
    let bad = place.at("bad");
    let damaged = place.run(&["artifact", "copy", back.to_str().unwrap(), &bad]);
    damaged.fails_with("has another digest");
    place.run(&["artifact", "show", &bad]).fails_with("holds no artifact");
}

/// Every record, from every node.
fn all_are_of(cluster: &Cluster, number: u64) {
    for node in 1..=3 {
        let mut redis = in_words(&cluster.resp(node));
        for key in 0..KEYS {
            let value = format!("{number}:{key:0>width$}", width = VALUE_BYTES);
            let reply = redis.call(&[b"GET", format!("word{key}").as_bytes()]);
            assert!(
                reply == Reply::Bulk(Some(value.into_bytes())),
                "word{key} of artifact {number} at node {node}"
            );
        }
    }
}

/// Pushes from there; one node is killed while it fetches.
fn nodes_fetch_from(place: &Place) {
    let allowed = format!("--allow-sources={}", place.url);
    let further = [CEILING, &allowed];
    let mut cluster = Cluster::with_environment(3, &further, &place.environment);
    let run = |cluster: &Cluster, words: &[&str]| {
        let mut command = cluster.command(words);
        command.envs(place.environment.iter().copied());
        Answer::of(command.output().unwrap())
    };
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    run(&cluster, &["artifact", "push", &place.at("words-1")]).exits(0);
    all_are_of(&cluster, 1);
    run(&cluster, &["artifact", "push", &place.at("words-2"), "--timeout-s", "0"]);
    let before = KEYS * VALUE_BYTES as u64;
    let half = until(
        "half of it is there",
        || metric(&cluster, 2, FETCHED) as u64,
        |bytes| *bytes >= before * 3 / 2,
    );
    assert!(half < before * 2, "it is under way: {half} bytes");
    cluster.end_node(2, Signal::KILL);
    let environment: Vec<_> =
        place.environment.iter().map(|(name, value)| (*name, Path::new(value))).collect();
    cluster.start_node_with(2, &environment);
    run(&cluster, &["artifact", "push", &place.at("words-2")]).exits(0);
    let again = metric(&cluster, 2, FETCHED) as u64;
    assert!(again < before * 3 / 4, "the killed node fetched {again} bytes more of {before}");
    all_are_of(&cluster, 2);
}

fn built_copied_and_pushed(place: &Place) {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (build(folder.path(), 1), build(folder.path(), 2));
    copies_are_whole_or_not_there(place, folder.path(), &one, &two);
    // The second is built straight to its place.
    let (input, to) = (folder.path().join("2.tsv"), place.at("words-2"));
    let words = ["artifact", "build", input.to_str().unwrap(), "--key", "1", "--value", "2", "-s", "words"];
    let built = place.run(&[&words[..], &["--to", &to, "--number", "2", "--json"]].concat()).exits(0).json();
    assert!(built["bytes_sent"].as_u64().unwrap() > KEYS * VALUE_BYTES as u64, "{built}");
    place.run(&["artifact", "diff", &two, &to]).exits(0);
    place.run(&[&words[..], &["--to", &to]].concat()).fails_with("holds an artifact already");
    nodes_fetch_from(place);
}

#[test]
fn an_artifact_goes_to_s3_and_from_there_to_the_nodes() {
    let s3 = S3::start();
    built_copied_and_pushed(&Place {
        url: "s3://tables/daily".to_owned(),
        environment: s3.environment(SECRET_KEY),
    });
}

#[test]
fn an_artifact_goes_to_hdfs_and_from_there_to_the_nodes() {
    let hdfs = Hdfs::start();
    let url = format!("hdfs://127.0.0.1:{}/tables/daily", hdfs.port);
    built_copied_and_pushed(&Place { url, environment: Vec::new() });
}

#[test]
fn a_chunk_that_is_cut_at_its_place_is_sent_again() {
    let s3 = S3::start();
    let folder = tempfile::tempdir().unwrap();
    let one = build(folder.path(), 1);
    let place = Place { url: "s3://tables".to_owned(), environment: s3.environment(SECRET_KEY) };
    let to = place.at("words-1");
    let (files, _) = place.copy(&one, &to);
    let chunk = std::fs::read_dir(s3.object("words-1/chunks")).unwrap().next().unwrap().unwrap().path();
    std::fs::File::options().write(true).open(&chunk).unwrap().set_len(1000).unwrap();
    place.run(&["artifact", "check", &to]).exits(1);
    assert_eq!(place.copy(&one, &to), (files, 1));
    place.run(&["artifact", "check", &to]).exits(0);
    // The bucket takes over what an increment shares with its parent.
    let (input, two) = (folder.path().join("1.tsv"), folder.path().join("words-2"));
    let words = ["artifact", "build", input.to_str().unwrap(), "--key", "1", "--value", "2", "-s", "words"];
    let more = ["--number", "2", "--parent", &one, "--to", two.to_str().unwrap()];
    place.run(&[&words[..], &more].concat()).exits(0);
    let increment = place.at("words-2");
    let words = ["artifact", "copy", two.to_str().unwrap(), &increment, "--parent", &to, "--json"];
    let copied = place.run(&words).exits(0).json();
    assert_eq!((copied["files_taken"].as_u64(), copied["files_sent"].as_u64()), (Some(files), Some(0)));
    place.run(&["artifact", "diff", two.to_str().unwrap(), &increment]).exits(0);
    place.run(&["artifact", "check", &increment]).exits(0);
}

#[test]
fn a_wrong_secret_is_refused_and_repeated_nowhere() {
    const WRONG: &str = "hunter2-is-no-secret";
    let s3 = S3::start();
    let folder = tempfile::tempdir().unwrap();
    let one = build(folder.path(), 1);
    let right = Place { url: "s3://tables".to_owned(), environment: s3.environment(SECRET_KEY) };
    let to = right.at("words-1");
    right.copy(&one, &to);
    let wrong = Place { environment: s3.environment(WRONG), ..right };
    for words in [
        &["artifact", "check", &to][..],
        &["artifact", "show", &to],
        &["artifact", "copy", &one, &wrong.at("new")],
    ] {
        let refused = wrong.run(words);
        assert!(
            !refused.stderr.contains(WRONG) && !refused.stderr.contains(ACCESS_KEY),
            "{}",
            refused.stderr
        );
        refused.fails_with("permission denied; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    }
    // Nodes that have the wrong one, and a command that has the right one.
    let cluster = Cluster::with_environment(1, &["--allow-sources=s3://tables"], &wrong.environment);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    let mut push = cluster.command(&["artifact", "push", &to, "--timeout-s", "2"]);
    push.envs(s3.environment(SECRET_KEY));
    let (refused, logged) = (Answer::of(push.output().unwrap()), cluster.dev.stderr());
    let listed = cluster.run(&["artifact", "list", "words", "--json"]).exits(0).text();
    for told in [&refused.stderr, &listed, &logged] {
        assert!(!told.contains(WRONG) && !told.contains(ACCESS_KEY), "{told}");
    }
    // The node that is asked refuses, or, where it is slow, lists it and says why it cannot fetch.
    assert!(matches!(refused.code, 2 | 3), "{refused:?}");
    assert!(refused.stderr.contains("permission denied; set AWS_ACCESS_KEY_ID"), "{}", refused.stderr);
}
