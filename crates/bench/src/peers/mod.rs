//! Servers to measure: a real Redis, and Tontine itself, each started for the occasion on loopback.
//!
//! Nothing here touches a server that was running before: ports are free ones, directories are scratch ones,
//! processes are stopped by the number they were started with.

mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::processes::Watched;
use crate::target::resp::RespTarget;

pub use server::{PeerError, ServerProcess};

use server::{Start, free_base, free_port, scratch};

/// How a server keeps what it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Persistence {
    /// In memory only.
    None,
    /// Logged, synced in the background about once a second.
    EverySecond,
    /// Logged and synced before each answer.
    Always,
}

/// A Redis to start.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// The program.
    pub program: PathBuf,
    /// What survives.
    pub persistence: Persistence,
    /// Servers beside it that copy everything it is told.
    pub replicas: usize,
    /// Where its scratch directory is made; the system's temporary directory by default.
    pub parent: Option<PathBuf>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        RedisOptions {
            program: "redis-server".into(),
            persistence: Persistence::None,
            replicas: 0,
            parent: None,
        }
    }
}

/// A Tontine to start.
#[derive(Clone, Debug)]
pub struct TontineOptions {
    /// The program; this very one by default.
    pub program: PathBuf,
    /// Its arguments, separated by blanks. `{dir}` stands for a scratch directory that is not there yet, `{resp}`,
    /// `{native}` and `{http}` for free ports, `{base}` for what `dev --port-base` can be given. Addresses without
    /// such a port are read from what the program prints: a line that contains the word `resp` or `native` and an
    /// address.
    pub arguments: String,
    /// How many RESP and native addresses to expect: one for each node.
    pub nodes: usize,
    /// Where its scratch directory is made; the system's temporary directory by default.
    pub parent: Option<PathBuf>,
}

/// Which server.
#[derive(Clone, Debug)]
pub enum PeerOptions {
    /// A real Redis.
    Redis(RedisOptions),
    /// A Tontine of one or more nodes.
    Tontine(TontineOptions),
}

/// A server that answers.
#[derive(Debug)]
pub struct Peer {
    /// Its process.
    pub process: ServerProcess,
    /// Processes beside it that belong to it: a Redis's replicas.
    pub others: Vec<ServerProcess>,
    /// Where it speaks RESP, `host:port`; one for each node that takes requests.
    pub resp: Vec<String>,
    /// Where it speaks the native protocol; empty for others than Tontine.
    pub native: Vec<String>,
    /// What it says it is.
    pub version: Option<String>,
}

impl Peer {
    /// Starts a server and waits until it answers. Must not be called from within an async runtime.
    ///
    /// # Errors
    /// [`PeerError`]: the program is missing, ends early, or never answers.
    pub fn start(name: &str, options: &PeerOptions) -> Result<Self, PeerError> {
        match options {
            PeerOptions::Redis(options) => start_redis(name, options),
            PeerOptions::Tontine(options) => start_tontine(name, options),
        }
    }

    /// All its processes, to be watched: with their children, but for those of a Redis with replicas, which come and go
    /// with snapshots for a replica and are charged to their parent when they end.
    pub fn watched(&self) -> Vec<Watched> {
        if self.others.is_empty() {
            return self.process.watched();
        }
        let parents = std::iter::once(&self.process).chain(&self.others);
        parents.flat_map(|process| process.watched().into_iter().take(1)).collect()
    }

    /// The first RESP address as a target.
    pub fn resp_target(&self) -> RespTarget {
        RespTarget::new(self.resp.first().expect("a peer that answers has an address").clone())
    }
}

/// Starts one more process of a program in a scratch directory, and does not wait for anything.
///
/// # Errors
/// [`PeerError`]: the program is missing, or cannot be started.
pub(crate) fn start_beside(
    name: &str,
    program: &Path,
    arguments: Vec<String>,
    parent: Option<&Path>,
) -> Result<ServerProcess, PeerError> {
    let (directory, install) = (scratch(parent)?, "cargo build --release");
    ServerProcess::start(Start { name, program, arguments, directory, install })
}

fn start_redis(name: &str, options: &RedisOptions) -> Result<Peer, PeerError> {
    if options.replicas == 0 {
        let (process, address) = start_one_redis(name, options, None)?;
        let version = version(&address);
        return Ok(Peer { process, others: Vec::new(), resp: vec![address], native: Vec::new(), version });
    }
    let (process, address) = start_one_redis(&format!("{name} primary"), options, None)?;
    let replica = |number| {
        let (process, _) = start_one_redis(&format!("{name} replica {number}"), options, Some(&address))?;
        Ok(process)
    };
    let others = (1..=options.replicas).map(replica).collect::<Result<_, PeerError>>()?;
    let version = version(&address);
    Ok(Peer { process, others, resp: vec![address], native: Vec::new(), version })
}

/// One server, as a replica of another if one is named; a replica that has caught up.
fn start_one_redis(
    name: &str,
    options: &RedisOptions,
    primary: Option<&str>,
) -> Result<(ServerProcess, String), PeerError> {
    let directory = scratch(options.parent.as_deref())?;
    let port = free_port()?;
    let (append_only, sync) = match options.persistence {
        Persistence::None => ("no", "no"),
        Persistence::EverySecond => ("yes", "everysec"),
        Persistence::Always => ("yes", "always"),
    };
    let directory_text = directory.path().display().to_string();
    let port_text = port.to_string();
    let primary_text = primary.map(|address| address.replace(':', " "));
    let mut pairs = vec![
        ("--bind", "127.0.0.1"),
        ("--port", &port_text),
        ("--dir", &directory_text),
        ("--daemonize", "no"),
        ("--save", ""),
        ("--appendonly", append_only),
        ("--appendfsync", sync),
        ("--repl-diskless-sync-delay", "0"),
    ];
    pairs.extend(primary_text.iter().map(|address| ("--replicaof", address.as_str())));
    let arguments =
        pairs.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]).collect();
    let install = "apt-get install redis-server";
    let mut process =
        ServerProcess::start(Start { name, program: &options.program, arguments, directory, install })?;
    let address = format!("127.0.0.1:{port}");
    process.wait_until(|_| {
        all_answer(std::slice::from_ref(&address))?;
        let linked =
            || ask(&address, &[b"INFO", b"replication"])?.contains("master_link_status:up").then_some(());
        if primary.is_some() { linked() } else { Some(()) }
    })?;
    Ok((process, address))
}

fn start_tontine(name: &str, options: &TontineOptions) -> Result<Peer, PeerError> {
    let directory = scratch(options.parent.as_deref())?;
    let (resp, native, http) = (free_port()?, free_port()?, free_port()?);
    let base = free_base()?;
    // A separate directory, which the program makes itself: the outer one holds its output.
    let data = directory.path().join("data").display().to_string();
    let fill = |argument: &str| {
        argument
            .replace("{dir}", &data)
            .replace("{resp}", &resp.to_string())
            .replace("{native}", &native.to_string())
            .replace("{http}", &http.to_string())
            .replace("{base}", &base.to_string())
    };
    let arguments = options.arguments.split_whitespace().map(fill).collect();
    let given = |placeholder: &str, port: u16| -> Vec<String> {
        let used = options.arguments.contains(placeholder);
        if used { vec![format!("127.0.0.1:{port}")] } else { Vec::new() }
    };
    let given = (given("{resp}", resp), given("{native}", native));
    let install = "cargo build --release";
    let mut process =
        ServerProcess::start(Start { name, program: &options.program, arguments, directory, install })?;
    let (resp, native) = process.wait_until(|process| {
        let output = process.output();
        let or_printed = |given: &Vec<String>, word: &str| {
            if given.is_empty() { addresses(&output, word) } else { given.clone() }
        };
        let (resp, native) = (or_printed(&given.0, "resp"), or_printed(&given.1, "native"));
        if resp.len() < options.nodes {
            return None;
        }
        all_answer(&resp).map(|()| (resp, native))
    })?;
    let version = version(&resp[0]);
    Ok(Peer { process, others: Vec::new(), resp, native, version })
}

/// The distinct addresses on lines of a program's output that contain `word`, in order.
///
/// A line may list several protocols: an address belongs to the nearest word before it.
fn addresses(output: &str, word: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in output.lines() {
        let mut protocol = String::new();
        for token in line.split(|c: char| c.is_whitespace() || "\",'=()[]{}/".contains(c)) {
            let token = token.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_lowercase();
            if token.is_empty() {
                continue;
            }
            if token.parse::<std::net::SocketAddr>().is_ok() {
                if protocol == word && !found.contains(&token) {
                    found.push(token);
                }
            } else if ["resp", "native", "http", "redis"].contains(&token.as_str()) {
                protocol = if token == "redis" { "resp".to_owned() } else { token };
            }
        }
    }
    found
}

/// `Some` once every address answers PING.
fn all_answer(addresses: &[String]) -> Option<()> {
    addresses.iter().try_for_each(|address| {
        let answer = ask(address, &[b"PING"]);
        answer.is_some_and(|text| text == "PONG").then_some(())
    })
}

/// The version that a server tells in `INFO`.
fn version(address: &str) -> Option<String> {
    let info = ask(address, &[b"INFO", b"server"])?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    match (field("tontine_version:"), field("redis_version:")) {
        (Some(version), _) => Some(format!("Tontine {version}")),
        (None, Some(version)) => Some(format!("Redis {version}")),
        (None, None) => None,
    }
}

/// Asks a RESP server one question; `None` when it does not answer well.
pub(crate) fn ask(address: &str, command: &[&[u8]]) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let target = RespTarget { timeout: Duration::from_secs(2), ..RespTarget::new(address) };
    runtime.block_on(target.ask(command)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_whatever_a_server_prints() {
        let output = "node 1: resp 127.0.0.1:7001, native 127.0.0.1:7002, http http://127.0.0.1:7003/\n\
                      node 2  RESP=127.0.0.1:7011 native=127.0.0.1:7012\n\
                      try: redis-cli -p 7001\n\
                      node 3 {\"resp\":\"127.0.0.1:7021\"}\n\
                      again resp 127.0.0.1:7001\n";
        let resp = ["127.0.0.1:7001", "127.0.0.1:7011", "127.0.0.1:7021"].map(str::to_owned);
        assert_eq!(addresses(output, "resp"), resp);
        assert_eq!(addresses(output, "native"), ["127.0.0.1:7002", "127.0.0.1:7012"].map(str::to_owned));
    }
}
