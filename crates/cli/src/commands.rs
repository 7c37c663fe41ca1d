//! The table of all commands: which there are, what `--help` says of each, and where each is carried out.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::adapter::AdapterCommand;
use crate::artifact::ArtifactCommand;
use crate::balance_command::BalanceCommand;
use crate::cert_command::CertCommand;
use crate::cluster_command::ClusterCommand;
use crate::command_line::{self, CommandLine, Useless};
use crate::completions::CompletionsArguments;
use crate::context::{CliContext, block_on};
use crate::coordination::CoordinationCommand;
use crate::dev::DevArguments;
use crate::elastic_command::ElasticCommand;
use crate::events::{EventsArguments, MetricsArguments};
use crate::export::ExportArguments;
use crate::failure::CliError;
use crate::feeds::RangeArguments;
use crate::headmaster::HeadmasterArguments;
use crate::key_list::KeyListArguments;
use crate::keys::{
    DeleteArguments, GetArguments, KeysArguments, MgetArguments, PutArguments, ResolveArguments,
    SiblingsArguments,
};
use crate::load::LoadArguments;
use crate::logging::NodeLog;
use crate::manual::ManualArguments;
use crate::node_command::NodeVerb;
use crate::plan_command::PlanCommand;
use crate::repair::RepairCommand;
use crate::serve::ServeArguments;
use crate::store_command::StoreCommand;
use crate::user_command::UserCommand;
use crate::{
    adapter, artifact, balance_command, cert_command, cluster_command, completions, coordination, dev,
    doctor, elastic_command, events, export, feeds, headmaster, key_list, keys, load, manual, node_command,
    plan_command, repair, serve, status, store_command, user_command,
};

/// A key-value store that looks after itself.
#[derive(Debug, Parser)]
#[command(
    name = "tontine",
    version,
    about,
    max_term_width = 110,
    subcommand_required = true,
    after_help = "\
Start here:
  tontine dev                  three nodes on this machine; leave it running
  tontine put greeting hello   in another terminal
  tontine get greeting

Exit status:
  0  done
  1  no: the key was not found, the condition was not met, or the cluster has a problem
  2  failed, or the command line is wrong
  3  unknown: the write may or may not have happened, so read the key before you write again"
)]
pub struct Arguments {
    /// What every command knows.
    #[command(flatten)]
    pub shared: CliContext,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that mean nothing to commands about files.
fn without_nodes(path: &str) -> &'static [Useless] {
    match path {
        "cert init" | "cert node" => &[
            ("connect", "it does not contact a cluster"),
            ("store", "it does not contact a cluster"),
            ("deadline", "it does not contact a cluster"),
            ("secret_file", "it does not contact a cluster"),
            ("tls_authority", "name the directory of the authority"),
        ],
        "completions" => &[
            ("connect", "it does not contact a cluster"),
            ("store", "it does not contact a cluster"),
            ("deadline", "it does not contact a cluster"),
            ("output", "it prints a script"),
            ("json", "it prints a script"),
        ],
        "manual" => &[
            ("connect", "it does not contact a cluster"),
            ("store", "it does not contact a cluster"),
            ("deadline", "it does not contact a cluster"),
        ],
        "adapter local" | "adapter launch" => &[
            ("connect", "it does not contact a cluster"),
            ("store", "it does not contact a cluster"),
            ("deadline", "it does not contact a cluster"),
            ("secret_file", "it does not contact a cluster"),
            ("tls_authority", "it does not contact a cluster"),
            ("output", "it speaks the contract of adapters"),
            ("json", "it speaks the contract of adapters"),
        ],
        "adapter tontine" => &[
            ("store", "it is about all stores"),
            ("output", "it speaks the contract of adapters"),
            ("json", "it speaks the contract of adapters"),
        ],
        "adapter check" => &[
            ("connect", "give it to the adapter, behind --"),
            ("store", "it is about an adapter"),
            ("deadline", "--answer-within limits its calls"),
            ("secret_file", "give it to the adapter, behind --"),
            ("tls_authority", "give it to the adapter, behind --"),
        ],
        "artifact build" => &[("deadline", "it sends no requests")],
        "artifact check" | "artifact show" | "artifact diff" => &[
            ("connect", "it reads files, and asks no node"),
            ("store", "an artifact says for which store it was built"),
            ("deadline", "it sends no requests"),
        ],
        "artifact push" | "artifact stage" => &[("store", "an artifact says for which store it was built")],
        "artifact swap" | "artifact rollback" | "artifact list" | "artifact delete" | "artifact abort" => {
            &[("store", "give the name of the store as its argument")]
        }
        _ => &[],
    }
}

impl CommandLine for Arguments {
    fn shared(&mut self) -> &mut CliContext {
        &mut self.shared
    }

    fn useless(path: &str) -> &'static [Useless] {
        const STORE_ALL: Useless = ("store", "it shows all stores");
        const CONNECT_NODE: Useless = ("connect", "it starts nodes instead of connecting to them");
        const STORE_NODE: Useless = ("store", "it runs nodes, which serve all stores");
        const DEADLINE_NODE: Useless = ("deadline", "it sends no requests");
        const CONNECT_BENCH: Useless = ("connect", "it starts the servers that it measures");
        const SECRET_NODE: Useless = ("secret_file", "nodes prove who they are by certificates");
        const DEADLINE_BENCH: Useless = ("deadline", "--timeout limits its requests");
        const DEADLINE_SCENARIO: Useless = ("deadline", "it measures with a fixed deadline");
        match path {
            "cluster create"
            | "coordination show"
            | "coordination watch"
            | "coordination export"
            | "coordination import"
            | "coordination migrate" => &[
                ("connect", "it asks the coordination service, and no node"),
                ("store", "it is about documents"),
                ("deadline", "it asks the coordination service, which has its own limits"),
            ],
            "dev" => &[
                CONNECT_NODE,
                STORE_NODE,
                DEADLINE_NODE,
                SECRET_NODE,
                ("tls_authority", "--tls makes its own authority"),
            ],
            "serve" => &[CONNECT_NODE, STORE_NODE, DEADLINE_NODE, SECRET_NODE],
            "headmaster" => &[
                ("connect", "it asks the coordination service"),
                ("store", "it is about all stores"),
                ("deadline", "it has its own limits"),
            ],
            plan if plan.starts_with("plan ") => &[STORE_ALL],
            "node add" | "node drain" | "node remove" | "node weight" | "node recommission" => &[STORE_ALL],
            "metrics" | "events" | "node list" | "status" | "doctor" | "balance status" | "store list" => {
                &[STORE_ALL]
            }
            elastic if elastic.starts_with("elastic ") => &[
                ("connect", "it asks the coordination service"),
                ("store", "it is about machines"),
                ("deadline", "it asks the coordination service, which has its own limits"),
            ],
            user if user.starts_with("user ") => &[("store", "rights name their stores")],
            "store create" => &[("store", "give the name of the new store as its argument")],
            "store advise" | "range" => &[("store", "give the name of the store as its first argument")],
            "bench load" | "bench run" => &[DEADLINE_BENCH],
            "bench compare" => &[("connect", "name the systems with --a and --b"), DEADLINE_BENCH],
            "bench resp" | "bench pipeline" | "bench balance" => {
                &[CONNECT_BENCH, ("store", "Redis clients use the default store"), DEADLINE_SCENARIO]
            }
            "bench feeds" => &[CONNECT_BENCH, ("store", "it makes its own stores"), DEADLINE_SCENARIO],
            "bench persistent" | "bench cluster" => &[CONNECT_BENCH, DEADLINE_SCENARIO],
            _ => without_nodes(path),
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole cluster on this machine until Ctrl-C.
    Dev(DevArguments),
    /// Run this machine's node of a cluster until Ctrl-C. It gets its id by itself.
    Serve(Box<ServeArguments>),
    /// List, add, drain, replace, remove or weigh nodes.
    #[command(subcommand)]
    Node(Box<NodeVerb>),
    /// Run a headmaster until Ctrl-C: the process that carries out plans and orders.
    Headmaster(HeadmasterArguments),
    /// Plan what moves between nodes: create, show, apply, abort.
    #[command(subcommand)]
    Plan(Box<PlanCommand>),
    /// Make the certificates of a cluster's nodes.
    #[command(subcommand)]
    Cert(Box<CertCommand>),
    /// Create a cluster.
    #[command(subcommand)]
    Cluster(Box<ClusterCommand>),
    /// Show, watch, export or import the documents of the coordination service.
    #[command(subcommand)]
    Coordination(Box<CoordinationCommand>),
    /// Show the events of the nodes: starts, failures and repairs.
    Events(EventsArguments),
    /// Print a node's metrics in Prometheus format.
    Metrics(MetricsArguments),
    /// Write a key.
    Put(PutArguments),
    /// Read a key. Exits with 1 if the key is not found.
    Get(GetArguments),
    /// Delete keys.
    Delete(DeleteArguments),
    /// List the keys of a store.
    Keys(KeyListArguments),
    /// Read several keys, with one message to each node. Exits with 1 if any key is not found.
    Mget(MgetArguments),
    /// List the entries of a feed by their sequence numbers, in a store that keeps windows.
    Range(RangeArguments),
    /// Show every version of a key, including tombstones and expired values.
    Siblings(SiblingsArguments),
    /// Merge a key's siblings into one value.
    Resolve(ResolveArguments),
    /// Show which nodes store a key: partition, replicas, fallbacks.
    Route(KeysArguments),
    /// Show the cluster and its nodes. Exits with 1 if a node is down.
    Status,
    /// Diagnose the cluster and suggest fixes. Exits with 1 if it finds a problem.
    Doctor,
    /// Show how load is spread over nodes and partitions.
    #[command(subcommand)]
    Balance(BalanceCommand),
    /// Grow and shrink managed clusters of any engine by what is measured, and say why.
    #[command(subcommand)]
    Elastic(Box<ElasticCommand>),
    /// List the stores, or create one.
    #[command(subcommand)]
    Store(Box<StoreCommand>),
    /// List, create, change or remove the users of a closed cluster.
    #[command(subcommand)]
    User(Box<UserCommand>),
    /// Show, start or stop replica repair.
    #[command(subcommand)]
    Repair(RepairCommand),
    /// Load the records of a file: tsv, csv, JSON lines or Debian control files.
    Load(LoadArguments),
    /// Export all records of a store to a file.
    Export(ExportArguments),
    /// Build an artifact, the table of a read-only store, put it live, or check, show or compare artifacts.
    #[command(subcommand)]
    Artifact(Box<ArtifactCommand>),
    /// Run an adapter of elasticity, which a controller starts as its child, or check one.
    #[command(subcommand)]
    Adapter(AdapterCommand),
    /// Print a completion script for a shell.
    Completions(CompletionsArguments),
    /// Write the manual pages of all commands.
    #[command(hide = true)]
    Manual(ManualArguments),
    /// Benchmark a running cluster or a Redis server, or compare them.
    #[command(subcommand)]
    Bench(Box<bench::cli::BenchCommand>),
}

impl Command {
    /// Whether it runs until it is told to stop, and answers nothing.
    pub(crate) fn is_role(&self) -> bool {
        match self {
            Command::Elastic(command) => matches!(**command, ElasticCommand::Run(_)),
            _ => matches!(self, Command::Dev(_) | Command::Serve(_) | Command::Headmaster(_)),
        }
    }

    /// What nodes of this process log; `None` for a command that runs none.
    pub(crate) fn node_log(&self) -> Option<NodeLog> {
        match self {
            Command::Serve(serve) => {
                Some(NodeLog { settings: serve.settings.log, file: serve.log_file.clone() })
            }
            Command::Headmaster(headmaster) => {
                Some(NodeLog { settings: headmaster.log, file: headmaster.log_file.clone() })
            }
            Command::Elastic(command) => match &**command {
                ElasticCommand::Run(run) => Some(NodeLog { settings: run.log, file: run.log_file.clone() }),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Carries out a command.
pub(crate) fn carry_out(arguments: Arguments) -> Result<ExitCode, CliError> {
    let shared = arguments.shared;
    match arguments.command {
        Command::Dev(arguments) => dev::run(&shared, arguments),
        Command::Node(verb) => block_on(node_command::run(shared, *verb)),
        Command::Headmaster(arguments) => headmaster::run(&shared, arguments),
        Command::Plan(command) => block_on(plan_command::run(shared, *command)),
        Command::Serve(arguments) => serve::run(&shared, *arguments),
        Command::Cert(command) => cert_command::run(&shared, *command),
        Command::Cluster(command) => block_on(cluster_command::run(shared, *command)),
        Command::Coordination(command) => block_on(coordination::run(shared, *command)),
        Command::Events(arguments) => block_on(events::events(shared, arguments)),
        Command::Metrics(arguments) => block_on(events::metrics(shared, arguments)),
        Command::Bench(command) => run_bench(&shared, &command),
        Command::Put(arguments) => block_on(keys::put(shared, arguments)),
        Command::Get(arguments) => block_on(keys::get(shared, arguments)),
        Command::Delete(arguments) => block_on(keys::delete(shared, arguments)),
        Command::Keys(arguments) => block_on(key_list::list(shared, arguments)),
        Command::Mget(arguments) => block_on(keys::mget(shared, arguments)),
        Command::Range(arguments) => block_on(feeds::range(shared, arguments)),
        Command::Siblings(arguments) => block_on(keys::siblings(shared, arguments)),
        Command::Resolve(arguments) => block_on(keys::resolve(shared, arguments)),
        Command::Route(arguments) => block_on(keys::route(shared, arguments)),
        Command::Status => block_on(status::status(shared)),
        Command::Doctor => block_on(doctor::doctor(shared)),
        Command::Balance(command) => block_on(balance_command::run(shared, command)),
        Command::Elastic(command) => elastic_command::run(&shared, *command),
        Command::Store(command) => block_on(store_command::run(shared, *command)),
        Command::User(command) => block_on(user_command::run(shared, *command)),
        Command::Repair(command) => block_on(repair::run(shared, command)),
        Command::Load(arguments) => block_on(load::run(shared, arguments)),
        Command::Completions(arguments) => {
            Ok(completions::completions(command_line::command::<Arguments>(), arguments))
        }
        Command::Manual(arguments) => manual::write(command_line::command::<Arguments>(), arguments),
        Command::Export(arguments) => block_on(export::run(shared, arguments)),
        Command::Artifact(command) => block_on(artifact::run(shared, *command)),
        Command::Adapter(command) => adapter::run(shared, command),
    }
}

fn run_bench(shared: &CliContext, command: &bench::cli::BenchCommand) -> Result<ExitCode, CliError> {
    let reach = bench::reach::Reach { connect: shared.connect.clone(), store: shared.store.clone() };
    let report = bench::cli::run(command, &reach).map_err(|error| CliError::Other(error.to_string()))?;
    let document = serde_json::to_value(&report).map_err(|error| CliError::Other(error.to_string()))?;
    crate::output::print(shared.format(), &document, || report.text());
    Ok(if report.clean() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command_line::ignored;

    fn refusal(words: &str) -> Option<String> {
        let matches = Arguments::command().try_get_matches_from(words.split(' ')).unwrap();
        ignored::<Arguments>(&matches).map(|error| error.to_string())
    }

    #[test]
    fn options_that_would_be_ignored_are_refused() {
        assert_eq!(refusal("tontine get k --connect h:1 -s carts --deadline 9s"), None);
        assert_eq!(refusal("tontine bench run --connect h:1"), None);
        let refused = refusal("tontine --connect h:1 dev").unwrap();
        assert!(refused.starts_with("--connect has no effect on `tontine dev`"), "{refused}");
        assert!(refusal("tontine bench cluster --connect h:1").unwrap().contains("starts the servers"));
        assert!(refusal("tontine bench run --target h:1 --connect h:1").unwrap().contains("--target"));
        assert!(refusal("tontine bench run --deadline 7s").unwrap().contains("--timeout"));
        assert!(refusal("tontine status -s carts").unwrap().contains("all stores"));
    }
}
