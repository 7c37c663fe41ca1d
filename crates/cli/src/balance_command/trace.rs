//! A recorded trace of loads: a line that says what it is, and then one line for each look, all of them JSON.
//!
//! **Architecture Invariant:** a line is whole or it is not there: what ends without a line break is left out, and said.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use model::balance::Settings;
use protocol::rebalance::replay::ReplayLook;
use serde::{Deserialize, Serialize};

use crate::failure::CliError;
use crate::output::program;

/// What the first line says of itself.
const KIND: &str = "tontine balance";
/// The form of the lines; a later one may mean something else.
const FORMAT: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Always the same word, so that another file is known.
    trace: String,
    /// The form of the lines that follow.
    format: u32,
    /// The cluster.
    pub(super) cluster: String,
    /// When it began, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// The autopilot's settings at that time.
    #[serde(default)]
    pub(super) settings: Settings,
}

impl Head {
    pub(super) fn new(cluster: String, at_ms: u64, settings: Settings) -> Head {
        Head { trace: KIND.to_owned(), format: FORMAT, cluster, at_ms, settings }
    }
}

/// The form alone: what else is there, a later one may have changed.
#[derive(Deserialize)]
struct TraceForm {
    trace: String,
    format: u32,
}

/// A trace that is written.
pub(super) struct TraceWriter {
    path: PathBuf,
    file: File,
    /// Bytes that were written.
    pub(super) bytes: u64,
}

impl TraceWriter {
    /// A file that was not there.
    pub(super) fn create(path: &Path, head: &Head) -> Result<TraceWriter, CliError> {
        let opened = File::options().write(true).create_new(true).open(path);
        let file = match opened {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(CliError::Usage(format!(
                    "{} already exists, and a trace replaces no file; choose another name",
                    path.display()
                )));
            }
            opened => opened.map_err(CliError::io(format!("cannot write {}", path.display())))?,
        };
        let mut writer = TraceWriter { path: path.to_owned(), file, bytes: 0 };
        writer.line(head)?;
        Ok(writer)
    }

    /// Writes a line in one piece.
    pub(super) fn line(&mut self, line: &impl Serialize) -> Result<(), CliError> {
        let mut text = serde_json::to_vec(line)
            .map_err(|error| CliError::Other(format!("a line of the trace: {error}")))?;
        text.push(b'\n');
        let failed = || CliError::io(format!("cannot write {}", self.path.display()));
        self.file.write_all(&text).map_err(failed())?;
        self.file.flush().map_err(failed())?;
        self.bytes += text.len() as u64;
        Ok(())
    }
}

/// A trace that is read.
pub(super) struct TraceReader {
    path: PathBuf,
    lines: BufReader<File>,
    number: u64,
    /// What the first line says.
    pub(super) head: Head,
    /// Whether the last line was cut.
    pub(super) is_cut: bool,
}

impl TraceReader {
    /// Opens a trace and reads its first line.
    pub(super) fn open(path: &Path) -> Result<TraceReader, CliError> {
        let shown = path.display();
        let file = File::open(path).map_err(CliError::io(format!("cannot read {shown}")))?;
        let mut lines = BufReader::new(file);
        let first = whole_line(&mut lines).map_err(CliError::io(format!("cannot read {shown}")))?;
        let record = format!("record one with `{} balance record FILE`", program());
        let text = match &first {
            Line::End => return Err(CliError::Other(format!("{shown} is empty; {record}"))),
            Line::Cut(text) | Line::Whole(text) => text,
        };
        let foreign = || CliError::Other(format!("{shown} is no trace of loads: {record}"));
        let form: TraceForm = serde_json::from_slice(text).map_err(|_| foreign())?;
        if form.trace != KIND {
            return Err(foreign());
        }
        if form.format != FORMAT {
            return Err(CliError::Other(format!(
                "{shown} has the format {}, and this program reads {FORMAT}: use the version of tontine that recorded it, or \
                 {record}",
                form.format
            )));
        }
        let head = serde_json::from_slice(text)
            .map_err(|error| CliError::Other(format!("{shown}, line 1 is damaged ({error}); {record}")))?;
        Ok(TraceReader { path: path.to_owned(), lines, number: 1, head, is_cut: false })
    }

    /// The next look; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<ReplayLook>, CliError> {
        let shown = self.path.display();
        let line = whole_line(&mut self.lines).map_err(CliError::io(format!("cannot read {shown}")))?;
        self.number += 1;
        let text = match line {
            Line::End => return Ok(None),
            Line::Cut(_) => {
                self.is_cut = true;
                return Ok(None);
            }
            Line::Whole(text) => text,
        };
        let look = serde_json::from_slice(&text).map_err(|error| {
            let number = self.number;
            CliError::Other(format!(
                "{shown}, line {number} is damaged ({error}); `head -n {} {shown} > FILE` keeps what is before it",
                number - 1
            ))
        });
        look.map(Some)
    }
}

enum Line {
    Whole(Vec<u8>),
    /// It does not end with a line break.
    Cut(Vec<u8>),
    End,
}

fn whole_line(lines: &mut BufReader<File>) -> std::io::Result<Line> {
    let mut text = Vec::new();
    lines.read_until(b'\n', &mut text)?;
    Ok(match text.last() {
        None => Line::End,
        Some(b'\n') => Line::Whole(text),
        Some(_) => Line::Cut(text),
    })
}
