//! Nodes that take their ids by themselves, and wait until their cluster names them.

use std::path::Path;

use coordination::embedded::EmbeddedSession;
use coordination::{CoordinationService, DocumentPath, Expected};
use rustix::process::Signal;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::cluster::{Answer, Cluster, Process, command, free_port_base, tontine};
use crate::observe::until;

/// A place with documents, directories of nodes, and ports.
pub(crate) struct Place {
    pub(crate) folder: TempDir,
    base: u16,
    address: String,
}

impl Place {
    /// With the documents in a directory.
    pub(crate) fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("dir:{}", folder.path().join("coordination").display());
        Place { folder, base: free_port_base(), address }
    }

    pub(crate) fn native(&self, port: u16) -> String {
        format!("127.0.0.1:{}", self.base + port)
    }

    fn words(&self, directory: &str, further: &[&str]) -> Vec<String> {
        let data = self.folder.path().join(directory);
        // A headmaster would register among the documents that tests compare.
        let fixed = [
            "serve",
            "--no-headmaster",
            "--coordination",
            &self.address,
            "--data-dir",
            data.to_str().unwrap(),
        ];
        fixed.iter().chain(further).map(|&word| word.to_owned()).collect()
    }

    /// Starts a node in a directory; it serves, or waits.
    pub(crate) fn start(&self, directory: &str, further: &[&str]) -> Process {
        let words = self.words(directory, further);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Process::start(&mut command(&words), self.folder.path().join(format!("{directory}.stderr")))
    }

    /// Starts a node at one of the place's ports.
    pub(crate) fn start_at(&self, directory: &str, port: u16, further: &[&str]) -> Process {
        self.start(directory, &[&["--listen", &self.native(port)], further].concat())
    }

    /// Runs a node that must be refused.
    fn refused(&self, directory: &str, further: &[&str]) -> Answer {
        let words = self.words(directory, further);
        tontine(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A command about the documents.
    pub(crate) fn run(&self, words: &[&str]) -> Answer {
        tontine(&[words, &["--coordination", &self.address]].concat())
    }

    /// The content of a document, if there is one.
    pub(crate) fn document(&self, path: &str) -> Option<Json> {
        let shown = self.run(&["coordination", "show", path, "--json"]);
        let text = || shown.json()["documents"][0]["data"].as_str().unwrap().to_owned();
        (shown.code == 0).then(|| serde_json::from_str(&text()).unwrap())
    }

    /// Waits until a node has said something.
    fn await_said(process: &Process, words: &str) {
        Self::await_either(process, &[words]);
    }

    /// Waits until a node has said one of these.
    fn await_either(process: &Process, words: &[&str]) {
        let begun = std::time::Instant::now();
        while !words.iter().any(|words| process.stderr().contains(words)) {
            assert!(begun.elapsed() < crate::cluster::PATIENCE, "no {words:?} in {}", process.stderr());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Starts this many nodes and creates their cluster.
    fn cluster(&self, nodes: u16) -> Vec<Process> {
        let mut creating = self.create(nodes);
        let started = (1..=nodes).map(|id| {
            let node = self.start_at(&format!("d{id}"), id, &[]);
            // The last one may find its cluster made before it has to wait.
            Self::await_either(&node, &["is registered and waits", "node starts"]);
            node
        });
        let started: Vec<Process> = started.collect();
        assert_eq!(creating.wait(), Some(0), "{}", creating.stderr());
        for (id, node) in (1..=nodes).zip(&started) {
            node.await_line(&format!("node {id}  "));
        }
        started
    }

    fn create(&self, nodes: u16) -> Process {
        let nodes = format!("--nodes={nodes}");
        let words = ["cluster", "create", "--name=shop", &nodes, "--coordination", &self.address];
        let creating = Process::start(&mut command(&words), self.folder.path().join("create.stderr"));
        Self::await_said(&creating, "nodes are registered");
        creating
    }
}

fn exists(folder: &Path, name: &str) -> bool {
    folder.join(name).exists()
}

#[test]
fn nodes_take_ids_wait_to_be_named_and_come_back_as_themselves_elsewhere() {
    let place = Place::new();
    // A moment too early: a supervisor starts it again.
    place.refused("d1", &[]).fails_until_later_with("run `tontine cluster create` first");
    assert!(!exists(place.folder.path(), "d1") && !exists(place.folder.path(), "coordination"));
    let mut nodes = place.cluster(3);
    let connect = ["--connect", &place.native(1)];
    tontine(&[&["put", "a", "1"][..], &connect].concat()).exits(0);

    // A fourth one waits through its own end, and is the same one.
    let mut fourth = place.start_at("d4", 4, &["--zone=b"]);
    Place::await_said(&fourth, "n4 is registered and waits until cluster shop admits it");
    Place::await_said(&fourth, &format!(" node add 4 --connect {},", place.native(1)));
    place.refused("d4", &[]).fails_until_later_with("is in use by another process (process ");
    let words = ["headmaster", "--coordination", &place.address];
    let _headmaster = Process::start(&mut command(&words), place.folder.path().join("headmaster.stderr"));
    let add = |id: &str| tontine(&[&["node", "add", id, "--json"][..], &connect].concat());
    add("7").fails_with("n7 is not registered; start it with `tontine serve`");
    fourth.stop(Signal::KILL);
    let mut fourth = place.start_at("d4", 4, &["--zone=b"]);
    Place::await_said(&fourth, "n4 is registered and waits");
    let admitted = add("4").exits(0).json();
    assert_eq!(admitted["done"], serde_json::json!({ "code": "node-admitted", "facts": { "node": 4 } }));
    fourth.await_line("node 4  zone b");
    assert_eq!(add("4").exits(0).json()["done"]["code"], "node-is-member");
    let at_fourth = ["--connect", &place.native(4)];
    assert_eq!(tontine(&[&["get", "a"][..], &at_fourth].concat()).exits(0).text(), "1\n");
    let cluster = place.document("/config/cluster").unwrap();
    assert!(
        cluster["ring"]
            .as_array()
            .unwrap()
            .iter()
            .all(|part| !part["nodes"].as_array().unwrap().contains(&4.into())),
        "it holds no partition"
    );

    // Killed, and back at another address: the others reach it there.
    fourth.stop(Signal::KILL);
    let moved = ["--zone=b", "--resp=off"];
    let mut fourth = place.start_at("d4", 5, &moved);
    fourth.await_line("node 4  zone b");
    let third = ["--connect", &place.native(3)];
    let native = || {
        let status = tontine(&[&["status", "--json"][..], &third].concat()).json();
        let node = &status["nodes"][3];
        (node["native"].as_str().unwrap().to_owned(), node["answers"].as_bool().unwrap())
    };
    while native() != (place.native(5), true) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(fourth.stop(Signal::TERM), Some(0), "{}", fourth.stderr());
    // Without options it is where it was.
    let mut fourth = place.start("d4", &[]);
    fourth.await_line(&format!("node 4  zone b  native {}", place.native(5)));
    assert_eq!(fourth.stop(Signal::INT), Some(0), "{}", fourth.stderr());

    // An id whose taker ended before it could keep it is never given again.
    let ids = place.document("/config/ids").unwrap();
    assert_eq!((&ids["last"], &ids["named"]), (&Json::from(4), &Json::from(0)));
    for node in &mut nodes {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
}

/// Whether `doctor -o json` found nothing but that no headmaster runs.
fn misses_headmaster_only(said: &Answer) -> bool {
    let findings = said.json()["findings"].as_array().cloned().unwrap_or_default();
    said.code == 1 && findings.len() == 1 && findings[0]["code"] == "headmaster-missing"
}

/// The same command was refused with *n3 already has the address*, `doctor` said to run that very command, and nothing said
/// that a lost disk needs the old id.
#[test]
fn a_lost_disk_is_told_the_two_ways_and_the_node_takes_its_place_again() {
    let place = Place::new();
    let mut nodes = place.cluster(3);
    let connect = ["--connect", &place.native(1)];
    let run = |words: &[&str]| tontine(&[words, &connect].concat());
    run(&["put", "a", "1", "-w", "3"]).exits(0);
    nodes.pop().unwrap().stop(Signal::KILL);
    std::fs::remove_dir_all(place.folder.path().join("d3")).unwrap();
    let refused = place.refused("d3", &["--listen", &place.native(3)]);
    refused.fails_with("If the disk of n3 is lost, add --id 3:");
    refused.fails_with("node replace 3 NEW");
    place.refused("d9", &["--id", "9"]).fails_with("has no member n9, so no disk of it is lost");
    assert!(!exists(place.folder.path(), "d3") && !exists(place.folder.path(), "d9"));
    let advice = run(&["doctor"]).exits(1).text();
    assert!(
        advice.contains(" serve --id 3 --coordination=dir:") && advice.contains(" node replace 3 NEW"),
        "{advice}"
    );
    let fourth = place.start_at("d4", 4, &[]);
    Place::await_said(&fourth, "n4 is registered and waits");
    let advice = run(&["doctor"]).exits(1).text();
    assert!(
        advice.contains("n4 at ")
            && advice.contains(" node add 4 --standby; ")
            && advice.contains(" node replace 3 4 --wait"),
        "{advice}"
    );
    drop(fourth);

    for further in [&["--id=n3"][..], &["--id=3"], &[]] {
        let mut third = place.start_at("d3", 3, further);
        third.await_line("node 3  ");
        until("nothing else is missing", || run(&["doctor", "-o", "json"]), misses_headmaster_only);
        let got = tontine(&["get", "a", "-r", "3", "--connect", &place.native(3)]);
        assert_eq!(got.exits(0).text(), "1\n");
        assert_eq!(third.stop(Signal::TERM), Some(0), "{}", third.stderr());
    }
    place.refused("d3", &["--id=2"]).fails_with("belongs to n3, and --id says n2");
    for node in &mut nodes {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
}

/// They took the same port, for a node that waits holds none, and the cluster could not be created.
#[test]
fn nodes_that_are_started_at_once_take_ports_of_their_own() {
    let place = Place::new();
    let mut creating = place.create(4);
    let mut nodes: Vec<Process> = (1..=4).map(|number| place.start(&format!("d{number}"), &[])).collect();
    assert_eq!(creating.wait(), Some(0), "{}", creating.stderr());
    for node in &nodes {
        node.await_line("native 127.0.0.1:");
    }
    let cluster = place.document("/config/cluster").unwrap();
    let doors = cluster["nodes"].as_array().unwrap().iter().flat_map(|node| [&node["native"], &node["resp"]]);
    let doors: std::collections::BTreeSet<&str> = doors.map(|address| address.as_str().unwrap()).collect();
    assert_eq!(doors.len(), 8, "{doors:?}");
    for node in &mut nodes {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
}

#[test]
fn a_node_that_cannot_be_is_refused_at_once_and_changes_nothing() {
    let place = Place::new();
    let _nodes = place.cluster(1);
    let before = place.run(&["coordination", "show", "--json"]).text();
    let taken = format!("--listen={}", place.native(1));
    let long = format!("--zone={}", "z".repeat(300));
    let cases: [(&[&str], &str); 5] = [
        (&[&taken], "n1 already has the address"),
        (&[&long], "--zone takes a name of 1 to 64 bytes without spaces, and this one has 300 bytes"),
        (&["--zone=a b"], "--zone takes a name"),
        (&["--listen=0.0.0.0:9", "--advertise=127.0.0.1:9"], "add --insecure"),
        (&["--forwarded"], "--advertise"),
    ];
    for (words, expected) in cases {
        place.refused("other", words).fails_with(expected);
    }
    // A machine that has just started may have these a little later.
    for (words, expected) in [
        (
            ["--listen=127.0.0.1:9", "--advertise=192.0.2.1:9"],
            "192.0.2.1:9 is not an address of this machine",
        ),
        (["--listen=192.0.2.1:9", "--insecure"], "192.0.2.1:9 is not an address of this machine"),
        (["--listen=no-such-host.invalid:9", "--insecure"], "cannot resolve --listen no-such-host.invalid:9"),
    ] {
        place.refused("other", &words).fails_until_later_with(expected);
    }
    let file = place.folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    place.refused("file", &[]).fails_with("is a file");
    // Another process has a port that nobody in the cluster has.
    let holder = std::net::TcpListener::bind(place.native(9)).unwrap();
    place.refused("other", &["--listen", &place.native(9)]).fails_until_later_with("is in use");
    drop(holder);
    assert!(!exists(place.folder.path(), "other"));
    assert_eq!(place.run(&["coordination", "show", "--json"]).text(), before);

    // Directories that belong elsewhere.
    let elsewhere = Place::new();
    let _other = elsewhere.create(2);
    let mut waits = elsewhere.start_at("d1", 1, &[]);
    Place::await_said(&waits, "n1 is registered and waits until its cluster is created");
    waits.stop(Signal::KILL);
    let given = elsewhere.folder.path().join("d1").display().to_string();
    let words =
        |data: &str, address: &str| tontine(&["serve", "--coordination", address, "--data-dir", data]);
    words(&given, &place.address).fails_with("was given the id n1 by another cluster than the one of");
    let own = place.folder.path().join("d1").display().to_string();
    words(&own, &elsewhere.address).fails_until_later_with("is in use by another process");
    drop(_nodes);
    words(&own, &elsewhere.address).fails_until_later_with("holds no cluster; correct the address");
    let mut other = elsewhere.start_at("d2", 2, &[]);
    Place::await_said(&other, "waits until its cluster is created");
    other.stop(Signal::INT);
    place.refused("d1", &["--zone=elsewhere"]).fails_with("n1 is in zone zone-1");
    std::fs::write(place.folder.path().join("d1/identity"), "tontine-identity 9\n").unwrap();
    place.refused("d1", &[]).fails_with("has format 9, and this program reads format 2");
}

/// Puts something in the place of a document, as no command does.
#[test]
fn nodes_at_an_address_of_ipv6_and_at_a_host_name_reach_each_other_and_are_reached() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: this machine has no ::1");
        return;
    }
    let place = Place::new();
    let mut creating = place.create(2);
    let (six, name) = (format!("[::1]:{}", place.base + 1), format!("localhost:{}", place.base + 2));
    let mut first = place.start("d1", &["--listen", &six]);
    Place::await_said(&first, "n1 is registered and waits");
    let mut second = place.start("d2", &["--listen", &name]);
    assert_eq!(creating.wait(), Some(0), "{}", creating.stderr());
    first.await_line(&format!("native {six}  redis (resp) [::1]:{}", place.base + 101));
    second.await_line(&format!("native {name}  redis (resp) localhost:{}", place.base + 102));
    // Both replicas of two: the nodes reach each other.
    tontine(&["put", "k", "v", "--connect", &six]).exits(0);
    assert_eq!(tontine(&["get", "k", "--connect", &name]).exits(0).text(), "v\n");
    let found = tontine(&["doctor", "-o", "json", "--connect", &name]);
    assert!(misses_headmaster_only(&found), "{}", found.text());

    // It comes back at the address that it had.
    first.stop(Signal::KILL);
    let mut first = place.start("d1", &[]);
    first.await_line(&format!("native {six}"));
    assert_eq!(tontine(&["get", "k", "--connect", &six]).exits(0).text(), "v\n");
    for node in [&mut first, &mut second] {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
}

fn overwrite(place: &Place, path: &str, content: &str) {
    let directory = place.folder.path().join("coordination");
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    executor.block_on(async {
        let session = EmbeddedSession::open(&directory).await.unwrap();
        let path = DocumentPath::new(path).unwrap();
        session.set(&path, content.to_owned().into(), Expected::Any).await.unwrap();
        session.close().await.unwrap();
    });
}

#[test]
fn documents_that_cannot_be_read_start_no_node_and_stay_as_they_are() {
    let place = Place::new();
    drop(place.cluster(1));
    let cluster = place.document("/config/cluster").unwrap();
    let mut hole = cluster.clone();
    hole["ring"][0]["start"] = 1.into();
    let cases =
        [("{\"name\":", "EOF while parsing"), (&hole.to_string(), "does not start after its neighbour")];
    for (content, why) in cases {
        overwrite(&place, "/config/cluster", content);
        for directory in ["d1", "new"] {
            let answer = place.refused(directory, &[]);
            answer.fails_with("document /config/cluster is malformed");
            answer.fails_with(why);
            answer.fails_with("tontine coordination show /config/cluster");
        }
        place.run(&["cluster", "create", "--name=b"]).fails_with("document /config/cluster is malformed");
        let shown = place.run(&["coordination", "show", "/config/cluster", "--json"]).json();
        assert_eq!(shown["documents"][0]["data"], content, "what cannot be read is not written over");
    }
    assert!(!exists(place.folder.path(), "new"));
    overwrite(&place, "/config/cluster", &cluster.to_string());
    let mut node = place.start("d1", &[]);
    node.await_line("node 1  ");
    assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
}

#[test]
fn dev_says_how_to_add_a_node_and_leaves_that_one_to_whoever_runs_it() {
    let mut cluster = Cluster::start();
    let coordination = format!("dir:{}", cluster.data().join("coordination").display());
    let data = cluster.data().join("node-4").display().to_string();
    let listen = format!("127.0.0.1:{}", cluster.base + 4);
    let words = ["serve", "--coordination", &coordination, "--data-dir", &data, "--listen", &listen];
    let mut added = Process::start(&mut command(&words), cluster.folder.path().join("added.stderr"));
    Place::await_said(&added, "n4 is registered and waits until cluster dev admits it");
    // As the node says.
    cluster.run(&["node", "add", "4"]).exits(0);
    added.await_line("node 4  ");
    cluster.restart();
    assert!(cluster.dev.stderr().contains("n4 was added with `tontine serve`"), "{}", cluster.dev.stderr());
    cluster.run(&["put", "k", "v", "--connect", &listen]).exits(0);
    assert_eq!(cluster.json(&["status"])["nodes"].as_array().unwrap().len(), 4);
    assert_eq!(added.stop(Signal::TERM), Some(0), "{}", added.stderr());
}
