//! Directories that artifacts are fetched from, as simulated disks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use runtime::disk::simulated::SimulatedDisk;
use runtime::{BoxFuture, Disk, DiskError, File, FileStat, Mapping, Sources};

/// What becomes of a read: it may change the bytes, refuse them, or panic. Is told the path and the offset.
pub type Temper = dyn Fn(&str, u64, &mut [u8]) -> Result<(), DiskError> + Send + Sync;

/// By URL. One that is not there cannot be opened.
#[derive(Default)]
pub struct SimulatedSources {
    disks: Mutex<BTreeMap<String, SimulatedDisk>>,
    temper: Arc<Mutex<Option<Arc<Temper>>>>,
    given: Arc<AtomicU64>,
}

impl SimulatedSources {
    /// Puts a directory under a URL.
    pub fn put(&self, url: &str, disk: SimulatedDisk) {
        self.disks.lock().insert(url.to_owned(), disk);
    }

    /// Takes a directory away, and returns it.
    pub fn take(&self, url: &str) -> Option<SimulatedDisk> {
        self.disks.lock().remove(url)
    }

    /// Does harm to every read from now on, or to none.
    pub fn temper(&self, temper: Option<Arc<Temper>>) {
        *self.temper.lock() = temper;
    }

    /// Bytes that were read of all of them so far.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for SimulatedSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.disks.lock().keys()).finish()
    }
}

impl Sources for SimulatedSources {
    fn open(&self, url: &str) -> Result<Arc<dyn Disk>, String> {
        let found = self.disks.lock().get(url).cloned();
        let inner = found.ok_or_else(|| format!("{url} is away"))?;
        Ok(Arc::new(SourceDisk { inner, temper: self.temper.clone(), given: self.given.clone() }))
    }
}

/// A directory of a source, which is only read.
struct SourceDisk {
    inner: SimulatedDisk,
    temper: Arc<Mutex<Option<Arc<Temper>>>>,
    given: Arc<AtomicU64>,
}

struct SourceFile {
    path: String,
    inner: Arc<dyn File>,
    temper: Arc<Mutex<Option<Arc<Temper>>>>,
    given: Arc<AtomicU64>,
}

fn only_read<T>(path: &str) -> Result<T, DiskError> {
    Err(DiskError::Failed { path: path.to_owned(), reason: "a source is only read".to_owned() })
}

impl Disk for SourceDisk {
    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let inner = self.inner.open(path)?;
        let (temper, given) = (self.temper.clone(), self.given.clone());
        Ok(Arc::new(SourceFile { path: path.to_owned(), inner, temper, given }))
    }

    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        self.inner.stat(path)
    }

    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        only_read(path)
    }

    fn rename(&self, from: &str, _: &str) -> Result<(), DiskError> {
        only_read(from)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        only_read(path)
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        only_read(directory)
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        let refused = only_read(directory);
        Box::pin(async { refused })
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        only_read(path)
    }

    fn available_bytes(&self) -> u64 {
        0
    }

    fn total_bytes(&self) -> Option<u64> {
        None
    }
}

impl File for SourceFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let count = self.inner.read_at(offset, buffer)?;
        self.given.fetch_add(count as u64, Ordering::Relaxed);
        let temper = self.temper.lock().clone();
        if let Some(temper) = temper {
            temper(&self.path, offset, &mut buffer[..count])?;
        }
        Ok(count)
    }

    fn append(&self, _: &[u8]) -> Result<u64, DiskError> {
        only_read(&self.path)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        let refused = only_read(&self.path);
        Box::pin(async { refused })
    }

    fn truncate(&self, _: u64) -> Result<(), DiskError> {
        only_read(&self.path)
    }

    fn length(&self) -> u64 {
        self.inner.length()
    }

    fn map(&self) -> Result<Arc<dyn Mapping>, DiskError> {
        only_read(&self.path)
    }
}
