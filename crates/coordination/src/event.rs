//! What a watch tells: which path, and what happened to it.
//!
//! The tree says what each of its changes fires, and the registry of watches compares trees; so this lies below both.
//!
//! **Architecture Invariant:** it says that something changed, never what is there now: the watcher reads that.

use crate::DocumentPath;

/// What happened to a watched document or list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    /// The document was created.
    Created,
    /// The document was set.
    Changed,
    /// The document was deleted.
    Deleted,
    /// A document directly below was created or deleted.
    ChildrenChanged,
}

/// The first change after what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The watched path.
    pub path: DocumentPath,
    /// What happened. When a document was deleted and created again at once, this may be either.
    pub kind: EventKind,
}
