//! Moves on real processes: a node joins and drains under load, while processes are killed.

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Cluster, Process, command, signal};
use crate::observe::{put, until};
use crate::traffic::Traffic;

/// Records beside those of the clients.
const RECORDS: u32 = 2_000;

/// A cluster of three processes with records and clients at work, and a fourth node beside it.
struct Joined {
    cluster: Cluster,
    fourth: Process,
}

impl Joined {
    fn start() -> Joined {
        let mut cluster = Cluster::with(3, &["--separate-processes", "--repair-period=1h"]);
        put(&cluster, 0..RECORDS, "value");
        let fourth = fourth(&cluster);
        let waits = || fourth.stderr().contains("waits until cluster");
        until("the fourth node is registered", waits, |waits| *waits);
        cluster.run(&["node", "add", "4"]).exits(0);
        fourth.await_line("node 4");
        cluster.nodes = 4;
        Joined { cluster, fourth }
    }

    fn plan(&self, number: u64) -> Json {
        self.cluster.json(&["plan", "show", &number.to_string()])
    }

    /// Waits until a plan has such a phase.
    fn await_phase(&self, number: u64, phase: &str) -> Json {
        until(&format!("plan {number} is {phase}"), || self.plan(number), |plan| plan["phase"] == phase)
    }

    /// Waits until some partition of a plan has begun to move.
    fn await_begun(&self, number: u64) {
        let steps = ["copying", "joint", "reading_new", "settled"];
        let has_begun = |plan: &Json| {
            steps.iter().any(|step| plan["state"]["progress"][step].as_u64().is_some_and(|count| count > 0))
        };
        until("the plan has begun", || self.plan(number), has_begun);
    }

    /// The process that holds the office.
    fn headmaster(&self) -> u32 {
        let service = self.cluster.data().join("coordination").display().to_string();
        let candidate = || {
            let shown = self.cluster.run(&[
                "coordination",
                "show",
                "/headmaster",
                "--coordination",
                &service,
                "--json",
            ]);
            let shown = shown.json();
            let documents = shown["documents"].as_array()?.clone();
            let data =
                documents.iter().find(|one| one["path"] != "/headmaster")?["data"].as_str()?.to_owned();
            let candidate: Json = serde_json::from_str(&data).ok()?;
            candidate["process"].as_str()?.split(' ').nth(1)?.parse().ok()
        };
        until("a headmaster", candidate, Option::is_some).unwrap()
    }

    /// Kills the headmaster, and waits for its successor.
    fn kill_headmaster(&self) {
        let before = self.headmaster();
        signal(before, Signal::KILL);
        until("another headmaster", || self.headmaster(), |process| *process != before);
    }

    /// Members of the cluster.
    fn members(&self) -> usize {
        self.cluster.run(&["status", "--json"]).json()["nodes"].as_array().map_or(0, Vec::len)
    }

    /// Every record is there once, with its value.
    fn check_records(&self) {
        let exported = self.cluster.run(&["export", "-"]).exits(0).text();
        let keys = exported.lines().filter(|line| line.contains("\"key-")).count();
        assert_eq!(keys, RECORDS as usize);
        let values = exported.lines().filter(|line| line.contains("\"key-") && line.contains("\"value\""));
        assert_eq!(values.count(), RECORDS as usize);
    }
}

fn fourth(cluster: &Cluster) -> Process {
    let service = format!("dir:{}", cluster.data().join("coordination").display());
    let data = cluster.folder.path().join("node-4");
    let (native, resp) = (cluster.native(4), cluster.resp(4));
    let words = ["serve", "--no-headmaster", "--repair-period=1h", "--coordination", &service, "--data-dir"];
    let mut command = command(&words);
    command.arg(data).args(["--listen", &native, "--resp", &resp]);
    Process::start(&mut command, cluster.folder.path().join("node-4.stderr"))
}

#[test]
fn a_node_joins_and_drains_under_load_while_headmasters_are_killed_and_no_request_fails() {
    let joined = Joined::start();
    let traffic = Traffic::start(&joined.cluster);
    traffic.await_more(200);
    let created = joined.cluster.json(&["plan", "create", "spread"]);
    assert_eq!((&created["plan"], &created["phase"]), (&Json::from(1), &Json::from("created")));
    joined.cluster.run(&["plan", "apply", "1", "--no-wait"]).exits(0);
    joined.await_begun(1);
    joined.kill_headmaster();
    let plan = joined.await_phase(1, "done");
    let moves = plan["document"]["moves"].as_array().unwrap().len() as u64;
    assert_eq!(plan["state"]["progress"]["settled"].as_u64(), Some(moves));
    traffic.await_more(200);
    joined.check_records();
    joined.cluster.run(&["plan", "apply", "1"]).fails_with("it is done already");
    let drained = joined.cluster.run(&["node", "drain", "4", "--no-wait"]).exits(0);
    assert!(drained.text().contains("plan 2 is being carried out"), "{}", drained.text());
    joined.kill_headmaster();
    joined.await_phase(2, "done");
    until("the fourth node has left", || joined.members(), |members| *members == 3);
    traffic.await_more(200);
    let heard = traffic.end();
    assert!(heard.failed.is_empty() && heard.unknown.is_empty(), "{:?} {:?}", heard.failed, heard.unknown);
    joined.check_records();
    heard.check(&joined.cluster);
}

#[test]
fn donors_and_entering_nodes_that_are_killed_in_mid_move_lose_nothing_and_an_abort_goes_back() {
    let mut joined = Joined::start();
    let traffic = Traffic::start(&joined.cluster);
    traffic.await_more(200);
    joined.cluster.run(&["plan", "create", "spread"]).exits(0);
    joined.cluster.run(&["plan", "apply", "1", "--no-wait"]).exits(0);
    joined.await_begun(1);
    // The node that enters, and then one that gives.
    joined.fourth.stop(Signal::KILL);
    joined.fourth = fourth(&joined.cluster);
    joined.fourth.await_line("node 4");
    joined.cluster.end_node(1, Signal::KILL);
    joined.cluster.start_node_again(1);
    joined.await_phase(1, "done");
    // Back again, and half way forth.
    joined.cluster.run(&["plan", "create", "drain", "4"]).exits(0);
    joined.cluster.run(&["plan", "apply", "2", "--no-wait"]).exits(0);
    joined.await_begun(2);
    let aborted = joined.cluster.run(&["plan", "abort", "2"]);
    let plan = joined.plan(2);
    match plan["phase"].as_str() {
        Some("aborted") => aborted.exits(1),
        Some("done") => aborted.exits(if plan["state"]["order"] == 4 { 2 } else { 0 }),
        other => panic!("{other:?}: {}", aborted.stderr),
    };
    traffic.await_more(200);
    let heard = traffic.end();
    assert!(heard.failed.is_empty(), "{:?}", heard.failed);
    joined.check_records();
    heard.check(&joined.cluster);
}
