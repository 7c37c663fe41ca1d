//! Lines of bounded length, and the position after each.

use std::io::{BufRead, Read};

use super::record::{Input, Position, RECORD_BYTES_MAX, ReadError};

/// The mark of UTF-8 at the start of a file.
pub(super) const BOM: &[u8] = b"\xef\xbb\xbf";

/// Reads lines.
pub(super) struct Lines {
    input: Input,
    position: Position,
    line: Vec<u8>,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineRead {
    /// A line, with its end if it has one; see [`Lines::text`].
    Whole,
    /// A line longer than [`RECORD_BYTES_MAX`], which was passed over.
    TooLong,
    /// Nothing is left.
    End,
}

impl Lines {
    pub(super) fn new(input: Input, position: Position) -> Self {
        Lines { input, position, line: Vec::new() }
    }

    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// The line just read, byte for byte.
    pub(super) fn text(&self) -> &[u8] {
        &self.line
    }

    /// The line just read, without `\n` or `\r\n`.
    pub(super) fn trimmed(&self) -> &[u8] {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    pub(super) fn read(&mut self) -> Result<LineRead, ReadError> {
        let line = self.position.line + 1;
        let refused = |error| ReadError::Io { line, error };
        self.line.clear();
        let limit = RECORD_BYTES_MAX as u64;
        let read = self.input.by_ref().take(limit).read_until(b'\n', &mut self.line).map_err(refused)?;
        if read == 0 {
            return Ok(LineRead::End);
        }
        self.position.line += 1;
        if self.position.byte == 0 && self.line.starts_with(BOM) {
            // Some programs mark text so; it is no part of the first record.
            self.line.drain(..BOM.len());
        }
        self.position.byte += read as u64;
        if read < RECORD_BYTES_MAX || self.line.last() == Some(&b'\n') {
            return Ok(LineRead::Whole);
        }
        self.position.byte += self.input.skip_until(b'\n').map_err(refused)? as u64;
        Ok(LineRead::TooLong)
    }
}

/// What is said of a record longer than the limit.
pub(super) fn too_long() -> String {
    format!("record is longer than {} MiB", RECORD_BYTES_MAX >> 20)
}
