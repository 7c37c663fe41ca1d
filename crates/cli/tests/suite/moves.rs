//! Moves on real processes: a node joins and drains under load, while processes are killed.

mod away;
mod random;
mod standby;
mod steps;

use std::collections::BTreeSet;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Answer, Cluster, Process, command, signal};
use crate::observe::{headmaster, kill_headmaster, put, until};
use crate::traffic::Traffic;

/// Records beside those of the clients.
const RECORDS: u32 = 2_000;

/// A cluster of three processes with records and clients at work, and a fourth node beside it.
pub(crate) struct Joined {
    pub(crate) cluster: Cluster,
    fourth: Process,
}

impl Joined {
    pub(crate) fn start() -> Joined {
        let mut cluster = Cluster::with(3, &["--repair-period=1h"]);
        // It would give the fourth node its share, and number its plans among ours.
        cluster.run(&["balance", "off"]).exits(0);
        put(&cluster, 0..RECORDS, "value");
        let fourth = fourth(&cluster, &[]);
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
    pub(crate) fn await_phase(&self, number: u64, phase: &str) -> Json {
        until(&format!("plan {number} is {phase}"), || self.plan(number), |plan| plan["phase"] == phase)
    }

    /// Waits until some partition of a plan has begun to move.
    pub(crate) fn await_begun(&self, number: u64) {
        let steps = ["copying", "joint", "reading_new", "settled"];
        let has_begun = |plan: &Json| {
            steps.iter().any(|step| plan["state"]["progress"][step].as_u64().is_some_and(|count| count > 0))
        };
        until("the plan has begun", || self.plan(number), has_begun);
    }

    /// Members of the cluster.
    fn members(&self) -> usize {
        self.cluster.run(&["status", "--json"]).json()["nodes"].as_array().map_or(0, Vec::len)
    }

    /// Exports the store and lists its keys, again and again, until a plan has ended. Returns how often.
    fn walk_until_ended(&self, number: u64) -> u32 {
        let mut walks = 0;
        while self.plan(number)["state"]["ended_ms"].is_null() {
            self.check_records();
            let listed = self.cluster.run(&["keys", "--prefix", "key-"]).exits(0).text();
            assert_eq!(listed.lines().count(), RECORDS as usize);
            walks += 1;
        }
        walks
    }

    /// Every record is there once, with its value.
    /// So many partitions came to the fourth node. Each node tells that once, and none tells of its steps.
    fn check_events(&self, moves: u64) {
        let told = |kind: &str| -> Vec<Json> {
            let all = self.cluster.json(&["events"]);
            let events = all["events"].as_array().unwrap().iter();
            events.filter(|event| event["kind"] == kind).cloned().collect()
        };
        let ended = until(
            "all nodes tell that their moves ended",
            || told("moves-ended"),
            |ended| ended.iter().map(|event| event["node"].as_u64()).collect::<BTreeSet<_>>().len() == 4,
        );
        let sum = |way: &str| ended.iter().map(|event| event["fields"][way].as_u64().unwrap()).sum::<u64>();
        let came = ended.iter().filter(|event| event["node"] == 4);
        let came: u64 = came.map(|event| event["fields"]["partitions_in"].as_u64().unwrap()).sum();
        assert_eq!((came, sum("partitions_in"), sum("partitions_back")), (moves, moves, 0), "{ended:?}");
        assert_eq!(told("moves-began").len(), ended.len(), "{:?}", told("moves-began"));
        let nodes = self.cluster.json(&["node", "list"]);
        let roles = nodes["nodes"].as_array().unwrap().iter().map(|node| &node["role"]);
        assert!(roles.into_iter().all(|role| role == "serving"), "{nodes}");
        assert!(told("generation-adopted").len() < 12, "{:?}", told("generation-adopted"));
    }

    fn check_records(&self) {
        let exported = self.cluster.run(&["export", "-"]).exits(0).text();
        let keys = exported.lines().filter(|line| line.contains("\"key-")).count();
        assert_eq!(keys, RECORDS as usize);
        let values = exported.lines().filter(|line| line.contains("\"key-") && line.contains("\"value\""));
        assert_eq!(values.count(), RECORDS as usize);
    }
}

fn fourth(cluster: &Cluster, further: &[&str]) -> Process {
    let service = format!("dir:{}", cluster.data().join("coordination").display());
    let data = cluster.folder.path().join("node-4");
    let (native, resp) = (cluster.native(4), cluster.resp(4));
    let words = ["serve", "--repair-period=1h", "--coordination", &service, "--data-dir"];
    let mut command = command(&words);
    command.arg(data).args(["--listen", &native, "--resp", &resp]).args(further);
    Process::start(&mut command, cluster.folder.path().join("node-4.stderr"))
}

#[test]
fn a_node_joins_and_drains_under_load_while_headmasters_are_killed_and_no_request_fails() {
    let joined = Joined::start();
    let traffic = Traffic::start(&joined.cluster);
    traffic.await_more(200);
    joined.cluster.run(&["plan", "show"]).fails_with("there is no plan yet; create one with");
    let created = joined.cluster.json(&["plan", "create", "spread"]);
    assert_eq!(joined.cluster.json(&["plan", "show"]), created, "the newest, while none is under way");
    assert_eq!(joined.cluster.json(&["plan", "list"]), joined.cluster.json(&["plan", "history"]));
    assert_eq!((&created["plan"], &created["phase"]), (&Json::from(1), &Json::from("created")));
    joined.cluster.run(&["plan", "apply", "1", "--no-wait"]).exits(0);
    joined.await_begun(1);
    kill_headmaster(&joined.cluster);
    let exports = joined.walk_until_ended(1);
    assert!(exports > 0, "no walk was under way beside the plan");
    let plan = joined.await_phase(1, "done");
    let moves = plan["document"]["change"]["moves"].as_array().unwrap().len() as u64;
    assert_eq!(plan["state"]["progress"]["settled"].as_u64(), Some(moves));
    let moved = plan["document"]["change"]["moves"].as_array().unwrap().iter();
    joined.check_events(moved.map(|one| one["entering"].as_array().unwrap().len() as u64).sum());
    traffic.await_more(200);
    joined.check_records();
    joined.cluster.run(&["plan", "apply", "1"]).fails_with("it is done already");
    let drained = joined.cluster.run(&["node", "drain", "4", "--no-wait"]).exits(0);
    assert!(drained.text().contains("plan 2 is being carried out"), "{}", drained.text());
    kill_headmaster(&joined.cluster);
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
    joined.fourth = fourth(&joined.cluster, &[]);
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
        Some("aborted") => aborted.exits(0),
        Some("done") => aborted.exits(if plan["state"]["order"] == 4 { 2 } else { 1 }),
        other => panic!("{other:?}: {}", aborted.stderr),
    };
    traffic.await_more(200);
    let heard = traffic.end();
    assert!(heard.failed.is_empty(), "{:?}", heard.failed);
    joined.check_records();
    heard.check(&joined.cluster);
}

#[test]
fn a_dead_node_is_replaced_under_load_and_a_paused_one_is_not() {
    let joined = Joined::start();
    joined.cluster.run(&["node", "standby", "4"]).exits(0);
    let traffic = Traffic::start(&joined.cluster);
    traffic.await_more(200);
    joined.cluster.run(&["node", "replace", "3", "4"]).fails_with("n3 is registered");
    // Paused, it keeps its registration with the embedded service, and so its place.
    let paused = || {
        joined.cluster.signal_node(3, Signal::STOP);
        std::thread::sleep(std::time::Duration::from_secs(2));
        let refused = joined.cluster.run(&["node", "replace", "3", "4"]);
        joined.cluster.signal_node(3, Signal::CONT);
        refused
    };
    // Where it was paused while it had the lock of the embedded service, nobody reads a document.
    let is_locked_out = |answer: &Answer| answer.stderr.contains("directory's lock");
    until("it is paused without the lock", paused, |answer| !is_locked_out(answer))
        .fails_with("n3 is registered");
    joined.cluster.end_node(3, Signal::KILL);
    let replaced = || joined.cluster.run(&["node", "replace", "3", "4"]);
    let ended = until("n3 is replaced", || replaced().code, |code| *code == 0);
    assert_eq!(ended, 0);
    until("n3 is no member any more", || joined.members(), |members| *members == 3);
    let plan = joined.plan(1);
    assert_eq!((&plan["phase"], plan["document"]["wish"]["by"].as_u64()), (&Json::from("done"), Some(4)));
    traffic.await_more(200);
    joined.check_records();
    // It comes back: it is told, and holds nothing up.
    let told = joined.cluster.refused_again(3);
    assert!(told.contains("is no member of cluster \"dev\" any more"), "{told}");
    traffic.await_more(200);
    let heard = traffic.end();
    assert!(heard.failed.is_empty(), "{:?}", heard.failed);
    joined.check_records();
    heard.check(&joined.cluster);
}

/// The numbers of the store `default`, and its step.
fn numbers(cluster: &Cluster) -> (String, Json) {
    let listed = cluster.json(&["store", "list"]);
    let stores = listed["stores"].as_array().unwrap();
    let store = stores.iter().find(|store| store["store"] == "default").unwrap();
    let numbers = ["replicas", "reads_required", "writes_required"].map(|name| store[name].to_string());
    (numbers.join(","), store["step"].clone())
}

/// The node that is asked may follow the last document a moment after a plan is done.
fn await_numbers(cluster: &Cluster, settled: &str) {
    let settled = (settled.to_owned(), Json::Null);
    until("the store has its new numbers", || numbers(cluster), |found| *found == settled);
}

#[test]
fn a_store_has_fewer_replicas_and_more_again_under_load_while_who_enters_is_killed() {
    let mut joined = Joined::start();
    joined.cluster.run(&["plan", "create", "spread"]).exits(0);
    joined.cluster.run(&["plan", "apply", "1"]).exits(0);
    let traffic = Traffic::start(&joined.cluster);
    traffic.await_more(200);
    let set = |numbers: &'static str| ["store", "set", "default", "--consistency", numbers];
    joined.cluster.run(&set("5,3,3")).fails_with("the cluster has 4 nodes that stay");
    joined.cluster.run(&set("3,1,1")).fails_with("accept it with --accept-weaker");
    joined.cluster.run(&["store", "set", "none", "--consistency", "2,1,2"]).fails_with("no store \"none\"");
    let dry = joined.cluster.run(&[&set("2,1,2")[..], &["--dry-run"]].concat()).exits(0).text();
    assert!(dry.contains("store default changes from N=3 R=2 W=2 to N=2 R=1 W=2"), "{dry}");
    assert_eq!(numbers(&joined.cluster), ("3,2,2".to_owned(), Json::Null), "nothing was changed");
    let lowered = joined.cluster.run(&set("2,1,2")).exits(0).text();
    assert!(lowered.contains("plan 2 is done"), "{lowered}");
    await_numbers(&joined.cluster, "2,1,2");
    joined.check_records();
    joined.cluster.run(&set("2,1,2")).exits(0);
    // New replicas lie on all nodes, and one of these ends at once.
    joined.cluster.run(&[&set("3,2,2")[..], &["--no-wait"]].concat()).exits(0);
    joined.await_begun(3);
    joined.fourth.stop(Signal::KILL);
    kill_headmaster(&joined.cluster);
    joined.fourth = fourth(&joined.cluster, &[]);
    joined.fourth.await_line("node 4");
    joined.await_phase(3, "done");
    await_numbers(&joined.cluster, "3,2,2");
    traffic.await_more(200);
    joined.check_records();
    // Half way to four, and back.
    joined.cluster.run(&[&set("4,2,3")[..], &["--no-wait"]].concat()).exits(0);
    let aborted = joined.cluster.run(&["plan", "abort", "4"]);
    let expected = match joined.plan(4)["phase"].as_str() {
        Some("aborted") => (0, "3,2,2"),
        Some("done") => (1, "4,2,3"),
        other => panic!("{other:?}: {}", aborted.stderr),
    };
    assert_eq!(aborted.code, expected.0, "{}", aborted.stderr);
    await_numbers(&joined.cluster, expected.1);
    traffic.await_more(200);
    let heard = traffic.end();
    assert!(heard.failed.is_empty(), "{:?}", heard.failed);
    joined.check_records();
    heard.check(&joined.cluster);
}

#[test]
fn a_headmaster_that_is_suspended_is_named_by_the_doctor_and_another_one_takes_its_office() {
    let joined = Joined::start();
    let suspended = headmaster(&joined.cluster);
    // One that is stopped while it holds the directory's lock keeps everybody from the documents.
    let suspend = || {
        signal(suspended, Signal::CONT);
        signal(suspended, Signal::STOP);
        joined.cluster.run(&["doctor", "--json"]).text().contains("coordination-away")
    };
    until("a headmaster hangs that holds no lock", suspend, |is_away| !is_away);
    let words = ["node", "weight", "4", "7", "--connect", &joined.cluster.native(1)];
    let ordered = command(&words).stderr(Stdio::piped()).spawn().unwrap();
    let finding = until(
        "the doctor names the headmaster",
        || joined.cluster.run(&["doctor", "--json"]).json(),
        |found| found["findings"].as_array().unwrap().iter().any(|one| one["code"] == "headmaster-silent"),
    );
    assert_eq!(finding["healthy"], false);
    // Its process lives, and its lease has ended: another candidate takes the office.
    let service = format!("dir:{}", joined.cluster.data().join("coordination").display());
    let stderr = joined.cluster.folder.path().join("successor.stderr");
    let successor = Process::start(&mut command(&["headmaster", "--coordination", &service]), stderr);
    let ordered = ordered.wait_with_output().unwrap();
    assert_eq!(ordered.status.code(), Some(0));
    let said = String::from_utf8(ordered.stderr).unwrap();
    let waits = format!(" waits for the headmaster (process {suspended} of ");
    assert!(said.starts_with("order ") && said.contains(&waits), "{said}");
    let after = joined.cluster.run(&["doctor", "--json"]).json();
    assert!(!after.to_string().contains("headmaster-silent"), "{after}");
    // What was suspended finds that its office has ended, and is a candidate anew.
    signal(suspended, Signal::CONT);
    drop(successor);
    joined.cluster.run(&["node", "weight", "4", "7"]).exits(0);
    let listed = || joined.cluster.json(&["node", "list"])["nodes"][3]["weight"].as_u64();
    until("the node has its weight", listed, |weight| *weight == Some(7));
}
