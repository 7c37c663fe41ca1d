//! Why an engine refuses: one enum, with what happened and, where a person can do something, what.

use std::fmt;

use model::PartitionId;
use runtime::DiskError;

/// Why an engine refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageError {
    /// The disk is full (or below its reserve): reads go on, writes are refused, nothing was changed.
    Full,
    /// The record is there but its checksum does not hold. [`RepairableEngine`](crate::RepairableEngine) forgets it.
    Corrupt {
        /// In which bucket.
        partition: PartitionId,
    },
    /// The record, or its key alone, is longer than the engine can hold, however much room there is. Nothing was
    /// changed.
    TooLong {
        /// Its bytes.
        bytes: u64,
        /// The most that the engine holds.
        bytes_max: u64,
    },
    /// A sync or write failed: nobody knows what is on the platter, so the engine refuses all further work.
    Fatal {
        /// What happened.
        reason: String,
    },
    /// The disk refused otherwise.
    Disk(DiskError),
    /// The data on disk was written by a newer version of this program.
    NewerFormat {
        /// The version found.
        found: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// The directory holds something that this engine did not write, or the file that says whose it is is damaged.
    Foreign {
        /// The directory.
        directory: String,
        /// What was found there.
        reason: String,
    },
    /// The engine has been closed.
    Closed,
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageError::Full => {
                f.write_str("writes are refused, because the disk is full; reads still work")
            }
            StorageError::Corrupt { partition } => {
                write!(f, "a record of bucket {} is corrupt: its checksum does not match", partition.0)
            }
            StorageError::TooLong { bytes, bytes_max } => {
                write!(f, "a record or key of {bytes} bytes is over the engine's limit of {bytes_max} bytes")
            }
            StorageError::Fatal { reason } => write!(f, "storage has stopped: {reason}"),
            StorageError::Disk(error) => error.fmt(f),
            StorageError::NewerFormat { found, supported } => write!(
                f,
                "the data has format {found}, and this program reads formats up to {supported}; upgrade tontine"
            ),
            StorageError::Foreign { directory, reason } => {
                write!(
                    f,
                    "{directory} is not a data directory of this engine: {reason}; choose another directory"
                )
            }
            StorageError::Closed => f.write_str("the storage engine is closed"),
        }
    }
}

impl std::error::Error for StorageError {}

impl From<DiskError> for StorageError {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::Full => StorageError::Full,
            other => StorageError::Disk(other),
        }
    }
}
