//! Replicas that come back to the same content by themselves, on real processes and real files.

use crate::cluster::Cluster;
use crate::observe::{metric, put, repair, tree_sum, until};

/// Three nodes that compare every second.
fn cluster() -> Cluster {
    Cluster::with(3, &["--repair-period-s=1", "--durability=always"])
}

#[test]
fn operators_see_how_repair_stands_and_can_stop_and_start_it() {
    let cluster = cluster();
    put(&cluster, 0..10, "v");
    cluster.run(&["repair", "stop"]).exits(0);
    assert!((1..=3).all(|node| repair(&cluster, node)["stopped"] == true));
    cluster.run(&["repair", "start", "--store", "default", "--partition", "7"]).exits(0);
    let stands = || (1..=3).map(|node| repair(&cluster, node)).collect::<Vec<_>>();
    until("every node has compared one partition", stands, |nodes| {
        nodes.iter().all(|node| {
            node["peers"].as_array().is_some_and(|peers| peers.len() == 2) && node["stopped"] == false
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
    assert_eq!(tree_sum(&cluster, 1, "doubtful"), Some(0));
    cluster.run(&["repair", "start", "--scrub"]).exits(0);
    let read = || metric(&cluster, 1, "tontine_scrub_records_total");
    until("a scrub of everything", read, |&records| records >= 300.0);
    assert_eq!(repair(&cluster, 1)["scrub"]["wrong_leaves_total"], 0);
}
