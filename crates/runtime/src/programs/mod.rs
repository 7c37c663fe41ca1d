//! Child processes that are spoken to line by line.
//!
//! A program gets lines on its standard input and gives lines on its standard output. What it writes to standard error is
//! for people, and goes to whoever started it.
//!
//! Must never: leave a program behind. Dropping one closes its input, then asks it to end, then ends it.
//! Must never: end what a program has started. The machines of an adapter outlive the adapter.

pub mod os;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::BoxFuture;

/// Longest line that is read or written, in bytes, without its end.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Is told each line of a program's standard error.
pub type ErrorLines = Arc<dyn Fn(&str) + Send + Sync>;

/// Why a program cannot be spoken to.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProgramError {
    /// Its command line is empty.
    NoCommand,
    /// There is no such program.
    NotFound {
        /// As the command line names it.
        program: String,
    },
    /// The operating system refused to start it.
    NotStarted {
        /// As the command line names it.
        program: String,
        /// What the system said.
        reason: String,
    },
    /// It has ended, or has closed its output.
    Ended {
        /// How, as far as that is known.
        how: String,
    },
    /// A line was longer than [`LINE_BYTES_MAX`].
    LineTooLong,
    /// A line is no UTF-8.
    NotText,
    /// The operating system refused to read or write.
    Refused {
        /// What the system said.
        reason: String,
    },
}

impl std::fmt::Display for ProgramError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProgramError::NoCommand => write!(formatter, "its command line is empty"),
            ProgramError::NotFound { program } => write!(formatter, "there is no program {program}"),
            ProgramError::NotStarted { program, reason } => {
                write!(formatter, "program {program} could not be started: {reason}")
            }
            ProgramError::Ended { how } => write!(formatter, "it has ended ({how})"),
            ProgramError::LineTooLong => {
                write!(formatter, "it wrote a line of more than {LINE_BYTES_MAX} bytes")
            }
            ProgramError::NotText => write!(formatter, "it wrote a line that is not UTF-8"),
            ProgramError::Refused { reason } => {
                write!(formatter, "its input or output failed: {reason}")
            }
        }
    }
}

impl std::error::Error for ProgramError {}

/// Where programs are started.
pub trait Programs: Send + Sync {
    /// Starts one with these words, and these variables beside those of this process.
    ///
    /// # Errors
    /// [`ProgramError::NoCommand`], [`ProgramError::NotFound`], [`ProgramError::NotStarted`].
    fn start(
        &self,
        command: &[String],
        environment: &BTreeMap<String, String>,
        told: ErrorLines,
    ) -> Result<Box<dyn Program>, ProgramError>;
}

/// A program that runs. Dropping it ends it.
pub trait Program: Send {
    /// Gives it a line, without its end. Not cancel safe: drop the program where this is given up half way.
    ///
    /// # Errors
    /// When the line is too long, or the program does not read any more.
    fn send<'a>(&'a mut self, line: &'a str) -> BoxFuture<'a, Result<(), ProgramError>>;

    /// The next line that it writes, without its end. Cancel safe.
    ///
    /// # Errors
    /// [`ProgramError::Ended`] after the last line. After [`ProgramError::LineTooLong`] drop the program.
    fn next(&mut self) -> BoxFuture<'_, Result<String, ProgramError>>;
}
