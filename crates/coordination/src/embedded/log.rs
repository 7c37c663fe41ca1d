//! The log file: a snapshot of the tree, then the changes of every turn since.
//!
//! - A turn is appended and synced before anybody is told that it happened, and before the next one is appended.
//! - Whoever reads a change that somebody else appended syncs the file before believing it: its writer may have
//!   been killed between writing and syncing, and what was once read must not be gone after a power cut.
//! - An unfinished record at the end (its writer was killed, or the power failed) is cut off by the next process
//!   that holds the lock. Invalid bytes *before* a valid record are damage, and refused.
//! - When the changes outgrow the snapshot, a new file is written, synced and renamed over the old one. Others see
//!   that another file has the name and read it anew.
//!
//! It uses the disk port, so that tests cut the power in the middle of every operation.
//!
//! **Architecture Invariant:** all methods but [`Log::is_current`] are called only under the directory's lock.

use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use runtime::{BoxFuture, Disk, DiskError, File};
use tracing::warn;

use super::OpenError;
use super::record::{self, Parsed, TreeRecord};
use crate::Event;
use crate::tree::{Tree, TreeChange};

/// The log within its directory, and the file that becomes it.
pub(super) const LOG_NAME: &str = "coordination.log";
pub(super) const NEXT_NAME: &str = "coordination.log.next";

const MAGIC: [u8; 8] = *b"TONTCOOR";

/// Version of the format.
pub(super) const FORMAT: u32 = 1;

pub(super) const HEADER: usize = 12;

/// Changes are folded into a new snapshot when they take more bytes than this and more than the snapshot itself:
/// writing stays proportional to what changes, and opening reads at most twice the documents.
const FOLD_BYTES_MIN: u64 = if cfg!(test) { 2048 } else { 1024 * 1024 };

/// A directory whose log is read: its files, and its name for messages.
#[derive(Clone)]
pub(super) struct LogPlace {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) path: PathBuf,
}

impl LogPlace {
    fn log_path(&self) -> PathBuf {
        self.path.join(LOG_NAME)
    }

    fn failed(&self, error: &DiskError) -> OpenError {
        OpenError::Failed { path: self.path.clone(), reason: error.to_string() }
    }

    fn damaged(&self, offset: u64) -> OpenError {
        OpenError::damaged(&self.log_path(), offset)
    }
}

/// Waits for a sync on this thread, which is the session's own and has nothing else to do meanwhile.
fn wait(mut sync: BoxFuture<'static, Result<(), DiskError>>) -> Result<(), DiskError> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match sync.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The log, as far as this process has read it.
pub(super) struct Log {
    place: LogPlace,
    /// Opened since anybody else appended to it.
    file: Arc<dyn File>,
    /// Which file it is, whatever its name is now.
    identity: (u64, u64),
    /// Bytes read and applied: all of them valid.
    valid_bytes: u64,
    /// Bytes of them that are header and snapshot.
    snapshot_bytes: u64,
}

impl Log {
    /// Opens the log of a directory, creating an empty one where there is none.
    pub(super) fn open(place: &LogPlace) -> Result<(Log, Tree), OpenError> {
        match place.disk.stat(LOG_NAME) {
            Ok(_) => {}
            Err(DiskError::NotFound { .. }) => {
                write_snapshot(&*place.disk, &Tree::new()).map_err(|error| place.failed(&error))?;
            }
            Err(error) => return Err(place.failed(&error)),
        }
        Log::load(place)
    }

    fn load(place: &LogPlace) -> Result<(Log, Tree), OpenError> {
        let failed = |error: DiskError| place.failed(&error);
        // The rename that put the file there may not be durable yet.
        wait(place.disk.sync_directory("")).map_err(failed)?;
        let file = place.disk.open(LOG_NAME).map_err(failed)?;
        wait(file.sync()).map_err(failed)?;
        let identity = place.disk.stat(LOG_NAME).map_err(failed)?.identity;
        let bytes = read(&*file, 0).map_err(failed)?;
        check_header(&place.path, &bytes)?;
        let (mut tree, snapshot) = restore(&bytes[HEADER..]).ok_or_else(|| place.damaged(HEADER as u64))?;
        let snapshot_bytes = (HEADER + snapshot) as u64;
        let mut log =
            Log { place: place.clone(), file, identity, valid_bytes: snapshot_bytes, snapshot_bytes };
        log.replay(&bytes[HEADER + snapshot..], &mut tree, &mut Vec::new())?;
        Ok((log, tree))
    }

    /// Whether nobody appended anything or replaced the file. One system call, no lock.
    pub(super) fn is_current(&self) -> Result<bool, DiskError> {
        let stat = self.place.disk.stat(LOG_NAME)?;
        Ok(stat.identity == self.identity && stat.length == self.valid_bytes)
    }

    /// Reads what others appended; `None` when they replaced the file, which must be loaded anew.
    pub(super) fn catch_up(&mut self, tree: &mut Tree) -> Result<Option<Vec<Event>>, OpenError> {
        let place = self.place.clone();
        let failed = |error: DiskError| place.failed(&error);
        let stat = place.disk.stat(LOG_NAME).map_err(failed)?;
        if stat.identity != self.identity || stat.length < self.valid_bytes {
            return Ok(None);
        }
        let mut events = Vec::new();
        if stat.length > self.valid_bytes {
            self.file = place.disk.open(LOG_NAME).map_err(failed)?;
            wait(self.file.sync()).map_err(failed)?;
            let bytes = read(&*self.file, self.valid_bytes).map_err(failed)?;
            self.replay(&bytes, tree, &mut events)?;
        }
        Ok(Some(events))
    }

    /// Loads the file that replaced this one.
    pub(super) fn reload(&self) -> Result<(Log, Tree), OpenError> {
        Log::load(&self.place)
    }

    /// Applies the changes in `bytes`, which stand at the end of the valid part; cuts off an unfinished end.
    fn replay(&mut self, bytes: &[u8], tree: &mut Tree, events: &mut Vec<Event>) -> Result<(), OpenError> {
        let place = self.place.clone();
        let mut rest = bytes;
        loop {
            match record::parse(rest) {
                Parsed::End => return Ok(()),
                Parsed::Record(TreeRecord::Turn { first, changes }, length) if first == tree.order() + 1 => {
                    for change in &changes {
                        if !tree.accepts(change) {
                            return Err(place.damaged(self.valid_bytes));
                        }
                        tree.apply(change, events);
                    }
                    rest = &rest[length..];
                    self.valid_bytes += length as u64;
                }
                Parsed::Record(..) => return Err(place.damaged(self.valid_bytes)),
                Parsed::Invalid if record::holds_later_turn(&rest[1..], tree.order() + 1) => {
                    return Err(place.damaged(self.valid_bytes));
                }
                Parsed::Invalid => {
                    warn!(
                        bytes = rest.len(),
                        "unfinished record at the end of the coordination log, cutting it off"
                    );
                    return self.cut().map_err(|error| place.failed(&error));
                }
            }
        }
    }

    /// Cuts off whatever follows the valid part.
    fn cut(&self) -> Result<(), DiskError> {
        self.file.truncate(self.valid_bytes)?;
        wait(self.file.sync())
    }

    /// Makes the changes of a turn durable, which were just applied to the tree, the first of them as number `first`.
    ///
    /// # Errors
    /// [`AppendError`] tells whether the changes may be there nevertheless. Either way the tree is ahead of the log
    /// and must be loaded anew.
    pub(super) fn append(&mut self, first: u64, changes: Vec<TreeChange>) -> Result<(), AppendError> {
        let mut bytes = Vec::new();
        record::encode(&TreeRecord::Turn { first, changes }, &mut bytes);
        let written = self.write(&bytes);
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

    fn write(&self, bytes: &[u8]) -> Result<(), DiskError> {
        let start = self.file.append(bytes)?;
        assert!(
            start == self.valid_bytes,
            "the holder of the lock has read all that is there, or cut it off"
        );
        wait(self.file.sync())
    }

    /// Folds the changes into a new snapshot when they have outgrown the old one.
    pub(super) fn fold(&mut self, tree: &Tree) -> Result<(), OpenError> {
        let changes_bytes = self.valid_bytes - self.snapshot_bytes;
        if changes_bytes <= FOLD_BYTES_MIN.max(self.snapshot_bytes) {
            return Ok(());
        }
        if let Err(error) = write_snapshot(&*self.place.disk, tree) {
            // Nothing is lost as long as the old file is there: it only goes on growing.
            warn!(%error, "folding the coordination log failed");
        }
        // Loading also makes sure that the name on disk is the file that will be appended to.
        let (log, loaded) = Log::load(&self.place)?;
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
    Undone(DiskError),
    /// Nobody knows.
    Unknown(DiskError),
}

/// Writes a log that consists of a snapshot and puts it in place of the old one.
fn write_snapshot(disk: &dyn Disk, tree: &Tree) -> Result<(), DiskError> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    let sessions = tree.sessions().map(|(session, _)| session).collect();
    let entries = tree.entries().count() as u64;
    record::encode(&TreeRecord::Snapshot { order: tree.order(), sessions, entries }, &mut bytes);
    for (path, entry) in tree.entries() {
        record::encode(
            &TreeRecord::Entry { path: path.clone(), entry: entry.without_children() },
            &mut bytes,
        );
    }
    match disk.remove(NEXT_NAME) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = disk.create(NEXT_NAME)?;
    file.append(&bytes)?;
    wait(file.sync())?;
    disk.rename(NEXT_NAME, LOG_NAME)?;
    wait(disk.sync_directory(""))
}

/// All bytes of a file from `offset` on.
fn read(file: &dyn File, offset: u64) -> Result<Vec<u8>, DiskError> {
    let mut bytes = vec![0; usize::try_from(file.length() - offset).expect("files fit into memory")];
    let count = file.read_at(offset, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Refuses a log that is none, or one of another format.
pub(super) fn check_header(directory: &std::path::Path, bytes: &[u8]) -> Result<(), OpenError> {
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
    let Parsed::Record(TreeRecord::Snapshot { order, sessions, entries }, mut offset) = record::parse(bytes)
    else {
        return None;
    };
    let mut tree = Tree::restored(order, &sessions)?;
    for _ in 0..entries {
        let Parsed::Record(TreeRecord::Entry { path, entry }, length) = record::parse(&bytes[offset..])
        else {
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
    use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};

    use super::*;
    use crate::DocumentPath;

    fn created(path: &str) -> TreeChange {
        TreeChange::Created {
            path: DocumentPath::new(path).unwrap(),
            data: Bytes::from_static(b"content"),
            owner: None,
        }
    }

    #[test]
    fn a_turn_that_cannot_be_cut_off_again_is_in_doubt() {
        let disk = SimulatedDisk::new(1);
        let place = LogPlace { disk: Arc::new(disk.clone()), path: PathBuf::from("simulated") };
        let (mut log, _) = Log::open(&place).unwrap();
        disk.inject(Fault::next(DiskOperation::Sync, 1));
        assert!(matches!(log.append(1, vec![created("/a")]), Err(AppendError::Undone(_))));
        assert_eq!(Log::open(&place).unwrap().1.order(), 0);
        disk.inject(Fault::next(DiskOperation::Sync, 1));
        disk.inject(Fault::next(DiskOperation::Truncate, 1));
        assert!(matches!(log.append(1, vec![created("/a")]), Err(AppendError::Unknown(_))));
        assert_eq!(Log::open(&place).unwrap().1.order(), 1, "it is there after all");
    }

    #[test]
    fn what_a_second_opening_promises_survives_a_power_cut_wherever_the_first_ended() {
        for (at, seed) in (0..8).flat_map(|at| (0..16).map(move |seed| (at, seed))) {
            let disk = SimulatedDisk::new(seed);
            let place = LogPlace { disk: Arc::new(disk.clone()), path: PathBuf::from("simulated") };
            disk.power_off_after(Some(at));
            drop(Log::open(&place));
            disk.kill();
            let (mut log, _) = Log::open(&place).unwrap();
            assert!(log.append(1, vec![created("/a")]).is_ok());
            disk.crash(seed);
            assert_eq!(Log::open(&place).unwrap().1.order(), 1, "ended at operation {at}, seed {seed}");
        }
    }

    /// A document may hold a copy of the log. Once, a power cut in the middle of writing such a one looked like damage,
    /// and the directory did not open any more.
    #[test]
    fn an_unfinished_turn_that_holds_a_copy_of_the_log_is_no_damage() {
        let disk = SimulatedDisk::new(1);
        let place = LogPlace { disk: Arc::new(disk.clone()), path: PathBuf::from("simulated") };
        let (mut log, _) = Log::open(&place).unwrap();
        assert!(log.append(1, vec![created("/a")]).is_ok());
        let data = Bytes::from(disk.contents(LOG_NAME).unwrap());
        let copy = TreeChange::Created { path: DocumentPath::new("/copy").unwrap(), data, owner: None };
        assert!(log.append(2, vec![copy]).is_ok());
        let whole = disk.contents(LOG_NAME).unwrap();
        disk.plant(LOG_NAME, &whole[..whole.len() - 1]);
        assert_eq!(Log::open(&place).unwrap().1.order(), 1);
    }

    /// The power failed while a turn of several changes was written, and the disk kept any part of it: the end
    /// without the beginning, or a hole. Nobody was told of the turn, so it is gone as a whole and the log goes on.
    #[test]
    fn an_unsynced_turn_of_which_any_part_is_missing_is_gone_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(runtime::disk::os::OsDisk::open(directory.path()).unwrap());
        let place = LogPlace { disk, path: directory.path().to_owned() };
        let (mut log, _) = Log::open(&place).unwrap();
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
                let (mut log, mut tree) = Log::open(&place).unwrap();
                assert_eq!(tree.order(), 1, "bytes {missing}..{end} are missing");
                tree.apply(&created("/next"), &mut Vec::new());
                assert!(log.append(2, vec![created("/next")]).is_ok());
                assert_eq!(Log::open(&place).unwrap().1, tree);
            }
        }
    }
}
