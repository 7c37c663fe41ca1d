//! Where artifacts lie and are put: in a directory of this machine, or behind a URL.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime::disk::os::OsDisk;
use runtime::outputs::{OsOutput, writable};
use runtime::sources::{Scheme, SourceUrl, Sources};
use runtime::{Disk, DiskError, Output};
use storage::artifacts::{
    Digest, Fetch, FetchError, FileEntry, MANIFEST_PATH, Manifest, OpenError, SourceChunk, chunk_path,
};

use crate::failure::CliError;

/// Longest manifest of a URL: as many chunks as there may be, each with a delta, and a dictionary.
const MANIFEST_BYTES_MAX: u64 = 288 << 20;

/// What this program reads artifacts from.
///
/// # Errors
/// When the system gives no thread.
#[cfg(feature = "sources")]
pub(crate) fn sources() -> Result<Arc<dyn Sources>, String> {
    ::sources::AllSources::new().map(|sources| Arc::new(sources) as Arc<dyn Sources>)
}

/// What this program reads artifacts from.
///
/// # Errors
/// None.
#[cfg(not(feature = "sources"))]
pub(crate) fn sources() -> Result<Arc<dyn Sources>, String> {
    Ok(Arc::new(runtime::sources::OsSources))
}

/// A place behind a network that files are put in.
#[cfg(feature = "sources")]
fn remote_output(url: &SourceUrl) -> Result<Arc<dyn Output>, String> {
    ::sources::AllSources::new()?.output(url)
}

/// A place behind a network that files are put in.
#[cfg(not(feature = "sources"))]
fn remote_output(url: &SourceUrl) -> Result<Arc<dyn Output>, String> {
    Err(runtime::sources::built_without(url.scheme()))
}

/// A place that an artifact is to be put in; a directory is made when it is not there.
pub(super) fn output(url: &str) -> Result<Arc<dyn Output>, CliError> {
    if let Some(remote) = remote(url)? {
        writable(&remote).map_err(CliError::Usage)?;
        return remote_output(&remote).map_err(CliError::Other);
    }
    let opened = OsOutput::open(&directory(url)?).map_err(|error| match error {
        DiskError::Locked { .. } => CliError::Other(format!(
            "another build or copy writes to {url}; wait for it, or name another directory"
        )),
        error => CliError::Other(format!("{url}: {error}")),
    });
    Ok(Arc::new(opened?))
}

/// A URL behind a network; `None` for a directory of this machine.
pub(super) fn remote(url: &str) -> Result<Option<SourceUrl>, CliError> {
    if !url.contains("://") {
        return Ok(None);
    }
    let parsed = SourceUrl::parse(url).map_err(CliError::Usage)?;
    Ok((parsed.scheme() != Scheme::File).then_some(parsed))
}

/// The directory that a URL names: `file:///…`, or a path.
pub(super) fn directory(url: &str) -> Result<PathBuf, CliError> {
    if let Some(remote) = remote(url)? {
        return Err(CliError::Usage(format!(
            "{remote} is no directory of this machine; name one, and copy what lies there with `tontine artifact copy`"
        )));
    }
    match url.strip_prefix("file://").unwrap_or(url) {
        "" => Err(CliError::Usage("name a directory".to_owned())),
        path => Ok(Path::new(path).to_owned()),
    }
}

/// The URL of a place, also of a directory.
pub(super) fn url_of(place: &str) -> Result<SourceUrl, CliError> {
    if let Some(remote) = remote(place)? {
        return Ok(remote);
    }
    let path = directory(place)?;
    let path = path.canonicalize().map_err(CliError::io(format!("cannot look at {place}")))?;
    let path = path.to_str().ok_or_else(|| {
        CliError::Usage(format!("the path of {place} is no text, so no document can hold it"))
    })?;
    SourceUrl::parse(&format!("file://{path}")).map_err(CliError::Usage)
}

/// Where the manifest of an artifact lies, for people.
fn manifest_place(url: &str) -> Result<String, CliError> {
    Ok(match remote(url)? {
        Some(remote) => format!("{remote}/{MANIFEST_PATH}"),
        None => directory(url)?.join(MANIFEST_PATH).display().to_string(),
    })
}

fn no_artifact(url: &str) -> Result<CliError, CliError> {
    let place = manifest_place(url)?;
    Ok(CliError::Other(format!(
        "{url} holds no artifact: there is no {place}. It is written last, so a build or a copy may have been broken off; run \
         `tontine artifact build` or `tontine artifact copy` again"
    )))
}

/// The files of an artifact, and its manifest.
pub(super) fn opened(url: &str) -> Result<(Arc<dyn Disk>, Manifest), CliError> {
    let disk = files(url)?;
    match manifest_in(url, &*disk)? {
        Some(manifest) => Ok((disk, manifest)),
        None => Err(no_artifact(url)?),
    }
}

/// The files below a URL, to be read.
pub(super) fn files(url: &str) -> Result<Arc<dyn Disk>, CliError> {
    if remote(url)?.is_some() {
        return sources().and_then(|sources| sources.open(url)).map_err(CliError::Other);
    }
    match OsDisk::open_to_read(&directory(url)?) {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(DiskError::NotFound { .. }) => Err(no_artifact(url)?),
        Err(error) => Err(CliError::Other(format!("{url}: {error}"))),
    }
}

/// The manifest of an artifact; `None` when it is not there.
pub(super) fn manifest_in(url: &str, disk: &dyn Disk) -> Result<Option<Manifest>, CliError> {
    let place = manifest_place(url)?;
    let bytes = match whole(disk) {
        Ok(bytes) => bytes,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(CliError::Other(format!("cannot read {place}: {error}"))),
    };
    let manifest = Manifest::decode(&bytes);
    manifest.map(Some).map_err(|error| CliError::Other(format!("{place} cannot be used: {error}")))
}

fn whole(disk: &dyn Disk) -> Result<Vec<u8>, DiskError> {
    let file = disk.open(MANIFEST_PATH)?;
    if file.length() > MANIFEST_BYTES_MAX {
        let reason = format!("it has {} bytes, more than any manifest", file.length());
        return Err(DiskError::Failed { path: MANIFEST_PATH.to_owned(), reason });
    }
    let mut bytes = vec![0; file.length() as usize];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// A directory that is removed when nobody needs it: chunks are mapped, so those behind a network are copied first.
pub(super) struct Scratch {
    root: PathBuf,
    disk: Arc<OsDisk>,
}

impl Scratch {
    /// For the chunks of this URL; `None` when they can be mapped where they are.
    pub(super) fn of(url: &str, name: &str) -> Result<Option<Scratch>, CliError> {
        if remote(url)?.is_none() {
            return Ok(None);
        }
        let root = std::env::temp_dir().join(format!("tontine-{name}-{}", std::process::id()));
        let refused = |error: DiskError| CliError::Other(format!("{}: {error}", root.display()));
        let disk = OsDisk::open(&root).map_err(refused)?;
        Ok(Some(Scratch { root, disk: Arc::new(disk) }))
    }

    /// Where the copies are.
    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// The same, for whoever keeps it.
    pub(super) fn shared(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    /// Its directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Copies a chunk or a delta, each block of which is verified.
    pub(super) fn copy(&self, from: &dyn Disk, entry: FileEntry) -> Result<(), OpenError> {
        let path = chunk_path(entry.digest);
        let wrong = |what: String| OpenError::Chunk { chunk: entry.digest, what };
        let bring = || {
            let source = SourceChunk::open(from, entry)?;
            let list = source.read(Fetch::list(entry)?)?;
            let mut fetch = Fetch::resume((&*self.disk, &path), entry, list, 0)?;
            while let Some(range) = fetch.wanted() {
                fetch.put(&source.read(range)?)?;
            }
            Ok(())
        };
        bring().map_err(|error: FetchError| match error {
            FetchError::Source { error, .. } | FetchError::Target { error, .. } => {
                OpenError::Disk { chunk: Some(entry.digest), error }
            }
            error => wrong(error.to_string()),
        })
    }

    /// Removes a copy.
    pub(super) fn forget(&self, digest: Digest) {
        // Whatever stays goes with the directory.
        let _ = self.disk.remove(&chunk_path(digest));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about what stays.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}
