//! `tontine artifact`: the tables of read-only stores, built offline, proved without a cluster, and put live.

mod arguments;
mod build;
mod clean;
mod diff;
mod inspect;
mod list;
mod push;
mod push_arguments;
mod spill;
pub(crate) mod verbs;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use runtime::disk::os::OsDisk;
use storage::readonly::{MANIFEST_PATH, Manifest, OpenError};

pub(crate) use self::arguments::ArtifactCommand;
use crate::failure::CliError;
use crate::shared::Shared;

/// Carries out a command.
pub(crate) async fn run(shared: Shared, command: ArtifactCommand) -> Result<ExitCode, CliError> {
    match command {
        ArtifactCommand::Build(arguments) => build::run(&shared, &arguments).await,
        ArtifactCommand::Check(arguments) => inspect::check(&shared, &arguments),
        ArtifactCommand::Show(arguments) => inspect::show(&shared, &arguments),
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

/// The directory that a URL names: `file:///…`, or a path.
fn directory(url: &str) -> Result<PathBuf, CliError> {
    let path = match url.split_once("://") {
        None => url,
        Some(("file", path)) if path.starts_with('/') => path,
        Some(("file", _)) => {
            return Err(CliError::Usage(format!(
                "{url} names no directory: a file URL begins with file:///"
            )));
        }
        Some((scheme, _)) => {
            return Err(CliError::Usage(format!(
                "artifacts are read and written on this machine's disks only, so {scheme}:// is not known; use a path or \
                 file:///…"
            )));
        }
    };
    match path {
        "" => Err(CliError::Usage("name a directory".to_owned())),
        path => Ok(Path::new(path).to_owned()),
    }
}

/// An artifact's directory that is there, and its manifest.
fn opened(url: &str) -> Result<(Arc<OsDisk>, Manifest), CliError> {
    let directory = directory(url)?;
    let path = directory.join(MANIFEST_PATH);
    let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CliError::Other(format!(
            "{url} holds no artifact: there is no {}. A build writes it last, so a build may have been broken off; to \
             build again, run `tontine artifact build`",
            path.display()
        )),
        _ => CliError::io(format!("cannot read {}", path.display()))(error),
    })?;
    let manifest = Manifest::decode(&bytes)
        .map_err(|error| CliError::Other(format!("{} cannot be used: {error}", path.display())))?;
    let disk = OsDisk::open(&directory).map_err(|error| CliError::Other(error.to_string()))?;
    Ok((Arc::new(disk), manifest))
}

/// An artifact that cannot be opened.
fn unopened(url: &str, error: &OpenError) -> CliError {
    CliError::Other(format!("{url}: {error}. To check all of it, run `tontine artifact check {url}`"))
}
