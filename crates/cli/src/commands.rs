//! All commands, and how a command finds the cluster.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use client::{Client, ClientOptions};
use runtime::Ports;

use crate::dev::DevArguments;
use crate::export::ExportArguments;
use crate::failure::CliError;
use crate::keys::{DeleteArguments, GetArguments, KeysArguments, PutArguments, ResolveArguments};
use crate::load::LoadArguments;
use crate::node_command::NodeArguments;
use crate::output::Format;
use crate::{dev, export, keys, load, node_command, status};

/// A key-value store that looks after itself.
#[derive(Debug, Parser)]
#[command(name = "tontine", version, about, max_term_width = 110)]
pub struct Arguments {
    /// What every command knows.
    #[command(flatten)]
    pub shared: Shared,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command knows.
#[derive(Clone, Debug, clap::Args)]
pub struct Shared {
    /// Native addresses of some nodes of the cluster; one that answers is enough.
    #[arg(
        long,
        global = true,
        env = "TONTINE_CONNECT",
        value_delimiter = ',',
        default_value = "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403",
        value_name = "HOST:PORT,…"
    )]
    pub connect: Vec<String>,
    /// The store.
    #[arg(long, short = 's', global = true, env = "TONTINE_STORE", default_value = "default")]
    pub store: String,
    /// How answers are shown.
    #[arg(long, short = 'o', global = true, value_enum, default_value = "text")]
    pub output: Format,
    /// The same as `-o json`.
    #[arg(long, global = true)]
    pub json: bool,
    /// Deadline of each request in milliseconds.
    #[arg(long, global = true, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    pub deadline_ms: u32,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole cluster on this machine.
    Dev(DevArguments),
    /// Run one node.
    Node(NodeArguments),
    /// Write a key.
    Put(PutArguments),
    /// Read a key: its value, or its siblings with the context that a merging put needs.
    Get(GetArguments),
    /// Delete keys.
    Delete(DeleteArguments),
    /// Read many keys.
    Mget(KeysArguments),
    /// Show every version of a key.
    Siblings(GetArguments),
    /// Merge a key's siblings into one value.
    Resolve(ResolveArguments),
    /// Show where keys lie: partition, replicas, fallbacks.
    Route(KeysArguments),
    /// Show the cluster and its nodes.
    Status,
    /// Look for what is wrong and say what to do about it.
    Doctor,
    /// Write the records of a file.
    Load(LoadArguments),
    /// Write all records to a file.
    Export(ExportArguments),
    /// Measure.
    #[command(subcommand)]
    Bench(Box<bench::cli::BenchCommand>),
}

impl Shared {
    /// How answers are shown.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// A client of the cluster.
    pub(crate) async fn client(&self) -> Result<Client, CliError> {
        let ports = Ports::os().map_err(CliError::io("cannot start the background thread"))?;
        let deadline = std::time::Duration::from_millis(u64::from(self.deadline_ms));
        let options = ClientOptions { name: "tontine-cli".to_owned(), deadline, ..ClientOptions::default() };
        Ok(Client::connect(&self.connect, ports, options).await?)
    }
}

/// Carries out a command.
pub(crate) fn carry_out(arguments: Arguments) -> Result<ExitCode, CliError> {
    let shared = arguments.shared;
    match arguments.command {
        Command::Dev(arguments) => dev::run(arguments),
        Command::Node(arguments) => node_command::run(arguments),
        Command::Bench(command) => run_bench(&shared, &command),
        Command::Put(arguments) => block_on(keys::put(shared, arguments)),
        Command::Get(arguments) => block_on(keys::get(shared, arguments)),
        Command::Delete(arguments) => block_on(keys::delete(shared, arguments)),
        Command::Mget(arguments) => block_on(keys::mget(shared, arguments)),
        Command::Siblings(arguments) => block_on(keys::siblings(shared, arguments)),
        Command::Resolve(arguments) => block_on(keys::resolve(shared, arguments)),
        Command::Route(arguments) => block_on(keys::route(shared, arguments)),
        Command::Status => block_on(status::status(shared)),
        Command::Doctor => block_on(status::doctor(shared)),
        Command::Load(arguments) => block_on(load::run(shared, arguments)),
        Command::Export(arguments) => block_on(export::run(shared, arguments)),
    }
}

/// Runs a command's future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::io("cannot start the event loop"))?
        .block_on(future)
}

fn run_bench(shared: &Shared, command: &bench::cli::BenchCommand) -> Result<ExitCode, CliError> {
    let report = bench::cli::run(command).map_err(|error| CliError::Other(error.to_string()))?;
    let document = serde_json::to_value(&report).map_err(|error| CliError::Other(error.to_string()))?;
    crate::output::print(shared.format(), &document, || report.text());
    Ok(if report.clean() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
