//! Reading a segment from front to back, over damage.
//!
//! After a record whose header holds comes the next one, whatever became of its value. Where no header holds, the
//! reader looks for the next one at every multiple of the alignment; checksums that know their offset make sure that
//! it finds records and not bytes that look like one.

use std::sync::Arc;

use runtime::{DiskError, File};

use super::format::{ALIGNMENT, RECORD_HEADER_BYTES, RecordHeader, header_holds, padded, peek, value_holds};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// What comes next in a segment.
pub(super) enum Item<'a> {
    Record(LogRecord<'a>),
    /// No record starts in these bytes; behind them comes one, or the end.
    Gap {
        to_end: bool,
    },
}

/// A record whose header holds.
pub(super) struct LogRecord<'a> {
    pub(super) header: RecordHeader,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    /// The value holds, too.
    pub(super) sound: bool,
}

/// Reads one segment.
pub(super) struct SegmentReader {
    file: Arc<dyn File>,
    salt: u64,
    /// Where the next item starts.
    offset: u64,
    end: u64,
    window: Vec<u8>,
    window_start: u64,
    bytes_read: u64,
}

impl SegmentReader {
    /// Reads from `offset` (a record's start) to `end`.
    pub(super) fn new(file: Arc<dyn File>, salt: u64, offset: u64, end: u64) -> SegmentReader {
        SegmentReader { file, salt, offset, end, window: Vec::new(), window_start: offset, bytes_read: 0 }
    }

    /// Bytes read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The next item and where it starts.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Item<'_>)>, DiskError> {
        let start = self.offset;
        if start >= self.end {
            return Ok(None);
        }
        let mut offset = start;
        let found = loop {
            match self.header_at(offset)? {
                Some(header) => break Some(header),
                None => offset += ALIGNMENT as u64,
            }
            if offset + RECORD_HEADER_BYTES as u64 > self.end {
                break None;
            }
        };
        match found {
            Some(header) if offset == start => {
                self.offset = (start + padded(header.length()) as u64).min(self.end);
                let bytes = self.view(start, header.length())?;
                let (key, value) = bytes[RECORD_HEADER_BYTES..].split_at(usize::from(header.key_bytes));
                let sound = value_holds(&header, value);
                Ok(Some((start, Item::Record(LogRecord { header, key, value, sound }))))
            }
            Some(_) => {
                self.offset = offset;
                Ok(Some((start, Item::Gap { to_end: false })))
            }
            None => {
                self.offset = self.end;
                Ok(Some((start, Item::Gap { to_end: true })))
            }
        }
    }

    /// The header at `offset`, if one holds there and its record ends inside the segment.
    fn header_at(&mut self, offset: u64) -> Result<Option<RecordHeader>, DiskError> {
        let (salt, end) = (self.salt, self.end);
        let Some(header) = peek(self.view(offset, RECORD_HEADER_BYTES)?) else { return Ok(None) };
        if offset + header.length() as u64 > end {
            return Ok(None);
        }
        let bytes = self.view(offset, RECORD_HEADER_BYTES + usize::from(header.key_bytes))?;
        Ok(header_holds(bytes, salt, offset, &header).then_some(header))
    }

    /// `length` bytes from `offset`; fewer at the end.
    fn view(&mut self, offset: u64, length: usize) -> Result<&[u8], DiskError> {
        let length = length.min((self.end - offset) as usize);
        let window_end = self.window_start + self.window.len() as u64;
        if offset < self.window_start || offset + length as u64 > window_end {
            let wanted = length.max(CHUNK_BYTES).min((self.end - offset) as usize);
            self.window.resize(wanted, 0);
            let count = self.file.read_at(offset, &mut self.window)?;
            self.window.truncate(count);
            self.window_start = offset;
            self.bytes_read += count as u64;
        }
        let from = (offset - self.window_start) as usize;
        Ok(&self.window[from..(from + length).min(self.window.len())])
    }
}

#[cfg(test)]
mod tests {
    use model::{PartitionId, Token};
    use runtime::Disk;
    use runtime::disk::simulated::SimulatedDisk;
    use xxhash_rust::xxh3::xxh3_64;

    use super::super::format::{Kind, encode};
    use super::*;

    fn put(out: &mut Vec<u8>, offset: u64, key: &[u8], value: &[u8]) {
        let header = RecordHeader {
            kind: Kind::Put,
            partition: PartitionId(1),
            token: Token(2),
            sequence: 3,
            origin: 0,
            key_bytes: key.len() as u16,
            value_bytes: value.len() as u32,
            value_check: xxh3_64(value),
        };
        encode(out, 77, offset, &header, key, value);
    }

    fn read(bytes: &[u8]) -> Vec<String> {
        let disk = SimulatedDisk::new(0);
        disk.plant("x", bytes);
        let mut reader = SegmentReader::new(disk.open("x").unwrap(), 77, 0, bytes.len() as u64);
        let mut items = Vec::new();
        while let Some((offset, item)) = reader.next().unwrap() {
            items.push(match item {
                Item::Record(record) => {
                    let flaw = if record.sound { "" } else { " damaged" };
                    format!("{offset} {}{flaw}", String::from_utf8_lossy(record.key))
                }
                Item::Gap { to_end } => format!("{offset} gap{}", if to_end { " to the end" } else { "" }),
            });
        }
        items
    }

    fn three() -> Vec<u8> {
        let mut bytes = Vec::new();
        for key in ["a", "b", "c"] {
            let offset = bytes.len() as u64;
            put(&mut bytes, offset, key.as_bytes(), &[9; 15]);
        }
        bytes
    }

    #[test]
    fn sound_records_follow_each_other() {
        assert_eq!(read(&three()), ["0 a", "64 b", "128 c"]);
    }

    #[test]
    fn a_damaged_header_is_a_gap_and_hides_no_later_record() {
        for at in 64..113 {
            let mut bytes = three();
            bytes[at] ^= 0x10;
            assert_eq!(read(&bytes), ["0 a", "64 gap", "128 c"], "byte {at}");
        }
    }

    /// A drop has neither key nor value.
    #[test]
    fn a_bare_header_at_the_end_is_found_behind_a_gap() {
        let mut bytes = three();
        bytes.truncate(128);
        put(&mut bytes, 128, b"", b"");
        bytes[70] ^= 1;
        assert_eq!((bytes.len(), read(&bytes)), (176, vec!["0 a".into(), "64 gap".into(), "128 ".into()]));
    }

    #[test]
    fn a_damaged_value_is_told_from_a_gap() {
        let mut bytes = three();
        bytes[120] ^= 1;
        assert_eq!(read(&bytes), ["0 a", "64 b damaged", "128 c"]);
    }

    #[test]
    fn a_torn_end_is_a_gap_to_the_end() {
        let bytes = three();
        for length in 129..191 {
            assert_eq!(read(&bytes[..length]), ["0 a", "64 b", "128 gap to the end"], "length {length}");
        }
        let mut zeros = bytes[..128].to_vec();
        zeros.resize(300, 0);
        assert_eq!(read(&zeros), ["0 a", "64 b", "128 gap to the end"]);
    }

    #[test]
    fn a_record_inside_a_damaged_value_is_not_taken_for_one() {
        let mut inner = Vec::new();
        put(&mut inner, 0, b"planted", b"by a user");
        let mut bytes = Vec::new();
        put(&mut bytes, 0, b"outer", &inner);
        let offset = bytes.len() as u64;
        put(&mut bytes, offset, b"next", b"");
        bytes[0] ^= 1;
        assert_eq!(read(&bytes), ["0 gap".to_owned(), format!("{offset} next")]);
    }
}
