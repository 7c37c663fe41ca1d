//! A disk that tells of each operation before and after it. While one thread waits for the disk, others run: here they
//! run inside that call, and which of them do is drawn by a seed.

use std::sync::Arc;

use runtime::disk::simulated::DiskOperation;
use runtime::{BoxFuture, Disk, DiskError, File, FileStat};

/// One operation on its way.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) operation: DiskOperation,
    pub(crate) path: &'a str,
    /// It is about to begin; otherwise it is over. A sync takes its time in between.
    pub(crate) begins: bool,
    /// Bytes that the file will have, or has.
    pub(crate) length: u64,
}

pub(crate) type Onlooker = Arc<dyn Fn(Call<'_>) + Send + Sync>;

pub(crate) struct WatchedDisk {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) onlooker: Onlooker,
}

struct WatchedFile {
    file: Arc<dyn File>,
    path: String,
    onlooker: Onlooker,
}

fn watch<T>(onlooker: &Onlooker, call: Call<'_>, operation: impl FnOnce() -> T) -> T {
    onlooker(call);
    let outcome = operation();
    onlooker(Call { begins: false, ..call });
    outcome
}

fn watch_later(
    onlooker: &Onlooker,
    call: Call<'_>,
    operation: impl FnOnce() -> BoxFuture<'static, Result<(), DiskError>>,
) -> BoxFuture<'static, Result<(), DiskError>> {
    onlooker(call);
    let (sync, onlooker) = (operation(), onlooker.clone());
    let (operation, path, length) = (call.operation, call.path.to_owned(), call.length);
    Box::pin(async move {
        let outcome = sync.await;
        onlooker(Call { operation, path: &path, begins: false, length });
        outcome
    })
}

impl WatchedDisk {
    fn call<'a>(&self, operation: DiskOperation, path: &'a str) -> Call<'a> {
        Call { operation, path, begins: true, length: 0 }
    }

    fn wrap(&self, path: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(WatchedFile { file, path: path.to_owned(), onlooker: self.onlooker.clone() })
    }
}

impl Disk for WatchedDisk {
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let created =
            watch(&self.onlooker, self.call(DiskOperation::Create, path), || self.disk.create(path));
        created.map(|file| self.wrap(path, file))
    }
    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        self.disk.open(path).map(|file| self.wrap(path, file))
    }
    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        self.disk.stat(path)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        watch(&self.onlooker, self.call(DiskOperation::Rename, from), || self.disk.rename(from, to))
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        watch(&self.onlooker, self.call(DiskOperation::Remove, path), || self.disk.remove(path))
    }
    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(directory)
    }
    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        let call = self.call(DiskOperation::SyncDirectory, directory);
        watch_later(&self.onlooker, call, || self.disk.sync_directory(directory))
    }
    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        self.disk.lock(path)
    }
    fn available_bytes(&self) -> u64 {
        self.disk.available_bytes()
    }
    fn total_bytes(&self) -> Option<u64> {
        self.disk.total_bytes()
    }
}

impl WatchedFile {
    fn call(&self, operation: DiskOperation, more: usize) -> Call<'_> {
        let length = self.file.length() + more as u64;
        Call { operation, path: &self.path, begins: true, length }
    }
}

impl File for WatchedFile {
    fn append(&self, bytes: &[u8]) -> Result<u64, DiskError> {
        watch(&self.onlooker, self.call(DiskOperation::Append, bytes.len()), || self.file.append(bytes))
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        watch(&self.onlooker, self.call(DiskOperation::Read, 0), || self.file.read_at(offset, buffer))
    }
    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        watch_later(&self.onlooker, self.call(DiskOperation::Sync, 0), || self.file.sync())
    }
    fn truncate(&self, length: u64) -> Result<(), DiskError> {
        watch(&self.onlooker, self.call(DiskOperation::Truncate, 0), || self.file.truncate(length))
    }
    fn length(&self) -> u64 {
        self.file.length()
    }
    fn map(&self) -> Result<Arc<dyn runtime::Mapping>, DiskError> {
        self.file.map()
    }
}
