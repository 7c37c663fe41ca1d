//! One node, its own cluster, in memory and with one worker: plain, with TLS, or closed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::peers::{ServerProcess, start_beside};
use crate::processes::Watched;

use super::super::ScenarioError;
use super::super::operator::Operator;
use super::super::script::system;

/// How long a node may take until it serves, or shows that it requires TLS.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How often it is asked.
const POLL: Duration = Duration::from_millis(200);
/// The user that requests come from.
pub(super) const USER: &str = "bench";

/// How it is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtectionKind {
    /// Not at all.
    Plain,
    /// By TLS, for anyone.
    Tls,
    /// By TLS and users.
    Users,
}

/// A node that serves.
#[derive(Debug)]
pub(super) struct PortsNode {
    process: ServerProcess,
    folder: TempDir,
    kind: ProtectionKind,
    native: String,
    /// Where Redis clients call it.
    pub(super) resp: String,
    /// Where HTTP clients call it, without a scheme.
    pub(super) http: String,
    /// The secret of [`USER`].
    pub(super) secret: Option<String>,
    /// The words by which a command reaches it.
    words: Vec<String>,
}

impl PortsNode {
    /// Starts it, with its cluster.
    ///
    /// # Errors
    /// When a command fails, or the node does not serve in time.
    pub(super) fn start(
        program: &Path,
        parent: Option<&Path>,
        kind: ProtectionKind,
    ) -> Result<PortsNode, ScenarioError> {
        let folder = match parent {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        }
        .map_err(system)?;
        let [native, resp, http] = free_addresses().map_err(system)?;
        let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let (documents, data) = (at("coordination"), at("data"));
        let mut words: Vec<String> = format!(
            "serve --coordination {documents} --data-dir {data} --listen {native} --resp {resp} --http {http} --engine \
             memory --workers 1"
        )
        .split(' ')
        .map(str::to_owned)
        .collect();
        let operator = Operator { program: program.to_owned(), connect: native.clone() };
        if kind != ProtectionKind::Plain {
            operator.run_alone(&["cert", "init", &at("tls")])?;
            operator.run_alone(&["cert", "node", &at("tls"), "node", "127.0.0.1"])?;
            for (option, file) in
                [("--tls-cert", "node.pem"), ("--tls-key", "node.key"), ("--tls-authority", "authority.pem")]
            {
                words.extend([option.to_owned(), at(&format!("tls/{file}"))]);
            }
            words.extend(["--tls".to_owned(), "require".to_owned()]);
        }
        let name = match kind {
            ProtectionKind::Plain => "plain",
            ProtectionKind::Tls => "tls",
            ProtectionKind::Users => "users",
        };
        // A node waits for its cluster only while that is being created. Both end by themselves, or with this function.
        let create =
            format!("cluster create --name bench --nodes 1 --consistency 1,1,1 --coordination {documents}");
        let create = create.split(' ').map(str::to_owned).collect();
        let _creating = start_beside("create", program, create, parent)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while !Path::new(&documents).join("coordination.log").exists() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        thread::sleep(POLL);
        let process = start_beside(name, program, words, parent)?;
        let mut node =
            PortsNode { process, folder, kind, native, resp, http, secret: None, words: Vec::new() };
        if let Some(authority) = node.authority() {
            node.words = vec!["--tls-authority".to_owned(), authority.to_string_lossy().into_owned()];
        }
        node.wait(&operator)?;
        if kind == ProtectionKind::Users {
            node.close(&operator)?;
        }
        Ok(node)
    }

    /// Creates the users.
    fn close(&mut self, operator: &Operator) -> Result<(), ScenarioError> {
        let at = |name: &str| self.folder.path().join(name).to_string_lossy().into_owned();
        let (root, own) = (at("root.secret"), at("bench.secret"));
        // The node tells a second later than it serves that it requires TLS.
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(error) = self.say(operator, &["user", "create", "root", "admin", "--secret-to", &root])
        {
            if Instant::now() >= deadline {
                return Err(error);
            }
            let _ = std::fs::remove_file(&root);
            thread::sleep(POLL);
        }
        self.words.extend(["--secret-file".to_owned(), root]);
        self.say(operator, &["user", "create", USER, "read:*", "write:*", "--secret-to", &own])?;
        self.secret = Some(std::fs::read_to_string(&own).map_err(system)?.trim().to_owned());
        Ok(())
    }

    fn wait(&self, operator: &Operator) -> Result<(), ScenarioError> {
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(error) = self.say(operator, &["put", "ready", "yes"]) {
            if Instant::now() >= deadline {
                return Err(error);
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Runs one of the program's commands against it.
    pub(super) fn say(&self, operator: &Operator, words: &[&str]) -> Result<(), ScenarioError> {
        let own: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let operator = Operator { program: operator.program.clone(), connect: self.native.clone() };
        operator.say(&[words, &own].concat()).map(|_| ())
    }

    /// The authority of its certificate, if it has one.
    pub(super) fn authority(&self) -> Option<PathBuf> {
        (self.kind != ProtectionKind::Plain).then(|| self.folder.path().join("tls/authority.pem"))
    }

    /// `http://HOST:PORT`, or `https://…`.
    pub(super) fn origin(&self) -> String {
        let scheme = if self.kind == ProtectionKind::Plain { "http" } else { "https" };
        format!("{scheme}://{}", self.http)
    }

    /// Its process.
    pub(super) fn watched(&self) -> Vec<Watched> {
        self.process.watched()
    }
}

/// Three addresses on loopback that nobody listens on just now.
pub(super) fn free_addresses<const COUNT: usize>() -> std::io::Result<[String; COUNT]> {
    let listeners: Vec<TcpListener> =
        (0..COUNT).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect::<Result<_, _>>()?;
    let addresses: Vec<String> = listeners
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.to_string()))
        .collect::<Result<_, _>>()?;
    Ok(addresses.try_into().expect("as many as were asked for"))
}
