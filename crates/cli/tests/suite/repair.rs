//! Replicas that come back to the same content by themselves, on real processes and real files.

use crate::cluster::Cluster;
use crate::observe::{metric, put, repair, tree_sum, until};

/// Three nodes that compare every second.
fn cluster() -> Cluster {
    Cluster::with(3, &["--repair-period=1s", "--durability=always"])
}

#[test]
fn operators_see_the_state_of_repair_and_can_stop_and_start_it() {
    let mut cluster = cluster();
    put(&cluster, 0..10, "v");
    cluster.run(&["repair", "stop"]).exits(0);
    let stopped = |cluster: &Cluster| (1..=3).all(|node| repair(cluster, node)["stopped"] == true);
    assert!(stopped(&cluster));
    cluster.restart();
    assert!(stopped(&cluster), "a restart does not decide otherwise");
    let found = cluster.run(&["doctor"]).exits(1).text();
    for node in 1..=3 {
        assert!(found.contains(&format!("bad   replica repair is stopped on n{node}\n")), "{found}");
    }
    cluster.run(&["repair", "start", "--store", "default", "--partition", "7"]).exits(0);
    let stands = || (1..=3).map(|node| repair(&cluster, node)).collect::<Vec<_>>();
    until("every node has compared one partition", stands, |nodes| {
        nodes.iter().all(|node| node["peers"].as_array().is_some_and(|peers| peers.len() == 2))
    });
    assert!(stopped(&cluster), "all the rest stays stopped");
    cluster.restart();
    assert!(stopped(&cluster));
    cluster.run(&["repair", "start"]).exits(0);
    assert!((1..=3).all(|node| repair(&cluster, node)["stopped"] == false));
    assert!(!cluster.run(&["doctor"]).text().contains("is stopped at"));
    let text = cluster.run(&["repair", "status"]).exits(0).text();
    assert!(text.contains("NODE") && text.contains("n3"), "{text}");
    for order in ["start", "stop", "status"] {
        cluster.run(&["repair", order, "--store", "nowhere"]).fails_with("nowhere");
        cluster
            .run(&["repair", order, "--partition", "4000000"])
            .fails_with("there is no partition p4000000");
    }
    cluster.restart();
    assert!((1..=3).all(|node| repair(&cluster, node)["stopped"] == false));
}

#[test]
fn a_part_that_is_stopped_is_left_out_also_after_a_restart_until_it_is_started() {
    let mut cluster = cluster();
    put(&cluster, 0..10, "v");
    let said = cluster.run(&["repair", "stop", "--store", "default", "--partition", "7"]).exits(0).text();
    let words = "n1  stopped for partition 7 of store default, the rest continues; resume with `tontine repair start --store \
                 default --partition 7`\n";
    assert!(said.contains(words), "{said}");
    cluster.restart();
    let text = cluster.run(&["repair", "status"]).exits(0).text();
    assert!(text.contains("n2 repair is stopped for partition p7 of store default\n"), "{text}");
    let found = cluster.run(&["doctor"]).exits(1).text();
    assert!(found.contains("replica repair is stopped on n2 for partition p7 of store default\n"), "{found}");
    assert!((1..=3).all(|node| repair(&cluster, node)["stopped"] == false), "the rest goes on");
    let part = cluster.run(&["repair", "status", "--store", "default", "--partition", "7"]).exits(0).text();
    assert!(part.contains(" partition 7 of store default: 0 records\n"), "{part}");
    assert!(part.contains("n3 compares with n"), "{part}");
    let scrubbed = || metric(&cluster, 1, "tontine_scrub_records_total");
    cluster.run(&["repair", "start", "--scrub", "--store", "default"]).exits(0);
    until("the records of that store are read", scrubbed, |&records| records >= 10.0);
    cluster.run(&["repair", "start"]).exits(0);
    cluster.restart();
    let text = cluster.run(&["repair", "status"]).exits(0).text();
    assert!(!text.contains("stopped"), "{text}");
}

#[test]
fn a_command_about_all_nodes_says_of_one_that_is_away_that_it_is_and_not_that_all_are() {
    let cluster = Cluster::with(3, &[]);
    cluster.end_node(3, rustix::process::Signal::KILL);
    let address = cluster.native(3);
    let away = format!("{address} refused the connection: no process listens there");
    let started = cluster.run(&["repair", "start"]).exits(1).text();
    assert!(started.contains(&format!("n3  {away}; find out more with `tontine doctor`")), "{started}");
    assert!(started.contains("n1  comparing"), "{started}");
    let events = cluster.run(&["events"]).exits(1).stderr;
    assert_eq!(events, format!("n3 does not answer: {away}\n"));
    let found = cluster.run(&["doctor"]).exits(1).text();
    assert!(found.contains(&format!("n3 at {address} does not answer: {away}\n")), "{found}");
    cluster.run(&["export", &cluster.file("all.jsonl")]).exits(0);

    cluster.end_node(2, rustix::process::Signal::KILL);
    let said = cluster.run(&["export", &cluster.file("all.jsonl"), "--force", "--patience=0"]);
    said.fails_with("refused the connection: no process listens there");
    assert!(!said.stderr.contains("no node of the cluster"), "{}", said.stderr);
    // What it is given before it knows that it is alone is in doubt; after that it begins nothing.
    let put = || cluster.run(&["put", "k", "v"]).code;
    until("the last node knows that it is alone", put, |&code| code == 2);
    for n in 0..5 {
        let refused = cluster.run(&["put", &format!("k{n}"), "v"]).exits(2).stderr;
        assert!(
            refused.contains(
                "n1 cannot reach enough nodes: 2 must acknowledge the write, and it gets no answer from n"
            ),
            "{refused}"
        );
        assert!(refused.contains("to see how to start them, run `tontine doctor`"), "{refused}");
        let failed = cluster.run(&["get", &format!("k{n}")]).exits(2).stderr;
        assert!(failed.contains("too few replicas can answer: 2 are required (n"), "{failed}");
    }
}

#[test]
fn a_clean_stop_remembers_the_hash_trees_and_a_crash_has_them_counted() {
    let mut cluster = Cluster::with(1, &["--repair-period=1s"]);
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
