//! The documents move to another service while the nodes run.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::{Cluster, Process, command, free_port_base, tontine};
use crate::machines::servers::{Ensemble, wait_until};
use crate::machines::{create, documents, registered, start_node};
use crate::traffic::Traffic;

/// After that long at most a client tries a node again that it could not reach.
const CLIENTS_LOOK: Duration = Duration::from_secs(2);

fn migrate(from: &str, to: &str, further: &[&str]) -> crate::cluster::Answer {
    let words = ["coordination", "migrate", "--coordination", from, "--to", to, "--session-timeout=4s"];
    tontine(&[&words[..], further].concat())
}

fn directory(folder: &Path, name: &str) -> String {
    format!("dir:{}", folder.join(name).display())
}

/// What the page on machines asks for before the next node is stopped: all nodes are alive to each other, and no hints
/// wait. Clients, too, have looked for the node again by then.
fn await_calm(addresses: &[String]) {
    let connect = format!("--connect={}", addresses.join(","));
    wait_until("all nodes are alive, and no hints wait", || {
        let listed = tontine(&["node", "list", "--all-views", "--json", "--deadline=2s", &connect]).json();
        let statuses = tontine(&["status", "--json", "--deadline=2s", &connect]).text();
        let views = listed["views"].as_array().cloned().unwrap_or_default();
        let all_alive = |view: &serde_json::Value| {
            let nodes = view["nodes"].as_array().cloned().unwrap_or_default();
            nodes.len() + 1 >= addresses.len() && nodes.iter().all(|seen| seen["state"] == "alive")
        };
        let hints = |node: &serde_json::Value| {
            let waiting = node["report"]["status"]["hints"].as_array().cloned().unwrap_or_default();
            waiting.iter().any(|hint| hint["hints"].as_u64() != Some(0))
        };
        let found: serde_json::Value = serde_json::from_str(&statuses).unwrap_or_default();
        let nodes = found["nodes"].as_array().cloned().unwrap_or_default();
        views.len() == addresses.len() && views.iter().all(all_alive) && !nodes.iter().any(hints)
    });
    std::thread::sleep(CLIENTS_LOOK);
}

/// The paths and contents of all that is not ephemeral, but for the lists that are made when they are needed.
fn lasting(address: &str) -> Vec<(String, String)> {
    let found = documents(address, "/");
    let lasting = found.iter().filter(|document| document["owner"].is_null());
    let text = |document: &serde_json::Value, field: &str| document[field].to_string();
    lasting
        .map(|document| (text(document, "path"), text(document, "data")))
        .filter(|(path, _)| !["\"/active\"", "\"/headmaster\"", "\"/config/epochs\""].contains(&&**path))
        .collect()
}

#[test]
fn no_request_fails_while_the_documents_move_into_zookeeper_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let ensemble = Ensemble::start(1);
    let (here, there) = (directory(folder.path(), "coordination"), ensemble.address("/company/shop"));
    let addresses = create(&here, free_port_base());
    let mut nodes: Vec<Process> = (1..=3).map(|id| start_node(id, &here, folder.path())).collect();
    wait_until("all nodes are registered", || registered(&here).len() == 3);
    let traffic = Traffic::at(addresses.clone());
    traffic.await_more(200);

    // One node is not there when they move.
    assert_eq!(nodes[2].stop(Signal::TERM), Some(0), "{}", nodes[2].stderr());
    let before = lasting(&here);
    let moved = migrate(&here, &there, &[]).exits(0);
    assert!(moved.text().contains(&format!("are in {there}")), "{}", moved.text());
    assert_eq!(registered(&there).len(), 2, "the others went along");
    assert_eq!(lasting(&there), before);
    migrate(&here, &there, &[]).exits(0);
    traffic.await_more(200);
    nodes[2] = start_node(3, &here, folder.path());
    assert!(nodes[2].stderr().contains("the documents have moved from"), "{}", nodes[2].stderr());
    wait_until("it found them", || registered(&there).len() == 3);

    // The old service is no more, and a command line still names it.
    traffic.await_more(200);
    await_calm(&addresses);
    assert_eq!(nodes[0].stop(Signal::TERM), Some(0), "{}", nodes[0].stderr());
    std::fs::remove_dir_all(folder.path().join("coordination")).unwrap();
    nodes[0] = start_node(1, &here, folder.path());
    wait_until("it remembered where they are", || registered(&there).len() == 3);
    assert!(!folder.path().join("coordination").exists(), "nothing is made anew there");
    traffic.await_more(200);

    let back = migrate(&there, &here, &["--json"]).exits(0).json();
    assert_eq!((&back["coordination"], &back["silent"]), (&here.as_str().into(), &serde_json::json!([])));
    wait_until("all are back", || registered(&here).len() == 3);
    wait_until("no session of theirs is left there", || registered(&there).is_empty());
    tontine(&["cluster", "create", "--coordination", &there, "--name=other"])
        .fails_with("have moved to dir:");
    traffic.await_more(200);
    let heard = traffic.end();
    assert_eq!((&heard.failed[..], &heard.unknown[..]), (&[][..], &[][..]));
    heard.check_at(addresses);
    for mut node in nodes {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
}

/// It said to name the new address, and has no option for that.
#[test]
fn dev_starts_again_after_its_documents_were_moved_away() {
    let ensemble = Ensemble::start(1);
    let mut cluster = Cluster::start();
    cluster.run(&["put", "k", "v"]).exits(0);
    let (here, there) = (directory(&cluster.data(), "coordination"), ensemble.address("/shop"));
    migrate(&here, &there, &[]).exits(0);
    for _ in 0..2 {
        cluster.restart();
        let said = cluster.dev.stderr();
        assert!(said.contains(&format!("coordination to {there}")), "{said}");
        assert_eq!(cluster.run(&["get", "k"]).exits(0).text(), "v\n");
        assert_eq!(registered(&there).len(), 3);
        // The second time, only the nodes remember where they are.
        let _ = std::fs::remove_dir_all(cluster.data().join("coordination"));
    }
}

#[test]
#[ignore = "kills commands at every step, which `coordination` explores; ./check --full process runs it"]
fn a_move_that_is_killed_goes_on_or_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let ensemble = Ensemble::start(1);
    let there = ensemble.address("/shop");
    let here = directory(folder.path(), "coordination");
    let addresses = create(&here, free_port_base());
    let _nodes: Vec<Process> = (1..=3).map(|id| start_node(id, &here, folder.path())).collect();
    wait_until("all nodes are registered", || registered(&here).len() == 3);
    let traffic = Traffic::at(addresses.clone());
    let (mut from, mut to) = (here, there);
    let (mut taken_back, mut went_on) = (0, 0);
    for round in 0..40_u64 {
        let words = ["coordination", "migrate", "--coordination", &from, "--to", &to, "--session-timeout=1s"];
        let mut moving = Process::start(&mut command(&words), folder.path().join("migrate.stderr"));
        std::thread::sleep(Duration::from_millis(3 * (round % 20)));
        moving.stop(Signal::KILL);
        // The lock of a process that was killed lives as long as its session.
        let mut ended = migrate(&from, &to, if round % 2 == 0 { &["--abort"] } else { &[] });
        wait_until("its lock is gone", || {
            if ended.stderr.contains("another process is moving documents") {
                ended = migrate(&from, &to, if round % 2 == 0 { &["--abort"] } else { &[] });
                return false;
            }
            true
        });
        match round % 2 == 0 {
            true if ended.code == 0 || ended.stderr.contains("nothing to abort") => taken_back += 1,
            // Its directory or chroot may not have been made yet.
            true if ended.stderr.contains("there is no coordination directory") => taken_back += 1,
            true if ended.stderr.contains("does not exist") => taken_back += 1,
            true => {
                assert!(ended.stderr.contains("have moved to"), "{}", ended.stderr);
                migrate(&from, &to, &[]).exits(0);
                std::mem::swap(&mut from, &mut to);
            }
            false => {
                ended.exits(0);
                went_on += 1;
                std::mem::swap(&mut from, &mut to);
            }
        }
        wait_until("all nodes are where the documents are", || registered(&from).len() == 3);
    }
    assert!(taken_back > 0 && went_on > 0, "{taken_back} {went_on}");
    let heard = traffic.end();
    assert_eq!((&heard.failed[..], &heard.unknown[..]), (&[][..], &[][..]));
    heard.check_at(addresses);
}

#[test]
fn a_move_to_where_it_cannot_go_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (here, other) = (directory(folder.path(), "coordination"), directory(folder.path(), "other"));
    let elsewhere = directory(folder.path(), "elsewhere");
    create(&here, free_port_base());
    create(&other, free_port_base());
    let before = (lasting(&here), lasting(&other));
    migrate(&here, &other, &[])
        .fails_with("is not empty: it holds /config/cluster; choose a new directory or chroot");
    migrate(&here, &here, &[]).fails_with("name another place with --to");
    migrate(&elsewhere, &other, &[]).fails_with("there is no coordination directory");
    migrate(&here, "etcd://h:1", &[]).fails_with("names no service that Tontine knows");
    migrate(&here, &elsewhere, &["--abort"])
        .fails_with("elsewhere can be aborted: there is no coordination directory");
    migrate(&here, &other, &["--abort"]).fails_with("there is nothing to abort");
    assert_eq!((lasting(&here), lasting(&other)), before);
    assert!(!folder.path().join("elsewhere").exists());
}
