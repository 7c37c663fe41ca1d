//! Starting, stopping, starting again.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::cluster::{Cluster, Process, command, free_port_base, tontine};
use crate::observe::until;
use crate::resp::{Redis, Reply};

#[test]
fn dev_goes_on_with_its_data_after_a_restart() {
    let mut cluster = Cluster::start();
    cluster.run(&["put", "greeting", "hello"]).exits(0);
    cluster.restart();
    assert_eq!(cluster.run(&["get", "greeting"]).exits(0).text(), "hello\n");
    let reply = Redis::connect(&cluster.resp(2)).call(&[b"GET", b"greeting"]);
    assert_eq!(reply, Reply::Bulk(Some(b"hello".to_vec())));
}

#[test]
fn a_killed_node_starts_again_with_the_command_that_dev_prints() {
    let mut cluster = Cluster::with(3, &[]);
    // With all three, or a hint for the node that is killed could wait for this key, too.
    cluster.run(&["put", "before", "1", "--writes=3"]).exits(0);
    cluster.kill_node(2);
    cluster.run(&["put", "meanwhile", "2"]).exits(0);
    assert_eq!(cluster.run(&["get", "before"]).exits(0).text(), "1\n");
    cluster.run(&["status"]).exits(1);
    let command = cluster.start_command(2);
    let advice = cluster.run(&["doctor"]).exits(1).text();
    assert!(advice.contains(&command), "{command:?} is not in: {advice}");
    assert!(advice.contains("1 hint waits for n2"), "{advice}");
    cluster.start_node_again(2);
    assert_eq!(cluster.json(&["status"])["nodes"][1]["answers"], true);
    assert_eq!(cluster.run(&["get", "meanwhile"]).exits(0).text(), "2\n");
    cluster.stop();
    let said = cluster.dev.stderr();
    assert_eq!(said.matches("signal: 9").count(), 1, "an end is told once, when it comes: {said}");
}

#[test]
fn zones_and_the_number_of_nodes_are_kept() {
    let mut cluster = Cluster::with(4, &["--zones=2"]);
    cluster.restart();
    let status = cluster.json(&["status"]);
    let zones: Vec<&str> =
        status["nodes"].as_array().unwrap().iter().map(|n| n["zone"].as_str().unwrap()).collect();
    assert_eq!(zones, ["zone-1", "zone-2", "zone-1", "zone-2"]);
}

/// A closed terminal ended a node by the signal: its registration stayed until its session ended, so that its next start
/// waited, and a supervisor took it for a clean end.
#[test]
fn a_hangup_ends_a_node_as_sigterm_does() {
    let folder = TempDir::new().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (coordination, native) =
        (format!("dir:{}", place("coord")), format!("127.0.0.1:{}", free_port_base() + 1));
    let words = ["cluster", "create", "--name=shop", "--nodes=1", "--coordination", &coordination];
    let creating = Process::start(&mut command(&words), folder.path().join("create.stderr"));
    let begun = Instant::now();
    while !creating.stderr().contains("nodes are registered") {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", creating.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    let data = place("node-1");
    let words = ["serve", "--coordination", &coordination, "--data-dir", &data, "--listen", &native];
    for signal in [Signal::TERM, Signal::HUP, Signal::HUP] {
        let mut node = Process::start(&mut command(&words), folder.path().join("node.stderr"));
        node.await_line("node 1  ");
        tontine(&["put", "key", "value", "--connect", &native]).exits(0);
        assert_eq!(node.stop(signal), Some(0), "{signal:?}: {}", node.stderr());
        let shown = tontine(&["coordination", "show", "/active", "--coordination", &coordination]);
        assert!(!shown.text().contains("/active/n1"), "{signal:?}: {}", shown.text());
    }
    // Under nohup a hangup means nothing.
    let mut shell = std::process::Command::new("nohup");
    let mut node =
        Process::start(shell.arg(crate::cluster::TONTINE).args(words), folder.path().join("nohup.stderr"));
    node.await_line("node 1  ");
    crate::cluster::signal(node.id(), Signal::HUP);
    tontine(&["get", "key", "--connect", &native]).exits(0);
    assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
}

/// It said *all nodes have exited* while nodes ran that were started again by hand, and took the headmaster along.
#[test]
fn dev_goes_on_for_nodes_that_were_started_again_by_hand() {
    let mut cluster = Cluster::with(2, &[]);
    cluster.end_node(1, Signal::KILL);
    cluster.start_node_again(1);
    cluster.end_node(2, Signal::KILL);
    until("dev says why it goes on", || cluster.dev.stderr(), |said| said.contains("dev goes on for n1"));
    cluster.start_node_again(2);
    until("dev sees both", || cluster.dev.stderr(), |said| said.contains("dev goes on for n1, n2"));
    // There is a headmaster to order it of.
    cluster.run(&["node", "weight", "2", "50"]).exits(0);
    cluster.stop();
}
