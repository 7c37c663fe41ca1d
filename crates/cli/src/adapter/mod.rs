//! `tontine adapter`: programs that speak the contract of adapters, and one that holds such programs against it.
//!
//! ```text
//!   controller ── a request a line ──▶ adapter ──▶ an engine, or a provider of machines
//!              ◀── an answer a line ──
//! ```
//!
//! `docs/reference/adapters.md` is the contract. An adapter is a child process, so that it may be of any language, and so
//! that neither its crash nor its hang is one of the controller.
//!
//! Must never: keep in memory what a later call needs. An adapter may be killed between any two calls, and in each.

mod check;
mod local;
mod redis_cluster;
mod rpc;
mod tontine;

use std::process::ExitCode;

pub(crate) use self::check::CheckArguments;
pub(crate) use self::local::addresses::Addresses;
pub(crate) use self::local::resting;
pub(crate) use self::local::{LaunchArguments, LocalArguments};
pub(crate) use self::redis_cluster::RedisArguments;
pub(crate) use self::tontine::TontineArguments;

use crate::context::{CliContext, block_on};
use crate::failure::CliError;

/// Which adapter.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum AdapterCommand {
    /// Provide machines that are processes of this host, each with its own directory and address.
    Local(LocalArguments),
    /// Manage the members of a Tontine cluster.
    Tontine(TontineArguments),
    /// Manage the masters of a Redis Cluster.
    RedisCluster(RedisArguments),
    /// Run an adapter, and hold it against the contract of adapters. Exits with 1 if it fails a check.
    Check(CheckArguments),
    /// Become the process of a machine that `tontine adapter local` made.
    #[command(hide = true)]
    Launch(LaunchArguments),
}

/// Runs an adapter until its standard input ends.
pub(crate) fn run(shared: CliContext, command: AdapterCommand) -> Result<ExitCode, CliError> {
    match command {
        AdapterCommand::Local(arguments) => block_on(local::run(arguments)),
        AdapterCommand::Tontine(arguments) => block_on(tontine::run(shared, arguments)),
        AdapterCommand::RedisCluster(arguments) => block_on(redis_cluster::run(arguments)),
        AdapterCommand::Check(arguments) => check::run(shared.format(), &arguments),
        AdapterCommand::Launch(arguments) => local::launch(&arguments),
    }
}
