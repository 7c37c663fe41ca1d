//! Figures that freeze or come of half the members, under a real controller with real machines: nothing shrinks. Each test
//! ends with figures that do shrink the fleet, so it is seen that its judge can fail.
//!
//! The engine is `fixtures/figures_engine.py`. Its members would be removed for being idle.

use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::{PATIENCE, end_all, fixture};
use crate::cluster::{Process, TONTINE, command, tontine};

/// How long nothing may shrink. A fleet at rest is looked at every 5 s, and one look at good figures is enough to shrink it.
const HOLDS: Duration = Duration::from_secs(11);
/// A new figure comes so often.
const PAUSE: Duration = Duration::from_millis(400);
/// When a figure froze: it is older than one may be that counts.
const FROZEN_FOR: Duration = Duration::from_secs(8);

const POLICY: &str = "engine = \"figures\"\nprovider = \"local\"\nmachine-type = \"local\"\nmin = 1\nmax = 4\n\
                      mode = \"auto\"\nsample-age-max = 5\ncooldowns = { grow = 0, shrink = 0 }\n\
                      add = [{ of = \"any\", is = \"above\", bound = 90, over = 5 }]\n\
                      remove = [{ of = \"all\", is = \"at-most\", bound = 15, over = 5 }]\n";

/// A fleet of four machines whose figures are written by the test.
struct Figures {
    controller: Process,
    machines: String,
    service: String,
    folder: tempfile::TempDir,
}

impl Figures {
    fn new() -> Figures {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let engine = json!(["python3", fixture("figures_engine.py"), path("")]);
        let provider = json!([TONTINE, "adapter", "local", "--dir", path("machines")]);
        let adapters =
            format!("[engines.figures]\ncommand = {engine}\n[providers.local]\ncommand = {provider}\n");
        std::fs::write(path("adapters.toml"), adapters).unwrap();
        std::fs::write(path("shop.toml"), POLICY).unwrap();
        let service = format!("--coordination=dir:{}", path("service"));
        tontine(&["elastic", "apply", &path("shop.toml"), &service]).exits(0);
        let words = ["elastic", "run", &service, &format!("--adapters={}", path("adapters.toml"))];
        let controller = Process::start(&mut command(&words), folder.path().join("stderr"));
        let fleet = Figures { controller, machines: path("machines"), service, folder };
        fleet.await_so("the first one serves", || fleet.states() == ["serving"]);
        tontine(&["elastic", "plan", "shop", "+3", &fleet.service]).exits(0);
        assert_eq!(fleet.states(), ["serving"; 4]);
        fleet
    }

    /// Writes a figure of this age for each member: it is idle.
    fn measure(&self, age: Duration) {
        let new = self.folder.path().join("figure.new");
        std::fs::write(&new, "1").unwrap();
        let file = std::fs::File::options().write(true).open(&new).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
        std::fs::rename(new, self.folder.path().join("figure")).unwrap();
    }

    fn put(&self, name: &str) {
        std::fs::write(self.folder.path().join(name), "").unwrap();
    }

    fn states(&self) -> Vec<String> {
        let status = tontine(&["elastic", "status", "shop", &self.service, "--json"]).exits(0).json();
        let machines = status["fleet"]["machines"].as_array().unwrap();
        machines.iter().map(|machine| machine["state"].as_str().unwrap().to_owned()).collect()
    }

    fn await_so(&self, what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "not in time: {what}: {:?}", self.states());
            std::thread::sleep(PAUSE);
        }
    }

    /// All members stay, while this is done again and again.
    fn holds(&self, meanwhile: impl Fn()) {
        let began = Instant::now();
        while began.elapsed() < HOLDS {
            meanwhile();
            assert_eq!(self.states(), ["serving"; 4], "it shrinks");
            std::thread::sleep(PAUSE);
        }
        let history = tontine(&["elastic", "history", "shop", &self.service, "--json"]).exits(0).json();
        let decisions = history["decisions"].as_array().unwrap();
        assert!(decisions.iter().all(|one| one["verdict"] != "remove"), "{history}");
    }

    /// A member is removed, while this is done again and again.
    fn shrinks(&self, meanwhile: impl Fn()) {
        self.await_so("it shrinks", || {
            meanwhile();
            self.states() != ["serving"; 4]
        });
    }
}

impl Drop for Figures {
    fn drop(&mut self) {
        // It would start machines again.
        self.controller.stop(rustix::process::Signal::KILL);
        end_all(&self.machines);
    }
}

#[test]
fn must_not_3_figures_that_freeze_shrink_nothing() {
    let fleet = Figures::new();
    // The same value with the same time, again and again.
    fleet.measure(FROZEN_FOR);
    fleet.holds(|| {});
    // The planted fault: the value is the same, and its age is lost on the way.
    fleet.put("ages-are-lost");
    fleet.shrinks(|| {});
}

#[test]
fn must_not_3_figures_of_half_the_members_shrink_nothing() {
    let fleet = Figures::new();
    fleet.put("half");
    fleet.holds(|| fleet.measure(Duration::ZERO));
    // The control: the same figures of all members.
    std::fs::remove_file(fleet.folder.path().join("half")).unwrap();
    fleet.shrinks(|| fleet.measure(Duration::ZERO));
}
