//! Where an artifact goes: a directory that all tasks reach, and the manifest that makes it whole.

use std::path::Path;
use std::sync::Arc;

use model::{StoreName, Token};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::disk::os::OsDisk;
use runtime::{Disk, DiskError};
use storage::artifacts::{
    ChunkEntry, Compression, Digest, Layout, MANIFEST_PATH, Manifest, Slice, TokenHash, publish,
};

use crate::refused;

/// Where a build keeps what it has not finished, as `tontine artifact build` does.
const BUILDING: &str = "building";

/// A chunk, as Python carries it: digest, first and last token, layout, bytes of its file, records, bytes of keys and
/// values.
pub(crate) type Entry = (String, u64, u64, String, u64, u64, u64);

pub(crate) fn entry_of(chunk: &ChunkEntry) -> Entry {
    let ChunkEntry { digest, slice, layout, file_bytes, records, payload_bytes } = chunk;
    let layout = layout.name().to_owned();
    (digest.to_string(), slice.first.0, slice.last.0, layout, *file_bytes, *records, *payload_bytes)
}

fn chunk_of(
    (digest, first, last, layout, file_bytes, records, payload_bytes): Entry,
) -> PyResult<ChunkEntry> {
    Ok(ChunkEntry {
        digest: digest.parse::<Digest>().map_err(refused)?,
        slice: Slice { first: Token(first), last: Token(last) },
        layout: layout_of(&layout)?,
        file_bytes,
        records,
        payload_bytes,
    })
}

pub(crate) fn layout_of(name: &str) -> PyResult<Layout> {
    let known = [Layout::Pages, Layout::Slots].into_iter().find(|layout| layout.name() == name);
    known.ok_or_else(|| refused(format!("layout \"{name}\" is unknown; use \"pages\" or \"slots\"")))
}

pub(crate) fn compression_of(name: &str) -> PyResult<Compression> {
    let all = [Compression::None, Compression::Lz4, Compression::Zstd];
    let known = all.into_iter().find(|compression| compression.name() == name);
    known.ok_or_else(|| {
        refused(format!("compression \"{name}\" is unknown; use \"none\", \"lz4\" or \"zstd\""))
    })
}

pub(crate) fn store_of(name: &str) -> PyResult<StoreName> {
    StoreName::new(name).map_err(refused)
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> PyResult<T> {
    let executor = tokio::runtime::Builder::new_current_thread().build();
    Ok(executor.map_err(|error| failed(format!("cannot start an event loop: {error}")))?.block_on(future))
}

/// What may go better another time: Spark tries a task again.
pub(crate) fn failed(what: impl ToString) -> PyErr {
    pyo3::exceptions::PyOSError::new_err(what.to_string())
}

/// A manifest: its bytes and its digest. Refused when its chunks do not cover all tokens.
#[pyfunction]
pub(crate) fn manifest<'py>(
    py: Python<'py>,
    store: &str,
    number: u64,
    compression: &str,
    dictionary: Vec<u8>,
    entries: Vec<Entry>,
) -> PyResult<(Bound<'py, PyBytes>, String)> {
    let manifest = Manifest {
        store: store_of(store)?,
        number,
        hash: TokenHash::Xxh3,
        compression: compression_of(compression)?,
        dictionary,
        lineage: None,
        chunks: entries.into_iter().map(chunk_of).collect::<PyResult<_>>()?,
    };
    manifest.validate().map_err(refused)?;
    Ok((PyBytes::new(py, &manifest.encode()), manifest.digest().to_string()))
}

/// The directory of an artifact that is being built, taken for this process alone.
#[pyclass]
pub(crate) struct Output {
    disk: Arc<dyn Disk>,
    lock: Option<Box<dyn Send + Sync>>,
}

#[pymethods]
impl Output {
    #[new]
    fn new(path: &str) -> PyResult<Output> {
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::open(Path::new(path)).map_err(failed)?);
        if disk.stat(MANIFEST_PATH).is_ok() {
            return Err(refused(format!(
                "{path} holds an artifact already; name another directory, or look at it with `tontine artifact show \
                 {path}`"
            )));
        }
        let lock = disk.lock(&format!("{BUILDING}/LOCK")).map_err(|error| match error {
            DiskError::Locked { .. } => {
                refused(format!("another build writes to {path}; wait for it, or name another directory"))
            }
            error => failed(error),
        })?;
        Ok(Output { disk, lock: Some(lock) })
    }

    /// Writes the manifest: with it the artifact is whole.
    fn publish(&self, py: Python<'_>, manifest: &[u8]) -> PyResult<()> {
        let manifest = Manifest::decode(manifest).map_err(refused)?;
        py.detach(|| block_on(publish(&*self.disk, &manifest)))?.map_err(failed)
    }

    /// Lets other builds in.
    fn close(&mut self) {
        self.lock = None;
    }
}
