//! Reading records from a file, one after the other, with the position after each: for `load` and `artifact build`.
//!
//! Every reader holds at most one record in memory, and no record is longer than [`RECORD_BYTES_MAX`].

mod arguments;
mod compressed;
mod deb822;
mod delimited;
mod encoding;
mod jsonl;
mod lines;
#[cfg(feature = "parquet")]
mod parquet;
mod quotes;
mod record;
pub(crate) mod settings;
mod voldemort;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use model::{Key, Placement};

use crate::failure::CliError;
pub(crate) use arguments::ReadArguments;
pub(crate) use deb822::unfit_stanza;
pub(crate) use record::{BadRecord, InputRecord, Position, ReadError, RecordReader};
use record::{Found, Input};
pub(crate) use settings::{Expires, ReadSettings, expires_of_export};
pub(crate) use voldemort::VoldemortReader;

/// Bytes read from the file at a time.
const READ_BYTES: usize = 256 * 1024;

/// The input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    File(PathBuf),
    Stdin,
}

impl Source {
    pub(crate) fn new(name: &str) -> Source {
        if name == "-" { Source::Stdin } else { Source::File(name.into()) }
    }

    /// The bytes that a reader will find in it, if that is known: nobody knows of a compressed file.
    pub(crate) fn size(&self) -> Option<u64> {
        match self {
            Source::File(path) if compressed::is_compressed(path) => None,
            Source::File(path) => {
                std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|facts| facts.len())
            }
            Source::Stdin => None,
        }
    }

    /// The bytes from a place on. A file that no reader here understands is refused at its start.
    fn open(&self, at: u64) -> Result<Input, CliError> {
        match self {
            Source::File(path) => {
                let refused = || CliError::io(format!("cannot read {}", path.display()));
                let mut file = File::open(path).map_err(refused())?;
                if at > 0 && !compressed::is_compressed(path) {
                    file.seek(SeekFrom::Start(at)).map_err(refused())?;
                    return Ok(Box::new(BufReader::with_capacity(READ_BYTES, file)));
                }
                let input =
                    compressed::unpacked(BufReader::with_capacity(READ_BYTES, file)).map_err(refused())?;
                let mut input = encoding::refuse_wide(input, &path.display().to_string())?;
                // Of a compressed file the beginning is unpacked once more to get there.
                io::copy(&mut input.by_ref().take(at), &mut io::sink()).map_err(refused())?;
                Ok(input)
            }
            Source::Stdin => {
                let input = compressed::unpacked(BufReader::with_capacity(READ_BYTES, std::io::stdin()))
                    .map_err(CliError::io("cannot read standard input"))?;
                encoding::refuse_wide(input, "standard input")
            }
        }
    }
}

/// A reader of the source from a place on, with the limits that every record must keep: the longest value, and what keys
/// look like.
pub(crate) fn open(
    source: &Source,
    settings: &ReadSettings,
    start: Position,
    (value_bytes_max, placement): (usize, &Placement),
) -> Result<Box<dyn RecordReader>, CliError> {
    let inner: Box<dyn RecordReader> = match settings {
        #[cfg(feature = "parquet")]
        ReadSettings::Parquet(columns) => {
            Box::new(parquet::ParquetReader::open(source, start, columns.clone())?)
        }
        ReadSettings::Jsonl(fields) => {
            Box::new(jsonl::JsonlReader::new(source.open(start.byte)?, start, fields.clone()))
        }
        ReadSettings::Deb822(fields) => {
            Box::new(deb822::Deb822Reader::new(source.open(start.byte)?, start, fields.clone()))
        }
        ReadSettings::Delimited { csv, columns, header, escapes, delimiter } => {
            let rows = |at: Position| -> Result<Box<dyn delimited::Rows>, CliError> {
                let input = source.open(at.byte)?;
                Ok(if *csv {
                    Box::new(delimited::CsvRows::new(input, at, *delimiter))
                } else {
                    Box::new(delimited::TsvRows::new(input, at, *delimiter, *escapes))
                })
            };
            let mut first = rows(Position::default())?;
            let mut columns = delimited::Columns::find(&mut *first, columns, *header)?;
            // The header, and the first row, stand only at the start of the file.
            let rows = if start == Position::default() {
                first
            } else {
                columns.learn(&mut *first).map_err(|error| CliError::Other(error.to_string()))?;
                rows(start)?
            };
            Box::new(delimited::DelimitedReader::new(rows, columns))
        }
    };
    Ok(Box::new(Limited { inner, value_bytes_max, placement: placement.clone() }))
}

/// Finds records that the store would not take.
struct Limited {
    inner: Box<dyn RecordReader>,
    value_bytes_max: usize,
    placement: Placement,
}

impl RecordReader for Limited {
    fn next(&mut self) -> Result<Option<Found>, ReadError> {
        let found = self.inner.next()?;
        let line = self.inner.line();
        Ok(found.map(|found| {
            let record = found?;
            if let Err(error) = Key::check(&record.key) {
                return Err(BadRecord { line, reason: error.to_string() });
            }
            if let Some(windows) = self.placement.windows().filter(|all| all.parts(&record.key).is_none()) {
                let (key, pattern) = (String::from_utf8_lossy(&record.key), &windows.key);
                return Err(BadRecord {
                    line,
                    reason: format!("key {key:?} is not as keys of the store are, {pattern}"),
                });
            }
            let bytes = record.value.len();
            if bytes > self.value_bytes_max {
                let max = self.value_bytes_max;
                let reason = format!("value of {bytes} bytes is over the store's limit of {max} bytes");
                return Err(BadRecord { line, reason });
            }
            Ok(record)
        }))
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn line(&self) -> u64 {
        self.inner.line()
    }
}
