//! Why bytes do not decode.

use thiserror::Error;

use crate::error::ErrorCode;

/// Most elements of one list: keys of a multi-get, records of a page, versions of a set, entries of a vector.
/// Above every limit that a node grants, low enough that a list of the smallest elements stays cheap to decode.
pub(crate) const LIST_COUNT_MAX: usize = 1 << 16;

/// Why bytes are no message, set or record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The input ends inside a field.
    #[error("input ends in the middle of a field")]
    Truncated,
    /// The input goes on after its last field.
    #[error("{bytes} bytes follow the last field")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// No message has this kind.
    #[error("unknown kind of message {kind:#04x}")]
    UnknownKind {
        /// The first byte of the frame.
        kind: u8,
    },
    /// A set or record was written by another version of the format.
    #[error("unknown format of a version set {format:#04x}")]
    UnknownFormat {
        /// Its first byte.
        format: u8,
    },
    /// No error has this code.
    #[error("unknown error code {code}")]
    UnknownErrorCode {
        /// The code.
        code: u16,
    },
    /// A number is too large for its field, or longer than its shortest form.
    #[error("a number is out of range or not in its shortest form")]
    Number,
    /// A choice has a tag that names none of its variants.
    #[error("unknown tag {tag} for {what}")]
    UnknownTag {
        /// Which choice.
        what: &'static str,
        /// The tag.
        tag: u8,
    },
    /// A text field is not UTF-8.
    #[error("a text is not UTF-8")]
    NotText,
    /// A list has more elements than any node accepts.
    #[error("list of {count} elements is over the limit of {LIST_COUNT_MAX}")]
    ListTooLong {
        /// Its announced length.
        count: u64,
    },
    /// A version set breaks its own laws: unsorted, a dot outside its vector, a count of zero.
    #[error("a version set breaks its invariants")]
    Invariant,
    /// What a node says of itself is no report.
    #[error("what a node says of itself is no report: {reason}")]
    Report {
        /// Why not.
        reason: String,
    },
}

impl DecodeError {
    /// The error that a node answers when a request does not decode.
    pub fn code(&self) -> ErrorCode {
        match self {
            DecodeError::UnknownKind { .. } => ErrorCode::UnknownRequest,
            DecodeError::ListTooLong { .. } => ErrorCode::TooManyKeys,
            _ => ErrorCode::Malformed,
        }
    }
}
