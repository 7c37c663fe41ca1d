//! `tontine adapter redis-cluster`: the masters of a Redis Cluster, under the contract of adapters.
//!
//! ```text
//!   observe    how each server sees the cluster ──▶ members and their measures     `sight`, `map`, `observing`
//!   join …     note at servers which slots they take                               `acts`, `shares`
//!   open slots ──▶ keys, then owners, by steps that may be begun anew anywhere      `mover`, `script.lua`
//!   evidence   what the other masters say                                          `evidence`
//! ```
//!
//! What is intended is kept by the cluster itself, as slots that are noted to be taken: see `mover`.
//!
//! Must never: ask a member whether it may be ended, or show a password.

mod acts;
mod evidence;
mod map;
mod mover;
mod observing;
mod resp;
mod shares;
mod sight;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use model::elasticity::adapter::{Boot, EngineFacts, PROTOCOL};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value as Json;

use self::evidence::Subject;
use self::map::Id;
use self::mover::{KeyPace, Mover};
use self::observing::Samples;
use self::resp::Credentials;
use self::sight::Servers;
use super::rpc::{self, Adapter, RpcFailure};
use super::tontine::quoted;
use crate::failure::CliError;

/// The fewest masters of a cluster: with fewer, no majority is left when one fails.
const MEMBERS_MIN: usize = 3;
/// Settings of `redis-server` that the boot script gives itself.
const OWN_SETTINGS: [&str; 9] = [
    "--port",
    "--bind",
    "--dir",
    "--cluster-enabled",
    "--cluster-announce-ip",
    "--cluster-allow-replica-migration",
    "--protected-mode",
    "--requirepass",
    "--masterauth",
];

/// Which cluster, how its machines start, and how fast its keys may move.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Machines need redis-server and redis-cli. A new one starts as
  redis-server … --port PORT --bind \"$MACHINE_ADDRESS\" --dir \"$MACHINE_DATA\" --cluster-enabled yes …
and makes itself known to the seeds. It is a member without slots until it is asked to join.

docs/reference/adapters.md is the contract that it speaks, on standard input and output.")]
pub struct RedisArguments {
    /// Addresses of members, by which new machines find the cluster, too. Name those that stay.
    #[arg(long, value_delimiter = ',', required = true, value_name = "ADDRESS:PORT,…")]
    pub seeds: Vec<SocketAddr>,
    /// Port of new members at their machine's address; their bus has the port 10,000 above.
    #[arg(long, value_name = "PORT", default_value_t = 6379, value_parser = clap::value_parser!(u16).range(1..=55_535))]
    pub port: u16,
    /// User of an access control list, for this adapter and for moves between servers.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub username: Option<String>,
    /// A file whose first line is the password, here and on each machine.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Keys that move at once, at most. Fewer do where a batch takes longer than 10 ms.
    #[arg(long, value_name = "KEYS", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub batch: u16,
    /// The share of the time in which batches are under way, in percent. In the rest, servers have their clients only.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub pace: u32,
    /// Further settings of redis-server on new machines, such as --appendonly yes.
    #[arg(last = true, value_name = "SETTINGS OF REDIS-SERVER")]
    pub settings: Vec<String>,
}

/// Runs the adapter until standard input ends. What moves then stops where it is.
pub(super) async fn run(mut arguments: RedisArguments) -> Result<ExitCode, CliError> {
    let is_own = |word: &&String| OWN_SETTINGS.iter().any(|own| word.split('=').next() == Some(own));
    if let Some(word) = arguments.settings.iter().find(is_own) {
        let remedy = "leave it out: the boot script gives it itself";
        return Err(CliError::Usage(format!("{word} cannot be given to new machines; {remedy}")));
    }
    if let Some(file) = &mut arguments.password_file {
        *file = std::path::absolute(&file).map_err(CliError::io("cannot find the password's file"))?;
    }
    let credentials =
        Credentials { username: arguments.username.clone(), password_file: arguments.password_file.clone() };
    let servers = Arc::new(Servers::new(arguments.seeds.clone(), credentials));
    let pace = KeyPace { keys_max: usize::from(arguments.batch), percent: arguments.pace };
    let mover = Arc::new(Mover::new(Arc::clone(&servers), pace));
    let moves = Arc::clone(&mover);
    tokio::spawn(async move { moves.run().await });
    rpc::serve(&Redis { arguments, servers, mover, samples: Mutex::default() }).await
}

struct Redis {
    arguments: RedisArguments,
    servers: Arc<Servers>,
    mover: Arc<Mover>,
    /// What was measured last, so that a rate is one of the time since. It is measured twice where there is none.
    samples: Mutex<Samples>,
}

const METHODS: [&str; 8] = ["describe", "boot", "observe", "join", "drain", "cancel", "forget", "evidence"];

#[derive(Deserialize)]
struct OfFleet {
    #[serde(rename = "fleet")]
    _fleet: String,
}

#[derive(Deserialize)]
struct OfMember {
    member: String,
}

#[derive(Deserialize)]
struct OfSubject {
    member: Option<String>,
    address: Option<String>,
}

impl Adapter for Redis {
    async fn call(&self, method: &str, params: Json) -> Result<Json, RpcFailure> {
        if METHODS.contains(&method) {
            let OfFleet { _fleet } = rpc::read(params.clone())?;
        }
        match method {
            "describe" => rpc::written(&facts()),
            "boot" => rpc::written(&Boot { script: boot(&self.arguments) }),
            "observe" => rpc::written(&self.observe().await?),
            "evidence" => rpc::written(&self.evidence(&subject(params)?).await?),
            "join" => self.join(&member(params)?).await,
            "drain" => self.drain(&member(params)?).await,
            "cancel" => self.cancel(&member(params)?).await,
            "forget" => self.forget(&member(params)?).await,
            _ => Err(RpcFailure::method(method, &METHODS)),
        }
    }
}

fn member(params: Json) -> Result<Id, RpcFailure> {
    id(&rpc::read::<OfMember>(params)?.member)
}

fn id(text: &str) -> Result<Id, RpcFailure> {
    Id::parse(text).ok_or_else(|| {
        RpcFailure::params(format!("{text:?} is no member: a member's id has 40 hexadecimal digits"))
    })
}

fn subject(params: Json) -> Result<Subject, RpcFailure> {
    match rpc::read(params)? {
        OfSubject { member: Some(member), address: _ } => Ok(Subject::Member(id(&member)?)),
        OfSubject { member: None, address: Some(address) } => Ok(Subject::Address(address)),
        OfSubject { member: None, address: None } => Err(RpcFailure::params(
            "evidence takes a member, or the address of a machine that never became one",
        )),
    }
}

fn facts() -> EngineFacts {
    EngineFacts {
        name: "redis cluster".to_owned(),
        protocol: PROTOCOL,
        acts_max: 1,
        drain_cancellable: true,
        joins_at_boot: false,
        members_min: MEMBERS_MIN as u32,
        measures: observing::MEASURES.map(str::to_owned).to_vec(),
    }
}

/// The script with which a machine starts. Passwords are read on the machine, so that none is in it.
fn boot(arguments: &RedisArguments) -> String {
    let RedisArguments { seeds, port, username, password_file, settings, .. } = arguments;
    let mut lines = vec!["#!/bin/sh".to_owned(), "set -eu".to_owned(), "umask 077".to_owned()];
    let mut words = vec!["exec redis-server".to_owned()];
    let mut of_client = String::new();
    match (password_file, username) {
        (Some(file), None) => {
            let file = quoted(&file.display().to_string());
            lines.push(format!("password=$(head -n 1 {file} | sed 's/[\\\\\"]/\\\\&/g')"));
            lines.push("printf 'requirepass \"%s\"\\nmasterauth \"%s\"\\n' \"$password\" \"$password\" >\"$MACHINE_DATA/redis.conf\"".to_owned());
            words.push("\"$MACHINE_DATA/redis.conf\"".to_owned());
        }
        (Some(_), Some(name)) => of_client = format!(" --user {}", quoted(name)),
        (None, _) => {}
    }
    let client = format!("redis-cli -h \"$MACHINE_ADDRESS\" -p {port}{of_client} --no-auth-warning cluster");
    lines.push("# Makes itself known, until another member knows it.".to_owned());
    lines.push("(".to_owned());
    if let Some(file) = password_file {
        lines.push(format!("  REDISCLI_AUTH=$(head -n 1 {})", quoted(&file.display().to_string())));
        lines.push("  export REDISCLI_AUTH".to_owned());
    }
    lines.push(format!(
        "  while kill -0 $$ && ! {client} nodes | grep -v myself | grep -v handshake | grep -q master; do"
    ));
    lines.extend(seeds.iter().map(|seed| format!("    {client} meet {} {} || true", seed.ip(), seed.port())));
    lines.extend(["    sleep 1".to_owned(), "  done".to_owned(), ") >/dev/null 2>&1 &".to_owned()]);
    words.push(format!("--port {port} --bind \"$MACHINE_ADDRESS\" --dir \"$MACHINE_DATA\""));
    words.push("--cluster-enabled yes --cluster-announce-ip \"$MACHINE_ADDRESS\"".to_owned());
    // Else it becomes a replica when it gives its last slot away.
    words.push("--cluster-allow-replica-migration no".to_owned());
    if password_file.is_none() {
        words.push("--protected-mode no".to_owned());
    }
    words.extend(settings.iter().map(|word| quoted(word)));
    lines.push(words.join(" "));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(password: Option<&str>) -> String {
        boot(&RedisArguments {
            seeds: vec!["10.0.0.1:6379".parse().unwrap(), "10.0.0.2:6380".parse().unwrap()],
            port: 6379,
            username: None,
            password_file: password.map(PathBuf::from),
            batch: 200,
            pace: 50,
            settings: vec!["--appendonly".to_owned(), "yes".to_owned()],
        })
    }

    #[test]
    fn a_machine_is_open_only_where_no_password_is_asked_for() {
        let open = script(None);
        assert!(
            open.contains("cluster meet 10.0.0.2 6380") && open.contains("--protected-mode no"),
            "{open}"
        );
        assert!(open.ends_with("--protected-mode no --appendonly yes\n"), "{open}");
        let closed = script(Some("/etc/redis/it's"));
        assert!(!closed.contains("--protected-mode") && closed.contains("requirepass"), "{closed}");
        assert!(closed.contains(r"head -n 1 '/etc/redis/it'\''s'"), "{closed}");
    }
}
