//! `tontine cluster`: the first document of a cluster, and the nodes that it names.

pub(crate) mod create;

use std::process::ExitCode;

use coordination::documents::{self, ActiveNode, ReadError};
use coordination::{CoordinationError, CoordinationService, Watch};

use self::create::CreateArguments;
use crate::context::CliContext;
use crate::failure::CliError;

/// What can be done with clusters.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ClusterCommand {
    /// Wait for the first nodes of a new cluster, and write its first document.
    Create(CreateArguments),
}

/// Carries out a command.
pub(crate) async fn run(shared: CliContext, command: ClusterCommand) -> Result<ExitCode, CliError> {
    match command {
        ClusterCommand::Create(arguments) => create::run(shared, arguments).await,
    }
}

pub(crate) fn unread(error: ReadError) -> CliError {
    match error {
        ReadError::Coordination(error) => error.into(),
        error => CliError::Other(error.to_string()),
    }
}

/// The nodes that are registered.
async fn registered(service: &dyn CoordinationService) -> Result<(Vec<ActiveNode>, Watch), CliError> {
    documents::active_nodes(service).await.map_err(unread)
}

/// A node in a list, for people.
fn shown(active: &ActiveNode) -> String {
    format!("{} at {} (zone {})", active.node.id, active.node.native, active.node.zone)
}

/// Whether the same question may be answered later.
fn is_passing(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Coordination(CoordinationError::Unavailable { .. } | CoordinationError::SessionLost)
    )
}
