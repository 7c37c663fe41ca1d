//! Three nodes with their own addresses, as on three machines, and an ensemble between them.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;
use tempfile::TempDir;

use super::servers::{Ensemble, wait_until};
use super::{documents, registered};
use crate::cluster::{Process, command, free_port_base, tontine};

/// How long the ensemble keeps the session of a node that it does not hear.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// The nodes, the servers, and where all is.
pub(crate) struct Fleet {
    /// By id, from 1.
    pub(crate) nodes: Vec<Process>,
    pub(crate) ensemble: Ensemble,
    pub(crate) address: String,
    pub(crate) folder: TempDir,
    base: u16,
}

impl Fleet {
    /// Creates a cluster of three `tontine serve`.
    pub(crate) fn start(servers: usize) -> Fleet {
        let ensemble = Ensemble::start(servers);
        let address = ensemble.address("/company/shop");
        let folder = TempDir::new().unwrap();
        let mut fleet = Fleet { nodes: Vec::new(), ensemble, address, folder, base: free_port_base() };
        let words = ["cluster", "create", "--name=shop", "--nodes=3", "--coordination", &fleet.address];
        let mut creating = Process::start(&mut command(&words), fleet.folder.path().join("create.stderr"));
        wait_until("the chroot is prepared", || creating.stderr().contains("0 of 3 nodes are registered"));
        for id in 1..=3 {
            let node = fleet.launch(id);
            fleet.nodes.push(node);
            // So that each has the id of its address.
            wait_until("the node is registered", || registered(&fleet.address).len() == id);
        }
        assert_eq!(creating.wait(), Some(0), "{}", creating.stderr());
        for (id, node) in (1..=3).zip(&fleet.nodes) {
            node.await_line(&format!("node {id}  "));
        }
        fleet
    }

    /// Starts the process of a node.
    pub(crate) fn launch(&self, id: usize) -> Process {
        let data = self.folder.path().join(format!("node-{id}"));
        let words = [
            "serve".to_owned(),
            format!("--coordination={}", self.address),
            format!("--data-dir={}", data.display()),
            format!("--listen={}", self.native(id)),
            format!("--session-timeout={}s", SESSION_TIMEOUT.as_secs()),
            format!("--zone=room-{id}"),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let log = self.folder.path().join(format!("node-{id}.stderr"));
        Process::start(&mut command(&words), log)
    }

    /// Ends a node and starts it again.
    pub(crate) fn restart(&mut self, id: usize, signal: Signal) {
        let code = self.nodes[id - 1].stop(signal);
        if signal == Signal::TERM {
            assert_eq!(code, Some(0), "{}", self.nodes[id - 1].stderr());
        }
        self.nodes[id - 1] = self.launch(id);
        self.nodes[id - 1].await_line(&format!("node {id}  "));
    }

    /// Each node has its own address on this machine.
    pub(crate) fn native(&self, id: usize) -> String {
        format!("127.0.0.{}:{}", id + 1, usize::from(self.base) + id)
    }

    /// The Redis address of a node.
    pub(crate) fn resp(&self, id: usize) -> String {
        format!("127.0.0.{}:{}", id + 1, usize::from(self.base) + 100 + id)
    }

    /// All native addresses.
    pub(crate) fn addresses(&self) -> Vec<String> {
        (1..=3).map(|id| self.native(id)).collect()
    }

    /// A command that asks the nodes, in JSON.
    pub(crate) fn ask(&self, words: &[&str]) -> Json {
        let connect = self.addresses().join(",");
        tontine(&[words, &["--json", "--connect", &connect]].concat()).json()
    }

    /// Nodes that somebody believed to be down: who was told, and the words.
    pub(crate) fn believed_down(&self) -> Vec<(u64, String)> {
        let events = self.ask(&["events"]);
        let events = events["events"].as_array().unwrap();
        let downs = events.iter().filter(|event| event["kind"] == "peer-down");
        downs
            .map(|event| {
                let peer = event["fields"]["peer"].as_u64().unwrap();
                (peer, event["text"].as_str().unwrap_or_default().to_owned())
            })
            .collect()
    }

    /// Every document that says who the nodes are and what they keep, with its content and version.
    ///
    /// Left out is what the cluster writes by itself, in its own time: registrations, the headmaster's candidates,
    /// its list of orders, and the epochs of collection rounds.
    pub(crate) fn kept_documents(&self) -> Vec<(String, u64, String)> {
        const BY_ITSELF: [&str; 4] = ["/active/", "/headmaster", "/wishes", "/config/epochs"];
        let text = |json: &Json| json.as_str().unwrap_or_default().to_owned();
        documents(&self.address, "/")
            .iter()
            .map(|document| text(&document["path"]))
            .filter(|path| !BY_ITSELF.iter().any(|own| path.starts_with(own)))
            .map(|path| {
                let found = documents(&self.address, &path).remove(0);
                (path, found["version"].as_u64().unwrap(), text(&found["data"]))
            })
            .collect()
    }

    /// Waits until no node holds anything for another.
    pub(crate) fn await_no_hints(&self) {
        wait_until("all hints are delivered", || {
            let status = self.ask(&["status"]);
            let nodes = status["nodes"].as_array().unwrap();
            nodes.iter().all(|node| node["report"]["status"]["hints"].as_array().is_some_and(Vec::is_empty))
        });
    }

    /// Ends all nodes cleanly.
    pub(crate) fn stop(&mut self) {
        for node in &mut self.nodes {
            assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
        }
        wait_until("nobody is registered", || registered(&self.address).is_empty());
    }
}
