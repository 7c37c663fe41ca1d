//! What the coordination service can answer instead of doing what it was asked.

use thiserror::Error;

use crate::{DOCUMENT_BYTES_MAX, DocumentPath};

/// Why an operation did not succeed. Each method names those it can answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CoordinationError {
    /// There is no such document.
    #[error("there is no document {path}")]
    NoNode {
        /// The document.
        path: DocumentPath,
    },
    /// The document to create exists already.
    #[error("document {path} exists already")]
    NodeExists {
        /// The document.
        path: DocumentPath,
    },
    /// The document above the one to create does not exist.
    #[error("document {path} has no parent: create that first")]
    NoParent {
        /// The document to create.
        path: DocumentPath,
    },
    /// The document has another version than expected.
    #[error("document {path} was changed by somebody else: read it again")]
    BadVersion {
        /// The document.
        path: DocumentPath,
    },
    /// The document to delete has children.
    #[error("document {path} has children: delete them first")]
    NotEmpty {
        /// The document.
        path: DocumentPath,
    },
    /// The document above the one to create is ephemeral.
    #[error("document {path} cannot be created: its parent is ephemeral")]
    NoChildrenForEphemerals {
        /// The document to create.
        path: DocumentPath,
    },
    /// The document is over the limit.
    #[error("document {path} has {bytes} bytes, over the limit of {DOCUMENT_BYTES_MAX}")]
    TooLarge {
        /// The document.
        path: DocumentPath,
        /// Its size in bytes.
        bytes: usize,
    },
    /// The session has ended: its ephemeral documents are gone and it does nothing any more.
    #[error("the session with the coordination service has ended: open another one")]
    SessionLost,
    /// The service cannot be reached; the operation did not happen.
    #[error("the coordination service is unavailable: {reason}")]
    Unavailable {
        /// What failed.
        reason: String,
    },
    /// The service was lost during a write, which may or may not have happened, or happen yet.
    #[error("the coordination service did not confirm the write, which may have happened: {reason}")]
    Indeterminate {
        /// What failed.
        reason: String,
    },
}
