//! Two clusters of one name, of which one came to an address of the other.

use rustix::process::Signal;

use crate::cluster::{Cluster, Process, command, tontine};
use crate::observe::until;

/// A client of the first cluster wrote into the second one, because both were called `dev` and had a node 1.
#[test]
fn a_cluster_of_the_same_name_at_the_address_of_a_dead_node_gets_no_write_and_no_order() {
    let cluster = Cluster::start();
    cluster.end_node(1, Signal::KILL);
    let folder = tempfile::TempDir::new().unwrap();
    let (data, base) = (folder.path().join("other"), format!("--port-base={}", cluster.base));
    let words = ["dev", "--nodes=1", &base, "--data-dir", data.to_str().unwrap()];
    let mut other = Process::start(&mut command(&words), folder.path().join("other.stderr"));
    other.await_line("Ctrl-C stops the cluster");
    let stranger = cluster.native(1);

    let connect = cluster.native(2);
    let run = |words: &[&str]| tontine(&[words, &["--connect", &connect]].concat());
    for number in 0..30 {
        run(&["put", &format!("key {number}"), "value"]).exits(0);
    }
    // The office may have been with the one that was killed.
    let ordered = || run(&["store", "create", "carts"]);
    until("the order is carried out", ordered, |answer| answer.code == 0);
    let health = run(&["doctor"]);
    assert!(
        health.text().contains("n1 at") && health.text().contains("and this node to \"dev/"),
        "{}",
        health.text()
    );
    let there = tontine(&["store", "list", "--connect", &stranger]).exits(0).text();
    assert!(!there.contains("carts"), "{there}");
    for number in 0..30 {
        let key = format!("key {number}");
        let foreign = tontine(&["get", &key, "--connect", &stranger]);
        assert!(!foreign.text().contains("value"), "{}", foreign.text());
    }
    assert_eq!(other.stop(Signal::TERM), Some(0), "{}", other.stderr());
    for number in 0..30 {
        let found = run(&["get", &format!("key {number}")]).exits(0);
        assert!(found.text().contains("value"), "{}", found.text());
    }
}
