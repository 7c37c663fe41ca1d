//! `tontine balance`: how load is spread over nodes and partitions.

mod rates;
mod status;

use std::process::ExitCode;

use crate::failure::CliError;
use crate::shared::Shared;
use status::BalanceStatusArguments;

/// What can be asked about load.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum BalanceCommand {
    /// Show how much each node does, and the busiest partitions. Exits with 1 if a node does not say.
    Status(BalanceStatusArguments),
}

/// Carries out a command.
pub(crate) async fn run(shared: Shared, command: BalanceCommand) -> Result<ExitCode, CliError> {
    match command {
        BalanceCommand::Status(arguments) => status::run(shared, arguments).await,
    }
}
