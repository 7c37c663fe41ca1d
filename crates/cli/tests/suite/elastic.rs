//! Fleets on real processes: a cluster that grows and shrinks while its controller is killed, adapters that misbehave, bad
//! policies, and `tontine dev --elastic`.

mod figures;
mod hands;
mod lies;
mod redis;
mod resizing;
mod standby;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value as Json, json};

use crate::adapters::tontine::{check_all, fill, words};
use crate::cluster::{Cluster, Process, TONTINE, command, tontine};

/// Longest wait for a fleet.
const PATIENCE: Duration = Duration::from_secs(240);

const POLICY: &str = "engine = \"tontine\"\nprovider = \"local\"\nmachine-type = \"local\"\nmin = 3\nmax = 6\nmode = \"auto\"\n";

/// Where lies of adapters are kept.
const LIES: &str = "lies";

/// Numbers that look random, and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A cluster with a fleet, and what is needed to control it.
struct Fleet {
    cluster: Cluster,
    adapters: String,
    started: usize,
}

impl Fleet {
    fn new() -> Fleet {
        Fleet::with(POLICY)
    }

    fn with(policy: &str) -> Fleet {
        Fleet::through(policy, |_| Vec::new())
    }

    /// One whose adapters lie as [`Fleet::lie`] says.
    fn lying(policy: &str) -> Fleet {
        Fleet::through(policy, |cluster| {
            std::fs::create_dir(cluster.file(LIES)).unwrap();
            vec!["python3".to_owned(), fixture("lying_adapter.py"), cluster.file(LIES)]
        })
    }

    /// One whose adapters run behind the program that is given.
    fn through(policy: &str, program: impl Fn(&Cluster) -> Vec<String>) -> Fleet {
        let cluster = Cluster::with(3, &["--partitions=64"]);
        let program = program(&cluster);
        let own = words(&cluster, &[]);
        let engine: Vec<&str> = program.iter().map(String::as_str).chain([TONTINE]).collect();
        let engine = [engine, own.iter().map(String::as_str).collect()].concat();
        let machines = cluster.file("machines");
        let own = [TONTINE, "adapter", "local", "--dir", &machines];
        let provider: Vec<&str> = program.iter().map(String::as_str).chain(own).collect();
        let text = format!(
            "[engines.tontine]\ncommand = {}\n[providers.local]\ncommand = {}\ndeadline = 60\n",
            json!(engine),
            json!(provider)
        );
        let adapters = cluster.write("adapters.toml", text);
        let policy = cluster.write("shop.toml", policy);
        let fleet = Fleet { cluster, adapters, started: 0 };
        fleet.run(&["apply", &policy]).exits(0);
        fleet
    }

    /// Begins a lie of an adapter: `fixtures/lying_adapter.py` lists them.
    fn lie(&self, name: &str) {
        std::fs::write(PathBuf::from(self.cluster.file(LIES)).join(name), "").unwrap();
    }

    fn tell_the_truth(&self, name: &str) {
        std::fs::remove_file(PathBuf::from(self.cluster.file(LIES)).join(name)).unwrap();
    }

    /// Whether an adapter of this controller has noted this: `fixtures/lying_adapter.py` says what there is.
    fn was_noted(&self, what: &str, controller: &Process) -> bool {
        PathBuf::from(self.cluster.file(LIES)).join(format!("{what}-{}", controller.id())).exists()
    }

    /// Adopts the three members with which the cluster began.
    fn adopt_all(&self) {
        self.run(&["adopt", "shop", "--member=n1", "--member=n2", "--member=n3"]).exits(0);
    }

    fn service(&self) -> String {
        format!("--coordination=dir:{}", self.cluster.data().join("coordination").display())
    }

    fn run(&self, words: &[&str]) -> crate::cluster::Answer {
        let service = self.service();
        let (verb, rest) = words.split_first().unwrap();
        tontine(&[&["elastic", verb, &service], rest].concat())
    }

    fn controller(&mut self) -> Process {
        self.started += 1;
        let (service, adapters) = (self.service(), format!("--adapters={}", self.adapters));
        let stderr = PathBuf::from(self.cluster.file(&format!("controller-{}", self.started)));
        Process::start(&mut command(&["elastic", "run", &service, &adapters]), stderr)
    }

    fn status(&self) -> Json {
        self.run(&["status", "shop", "--json"]).exits(0).json()
    }

    /// The states of all machines, by token.
    fn states(&self) -> BTreeMap<String, String> {
        let status = self.status();
        let machines = status["fleet"]["machines"].as_array().unwrap();
        let text = |value: &Json| value.as_str().unwrap().to_owned();
        machines.iter().map(|machine| (text(&machine["token"]), text(&machine["state"]))).collect()
    }

    /// Waits for this many members that serve and nothing else, and kills the controller at each transition.
    fn await_through_kills(&mut self, serving: usize) -> usize {
        let mut controller = self.controller();
        let (mut before, mut kills) = (self.states(), 0);
        let began = Instant::now();
        loop {
            let states = self.states();
            if states != before {
                before = states.clone();
                controller.stop(Signal::KILL);
                controller = self.controller();
                kills += 1;
            }
            if states.len() == serving && states.values().all(|state| state == "serving") {
                controller.stop(Signal::TERM);
                return kills;
            }
            assert!(began.elapsed() < PATIENCE, "{}", self.status());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Machines, as the document has them.
    fn machines(&self) -> Vec<Json> {
        self.status()["fleet"]["machines"].as_array().unwrap().clone()
    }

    fn await_machines(&self, what: &str, is_so: impl Fn(&[Json]) -> bool) -> Vec<Json> {
        let began = Instant::now();
        loop {
            let machines = self.machines();
            if is_so(&machines) {
                return machines;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "not in time: {what}: {}",
                self.run(&["status", "shop"]).text()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn await_serving(&self, count: usize) -> Vec<Json> {
        self.await_machines("that many serve", |machines| {
            machines.iter().filter(|one| one["state"] == "serving").count() == count
        })
    }

    /// Processes of its machines; of the one with this token alone, if one is given.
    fn processes(&self, token: Option<&str>) -> Vec<u32> {
        processes(&self.cluster.file("machines"), token)
    }

    fn instances(&self) -> Vec<String> {
        let all = std::fs::read_dir(PathBuf::from(self.cluster.file("machines")).join("shop"));
        let names = all.into_iter().flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        end_all(&self.cluster.file("machines"));
    }
}

/// Process ids of machines in a directory of the local provider; of the one with this token alone, if one is given.
fn processes(machines: &str, token: Option<&str>) -> Vec<u32> {
    let ours = format!("MACHINE_DATA={machines}");
    let of_token = token.map(|token| format!("MACHINE_TOKEN={token}"));
    let is_ours = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let has = |start: &str, whole: bool| {
            environment.split(|byte| *byte == 0).any(|variable| match whole {
                true => variable == start.as_bytes(),
                false => variable.starts_with(start.as_bytes()),
            })
        };
        has(&ours, false) && of_token.as_ref().is_none_or(|token| has(token, true))
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

/// Ends what machines in a directory of the local provider run.
fn end_all(machines: &str) {
    for process in processes(machines, None) {
        let process = rustix::process::Pid::from_raw(process as i32).expect("it is not 0");
        let _ = rustix::process::kill_process(process, Signal::KILL);
    }
}

/// A program of the folder of fixtures.
fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_fleet_grows_and_shrinks_while_its_controller_is_killed_at_each_transition() {
    let mut fleet = Fleet::new();
    let all = fill(&fleet.cluster);
    let mut controller = fleet.controller();
    fleet.run(&["adopt", "shop", "--member=n1", "--member=n2", "--member=n3"]).exits(0);
    let dry = fleet.run(&["plan", "shop", "+1", "--dry-run", "--json"]).exits(0).json();
    assert_eq!((&dry["target"], dry["steps"].as_array().unwrap().len()), (&json!(4), 1), "{dry}");
    assert_eq!(fleet.states().len(), 3, "a dry run changed something");
    fleet.run(&["plan", "shop", "-1"]).fails_with("may not have fewer than 3 members");
    fleet.run(&["plan", "shop", "+4"]).fails_with("may not have more than 6 members");
    fleet.run(&["plan", "shop", "+1", "--no-wait"]).exits(0);
    controller.stop(Signal::KILL);
    let kills = fleet.await_through_kills(4);
    assert!(kills >= 2, "only {kills} transitions were met");
    check_all(&fleet.cluster, &all);
    assert_eq!(fleet.instances().len(), 1);
    fleet.run(&["remove", "shop"]).fails_with("1 machine of the provider serve in it");
    let mut controller = fleet.controller();
    fleet.run(&["plan", "shop", "-1", "--no-wait"]).exits(0);
    controller.stop(Signal::KILL);
    let kills = fleet.await_through_kills(3);
    assert!(kills >= 2, "only {kills} transitions were met");
    check_all(&fleet.cluster, &all);
    assert_eq!(fleet.instances(), [""; 0]);
    let history = fleet.run(&["history", "shop", "--json"]).exits(0).json();
    let decisions = history["decisions"].as_array().unwrap();
    let set = decisions.iter().filter(|one| one["set"] == true);
    let targets: Vec<u64> = set.map(|one| one["target"].as_u64().unwrap()).collect();
    assert!(targets.ends_with(&[4, 3]), "{history}");
    let why = fleet.run(&["why", "shop", "--json"]).exits(0).json();
    assert_eq!(why["decision"]["target"], 3, "{why}");
}

#[test]
fn a_fleet_of_dev_keeps_its_machines_and_their_data_while_dev_does_not_run() {
    let mut cluster = Cluster::with(3, &["--elastic=3..4", "--partitions=64"]);
    let service = format!("--coordination=dir:{}", cluster.data().join("coordination").display());
    let fleet = |words: &[&str]| {
        let (verb, rest) = words.split_first().unwrap();
        tontine(&[&["elastic", verb, &service], rest].concat())
    };
    let serving = || {
        let status = fleet(&["status", "dev", "--json"]).exits(0).json();
        let machines = status["fleet"]["machines"].as_array().unwrap().clone();
        machines.iter().filter(|machine| machine["state"] == "serving").count()
    };
    let await_serving = |count: usize| {
        let began = Instant::now();
        while serving() != count {
            assert!(began.elapsed() < PATIENCE, "{}", fleet(&["status", "dev"]).text());
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let all = fill(&cluster);
    await_serving(3);
    fleet(&["plan", "dev", "+1"]).exits(0);
    await_serving(4);
    check_all(&cluster, &all);
    cluster.restart();
    await_serving(4);
    check_all(&cluster, &all);
    let status = cluster.json(&["status"]);
    let alive = status["nodes"].as_array().unwrap().iter().filter(|node| node["state"] == "alive").count();
    assert_eq!(alive, 4, "{status}");
}

#[test]
fn adapters_that_misbehave_are_told_by_name_and_hold_up_no_other_fleet() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let good = [TONTINE, "adapter", "local", "--dir", &path("machines")].map(str::to_owned).to_vec();
    let shell = |script: &str| ["sh", "-c", script].map(str::to_owned).to_vec();
    let engines = [
        ("missing", vec!["/no/such/adapter".to_owned()], "there is no program /no/such/adapter"),
        ("hangs", shell("cat >/dev/null"), "it did not answer within 1 s, and was ended"),
        ("floods", shell("read x; yes '{\"id\":0}'"), "it wrote 64 lines that nobody asked for"),
        ("lies", shell("read x; echo not json; sleep 9"), "a line of 8 bytes that is no JSON-RPC answer"),
        ("endless", shell("read x; cat /dev/zero"), "a line of more than 1048576 bytes"),
        ("ends", shell("exit 3"), "it has ended"),
    ];
    let mut text = format!("[providers.local]\ncommand = {}\n", json!(good));
    for (name, command, _) in &engines {
        text.push_str(&format!("[engines.{name}]\ncommand = {}\ndeadline = 1\n", json!(command)));
    }
    std::fs::write(path("adapters.toml"), text).unwrap();
    let service = format!("--coordination=dir:{}", path("service"));
    let unnamed = ("unnamed", Vec::new(), "is not in");
    for (name, ..) in engines.iter().chain([&unnamed]) {
        let policy = POLICY.replace("engine = \"tontine\"", &format!("engine = \"{name}\""));
        std::fs::write(path("policy.toml"), policy).unwrap();
        tontine(&["elastic", "apply", &path("policy.toml"), "--name", name, &service]).exits(0);
    }
    let adapters = format!("--adapters={}", path("adapters.toml"));
    let words = ["elastic", "run", &service, &adapters];
    let _controller = Process::start(&mut command(&words), folder.path().join("stderr"));
    for (name, _, expected) in engines.iter().chain([&unnamed]) {
        let began = Instant::now();
        loop {
            let status = tontine(&["elastic", "status", name, &service]).exits(0).text();
            if status.contains(expected) {
                assert!(status.contains(&format!("engine adapter {name}")), "{status}");
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{name}: {status}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn what_a_newcomer_tries_on_a_fleet_without_machines_is_answered_plainly() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let service = format!("--coordination=dir:{}", path("service"));
    std::fs::write(path("shop.toml"), POLICY).unwrap();
    std::fs::write(path("adapters.toml"), "[engines.etcd]\ncommand = [\"false\"]\n").unwrap();
    let adapters = format!("--adapters={}", path("adapters.toml"));
    let elastic = |words: &[&str]| tontine(&[&["elastic"], words, &[&service]].concat());
    for lacks in [
        "has no engine adapter \"tontine\"; it has etcd",
        "has no provider adapter \"local\"; it has none",
        "name the controller's own file with --adapters",
    ] {
        elastic(&["apply", &path("shop.toml"), &adapters]).fails_with(lacks);
    }
    let applied = elastic(&["apply", &path("shop.toml")]).exits(0).text();
    assert!(applied.contains("fleet shop created"), "nothing was changed before: {applied}");
    elastic(&["apply", &path("shop.toml"), "--adapters=/no/such/file"])
        .fails_with("cannot read the adapters");
    let text = elastic(&["abort", "shop"]).exits(0).text();
    assert!(text.contains("nothing is under way in fleet shop"), "{text}");
    let text = elastic(&["resume", "shop"]).exits(0).text();
    assert!(text.contains("fleet shop was not paused"), "{text}");
    let run = |name: &str| {
        Process::start(&mut command(&["elastic", "run", &service, &adapters]), PathBuf::from(path(name)))
    };
    let said = |name: &str, words: &str| {
        let began = Instant::now();
        while !std::fs::read_to_string(path(name)).unwrap_or_default().contains(words) {
            assert!(began.elapsed() < PATIENCE, "{:?}", std::fs::read_to_string(path(name)));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let first = run("first");
    said("first", "controller of fleets elected");
    let _second = run("second");
    said("second", &format!("process {} of ", first.id()));
    said("second", "controls the fleets; this process waits");
    elastic(&["remove", "shop"]).exits(0);
    elastic(&["status", "shop"]).fails_with("there is no fleet shop (fleets: there is none yet)");
    elastic(&["remove", "shop"]).fails_with("there is no fleet shop");
}

#[test]
fn bad_policies_and_adapters_are_refused_with_the_field_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let service = format!("--coordination=dir:{}", path("service"));
    let apply = |policy: String| {
        std::fs::write(path("shop.toml"), policy).unwrap();
        tontine(&["elastic", "apply", &path("shop.toml"), &service])
    };
    apply(POLICY.to_owned()).exits(0);
    let with = |from: &str, to: &str| POLICY.replace(from, to);
    apply(with("min = 3", "min = 9")).fails_with("min: it is 9, above max, which is 6");
    apply(with("max = 6", "max = 6\nstandby = 4"))
        .fails_with("standby: it is 4, and max less min leaves room for 3");
    apply(with("max = 6", "max = 6\nstandby = -1")).fails_with("standby: a value is not as expected: u32");
    let rules = "max = 6\nadd = [{ of = \"any\", is = \"above\", bound = 40 }]\n\
                 remove = [{ of = \"all\", is = \"at-most\", bound = 45 }]";
    apply(with("max = 6", rules)).fails_with("remove[0].bound: it is 45, and add[0] adds a member above 40");
    apply(with("min = 3", "mim = 3")).fails_with("line 4, column 1: mim: unknown field, expected one of");
    apply(with("max = 6", "max = 6\nbudget = { per-hour = -1 }")).fails_with("not negative");
    let source = |kind: &str, at: &str| {
        let sources = format!("max = 6\nsources = [{{ kind = \"{kind}\", at = \"{at}\" }}]");
        apply(with("max = 6", &sources))
    };
    source("ganglia", "gmond").fails_with("sources[0].at: it is no HOST:PORT");
    source("prometheus", "https://{address}/").fails_with("sources[0].at: it must begin with http://");
    source("nagios", "x").fails_with("sources[0].kind: a value is not as expected: `ganglia` or");
    source("prometheus", "http://{address}:9100/metrics?token=hunter2").fails_with("keeps no secrets");
    apply(with("mode = \"auto\"", "mode = \"always\""))
        .fails_with("mode: a value is not as expected: one of `observe`");
    let kept = tontine(&["elastic", "status", "shop", &service, "--json"]).exits(0).json();
    assert_eq!((&kept["fleet"]["generation"], &kept["fleet"]["policy"]["max"]), (&json!(1), &json!(6)));
    let dry = path("shop.toml");
    std::fs::write(&dry, with("max = 6", "max = 8")).unwrap();
    let shown = tontine(&["elastic", "apply", &dry, &service, "--dry-run"]).exits(0).text();
    assert!(shown.contains("max: 6 → 8"), "{shown}");
    let kept = tontine(&["elastic", "status", "shop", &service, "--json"]).exits(0).json();
    assert_eq!(kept["fleet"]["policy"]["max"], 6, "a dry run changed something");
    tontine(&["elastic", "plan", "nope", "+1", &service]).fails_with("there is no fleet nope (fleets: shop)");
    tontine(&["elastic", "orphans", "shop", &service])
        .fails_with("no controller has looked at fleet shop yet");
    std::fs::write(path("adapters.toml"), "[engines.x]\ncommand = []\n").unwrap();
    let adapters = format!("--adapters={}", path("adapters.toml"));
    tontine(&["elastic", "run", &service, &adapters]).fails_with("engines.x.command is empty");
    let secret = "[engines.x]\ncommand = [\"a\"]\nenv = { AWS_SECRET_ACCESS_KEY = \"hunter2\" }\n";
    std::fs::write(path("adapters.toml"), secret).unwrap();
    let told = "adapters.toml: line 3, column 1: engines.x.env: unknown field, expected one of `command`, `environment`";
    let words: [&[&str]; 2] =
        [&["elastic", "run", &service, &adapters], &["elastic", "apply", &dry, &service, &adapters]];
    for words in words {
        let refused = tontine(words);
        refused.fails_with(told);
        assert!(!format!("{}{}", refused.text(), refused.stderr).contains("hunter2"), "{}", refused.stderr);
    }
}

#[test]
fn a_simulation_says_that_the_peak_has_no_room_and_that_it_plays_rules_which_the_policy_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("day.csv"), "0,1000\n600,9000\n1200,9000\n").unwrap();
    std::fs::write(path("shop.toml"), POLICY).unwrap();
    let (day, policy) = (path("day.csv"), path("shop.toml"));
    let simulate = |operations: &str| {
        let words =
            ["elastic", "simulate", "--trace", &day, "--price=0.1", "--operations", operations, &policy];
        tontine(&words).exits(0).text()
    };
    let cut = "The peak wants 15 members, and `max` allows 6";
    assert!(simulate("1000").contains(cut), "{}", simulate("1000"));
    let shown = simulate("3000");
    assert!(!shown.contains("The peak wants") && shown.contains("even division"), "{shown}");
    let lent = "The policy has no rules, so the row `rules` plays those of the paper: processor of any member above 40 over 300 s \
                adds, processor of all members at or below 15 over 300 s removes.";
    assert!(shown.contains(lent), "{shown}");
    let json = |words: &[&str]| {
        let all = ["elastic", "simulate", "--trace", &day, "--operations=3000", "--json", &policy];
        tontine(&[&all, words].concat()).exits(0).json()
    };
    assert_eq!(json(&[])["rules_of_the_paper"]["add"][0]["bound"], 40.0);
    assert_eq!(json(&["--policy=target"])["rules_of_the_paper"], Json::Null, "it plays no rules");
}
