//! `tontine manual`: pages for `man`, from the commands as they are. Packages bring them.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::CliError;
use crate::text::count;

/// Where to write them.
#[derive(Clone, Debug, clap::Args)]
pub struct ManualArguments {
    /// A directory, into which one page for each command is written.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Writes the pages.
pub(crate) fn write(command: clap::Command, arguments: ManualArguments) -> Result<ExitCode, CliError> {
    let failed = || CliError::io(format!("cannot write to {}", arguments.directory.display()));
    std::fs::create_dir_all(&arguments.directory).map_err(failed())?;
    clap_mangen::generate_to(command, &arguments.directory).map_err(failed())?;
    let pages = std::fs::read_dir(&arguments.directory).map_err(failed())?.count() as u64;
    answer!("{} in {}", count(pages, "page"), arguments.directory.display());
    Ok(ExitCode::SUCCESS)
}
