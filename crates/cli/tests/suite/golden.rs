//! Golden rings on real processes: they grow by one node at a time and shrink again under load, headmasters are killed
//! between a cut and its moves, and what would reshape such a ring is refused.

use std::collections::BTreeMap;
use std::net::TcpListener;

use client::{Client, ClientOptions};
use model::Partition;
use runtime::Ports;
use rustix::process::Signal;
use serde_json::json;

use crate::adapters::speaking::Speaking;
use crate::adapters::tontine::words;
use crate::cluster::{Cluster, PATIENCE, Process, command, signal, tontine};
use crate::observe::{addresses, headmaster, put, until};
use crate::traffic::Traffic;

/// Records beside those of the clients, and how many of these are deleted before anything moves.
const RECORDS: u32 = 2_000;
const DELETED: u32 = 20;

/// A golden cluster of `dev`, and nodes that are added to it.
struct Golden {
    added: BTreeMap<u16, Process>,
    cluster: Cluster,
}

impl Golden {
    fn start(nodes: u16, further: &[&str]) -> Golden {
        let cluster = Cluster::with(nodes, &[&["--ring=golden", "--repair-period=1h"], further].concat());
        put(&cluster, 0..RECORDS, "value");
        for number in 0..DELETED {
            cluster.run(&["delete", &format!("key-{number}")]).exits(0);
        }
        Golden { added: BTreeMap::new(), cluster }
    }

    /// Starts a node, and waits until it is registered.
    fn serve(&mut self, node: u16, further: &[&str]) {
        let (cluster, folder) = (&self.cluster, self.cluster.folder.path());
        let service = format!("dir:{}", cluster.data().join("coordination").display());
        let mut command = command(&["serve", "--repair-period=1h", "--coordination", &service]);
        command.arg("--data-dir").arg(folder.join(format!("node-{node}")));
        let (native, resp) = match node {
            ..10 => (cluster.native(node), cluster.resp(node)),
            _ => (free_address(), free_address()),
        };
        command.args(["--listen", &native, "--resp", &resp]).args(further);
        let process = Process::start(&mut command, folder.join(format!("node-{node}.stderr")));
        until("a node is registered", || process.stderr(), |said| said.contains("waits until cluster"));
        self.added.insert(node, process);
    }

    /// Adds a node, and waits until it has its part.
    fn add(&mut self, node: u16) {
        self.serve(node, &[]);
        let added = self.cluster.run(&["node", "add", &node.to_string()]).exits(0);
        assert!(added.stderr.contains(&format!("n{node} gets ")), "it is shown before: {}", added.stderr);
    }

    /// Lets a node go, waits until it has left, and ends its process.
    fn drain(&mut self, node: u16) {
        self.leave(node);
        if let Some(mut process) = self.added.remove(&node) {
            process.stop(Signal::TERM);
        }
    }

    /// Lets a node go, and waits until it has left. Its process goes on.
    fn leave(&self, node: u16) {
        let drained = self.cluster.run(&["node", "drain", &node.to_string()]).exits(0);
        assert!(drained.stderr.contains(&format!(" of n{node}")), "it is shown before: {}", drained.stderr);
        let has_left = |nodes: &Vec<u32>| !nodes.contains(&u32::from(node));
        until("the node has left", || nodes(&self.cluster), has_left);
    }

    /// Whether the doctor has a finding with this code about the node, and what it advises.
    fn found(&self, code: &str, node: u32) -> Option<String> {
        let found = self.cluster.json(&["doctor"])["findings"].clone();
        let is_it = |one: &&serde_json::Value| one["code"] == code && one["node"] == node;
        let found = found.as_array().unwrap().iter().find(is_it)?;
        Some(found["next"].as_str().unwrap().to_owned())
    }

    /// Every record is there once with its value, none that was deleted is, and each node has one partition.
    fn check(&self, nodes: usize) {
        let exported = self.cluster.run(&["export", "-"]).exits(0).text();
        let lines = || exported.lines().filter(|line| line.contains("\"key-"));
        let kept = (RECORDS - DELETED) as usize;
        assert_eq!(lines().count(), kept);
        assert_eq!(lines().filter(|line| line.contains("\"value\"")).count(), kept);
        let is_settled = |ring: &Vec<Partition>| {
            let in_order = |one: &Partition| one.coming.is_none() && Some(one.nodes[0]) == one.owner;
            ring.len() == nodes && ring.iter().all(in_order)
        };
        let ring = until("nodes follow the newest ring", || ring(&self.cluster), is_settled);
        let mut owners: Vec<_> = ring.iter().map(|one| one.owner.unwrap()).collect();
        owners.sort();
        owners.dedup();
        assert_eq!(owners.len(), nodes);
    }
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The document, as a client learns of it that has just come.
fn document(cluster: &Cluster) -> model::Cluster {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
        let client = Client::connect(&addresses(cluster), Ports::os().unwrap(), options).await.unwrap();
        client.refresh().await.unwrap().as_ref().clone()
    })
}

fn ring(cluster: &Cluster) -> Vec<Partition> {
    document(cluster).ring.partitions().to_vec()
}

fn nodes(cluster: &Cluster) -> Vec<u32> {
    document(cluster).nodes.iter().map(|node| node.id.0).collect()
}

/// From this many nodes, with as many replicas, to more and back.
fn grows_and_shrinks(least: u16, most: u16) {
    let mut golden = Golden::start(least, &[&format!("--replicas={least}")]);
    golden.cluster.run(&["balance", "off"]).exits(0);
    let traffic = Traffic::start(&golden.cluster);
    for node in least + 1..=most {
        golden.add(node);
        traffic.await_more(100);
        golden.check(node.into());
    }
    // Neither in the order in which they came nor in the other one.
    let mut leaving: Vec<u16> = (least + 1..=most).collect();
    leaving.sort_by_key(|node| (node % 3, *node));
    for (left, node) in leaving.into_iter().enumerate() {
        golden.drain(node);
        traffic.await_more(100);
        golden.check(usize::from(most) - left - 1);
    }
    let heard = traffic.end();
    assert!(heard.failed.is_empty() && heard.unknown.is_empty(), "{:?} {:?}", heard.failed, heard.unknown);
    heard.check(&golden.cluster);
}

#[test]
fn must_not_7_a_golden_ring_from_1_to_4_nodes_and_back_under_load_loses_or_brings_back_a_key() {
    grows_and_shrinks(1, 4);
}

#[test]
fn must_not_7_a_golden_ring_with_two_replicas_from_2_to_3_nodes_and_back_loses_or_brings_back_a_key() {
    grows_and_shrinks(2, 3);
}

#[test]
#[ignore = "takes minutes; ./check --full process runs it"]
fn must_not_7_a_golden_ring_from_1_to_12_nodes_and_back_under_load_loses_or_brings_back_a_key() {
    grows_and_shrinks(1, 12);
}

/// Waits until the ring has so many partitions and none moves, and kills the headmaster at once. Whether that was between
/// the cut and the moves.
fn kill_behind_cut(cluster: &Cluster, partitions: usize) -> bool {
    let before = headmaster(cluster);
    until("the ring is cut", || ring(cluster), |ring| ring.len() == partitions);
    signal(before, Signal::KILL);
    let cut = ring(cluster);
    // A part whose owner is not the first of its list has been cut, and has not moved.
    let is_between = cut.iter().all(|one| one.coming.is_none() && one.owner.is_some())
        && cut.iter().any(|one| one.owner != Some(one.nodes[0]));
    until("another headmaster", || headmaster(cluster), |process| *process != before);
    is_between
}

#[test]
fn must_not_8_the_headmaster_ends_between_cut_and_moves_and_its_successor_cuts_again() {
    let mut golden = Golden::start(1, &[]);
    golden.cluster.run(&["balance", "off"]).exits(0);
    let traffic = Traffic::start(&golden.cluster);
    let mut between = 0;
    for node in 2..=5_u16 {
        golden.serve(node, &[]);
        let add = ["node", "add", &node.to_string(), "--no-wait"];
        golden.cluster.run(&add).exits(0);
        between += usize::from(kill_behind_cut(&golden.cluster, node.into()));
        let plan = (node - 1).to_string();
        let phase = || golden.cluster.json(&["plan", "show", &plan])["phase"].as_str().map(str::to_owned);
        until("the plan is done", phase, |phase| phase.as_deref() == Some("done"));
        golden.check(node.into());
        if between > 0 {
            break;
        }
    }
    assert!(between > 0, "no headmaster was killed between cut and moves");
    traffic.await_more(100);
    let heard = traffic.end();
    assert!(heard.failed.is_empty() && heard.unknown.is_empty(), "{:?} {:?}", heard.failed, heard.unknown);
    heard.check(&golden.cluster);
}

#[test]
fn must_not_9_and_10_what_reshapes_a_golden_ring_is_refused_and_so_is_letting_go_of_one_below_n() {
    let mut golden = Golden::start(3, &[]);
    golden.serve(4, &[]);
    let before = ring(&golden.cluster);
    let fails = |words: &[&str], with: &str| golden.cluster.run(words).fails_with(with);
    let is_golden = "the ring is golden, with one partition for each node, so";
    fails(&["plan", "create", "spread"], is_golden);
    fails(&["plan", "create", "double"], is_golden);
    fails(&["plan", "create", "double", "--dry-run"], is_golden);
    fails(&["plan", "create", "merge", "0", "2"], is_golden);
    fails(&["plan", "create", "move", "0", "--from", "1", "--to", "2"], is_golden);
    fails(&["node", "weight", "2", "200"], "nodes have no weights");
    fails(&["node", "drain", "2"], "2 nodes would be left to hold data, and 3 replicas are needed");
    fails(&["node", "remove", "2"], "n2 is a replica of 3 partitions");
    golden.cluster.run(&["balance", "off"]).exits(0);
    fails(&["node", "add", "4", "--hottest"], "the autopilot is off");
    fails(&["node", "add", "4", "--hottest"], "n4 is a member meanwhile and holds nothing, and `");
    assert_eq!(ring(&golden.cluster), before);
    assert!(golden.found("node-empty", 4).is_some());
    golden.cluster.run(&["node", "add", "9", "--dry-run"]).fails_with("n9 is not registered");
    // It is a member now, and gets its part when it is asked for so.
    let dry = golden.cluster.run(&["node", "add", "4", "--dry-run"]).exits(0).text();
    assert!(
        dry.contains("partition p1 is cut at token") && dry.contains("n4 gets the second part, p3"),
        "{dry}"
    );
    assert_eq!(ring(&golden.cluster), before);
    golden.cluster.run(&["node", "add", "4"]).exits(0);
    golden.check(4);
    golden.cluster.run(&["node", "add", "4"]).fails_with("n4 has partition p3 of the golden ring already");
    // One that says another zone is no member of such a ring.
    golden.serve(5, &["--zone=elsewhere"]);
    golden.cluster.run(&["node", "add", "5"]).fails_with("neither weights nor zones");
    golden.cluster.run(&["node", "add", "5", "--dry-run"]).fails_with("neither weights nor zones");
    golden.drain(2);
    golden.check(3);
}

#[test]
fn an_aborted_join_leaves_a_cut_that_the_next_one_reuses() {
    let mut golden = Golden::start(1, &[]);
    golden.cluster.run(&["balance", "off"]).exits(0);
    golden.serve(2, &[]);
    golden.cluster.run(&["node", "add", "2", "--no-wait"]).exits(0);
    until("the ring is cut", || ring(&golden.cluster).len(), |partitions| *partitions == 2);
    // Documents are half a second apart, so the plan takes two seconds more at least.
    golden.cluster.run(&["plan", "abort", "1"]).exits(0);
    let is_back = |ring: &Vec<Partition>| ring.iter().all(|one| one.owner == ring[0].owner);
    let left = until("the part is its old owner's again", || ring(&golden.cluster), is_back);
    assert_eq!(left.len(), 2);
    golden.cluster.run(&["node", "add", "2"]).exits(0);
    golden.check(2);
    // An aborted drain leaves the node's role, and whoever looks or drains another one is told so.
    let leaves = "n2 still counts as leaving";
    golden.cluster.run(&["node", "drain", "2", "--no-wait"]).exits(0);
    let aborted = golden.cluster.run(&["plan", "abort", "3"]).exits(0);
    assert!(aborted.stderr.contains(leaves), "{}", aborted.stderr);
    let refused = golden.cluster.run(&["node", "drain", "1"]);
    assert!(refused.stderr.contains("`tontine node recommission 2`"), "{}", refused.stderr);
    refused.fails_with(leaves);
    let next = golden.found("node-leaving", 2).expect("the doctor names it");
    assert!(next.contains("node recommission 2"), "{next}");
    // Its process goes on when it has left, is named, and is no node that can be added.
    golden.leave(2);
    assert!(golden.found("node-left", 2).is_some() && golden.found("node-leaving", 2).is_none());
    let was_member = "n2 was a member and has left";
    golden.cluster.run(&["node", "add", "2", "--dry-run"]).fails_with(was_member);
    golden.cluster.run(&["node", "add", "2"]).fails_with(was_member);
    golden.check(1);
}

#[test]
fn the_partition_with_most_load_is_cut_where_it_halves() {
    let mut golden = Golden::start(2, &["--replicas=1"]);
    golden.serve(3, &[]);
    let traffic = Traffic::start(&golden.cluster);
    // On a busy machine clients do too little at first.
    let mut said = String::new();
    let add = || {
        let answer = golden.cluster.run(&["node", "add", "3", "--hottest"]);
        said.push_str(&answer.stderr);
        answer.code
    };
    until("a partition has most load", add, |code| *code == 0);
    assert!(said.contains("there are no figures"), "the new member has said nothing at first: {said}");
    golden.check(3);
    let heard = traffic.end();
    assert!(heard.failed.is_empty(), "{:?}", heard.failed);
    heard.check(&golden.cluster);
}

#[test]
fn no_fleet_manages_a_golden_ring_so_no_machine_is_bought_for_one() {
    let mut cluster = Cluster::with(1, &["--ring=golden"]);
    let mut engine = Speaking::start(&words(&cluster, &[]));
    for (verb, of) in [("describe", json!({})), ("join", json!({ "member": "n2" }))] {
        let why = engine.refusal(verb, of, -32001);
        assert!(why.contains("is golden, so no fleet can manage it"), "{why}");
    }
    let data = cluster.data().display().to_string();
    cluster.stop();
    tontine(&["dev", "--data-dir", &data, "--elastic=1..2"])
        .fails_with("a golden ring grows by `tontine node add` alone");
}

#[test]
fn a_golden_ring_with_what_it_has_not_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    let dev = |further: &[&str]| tontine(&[&["dev", "--data-dir", &data], further].concat());
    dev(&["--ring=golden", "--zones=2"]).fails_with("a golden ring has no zones");
    dev(&["--ring=golden", "--partitions=16"]).fails_with("a golden ring has one partition for each node");
    dev(&["--ring=golden", "--elastic=3..4"]).fails_with("a golden ring grows by `tontine node add` alone");
    dev(&["--ring=silver"]).fails_with("silver");
    assert!(!folder.path().join("data").exists());
}
