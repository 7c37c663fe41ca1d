//! What the coordination service can answer instead of doing what it was asked.

use thiserror::Error;

use crate::{DOCUMENT_BYTES_MAX, DocumentPath};

/// Why an operation did not succeed. Each method names those it can answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CoordinationError {
    /// There is no such document.
    #[error("document {path} does not exist")]
    NoNode {
        /// The document.
        path: DocumentPath,
    },
    /// The document to create exists already.
    #[error("document {path} already exists")]
    NodeExists {
        /// The document.
        path: DocumentPath,
    },
    /// The document above the one to create does not exist.
    #[error("cannot create document {path}: its parent does not exist; create the parent first")]
    NoParent {
        /// The document to create.
        path: DocumentPath,
    },
    /// The document has another version than expected.
    #[error("cannot change document {path}: another session has changed it; read it again")]
    BadVersion {
        /// The document.
        path: DocumentPath,
    },
    /// The document to delete has children.
    #[error("cannot delete document {path}: it has children; delete them first")]
    NotEmpty {
        /// The document.
        path: DocumentPath,
    },
    /// The document above the one to create is ephemeral.
    #[error("cannot create document {path}: its parent is ephemeral")]
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
    /// The document may not be read or changed with the session's credentials, or without any.
    #[error(
        "permission denied for document {path}; use the credentials that created it, or change its ACL in ZooKeeper"
    )]
    PermissionDenied {
        /// The document.
        path: DocumentPath,
    },
    /// The session has ended: its ephemeral documents are gone and it does nothing any more.
    #[error("the session with the coordination service has expired: open another one")]
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
