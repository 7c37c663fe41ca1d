//! The service from a directory: for the processes of one machine, with nothing to install and no server.
//!
//! ```text
//!  process A                      directory                      process B
//!  session ─► thread ─ lock ─► coordination.log ◄─ lock ─ thread ◄─ session
//!     holds sessions/<a>                               holds sessions/<b>
//! ```
//!
//! Every session keeps the whole tree in memory and has a thread that reads what others append to the log, and
//! appends itself, under the directory's lock. A write is durable before it is answered. Ephemeral documents belong
//! to whoever holds a locked file, so they are gone for every reader as soon as the process is, however it died.
//!
//! Limits: all documents together fit into the memory of every process; the file system must support `flock` (no
//! network file systems).

#[cfg(test)]
mod crash;
mod directory;
mod log;
mod record;
mod shared;
mod worker;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{oneshot, watch};

use self::shared::{DirectoryView, Pending};
use self::worker::{Request, TurnKind};
use crate::tree::TreeChange;
use crate::{
    CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Expected, SessionId, Stat,
    Watch,
};

/// Requests of one session that may wait; more are refused, so that a hanging disk does not fill the memory.
const REQUESTS_WAITING_MAX: usize = 1024;

/// Why a directory cannot serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory holds something else.
    #[error(
        "{} is not a coordination directory: it contains {found:?}; choose an empty or a new directory", .directory.display()
    )]
    NotCoordination {
        /// The directory.
        directory: PathBuf,
        /// A name in it that is not ours, or whose content is not.
        found: String,
    },
    /// Another version of this program made it.
    #[error(
        "coordination directory {} has format {found}, this program understands {supported}; use the program that \
         made it", .directory.display()
    )]
    OtherFormat {
        /// The directory.
        directory: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        supported: u32,
    },
    /// We may not write there.
    #[error("coordination directory {} is not writable: {reason}", .path.display())]
    NotWritable {
        /// The directory or the file in it.
        path: PathBuf,
        /// What the operating system said.
        reason: String,
    },
    /// Valid records follow invalid bytes: the file was damaged, not merely cut off.
    #[error("coordination log {} is damaged at byte {offset}; restore the directory from a copy", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damage begins.
        offset: u64,
    },
    /// More sessions are open than the format allows.
    #[error("coordination directory {} has too many open sessions", .directory.display())]
    TooManySessions {
        /// The directory.
        directory: PathBuf,
    },
    /// The disk or the file system failed, or somebody holds the lock for too long.
    #[error("coordination directory {} failed: {reason}", .path.display())]
    Failed {
        /// The directory or the file in it.
        path: PathBuf,
        /// What the operating system said.
        reason: String,
    },
}

impl OpenError {
    fn failed(path: &Path, error: &io::Error) -> OpenError {
        let (path, reason) = (path.to_owned(), error.to_string());
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                OpenError::NotWritable { path, reason }
            }
            _ => OpenError::Failed { path, reason },
        }
    }

    fn damaged(path: &Path, offset: u64) -> OpenError {
        OpenError::Damaged { path: path.to_owned(), offset }
    }
}

/// One session with the documents of a directory.
///
/// Any number of sessions, of any number of processes on one machine, share a directory.
pub struct EmbeddedSession {
    id: SessionId,
    directory: PathBuf,
    requests: SyncSender<Request>,
    ended: watch::Receiver<bool>,
}

impl EmbeddedSession {
    /// Opens a session; creates the directory (mind its parents' rights) and the documents' root where there is
    /// none. Ends the sessions of processes that died.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was changed in a directory that is not ours.
    pub async fn open(directory: &Path) -> Result<EmbeddedSession, OpenError> {
        let path = directory.to_owned();
        let (requests, waiting) = sync_channel(REQUESTS_WAITING_MAX);
        let (ended, is_ended) = watch::channel(false);
        let (opened, opening) = oneshot::channel();
        let thread = std::thread::Builder::new().name("coordination".into()).spawn(move || {
            match DirectoryView::open(&path) {
                Ok(shared) => {
                    // Whoever gave up waiting dropped the other end of the requests as well.
                    let _ = opened.send(Ok(shared.session));
                    worker::run(shared, &waiting, &ended);
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        });
        thread.map_err(|error| OpenError::failed(directory, &error))?;
        let gone = || OpenError::failed(directory, &io::Error::other("the session's thread ended"));
        let id = opening.await.map_err(|_| gone())??;
        Ok(EmbeddedSession { id, directory: directory.to_owned(), requests, ended: is_ended })
    }

    /// Hands a request to the session's thread and awaits the answer.
    async fn request<T: Send + 'static>(
        &self,
        kind: TurnKind,
        operation: impl FnOnce(&mut DirectoryView, &mut Pending) -> Result<T, CoordinationError> + Send + 'static,
    ) -> Result<T, CoordinationError> {
        let (reply, answer) = oneshot::channel();
        let run = Box::new(move |begun: worker::Begun<'_>| {
            let result = begun.and_then(|(shared, pending)| operation(shared, pending));
            let finish: worker::Answer = Box::new(move |outcome| {
                // Whoever asked may have given up waiting.
                let _ = reply.send(outcome.and(result));
            });
            finish
        });
        match self.requests.try_send(Request { kind, run }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                let reason = format!("{REQUESTS_WAITING_MAX} requests already wait, which is the limit");
                return Err(CoordinationError::Unavailable { reason });
            }
            Err(TrySendError::Disconnected(_)) => return Err(CoordinationError::SessionLost),
        }
        match (kind, answer.await) {
            (_, Err(_)) if kind != TurnKind::Write => Err(CoordinationError::SessionLost),
            (_, Err(_)) => {
                Err(CoordinationError::Indeterminate { reason: "the session's thread ended".into() })
            }
            (TurnKind::Read | TurnKind::Watch, Ok(Err(CoordinationError::Indeterminate { reason }))) => {
                Err(CoordinationError::Unavailable { reason })
            }
            (_, Ok(answer)) => answer,
        }
    }

    /// Hands over a reading request, which a session that has ended is refused.
    async fn read<T: Send + 'static>(
        &self,
        kind: TurnKind,
        operation: impl FnOnce(&mut DirectoryView) -> Result<T, CoordinationError> + Send + 'static,
    ) -> Result<T, CoordinationError> {
        self.request(kind, move |shared, _| {
            shared.tree.check_session(shared.session)?;
            operation(shared)
        })
        .await
    }
}

#[async_trait]
impl CoordinationService for EmbeddedSession {
    fn session(&self) -> SessionId {
        self.id
    }

    fn session_timeout(&self) -> Duration {
        Duration::ZERO
    }

    async fn reopen(&self) -> Result<Arc<dyn CoordinationService>, CoordinationError> {
        match EmbeddedSession::open(&self.directory).await {
            Ok(session) => Ok(Arc::new(session)),
            Err(error) => Err(CoordinationError::Unavailable { reason: error.to_string() }),
        }
    }

    async fn create(
        &self,
        path: &DocumentPath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<DocumentPath, CoordinationError> {
        let path = path.clone();
        self.request(TurnKind::Write, move |shared, pending| {
            let change = shared.tree.plan_create(shared.session, &path, data, mode)?;
            let TreeChange::Created { path, .. } = &change else {
                unreachable!("creations are planned as such")
            };
            let path = path.clone();
            shared.apply(change, pending);
            Ok(path)
        })
        .await
    }

    async fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError> {
        let path = path.clone();
        self.read(TurnKind::Read, move |shared| shared.tree.get(&path)).await
    }

    async fn set(
        &self,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<Stat, CoordinationError> {
        let path = path.clone();
        self.request(TurnKind::Write, move |shared, pending| {
            let change = shared.tree.plan_set(shared.session, &path, data, expected)?;
            shared.apply(change, pending);
            Ok(shared.tree.stat(&path).expect("it was just set"))
        })
        .await
    }

    async fn delete(&self, path: &DocumentPath, expected: Expected) -> Result<(), CoordinationError> {
        let path = path.clone();
        self.request(TurnKind::Write, move |shared, pending| {
            let change = shared.tree.plan_delete(shared.session, &path, expected)?;
            shared.apply(change, pending);
            Ok(())
        })
        .await
    }

    async fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError> {
        let path = path.clone();
        self.read(TurnKind::Read, move |shared| shared.tree.children(&path)).await
    }

    async fn get_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Option<Document>, Watch), CoordinationError> {
        let path = path.clone();
        self.read(TurnKind::Watch, move |shared| {
            Ok((shared.tree.get(&path).ok(), shared.watches.watch_document(&path)))
        })
        .await
    }

    async fn children_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Vec<String>, Watch), CoordinationError> {
        let path = path.clone();
        self.read(TurnKind::Watch, move |shared| {
            Ok((shared.tree.children(&path)?, shared.watches.watch_list(&path)))
        })
        .await
    }

    async fn lost(&self) {
        // An error means that the session's thread is gone, and the session with it.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    async fn close(&self) -> Result<(), CoordinationError> {
        let closed = self.request(TurnKind::Write, |shared, pending| {
            worker::end_session(shared, pending);
            Ok(())
        });
        match closed.await {
            Err(CoordinationError::SessionLost) => Ok(()),
            other => other,
        }
    }
}
