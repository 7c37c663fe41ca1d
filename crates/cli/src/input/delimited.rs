//! Rows of columns: between commas with quotes, or between tabs without.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use csv::ByteRecord;
use parking_lot::Mutex;

use super::lines::{BOM, LineRead, Lines, too_long};
use super::quotes::Quotes;
use super::record::{
    BadRecord, Found, Input, InputRecord, Position, RECORD_BYTES_MAX, ReadError, RecordReader, moment,
};
use super::settings::{Column, Expires, Wanted};
use crate::failure::CliError;
use crate::text::{count, shown};

/// Comes after the last row, so that a quote that is still open there is noticed: it swallows this row.
const SENTINEL: &[u8] = b"\n\0tontine: end of the input\0\n";
/// Characters of the names of columns in a message at most.
const COLUMNS_SHOWN_MAX: usize = 500;
/// Bytes that the csv reader may have read ahead of the row it returns.
const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Reads rows.
pub(super) trait Rows: Send {
    /// The next row that is not blank; `None` at the end.
    fn next(&mut self) -> Result<Option<Result<&ByteRecord, String>>, ReadError>;

    /// The place after the last row.
    fn position(&self) -> Position;

    /// First line of the last row, counted from 1.
    fn line(&self) -> u64;
}

/// Which columns are wanted, and how many a row has.
pub(super) struct Columns {
    key: usize,
    value: usize,
    expires: Option<usize>,
    /// As the header says; without a header the first row does.
    count: Option<usize>,
}

impl Columns {
    /// Finds the columns, with the help of the header if there is one.
    pub(super) fn find(
        rows: &mut dyn Rows,
        wanted: &Wanted<Column, Column>,
        header: bool,
    ) -> Result<Columns, CliError> {
        if !header {
            let number = |column: &Column| match column {
                Column::Number(number) => *number,
                Column::Name(_) => unreachable!("a name implies a header, as the settings make sure"),
            };
            return Ok(Columns {
                key: number(&wanted.key),
                value: number(&wanted.value),
                expires: wanted.expires.part().map(number),
                count: None,
            });
        }
        let header = match rows.next() {
            Ok(Some(Ok(header))) => header,
            Ok(Some(Err(reason))) => return Err(format!("cannot read the header: {reason}").into()),
            Ok(None) => return Err("the file is empty, so it has no header".to_owned().into()),
            Err(error) => return Err(error.to_string().into()),
        };
        let find = |column: &Column| found(column, header);
        let expires = match &wanted.expires {
            Expires::Never => None,
            Expires::IfThere(Column::Name(name)) if !header.iter().any(|known| is_named(known, name)) => None,
            Expires::IfThere(column) | Expires::There(column) => Some(find(column)?),
        };
        Ok(Columns {
            key: find(&wanted.key)?,
            value: find(&wanted.value)?,
            expires,
            count: Some(header.len()),
        })
    }

    /// Learns how many columns rows have from the first row that has the wanted ones, where there is no header: a
    /// load that goes on expects what it expected before.
    pub(super) fn learn(&mut self, rows: &mut dyn Rows) -> Result<(), ReadError> {
        while self.count.is_none()
            && let Some(row) = rows.next()?
        {
            if let Ok(row) = row {
                // A bad row was reported when it was first read.
                let _ = self.record(row);
            }
        }
        Ok(())
    }

    fn record(&mut self, row: &ByteRecord) -> Result<InputRecord, String> {
        if let Some(expected) = self.count
            && row.len() != expected
        {
            return Err(format!("the row has {}, not {expected}", count(row.len() as u64, "column")));
        }
        let column = |number: usize| {
            row.get(number).map(Bytes::copy_from_slice).ok_or_else(|| {
                let has = count(row.len() as u64, "column");
                format!("there is no column {}: the row has {has}{}", number + 1, hint(row))
            })
        };
        let expires = self.expires.map(column).transpose()?.filter(|text| !text.is_empty());
        let expires = expires.map(|text| moment(&String::from_utf8_lossy(&text))).transpose()?;
        let record = InputRecord { key: column(self.key)?, value: column(self.value)?, expires };
        self.count = Some(row.len());
        Ok(record)
    }
}

/// Whether the header calls a column so. The first name may bear the mark of UTF-8.
fn is_named(known: &[u8], name: &str) -> bool {
    known.strip_prefix(BOM).unwrap_or(known) == name.as_bytes()
}

/// Where the header has a column.
fn found(column: &Column, header: &ByteRecord) -> Result<usize, CliError> {
    let name = match column {
        Column::Number(number) if *number < header.len() => return Ok(*number),
        Column::Number(number) => {
            let has = count(header.len() as u64, "column");
            return Err(
                format!("there is no column {}: the header has {has}{}", number + 1, hint(header)).into()
            );
        }
        Column::Name(name) => name,
    };
    let places: Vec<usize> = (0..header.len()).filter(|&at| is_named(&header[at], name)).collect();
    match places[..] {
        [place] => Ok(place),
        [] => {
            let known: Vec<_> = header.iter().map(shown).collect();
            let known: String = known.join(", ").chars().take(COLUMNS_SHOWN_MAX).collect();
            Err(format!("there is no column {name:?}; the columns are {known}{}", hint(header)).into())
        }
        _ => {
            let numbers: Vec<String> = places.iter().map(|place| (place + 1).to_string()).collect();
            Err(format!(
                "the header names {} columns {name:?}, numbers {}; give the number of the one that is meant, and add \
                 --header",
                places.len(),
                numbers.join(" and ")
            )
            .into())
        }
    }
}

/// What a row of a single column suggests: that another character separates the columns.
fn hint(row: &ByteRecord) -> String {
    let likely = [(b';', ";"), (b'\t', "\\t"), (b'|', "|"), (b',', ",")];
    let found = likely.iter().find(|(byte, _)| row.len() == 1 && row[0].contains(byte));
    found.map_or_else(String::new, |(_, shown)| {
        format!(" (if '{shown}' separates the columns, add --delimiter '{shown}')")
    })
}

/// Makes records of rows.
pub(super) struct DelimitedReader {
    rows: Box<dyn Rows>,
    columns: Columns,
}

impl DelimitedReader {
    pub(super) fn new(rows: Box<dyn Rows>, columns: Columns) -> Self {
        DelimitedReader { rows, columns }
    }
}

impl RecordReader for DelimitedReader {
    fn next(&mut self) -> Result<Option<Found>, ReadError> {
        let found = match self.rows.next()? {
            None => return Ok(None),
            Some(Err(reason)) => Err(reason),
            Some(Ok(row)) => self.columns.record(row),
        };
        Ok(Some(found.map_err(|reason| BadRecord { line: self.rows.line(), reason })))
    }

    fn position(&self) -> Position {
        self.rows.position()
    }

    fn line(&self) -> u64 {
        self.rows.line()
    }
}

/// Rows between tabs: one a line, every byte as it is unless backslashes escape.
pub(super) struct TsvRows {
    lines: Lines,
    escapes: bool,
    delimiter: u8,
    row: ByteRecord,
}

impl TsvRows {
    pub(super) fn new(input: Input, position: Position, delimiter: u8, escapes: bool) -> Self {
        TsvRows { lines: Lines::new(input, position), escapes, delimiter, row: ByteRecord::new() }
    }
}

impl Rows for TsvRows {
    fn next(&mut self) -> Result<Option<Result<&ByteRecord, String>>, ReadError> {
        loop {
            match self.lines.read()? {
                LineRead::End => return Ok(None),
                LineRead::TooLong => return Ok(Some(Err(too_long()))),
                LineRead::Whole if self.lines.trimmed().is_empty() => {}
                LineRead::Whole => break,
            }
        }
        self.row.clear();
        let delimiter = self.delimiter;
        for field in self.lines.trimmed().split(|&byte| byte == delimiter) {
            if self.escapes && field.contains(&b'\\') {
                match unescape(field) {
                    Ok(field) => self.row.push_field(&field),
                    Err(reason) => return Ok(Some(Err(reason))),
                }
            } else {
                self.row.push_field(field);
            }
        }
        Ok(Some(Ok(&self.row)))
    }

    fn position(&self) -> Position {
        self.lines.position()
    }

    fn line(&self) -> u64 {
        self.lines.position().line
    }
}

fn unescape(field: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::with_capacity(field.len());
    let mut bytes = field.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        plain.push(match bytes.next() {
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b'\\') => b'\\',
            Some(&other) => return Err(format!("unknown escape \\{}", other.escape_ascii())),
            None => return Err("a column ends with a lone backslash".to_owned()),
        });
    }
    Ok(plain)
}

/// Rows between commas, quoted as RFC 4180 says.
pub(super) struct CsvRows {
    rows: csv::Reader<io::Chain<Leash, &'static [u8]>>,
    leash: Arc<Mutex<PendingRow>>,
    row: ByteRecord,
    /// The place from which the csv reader counts.
    base: Position,
    line: u64,
}

/// Ends the input with an error once a single row has taken too many bytes, and remembers what was read last and where
/// the quotes stop making sense.
struct Leash {
    input: Input,
    held: Arc<Mutex<PendingRow>>,
}

struct PendingRow {
    /// Bytes that the row may still take.
    left: usize,
    /// The last bytes read, and how many were read before them.
    last: Vec<u8>,
    before: u64,
    quotes: Quotes,
}

impl PendingRow {
    /// The byte at a place, if it is among the last bytes read.
    fn byte(&self, at: u64) -> Option<u8> {
        self.last.get(usize::try_from(at.checked_sub(self.before)?).ok()?).copied()
    }
}

impl Read for Leash {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut held = self.held.lock();
        if held.left == 0 {
            return Err(io::Error::other("row too long"));
        }
        let most = buffer.len().min(held.left);
        let read = self.input.read(&mut buffer[..most])?;
        held.left -= read;
        held.before += held.last.len() as u64;
        held.last.clear();
        held.last.extend_from_slice(&buffer[..read]);
        held.quotes.read(&buffer[..read]);
        Ok(read)
    }
}

impl CsvRows {
    pub(super) fn new(input: Input, base: Position, delimiter: u8) -> Self {
        let quotes = Quotes::new(base, delimiter);
        let leash = Arc::new(Mutex::new(PendingRow { left: 0, last: Vec::new(), before: 0, quotes }));
        let input = Leash { input, held: leash.clone() }.chain(SENTINEL);
        let rows = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(delimiter)
            .buffer_capacity(READ_AHEAD_BYTES)
            .from_reader(input);
        CsvRows { rows, leash, row: ByteRecord::new(), base, line: base.line }
    }

    /// First line of the row just read. The csv reader knows only where it is: before the blank lines above the
    /// row, and after it, where it stops between `\r` and `\n`.
    fn first_line(&self) -> u64 {
        let after = self.rows.position();
        let ended_by_lf = self.leash.lock().byte(after.byte().saturating_sub(1)) != Some(b'\r');
        let last = self.base.line + after.line() - u64::from(ended_by_lf);
        let within = self.row.as_slice().iter().filter(|&&byte| byte == b'\n').count() as u64;
        last.saturating_sub(within)
    }
}

impl Rows for CsvRows {
    fn next(&mut self) -> Result<Option<Result<&ByteRecord, String>>, ReadError> {
        self.leash.lock().left = RECORD_BYTES_MAX + READ_AHEAD_BYTES;
        let begins = self.base.line + self.rows.position().line();
        let read = self.rows.read_byte_record(&mut self.row);
        let stray = self.leash.lock().quotes.stray();
        if let Some(stray) = stray
            && stray.byte < self.base.byte + self.rows.position().byte()
        {
            return Err(ReadError::StrayQuote { line: begins, at: stray.line + 1 });
        }
        match read {
            Ok(true) if self.row.len() == 1 && self.row[0] == SENTINEL[1..SENTINEL.len() - 1] => Ok(None),
            Ok(true) if self.row.iter().any(|field| field.ends_with(SENTINEL)) => {
                // No line end ended this row; it ran into the end of the input.
                self.line = self.first_line() + 1;
                Err(ReadError::QuoteNeverCloses { line: self.line })
            }
            Ok(true) => {
                self.line = self.first_line();
                Ok(Some(Ok(&self.row)))
            }
            Ok(false) => Ok(None),
            Err(_) if self.leash.lock().left == 0 => Err(ReadError::QuoteNeverCloses { line: begins }),
            Err(error) => Err(ReadError::Io { line: begins, error: io::Error::other(error) }),
        }
    }

    fn position(&self) -> Position {
        let position = self.rows.position();
        Position {
            byte: self.base.byte + position.byte(),
            line: self.base.line + position.line().saturating_sub(1),
        }
    }

    fn line(&self) -> u64 {
        self.line
    }
}

#[cfg(test)]
mod tests {
    use model::WallMillis;

    use super::*;

    fn wanted(value: &str) -> Wanted<Column, Column> {
        let name = |name: &str| Column::Name(name.to_owned());
        Wanted { key: name("k"), value: name(value), expires: Expires::IfThere(name("e")) }
    }

    fn csv(text: &'static str) -> DelimitedReader {
        let mut rows: Box<dyn Rows> =
            Box::new(CsvRows::new(Box::new(text.as_bytes()), Position::default(), b','));
        let columns = Columns::find(&mut *rows, &wanted("v"), true).unwrap();
        DelimitedReader::new(rows, columns)
    }

    fn tsv(text: &'static str, escapes: bool) -> Vec<Found> {
        let rows = Box::new(TsvRows::new(Box::new(text.as_bytes()), Position::default(), b'\t', escapes));
        let mut reader = DelimitedReader::new(rows, Columns { key: 0, value: 1, expires: None, count: None });
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn record(key: &'static str, value: &'static str) -> Found {
        Ok(InputRecord { key: key.into(), value: value.into(), expires: None })
    }

    #[test]
    fn quoted_columns_may_hold_commas_quotes_and_line_ends() {
        let mut reader = csv("v,k\r\n\"a,\"\"b\"\"\nc\",1\r\n\r\nd,2");
        assert_eq!(reader.next().unwrap(), Some(record("1", "a,\"b\"\nc")));
        assert_eq!(reader.line(), 2);
        assert_eq!(reader.next().unwrap(), Some(record("2", "d")));
        assert_eq!(reader.line(), 5);
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn a_file_can_be_read_on_from_any_position() {
        let text = "k,v\n1,\"a\nb\"\n2,c\n3,d\n";
        let mut reader = csv(text);
        reader.next().unwrap();
        let position = reader.position();
        let at = usize::try_from(position.byte).unwrap();
        let rows = Box::new(CsvRows::new(Box::new(&text.as_bytes()[at..]), position, b','));
        let mut rest =
            DelimitedReader::new(rows, Columns { key: 0, value: 1, expires: None, count: Some(2) });
        assert_eq!(rest.next().unwrap(), Some(record("2", "c")));
        assert_eq!(rest.line(), 4);
        assert_eq!(rest.next().unwrap(), Some(record("3", "d")));
        assert_eq!(rest.position().byte, text.len() as u64);
        assert_eq!(rest.next().unwrap(), None);
    }

    #[test]
    fn a_quote_that_never_closes_is_an_error_and_not_a_long_value() {
        for text in ["k,v\n1,a\n2,\"b\n3,c\n", "k,v\n1,a\n2,\"b"] {
            let mut reader = csv(text);
            assert_eq!(reader.next().unwrap(), Some(record("1", "a")));
            assert!(matches!(reader.next(), Err(ReadError::QuoteNeverCloses { line: 3 })));
        }
    }

    #[test]
    fn text_behind_a_closing_quote_is_an_error_and_does_not_join_records() {
        // Of four receipts in a file from a till the third disappeared within the second: its quote was never closed.
        for (text, at) in [
            ("k,v\n1,a\n2,\"receipt\n3,\"card\"\n4,\"other\"\n", 4),
            ("k,v\n1,a\n2,\"receipt \"cash\" desk\"\n", 3),
            ("k,v\n1,a\n2,\"b\" \n", 3),
        ] {
            let mut reader = csv(text);
            assert_eq!(reader.next().unwrap(), Some(record("1", "a")));
            let error = reader.next().unwrap_err();
            let ReadError::StrayQuote { line: 3, at: found } = error else { panic!("{error}") };
            assert_eq!(found, at);
        }
        let mut reader = csv("\u{feff}\"k\",v\r\n1,5\" \"\"nail\"\r\n2,\"\"\n");
        assert_eq!(reader.next().unwrap(), Some(record("1", "5\" \"\"nail\"")), "no quote opens it");
        assert_eq!(reader.next().unwrap(), Some(record("2", "")));
    }

    #[test]
    fn a_wanted_column_that_the_header_has_twice_is_refused() {
        let find = |text: &'static str| {
            let mut rows = CsvRows::new(Box::new(text.as_bytes()), Position::default(), b',');
            Columns::find(&mut rows, &wanted("v"), true).err().map(|error| error.to_string())
        };
        assert_eq!(find("k,v,x,x\n"), None, "nobody asked for x");
        for text in ["k,v,k\n", "v,k,x,v\n", "k,v,e,e\n"] {
            let error = find(text).unwrap();
            assert!(error.contains("2 columns") && error.contains("--header"), "{error}");
        }
    }

    #[test]
    fn a_column_says_when_a_value_expires_if_the_file_has_it() {
        let mut reader = csv("e,k,v\n1764321000000,1,a\n,2,b\n1.5,3,c\n");
        assert_eq!(reader.next().unwrap().unwrap().unwrap().expires, Some(WallMillis(1_764_321_000_000)));
        assert_eq!(reader.next().unwrap(), Some(record("2", "b")));
        let reason = reader.next().unwrap().unwrap().unwrap_err().reason;
        assert_eq!(reason, "\"1.5\" is not an expiry time: use a whole number of milliseconds since 1970");
    }

    #[test]
    fn rows_with_another_number_of_columns_are_bad() {
        let mut reader = csv("k,v\n1\n2,b,c\n3,d\n");
        let lines: Vec<u64> = (0..2).map(|_| reader.next().unwrap().unwrap().unwrap_err().line).collect();
        assert_eq!(lines, [2, 3]);
        assert_eq!(reader.next().unwrap(), Some(record("3", "d")));
    }

    #[test]
    fn the_first_fitting_row_tells_how_many_columns_there_are() {
        let found = tsv("bad\na\t1\nb\t2\t3\nc\t3\n", false);
        assert!(found[0].as_ref().unwrap_err().reason.contains("no column 2: the row has 1 column"));
        assert_eq!(found[1], record("a", "1"));
        assert!(found[2].is_err());
        assert_eq!(found[3], record("c", "3"));
    }

    #[test]
    fn tabs_separate_and_backslashes_escape_only_when_asked() {
        assert_eq!(tsv("a\tC:\\new\r\n\nb\t\n", false), [record("a", "C:\\new"), record("b", "")]);
        assert_eq!(tsv("a\tx\\ty\\\\\\n\n", true), [record("a", "x\ty\\\n")]);
        assert!(tsv("a\t\\x\n", true)[0].as_ref().unwrap_err().reason.contains("unknown escape"));
        assert!(tsv("a\t\\\n", true)[0].as_ref().unwrap_err().reason.contains("lone backslash"));
    }

    #[test]
    fn unknown_columns_are_named_with_the_known_ones() {
        let mut rows = CsvRows::new(Box::new(&b"a,b\n1,2\n"[..]), Position::default(), b',');
        let error = Columns::find(&mut rows, &wanted("b"), true).err().unwrap();
        assert!(error.to_string().ends_with("the columns are a, b"), "{error}");
    }

    #[test]
    fn a_single_column_with_another_delimiter_in_it_is_told_of_the_option() {
        let mut rows = CsvRows::new(Box::new(&b"k;v\n1;2\n"[..]), Position::default(), b',');
        let error = Columns::find(&mut rows, &wanted("v"), true).err().unwrap();
        let hint = "the columns are k;v (if ';' separates the columns, add --delimiter ';')";
        assert!(error.to_string().ends_with(hint), "{error}");
        let reason = tsv("k,v\n", false)[0].as_ref().unwrap_err().reason.clone();
        assert_eq!(
            reason,
            "there is no column 2: the row has 1 column (if ',' separates the columns, add --delimiter ',')"
        );
        assert_eq!(tsv("k;v\tx\n", false), [record("k;v", "x")], "nothing is wrong with this one");
    }
}
