//! Resizes of a Redis Cluster whose adapter is killed, stopped and doubled all the time, and the same by a controller.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::fixture::{Servers, at, is_proof, members, state};
use crate::adapters::speaking::{Speaking, await_some};
use crate::cluster::{Process, TONTINE, command, tontine};
use crate::elastic::Dice;

/// Longest wait for one resize.
const PATIENCE: Duration = Duration::from_secs(240);

/// A cluster of three, a fourth server, and what happens to adapters.
struct Abused {
    servers: Servers,
    words: Vec<String>,
    dice: Dice,
    id: String,
    kills: u32,
}

impl Abused {
    fn new(keys: usize, pace: &str, seed: u64) -> Abused {
        let mut servers = Servers::cluster(3);
        servers.fill(keys);
        let words = servers.words(&[pace, "--batch=20"]);
        let mut engine = Speaking::start(&words);
        let address = servers.boot(&mut engine);
        let id = await_some("the new server waits", || {
            Some(at(&members(&mut engine), &address)?["id"].as_str().unwrap().to_owned())
        });
        Abused { servers, words, dice: Dice(seed), id, kills: 0 }
    }

    /// Calls a verb again and again, of adapters that are killed, until the member is so far. Of some there are two at once.
    fn until(&mut self, verb: &str, wanted: &str) {
        let began = Instant::now();
        let params = json!({ "member": self.id });
        loop {
            assert!(began.elapsed() < PATIENCE, "{verb} in time");
            let mut first = Speaking::start(&self.words);
            let mut second = (self.dice.below(3) == 0).then(|| Speaking::start(&self.words));
            for engine in [Some(&mut first), second.as_mut()].into_iter().flatten() {
                let answer = engine.ask(verb, params.clone());
                let passes = answer.get("result").is_some() || answer["error"]["code"] == -32_000;
                assert!(passes, "{answer}");
            }
            if state(&mut first, &self.id) == wanted && self.servers.open_slots() == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(self.dice.below(700)));
            first.kill();
            self.kills += 1;
        }
    }

    /// Begins something and takes it back at some moment.
    fn begin(&mut self, verb: &str) {
        let mut engine = Speaking::start(&self.words);
        engine.ask(verb, json!({ "member": self.id }));
        std::thread::sleep(Duration::from_millis(self.dice.below(500)));
        engine.kill();
        self.kills += 1;
    }

    fn is_proved(&self) -> bool {
        let mut engine = Speaking::start(&self.words);
        is_proof(&engine.call("evidence", json!({ "member": self.id })))
    }
}

#[test]
fn a_redis_adapter_that_is_killed_at_any_moment_loses_no_key_and_leaves_no_slot_open() {
    let mut abused = Abused::new(6_000, "--pace=10", 11);
    let load = abused.servers.load(1_000);
    abused.until("join", "serving");
    let counts = abused.servers.counts();
    assert!(counts.iter().all(|count| count.abs_diff(4096) < 64), "{counts:?}");
    assert!(!abused.is_proved());
    abused.begin("drain");
    abused.until("cancel", "serving");
    abused.until("drain", "waiting");
    await_some("it is proved", || abused.is_proved().then_some(()));
    assert_eq!(abused.servers.counts()[3], 0);
    assert!(abused.kills >= 4, "{}", abused.kills);
    let done = load.ends_well(&abused.servers);
    assert!(done > 100, "{done}");
    // The load has written over the first keys.
    assert_eq!(abused.servers.check_from(1_000), 5_000);
}

/// The issue's *Nothing lost*.
#[test]
#[ignore = "takes many minutes"]
fn nothing_is_lost_in_a_hundred_resizes_of_a_redis_cluster_with_kills() {
    let mut abused = Abused::new(5_000, "--pace=60", 5);
    let (mut resizes, mut back, mut serves) = (0, 0, false);
    let load = abused.servers.load(1_000);
    while resizes < 100 {
        if serves && abused.dice.below(4) == 0 {
            abused.begin("drain");
            abused.until("cancel", "serving");
            back += 1;
        }
        if !serves && abused.dice.below(4) == 0 {
            abused.begin("join");
            abused.until("drain", "waiting");
            back += 1;
        }
        let (verb, wanted) = if serves { ("drain", "waiting") } else { ("join", "serving") };
        abused.until(verb, wanted);
        serves = !serves;
        resizes += 1;
        println!("{resizes} resizes, {back} taken back, {} kills", abused.kills);
        if !serves {
            await_some("it is proved", || abused.is_proved().then_some(()));
        }
        assert_eq!(abused.servers.check_from(1_000), 4_000);
    }
    let done = load.ends_well(&abused.servers);
    println!(
        "{resizes} resizes, {back} taken back, {} kills, {done} reads and writes meanwhile",
        abused.kills
    );
}

const POLICY: &str =
    "engine = \"redis\"\nprovider = \"local\"\nmachine-type = \"local\"\nmin = 3\nmax = 5\nmode = \"auto\"\n";

/// A fleet whose machines run Redis.
struct Fleet<'a> {
    servers: &'a Servers,
    machines: Vec<String>,
    adapters: String,
}

impl<'a> Fleet<'a> {
    fn new(servers: &'a Servers) -> Fleet<'a> {
        let (machines, range) = (servers.path("machines"), servers.machines());
        let provider = ["adapter", "local", "--dir", &machines, &range].map(str::to_owned).to_vec();
        let command = |words: &[String]| json!([&[TONTINE.to_owned()], words].concat()).to_string();
        let text = format!(
            "[engines.redis]\ncommand = {}\n[providers.local]\ncommand = {}\n",
            command(&servers.words(&[])),
            command(&provider)
        );
        let (adapters, policy) = (servers.path("adapters.toml"), servers.path("shop.toml"));
        std::fs::write(&adapters, text).unwrap();
        std::fs::write(&policy, POLICY).unwrap();
        let fleet = Fleet { servers, machines: provider, adapters };
        fleet.run(&["apply", &policy]).exits(0);
        fleet
    }

    fn service(&self) -> String {
        format!("--coordination=dir:{}", self.servers.path("service"))
    }

    fn run(&self, words: &[&str]) -> crate::cluster::Answer {
        let service = self.service();
        let (verb, rest) = words.split_first().unwrap();
        tontine(&[&["elastic", verb, &service], rest].concat())
    }

    fn status(&self) -> Json {
        self.run(&["status", "shop", "--json"]).exits(0).json()
    }

    fn await_serving(&self, wanted: usize) {
        let began = Instant::now();
        loop {
            let status = self.status();
            let machines = status["fleet"]["machines"].as_array().unwrap();
            if machines.len() == wanted && machines.iter().all(|machine| machine["state"] == "serving") {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{status}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        let mut provider = Speaking::start(&self.machines);
        let listed = provider.call("list", json!({}));
        for instance in listed["instances"].as_array().unwrap() {
            provider.call("terminate", json!({ "instance": instance["id"] }));
        }
    }
}

#[test]
fn a_fleet_of_redis_servers_grows_and_shrinks_by_command() {
    let servers = Servers::cluster(3);
    let fleet = Fleet::new(&servers);
    let load = servers.load(2_000);
    let (service, adapters) = (fleet.service(), format!("--adapters={}", fleet.adapters));
    let mut run = command(&["elastic", "run", &service, &adapters]);
    let controller = Process::start(&mut run, PathBuf::from(servers.path("controller")));
    let founders = servers.ids().into_iter().map(|id| format!("--member={id}"));
    let adopt: Vec<String> = ["adopt".to_owned(), "shop".to_owned()].into_iter().chain(founders).collect();
    let adopt: Vec<&str> = adopt.iter().map(String::as_str).collect();
    await_some("a controller has looked", || (fleet.run(&adopt).code == 0).then_some(()));
    fleet.await_serving(3);
    fleet.run(&["plan", "shop", "+1"]).exits(0);
    fleet.await_serving(4);
    let mut engine = Speaking::start(&servers.words(&[]));
    let seen = members(&mut engine);
    assert_eq!(seen.iter().filter(|member| member["state"] == "serving").count(), 4, "{seen:?}");
    fleet.run(&["plan", "shop", "-1"]).exits(0);
    fleet.await_serving(3);
    await_some("nobody observes it", || (members(&mut engine).len() == 3).then_some(()));
    assert_eq!(servers.counts().iter().sum::<usize>(), 16_384);
    load.ends_well(&servers);
    drop(controller);
}
