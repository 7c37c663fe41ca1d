//! What a request costs by HTTP, with TLS, and as a user: beside the Redis port of the same node, and beside nginx.
//!
//! ```text
//!   plain node   HTTP ┬ Redis port          TLS node   HTTP ┬ as plain        closed node   HTTP ┬ as TLS
//!                     └ nginx with a file              RESP ┘                               RESP ┘
//! ```
//!
//! Requests come from `wrk` and `redis-benchmark`, unmodified; the figure to watch is the server's CPU per request. Each
//! server has one worker. Connections are made within the measured time, so a TLS handshake for each is in the figures.

mod node;

use std::path::Path;

use tempfile::TempDir;

use crate::peers::{ServerProcess, start_beside};

use super::operator::Operator;
use super::redis_benchmark::RedisBenchmark;
use super::script::system;
use super::tools::{Side, ToolRun, alternate};
use super::wrk::Wrk;
use super::{ScenarioError, ScenarioReport, TontineArgs};

use node::{PortsNode, ProtectionKind, USER, free_addresses};

/// Where keys are.
const KEYS: &str = "/v1/stores/default/keys/";

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct PortsScenario {
    /// The node.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Alternating pairs of runs for each figure.
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Seconds of each run of wrk.
    #[arg(long, default_value_t = 3)]
    pub duration: u64,
    /// Requests of each run of redis-benchmark, and of four times as many in a pipeline.
    #[arg(long, default_value_t = 100_000)]
    pub requests: u64,
    /// Connections.
    #[arg(long, default_value_t = 50)]
    pub connections: usize,
    /// Records.
    #[arg(long, default_value_t = 20_000)]
    pub records: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    pub value_length: usize,
}

/// Which requests.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Http(&'static str),
    /// A command, and how many of them are sent together.
    Redis(&'static str, usize),
}

/// What is asked with TLS and without, and as a user.
const ASKS: [Ask; 6] = [
    Ask::Http("GET"),
    Ask::Http("PUT"),
    Ask::Redis("get", 1),
    Ask::Redis("set", 1),
    Ask::Redis("get", 16),
    Ask::Redis("set", 16),
];

impl Ask {
    fn title(self) -> String {
        match self {
            Ask::Http(method) => format!("{method} by HTTP"),
            Ask::Redis(test, 1) => format!("{} by Redis", test.to_uppercase()),
            Ask::Redis(test, depth) => format!("{} by Redis, pipeline {depth}", test.to_uppercase()),
        }
    }
}

impl PortsScenario {
    /// Starts the nodes and nginx, measures, stops them.
    ///
    /// # Errors
    /// When a server or a generator cannot be started, or a request fails.
    pub fn run(&self) -> Result<ScenarioReport, ScenarioError> {
        let question =
            "A request by HTTP, with TLS, and as a user: server CPU beside the Redis port and nginx.";
        let mut report = ScenarioReport::new("ports", question);
        let program = self.tontine.options("", 1)?.program;
        let parent = self.tontine.scratch.as_deref();
        let operator = Operator { program: program.clone(), connect: String::new() };
        let start = |kind| {
            let node = PortsNode::start(&program, parent, kind)?;
            self.fill(&operator, &node)?;
            Ok::<PortsNode, ScenarioError>(node)
        };
        let (plain, tls, users) =
            (start(ProtectionKind::Plain)?, start(ProtectionKind::Tls)?, start(ProtectionKind::Users)?);
        let nginx = Nginx::start(parent, self.value_length)?;

        let (plain, tls, users) = (&plain, &tls, &users);
        for (http, redis) in [("GET", "get"), ("PUT", "set")] {
            let title = format!("{http} by HTTP, {} by Redis: one plain node", redis.to_uppercase());
            let (a, b) = (|| self.ask(plain, Ask::Http(http)), || self.ask(plain, Ask::Redis(redis, 1)));
            let (a, b) = (Side { label: "http", run: &a }, Side { label: "redis", run: &b });
            report.comparisons.push(alternate(&self.title(&title), &a, &b, self.pairs)?);
        }
        let title = "GET by HTTP: a plain node, and nginx with one file";
        let (a, b) = (|| self.ask(plain, Ask::Http("GET")), || self.ask_nginx(&nginx));
        let (a, b) = (Side { label: "node", run: &a }, Side { label: "nginx", run: &b });
        report.comparisons.push(alternate(&self.title(title), &a, &b, self.pairs)?);

        for (names, a, b) in [(("tls", "plain"), tls, plain), (("users", "tls"), users, tls)] {
            for ask in ASKS {
                let title = self.title(&format!("{}: {} and {}", ask.title(), names.0, names.1));
                let (a, b) = (|| self.ask(a, ask), || self.ask(b, ask));
                let (a, b) = (Side { label: names.0, run: &a }, Side { label: names.1, run: &b });
                report.comparisons.push(alternate(&title, &a, &b, self.pairs)?);
            }
        }
        Ok(report)
    }

    fn title(&self, what: &str) -> String {
        format!("{what}, {} connections, {} bytes", self.connections, self.value_length)
    }

    fn ask(&self, node: &PortsNode, ask: Ask) -> Result<ToolRun, ScenarioError> {
        match ask {
            Ask::Http(method) => {
                let bearer = |secret: &String| format!("Authorization: Bearer {secret}");
                let headers: Vec<String> = node.secret.iter().map(bearer).collect();
                let (origin, path, records) = (&*node.origin(), KEYS, self.records);
                Ok(Wrk { origin, path, method, headers: &headers, records, ..self.wrk() }
                    .run(&node.watched())?)
            }
            Ask::Redis(test, depth) => {
                let authority = node.authority();
                let benchmark = RedisBenchmark {
                    address: &node.resp,
                    test,
                    connections: self.connections,
                    depth,
                    requests: if depth > 1 { 4 * self.requests } else { self.requests },
                    records: self.records,
                    value_length: self.value_length,
                    authority: authority.as_deref(),
                    user: node.secret.as_deref().map(|secret| (USER, secret)),
                };
                Ok(benchmark.run(&node.watched())?)
            }
        }
    }

    fn ask_nginx(&self, nginx: &Nginx) -> Result<ToolRun, ScenarioError> {
        let (origin, path) = (&*format!("http://{}", nginx.address), "/value");
        Ok(Wrk { origin, path, ..self.wrk() }.run(&nginx.process.watched())?)
    }

    fn wrk(&self) -> Wrk<'_> {
        Wrk {
            origin: "",
            path: "",
            method: "GET",
            headers: &[],
            connections: self.connections,
            seconds: self.duration,
            records: 0,
            value_length: self.value_length,
        }
    }

    /// Loads every record, under the names of `redis-benchmark`.
    fn fill(&self, operator: &Operator, node: &PortsNode) -> Result<(), ScenarioError> {
        let value = "x".repeat(self.value_length);
        let lines = (0..self.records).map(|record| format!("key:{record:012}\t{value}\n"));
        let mut file = tempfile::Builder::new().suffix(".tsv").tempfile().map_err(system)?;
        std::io::Write::write_all(&mut file, lines.collect::<String>().as_bytes()).map_err(system)?;
        let path = file.path().to_string_lossy().into_owned();
        node.say(operator, &["load", &path, "--key", "1", "--value", "2"])
    }
}

/// An nginx with one file.
struct Nginx {
    process: ServerProcess,
    address: String,
    _folder: TempDir,
}

impl Nginx {
    fn start(parent: Option<&Path>, value_length: usize) -> Result<Nginx, ScenarioError> {
        let folder = match parent {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        }
        .map_err(system)?;
        let (at, [address]) = (folder.path().display(), free_addresses().map_err(system)?);
        let configuration = format!(
            "daemon off; master_process off; worker_processes 1; pid {at}/pid; error_log {at}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 100000000; open_file_cache max=100;\n\
             server {{ listen {address}; root {at}; }} }}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), configuration).map_err(system)?;
        std::fs::write(folder.path().join("value"), "x".repeat(value_length)).map_err(system)?;
        let words = ["-c".to_owned(), format!("{at}/nginx.conf"), "-e".to_owned(), format!("{at}/error.log")];
        let process = start_beside("nginx", Path::new("nginx"), words.to_vec(), parent)?;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::net::TcpStream::connect(&address).is_err() {
            if std::time::Instant::now() >= deadline {
                return Err(ScenarioError::Stuck { what: "nginx does not listen" });
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Ok(Nginx { process, address, _folder: folder })
    }
}
