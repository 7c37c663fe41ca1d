//! `tontine artifact`: the tables of read-only stores, built offline, proved without a cluster, and put live.

mod arguments;
mod build;
mod clean;
mod copy;
mod diff;
mod inspect;
mod list;
mod parent;
mod place;
mod push;
mod push_arguments;
mod site;
mod speaking;
mod spill;
pub(crate) mod told;
pub(crate) mod verbs;

use std::process::ExitCode;

use storage::artifacts::OpenError;

pub(crate) use self::arguments::ArtifactCommand;
pub(crate) use self::place::sources;
use self::place::{directory, opened};
use crate::context::CliContext;
use crate::failure::CliError;

/// Carries out a command.
pub(crate) async fn run(shared: CliContext, command: ArtifactCommand) -> Result<ExitCode, CliError> {
    match command {
        ArtifactCommand::Build(arguments) => build::run(&shared, &arguments).await,
        ArtifactCommand::Check(arguments) => inspect::check(&shared, &arguments),
        ArtifactCommand::Show(arguments) => inspect::show(&shared, &arguments),
        ArtifactCommand::Copy(arguments) => copy::run(&shared, &arguments),
        ArtifactCommand::Diff(arguments) => diff::run(&shared, &arguments),
        ArtifactCommand::Clean(arguments) => clean::run(&shared, &arguments),
        ArtifactCommand::Push(arguments) => push::push(&shared, &arguments).await,
        ArtifactCommand::Stage(arguments) => push::stage(&shared, &arguments).await,
        ArtifactCommand::Swap(arguments) => verbs::swap(&shared, &arguments).await,
        ArtifactCommand::Rollback(arguments) => verbs::rollback(&shared, &arguments).await,
        ArtifactCommand::List(arguments) => list::list(&shared, &arguments).await,
        ArtifactCommand::Delete(arguments) => verbs::forget(&shared, &arguments, false).await,
        ArtifactCommand::Abort(arguments) => verbs::forget(&shared, &arguments, true).await,
    }
}

/// An artifact that cannot be opened.
fn unopened(url: &str, error: &OpenError) -> CliError {
    CliError::Other(format!("{url}: {error}. To check all of it, run `tontine artifact check {url}`"))
}
