//! `tontine adapter tontine`: the members of a Tontine cluster, under the contract of adapters.
//!
//! ```text
//!   observe    cluster document, office, reports ──▶ members and their measures   `observing`
//!   join …     orders for the headmaster, which is the one queue for plans          `acts`
//!   evidence   documents and reports of the other members                           `evidence`
//! ```
//!
//! It speaks to the cluster as every command does: through any node, with the rights of its secret.
//!
//! Must never: ask a member whether it may be ended.

mod acts;
mod evidence;
mod observing;

use std::process::ExitCode;
use std::sync::Arc;

use ::coordination::address::Address;
use client::{Client, ClientError};
use model::elasticity::adapter::{Boot, EngineFacts, PROTOCOL};
use model::{Cluster, NodeId};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value as Json;
use wire::ErrorCode;

use self::evidence::Subject;
use self::observing::Samples;
use super::rpc::{self, Adapter, CREDENTIALS, RpcFailure};
use crate::context::CliContext;
use crate::failure::{CliError, no_tls};

/// Options of `tontine serve` that its boot script gives itself.
const OWN_OPTIONS: [&str; 7] =
    ["--coordination", "--data-dir", "--listen", "--advertise", "--forwarded", "--zone", "--id"];

/// Which cluster, and how its machines start.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Machines run this program, at the path at which it is here:
  tontine serve --coordination ADDRESS --data-dir \"$MACHINE_DATA\" --listen \"$MACHINE_ADDRESS:PORT\" --zone ZONE …

docs/reference/adapters.md is the contract that it speaks, on standard input and output.")]
pub struct TontineArguments {
    /// The coordination service as machines reach it: `zookeeper://HOST:PORT,…/CHROOT`, or a directory of this host.
    #[arg(long, env = "TONTINE_COORDINATION", value_name = "ADDRESS")]
    pub coordination: Address,
    /// Port of new nodes at their machine's address.
    #[arg(long, value_name = "PORT", default_value_t = 7401, value_parser = clap::value_parser!(u16).range(1..=65_335))]
    pub port: u16,
    /// Failure domain of new nodes. Without this, the one of all members, if they have but one.
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// Further arguments of `tontine serve` on new machines, such as --insecure.
    #[arg(last = true, value_name = "ARGUMENTS OF SERVE")]
    pub serve: Vec<String>,
}

/// Runs the adapter until standard input ends.
pub(super) async fn run(shared: CliContext, mut arguments: TontineArguments) -> Result<ExitCode, CliError> {
    let is_own = |word: &&String| OWN_OPTIONS.iter().any(|own| word.split('=').next() == Some(own));
    if let Some(word) = arguments.serve.iter().find(is_own) {
        let remedy = "leave it out: the boot script says where a node is";
        return Err(CliError::Usage(format!("{word} cannot be given to new machines; {remedy}")));
    }
    if let Address::Directory(directory) = &mut arguments.coordination {
        let absolute = std::path::absolute(&directory);
        *directory = absolute.map_err(CliError::io("cannot find the coordination directory"))?;
    }
    let (client, samples) = (Mutex::default(), Mutex::default());
    rpc::serve(&Tontine { shared, arguments, client, samples }).await
}

struct Tontine {
    shared: CliContext,
    arguments: TontineArguments,
    /// Knows members that came later than those of `--connect`. Another one may be opened at any time.
    client: Mutex<Option<Client>>,
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

impl Adapter for Tontine {
    async fn call(&self, method: &str, params: Json) -> Result<Json, RpcFailure> {
        if METHODS.contains(&method) {
            let OfFleet { _fleet } = rpc::read(params.clone())?;
        }
        match method {
            "describe" => rpc::written(&self.facts().await?),
            "boot" => rpc::written(&self.boot().await?),
            "observe" => rpc::written(&self.observe().await?),
            "evidence" => rpc::written(&self.evidence(subject(params)?).await?),
            "join" => self.join(member(params)?).await,
            "drain" => self.drain(member(params)?).await,
            "cancel" => self.cancel(member(params)?).await,
            "forget" => self.forget(member(params)?).await,
            _ => Err(RpcFailure::method(method, &METHODS)),
        }
    }
}

fn member(params: Json) -> Result<NodeId, RpcFailure> {
    node(&rpc::read::<OfMember>(params)?.member)
}

fn node(text: &str) -> Result<NodeId, RpcFailure> {
    crate::orders::parse_node(text).map_err(|why| RpcFailure::params(format!("{text:?} is no member: {why}")))
}

fn subject(params: Json) -> Result<Subject, RpcFailure> {
    match rpc::read(params)? {
        OfSubject { member: Some(member), address: _ } => Ok(Subject::Member(node(&member)?)),
        OfSubject { member: None, address: Some(address) } => Ok(Subject::Address(address)),
        OfSubject { member: None, address: None } => Err(RpcFailure::params(
            "evidence takes a member, or the address of a machine that never became one",
        )),
    }
}

impl Tontine {
    /// A client that has just heard of the newest document that the first node to answer follows.
    async fn view(&self) -> Result<(Client, Arc<Cluster>), RpcFailure> {
        let known = self.client.lock().clone();
        if let Some(client) = known
            && let Ok(cluster) = client.refresh().await
        {
            return Ok((client, cluster));
        }
        let client = self.shared.client().await.map_err(of_command)?;
        let cluster = client.refresh().await.map_err(of_client)?;
        *self.client.lock() = Some(client.clone());
        Ok((client, cluster))
    }

    /// Refused for a golden ring, so that no machine is bought for one.
    async fn facts(&self) -> Result<EngineFacts, RpcFailure> {
        let (_, cluster) = self.view().await?;
        not_golden(&cluster)?;
        Ok(EngineFacts {
            name: format!("tontine cluster {}", cluster.name),
            protocol: PROTOCOL,
            // Plans are carried out one after the other.
            acts_max: 1,
            drain_cancellable: true,
            joins_at_boot: false,
            members_min: u32::try_from(cluster.replicas_max()).unwrap_or(u32::MAX),
            measures: observing::MEASURES.map(str::to_owned).to_vec(),
        })
    }

    /// The script with which a machine starts.
    async fn boot(&self) -> Result<Boot, RpcFailure> {
        let TontineArguments { coordination, port, zone, serve } = &self.arguments;
        let zone = match zone {
            Some(zone) => zone.clone(),
            None => only_zone(&self.view().await?.1)?,
        };
        let program =
            std::env::current_exe().map_err(RpcFailure::io("cannot find this program's own file"))?;
        let mut words = vec!["exec".to_owned(), quoted(&program.display().to_string()), "serve".to_owned()];
        words.extend(["--coordination".to_owned(), quoted(&coordination.to_string())]);
        words.push("--data-dir \"$MACHINE_DATA\"".to_owned());
        words.push(format!("--listen \"$MACHINE_ADDRESS:{port}\""));
        words.extend(["--zone".to_owned(), quoted(&zone)]);
        words.extend(serve.iter().map(|word| quoted(word)));
        Ok(Boot { script: format!("#!/bin/sh\n{}\n", words.join(" ")) })
    }
}

/// A golden ring has no plan that gives a new member its share, and a member without one is of no use.
fn not_golden(cluster: &Cluster) -> Result<(), RpcFailure> {
    match cluster.ring.is_golden() {
        true => Err(RpcFailure::refused(format!(
            "the ring of cluster {} is golden, so no fleet can manage it: its nodes join by `tontine node add`, one at a time, \
             and leave by `tontine node drain`",
            cluster.name
        ))),
        false => Ok(()),
    }
}

/// The zone of all members.
fn only_zone(cluster: &Cluster) -> Result<String, RpcFailure> {
    let mut zones: Vec<&str> = cluster.nodes.iter().map(|node| node.zone.0.as_str()).collect();
    zones.sort_unstable();
    zones.dedup();
    match zones[..] {
        [only] => Ok(only.to_owned()),
        _ => Err(RpcFailure::refused(format!(
            "the members are in zones {}, and nobody said in which new machines are: start the adapter with --zone",
            zones.join(", ")
        ))),
    }
}

/// A word as the shell reads it.
pub(in crate::adapter) fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// What a node or the network said, by the codes of the contract.
fn of_client(error: ClientError) -> RpcFailure {
    of_command(error.into())
}

/// Whether a node answered, and would not do this for whoever asked.
fn is_judged(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Forbidden | ErrorCode::Unauthenticated)
}

/// The same of what stood in the way here.
fn of_command(error: CliError) -> RpcFailure {
    let lacks_credentials = match &error {
        CliError::Client(error) | CliError::NoAnswer { error, .. } => match error {
            ClientError::Failed { code, .. } => is_judged(*code),
            // Each address with what was said there, as `crates/node/src/access.rs` words it.
            ClientError::NotConnected { detail } => detail.contains(" secret") || no_tls(error),
            error => no_tls(error),
        },
        _ => false,
    };
    match &error {
        _ if lacks_credentials => RpcFailure {
            code: CREDENTIALS,
            message: format!(
                "{error}; give the adapter the right ones with --secret-file and --tls-authority"
            ),
        },
        CliError::Usage(_) => RpcFailure::refused(error.to_string()),
        _ => RpcFailure::passing(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_reads_a_word_as_it_was_given() {
        assert_eq!(quoted("zookeeper://a:2181,b:2181/shop"), "zookeeper://a:2181,b:2181/shop");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
