//! The same on three addresses with three ZooKeeper servers, of which one dies, then the leader, then all.
//!
//! The whole ensemble is away for 20 s, and for as long as the variable `TONTINE_AWAY_SECONDS` says where it is set:
//!
//! ```text
//! TONTINE_AWAY_SECONDS=300 cargo test --profile proof -p cli --test suite real_input::machines -- --ignored --nocapture
//! ```

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{await_acknowledged, check_through_native, check_through_resp, expected, package_index, stanzas};
use crate::cluster::command;
use crate::machines::fleet::Fleet;
use crate::machines::registered;
use crate::machines::servers::wait_until;
use crate::traffic::{CLIENTS, Traffic};

/// How long the whole ensemble is away, unless somebody says otherwise: for longer than sessions live.
const AWAY_SECONDS: u64 = 20;
/// How long a load takes beside that: each half of the test sees shares of it in turn, and starts nodes and servers in
/// between, some of which wait for sessions to end.
const LOAD: Duration = Duration::from_secs(50);

fn away() -> Duration {
    let asked = std::env::var("TONTINE_AWAY_SECONDS").ok();
    Duration::from_secs(asked.map_or(AWAY_SECONDS, |text| text.parse().expect("a number of seconds")))
}

/// Loads a file of this many records in its own process, for at least `time`.
fn load(fleet: &Fleet, file: &str, records: usize, time: Duration) -> Child {
    let connect = fleet.addresses().join(",");
    let rate = (records as u64 / time.as_secs()).to_string();
    let words = ["load", file, "--key=Package", "--rate", &rate, "--json", "--connect", &connect];
    let mut load = command(&words);
    load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    load.spawn().unwrap()
}

#[test]
#[ignore = "needs package lists; ./check real-input runs it"]
fn the_package_index_is_loaded_while_a_node_a_server_its_leader_and_the_whole_ensemble_die() {
    let (index, source) = package_index();
    let expected = expected(&index);
    let records = stanzas(&index);
    eprintln!("input: {source}, {} packages, {} bytes", expected.len(), index.len());
    let mut fleet = Fleet::start(3);
    let write = |name: &str| {
        let path = fleet.folder.path().join(name).display().to_string();
        std::fs::write(&path, &index).unwrap();
        path
    };
    let (first, second) = (write("first.deb822"), write("second.deb822"));
    let traffic = Traffic::at(fleet.addresses());

    let mut loading = load(&fleet, &first, records, LOAD);
    await_acknowledged(&first, 0.1, &mut loading);
    fleet.restart(2, Signal::KILL);
    await_acknowledged(&first, 0.3, &mut loading);
    let (_, follower) = fleet.ensemble.leader_and_follower();
    fleet.ensemble.servers[follower].kill();
    await_acknowledged(&first, 0.5, &mut loading);
    fleet.ensemble.servers[follower].start();
    fleet.ensemble.wait_serving();
    let (leader, _) = fleet.ensemble.leader_and_follower();
    fleet.ensemble.servers[leader].kill();
    await_acknowledged(&first, 0.7, &mut loading);
    fleet.ensemble.servers[leader].start();
    fleet.ensemble.wait_serving();
    assert!(loading.wait().unwrap().success());

    let (killed, mut loading) = (Instant::now(), load(&fleet, &second, records, LOAD + away()));
    for server in &mut fleet.ensemble.servers {
        server.kill();
    }
    // Small shares: this load lasts as long as the ensemble is away, and longer than a share is waited for.
    await_acknowledged(&second, 0.1, &mut loading);
    fleet.restart(3, Signal::TERM);
    await_acknowledged(&second, 0.2, &mut loading);
    while killed.elapsed() < away() {
        traffic.await_more(50);
    }
    for server in &mut fleet.ensemble.servers {
        server.start();
    }
    fleet.ensemble.wait_serving();
    eprintln!("the ensemble was away for {:?}", killed.elapsed());
    wait_until("all nodes are registered again", || registered(&fleet.address).len() == 3);
    assert!(loading.wait().unwrap().success());

    traffic.await_more(200);
    let heard = traffic.end();
    eprintln!("{} requests failed, {} are in doubt", heard.failed.len(), heard.unknown.len());
    assert_eq!(heard.failed, Vec::<String>::new());
    // Only a process that is killed leaves its clients in doubt.
    assert!(heard.unknown.len() <= CLIENTS, "{:?}", heard.unknown);
    fleet.await_no_hints();
    heard.check_at(fleet.addresses());
    let doors: Vec<String> = (1..=3).map(|id| fleet.resp(id)).collect();
    check_through_resp(&doors, &expected);
    check_through_native(&fleet.native(3), &expected);
    let downs = fleet.believed_down();
    assert!(downs.iter().all(|(peer, _)| *peer == 2), "only n2 was killed: {downs:?}");
    fleet.stop();
}
