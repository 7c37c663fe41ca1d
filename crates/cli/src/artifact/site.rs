//! Where a build writes: a directory, and for a place behind a network one below that for temporary files, from where the
//! artifact is copied.

use std::path::{Path, PathBuf};

use runtime::Disk;
use storage::artifacts::Manifest;

use super::copy::{Copied, Target};
use super::directory;
use super::place::remote;
use crate::failure::CliError;

/// Files under way at a time.
const JOBS: usize = 4;

/// Where a build writes.
pub(super) struct Site {
    root: PathBuf,
    /// Where the artifact goes from there.
    target: Option<Target>,
}

impl Site {
    /// Prepares to build for a place, which must not hold an artifact yet.
    pub(super) fn of(to: &str, store: &str, number: u64) -> Result<Site, CliError> {
        if remote(to)?.is_none() {
            return Ok(Site { root: directory(to)?, target: None });
        }
        let target = Target::open(to)?;
        if target.manifest()?.is_some() {
            return Err(occupied(to));
        }
        let name = format!("tontine-build-{store}-{number}-{}", std::process::id());
        Ok(Site { root: std::env::temp_dir().join(name), target: Some(target) })
    }

    /// The directory to build in.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Sends a whole artifact where it goes. What cannot be sent stays.
    pub(super) fn send(
        &mut self,
        disk: &dyn Disk,
        manifest: &Manifest,
        parent: Option<&str>,
    ) -> Result<Option<Copied>, CliError> {
        let Some(target) = &self.target else { return Ok(None) };
        match target.fill((&self.root.to_string_lossy(), disk), manifest, parent, JOBS) {
            Ok(copied) => Ok(Some(copied)),
            Err(error) => {
                self.target = None;
                say!("the artifact is built, and kept in {}", self.root.display());
                Err(error)
            }
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.target.is_some() {
            // Nothing can be done about what stays.
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

/// A place that holds an artifact already.
pub(super) fn occupied(to: &str) -> CliError {
    CliError::Other(format!(
        "{to} holds an artifact already; name another place, or look at it with `tontine artifact show {to}`"
    ))
}
