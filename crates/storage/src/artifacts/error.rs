//! Why an artifact cannot be opened or read.

use runtime::DiskError;
use thiserror::Error;

use super::format::Digest;
use super::manifest::ManifestError;

/// Why a key cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Bytes are not those that were built. Nobody knows whether the key is there.
    #[error("chunk {chunk} is corrupt: a checksum does not match")]
    Corrupt {
        /// The chunk.
        chunk: Digest,
    },
    /// The chunk of the key's slice is not on this disk.
    #[error("chunk {chunk} is not here")]
    NotHere {
        /// The chunk.
        chunk: Digest,
    },
    /// The disk refused, or reading would wait ([`DiskError::WouldWait`]).
    #[error("chunk {chunk}: {error}")]
    Disk {
        /// The chunk.
        chunk: Digest,
        /// What the disk said.
        error: DiskError,
    },
}

/// Why an artifact cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Its manifest is none.
    #[error("the manifest cannot be read: {0}")]
    Manifest(#[from] ManifestError),
    /// A chunk is not what its manifest says.
    #[error("chunk {chunk} is damaged: {what}")]
    Chunk {
        /// The chunk.
        chunk: Digest,
        /// What is wrong.
        what: String,
    },
    /// A delta is not what its manifest says, or does not lead to the chunk that it makes.
    #[error("delta {delta} is damaged: {what}")]
    Delta {
        /// The delta.
        delta: Digest,
        /// What is wrong.
        what: String,
    },
    /// The disk refused.
    #[error("{error}")]
    Disk {
        /// At which chunk; `None` at the manifest.
        chunk: Option<Digest>,
        /// What it said.
        error: DiskError,
    },
}
