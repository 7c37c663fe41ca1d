//! Files, and what survives a crash.
//!
//! Contract, as the operating system gives it and the simulated disk enforces it:
//! - appended bytes are readable at once, and survive the end of the process, but survive a power cut only after a
//!   later [`File::sync`] of that file completed;
//! - a created, renamed or removed name survives a power cut only after [`Disk::sync_directory`] completed;
//! - after a power cut any prefix-or-garbled subset of the unsynced bytes may be there (torn writes);
//! - a failed sync means that nobody knows what is on the platter: the caller must treat it as fatal for the file.

#[cfg(test)]
mod conformance;
pub mod mapping;
pub mod os;
pub mod simulated;
pub mod waiting;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use self::mapping::Mapping;
use crate::BoxFuture;

/// Why the disk refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskError {
    /// No such file.
    NotFound {
        /// Path below the disk's root.
        path: String,
    },
    /// The file exists already.
    Exists {
        /// Path below the disk's root.
        path: String,
    },
    /// No space left.
    Full,
    /// Another process holds the lock.
    Locked {
        /// Path below the disk's root.
        path: String,
    },
    /// The device failed.
    Failed {
        /// Path below the disk's root.
        path: String,
        /// What the operating system said.
        reason: String,
    },
    /// The bytes are not in memory, and the caller would not wait for the device ([`waiting::without_waiting`]).
    WouldWait,
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::NotFound { path } => write!(f, "file {path} does not exist"),
            DiskError::Exists { path } => write!(f, "file {path} already exists"),
            DiskError::Full => f.write_str("no space left on the disk"),
            DiskError::Locked { path } => write!(f, "another process holds {path}"),
            DiskError::Failed { path, reason } => write!(f, "cannot read or write {path}: {reason}"),
            DiskError::WouldWait => {
                f.write_str("the bytes are not in memory: reading them waits for the disk")
            }
        }
    }
}

impl std::error::Error for DiskError {}

/// Which file has a name, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Another file that takes the name has another identity, as long as somebody has the first one open.
    pub identity: (u64, u64),
    /// Its length in bytes, also where another process appended to it.
    pub length: u64,
}

/// An open file: appended at its end, read anywhere.
pub trait File: Send + Sync {
    /// Appends all of `bytes` and returns the offset where they start.
    ///
    /// # Errors
    /// On [`DiskError::Full`] or [`DiskError::Failed`] a part of the bytes may have been appended; the caller
    /// truncates or abandons the file.
    fn append(&self, bytes: &[u8]) -> Result<u64, DiskError>;

    /// Reads up to `buffer.len()` bytes from `offset`; fewer only at the end of the file. It may wait for the device,
    /// unless the caller tries [without waiting](waiting::without_waiting).
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError>;

    /// Makes everything appended before the call durable. Does not block the executor.
    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>>;

    /// Cuts the file to `length` bytes.
    fn truncate(&self, length: u64) -> Result<(), DiskError>;

    /// Its length in bytes, as far as it is known here: what another process appended since it was opened does not count.
    fn length(&self) -> u64;

    /// Maps the whole file, which nobody changes any more.
    ///
    /// # Errors
    /// [`DiskError::Failed`] when the system refuses, or too many files are mapped.
    fn map(&self) -> Result<Arc<dyn Mapping>, DiskError>;

    /// These bytes are not needed soon, so they shall not push others out of memory: the device begins to write them, and
    /// what it has leaves memory, now or at the next call. A hint, which changes nothing that can be read. Does not wait.
    fn drop_cached(&self, _range: Range<u64>) {}

    /// As [`File::read_at`], for a reader of whole files that nobody waits for: what was not in memory before does not stay
    /// there, and what was does. It may always wait for the device.
    fn read_in_passing(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.read_at(offset, buffer)
    }
}

/// A directory tree. One process at a time changes a file: who shares a tree takes a lock, and opens a file anew after
/// somebody else changed it. Paths are relative, with `/`.
pub trait Disk: Send + Sync {
    /// Creates a file; its parent directories are created as needed.
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError>;

    /// Opens an existing file.
    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError>;

    /// Which file has this name now, and how long it is.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] when none has it.
    fn stat(&self, path: &str) -> Result<FileStat, DiskError>;

    /// Renames a file over whatever has the new name, or a directory with all that is below it to a name that is free,
    /// atomically; parent directories of the new name are created as needed. A directory that is moved into another
    /// one is durable when both have been synced.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Removes a file. Readers that have it open may go on.
    fn remove(&self, path: &str) -> Result<(), DiskError>;

    /// Names directly below a directory, sorted; empty when it does not exist.
    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError>;

    /// Makes creations, renames and removals directly below a directory durable that were made before the call. Does not block the executor.
    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>>;

    /// Takes an exclusive lock on a file (created as needed), held until the guard is dropped or the process ends.
    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError>;

    /// Bytes that can still be written, as far as the system knows.
    fn available_bytes(&self) -> u64;

    /// Bytes that the whole disk holds, used ones included; `None` where the system does not say.
    fn total_bytes(&self) -> Option<u64>;

    /// Files of it that this process may still map. Others of the process may map some meanwhile.
    fn mappings_left(&self) -> usize {
        usize::MAX
    }
}
