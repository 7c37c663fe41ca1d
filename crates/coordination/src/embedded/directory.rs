//! The directory that the processes share: its lock, and the locks by which sessions prove that they live.
//!
//! ```text
//! coordination.log       the documents
//! coordination.log.next  a snapshot being written
//! lock                   held while somebody reads or writes the log
//! sessions/<id>          held by the session for as long as its process lives
//! ```
//!
//! Locks are the kernel's (`flock`), bound to an open file: they end with the process however it ends, a reused
//! process id cannot inherit them, and two services of one process exclude each other like two processes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::OpenError;
use super::log::{LOG_NAME, NEXT_NAME, check_header};
use crate::SessionId;

const LOCK_NAME: &str = "lock";
const SESSIONS_NAME: &str = "sessions";

/// How long somebody else may hold the lock. Holders keep it for a few syncs; longer means a stopped process or a
/// disk that hangs.
const LOCK_TIME_MAX: Duration = Duration::from_secs(10);

/// The pause between two attempts grows from the first to the second: short against a sync, long against a system
/// call.
const LOCK_RETRY_MIN: Duration = Duration::from_micros(100);
const LOCK_RETRY_MAX: Duration = Duration::from_millis(5);

/// Held until it is dropped, or its process ends.
pub(super) type Guard = Box<dyn Send>;

/// The locks of a directory. They are no part of the disk port, because a session's lock is looked at by those who do
/// not want it; tests of crashes have their own locks.
pub(super) trait Locks: Send + Sync {
    /// Waits until nobody else reads or writes the log, and keeps others away.
    fn hold(&self) -> io::Result<Guard>;

    /// By its guard a new session proves that it lives.
    fn begin_session(&self, session: SessionId) -> io::Result<Guard>;

    /// Whether a session's process lives. When in doubt it does.
    fn session_lives(&self, session: SessionId) -> bool;

    /// A session has ended: nobody will ask for it any more.
    fn forget_session(&self, session: SessionId);
}

/// A directory that was checked, and whose lock can be taken.
pub(super) struct Directory {
    path: PathBuf,
    lock: Arc<File>,
}

struct HeldLock {
    lock: Arc<File>,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // Fails only for a descriptor that is none; closing the file would free the lock as well.
        let _ = flock(&*self.lock, FlockOperation::Unlock);
    }
}

impl Directory {
    /// Checks a directory, creating it where there is none. Touches nothing in a directory that is not ours.
    pub(super) fn open(path: &Path) -> Result<Directory, OpenError> {
        create(path).map_err(|error| OpenError::failed(path, &error))?;
        check(path)?;
        let failed = |error: io::Error| OpenError::failed(path, &error);
        let lock =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path.join(LOCK_NAME));
        let lock = lock.map_err(failed)?;
        DirBuilder::new().recursive(true).create(path.join(SESSIONS_NAME)).map_err(failed)?;
        Ok(Directory { path: path.to_owned(), lock: Arc::new(lock) })
    }

    fn session_path(&self, session: SessionId) -> PathBuf {
        self.path.join(SESSIONS_NAME).join(format!("{:016x}", session.0))
    }
}

impl Locks for Directory {
    /// Waits at most [`LOCK_TIME_MAX`].
    fn hold(&self) -> io::Result<Guard> {
        let start = Instant::now();
        let mut pause = LOCK_RETRY_MIN;
        loop {
            match flock(&*self.lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Box::new(HeldLock { lock: self.lock.clone() })),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if start.elapsed() > LOCK_TIME_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "another process holds the coordination directory's lock and does not release it",
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOCK_RETRY_MAX);
        }
    }

    /// Makes a file that is locked for as long as it stays open.
    fn begin_session(&self, session: SessionId) -> io::Result<Guard> {
        let path = self.session_path(session);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(file))
    }

    fn session_lives(&self, session: SessionId) -> bool {
        match File::open(self.session_path(session)) {
            Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    fn forget_session(&self, session: SessionId) {
        // A file left behind costs nothing: its session's id is never given again.
        let _ = fs::remove_file(self.session_path(session));
    }
}

/// Creates a directory and makes every new name on the way durable.
fn create(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => Err(error),
        _ => File::open(parent)?.sync_all(),
    }
}

/// Refuses a directory that holds something else, or another format of ours.
fn check(path: &Path) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::failed(path, &error);
    match OpenOptions::new().read(true).write(true).open(path.join(LOG_NAME)) {
        Ok(log) => {
            let mut header = Vec::new();
            log.take(64).read_to_end(&mut header).map_err(failed)?;
            return check_header(path, &header);
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Err(_) => {}
    }
    for entry in fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if ![LOCK_NAME, SESSIONS_NAME, NEXT_NAME, LOG_NAME].iter().any(|ours| name == *ours) {
            let found = name.to_string_lossy().into_owned();
            return Err(OpenError::NotCoordination { directory: path.to_owned(), found });
        }
    }
    Ok(())
}
