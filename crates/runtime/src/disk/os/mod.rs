//! The disk of the operating system: real files below one root directory.
//!
//! Reads are positioned reads, appends are positioned writes at a length kept here, so that no call moves a shared
//! file cursor. A sync (`fdatasync`) runs on its own threads, because it may take milliseconds and the executor
//! must not wait; callers that ask for the same file while one sync of it runs share the next one (`syncer`).
//!
//! Where a caller tries without waiting, a read gets what the page cache has (`RWF_NOWAIT`), or is refused. A file
//! system that does not know this is taken to have everything in memory.
//!
//! Must never: follow a path out of its root, or report a sync that the system refused.

mod guard;
mod mapping;
mod passing;
mod syncer;

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, Rlimit};

use self::mapping::OsMapping;
use self::passing::Passing;
use self::syncer::{Syncer, Unsynced};
use super::mapping::Mapping;
use super::{Disk, DiskError, File, FileStat, waiting};
use crate::BoxFuture;

/// What was to leave memory before, and may not have been written then, is looked at again with each call.
const DROP_AGAIN_BYTES: u64 = 64 << 20;

/// Files below one root directory of the operating system.
pub struct OsDisk {
    root: PathBuf,
    syncer: Arc<Syncer>,
    is_writable: bool,
}

impl OsDisk {
    /// Takes `root` as the root of all paths; creates the directory when it does not exist.
    ///
    /// # Errors
    /// [`DiskError::Failed`] when the directory cannot be created or is none, or when no thread can be started.
    pub fn open(root: &Path) -> Result<OsDisk, DiskError> {
        let shown = root.display().to_string();
        fs::create_dir_all(root).map_err(|error| translate(&shown, &error))?;
        Ok(OsDisk { is_writable: true, ..OsDisk::open_to_read(root)? })
    }

    /// Takes `root`, which is there, as the root of files that somebody else has written. They are opened only to be read,
    /// so the right to read them is enough, also on a file system that is mounted read-only.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] when there is no such directory; [`DiskError::Failed`] when it cannot be looked at, or when no
    /// thread can be started.
    pub fn open_to_read(root: &Path) -> Result<OsDisk, DiskError> {
        let shown = root.display().to_string();
        let root = root.canonicalize().map_err(|error| translate(&shown, &error))?;
        let syncer = Syncer::start().map_err(|error| translate(&shown, &error))?;
        Ok(OsDisk { root, syncer: Arc::new(syncer), is_writable: false })
    }

    /// The place of `path` below the root; refuses absolute paths and `..`.
    fn place(&self, path: &str) -> Result<PathBuf, DiskError> {
        let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        match inside {
            true => Ok(self.root.join(path)),
            false => Err(DiskError::Failed {
                path: path.to_owned(),
                reason: "the path is absolute or leaves the disk's root".to_owned(),
            }),
        }
    }

    /// The place of `path` where it may be changed.
    fn place_to_change(&self, path: &str) -> Result<PathBuf, DiskError> {
        match self.is_writable {
            true => self.place(path),
            false => Err(DiskError::Failed {
                path: path.to_owned(),
                reason: "the disk was opened to be read".to_owned(),
            }),
        }
    }

    fn make_parents(&self, path: &str, place: &Path) -> Result<(), DiskError> {
        match place.parent() {
            Some(parent) if parent != self.root => {
                fs::create_dir_all(parent).map_err(|error| translate(path, &error))
            }
            _ => Ok(()),
        }
    }

    fn handle(&self, path: &str, file: fs::File, length: u64) -> Arc<dyn File> {
        Arc::new(OsFile {
            path: Arc::from(path),
            file: Arc::new(file),
            length: AtomicU64::new(length),
            appending: Mutex::new(()),
            unsynced: Unsynced::default(),
            syncer: self.syncer.clone(),
        })
    }
}

impl Disk for OsDisk {
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let place = self.place_to_change(path)?;
        self.make_parents(path, &place)?;
        let file = open_quietly(OpenOptions::new().read(true).write(true).create_new(true), &place)
            .map_err(|error| translate(path, &error))?;
        Ok(self.handle(path, file, 0))
    }

    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let place = self.place(path)?;
        let file = open_quietly(OpenOptions::new().read(true).write(self.is_writable), &place)
            .map_err(|error| translate(path, &error))?;
        let length = file.metadata().map_err(|error| translate(path, &error))?.len();
        Ok(self.handle(path, file, length))
    }

    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        let metadata = fs::metadata(self.place(path)?).map_err(|error| translate(path, &error))?;
        Ok(FileStat { identity: (metadata.dev(), metadata.ino()), length: metadata.len() })
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let (source, target) = (self.place_to_change(from)?, self.place_to_change(to)?);
        self.make_parents(to, &target)?;
        fs::rename(source, target).map_err(|error| translate(from, &error))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        fs::remove_file(self.place_to_change(path)?).map_err(|error| translate(path, &error))
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        let entries = match fs::read_dir(self.place(directory)?) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(translate(directory, &error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| translate(directory, &error))?;
            // A name that is not UTF-8 cannot be one of ours; shown lossily, it still counts as foreign.
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        let opened = self
            .place(directory)
            .and_then(|place| fs::File::open(place).map_err(|error| translate(directory, &error)));
        match opened {
            Ok(file) => self.syncer.sync(Arc::from(directory), Arc::new(file), Unsynced::default()),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        let place = self.place_to_change(path)?;
        self.make_parents(path, &place)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(place)
            .map_err(|error| translate(path, &error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Box::new(file)),
            Err(Errno::WOULDBLOCK) => Err(DiskError::Locked { path: path.to_owned() }),
            Err(errno) => Err(translate(path, &errno.into())),
        }
    }

    fn available_bytes(&self) -> u64 {
        // A file system that cannot tell is taken to be full only when it says so at a write.
        rustix::fs::statvfs(&self.root).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn total_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs(&self.root).ok()?;
        Some(stat.f_blocks.saturating_mul(stat.f_frsize))
    }

    fn mappings_left(&self) -> usize {
        let descriptors = rustix::process::getrlimit(Resource::Nofile).current;
        let for_mappings =
            descriptors.map_or(usize::MAX, |all| usize::try_from(all / 2).unwrap_or(usize::MAX));
        guard::MAPPINGS_MAX.min(for_mappings).saturating_sub(guard::taken())
    }
}

/// Lets this process open as many files as the system allows it: each mapped file has a descriptor, and the limit that
/// processes begin with is often 1,024. Returns how many it may open now; `None` is no limit.
pub fn raise_descriptor_limit() -> Option<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // What the system does not give is missed, and named, where files are mapped.
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    rustix::process::getrlimit(Resource::Nofile).current
}

/// Opens a file whose reads leave no trace. Noting when a file was read last is a change of its inode, and the first
/// read after each append would wait for the journal with it, also where it does not wait for bytes.
fn open_quietly(options: &OpenOptions, place: &Path) -> std::io::Result<fs::File> {
    let file = options.open(place)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    match rustix::fs::fcntl_setfl(&file, flags | OFlags::NOATIME) {
        // Only who owns a file may do that; a file can be read without.
        Ok(()) | Err(Errno::PERM) => Ok(file),
        Err(errno) => Err(errno.into()),
    }
}

/// One open file. Its length is kept here: nobody else may write to it.
struct OsFile {
    path: Arc<str>,
    file: Arc<fs::File>,
    /// Bytes that the file has, parts of refused appends included. Changes only under `appending`.
    length: AtomicU64,
    appending: Mutex<()>,
    /// Why bytes of it may never be on the device.
    unsynced: Unsynced,
    syncer: Arc<Syncer>,
}

impl File for OsFile {
    fn append(&self, bytes: &[u8]) -> Result<u64, DiskError> {
        let _appending = self.appending.lock();
        let start = self.length.load(Ordering::Acquire);
        let mut end = start;
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.file.write_at(rest, end) {
                Ok(0) => return Err(DiskError::Full),
                Ok(count) => {
                    end += count as u64;
                    rest = &rest[count..];
                    self.length.store(end, Ordering::Release);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(translate(&self.path, &error)),
            }
        }
        Ok(start)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        if !waiting::may_wait()
            && let Some(read) = self.read_from_memory(offset, buffer)
        {
            return read;
        }
        self.read_from_device(offset, buffer)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        self.syncer.sync(self.path.clone(), self.file.clone(), self.unsynced.clone())
    }

    fn truncate(&self, length: u64) -> Result<(), DiskError> {
        let _appending = self.appending.lock();
        self.file.set_len(length).map_err(|error| translate(&self.path, &error))?;
        self.length.store(length, Ordering::Release);
        Ok(())
    }

    fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    fn map(&self) -> Result<Arc<dyn Mapping>, DiskError> {
        Ok(Arc::new(OsMapping::new(self.path.clone(), self.file.clone())?))
    }

    fn drop_cached(&self, range: Range<u64>) {
        let start = range.start.saturating_sub(DROP_AGAIN_BYTES);
        let (Ok(at), Ok(bytes)) = (i64::try_from(range.start), i64::try_from(range.end - range.start)) else {
            return;
        };
        // SAFETY: the descriptor is open as long as `self.file` is. Whatever the system answers, bytes stay as they are.
        unsafe { libc::sync_file_range(self.file.as_raw_fd(), at, bytes, libc::SYNC_FILE_RANGE_WRITE) };
        // Only what has been written leaves memory; so what was asked for before is asked for again.
        let length = std::num::NonZeroU64::new(range.end - start);
        let _ = rustix::fs::fadvise(&*self.file, start, length, rustix::fs::Advice::DontNeed);
    }

    fn read_in_passing(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let passing = Passing::begin(&self.file, offset, buffer.len() as u64);
        let read = self.read_from_device(offset, buffer);
        passing.end();
        read
    }
}

impl OsFile {
    /// Reads, and waits for the device where it has to.
    fn read_from_device(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(translate(&self.path, &error)),
            }
        }
        Ok(filled)
    }

    /// Reads what the page cache has, all of it or nothing; `None` where the file system cannot tell.
    fn read_from_memory(&self, offset: u64, buffer: &mut [u8]) -> Option<Result<usize, DiskError>> {
        if waiting::is_refused() {
            return Some(Err(waiting::refuse()));
        }
        let mut filled = 0;
        while filled < buffer.len() {
            let mut rest = [IoSliceMut::new(&mut buffer[filled..])];
            match rustix::io::preadv2(&*self.file, &mut rest, offset + filled as u64, ReadWriteFlags::NOWAIT)
            {
                // Linux 5.9 and 5.10 say so away from the end, too, of what is not in memory.
                Ok(0) if offset + (filled as u64) < self.length() => return Some(Err(waiting::refuse())),
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Some(Err(waiting::refuse())),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return None,
                Err(errno) => return Some(Err(translate(&self.path, &errno.into()))),
            }
        }
        Some(Ok(filled))
    }
}

/// What the operating system said, in this port's words.
pub(crate) fn translate(path: &str, error: &std::io::Error) -> DiskError {
    match error.kind() {
        ErrorKind::NotFound => DiskError::NotFound { path: path.to_owned() },
        ErrorKind::AlreadyExists => DiskError::Exists { path: path.to_owned() },
        // A file that may not grow (`ulimit -f`) is as full as a disk, and may have room again later.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => DiskError::Full,
        _ => DiskError::Failed { path: path.to_owned(), reason: error.to_string() },
    }
}
