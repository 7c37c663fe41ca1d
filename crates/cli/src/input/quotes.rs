//! Whether the quotes of a csv file are those that RFC 4180 allows.
//!
//! The reader of rows takes what follows a closing quote into the column, as others do: a quote that was forgotten then
//! joins two records to one, and nobody is told. It has no strict mode, so this watches the same bytes beside it.
//!
//! A quote within a column that begins without one is read as it is: `5" nail` means nothing else.

use super::lines::BOM;
use super::record::Position;

/// Where the next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BytePlace {
    /// At the start of a column.
    Start,
    /// In a column that no quote opened.
    Plain,
    /// Between quotes.
    Quoted,
    /// Behind a quote that closes the column, or is the first of two.
    Closed,
}

/// Watches bytes until a quote does not belong where it is.
#[derive(Debug)]
pub(super) struct Quotes {
    delimiter: u8,
    place: BytePlace,
    position: Position,
    stray: Option<Position>,
}

impl Quotes {
    /// Begins between two records.
    pub(super) fn new(position: Position, delimiter: u8) -> Quotes {
        Quotes { delimiter, place: BytePlace::Start, position, stray: None }
    }

    /// Before which byte the quotes have stopped to make sense, if they have.
    pub(super) fn stray(&self) -> Option<Position> {
        self.stray
    }

    /// Takes the next bytes.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.stray.is_some() {
                return;
            }
            let is_mark = BOM.get(self.position.byte as usize) == Some(&byte);
            self.place = match (self.place, byte) {
                (BytePlace::Start, b'"') | (BytePlace::Closed, b'"') => BytePlace::Quoted,
                (BytePlace::Quoted, b'"') => BytePlace::Closed,
                (BytePlace::Quoted, _) => BytePlace::Quoted,
                (BytePlace::Start, _) if is_mark => BytePlace::Start,
                (_, b'\n' | b'\r') => BytePlace::Start,
                (_, byte) if byte == self.delimiter => BytePlace::Start,
                (BytePlace::Closed, _) => {
                    self.stray = Some(self.position);
                    return;
                }
                (BytePlace::Start | BytePlace::Plain, _) => BytePlace::Plain,
            };
            self.position.byte += 1;
            self.position.line += u64::from(byte == b'\n');
        }
    }
}
