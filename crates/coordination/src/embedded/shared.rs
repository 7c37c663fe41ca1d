//! The documents of one directory as one session sees them: directory, log and tree together.

use std::io;
use std::path::Path;
use std::sync::Arc;

use runtime::DiskError;
use runtime::disk::os::OsDisk;

use tracing::{error, info};

use super::OpenError;
use super::directory::{Directory, Guard, Locks};
use super::log::{AppendError, Log, LogPlace};
use super::record::SESSIONS_MAX;
use crate::tree::{Tree, TreeChange};
use crate::watch::WatchRegistry;
use crate::{CoordinationError, Event, SessionId};

/// Changes of one turn, applied to the tree and not yet durable.
#[derive(Default)]
pub(super) struct Pending {
    changes: Vec<TreeChange>,
    events: Vec<Event>,
}

/// One session's view of the directory.
pub(super) struct DirectoryView {
    locks: Arc<dyn Locks>,
    log: Log,
    pub(super) tree: Tree,
    /// The tree is ahead of the log, because appending failed: it must be loaded before it is used.
    stale: bool,
    pub(super) session: SessionId,
    /// Held while the session lives.
    session_lock: Option<Guard>,
    pub(super) watches: WatchRegistry,
}

impl DirectoryView {
    /// Opens a directory of the operating system and a session in it.
    pub(super) fn open(path: &Path) -> Result<DirectoryView, OpenError> {
        let locks = Arc::new(Directory::open(path)?);
        let disk = OsDisk::open(path);
        let disk = disk.map_err(|error| OpenError::failed(path, &io::Error::other(error)))?;
        DirectoryView::open_place(&LogPlace { disk: Arc::new(disk), path: path.to_owned() }, locks)
    }

    /// Opens a session in a directory of any disk.
    pub(super) fn open_place(place: &LogPlace, locks: Arc<dyn Locks>) -> Result<DirectoryView, OpenError> {
        let path = &place.path;
        let failed = |error: io::Error| OpenError::failed(path, &error);
        let held = locks.hold().map_err(failed)?;
        let (mut log, mut tree) = Log::open(place)?;
        let session_count = tree.sessions().count();
        let ended: Vec<SessionId> =
            tree.sessions().map(|(session, _)| session).filter(|id| !locks.session_lives(*id)).collect();
        if session_count - ended.len() >= SESSIONS_MAX {
            return Err(OpenError::TooManySessions { directory: path.clone() });
        }
        let first = tree.order() + 1;
        let mut changes: Vec<TreeChange> =
            ended.iter().map(|session| TreeChange::SessionEnded { session: *session }).collect();
        let session = SessionId(tree.next_session().0 + changes.len() as u64);
        let session_lock = locks.begin_session(session).map_err(failed)?;
        changes.push(TreeChange::SessionOpened { session });
        changes.iter().for_each(|change| tree.apply(change, &mut Vec::new()));
        log.append(first, changes).map_err(|error| match error {
            AppendError::Undone(error) | AppendError::Unknown(error) => failed(io::Error::other(error)),
        })?;
        ended.iter().for_each(|session| locks.forget_session(*session));
        log.fold(&tree)?;
        drop(held);
        let (session_lock, watches) = (Some(session_lock), WatchRegistry::default());
        Ok(DirectoryView { locks, log, tree, stale: false, session, session_lock, watches })
    }

    /// Whether the tree is what a locked reading would find.
    fn is_current(&self) -> Result<bool, DiskError> {
        Ok(!self.stale && self.log.is_current()? && self.dead_sessions().is_empty())
    }

    /// Sessions of other processes that died and left ephemeral documents behind.
    fn dead_sessions(&self) -> Vec<SessionId> {
        let suspects = self.tree.sessions().filter(|(id, owns)| *owns && *id != self.session);
        suspects.map(|(id, _)| id).filter(|id| !self.locks.session_lives(*id)).collect()
    }

    /// Runs `turn` on a tree that has everything that anybody was told, makes durable what it changes, and fires
    /// watches. A turn that only reads takes no lock when nothing happened since the last one.
    ///
    /// # Errors
    /// [`CoordinationError::Unavailable`] when nothing of the turn happened, [`CoordinationError::Indeterminate`]
    /// when nobody knows.
    pub(super) fn take_turn(
        &mut self,
        writes: bool,
        turn: impl FnOnce(&mut DirectoryView, &mut Pending),
    ) -> Result<(), CoordinationError> {
        let mut pending = Pending::default();
        if !writes && self.is_current().map_err(|error| unavailable(&error))? {
            turn(self, &mut pending);
            assert!(pending.changes.is_empty(), "a turn announced as reading wrote");
            return Ok(());
        }
        let held = self.locks.hold().map_err(|error| unavailable(&error))?;
        self.catch_up()?;
        self.end_dead_sessions()?;
        self.notice_own_end();
        let first = self.tree.order() + 1;
        turn(self, &mut pending);
        self.persist(first, pending)?;
        drop(held);
        self.notice_own_end();
        Ok(())
    }

    /// Comes before the turn, so that a watch set in the turn does not fire for what was gone when it was set.
    fn end_dead_sessions(&mut self) -> Result<(), CoordinationError> {
        let mut pending = Pending::default();
        let first = self.tree.order() + 1;
        let dead = self.dead_sessions();
        for session in &dead {
            self.apply(TreeChange::SessionEnded { session: *session }, &mut pending);
        }
        self.persist(first, pending)?;
        for session in dead {
            info!(session = session.0, "session of a dead process ended");
            self.locks.forget_session(session);
        }
        Ok(())
    }

    /// Applies a planned change, to be made durable at the end of the turn.
    pub(super) fn apply(&mut self, change: TreeChange, pending: &mut Pending) {
        self.tree.apply(&change, &mut pending.events);
        pending.changes.push(change);
    }

    fn catch_up(&mut self) -> Result<(), CoordinationError> {
        let caught_up = if self.stale { Ok(None) } else { self.log.catch_up(&mut self.tree) };
        match caught_up {
            Ok(Some(events)) => {
                events.iter().for_each(|event| self.watches.fire(event));
                Ok(())
            }
            Ok(None) => {
                let (log, tree) = self.log.reload().map_err(|error| unavailable(&error))?;
                if self.stale {
                    self.watches.fire_everything();
                } else {
                    self.watches.fire_differences(&self.tree, &tree);
                }
                (self.log, self.tree, self.stale) = (log, tree, false);
                Ok(())
            }
            Err(error) => {
                // A part may have been applied without its events.
                self.stale = true;
                Err(unavailable(&error))
            }
        }
    }

    fn persist(&mut self, first: u64, pending: Pending) -> Result<(), CoordinationError> {
        if pending.changes.is_empty() {
            return Ok(());
        }
        match self.log.append(first, pending.changes) {
            Ok(()) => {}
            Err(AppendError::Undone(error)) => {
                self.stale = true;
                return Err(unavailable(&error));
            }
            Err(AppendError::Unknown(error)) => {
                self.stale = true;
                error!(%error, "nobody knows whether the last coordination writes are on disk");
                return Err(CoordinationError::Indeterminate { reason: error.to_string() });
            }
        }
        pending.events.iter().for_each(|event| self.watches.fire(event));
        // What was asked is durable, so a failure of folding must not be reported as its failure.
        if let Err(error) = self.log.fold(&self.tree) {
            error!(%error, "the folded coordination log could not be loaded");
            self.stale = true;
        }
        Ok(())
    }

    /// Looks whether anything happened, so that watches fire.
    pub(super) fn poll(&mut self) -> Result<(), CoordinationError> {
        self.take_turn(false, |_, _| {})
    }

    /// Gives up what belongs to a session that has ended.
    fn notice_own_end(&mut self) {
        if self.session_lock.is_some() && !self.tree.has_session(self.session) {
            self.session_lock = None;
            self.locks.forget_session(self.session);
            self.watches = WatchRegistry::default();
        }
    }

    /// Whether the session has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.session_lock.is_none()
    }
}

fn unavailable(error: &dyn std::fmt::Display) -> CoordinationError {
    CoordinationError::Unavailable { reason: error.to_string() }
}
