//! Where answers are printed, and where it is remembered that they could not be.
//!
//! **Architecture Invariant:** nothing is printed but by what is here, since the standard macros panic when the reader
//! has gone away (`tontine export - 2>&1 | head`); clippy refuses them. All of stdout goes through [`Stdout`], which
//! remembers what could not be written: such a command has not status 0.

use std::io::{self, Write};
use std::process::ExitCode;

use parking_lot::Mutex;
use serde_json::Value;

use crate::failure::CliError;
use crate::text::Format;

/// A line on stdout. If it cannot be written, the command fails at its end.
macro_rules! answer {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        // It is remembered, and told at the end.
        let _ = writeln!($crate::output::Stdout, $($words)*);
    }};
}

/// A line on stderr. A reader that went away is no reason to stop.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Why the answer could not be written, the first time that it could not.
static UNWRITTEN: Mutex<Option<io::Error>> = Mutex::new(None);

/// Standard output. What it refuses is remembered for [`check`] and [`written`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stdout;

impl Stdout {
    fn noted<T>(result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            let code = error.raw_os_error();
            let same = code.map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            UNWRITTEN.lock().get_or_insert(same);
        }
        result
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Stdout::noted(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Stdout::noted(io::stdout().flush())
    }
}

/// Ends a command that prints on and on when nobody can read it any more.
pub(crate) fn check() -> Result<(), CliError> {
    // Only what was refused is of interest, and that is remembered.
    let _ = Stdout.flush();
    let unwritten = UNWRITTEN.lock().take();
    let what = "the answer could not be written to standard output; the command itself was carried out";
    unwritten.map_or(Ok(()), |error| Err(CliError::io(what)(error)))
}

/// The status of a command that was carried out: it failed if its answer could not be written. A reader that went away
/// ends the output quietly.
pub(crate) fn written(code: ExitCode) -> Result<ExitCode, CliError> {
    match check() {
        Err(error) if !error.is_unread() => Err(error),
        _ => Ok(code),
    }
}

/// Prints a line, or a document when JSON is wanted.
pub(crate) fn print(format: Format, document: &Value, text: impl FnOnce() -> String) {
    let line = match format {
        Format::Json => document.to_string(),
        Format::Text => text(),
    };
    answer!("{}", line.trim_end_matches('\n'));
}

/// How this program was called, for commands that people copy.
pub(crate) fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "tontine".to_owned())
}
