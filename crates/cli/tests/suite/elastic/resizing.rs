//! Random resizes of a fleet whose controller and adapters are killed all the time, under clients that read and write.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;

use super::{Dice, Fleet, PATIENCE};
use crate::cluster::{Cluster, Process, signal};
use crate::observe::{addresses, connect};
use crate::traffic::Traffic;

/// Keys that no client writes: all are compared after each resize.
const KEYS: usize = 4_000;
/// Keys that are asked for at once.
const AT_ONCE: usize = 100;
/// The longest pause before something is killed, in milliseconds.
const PAUSE_MS_MAX: u64 = 2_500;
/// The size follows orders alone.
const POLICY: &str = "engine = \"tontine\"\nprovider = \"local\"\nmachine-type = \"local\"\nmin = 3\nmax = 6\n\
                      sizing = \"rules\"\n";
const MEMBERS: std::ops::RangeInclusive<i64> = 3..=6;

fn key(number: usize) -> String {
    format!("kept-{number}")
}

fn value(number: usize) -> String {
    format!("value-{number}-{}", "x".repeat(number % 200))
}

fn fill(cluster: &Cluster) {
    let records: String = (0..KEYS).map(|number| format!("{}\t{}\n", key(number), value(number))).collect();
    let file = cluster.write("kept.tsv", records);
    cluster.run(&["load", &file, "--key", "1", "--value", "2"]).exits(0);
}

fn check_all(cluster: &Cluster) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = connect(addresses(cluster)).await;
        let numbers: Vec<usize> = (0..KEYS).collect();
        for some in numbers.chunks(AT_ONCE) {
            let gets = some.iter().map(|&number| {
                let store = store.clone();
                async move { (number, store.get(key(number)).await.unwrap().value()) }
            });
            for (number, found) in futures_util::future::join_all(gets).await {
                let found = found.map(|found| String::from_utf8_lossy(&found).into_owned());
                assert_eq!(found, Some(value(number)), "{}", key(number));
            }
        }
    });
}

/// Children of a process: the adapters of a controller.
pub(super) fn children(parent: u32) -> Vec<u32> {
    let is_child = |id: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        fields.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// A fleet whose controller and adapters do not live long.
struct Abused {
    // Before the fleet, so that it ends first: it would start machines that are ended with the fleet.
    controller: Process,
    fleet: Fleet,
    dice: Dice,
    controllers_killed: u32,
    adapters_killed: u32,
}

impl Abused {
    fn new(seed: u64) -> Abused {
        let mut fleet = Fleet::with(POLICY);
        fill(&fleet.cluster);
        // A new member gets its share by one plan at once. The autopilot would give it bit by bit, in a minute.
        fleet.cluster.run(&["balance", "off"]).exits(0);
        let controller = fleet.controller();
        fleet.run(&["adopt", "shop", "--member=n1", "--member=n2", "--member=n3"]).exits(0);
        Abused { controller, fleet, dice: Dice(seed), controllers_killed: 0, adapters_killed: 0 }
    }

    /// Kills the controller, or one of its adapters, after a while.
    fn kill(&mut self) {
        std::thread::sleep(Duration::from_millis(self.dice.below(PAUSE_MS_MAX)));
        let adapters = children(self.controller.id());
        if adapters.is_empty() || self.dice.below(2) == 0 {
            self.controller.stop(Signal::KILL);
            self.controller = self.fleet.controller();
            self.controllers_killed += 1;
        } else {
            let chosen = self.dice.below(adapters.len() as u64) as usize;
            signal(adapters[chosen], Signal::KILL);
            self.adapters_killed += 1;
        }
    }

    /// Gives an order, and once more where it was refused because an adapter had just been killed.
    fn order(&self, words: &[&str]) {
        let began = Instant::now();
        loop {
            let answer = self.fleet.run(words);
            if answer.code == 0 {
                return;
            }
            let is_too_early = answer.code == 2 && answer.stderr.contains("did not answer");
            assert!(is_too_early && began.elapsed() < PATIENCE, "{words:?}: {}", answer.stderr);
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Kills until every machine serves, and as many as are wanted. How many those are.
    fn await_settled(&mut self) -> i64 {
        let began = Instant::now();
        loop {
            self.kill();
            let status = self.fleet.status();
            let fleet = &status["fleet"];
            assert_eq!(fleet["paused"], Json::Null, "{status}");
            let machines = fleet["machines"].as_array().unwrap();
            let is_settled = machines.iter().all(|machine| machine["state"] == "serving")
                && fleet["target"] == machines.len();
            if is_settled {
                return machines.len() as i64;
            }
            assert!(began.elapsed() < PATIENCE, "{}", self.fleet.run(&["status", "shop"]).text());
        }
    }

    /// How many members more or fewer, within the bounds.
    fn resize(&mut self, serving: i64) -> i64 {
        loop {
            let by = [-2, -1, 1, 2][self.dice.below(4) as usize];
            if MEMBERS.contains(&(serving + by)) {
                return by;
            }
        }
    }
}

fn of_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// The issue's *Nothing lost*. `TONTINE_RESIZES` says how many, and `TONTINE_SEED` which.
#[test]
#[ignore = "takes many minutes"]
fn nothing_is_lost_in_random_resizes_of_a_fleet_with_kills() {
    let (wanted, seed) = (of_environment("TONTINE_RESIZES", 100), of_environment("TONTINE_SEED", 5));
    let mut abused = Abused::new(seed);
    let traffic = Traffic::start(&abused.fleet.cluster);
    let (began, mut serving, mut resizes, mut back) = (Instant::now(), 3, 0, 0);
    while resizes < wanted {
        let by = abused.resize(serving);
        abused.order(&["plan", "shop", &format!("{by:+}"), "--no-wait"]);
        let is_taken_back = abused.dice.below(5) == 0;
        if is_taken_back {
            abused.kill();
            abused.order(&["abort", "shop"]);
            back += 1;
        }
        let settled = abused.await_settled();
        assert!(is_taken_back || settled == serving + by, "{settled} serve, and not {serving} {by:+}");
        resizes += u64::from(!is_taken_back);
        serving = settled;
        check_all(&abused.fleet.cluster);
        traffic.await_more(100);
        println!(
            "{resizes} resizes, {back} taken back, {} controllers and {} adapters killed, {serving} serve after {:?}",
            abused.controllers_killed,
            abused.adapters_killed,
            began.elapsed()
        );
    }
    let heard = traffic.end();
    assert_eq!((&heard.failed, &heard.unknown), (&Vec::new(), &Vec::new()));
    heard.check(&abused.fleet.cluster);
    assert_eq!(abused.fleet.instances().len() as i64, serving - 3, "no machine is left over");
    println!("{} requests, none failed, the longest took {:?}", heard.requests, heard.longest);
}
