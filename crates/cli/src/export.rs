//! `tontine export`.

use std::process::ExitCode;

use crate::commands::Shared;
use crate::failure::CliError;

/// File.
#[derive(Clone, Debug, clap::Args)]
pub struct ExportArguments {}

pub(crate) async fn run(_shared: Shared, _arguments: ExportArguments) -> Result<ExitCode, CliError> {
    Ok(ExitCode::SUCCESS)
}
