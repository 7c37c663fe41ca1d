//! `tontine artifact clean`: removes what builds left behind that were broken off, and nothing that a manifest names.

use std::collections::BTreeSet;
use std::process::ExitCode;

use runtime::disk::os::OsDisk;
use runtime::{Disk, DiskError};
use serde_json::json;
use storage::readonly::{Digest, MANIFEST_PATH};

use super::arguments::CleanArguments;
use super::build::{BUILDING, taken};
use super::{directory, opened};
use crate::failure::CliError;
use crate::output::{count, print, size};
use crate::shared::Shared;

/// Where chunks lie.
const CHUNKS: &str = "chunks";

/// Removes leftovers.
pub(super) fn run(shared: &Shared, arguments: &CleanArguments) -> Result<ExitCode, CliError> {
    let (url, root) = (&arguments.url, directory(&arguments.url)?);
    if !root.is_dir() {
        return Err(CliError::Other(format!("{url} is no directory on this machine; check the path")));
    }
    let disk = OsDisk::open(&root).map_err(failed)?;
    let whole = disk.stat(MANIFEST_PATH).is_ok();
    if !whole && !arguments.unfinished {
        return Err(CliError::Other(format!(
            "{url} has no manifest, so a build may still be writing to it. If none is, remove what it left with `tontine \
             artifact clean --unfinished {url}`"
        )));
    }
    let named = match whole {
        true => opened(url)?.1.files().map(|file| file.digest.to_string()).collect(),
        false => BTreeSet::new(),
    };
    let leftovers = leftovers(&disk, &named)?;
    let mut bytes = 0;
    for path in &leftovers {
        bytes += disk.stat(path).map_or(0, |stat| stat.length);
    }
    if !arguments.dry_run {
        // Kept until all is gone: no build begins meanwhile.
        let _lock = taken(&disk, url)?;
        leftovers.iter().try_for_each(|path| disk.remove(path)).map_err(failed)?;
        let _ = std::fs::remove_dir_all(root.join(BUILDING));
    }
    let document = json!({ "url": url, "files": leftovers, "bytes": bytes, "removed": !arguments.dry_run });
    print(shared.format(), &document, || {
        let what = format!("{} ({})", count(leftovers.len() as u64, "file"), size(bytes));
        match (leftovers.is_empty(), arguments.dry_run) {
            (true, _) => format!("nothing to remove in {url}"),
            (false, true) => format!("would remove {what}\n  {}", leftovers.join("\n  ")),
            (false, false) => format!("removed {what}"),
        }
    });
    Ok(ExitCode::SUCCESS)
}

fn failed(error: DiskError) -> CliError {
    CliError::Other(error.to_string())
}

/// Files that builds write and the manifest does not name. What is called otherwise is somebody else's, and stays.
fn leftovers(disk: &dyn Disk, named: &BTreeSet<String>) -> Result<Vec<String>, CliError> {
    let mut found = Vec::new();
    for name in disk.list(CHUNKS).map_err(failed)? {
        if name.parse::<Digest>().is_ok() && !named.contains(&name) {
            found.push(format!("{CHUNKS}/{name}"));
        }
    }
    for name in disk.list(BUILDING).map_err(failed)? {
        if name != "LOCK" {
            found.push(format!("{BUILDING}/{name}"));
        }
    }
    let manifest = format!("{MANIFEST_PATH}.tmp");
    if disk.stat(&manifest).is_ok() {
        found.push(manifest);
    }
    Ok(found)
}
