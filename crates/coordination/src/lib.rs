//! The coordination service: a small tree of agreed documents, with watches and sessions.
//!
//! It holds what a cluster must agree on (who is alive, the cluster document, who is headmaster), never user data,
//! and no request waits for it: nodes keep a local copy of what they need.
//!
//! The trait promises what Apache ZooKeeper promises, no more, so that ZooKeeper can stand behind it:
//! - every write is atomic and all sessions see all writes in one order;
//! - one session's operations take effect in the order in which they were started;
//! - a session may read slightly stale documents, but never goes backwards; after a watch fired it reads the change;
//! - ephemeral documents vanish when their session ends.
//!
//! [`memory`] serves simulation and tests; [`embedded`] serves the processes of one machine from a directory;
//! [`zookeeper`] serves those of many machines from a ZooKeeper ensemble. [`address`] opens the one that is meant.
//! [`conformance`] is the suite that every implementation must pass; [`documents`] knows what Tontine keeps where;
//! [`migrate`] moves all of it to another service.
//!
//! **Architecture Invariant:** nothing here knows requests, quorums or storage. Only `embedded` touches files, only
//! `zookeeper` the network.

pub mod address;
pub mod conformance;
pub mod documents;
pub mod embedded;
mod error;
mod event;
pub mod memory;
pub mod migrate;
mod path;
pub mod registrations;
mod tree;
mod watch;
pub mod zookeeper;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use error::CoordinationError;
pub use event::{Event, EventKind};
pub use path::{DocumentPath, PathError};
pub use watch::{Watch, WatchTrigger};

/// Largest document in bytes: ZooKeeper's packet limit of 1 MiB, less room for the path and the packet itself.
pub const DOCUMENT_BYTES_MAX: usize = 1024 * 1024 - 4 * 1024;

/// Longest path in bytes, so that a document and its path fit into one ZooKeeper packet.
pub const PATH_BYTES_MAX: usize = 1024;

/// How often a document was set since it was created: 0 at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DocumentVersion(pub u32);

/// When a document was created, relative to every other document of the service: later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CreationOrder(pub u64);

/// One session. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {:x}", self.0)
    }
}

/// What is known about a document beside its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// How often it was set.
    pub version: DocumentVersion,
    /// When it was created; differs when it was deleted and created again.
    pub created: CreationOrder,
    /// The session that it dies with, if it is ephemeral.
    pub owner: Option<SessionId>,
}

/// A document as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its content.
    pub data: Bytes,
    /// What is known about it.
    pub stat: Stat,
}

/// How long a new document lives and how it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// Until it is deleted.
    Persistent,
    /// Until it is deleted or its session ends. Cannot have children.
    Ephemeral,
    /// Persistent; ten digits are appended to the name, greater than those of every sibling created so before.
    PersistentSequential,
    /// Ephemeral; ten digits are appended to the name, greater than those of every sibling created so before.
    EphemeralSequential,
}

impl CreateMode {
    /// Whether the document dies with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }

    /// Whether a number is appended to the name.
    pub fn is_sequential(self) -> bool {
        matches!(self, CreateMode::PersistentSequential | CreateMode::EphemeralSequential)
    }
}

/// The condition under which a write takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Whatever is there.
    Any,
    /// Only while the document has this version.
    Version(DocumentVersion),
}

/// One session with the coordination service.
///
/// Every method may answer [`CoordinationError::SessionLost`] once the session has ended (open another one), and
/// [`CoordinationError::Unavailable`] while the service cannot be reached (try again). Writes may also answer
/// [`CoordinationError::Indeterminate`]: they may or may not have happened, or happen yet.
///
/// Dropping the last reference ends the session, as [`close`](CoordinationService::close) does, but without saying
/// when.
#[async_trait]
pub trait CoordinationService: Send + Sync {
    /// This session's id; 0 while it is still being opened, when it owns no document.
    fn session(&self) -> SessionId;

    /// How long a session may outlive its process, when nobody closed it: its ephemeral documents stay that long. Zero
    /// where the end of the process is the end of the session.
    fn session_timeout(&self) -> Duration;

    /// Opens another session with the same service, for whoever lost this one. Nothing passes from one to the other.
    ///
    /// # Errors
    /// `Unavailable` while the service cannot be reached; `NoNode` of the root where it can, and holds nothing at all.
    async fn reopen(&self) -> Result<Arc<dyn CoordinationService>, CoordinationError>;

    /// Creates a document and returns its path, which differs from `path` when `mode` is sequential.
    ///
    /// # Errors
    /// `NodeExists`, `NoParent`, `NoChildrenForEphemerals`, `TooLarge`.
    async fn create(
        &self,
        path: &DocumentPath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<DocumentPath, CoordinationError>;

    /// Reads a document.
    ///
    /// # Errors
    /// `NoNode`.
    async fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError>;

    /// Replaces a document's content; its version grows by one.
    ///
    /// # Errors
    /// `NoNode`, `BadVersion`, `TooLarge`.
    async fn set(
        &self,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<Stat, CoordinationError>;

    /// Deletes a document that has no children. The root cannot be deleted (`NotEmpty`).
    ///
    /// # Errors
    /// `NoNode`, `BadVersion`, `NotEmpty`.
    async fn delete(&self, path: &DocumentPath, expected: Expected) -> Result<(), CoordinationError>;

    /// Names of the documents directly below, sorted.
    ///
    /// # Errors
    /// `NoNode`.
    async fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError>;

    /// Reads a document (`None` when there is none) and watches it: the watch fires once, on the first creation,
    /// change or deletion after what was read. No change falls between the reading and the watching.
    async fn get_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Option<Document>, Watch), CoordinationError>;

    /// Lists the documents directly below, sorted, and watches the list: the watch fires once, when one is created
    /// or deleted after what was read, or when the parent itself is deleted.
    ///
    /// # Errors
    /// `NoNode`.
    async fn children_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Vec<String>, Watch), CoordinationError>;

    /// Completes when the session has ended, for whatever reason. Its ephemeral documents are gone or about to go.
    async fn lost(&self);

    /// Ends the session: its ephemeral documents are gone when this returns `Ok`. Closing twice is harmless.
    ///
    /// # Errors
    /// `SessionLost` when it had ended before, and its documents may be about to go. `Indeterminate` when the service
    /// did not confirm it: they go at the latest when the session expires.
    async fn close(&self) -> Result<(), CoordinationError>;
}
