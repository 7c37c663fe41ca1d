//! An ensemble that is away, and one that has lost everything, beside nodes that run.

use rustix::process::Signal;
use serde_json::Value as Json;
use tempfile::TempDir;

use super::servers::{Ensemble, wait_until};
use super::{create, documents, registered, start_node};
use crate::cluster::{Process, command, free_port_base, tontine};

/// What `doctor` finds about the documents: its exit status, the finding's code, and what to do. No headmaster runs, which
/// it finds, too, where it can read them.
fn found(connect: &str) -> (i32, String, String) {
    let said = tontine(&["doctor", "--json", "--connect", connect]);
    let json = said.json();
    let text = |finding: &Json, field: &str| finding[field].as_str().unwrap().to_owned();
    let findings = json["findings"].as_array().unwrap();
    let about = findings.iter().find(|finding| text(finding, "code").starts_with("coordination-"));
    let words = about.map(|finding| (text(finding, "code"), text(finding, "next")));
    let (code, next) = words.unwrap_or_default();
    (said.code, code, next)
}

/// `doctor` said nothing of it, and `cluster create` made the members of the lost cluster nodes of a new one; broken off,
/// it left a document that `import` took for a stranger's.
#[test]
fn an_ensemble_that_is_away_or_empty_is_named_and_no_cluster_is_created_over_one_that_runs() {
    let folder = TempDir::new().unwrap();
    let mut ensemble = Ensemble::start(1);
    let address = ensemble.address("/shop");
    let connect = create(&address, free_port_base()).join(",");
    let mut nodes: Vec<Process> = (1..=3).map(|id| start_node(id, &address, folder.path())).collect();
    wait_until("all nodes are registered", || registered(&address).len() == 3);
    wait_until("nothing is found", || found(&connect) == (1, String::new(), String::new()));
    let file = folder.path().join("documents.jsonl").display().to_string();
    tontine(&["coordination", "export", &file, "--coordination", &address]).exits(0);
    let before = documents(&address, "/config/cluster")[0]["data"].clone();

    let words = ["coordination", "watch", "--coordination", &address, "--session-timeout=1s"];
    let mut watching = Process::start(&mut command(&words), folder.path().join("watch.stderr"));
    watching.await_line("present /config/cluster");

    ensemble.servers[0].kill();
    let (status, code, next) = found(&connect);
    assert_eq!((status, code.as_str()), (0, "coordination-away"), "data is served: {next}");
    assert!(next.ends_with(&format!("coordination show --coordination {address}")), "{next}");
    std::fs::remove_dir_all(ensemble.servers[0].data().join("version-2")).unwrap();
    ensemble.servers[0].start();
    ensemble.wait_serving();
    let is_empty = |(_, code, _): &(_, String, _)| code == "coordination-empty";
    wait_until("the nodes find the service empty", || is_empty(&found(&connect)));
    let (status, _, next) = found(&connect);
    assert_eq!(status, 1, "{next}");
    let import = format!("coordination import FILE --coordination {address}");
    assert!(next.ends_with(&import), "{next}");

    // Broken off before a node registers, and then not.
    let words = ["cluster", "create", "--name=other", "--nodes=4", "--coordination", &address];
    let mut creating = Process::start(&mut command(&words), folder.path().join("create.stderr"));
    wait_until("ids are given out", || !documents(&address, "/config/ids").is_empty());
    creating.stop(Signal::KILL);
    wait_until("all nodes are registered again", || registered(&address).len() == 3);
    let refused = tontine(&words);
    refused
        .fails_with("has lost the documents of cluster \"shop\", whose members still run and register there");
    refused.fails_with("n3 at 127.0.0.1:");
    refused.fails_with(&import);
    assert!(documents(&address, "/config/cluster").is_empty());
    tontine(&["coordination", "import", &file, "--coordination", &address]).exits(0);
    assert_eq!(documents(&address, "/config/cluster")[0]["data"], before);
    // Its session ended meanwhile, as the nodes' did.
    watching.await_line("created /config/cluster");
    watching.stop(Signal::KILL);
    assert!(std::fs::read_to_string(&file).unwrap().contains(
        documents(&address, "/config/ids")[0]["data"].as_str().unwrap().replace('"', "\\\"").as_str()
    ));
    wait_until("nothing is found", || found(&connect).1.is_empty());
    for node in &mut nodes {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
}
