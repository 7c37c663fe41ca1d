//! Parquet: two columns of bytes or text, read row by row. Compiled in with the feature `parquet` only.
//!
//! A row is what a line is in other files: messages count rows, and a load that goes on skips as many. Columns that are not
//! asked for are not read.
//!
//! Must never: turn a number or a date into bytes. Whoever makes the file decides what a key looks like.

use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::{Type, TypePtr};

use super::Source;
use super::record::{BadRecord, Found, InputRecord, Position, ReadError, RecordReader};
use crate::failure::CliError;

/// Rows that are decoded at a time: values may have 16 MiB each.
const ROWS_TOGETHER: usize = 64;

/// The columns of a file that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParquetColumns {
    /// Of the key.
    pub(crate) key: String,
    /// Of the value.
    pub(crate) value: String,
}

/// Reads a file of Parquet.
pub(super) struct ParquetReader {
    rows: RowIter<'static>,
    columns: ParquetColumns,
    /// Rows so far.
    row: u64,
    rows_total: u64,
    file_bytes: u64,
}

impl ParquetReader {
    /// Opens a file behind as many rows as were read before.
    pub(super) fn open(
        source: &Source,
        start: Position,
        columns: ParquetColumns,
    ) -> Result<ParquetReader, CliError> {
        let Source::File(path) = source else {
            let what = "Parquet is not read from standard input, because its end comes first; name a file";
            return Err(CliError::Usage(what.to_owned()));
        };
        let shown = path.display();
        let file = File::open(path).map_err(CliError::io(format!("cannot read {shown}")))?;
        let file_bytes = file.metadata().map_err(CliError::io(format!("cannot read {shown}")))?.len();
        let wrong = |error: ParquetError| CliError::Other(format!("{shown} is not read as Parquet: {error}"));
        let reader = SerializedFileReader::new(file).map_err(wrong)?;
        let facts = reader.metadata().file_metadata();
        let rows_total = u64::try_from(facts.num_rows()).unwrap_or(0);
        let wanted = projection(facts.schema(), &columns, path)?;
        let rows = RowIter::from_file_into(Box::new(reader)).project(Some(wanted)).map_err(wrong)?;
        let mut rows = rows.with_batch_size(ROWS_TOGETHER);
        for row in 0..start.line {
            let skipped = rows.next().transpose().map_err(wrong)?;
            if skipped.is_none() {
                return Err(CliError::Other(format!("{shown} has {row} rows, and {} were read", start.line)));
            }
        }
        Ok(ParquetReader { rows, columns, row: start.line, rows_total, file_bytes })
    }
}

/// The part of a file's schema that has the columns.
fn projection(schema: &Type, columns: &ParquetColumns, path: &Path) -> Result<Type, CliError> {
    let find = |name: &String| -> Result<TypePtr, CliError> {
        let mut found = schema.get_fields().iter().filter(|field| field.name() == name).cloned();
        let (first, second) = (found.next(), found.next());
        if second.is_some() {
            let shown = path.display();
            return Err(CliError::Other(format!("{shown} has several columns {name:?}; rename all but one")));
        }
        let field = first.ok_or_else(|| {
            let names: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
            CliError::Other(format!("{} has no column {name:?}; it has {}", path.display(), names.join(", ")))
        })?;
        let physical = field.is_primitive().then(|| field.get_physical_type());
        match physical {
            Some(Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY) => Ok(field),
            physical => {
                let kind = physical.map_or_else(|| "nested".to_owned(), |kind| kind.to_string());
                Err(CliError::Other(format!(
                    "column {name:?} of {} is {kind}, and neither bytes nor text; cast it where the file is made",
                    path.display()
                )))
            }
        }
    };
    let mut fields = vec![find(&columns.key)?];
    if columns.value != columns.key {
        fields.push(find(&columns.value)?);
    }
    let built = Type::group_type_builder(schema.name()).with_fields(fields).build();
    built.map_err(|error| CliError::Other(error.to_string()))
}

/// The bytes of a column of a row.
fn bytes_of(row: &Row, column: &str) -> Result<Bytes, String> {
    let found = row.get_column_iter().find(|(name, _)| *name == column);
    match found.map(|(_, field)| field) {
        Some(Field::Str(text)) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        Some(Field::Bytes(bytes)) => Ok(Bytes::copy_from_slice(bytes.data())),
        Some(Field::Null) | None => Err(format!("column {column:?} is null")),
        Some(_) => {
            Err(format!("column {column:?} is neither bytes nor text; cast it where the file is made"))
        }
    }
}

impl RecordReader for ParquetReader {
    fn next(&mut self) -> Result<Option<Found>, ReadError> {
        let failed = |error| ReadError::Io { line: self.row, error: std::io::Error::other(error) };
        let Some(row) = self.rows.next().transpose().map_err(failed)? else { return Ok(None) };
        self.row += 1;
        let record = bytes_of(&row, &self.columns.key).and_then(|key| {
            let value = bytes_of(&row, &self.columns.value)?;
            Ok(InputRecord { key, value, expires: None })
        });
        Ok(Some(record.map_err(|reason| BadRecord { line: self.row, reason })))
    }

    /// Of bytes it is a guess: rows are not all as long, and columns lie apart.
    fn position(&self) -> Position {
        let bytes = u128::from(self.file_bytes) * u128::from(self.row) / u128::from(self.rows_total.max(1));
        Position { byte: u64::try_from(bytes).unwrap_or(self.file_bytes), line: self.row }
    }

    fn line(&self) -> u64 {
        self.row
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    /// Three rows in two groups, compressed: the second value is null.
    fn write(path: &Path) {
        let schema = "message t { required binary word (UTF8); optional binary data; required int64 count; }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let compression = parquet::basic::Compression::SNAPPY;
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
        for (words, data) in [(vec!["one", "two"], vec![Some("1"), None]), (vec!["three"], vec![Some("")])] {
            let bytes = |text: &str| ByteArray::from(text.as_bytes().to_vec());
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let words: Vec<ByteArray> = words.into_iter().map(bytes).collect();
            column.typed::<ByteArrayType>().write_batch(&words, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let levels: Vec<i16> = data.iter().map(|value| i16::from(value.is_some())).collect();
            let there: Vec<ByteArray> = data.into_iter().flatten().map(bytes).collect();
            column.typed::<ByteArrayType>().write_batch(&there, Some(&levels), None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(&vec![7; words.len()], None, None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
    }

    fn opened(path: &Path, key: &str, value: &str, line: u64) -> Result<ParquetReader, String> {
        let columns = ParquetColumns { key: key.to_owned(), value: value.to_owned() };
        let start = Position { byte: 0, line };
        ParquetReader::open(&Source::File(path.to_owned()), start, columns).map_err(|error| error.to_string())
    }

    #[test]
    fn rows_are_records_and_nulls_are_told_by_their_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words.parquet");
        write(&path);
        let record = |key: &'static str, value: &'static str| InputRecord {
            key: Bytes::from(key),
            value: Bytes::from(value),
            expires: None,
        };
        let mut reader = opened(&path, "word", "data", 0).unwrap();
        assert_eq!(reader.next().unwrap(), Some(Ok(record("one", "1"))));
        let bad = reader.next().unwrap().unwrap().unwrap_err();
        assert_eq!((bad.line, bad.reason.as_str()), (2, "column \"data\" is null"));
        assert_eq!(reader.next().unwrap(), Some(Ok(record("three", ""))));
        assert_eq!(reader.next().unwrap(), None);
        let end = std::fs::metadata(&path).unwrap().len();
        assert_eq!(reader.position(), Position { byte: end, line: 3 });
        let mut reader = opened(&path, "word", "word", 2).unwrap();
        assert_eq!(reader.next().unwrap(), Some(Ok(record("three", "three"))));
    }

    #[test]
    fn what_is_no_bytes_and_what_is_no_parquet_is_refused_when_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words.parquet");
        write(&path);
        let refused = |key, value| opened(&path, key, value, 0).err().unwrap();
        assert!(refused("word", "count").contains("is INT64, and neither bytes nor text"));
        assert!(refused("wort", "data").contains("has no column \"wort\"; it has word, data, count"));
        std::fs::write(&path, b"word\tdata\n").unwrap();
        assert!(refused("word", "data").contains("is not read as Parquet"));
    }
}
