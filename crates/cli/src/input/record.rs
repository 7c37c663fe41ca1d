//! What every reader hands out: records, their positions, and what is wrong with them.

use std::io::BufRead;

use bytes::Bytes;
use model::WallMillis;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest record in a file, in bytes: the largest value in base 16 with room for its quotes and its key.
pub(crate) const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A place in a file, always between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Bytes before it.
    pub(crate) byte: u64,
    /// Lines before it.
    pub(crate) line: u64,
}

/// One record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputRecord {
    pub(crate) key: Bytes,
    pub(crate) value: Bytes,
    /// When the value expires; `None` lives for ever.
    pub(crate) expires: Option<WallMillis>,
}

/// Expiry times before this one, in March 1973, are none: seconds since 1970 look like that, and times to live.
const EXPIRES_MIN_MS: u64 = 100_000_000_000;

/// The moment that a number stands for: milliseconds since 1970 in base 10, as an export writes them.
pub(super) fn moment(text: &str) -> Result<WallMillis, String> {
    let millis: u64 = text.parse().map_err(|_| {
        format!("{text:?} is not an expiry time: use a whole number of milliseconds since 1970")
    })?;
    if millis < EXPIRES_MIN_MS {
        return Err(format!(
            "expiry time {millis} looks like seconds, or like a time to live: use milliseconds since 1970, or load without \
             expiry with --no-expires"
        ));
    }
    Ok(WallMillis(millis))
}

/// A record that cannot be stored, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BadRecord {
    /// Its first line, counted from 1.
    pub(crate) line: u64,
    /// What is wrong with it.
    pub(crate) reason: String,
}

/// Why no further record can be found in the file.
#[derive(Debug, Error)]
pub(crate) enum ReadError {
    /// The system refused.
    #[error("cannot read the file after line {line}: {error}")]
    Io { line: u64, error: std::io::Error },
    /// The end of a quoted field, and so the start of the next record, cannot be found.
    #[error(
        "line {line}: a quote opens in this record and never closes, so the records after it cannot be told apart"
    )]
    QuoteNeverCloses { line: u64 },
    /// Something follows a closing quote, so a quote is missing or not doubled, here or in a line before.
    #[error(
        "line {at}: text follows the closing quote of a column, in the record that begins at line {line}. A quote is \
         missing or not doubled, so the records cannot be told apart. Write a quote within a quoted column twice (\"\")"
    )]
    StrayQuote { line: u64, at: u64 },
    /// One document where lines are wanted.
    #[error(
        "this is a JSON array; one JSON object per line is needed. Convert the file and load the result: jq -c '.[]' FILE \
         > FILE.jsonl"
    )]
    JsonArray,
}

/// What a reader finds next.
pub(crate) type Found = Result<InputRecord, BadRecord>;

/// Reads records in the file's order.
pub(crate) trait RecordReader: Send {
    /// The next record, or what is wrong with it; `None` at the end.
    fn next(&mut self) -> Result<Option<Found>, ReadError>;

    /// The place after the last record.
    fn position(&self) -> Position;

    /// First line of the last record, counted from 1.
    fn line(&self) -> u64;
}

/// Buffered input.
pub(super) type Input = Box<dyn BufRead + Send>;
