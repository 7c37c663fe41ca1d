//! `tontine artifact clean`: removes what builds left behind that were broken off, and nothing that a manifest names.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use runtime::disk::os::OsDisk;
use runtime::outputs::BUILDING;
use runtime::{Disk, DiskError};
use serde_json::json;
use storage::artifacts::{Digest, MANIFEST_PATH};

use super::arguments::CleanArguments;
use super::build::taken;
use super::{directory, opened};
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::text::{count, size};

/// Where chunks lie.
const CHUNKS: &str = "chunks";

/// Removes leftovers.
pub(super) fn run(shared: &CliContext, arguments: &CleanArguments) -> Result<ExitCode, CliError> {
    let (url, root) = (&arguments.url, directory(&arguments.url)?);
    if !root.is_dir() {
        return Err(CliError::Other(format!("{url} is no directory on this machine; check the path")));
    }
    let (leftovers, bytes) = cleaned(&root, arguments, &|disk| taken(disk, url))?;
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

/// Takes the directory for this process alone.
type Take<'a> = &'a dyn Fn(&OsDisk) -> Result<Box<dyn Send + Sync>, CliError>;

/// What a build left, and its bytes. It is gone afterwards, unless this is a dry run.
fn cleaned(root: &Path, arguments: &CleanArguments, take: Take<'_>) -> Result<(Vec<String>, u64), CliError> {
    let disk = OsDisk::open(root).map_err(failed)?;
    let url = &arguments.url;
    // Twice: a directory that is not to be changed gets no lock, and a build may end before the lock is ours.
    judged(&disk, arguments)?;
    // Kept until all is gone: no build begins meanwhile.
    let _lock = if arguments.dry_run { None } else { Some(take(&disk)?) };
    let named = match judged(&disk, arguments)? {
        true => opened(url)?.1.files().map(|file| file.digest.to_string()).collect(),
        false => BTreeSet::new(),
    };
    let leftovers = leftovers(&disk, &named)?;
    let bytes = leftovers.iter().map(|path| disk.stat(path).map_or(0, |stat| stat.length)).sum();
    if !arguments.dry_run {
        leftovers.iter().try_for_each(|path| disk.remove(path)).map_err(failed)?;
        let _ = std::fs::remove_dir_all(root.join(BUILDING));
    }
    Ok((leftovers, bytes))
}

/// Whether there is a whole artifact.
///
/// # Errors
/// When there is none, and it was not said that no build is under way.
fn judged(disk: &OsDisk, arguments: &CleanArguments) -> Result<bool, CliError> {
    let (url, whole) = (&arguments.url, disk.stat(MANIFEST_PATH).is_ok());
    match whole || arguments.unfinished {
        true => Ok(whole),
        false => Err(CliError::Other(format!(
            "{url} has no manifest, so a build may still be writing to it. If none is, remove what it left with `tontine \
             artifact clean --unfinished {url}`"
        ))),
    }
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

#[cfg(test)]
mod tests {
    use storage::artifacts::{ChunkEntry, Compression, Layout, Manifest, Slice, TokenHash};

    use super::*;

    /// Once the manifest was looked for before the lock was taken, and all chunks of a build that ended in between went.
    #[test]
    fn a_build_that_ends_before_the_lock_is_taken_loses_nothing() {
        let root = std::env::temp_dir().join(format!("tontine-clean-{}", std::process::id()));
        let chunk = "0".repeat(32);
        std::fs::create_dir_all(root.join(CHUNKS)).unwrap();
        std::fs::write(root.join(CHUNKS).join(&chunk), "of a build").unwrap();
        let url = root.to_str().unwrap().to_owned();
        let arguments = CleanArguments { url: url.clone(), unfinished: true, dry_run: false };
        let manifest = Manifest {
            store: model::StoreName::new("words").unwrap(),
            number: 1,
            hash: TokenHash::Xxh3,
            compression: Compression::None,
            dictionary: Vec::new(),
            chunks: vec![ChunkEntry {
                digest: chunk.parse().unwrap(),
                slice: Slice::WHOLE,
                layout: Layout::Pages,
                file_bytes: 10,
                records: 1,
                payload_bytes: 2,
            }],
            lineage: None,
        };
        let build_ends = |disk: &OsDisk| {
            std::fs::write(root.join(MANIFEST_PATH), manifest.encode()).unwrap();
            taken(disk, &url)
        };
        assert_eq!(cleaned(&root, &arguments, &build_ends).unwrap(), (Vec::new(), 0));
        assert!(root.join(CHUNKS).join(&chunk).exists(), "the artifact is whole");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
