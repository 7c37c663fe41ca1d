//! A standby takes the places of a node that is dead, and of none that lives: on processes and ZooKeeper.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::cluster::{Answer, Process, command, free_port_base, signal, tontine};
use crate::machines::servers::{Ensemble, wait_until};
use crate::machines::{registered, start_node};
use crate::observe::until;
use crate::traffic::Traffic;

/// A node is replaced when it was away for that long: the shortest time that can be set.
const AFTER: Duration = Duration::from_secs(60);

#[test]
#[ignore = "takes eight minutes; ./check --full process runs it"]
fn must_not_8_a_node_that_is_stopped_restarts_or_is_away_with_the_service_is_not_replaced_and_a_dead_one_is()
{
    let folder = TempDir::new().unwrap();
    let mut ensemble = Ensemble::start(1);
    let address = ensemble.address("/shop");
    let port_base = free_port_base();
    let base = format!("--port-base={port_base}");
    let words = ["cluster", "create", "--coordination", &address, "--name=shop", "--nodes=3", &base];
    let created = tontine(&[&words[..], &["--json"]].concat()).exits(0).json();
    let nodes = created["nodes"].as_array().unwrap();
    let addresses: Vec<String> =
        nodes.iter().map(|node| node["native"].as_str().unwrap().to_owned()).collect();
    let mut nodes: Vec<Process> = (1..=3).map(|id| start_node(id, &address, folder.path())).collect();
    let mut office = command(&["headmaster", "--coordination", &address, "--session-timeout=4s"]);
    let _headmaster = Process::start(&mut office, folder.path().join("headmaster.stderr"));
    wait_until("all nodes are registered", || registered(&address).len() == 3);
    let (data, listen) = (folder.path().join("spare"), format!("127.0.0.1:{}", port_base + 50));
    let spare =
        ["serve", "--coordination", &address, "--data-dir", data.to_str().unwrap(), "--listen", &listen];
    let _spare = Process::start(&mut command(&spare), folder.path().join("spare.stderr"));
    let run =
        |words: &[&str]| tontine(&[words, &["--connect", &addresses[..2].join(","), "--json"]].concat());
    let add = || run(&["node", "add", "4", "--standby"]);
    until("the fourth node is a standby", add, |answer: &Answer| answer.code == 0);
    run(&["balance", "set", &format!("replace-after-s={}", AFTER.as_secs())]).exits(0);
    let traffic = Traffic::at(addresses[..2].to_vec());
    traffic.await_more(200);
    let plans = || run(&["plan", "history"]).json()["plans"].as_array().map_or(0, Vec::len);
    let pass = |time: Duration| {
        let began = Instant::now();
        while began.elapsed() < time {
            traffic.await_more(50);
        }
    };

    // It is stopped for two minutes, and loses its registration.
    signal(nodes[2].id(), Signal::STOP);
    wait_until("it is registered no more", || registered(&address).len() == 3);
    pass(2 * AFTER);
    signal(nodes[2].id(), Signal::CONT);
    wait_until("it is registered again", || registered(&address).len() == 4);
    assert_eq!(plans(), 0);
    // It restarts.
    nodes[2].stop(Signal::KILL);
    pass(AFTER / 3);
    nodes[2] = start_node(3, &address, folder.path());
    wait_until("it is registered again", || registered(&address).len() == 4);
    // It is away together with the service.
    ensemble.servers[0].kill();
    pass(AFTER * 3 / 2);
    ensemble.servers[0].start();
    ensemble.wait_serving();
    wait_until("all are registered again", || registered(&address).len() == 4);
    pass(AFTER / 3);
    assert_eq!(plans(), 0);
    // It is dead.
    nodes[2].stop(Signal::KILL);
    let died = Instant::now();
    let plan = || run(&["plan", "show", "1"]);
    let done = |answer: &Answer| answer.code == 0 && answer.json()["phase"] == "done";
    let ended = loop {
        traffic.await_more(50);
        let answer = plan();
        if done(&answer) {
            break answer.json();
        }
        assert!(died.elapsed() < 5 * AFTER, "it is not replaced: {}", answer.stderr);
    };
    assert!(died.elapsed() >= AFTER, "it was replaced after {:?}", died.elapsed());
    assert_eq!(ended["document"]["decision"]["exceeds"], Json::from("dead"));
    traffic.await_more(200);
    let heard = traffic.end();
    // What was on its way to the node when it was stopped, or killed twice, may have arrived there: four clients wait for
    // one answer each.
    assert!(heard.failed.is_empty() && heard.unknown.len() <= 12, "{:?} {:?}", heard.failed, heard.unknown);
    heard.check_at(addresses[..2].to_vec());
}
