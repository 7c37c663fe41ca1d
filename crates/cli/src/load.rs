//! `tontine load`.

use std::process::ExitCode;

use crate::commands::Shared;
use crate::failure::CliError;

/// File.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadArguments {}

pub(crate) async fn run(_shared: Shared, _arguments: LoadArguments) -> Result<ExitCode, CliError> {
    Ok(ExitCode::SUCCESS)
}
