//! A move while ZooKeeper is away for longer than any session lives.

use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tempfile::TempDir;

use crate::cluster::{Process, command, free_port_base, tontine};
use crate::machines::servers::{Ensemble, wait_until};
use crate::machines::{registered, start_node};
use crate::observe::until;
use crate::traffic::Traffic;

/// How long ZooKeeper is away; a session lives for four seconds.
const AWAY: Duration = Duration::from_secs(60);

#[test]
#[ignore = "takes a minute; ./check --full process runs it"]
fn a_move_pauses_while_zookeeper_is_away_and_goes_on_when_it_is_back() {
    let folder = TempDir::new().unwrap();
    let mut ensemble = Ensemble::start(1);
    let address = ensemble.address("/shop");
    let port_base = format!("--port-base={}", free_port_base());
    let words = ["cluster", "create", "--coordination", &address, "--name=shop", "--nodes=4", &port_base];
    let created = tontine(&[&words[..], &["--json"]].concat()).exits(0).json();
    let nodes = created["nodes"].as_array().unwrap();
    let addresses: Vec<String> =
        nodes.iter().map(|node| node["native"].as_str().unwrap().to_owned()).collect();
    let _nodes: Vec<Process> = (1..=4).map(|id| start_node(id, &address, folder.path())).collect();
    let mut office = command(&["headmaster", "--coordination", &address, "--session-timeout=4s"]);
    let _headmaster = Process::start(&mut office, folder.path().join("headmaster.stderr"));
    wait_until("all nodes are registered", || registered(&address).len() == 4);
    let traffic = Traffic::at(addresses.clone());
    traffic.await_more(200);

    let run = |words: &[&str]| tontine(&[words, &["--connect", &addresses.join(","), "--json"]].concat());
    until("there is a headmaster", || run(&["plan", "create", "drain", "4"]).code, |code| *code == 0);
    run(&["plan", "apply", "1", "--no-wait"]).exits(0);
    let plan = || run(&["plan", "show", "1"]).json();
    let moves = |plan: &Json| {
        let progress = &plan["state"]["progress"];
        ["copying", "joint", "reading_new"].iter().any(|step| progress[step].as_u64() > Some(0))
    };
    until("partitions move", plan, moves);
    ensemble.servers[0].kill();
    let killed = Instant::now();
    while killed.elapsed() < AWAY {
        traffic.await_more(50);
    }
    ensemble.servers[0].start();
    ensemble.wait_serving();
    wait_until("all nodes are registered again", || registered(&address).len() == 4);
    let ended = until("the plan is done", plan, |plan| plan["phase"] == "done");
    let after = ended["state"]["ended_ms"].as_u64().unwrap() - ended["state"]["begun_ms"].as_u64().unwrap();
    assert!(u128::from(after) > AWAY.as_millis(), "it was done before ZooKeeper was away: {ended}");
    traffic.await_more(200);
    let heard = traffic.end();
    assert_eq!((&heard.failed[..], &heard.unknown[..]), (&[][..], &[][..]));
    heard.check_at(addresses);
}
