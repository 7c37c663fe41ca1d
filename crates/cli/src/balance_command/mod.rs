//! `tontine balance`: how load is spread over nodes and partitions, and what the autopilot makes of it.

mod autopilot;
mod keys;
mod rates;
mod record;
mod replay;
mod status;
mod trace;

use std::process::ExitCode;

use model::balance::Mode;

use crate::context::CliContext;
use crate::failure::CliError;
pub(crate) use autopilot::veto;
use autopilot::{SetArguments, WhyArguments};
use record::RecordArguments;
use replay::ReplayArguments;
use status::BalanceStatusArguments;

/// What can be asked about load.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum BalanceCommand {
    /// Show how much each node does, and the busiest partitions. Exits with 1 if a node does not say.
    Status(BalanceStatusArguments),
    /// Say what the autopilot thinks, and why it moved something or nothing.
    Why(WhyArguments),
    /// Let the autopilot act.
    On,
    /// Let the autopilot look and say what it would do, and move nothing.
    Observe,
    /// Let the autopilot not even look.
    Off,
    /// Change the autopilot's settings.
    Set(SetArguments),
    /// Write what all nodes say of their loads to a file.
    Record(RecordArguments),
    /// Say what a policy would have done about recorded loads. Needs no cluster.
    Replay(ReplayArguments),
}

/// Carries out a command.
pub(crate) async fn run(shared: CliContext, command: BalanceCommand) -> Result<ExitCode, CliError> {
    match command {
        BalanceCommand::Status(arguments) => status::run(shared, arguments).await,
        BalanceCommand::Why(arguments) => autopilot::why(&shared, arguments).await,
        BalanceCommand::On => autopilot::turn(&shared, Mode::On).await,
        BalanceCommand::Observe => autopilot::turn(&shared, Mode::Observe).await,
        BalanceCommand::Off => autopilot::turn(&shared, Mode::Off).await,
        BalanceCommand::Set(arguments) => autopilot::set(&shared, arguments).await,
        BalanceCommand::Record(arguments) => record::run(shared, arguments).await,
        BalanceCommand::Replay(arguments) => replay::run(&shared, &arguments),
    }
}
