//! Who is alive, in real processes: killed, paused, stopped.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::observe::{await_calm, await_no_hints, await_records, await_views, until};

/// Kinds of all events about a peer.
fn kinds_about(cluster: &Cluster, peer: u64) -> Vec<String> {
    let events = cluster.run(&["events", "--json"]).json();
    let about = events["events"].as_array().unwrap().iter().filter(|event| event["fields"]["peer"] == peer);
    about.map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_killed_node_is_down_to_every_survivor_and_alive_again_after_its_restart() {
    let mut cluster = Cluster::with(4, &["--engine=memory"]);
    await_calm(&cluster);
    cluster.kill_node(2);
    await_views(&cluster, 2, &["down"], 3);
    let listed = cluster.run(&["node", "list", "--from=1"]).exits(1).text();
    assert!(listed.contains("it repeatedly refused connections"), "{listed}");
    assert!(kinds_about(&cluster, 2).contains(&"peer-down".to_owned()));
    cluster.start_node_again(2);
    await_calm(&cluster);
    cluster.run(&["node", "list"]).exits(0);
    let metrics = cluster.run(&["metrics", "--from=1"]).exits(0).text();
    assert!(metrics.contains("tontine_gossip_nodes{state=\"alive\"} 3"), "{metrics}");
}

#[test]
fn a_five_second_pause_causes_no_replacement_and_no_lost_write() {
    let cluster = Cluster::with(3, &["--engine=memory"]);
    await_calm(&cluster);
    cluster.run(&["put", "before", "1"]).exits(0);
    cluster.signal_node(3, Signal::STOP);
    let paused = Instant::now();
    let mut written: u64 = 0;
    while paused.elapsed() < Duration::from_secs(5) {
        cluster.run(&["put", &format!("meanwhile-{written}"), "2"]).exits(0);
        written += 1;
    }
    cluster.signal_node(3, Signal::CONT);
    let paused = paused.elapsed();
    await_calm(&cluster);
    assert_eq!(cluster.run(&["get", "before"]).exits(0).text(), "1\n");
    for number in 0..written {
        assert_eq!(cluster.run(&["get", &format!("meanwhile-{number}")]).exits(0).text(), "2\n");
    }
    let generation = cluster.json(&["status"])["generation"].clone();
    assert_eq!(generation, 1, "nobody was replaced, no partition moved");
    let told = kinds_about(&cluster, 3);
    // Where the last put alone took seconds, the pause was a longer one, of which this says nothing.
    if paused < Duration::from_secs(8) {
        for kind in ["peer-down", "peer-left"] {
            assert!(!told.contains(&kind.to_owned()), "a pause is no death: {told:?}");
        }
    }
    // What was written meanwhile is at the paused node, too, and nothing waits for it.
    await_no_hints(&cluster);
    await_records(&cluster, written + 1);
}

#[test]
fn a_node_that_is_stopped_has_left() {
    let cluster = Cluster::with(3, &["--engine=memory"]);
    await_calm(&cluster);
    cluster.signal_node(1, Signal::TERM);
    await_views(&cluster, 1, &["left"], 2);
    assert!(kinds_about(&cluster, 1).contains(&"peer-left".to_owned()));
    cluster.run(&["node", "list"]).exits(0);
}

/// Starting it again would be refused: its process lives, and holds the directory.
#[test]
fn a_node_that_hangs_is_told_from_one_that_is_gone() {
    let cluster = Cluster::with(3, &[]);
    cluster.signal_node(2, Signal::STOP);
    // Longer than the suite's patience would make each look a minute long.
    let look = |command: &str| cluster.run(&[command, "--deadline=2s"]);
    let found = look("doctor").exits(1).text();
    assert!(
        found.contains(" is suspended and still locks its data directory: resume it with `kill -CONT "),
        "{found}"
    );
    let states = || look("status").exits(1).text();
    until("the others say what it is", states, |text| {
        text.contains(" suspected ") || text.contains(" down ")
    });
    cluster.signal_node(2, Signal::CONT);
    until("it answers again", || look("status").code, |&code| code == 0);

    cluster.end_node(2, Signal::TERM);
    until("it has left", states, |text| text.contains(" left "));
    let found = look("doctor").exits(1).text();
    assert!(found.contains("next: restart it in the folder "), "{found}");
}

/// Each command waited two seconds for the first address to tell of the cluster, and a put as long again for the first
/// replica.
#[test]
fn a_node_that_hangs_lets_no_command_wait_for_it() {
    let cluster = Cluster::with(3, &["--engine=memory"]);
    await_calm(&cluster);
    cluster.signal_node(1, Signal::STOP);
    let mut took = Vec::new();
    for number in 0..9 {
        let began = Instant::now();
        cluster.run(&["put", &format!("key-{number}"), "v"]).exits(0);
        took.push(began.elapsed());
    }
    cluster.signal_node(1, Signal::CONT);
    took.sort();
    assert!(took[4] < Duration::from_millis(1500), "{took:?}");
}
