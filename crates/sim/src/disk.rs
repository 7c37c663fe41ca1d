//! A simulated node's disk: `runtime`'s simulated disk, seen by the trace.
//!
//! Must never: change what the disk does, but for the planted lie.

use std::sync::Arc;

use runtime::disk::simulated::SimulatedDisk;
use runtime::{BoxFuture, Disk, DiskError, File, FileStat};

use crate::executor::Executor;
use crate::plant::Lie;

/// Takes every operation that changes something into the trace.
#[derive(Clone)]
pub struct TracedDisk {
    inner: SimulatedDisk,
    executor: Arc<Executor>,
    /// Planted: what is acknowledged and not done.
    lie: Option<Lie>,
}

impl TracedDisk {
    /// Around a disk; `lie` plants a bug.
    pub fn new(inner: SimulatedDisk, executor: Arc<Executor>, lie: Option<Lie>) -> TracedDisk {
        TracedDisk { inner, executor, lie }
    }

    fn note(&self, what: u64, path: &str, detail: u64) {
        self.executor.note(what, model::Token::of(path.as_bytes()).0 ^ detail);
    }

    fn file(&self, path: &str, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(TracedFile { inner, path: path.to_owned(), disk: self.clone() })
    }
}

impl Disk for TracedDisk {
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        self.note(10, path, 0);
        self.inner.create(path).map(|file| self.file(path, file))
    }

    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        self.inner.open(path).map(|file| self.file(path, file))
    }

    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        self.inner.stat(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.note(11, from, 0);
        if matches!(self.lie, Some(Lie::Renames(path)) if path == to) {
            return Ok(());
        }
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.note(12, path, 0);
        self.inner.remove(path)
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.inner.list(directory)
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        self.note(13, directory, 0);
        if self.lie == Some(Lie::Directories) {
            return Box::pin(async { Ok(()) });
        }
        self.inner.sync_directory(directory)
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        self.inner.lock(path)
    }

    fn available_bytes(&self) -> u64 {
        self.inner.available_bytes()
    }

    fn total_bytes(&self) -> Option<u64> {
        self.inner.total_bytes()
    }

    fn mappings_left(&self) -> usize {
        self.inner.mappings_left()
    }
}

struct TracedFile {
    inner: Arc<dyn File>,
    path: String,
    disk: TracedDisk,
}

impl File for TracedFile {
    fn append(&self, bytes: &[u8]) -> Result<u64, DiskError> {
        self.disk.note(14, &self.path, model::Token::of(bytes).0);
        self.inner.append(bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.inner.read_at(offset, buffer)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        self.disk.note(15, &self.path, self.inner.length());
        // Where a lie is about all files, those that say whose the directory is are spared: without them the engine
        // would not even start.
        let says_whose = self.path.contains("FORMAT") || self.path.contains("identity");
        let lies = match self.disk.lie {
            Some(Lie::Files("")) => !says_whose,
            Some(Lie::Files(part)) => self.path.contains(part) && !self.path.contains("FORMAT"),
            _ => false,
        };
        if lies {
            return Box::pin(async { Ok(()) });
        }
        self.inner.sync()
    }

    fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.disk.note(16, &self.path, length);
        self.inner.truncate(length)
    }

    fn length(&self) -> u64 {
        self.inner.length()
    }

    fn map(&self) -> Result<Arc<dyn runtime::Mapping>, DiskError> {
        self.inner.map()
    }
}
