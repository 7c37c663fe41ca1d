//! What may happen to a process while partitions move, at each step of the move. The headmaster is ended at the step
//! that a test wants: without one no partition takes another step, so whatever is done then is done at that step.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value as Json;

use super::{RECORDS, fourth};
use crate::cluster::{Cluster, Process, command, limit_files};
use crate::observe::{self, await_no_hints, metric, put, statuses, until};
use crate::resp::{Redis, Reply};
use crate::traffic::Traffic;

/// Steps of a move, as `route` names them.
const STEPS: [&str; 3] = ["copying", "joint", "reading-new"];
/// Keys whose partitions move.
const KEYS: usize = 60;

/// Four nodes with records, clients at work, and a headmaster that comes and goes.
struct Stage {
    cluster: Cluster,
    fourth: Process,
    headmaster: Option<Process>,
    plans: u64,
}

impl Stage {
    fn start() -> Stage {
        let mut cluster = Cluster::with(3, &["--repair-period=1h", "--no-headmaster"]);
        put(&cluster, 0..RECORDS, "value");
        let fourth = fourth(&cluster, &["--no-headmaster"]);
        let waits = || fourth.stderr().contains("waits until cluster");
        until("the fourth node is registered", waits, |waits| *waits);
        let headmaster = Some(headmaster(&cluster));
        cluster.run(&["balance", "off"]).exits(0);
        cluster.run(&["node", "add", "4"]).exits(0);
        fourth.await_line("node 4");
        cluster.nodes = 4;
        Stage { cluster, fourth, headmaster, plans: 0 }
    }

    fn start_headmaster(&mut self) {
        self.headmaster = Some(headmaster(&self.cluster));
    }

    fn kill_headmaster(&mut self) {
        assert_eq!(self.headmaster.take().unwrap().stop(Signal::KILL), None);
    }

    fn routes(&self) -> Vec<Json> {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("key-{key}")).collect();
        let words: Vec<&str> = ["route"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        self.cluster.json(&words).as_array().unwrap().clone()
    }

    /// Applies a plan that takes partitions of the keys from node 1 to node 4, or back: whichever are more. Of a plan that
    /// was aborted some may have settled.
    fn apply(&mut self) {
        let routes = self.routes();
        let movable = |from: u64, to: u64| -> (u64, u64, BTreeSet<String>) {
            let has = |route: &Json, node: u64| {
                route["replicas"].as_array().unwrap().iter().any(|one| *one == node)
            };
            let movable = routes.iter().filter(|route| has(route, from) && !has(route, to));
            (from, to, movable.map(|route| route["partition"].to_string()).collect())
        };
        let ways = [movable(1, 4), movable(4, 1)];
        let (from, to, partitions) =
            ways.into_iter().max_by_key(|(.., partitions)| partitions.len()).unwrap();
        assert!(partitions.len() > KEYS / 4, "{routes:?}");
        let (from, to) = (from.to_string(), to.to_string());
        let words = ["plan", "create", "move", "--from", &from, "--to", &to];
        let words: Vec<&str> = words.into_iter().chain(partitions.iter().map(String::as_str)).collect();
        self.plans = self.cluster.json(&words)["plan"].as_u64().unwrap();
        self.cluster.run(&["plan", "apply", &self.plans.to_string(), "--no-wait"]).exits(0);
    }

    /// The step of the partitions that move; empty when none does.
    fn step(&self) -> String {
        let steps: BTreeSet<String> =
            self.routes().iter().filter_map(|route| Some(route["step"].as_str()?.to_owned())).collect();
        steps.into_iter().next().unwrap_or_default()
    }

    fn plan(&self) -> Json {
        self.cluster.json(&["plan", "show", &self.plans.to_string()])
    }

    /// Waits until the plan has ended, with its phase.
    fn end(&self) -> String {
        let has_ended = |plan: &Json| ["done", "aborted"].iter().any(|phase| plan["phase"] == *phase);
        let plan = until("the plan has ended", || self.plan(), has_ended);
        plan["phase"].as_str().unwrap().to_owned()
    }

    /// Partitions move, and stand at this step: their headmaster was killed there.
    fn hold_at(&mut self, step: &str) {
        loop {
            self.apply();
            let mut now = String::new();
            until(
                &format!("the plan is at {step}"),
                || {
                    now = self.step();
                    now == step || (now.is_empty() && self.plan()["phase"] == "done")
                },
                |is_there| *is_there,
            );
            self.kill_headmaster();
            // It may have published the next step in its last moment.
            if self.step() == step {
                return;
            }
            self.start_headmaster();
            self.end();
        }
    }

    fn kill_and_start(&mut self, node: usize) {
        if node == 4 {
            self.fourth.stop(Signal::KILL);
            self.fourth = fourth(&self.cluster, &["--no-headmaster"]);
            self.fourth.await_line("node 4");
        } else {
            self.cluster.end_node(node, Signal::KILL);
            self.cluster.start_node_again(node);
        }
    }

    fn check_records(&self) {
        let exported = self.cluster.run(&["export", "-"]).exits(0).text();
        let keys = exported.lines().filter(|line| line.contains("\"key-"));
        assert_eq!(keys.filter(|line| line.contains("\"value\"")).count(), RECORDS as usize);
    }

    /// Ends the clients. No request failed, every record is there, and every key is as it was left, also when no tombstone
    /// is left anywhere.
    fn finish(&self, traffic: Traffic) {
        let heard = traffic.end();
        assert!(heard.failed.is_empty(), "{:?}", heard.failed);
        self.check_records();
        await_no_hints(&self.cluster);
        let none_left = |seen: &Vec<Json>| seen.iter().all(|status| status["collection"]["tombstones"] == 0);
        until("no tombstone is left", || statuses(&self.cluster), none_left);
        heard.check(&self.cluster);
    }
}

fn headmaster(cluster: &Cluster) -> Process {
    let service = format!("dir:{}", cluster.data().join("coordination").display());
    let stderr: PathBuf = cluster.folder.path().join("headmaster.stderr");
    let process = Process::start(&mut command(&["headmaster", "--coordination", &service]), stderr);
    until("it has the office", || observe::headmaster(cluster), |elected| *elected == process.id());
    process
}

/// A client of one node's Redis door, through which that node coordinates.
struct Door {
    address: String,
    written: u32,
}

impl Door {
    /// Reads what was written last, and writes, again and again.
    fn write(&mut self, rounds: u32) {
        let mut redis = Redis::connect(&self.address);
        for _ in 0..rounds {
            if self.written > 0 {
                let expected = Reply::Bulk(Some(self.written.to_string().into_bytes()));
                assert_eq!(redis.call(&[b"GET", b"door"]), expected);
            }
            let next = (self.written + 1).to_string();
            assert_eq!(redis.call(&[b"SET", b"door", next.as_bytes()]), Reply::Status("OK".to_owned()));
            self.written += 1;
        }
    }
}

#[test]
#[ignore = "kills at every step, as exploration and simulation do; ./check --full process runs it"]
fn nothing_is_lost_and_the_move_goes_on_whatever_is_killed_at_any_step() {
    let mut stage = Stage::start();
    let traffic = Traffic::start(&stage.cluster);
    let doors = [1, 2, 4].map(|node| stage.cluster.resp(node));
    for step in STEPS {
        // The donor, one that stays, and the one that enters: each is also the coordinator of a door's writes.
        for (victim, address) in [1, 2, 4].into_iter().zip(&doors) {
            // This one learns nothing for the whole move.
            let mut idle = Redis::connect(&stage.cluster.resp(3));
            assert_eq!(idle.call(&[b"SET", b"idle", step.as_bytes()]), Reply::Status("OK".to_owned()));
            let mut door = Door { address: address.clone(), written: 0 };
            stage.hold_at(step);
            door.write(20);
            stage.kill_and_start(victim);
            assert_eq!(stage.step(), step, "without a headmaster nothing steps");
            door.write(20);
            traffic.await_more(100);
            stage.start_headmaster();
            assert_eq!(stage.end(), "done");
            door.write(20);
            assert_eq!(idle.call(&[b"GET", b"idle"]), Reply::Bulk(Some(step.as_bytes().to_vec())));
            assert_eq!(idle.call(&[b"DEL", b"idle", b"door"]), Reply::Number(2));
        }
    }
    stage.finish(traffic);
}

#[test]
#[ignore = "aborts at every step, as exploration and simulation do; ./check --full process runs it"]
fn a_plan_that_is_aborted_at_any_step_goes_back_and_loses_nothing() {
    let mut stage = Stage::start();
    let traffic = Traffic::start(&stage.cluster);
    for step in STEPS {
        stage.hold_at(step);
        traffic.await_more(100);
        stage.start_headmaster();
        let aborted = stage.cluster.run(&["plan", "abort", &stage.plans.to_string()]);
        match &*stage.end() {
            "aborted" => assert_eq!(aborted.code, 0, "{aborted:?}"),
            // The headmaster took the last step before it met the order, or before it could go back.
            _ => assert!([1, 2].contains(&aborted.code), "{aborted:?}"),
        }
        traffic.await_more(100);
        stage.check_records();
    }
    stage.finish(traffic);
}

#[test]
fn a_move_ends_while_a_replica_that_stays_is_down() {
    let mut stage = Stage::start();
    let traffic = Traffic::start(&stage.cluster);
    traffic.await_more(100);
    stage.cluster.end_node(2, Signal::KILL);
    stage.apply();
    assert_eq!(stage.end(), "done");
    traffic.await_more(100);
    stage.cluster.start_node_again(2);
    stage.finish(traffic);
}

#[test]
fn a_full_disk_at_the_node_that_enters_holds_the_move_up_and_loses_nothing() {
    let mut stage = Stage::start();
    let traffic = Traffic::start(&stage.cluster);
    traffic.await_more(100);
    limit_files(stage.fourth.id(), Some(1 << 10));
    stage.apply();
    let copies = |plan: &Json| {
        plan["state"]["waiting"].to_string().contains("\"code\":\"copy\",\"facts\":{\"node\":4}")
    };
    until("the plan waits for the fourth node", || stage.plan(), copies);
    traffic.await_more(200);
    assert_eq!(stage.plan()["phase"], "applying");
    assert_eq!(stage.step(), "copying");
    let found = stage.cluster.run(&["doctor"]).exits(1).text();
    assert!(found.contains("n4"), "{found}");
    limit_files(stage.fourth.id(), None);
    assert_eq!(stage.end(), "done");
    stage.finish(traffic);
}

/// What came before the kill was written down after each few partitions.
#[test]
fn what_came_before_a_kill_is_not_sent_again() {
    let mut stage = Stage::start();
    put(&stage.cluster, 0..40_000, &"value".repeat(200));
    let plan = stage.cluster.json(&["plan", "create", "spread"]);
    let bytes = plan["document"]["estimate"]["bytes"].as_f64().unwrap();
    stage.plans = plan["plan"].as_u64().unwrap();
    stage.cluster.run(&["plan", "apply", &stage.plans.to_string(), "--no-wait"]).exits(0);
    let came = || metric(&stage.cluster, 4, "tontine_refill_bytes_total");
    let before = until("a third of it came", came, |came| *came > bytes / 3.0);
    stage.kill_and_start(4);
    assert_eq!(stage.end(), "done");
    let after = metric(&stage.cluster, 4, "tontine_refill_bytes_total");
    assert!(after > 0.0, "nothing was left to move: {before} of {bytes} bytes");
    let twice = before + after - bytes;
    assert!(twice < bytes / 20.0, "{twice} of {bytes} bytes came twice: {before} and {after}");
}

/// It was refused at once in the moment after a headmaster's end.
#[test]
fn an_order_waits_for_who_succeeds_a_headmaster_and_is_refused_where_none_comes() {
    let cluster = Cluster::with(3, &["--no-headmaster"]);
    let weigh = |weight| ["node", "weight", "1", weight];
    cluster.run(&weigh("7")).fails_with("no headmaster runs, and nothing was ordered");
    let found = cluster.run(&["doctor"]).exits(1).text();
    assert!(
        found.contains("no headmaster runs: ") && found.contains(" headmaster --coordination /"),
        "{found}"
    );
    let mut ordered = cluster.command(&weigh("8"));
    let ordered = ordered.stdout(Stdio::null()).spawn().unwrap();
    let headmaster = headmaster(&cluster);
    assert!(ordered.wait_with_output().unwrap().status.success());
    let listed = || cluster.json(&["node", "list"])["nodes"][0]["weight"].as_u64();
    until("it is carried out", listed, |weight| *weight == Some(8));
    cluster.run(&["doctor"]).exits(0);
    drop(headmaster);
}
