//! Nodes whose documents are in a ZooKeeper ensemble.

pub(crate) mod fleet;
mod lost;
mod refused;
#[path = "../../../coordination/tests/suite/zookeeper/servers.rs"]
#[allow(dead_code, reason = "the tests of the crate use more of it")]
pub(crate) mod servers;
mod stopped;

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;
use tempfile::TempDir;

use self::servers::{Ensemble, wait_until};
use crate::cluster::{Process, command, free_port_base, tontine};
use crate::traffic::Traffic;

/// How long ZooKeeper is away. Longer than the sessions of the nodes live.
const AWAY: Duration = Duration::from_secs(8);

pub(crate) fn start_node(id: u16, address: &str, folder: &Path) -> Process {
    let data = folder.join(format!("node-{id}"));
    let words = [
        "serve".to_owned(),
        format!("--id={id}"),
        "--no-headmaster".to_owned(),
        format!("--data-dir={}", data.display()),
        format!("--coordination={address}"),
        "--session-timeout=4s".to_owned(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let process = Process::start(&mut command(&words), folder.join(format!("node-{id}.stderr")));
    process.await_line(&format!("node {id}"));
    process
}

pub(crate) fn create(address: &str, base: u16) -> Vec<String> {
    let port_base = format!("--port-base={base}");
    let words = ["cluster", "create", "--coordination", address, "--name=shop", "--replicas=3", &port_base];
    let created = tontine(&[&words[..], &["--json"]].concat()).exits(0).json();
    let nodes = created["nodes"].as_array().unwrap();
    nodes.iter().map(|node| node["native"].as_str().unwrap().to_owned()).collect()
}

/// The documents below a path, by their paths.
pub(crate) fn documents(address: &str, path: &str) -> Vec<Json> {
    let shown = tontine(&["coordination", "show", path, "--coordination", address, "--json"]);
    match shown.code {
        0 => shown.json()["documents"].as_array().unwrap().clone(),
        _ => Vec::new(),
    }
}

/// Who is registered, each with the session that did it.
pub(crate) fn registered(address: &str) -> Vec<(String, String)> {
    let text = |json: &Json| json.as_str().map(str::to_owned);
    let owned = |document: &Json| Some((text(&document["path"])?, text(&document["owner"])?));
    documents(address, "/active").iter().filter_map(owned).collect()
}

#[test]
fn no_request_fails_while_zookeeper_is_away_and_a_node_starts_from_its_own_copy() {
    let folder = TempDir::new().unwrap();
    let mut ensemble = Ensemble::start(1);
    let address = ensemble.address("/company/shop");
    let addresses = create(&address, free_port_base());
    let mut nodes: Vec<Process> = (1..=3).map(|id| start_node(id, &address, folder.path())).collect();
    wait_until("all nodes are registered", || registered(&address).len() == 3);
    let before = registered(&address);

    let traffic = Traffic::at(addresses.clone());
    traffic.await_more(200);
    ensemble.servers[0].kill();
    let killed = Instant::now();
    traffic.await_more(200);
    assert_eq!(nodes[2].stop(Signal::TERM), Some(0), "{}", nodes[2].stderr());
    traffic.await_more(200);
    nodes[2] = start_node(3, &address, folder.path());
    while killed.elapsed() < AWAY {
        traffic.await_more(50);
    }
    ensemble.servers[0].start();
    ensemble.wait_serving();
    traffic.await_more(200);
    // Each node was away for longer than its session lives, or was another process: all have new ones.
    wait_until("all nodes are registered again", || {
        let now = registered(&address);
        now.len() == 3 && now.iter().all(|owned| !before.contains(owned))
    });
    let heard = traffic.end();
    assert_eq!((&heard.failed[..], &heard.unknown[..]), (&[][..], &[][..]));
    heard.check_at(addresses);
    for mut node in nodes {
        assert_eq!(node.stop(Signal::INT), Some(0), "{}", node.stderr());
    }
    wait_until("nobody is registered", || registered(&address).is_empty());
}

#[test]
fn a_cluster_is_created_where_there_is_none_and_its_documents_are_moved() {
    let folder = TempDir::new().unwrap();
    let ensemble = Ensemble::start(1);
    let address = ensemble.address("/shop");
    let asked = ["coordination", "show", "--coordination", &address];
    tontine(&asked).fails_with("does not exist");
    create(&address, free_port_base());
    for name in ["--name=shop", "--name=other"] {
        let again = tontine(&["cluster", "create", "--coordination", &address, name]);
        again.fails_with("holds cluster \"shop\" already; choose another chroot");
    }
    let cluster = documents(&address, "/config/cluster");
    assert_eq!(
        (cluster.len(), &cluster[0]["version"]),
        (1, &Json::from(0)),
        "what is refused changes nothing"
    );

    let file = folder.path().join("documents.jsonl");
    let file = file.to_str().unwrap();
    tontine(&["coordination", "export", file, "--coordination", &address]).exits(0);
    tontine(&["coordination", "export", file, "--coordination", &address]).fails_with("cannot write");
    let directory = format!("dir:{}", folder.path().join("coordination").display());
    tontine(&["coordination", "import", file, "--coordination", &directory]).exits(0);
    let contents = |documents: Vec<Json>| -> Vec<(Json, Json)> {
        documents.iter().map(|document| (document["path"].clone(), document["data"].clone())).collect()
    };
    assert_eq!(contents(documents(&directory, "/")), contents(documents(&address, "/")));
    let again = tontine(&["coordination", "import", file, "--coordination", &directory]).exits(0);
    assert!(again.stderr.contains("wrote 0 documents"), "{}", again.stderr);
    let other = format!("dir:{}", folder.path().join("other").display());
    create(&other, free_port_base());
    let before = contents(documents(&other, "/"));
    tontine(&["coordination", "import", file, "--coordination", &other]).fails_with("is not empty: it holds");
    assert_eq!(contents(documents(&other, "/")), before);
    let back = ensemble.address("/back");
    tontine(&["coordination", "import", file, "--coordination", &back]).exits(0);
    assert_eq!(contents(documents(&back, "/")), contents(documents(&address, "/")));

    let mut watching = Process::start(
        &mut command(&["coordination", "watch", "--coordination", &back]),
        folder.path().join("watch.stderr"),
    );
    watching.await_line("present /config/cluster");
    let again = ensemble.address("/back/below");
    tontine(&["coordination", "import", file, "--coordination", &again]).exits(0);
    watching.await_line("created /below");
    watching.stop(Signal::KILL);
}

/// It was refused as not empty once a node had registered, or stopped half way when one registered meanwhile.
#[test]
fn an_export_comes_back_into_an_emptied_ensemble_beside_nodes_that_run() {
    let folder = TempDir::new().unwrap();
    let mut ensemble = Ensemble::start(1);
    let address = ensemble.address("/shop");
    let addresses = create(&address, free_port_base());
    let mut nodes: Vec<Process> = (1..=3).map(|id| start_node(id, &address, folder.path())).collect();
    wait_until("all nodes are registered", || registered(&address).len() == 3);
    let traffic = Traffic::at(addresses.clone());
    let file = folder.path().join("documents.jsonl").display().to_string();
    tontine(&["coordination", "export", &file, "--coordination", &address]).exits(0);
    let cluster = documents(&address, "/config/cluster")[0]["data"].clone();

    ensemble.servers[0].kill();
    std::fs::remove_dir_all(ensemble.servers[0].data().join("version-2")).unwrap();
    ensemble.servers[0].start();
    ensemble.wait_serving();
    // A first attempt has ended half way; what it has made is enough for the nodes to register.
    let text = std::fs::read_to_string(&file).unwrap();
    let half: String =
        text.lines().filter(|line| line.contains("/config\"")).map(|line| format!("{line}\n")).collect();
    let part = folder.path().join("half.jsonl").display().to_string();
    std::fs::write(&part, half).unwrap();
    let import = |file: &str| tontine(&["coordination", "import", file, "--coordination", &address]);
    import(&part).exits(0);
    wait_until("all nodes are registered again", || registered(&address).len() == 3);
    assert!(documents(&address, "/config/cluster").is_empty());
    for _ in 0..2 {
        let said = import(&file).exits(0).stderr;
        assert!(said.contains("were there already"), "{said}");
        assert_eq!(documents(&address, "/config/cluster")[0]["data"], cluster);
    }
    assert_eq!(nodes[0].stop(Signal::TERM), Some(0), "{}", nodes[0].stderr());
    nodes[0] = start_node(1, &address, folder.path());
    traffic.await_more(200);
    let heard = traffic.end();
    assert_eq!((&heard.failed[..], &heard.unknown[..]), (&[][..], &[][..]));
    heard.check_at(addresses);
    for mut node in nodes {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
}

#[test]
fn wrong_services_and_credentials_are_refused_at_once() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("node-1");
    let data_dir = format!("--data-dir={}", data.display());
    let start = |address: &str, further: &[&str]| {
        let words = ["serve", "--id=1", &data_dir, "--coordination", address];
        tontine(&[&words[..], further].concat())
    };
    start("etcd://127.0.0.1:1", &[]).fails_with("names no service that Tontine knows");
    start("zookeeper://127.0.0.1:1/a//b", &[]).fails_with("names a chroot that ZooKeeper refuses");
    start("zookeeper://127.0.0.1:1/shop", &[])
        .fails_until_later_with("no server of zookeeper://127.0.0.1:1/shop");
    let shown = tontine(&["coordination", "show", "--coordination=zookeeper://127.0.0.1:1/shop"]);
    assert_eq!((shown.code, shown.stderr.lines().count()), (2, 1), "{}", shown.stderr);
    let file = folder.path().join("credentials");
    std::fs::write(&file, "no colon\n").unwrap();
    let credentials = format!("--coordination-credentials={}", file.display());
    start("zookeeper://127.0.0.1:1/shop", &[&credentials]).fails_with("write one line USER:PASSWORD");
    assert!(!data.exists(), "nothing was made");
}
