//! Machines that stand by, on real processes: called, replaced, and left alone by a removal.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value as Json, json};

use super::{Fleet, POLICY};
use crate::adapters::tontine::{check_all, fill};
use crate::cluster::signal;

fn ready(machines: &[Json]) -> Option<&Json> {
    machines.iter().find(|machine| machine["state"] == "ready")
}

fn token(machine: &Json) -> String {
    machine["token"].as_str().unwrap().to_owned()
}

fn of_token<'a>(machines: &'a [Json], token: &str) -> Option<&'a Json> {
    machines.iter().find(|machine| machine["token"] == token)
}

#[test]
fn a_machine_that_stands_by_serves_after_its_join_alone_and_is_bought_anew() {
    let mut fleet = Fleet::with(&format!("standby = 1\n{POLICY}"));
    let all = fill(&fleet.cluster);
    let _controller = fleet.controller();
    fleet.run(&["adopt", "shop", "--member=n1", "--member=n2", "--member=n3"]).exits(0);
    let machines = fleet.await_machines("one is ready", |machines| ready(machines).is_some());
    let first = token(ready(&machines).unwrap());
    let status = fleet.run(&["status", "shop"]).exits(0).text();
    assert!(status.contains("3 serve") && status.contains("standby: 1 ready, 1 wanted"), "{status}");
    let nodes = fleet.cluster.json(&["status"])["nodes"].as_array().unwrap().len();
    assert_eq!(nodes, 3, "one that stands by is no member");

    // Its process ends: it is replaced, and nobody is ended for that.
    fleet.processes(Some(&first)).into_iter().for_each(|process| signal(process, Signal::KILL));
    let machines = fleet.await_machines("another one is ready", |machines| {
        ready(machines).is_some_and(|machine| token(machine) != first)
    });
    let second = token(ready(&machines).unwrap());

    fleet.run(&["plan", "shop", "+1", "--no-wait"]).exits(0);
    let called = |state: &str| {
        let machines = fleet.await_machines(state, |machines| {
            let machine = of_token(machines, &second).expect("it is there until it serves");
            machine["state"] == state || machine["state"] == "serving"
        });
        of_token(&machines, &second).unwrap()["since"].as_u64().unwrap()
    };
    let (joined, served) = (called("joining"), called("serving"));
    let decisions = fleet.run(&["history", "shop", "--json"]).exits(0).json();
    let growth = decisions["decisions"].as_array().unwrap().iter().rfind(|one| one["verdict"] == "add");
    let growth = growth.unwrap_or_else(|| panic!("{decisions}"));
    assert_eq!(growth["from_standby"], 1, "{growth}");
    let ordered = growth["at"].as_u64().unwrap();
    eprintln!("called in {} ms, joined in {} ms", joined - ordered, served - joined);
    let history = fleet.run(&["history", "shop"]).exits(0).text();
    assert!(history.contains("1 from standby"), "{history}");
    check_all(&fleet.cluster, &all);

    let machines = fleet.await_machines("a third one is ready", |machines| ready(machines).is_some());
    let third = token(ready(&machines).unwrap());
    let why = fleet.run(&["why", "shop"]).exits(0).text();
    assert!(why.contains("standby: 1 ready, 1 wanted"), "{why}");
    fleet.run(&["remove", "shop", "--keep-machines"]).fails_with("is ready; wait until nothing is under way");

    // The member that leaves ends; the machine that stands by stays.
    fleet.run(&["plan", "shop", "-1"]).exits(0);
    let machines =
        fleet.await_machines("the other one is gone", |machines| of_token(machines, &second).is_none());
    assert_eq!(of_token(&machines, &third).unwrap()["state"], "ready", "{machines:?}");
    check_all(&fleet.cluster, &all);

    // Nobody wants it any more: it goes by evidence, as a member does.
    let policy = fleet.cluster.write("shop.toml", POLICY);
    let applied = fleet.run(&["apply", &policy, "--json"]).exits(0).json();
    assert_eq!(applied["changes"][0]["field"], json!("standby"), "{applied}");
    fleet.await_machines("none is left", |machines| machines.len() == 3);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(fleet.processes(None), [0; 0]);
}
