//! Answers that cannot be written, as when a script saves them on a disk that is full.

use std::fs::File;
use std::process::Stdio;

use crate::cluster::{Cluster, command};

/// A device that refuses every byte, as a full disk does.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// The documented way to feed a file of Prometheus is `tontine metrics > new && mv new old`: with status 0 it replaced the
/// old numbers by none. Sixteen of twenty commands ended so.
#[test]
fn no_command_whose_answer_cannot_be_written_ends_as_if_it_could() {
    let cluster = Cluster::with(1, &[]);
    cluster.run(&["put", "k", &"x".repeat(3_000)]).exits(0);
    for words in [
        &["get", "k"][..],
        &["get", "k", "--raw"],
        &["get", "k", "-o", "json"],
        &["get", "absent"],
        &["mget", "k"],
        &["put", "other", "value"],
        &["siblings", "k"],
        &["keys"],
        &["export", "-"],
        &["route", "k"],
        &["metrics"],
        &["status"],
        &["doctor", "-o", "json"],
        &["events"],
        &["events", "--follow"],
        &["node", "list"],
        &["node", "list", "--watch"],
        &["store", "list"],
        &["plan", "history"],
        &["repair", "status"],
        &["completions", "bash"],
        &["--help"],
        &["get", "--help"],
        &["--version"],
    ] {
        let mut command = cluster.command(words);
        let output = command.stdin(Stdio::null()).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains("No space left on device"), "{words:?}: {stderr}");
    }
    assert_eq!(cluster.run(&["get", "other"]).exits(0).text(), "value\n", "what was put is put");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure_and_ends_what_goes_on() {
    let cluster = Cluster::with(1, &[]);
    for words in [&["status"][..], &["get", "--help"], &["events", "--follow"], &["node", "list", "--watch"]]
    {
        // Gone before it begins: what was printed before the reader went would be the last for long.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = cluster.command(words).stdin(Stdio::null()).stdout(writer).spawn().unwrap();
        let code = child.wait().unwrap().code();
        assert!(matches!(code, Some(0 | 141)), "{words:?}: {code:?}");
    }
    let mut child = command(&["completions", "zsh"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
