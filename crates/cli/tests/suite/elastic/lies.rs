//! Engines that lie about a drain, or cannot take one back, under a real controller. Each test ends with the fault that it
//! would convict, so it is seen that its judge can fail.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::hands::{await_so, managed, state};
use super::{Fleet, POLICY};
use crate::adapters::tontine::{check_all, fill};
use crate::cluster::{Answer, Cluster};

/// How long a member must stay that its adapter calls drained. A controller looks every second meanwhile.
const STAYS: Duration = Duration::from_secs(6);
/// Keys of the store whose keys have one copy.
const KEYS: usize = 300;
/// Its name, as an argument.
const SINGLE: &str = "--store=single";

/// A store whose keys have one copy each: no replica hides the loss of one.
fn fill_single(cluster: &Cluster) -> BTreeMap<String, String> {
    cluster.run(&["store", "create", "single", "--consistency", "1,1,1"]).exits(0);
    let all: BTreeMap<String, String> =
        (0..KEYS).map(|number| (format!("only-{number}"), format!("value-{number}"))).collect();
    let records: String = all.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
    let file = cluster.write("single.tsv", records);
    cluster.run(&["load", &file, "--key", "1", "--value", "2", SINGLE]).exits(0);
    all
}

/// How many of these keys are read with their value, each within this time.
fn count_there(cluster: &Cluster, all: &BTreeMap<String, String>, within: &str) -> usize {
    let keys: Vec<&str> = all.keys().map(String::as_str).collect();
    let there = |some: &[&str]| {
        let mut command = cluster.command(&[&["mget", "--json", SINGLE], some].concat());
        let answer = Answer::of(command.env("TONTINE_DEADLINE", within).output().unwrap());
        let found: Vec<Json> = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        let is_there =
            |one: &&Json| all.get(one["key"].as_str().unwrap()).is_some_and(|v| one["value"] == *v);
        found.iter().filter(is_there).count()
    };
    keys.chunks(100).map(there).sum()
}

/// Grows by one. The token of the new machine.
fn grow(fleet: &Fleet) -> String {
    fleet.run(&["plan", "shop", "+1"]).exits(0);
    managed(&fleet.machines())["token"].as_str().unwrap().to_owned()
}

#[test]
fn must_not_2_a_member_that_its_adapter_calls_drained_is_not_ended_while_it_holds_keys() {
    let mut fleet = Fleet::lying(POLICY);
    let all = fill_single(&fleet.cluster);
    // A new member gets its share by one plan at once.
    fleet.cluster.run(&["balance", "off"]).exits(0);
    let _controller = fleet.controller();
    fleet.adopt_all();
    let token = grow(&fleet);

    fleet.lie("drained");
    fleet.run(&["plan", "shop", "-1", "--no-wait"]).exits(0);
    await_so("the lie is heard", || state(&fleet, &token).as_deref() == Some("empty"));
    let began = Instant::now();
    while began.elapsed() < STAYS {
        assert_eq!(state(&fleet, &token).as_deref(), Some("empty"), "its drain is believed");
        assert!(!fleet.processes(Some(&token)).is_empty(), "it was ended");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(count_there(&fleet.cluster, &all, "1m"), KEYS);

    // Now it is drained indeed, and only then ended.
    fleet.tell_the_truth("drained");
    fleet.await_machines("it has left", |machines| machines.len() == 3);
    await_so("it has ended", || fleet.processes(Some(&token)).is_empty());
    assert_eq!(count_there(&fleet.cluster, &all, "1m"), KEYS);

    // The planted fault: a controller that goes by such a drain, as evidence lies, too.
    let token = grow(&fleet);
    fleet.lie("drained");
    fleet.lie("empty");
    fleet.run(&["plan", "shop", "-1", "--no-wait"]).exits(0);
    await_so("it is ended with its keys", || fleet.processes(Some(&token)).is_empty());
    let there = count_there(&fleet.cluster, &all, "1s");
    assert!(there < KEYS, "all {there} keys are there, so this test would see no loss");
    assert!(there > 0, "the other nodes answer");
}

/// Orders one fewer, stops the drain half way, and orders one more.
fn drain_and_want_back(fleet: &Fleet, token: &str) {
    fleet.run(&["plan", "shop", "-1", "--no-wait"]).exits(0);
    await_so("its drain is paused half way", || {
        let plans = fleet.cluster.json(&["plan", "list"]);
        let applying = |plan: &&Json| plan["phase"] == "applying";
        let Some(plan) = plans["plans"].as_array().unwrap().iter().find(applying) else { return false };
        fleet.cluster.run(&["plan", "pause", &plan["number"].to_string()]).code == 0
    });
    assert_eq!(state(fleet, token).as_deref(), Some("draining"));
    fleet.run(&["plan", "shop", "+1", "--no-wait"]).exits(0);
}

#[test]
fn must_not_6_load_that_is_back_in_mid_drain_buys_no_machine() {
    let mut fleet = Fleet::lying(POLICY);
    let all = fill(&fleet.cluster);
    fleet.cluster.run(&["balance", "off"]).exits(0);
    let _controller = fleet.controller();
    fleet.adopt_all();
    let token = grow(&fleet);
    let instances = fleet.instances();
    assert_eq!(instances.len(), 1);

    drain_and_want_back(&fleet, &token);
    await_so("its drain is taken back", || state(&fleet, &token).as_deref() == Some("serving"));
    let serves = || {
        let nodes = fleet.cluster.json(&["status"])["nodes"].as_array().unwrap().clone();
        nodes.len() == 4 && nodes.iter().all(|node| node["role"] == "serving")
    };
    await_so("it serves again", serves);
    std::thread::sleep(Duration::from_secs(2));
    let machines = fleet.await_serving(4);
    assert_eq!(
        (machines.len(), fleet.instances()),
        (4, instances.clone()),
        "a machine was bought: {machines:?}"
    );
    check_all(&fleet.cluster, &all);

    // The planted fault: where no drain can be taken back, a machine is bought for the same orders.
    fleet.lie("uncancellable");
    drain_and_want_back(&fleet, &token);
    await_so("one is bought", || fleet.instances().len() == 2);
    assert!(fleet.instances().contains(&instances[0]));
}
