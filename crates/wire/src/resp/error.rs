//! What is said of bytes that are no commands.

use thiserror::Error;

/// What [`RespError::Foreign`] calls HTTP.
pub const HTTP: &str = "HTTP";

/// Why the input is not the protocol. The connection cannot go on: answer `-ERR` and this text, then close it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RespError {
    /// The number of arguments is not a number, or over the limit.
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// The length of an argument is not a number, negative, or over the limit.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument does not start with a dollar sign.
    #[error("Protocol error: expected '$', got '{}'", shown(*got))]
    ExpectedBulk {
        /// What came instead.
        got: u8,
    },
    /// An argument is not followed by the end of a line where its length says.
    #[error("Protocol error: bulk does not end where its length says")]
    BulkEnd,
    /// An inline command has no end within its limit.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// An inline command opens a quote and does not close it, or goes on right after closing it.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// More arguments than a connection may send before it has authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulkLength,
    /// A longer argument than a connection may send before it has authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulkLength,
    /// All arguments together are over the limit.
    #[error("Protocol error: too big command, the limit is {bytes_max} bytes")]
    CommandTooBig {
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The peer speaks another protocol.
    #[error("Protocol error: this port speaks the Redis protocol, not {looks_like}")]
    Foreign {
        /// What its first bytes look like.
        looks_like: &'static str,
    },
    /// A reply is malformed (client side only).
    #[error("Protocol error: malformed reply")]
    Reply,
}

/// A byte as Redis shows it, but for what a terminal cannot.
fn shown(byte: u8) -> String {
    if byte == b' ' || byte.is_ascii_graphic() {
        char::from(byte).to_string()
    } else {
        byte.escape_ascii().to_string()
    }
}
