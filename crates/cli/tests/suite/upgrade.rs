//! A cluster rolls from an earlier commit of Tontine to this one and back, under load of clients of both.
//!
//! The earlier program is built from the history of the repository, beside the other builds in `target/`. Where the
//! history does not reach so far the test says that it is skipped.
//!
//! `fixtures/first-version.tar.gz` holds the documents and the data directory of a cluster from before [`FIRST`]: one
//! node, 26 keys in two stores, stopped cleanly.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::cluster::{PATIENCE, Process, TONTINE, free_port_base, tontine};
use crate::traffic::{Stops, Traffic};

/// The first commit from which a cluster can be rolled to this one. Nothing is rolled in that commit itself: as long as it
/// has no child, the test does nothing, and says so.
const FIRST: &str = "8983360365264d992f3a0af63d26427a983b3427";

/// Builds the program of [`FIRST`]; `None`, after a word why, if there is nothing to roll from.
fn first_version() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(root).args(words).stdin(Stdio::null());
        git
    };
    let known = git(&["cat-file", "-e", &format!("{FIRST}^{{commit}}")]).stderr(Stdio::null()).status();
    if !known.is_ok_and(|status| status.success()) {
        eprintln!("upgrade: SKIPPED: the history of this copy does not reach {FIRST}; fetch all of it");
        return None;
    }
    let head = git(&["rev-parse", "HEAD"]).output().unwrap().stdout;
    if String::from_utf8_lossy(&head).trim() == FIRST {
        eprintln!("upgrade: SKIPPED: this is {FIRST}, the first commit from which a cluster can be rolled");
        return None;
    }
    let target = Path::new(TONTINE).ancestors().nth(2).unwrap();
    let (tree, builds) = (target.join("first-version"), target.join("first-version-build"));
    let _ = std::fs::remove_dir_all(&tree);
    std::fs::create_dir_all(&tree).unwrap();
    let mut archive = git(&["archive", FIRST]).stdout(Stdio::piped()).spawn().unwrap();
    let packed = archive.stdout.take().unwrap();
    assert!(Command::new("tar").arg("-x").arg("-C").arg(&tree).stdin(packed).status().unwrap().success());
    assert!(archive.wait().unwrap().success());
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--locked", "-q", "-p", "cli", "--target-dir"]).arg(&builds).current_dir(&tree);
    // What cargo tells this test about itself is not for the other build.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_")) {
        cargo.env_remove(name);
    }
    assert!(
        cargo.env_remove("CARGO_MANIFEST_DIR").status().unwrap().success(),
        "the earlier program is built"
    );
    Some(builds.join("debug/tontine"))
}

/// Three nodes, of which each runs one of two programs.
struct Rolling {
    folder: TempDir,
    coordination: String,
    addresses: Vec<String>,
    nodes: Vec<Process>,
}

impl Rolling {
    /// Creates the cluster and starts its nodes.
    fn start(program: &Path) -> Rolling {
        let folder = tempfile::tempdir().unwrap();
        let coordination = folder.path().join("coordination").display().to_string();
        let port_base = format!("--port-base={}", free_port_base());
        let words = ["cluster", "create", "--name=shop", "--replicas=3", "--json", &port_base];
        let created =
            Command::new(program).args(words).args(["--coordination", &coordination]).output().unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        let created: Json = serde_json::from_slice(&created.stdout).unwrap();
        let nodes = created["nodes"].as_array().unwrap();
        let addresses = nodes.iter().map(|node| node["native"].as_str().unwrap().to_owned()).collect();
        let mut rolling = Rolling { folder, coordination, addresses, nodes: Vec::new() };
        for id in 1..=3 {
            let node = rolling.launch(id, program);
            rolling.nodes.push(node);
        }
        rolling
    }

    fn launch(&self, id: usize, program: &Path) -> Process {
        let mut node = Command::new(program);
        node.args(["serve", &format!("--id={id}"), "--coordination", &self.coordination]);
        node.arg("--data-dir").arg(self.folder.path().join(format!("node-{id}")));
        let process = Process::start(&mut node, self.folder.path().join(format!("node-{id}.stderr")));
        process.await_line(&format!("node {id}"));
        process
    }

    /// Stops each node in turn and starts it again with `program`, as the page about upgrades says.
    fn roll(&mut self, ids: &[usize], program: &Path, traffic: &Traffic) {
        for &id in ids {
            let stopped = self.nodes[id - 1].stop(Signal::TERM);
            assert_eq!(stopped, Some(0), "n{id}: {}", self.nodes[id - 1].stderr());
            self.nodes[id - 1] = self.launch(id, program);
            traffic.await_more(100);
            self.await_healthy();
        }
    }

    fn await_healthy(&self) {
        let (connect, deadline) = (self.addresses.join(","), Instant::now() + PATIENCE);
        loop {
            let found = tontine(&["doctor", "--connect", &connect]);
            if found.code == 0 {
                return;
            }
            assert!(Instant::now() < deadline, "{}{}", found.text(), found.stderr);
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Puts and gets with the earlier program until it is stopped; returns the rounds and what went wrong.
fn commands_of_the_first(program: &Path, connect: &str, stop: &AtomicBool) -> (u64, Vec<String>) {
    let (mut rounds, mut failures) = (0, Vec::new());
    let run = |words: &[&str]| {
        let ended = Command::new(program).args(words).args(["--connect", connect]).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        match ended.status.success() {
            true => Ok(said),
            false => Err(String::from_utf8_lossy(&ended.stderr).into_owned()),
        }
    };
    while !stop.load(Ordering::Relaxed) {
        let value = format!("value {rounds}");
        match run(&["put", "of-the-first", &value]).and_then(|_| run(&["get", "of-the-first"])) {
            Ok(said) if said.trim_end() == value => {}
            Ok(other) => failures.push(format!("round {rounds}: got {other:?}")),
            Err(said) => failures.push(format!("round {rounds}: {said}")),
        }
        rounds += 1;
    }
    (rounds, failures)
}

/// Nothing is misread, and nothing is changed.
#[test]
fn what_an_earlier_version_wrote_is_refused_by_name_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/first-version.tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&fixture).arg("-C").arg(folder.path());
    assert!(tar.status().unwrap().success());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let serve = |service: &str| {
        tontine(&["serve", "--data-dir", &at("node-1"), "--coordination", service]).exits(2).stderr
    };
    let document = serve(&at("coordination"));
    assert!(document.contains("/config/cluster is not for this program: it has form 1, and"), "{document}");
    let (new, port_base) = (at("new"), format!("--port-base={}", free_port_base()));
    tontine(&["cluster", "create", "--name=shop", "--nodes=1", &port_base, "--coordination", &new]).exits(0);
    let directory = serve(&new);
    assert!(
        directory.contains("the data directory has format 1, and this program reads format 2"),
        "{directory}"
    );
    for said in [directory, document] {
        assert!(said.contains("an earlier ") && said.contains("export the data with that "), "{said}");
    }
}

#[test]
#[ignore = "builds an earlier commit; ./check --full upgrade runs it"]
fn a_cluster_rolls_from_an_earlier_commit_to_this_one_and_back_without_a_failed_request() {
    let Some(first) = first_version() else { return };
    let this = Path::new(TONTINE);
    let mut rolling = Rolling::start(&first);
    let traffic = Traffic::at(rolling.addresses.clone());
    traffic.await_more(100);
    let (stop, connect) = (Arc::new(AtomicBool::new(false)), rolling.addresses.join(","));
    let commands = {
        let (stop, first) = (stop.clone(), first.clone());
        std::thread::spawn(move || commands_of_the_first(&first, &connect, &stop))
    };

    let _stops = Stops(&stop);
    rolling.roll(&[1, 2], this, &traffic);
    // Half way, and back from there.
    rolling.roll(&[2, 1], &first, &traffic);
    rolling.roll(&[1, 2, 3], this, &traffic);
    rolling.roll(&[3, 2, 1], &first, &traffic);
    rolling.roll(&[1, 2, 3], this, &traffic);

    stop.store(true, Ordering::Relaxed);
    let (rounds, failures) = commands.join().unwrap();
    let heard = traffic.end();
    eprintln!("upgrade: {rounds} rounds of commands of the earlier program beside the other clients");
    assert_eq!(failures, Vec::<String>::new());
    assert!(rounds >= 13, "a round for each restart: {rounds}");
    assert_eq!((&heard.failed[..], &heard.unknown[..]), (&[][..], &[][..]));
    heard.check_at(rolling.addresses.clone());
    for node in &mut rolling.nodes {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
}
