//! `tontine elastic`: managed clusters of any engine, which grow and shrink by what is measured.
//!
//! Commands read fleets and put orders into them, through the coordination service; `elastic run` answers and acts.
//!
//! Must never: ask an adapter, but for `elastic run`. What commands show of machines, a controller has seen.

mod apply;
mod away;
mod fleets;
mod order;
mod remove;
mod run;
mod shown;
mod simulate;
mod wait;
mod why;
mod words;

use std::process::ExitCode;

use crate::context::{CliContext, block_on};
use crate::failure::CliError;

use self::apply::ApplyArguments;
pub(crate) use self::fleets::Fleets;
use self::order::{AdoptArguments, ApproveArguments, NamedArguments, PlanArguments};
use self::remove::RemoveArguments;
pub(crate) use self::run::RunArguments;
use self::shown::{HistoryArguments, StatusArguments};
use self::simulate::SimulateArguments;
use self::why::WhyArguments;

/// What can be done with managed clusters.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ElasticCommand {
    /// Run a controller until Ctrl-C: the process that grows and shrinks fleets. Its end ends no machine.
    Run(RunArguments),
    /// Create a fleet from a file with its policy, or replace the policy of one.
    Apply(ApplyArguments),
    /// Order this many members more or fewer, and wait until they are.
    Plan(PlanArguments),
    /// List the fleets, or show the machines of one: how far each is, and what it waits for.
    Status(StatusArguments),
    /// Make a member that runs already one of a fleet.
    Adopt(AdoptArguments),
    /// Take back what is under way, as far as the engine can.
    Abort(NamedArguments),
    /// End a pause that failures have made.
    Resume(NamedArguments),
    /// Carry out a decision that was proposed.
    Approve(ApproveArguments),
    /// List machines with a fleet's tag that are not its own. Nobody ends them.
    Orphans(NamedArguments),
    /// List the decisions about a fleet's size: from what, and what came of them.
    History(HistoryArguments),
    /// Say why a fleet has so many members, and not more or fewer.
    Why(WhyArguments),
    /// Remove a fleet, so that nobody manages its machines any more. None is ended.
    Remove(RemoveArguments),
    /// Play a trace of load with several policies: what each would have cost, and for how long too few members served.
    Simulate(SimulateArguments),
}

/// Carries out a command.
pub(crate) fn run(shared: &CliContext, command: ElasticCommand) -> Result<ExitCode, CliError> {
    match command {
        ElasticCommand::Run(arguments) => run::run(arguments),
        ElasticCommand::Apply(arguments) => block_on(apply::run(shared, arguments)),
        ElasticCommand::Plan(arguments) => block_on(order::plan(shared, arguments)),
        ElasticCommand::Status(arguments) => block_on(shown::status(shared, arguments)),
        ElasticCommand::Adopt(arguments) => block_on(order::adopt(shared, arguments)),
        ElasticCommand::Abort(arguments) => block_on(order::abort(shared, arguments)),
        ElasticCommand::Resume(arguments) => block_on(order::resume(shared, arguments)),
        ElasticCommand::Approve(arguments) => block_on(order::approve(shared, arguments)),
        ElasticCommand::Orphans(arguments) => block_on(shown::orphans(shared, arguments)),
        ElasticCommand::History(arguments) => block_on(shown::history(shared, arguments)),
        ElasticCommand::Remove(arguments) => block_on(remove::run(shared, arguments)),
        ElasticCommand::Simulate(arguments) => simulate::run(shared, &arguments),
        ElasticCommand::Why(arguments) => block_on(why::run(shared, arguments)),
    }
}
