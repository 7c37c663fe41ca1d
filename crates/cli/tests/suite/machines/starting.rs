//! How long a node takes from its command to the line that says that it serves.
//!
//! ```text
//! cargo test --profile proof -p cli --test suite start_times -- --ignored --nocapture
//! ```

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::fleet::{Fleet, SESSION_TIMEOUT};
use super::registered;
use super::servers::wait_until;
use crate::cluster::tontine;

/// How often each start is timed.
const ROUNDS: usize = 5;
/// Records that each node holds.
const RECORDS: usize = 20_000;

/// The middle and the longest of some times, in milliseconds.
fn shown(times: &mut [Duration]) -> String {
    times.sort();
    format!("{} | {}", times[times.len() / 2].as_millis(), times[times.len() - 1].as_millis())
}

/// Ends node 1 and times its next start.
fn again(fleet: &mut Fleet, signal: Signal) -> Duration {
    fleet.nodes[0].stop(signal);
    let begun = Instant::now();
    fleet.nodes[0] = fleet.launch(1);
    fleet.nodes[0].await_line("node 1  ");
    begun.elapsed()
}

/// Starts a node that never was, and times it to the end of the command that names it.
fn new_node(fleet: &Fleet, id: usize) -> Duration {
    let begun = Instant::now();
    let mut node = fleet.launch(id);
    wait_until("the new node is registered", || registered(&fleet.address).len() == 4);
    tontine(&["node", "add", &id.to_string(), "--connect", &fleet.addresses().join(",")]).exits(0);
    node.await_line(&format!("node {id}  "));
    let taken = begun.elapsed();
    assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    taken
}

#[test]
#[ignore = "it measures, and judges nothing"]
fn start_times() {
    let mut fleet = Fleet::start(3);
    let file = fleet.folder.path().join("records.jsonl");
    let record = |number: usize| format!("{{\"key\":\"key-{number}\",\"value\":\"{}\"}}\n", "x".repeat(1000));
    std::fs::write(&file, (0..RECORDS).map(record).collect::<String>()).unwrap();
    let connect = fleet.addresses().join(",");
    tontine(&["load", &file.display().to_string(), "--key=key", "--connect", &connect]).exits(0);

    println!("sessions of {SESSION_TIMEOUT:?}, {RECORDS} records of 1,000 bytes, {ROUNDS} starts each\n");
    println!("| the last process | ensemble | middle, ms | longest, ms |\n|---|---|---|---|");
    let mut times: Vec<Duration> = (4..4 + ROUNDS).map(|id| new_node(&fleet, id)).collect();
    println!("| none: a new node, admitted at once | up | {} |", shown(&mut times));
    let ends = [("was stopped", Signal::TERM), ("was killed", Signal::KILL)];
    for (end, signal) in ends {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| again(&mut fleet, signal)).collect();
        println!("| {end} | up | {} |", shown(&mut times));
    }
    fleet.ensemble.servers.iter_mut().for_each(super::servers::Server::kill);
    for (end, signal) in ends {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| again(&mut fleet, signal)).collect();
        println!("| {end} | down | {} |", shown(&mut times));
    }
    let back = Instant::now();
    fleet.ensemble.servers.iter_mut().for_each(super::servers::Server::start);
    fleet.ensemble.wait_serving();
    let serving = back.elapsed();
    wait_until("all are registered", || registered(&fleet.address).len() == 3);
    println!("\nregistered {} ms after the ensemble served again", (back.elapsed() - serving).as_millis());
}
