//! The crash tests can fail: they convict every disk that lies about one step on which the log relies.
//!
//! A lie represents a bug of the log: a sync that the disk skips leaves what a sync leaves that the log forgot. Two
//! lies skip every sync of a kind. Each other lie concerns one step alone, so that this step's absence convicts it.
//!
//! `docs/design/coordination.md` lists the lies.
//!
//! The disk recognizes a step by the operation before it:
//!
//! ```text
//! load       sync_directory, open, sync
//! catch up   stat, open, sync
//! cut        truncate, sync
//! snapshot   create, append, sync, rename, sync_directory
//! ```

use std::sync::Arc;

use parking_lot::Mutex;
use runtime::disk::simulated::{DiskOperation, SimulatedDisk};
use runtime::{BoxFuture, Disk, DiskError, File, FileStat};

use super::violation;

/// Seeds in which each lie must be convicted.
const SEEDS: u64 = 400;

/// What a lying disk says it has done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// No lie at all.
    Nothing,
    /// Each sync of a file.
    Sync,
    /// The sync of a turn that the process itself appended.
    SyncOfTurn,
    /// The sync of a turn that a process reads and another one appended.
    SyncOfRead,
    /// The sync of a log that a process loads.
    SyncOfLoaded,
    /// The sync of a new log before it gets its name.
    SyncOfNew,
    /// Each sync of the directory.
    SyncDirectory,
    /// The sync of the directory before a process loads the log; the one behind a rename is carried out.
    SyncDirectoryOfLoaded,
    /// The cut of a turn whose append or sync failed.
    TruncateOfTurn,
    /// The cut of an unfinished end that a process found.
    TruncateOfFound,
    /// The rename is one step; in truth the old file goes first.
    RenameInOneStep,
    /// The identity of a file; in truth all files have the same.
    Identity,
}

struct LyingDisk {
    disk: SimulatedDisk,
    lie: Lie,
    /// What was last asked of the directory.
    last: Mutex<DiskOperation>,
}

/// How a process came to a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Created,
    Loaded,
    CaughtUp,
}

struct LyingFile {
    file: Arc<dyn File>,
    lie: Lie,
    way: Way,
    /// What last happened to the file through this handle, among opening, appending and truncating.
    last: Mutex<DiskOperation>,
}

fn done() -> BoxFuture<'static, Result<(), DiskError>> {
    Box::pin(std::future::ready(Ok(())))
}

impl LyingDisk {
    /// Notes what is asked of the directory; returns what was asked before.
    fn note(&self, operation: DiskOperation) -> DiskOperation {
        std::mem::replace(&mut *self.last.lock(), operation)
    }

    fn wrap(&self, file: Arc<dyn File>, way: Way) -> Arc<dyn File> {
        Arc::new(LyingFile { file, lie: self.lie, way, last: Mutex::new(DiskOperation::Open) })
    }
}

impl Disk for LyingDisk {
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        self.note(DiskOperation::Create);
        self.disk.create(path).map(|file| self.wrap(file, Way::Created))
    }
    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let way = match self.note(DiskOperation::Open) {
            DiskOperation::SyncDirectory => Way::Loaded,
            _ => Way::CaughtUp,
        };
        self.disk.open(path).map(|file| self.wrap(file, way))
    }
    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        self.note(DiskOperation::Open);
        let stat = self.disk.stat(path)?;
        match self.lie {
            Lie::Identity => Ok(FileStat { identity: (0, 0), ..stat }),
            _ => Ok(stat),
        }
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.note(DiskOperation::Rename);
        if self.lie == Lie::RenameInOneStep {
            match self.disk.remove(to) {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.note(DiskOperation::Remove);
        self.disk.remove(path)
    }
    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(directory)
    }
    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        let before = self.note(DiskOperation::SyncDirectory);
        match self.lie {
            Lie::SyncDirectory => done(),
            Lie::SyncDirectoryOfLoaded if before != DiskOperation::Rename => done(),
            _ => self.disk.sync_directory(directory),
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
        *self.last.lock() = DiskOperation::Append;
        self.file.append(bytes)
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buffer)
    }
    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        match (self.lie, self.way, *self.last.lock()) {
            (Lie::Sync, ..)
            | (Lie::SyncOfTurn, Way::Loaded | Way::CaughtUp, DiskOperation::Append)
            | (Lie::SyncOfRead, Way::CaughtUp, DiskOperation::Open)
            | (Lie::SyncOfLoaded, Way::Loaded, DiskOperation::Open)
            | (Lie::SyncOfNew, Way::Created, _) => done(),
            _ => self.file.sync(),
        }
    }
    fn truncate(&self, length: u64) -> Result<(), DiskError> {
        let before = std::mem::replace(&mut *self.last.lock(), DiskOperation::Truncate);
        match (self.lie, before) {
            (Lie::TruncateOfTurn, DiskOperation::Append) | (Lie::TruncateOfFound, DiskOperation::Open) => {
                Ok(())
            }
            _ => self.file.truncate(length),
        }
    }
    fn length(&self) -> u64 {
        self.file.length()
    }
    fn map(&self) -> Result<Arc<dyn runtime::Mapping>, DiskError> {
        self.file.map()
    }
}

fn lying(disk: SimulatedDisk, lie: Lie) -> Arc<dyn Disk> {
    Arc::new(LyingDisk { disk, lie, last: Mutex::new(DiskOperation::Open) })
}

/// A found state that no promise allows.
const WRONG_STATE: &str = "where only one of";

/// The first seed that convicts the disk says `why`.
fn convicted(why: &str, plant: fn(SimulatedDisk) -> Arc<dyn Disk>) {
    let wrong = (1..=SEEDS).find_map(|seed| violation(seed, plant)).expect("the planted bug is found");
    println!("{wrong}");
    assert!(wrong.contains(why), "{wrong}");
}

#[test]
fn the_disk_of_these_tests_is_not_convicted_where_it_does_not_lie() {
    let wrong = (1..=SEEDS).find_map(|seed| violation(seed, |disk| lying(disk, Lie::Nothing)));
    assert_eq!(wrong, None);
}

#[test]
fn a_disk_that_syncs_no_file_is_convicted() {
    convicted("is damaged", |disk| lying(disk, Lie::Sync));
}

#[test]
fn a_turn_that_is_answered_before_its_sync_is_convicted() {
    convicted(WRONG_STATE, |disk| lying(disk, Lie::SyncOfTurn));
}

#[test]
fn a_reader_that_does_not_sync_what_another_process_wrote_is_convicted() {
    convicted(WRONG_STATE, |disk| lying(disk, Lie::SyncOfRead));
}

#[test]
fn an_opening_that_does_not_sync_the_log_is_convicted() {
    convicted(WRONG_STATE, |disk| lying(disk, Lie::SyncOfLoaded));
}

#[test]
fn an_opening_that_does_not_sync_the_name_is_convicted() {
    convicted(WRONG_STATE, |disk| lying(disk, Lie::SyncDirectoryOfLoaded));
}

#[test]
fn a_new_log_that_is_renamed_before_its_sync_is_convicted() {
    convicted("is not a coordination directory", |disk| lying(disk, Lie::SyncOfNew));
}

#[test]
fn a_new_log_whose_name_is_never_synced_is_convicted() {
    convicted(WRONG_STATE, |disk| lying(disk, Lie::SyncDirectory));
}

#[test]
fn a_failed_turn_that_is_not_cut_off_is_convicted() {
    convicted(WRONG_STATE, |disk| lying(disk, Lie::TruncateOfTurn));
}

#[test]
fn an_unfinished_end_that_stays_is_convicted() {
    convicted("the holder of the lock has read all that is there", |disk| lying(disk, Lie::TruncateOfFound));
}

#[test]
fn an_old_log_that_goes_before_the_new_one_has_its_name_is_convicted() {
    convicted("coordination.log does not exist", |disk| lying(disk, Lie::RenameInOneStep));
}

#[test]
fn a_replaced_log_that_is_not_noticed_is_convicted() {
    convicted("nothing was wrong, and still", |disk| lying(disk, Lie::Identity));
}
