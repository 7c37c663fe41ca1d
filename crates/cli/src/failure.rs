//! What a command says when it cannot do what it was asked: what happened, why, and what to do next.

use client::ClientError;
use thiserror::Error;

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The cluster refused or could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The operating system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// Something else, said in full.
    #[error("{0}")]
    Other(String),
}

impl CliError {
    /// An operating-system error with what was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> CliError {
        let what = what.into();
        move |error| CliError::Io { what, error }
    }

    /// 2, always: 1 is an answer, not a failure.
    pub(crate) fn exit_code(&self) -> u8 {
        2
    }
}

impl From<String> for CliError {
    fn from(message: String) -> Self {
        CliError::Other(message)
    }
}
