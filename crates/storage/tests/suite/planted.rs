//! The crash tests can fail: each planted bug is found.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::Shared;
use runtime::disk::simulated::SimulatedDisk;
use runtime::{BoxFuture, Disk, DiskError, File, FileStat};
use storage::{Commit, Durability, Durable, LogEngine, StorageEngine, StorageError};

use crate::concurrent::Concurrent;
use crate::crash::Harness;
use crate::ledger::End;

/// A sync for which several writers wait.
type SharedSync = Shared<BoxFuture<'static, Result<(), StorageError>>>;

/// How an engine answers those who wait, wrongly.
enum Answer {
    /// Before anything was synced.
    Hasty,
    /// With the sync that is under way, though it began before the write came.
    Joining(Mutex<Option<SharedSync>>),
    /// That all is well, whatever became of the sync.
    Optimistic,
}

struct Planted(Arc<LogEngine>, Answer);

impl StorageEngine for Planted {
    storage::forward_engine!(0: get, update, sync, position, scan, walk, find, partitions, drop_partition, stats, close);

    fn acknowledges_at_once(&self) -> bool {
        matches!(self.1, Answer::Hasty)
    }

    fn durable(&self, commit: Commit) -> Durable {
        let under_way = match &self.1 {
            Answer::Hasty => return Durable::Already,
            Answer::Optimistic => {
                let answer = self.0.durable(commit);
                return Durable::Waits(Box::pin(async move { answer.wait().await.or(Ok(())) }));
            }
            Answer::Joining(under_way) => &mut *under_way.lock().unwrap(),
        };
        if let Some(sync) = under_way.as_ref().filter(|sync| sync.peek().is_none()) {
            return Durable::Waits(Box::pin(sync.clone()));
        }
        match self.0.durable(commit) {
            Durable::Already => Durable::Already,
            Durable::Waits(sync) => Durable::Waits(Box::pin(under_way.insert(sync.shared()).clone())),
        }
    }
}

/// What a lying disk says without doing it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    Sync,
    SyncDirectory,
    /// The sync of what compaction wrote.
    SyncCopies,
}

struct LyingDisk {
    disk: SimulatedDisk,
    lie: Lie,
}

struct LyingFile {
    file: Arc<dyn File>,
    lie: Lie,
    copies: bool,
}

fn done() -> BoxFuture<'static, Result<(), DiskError>> {
    Box::pin(std::future::ready(Ok(())))
}

impl LyingDisk {
    fn wrap(&self, path: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        let copies =
            path.strip_suffix(".tmp").is_some_and(|name| name.ends_with(|last: char| last.is_ascii_digit()));
        Arc::new(LyingFile { file, lie: self.lie, copies })
    }
}

impl Disk for LyingDisk {
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        self.disk.create(path).map(|file| self.wrap(path, file))
    }
    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        self.disk.open(path).map(|file| self.wrap(path, file))
    }
    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        self.disk.stat(path)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.disk.remove(path)
    }
    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(directory)
    }
    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        match self.lie {
            Lie::SyncDirectory => done(),
            Lie::Sync | Lie::SyncCopies => self.disk.sync_directory(directory),
        }
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

impl File for LyingFile {
    fn append(&self, bytes: &[u8]) -> Result<u64, DiskError> {
        self.file.append(bytes)
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buffer)
    }
    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        match self.lie {
            Lie::Sync => done(),
            Lie::SyncCopies if self.copies => done(),
            Lie::SyncDirectory | Lie::SyncCopies => self.file.sync(),
        }
    }
    fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.file.truncate(length)
    }
    fn length(&self) -> u64 {
        self.file.length()
    }
    fn map(&self) -> Result<Arc<dyn runtime::Mapping>, DiskError> {
        self.file.map()
    }
}

fn found(harness: Harness) -> String {
    harness.run().expect_err("the planted bug is found")
}

#[test]
fn an_engine_that_acknowledges_before_the_sync_is_caught() {
    let harness = Harness::new(Durability::Always, End::PowerCut);
    let violation = found(Harness { engine: |engine| Arc::new(Planted(engine, Answer::Hasty)), ..harness });
    assert!(violation.contains("is lost"), "{violation}");
}

#[test]
fn an_engine_that_acknowledges_before_the_write_is_caught_by_the_end_of_its_process() {
    let harness = Harness::new(Durability::System, End::Kill);
    let violation = found(Harness { engine: |engine| Arc::new(Planted(engine, Answer::Hasty)), ..harness });
    assert!(violation.contains("is lost"), "{violation}");
}

#[test]
fn an_engine_whose_files_are_not_synced_is_caught() {
    let harness = Harness::new(Durability::Always, End::PowerCut);
    found(Harness { disk: |disk| Arc::new(LyingDisk { disk, lie: Lie::Sync }), ..harness });
}

#[test]
fn an_engine_whose_directory_is_not_synced_is_caught() {
    let harness = Harness::new(Durability::Always, End::PowerCut);
    found(Harness { disk: |disk| Arc::new(LyingDisk { disk, lie: Lie::SyncDirectory }), ..harness });
}

/// Many writers find it within so many seeds.
fn found_among_many(how: Concurrent) -> String {
    let violation = how.first_violation(40).expect("the planted bug is found");
    println!("{violation}");
    violation
}

#[test]
fn many_writers_catch_an_engine_that_acknowledges_before_the_sync() {
    let how = Concurrent::new(Durability::Always);
    let engine = |engine| Arc::new(Planted(engine, Answer::Hasty)) as Arc<dyn StorageEngine>;
    let violation = found_among_many(Concurrent { engine, ..how });
    assert!(violation.contains("is lost"), "{violation}");
}

#[test]
fn many_writers_catch_a_write_that_joins_a_sync_which_began_before_it() {
    let how = Concurrent::new(Durability::Always);
    let engine =
        |engine| Arc::new(Planted(engine, Answer::Joining(Mutex::default()))) as Arc<dyn StorageEngine>;
    let violation = found_among_many(Concurrent { engine, ..how });
    assert!(violation.contains("is lost"), "{violation}");
}

#[test]
fn many_writers_catch_an_engine_that_says_yes_after_a_failed_sync() {
    let how = Concurrent::new(Durability::Always);
    let engine = |engine| Arc::new(Planted(engine, Answer::Optimistic)) as Arc<dyn StorageEngine>;
    let violation = found_among_many(Concurrent { engine, ..how });
    assert!(violation.contains("is lost"), "{violation}");
}

#[test]
fn many_writers_catch_compaction_that_deletes_before_its_copies_are_synced() {
    let how = Concurrent::new(Durability::Always);
    found_among_many(Concurrent { disk: |disk| Arc::new(LyingDisk { disk, lie: Lie::SyncCopies }), ..how });
}
