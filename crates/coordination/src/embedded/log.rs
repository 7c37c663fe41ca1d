//! The log file: a snapshot of the tree, then the changes of every turn since.
//!
//! - A turn is appended and synced before anybody is told that it happened, and before the next one is appended.
//! - Whoever reads a change that somebody else appended syncs the file before believing it: its writer may have
//!   been killed between writing and syncing, and what was once read must not be gone after a power cut.
//! - An unfinished record at the end (its writer was killed, or the power failed) is cut off by the next process
//!   that holds the lock. Invalid bytes *before* a valid record are damage, and refused.
//! - When the changes outgrow the snapshot, a new file is written, synced and renamed over the old one. Others see
//!   that the name has another inode and read it anew.
//!
//! **Architecture Invariant:** all methods but [`Log::is_current`] are called only under the directory's lock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use tracing::warn;

use super::OpenError;
use super::record::{self, Parsed, Record};
use crate::Event;
use crate::tree::{Change, Tree};

/// The log within its directory, and the file that becomes it.
pub(super) const LOG_NAME: &str = "coordination.log";
pub(super) const NEXT_NAME: &str = "coordination.log.next";

const MAGIC: [u8; 8] = *b"TONTCOOR";

/// Version of the format.
pub(super) const FORMAT: u32 = 1;

const HEADER: usize = 12;

/// Changes are folded into a new snapshot when they take more bytes than this and more than the snapshot itself:
/// writing stays proportional to what changes, and opening reads at most twice the documents.
const FOLD_BYTES_MIN: u64 = 1024 * 1024;

/// The log, as far as this process has read it.
pub(super) struct Log {
    directory: PathBuf,
    file: File,
    /// Device and inode of `file`.
    identity: (u64, u64),
    /// Bytes read and applied: all of them valid.
    valid_bytes: u64,
    /// Bytes of them that are header and snapshot.
    snapshot_bytes: u64,
}

impl Log {
    /// Opens the log of a directory, creating an empty one where there is none.
    pub(super) fn open(directory: &Path) -> Result<(Log, Tree), OpenError> {
        let failed = |error: io::Error| OpenError::failed(directory, &error);
        if !directory.join(LOG_NAME).try_exists().map_err(failed)? {
            write_snapshot(directory, &Tree::new()).map_err(failed)?;
        }
        Log::load(directory)
    }

    fn load(directory: &Path) -> Result<(Log, Tree), OpenError> {
        let path = directory.join(LOG_NAME);
        let failed = |error: io::Error| OpenError::failed(&path, &error);
        // The rename that put the file there may not be durable yet.
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut bytes = vec![0; usize::try_from(metadata.len()).expect("files fit into memory")];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        check_header(directory, &bytes)?;
        let (mut tree, snapshot) =
            restore(&bytes[HEADER..]).ok_or_else(|| OpenError::damaged(&path, HEADER as u64))?;
        let snapshot_bytes = (HEADER + snapshot) as u64;
        let identity = (metadata.dev(), metadata.ino());
        let mut log = Log {
            directory: directory.to_owned(),
            file,
            identity,
            valid_bytes: snapshot_bytes,
            snapshot_bytes,
        };
        log.replay(&bytes[HEADER + snapshot..], &mut tree, &mut Vec::new())?;
        Ok((log, tree))
    }

    /// Whether nobody appended anything or replaced the file. One system call, no lock.
    pub(super) fn is_current(&self) -> io::Result<bool> {
        let metadata = std::fs::metadata(self.directory.join(LOG_NAME))?;
        Ok((metadata.dev(), metadata.ino()) == self.identity && metadata.len() == self.valid_bytes)
    }

    /// Reads what others appended; `None` when they replaced the file, which must be loaded anew.
    pub(super) fn catch_up(&mut self, tree: &mut Tree) -> Result<Option<Vec<Event>>, OpenError> {
        let path = self.directory.join(LOG_NAME);
        let failed = |error: io::Error| OpenError::failed(&path, &error);
        let metadata = std::fs::metadata(&path).map_err(failed)?;
        if (metadata.dev(), metadata.ino()) != self.identity || metadata.len() < self.valid_bytes {
            return Ok(None);
        }
        let mut events = Vec::new();
        let appended = usize::try_from(metadata.len() - self.valid_bytes).expect("files fit into memory");
        if appended > 0 {
            self.file.sync_data().map_err(failed)?;
            let mut bytes = vec![0; appended];
            self.file.read_exact_at(&mut bytes, self.valid_bytes).map_err(failed)?;
            self.replay(&bytes, tree, &mut events)?;
        }
        Ok(Some(events))
    }

    /// Loads the file that replaced this one.
    pub(super) fn reload(&self) -> Result<(Log, Tree), OpenError> {
        Log::load(&self.directory)
    }

    /// Applies the changes in `bytes`, which stand at the end of the valid part; cuts off an unfinished end.
    fn replay(&mut self, bytes: &[u8], tree: &mut Tree, events: &mut Vec<Event>) -> Result<(), OpenError> {
        let path = self.directory.join(LOG_NAME);
        let mut rest = bytes;
        loop {
            match record::parse(rest) {
                Parsed::End => return Ok(()),
                Parsed::Record(Record::Turn { first, changes }, length) if first == tree.order() + 1 => {
                    for change in &changes {
                        if !tree.accepts(change) {
                            return Err(OpenError::damaged(&path, self.valid_bytes));
                        }
                        tree.apply(change, events);
                    }
                    rest = &rest[length..];
                    self.valid_bytes += length as u64;
                }
                Parsed::Record(..) => return Err(OpenError::damaged(&path, self.valid_bytes)),
                Parsed::Invalid if record::holds_record(&rest[1..]) => {
                    return Err(OpenError::damaged(&path, self.valid_bytes));
                }
                Parsed::Invalid => {
                    warn!(
                        bytes = rest.len(),
                        "unfinished record at the end of the coordination log, cutting it off"
                    );
                    return self.cut().map_err(|error| OpenError::failed(&path, &error));
                }
            }
        }
    }

    /// Cuts off whatever stands behind the valid part.
    fn cut(&self) -> io::Result<()> {
        self.file.set_len(self.valid_bytes)?;
        self.file.sync_data()
    }

    /// Makes the changes of a turn durable, which were just applied to the tree, the first of them as number `first`.
    ///
    /// # Errors
    /// [`AppendError`] tells whether the changes may be there nevertheless. Either way the tree is ahead of the log
    /// and must be loaded anew.
    pub(super) fn append(&mut self, first: u64, changes: Vec<Change>) -> Result<(), AppendError> {
        let mut bytes = Vec::new();
        record::encode(&Record::Turn { first, changes }, &mut bytes);
        let written = self.file.write_all_at(&bytes, self.valid_bytes).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.valid_bytes += bytes.len() as u64;
                Ok(())
            }
            Err(error) => match self.cut() {
                Ok(()) => Err(AppendError::Undone(error)),
                Err(_) => Err(AppendError::Unknown(error)),
            },
        }
    }

    /// Folds the changes into a new snapshot when they have outgrown the old one.
    pub(super) fn fold(&mut self, tree: &Tree) -> Result<(), OpenError> {
        let changes_bytes = self.valid_bytes - self.snapshot_bytes;
        if changes_bytes <= FOLD_BYTES_MIN.max(self.snapshot_bytes) {
            return Ok(());
        }
        if let Err(error) = write_snapshot(&self.directory, tree) {
            // Nothing is lost as long as the old file is there: it only goes on growing.
            warn!(%error, "folding the coordination log failed");
        }
        // Loading also makes sure that the name on disk is the file that will be appended to.
        let (log, loaded) = Log::load(&self.directory)?;
        assert!(
            loaded == *tree,
            "the folded coordination log holds another tree than the one it was made from"
        );
        *self = log;
        Ok(())
    }
}

/// Why changes could not be appended.
pub(super) enum AppendError {
    /// They are not there.
    Undone(io::Error),
    /// Nobody knows.
    Unknown(io::Error),
}

/// Writes a log that consists of a snapshot and puts it in place of the old one.
fn write_snapshot(directory: &Path, tree: &Tree) -> io::Result<()> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    let sessions = tree.sessions().map(|(session, _)| session).collect();
    let entries = tree.entries().count() as u64;
    record::encode(&Record::Snapshot { order: tree.order(), sessions, entries }, &mut bytes);
    for (path, entry) in tree.entries() {
        record::encode(&Record::Entry { path: path.clone(), entry: entry.without_children() }, &mut bytes);
    }
    let next = directory.join(NEXT_NAME);
    let file = File::create(&next)?;
    file.write_all_at(&bytes, 0)?;
    file.sync_all()?;
    std::fs::rename(&next, directory.join(LOG_NAME))?;
    File::open(directory)?.sync_all()
}

/// Refuses a log that is none, or one of another format.
pub(super) fn check_header(directory: &Path, bytes: &[u8]) -> Result<(), OpenError> {
    let found = match bytes.first_chunk::<HEADER>() {
        Some(header) if header.starts_with(&MAGIC) => {
            u32::from_le_bytes(header[MAGIC.len()..].try_into().expect("four bytes follow the magic"))
        }
        _ => {
            return Err(OpenError::NotCoordination {
                directory: directory.to_owned(),
                found: LOG_NAME.to_owned(),
            });
        }
    };
    if found == FORMAT {
        return Ok(());
    }
    Err(OpenError::OtherFormat { directory: directory.to_owned(), found, supported: FORMAT })
}

/// The tree of a snapshot and the bytes that it takes.
fn restore(bytes: &[u8]) -> Option<(Tree, usize)> {
    let Parsed::Record(Record::Snapshot { order, sessions, entries }, mut offset) = record::parse(bytes)
    else {
        return None;
    };
    let mut tree = Tree::restored(order, &sessions)?;
    for _ in 0..entries {
        let Parsed::Record(Record::Entry { path, entry }, length) = record::parse(&bytes[offset..]) else {
            return None;
        };
        if !tree.restore_entry(&path, entry) {
            return None;
        }
        offset += length;
    }
    Some((tree, offset))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::DocumentPath;

    fn created(path: &str) -> Change {
        Change::Created {
            path: DocumentPath::new(path).unwrap(),
            data: Bytes::from_static(b"content"),
            owner: None,
        }
    }

    /// The power failed while a turn of several changes was written, and the disk kept any part of it: the end
    /// without the beginning, or a hole. Nobody was told of the turn, so it is gone as a whole and the log goes on.
    #[test]
    fn an_unsynced_turn_of_which_any_part_is_missing_is_gone_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, _) = Log::open(directory.path()).unwrap();
        assert!(log.append(1, vec![created("/kept")]).is_ok());
        let synced = usize::try_from(log.valid_bytes).unwrap();
        assert!(log.append(2, vec![created("/a"), created("/b"), created("/c")]).is_ok());
        let whole = std::fs::read(directory.path().join(LOG_NAME)).unwrap();
        for missing in synced..whole.len() {
            for missing_bytes in [1, 8, 40] {
                let end = (missing + missing_bytes).min(whole.len());
                let mut bytes = whole.clone();
                bytes[missing..end].fill(0);
                if bytes == whole {
                    continue;
                }
                std::fs::write(directory.path().join(LOG_NAME), &bytes).unwrap();
                let (mut log, mut tree) = Log::open(directory.path()).unwrap();
                assert_eq!(tree.order(), 1, "bytes {missing}..{end} are missing");
                tree.apply(&created("/next"), &mut Vec::new());
                assert!(log.append(2, vec![created("/next")]).is_ok());
                assert_eq!(Log::open(directory.path()).unwrap().1, tree);
            }
        }
    }
}
