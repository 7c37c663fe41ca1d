//! Bytes of segments: the header of a file and the records after it. `docs/design/storage-log.md` draws them.
//!
//! A record's header checksum is seeded with a salt of its segment and with its offset, so that bytes which merely
//! look like a record (a value that holds a copy of a segment, an old block that came back) never pass for one.

use model::{PartitionId, Token};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The format that this program writes, and the newest that it reads.
pub(super) const FORMAT_VERSION: u32 = 1;

/// Bytes before the first record of a segment.
pub(super) const SEGMENT_HEADER_BYTES: usize = 64;

/// Bytes of a record before its key.
pub(super) const RECORD_HEADER_BYTES: usize = 48;

/// Records start at multiples of this.
pub(super) const ALIGNMENT: usize = 8;

/// A record with its key may have this many bytes: offsets and lengths are 32 bits wide.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 30;

const SEGMENT_MAGIC: [u8; 8] = *b"TONTLOG\0";

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The key has this value.
    Put = 1,
    /// The key is gone.
    Remove = 2,
    /// All earlier records of the partition are gone.
    Drop = 3,
    /// Everything from the start of segment `origin` up to a position was synced before this was written.
    Mark = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Put),
            2 => Some(Kind::Remove),
            3 => Some(Kind::Drop),
            4 => Some(Kind::Mark),
            _ => None,
        }
    }
}

/// Where segments come from; part of their file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// Appended by writers, in order.
    Log = 1,
    /// Written by compaction, complete when it has its name.
    Compacted = 2,
}

/// The fixed part of a record, without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) kind: Kind,
    pub(super) partition: PartitionId,
    /// Of the key; for a mark: segment (upper half) and offset (lower half) up to which it speaks.
    pub(super) token: Token,
    /// Grows with every record that a writer appends; a copy keeps it.
    pub(super) sequence: u64,
    /// The highest segment id given out when it was first written; for a mark: the first segment it speaks of.
    pub(super) origin: u32,
    pub(super) key_bytes: u16,
    pub(super) value_bytes: u32,
    pub(super) value_check: u64,
}

impl RecordHeader {
    /// Bytes of header, key and value, without padding.
    pub(super) fn length(&self) -> usize {
        RECORD_HEADER_BYTES + usize::from(self.key_bytes) + self.value_bytes as usize
    }
}

/// `length` rounded up to where the next record may start.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

/// The salt of a segment's checksums: known from the name of its file, so that a damaged segment header costs none
/// of its records.
pub(super) fn salt(engine: u64, segment: u32) -> u64 {
    xxh3_64_with_seed(&segment.to_le_bytes(), engine)
}

fn seed(salt: u64, offset: u64) -> u64 {
    salt ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Appends a record that starts at `offset` of the segment with this salt, padding included.
pub(super) fn encode(
    out: &mut Vec<u8>,
    salt: u64,
    offset: u64,
    header: &RecordHeader,
    key: &[u8],
    value: &[u8],
) {
    debug_assert_eq!(usize::from(header.key_bytes), key.len());
    debug_assert_eq!(header.value_bytes as usize, value.len());
    let mut fixed = [0u8; RECORD_HEADER_BYTES];
    fixed[8..16].copy_from_slice(&header.value_check.to_le_bytes());
    fixed[16..24].copy_from_slice(&header.token.0.to_le_bytes());
    fixed[24..32].copy_from_slice(&header.sequence.to_le_bytes());
    fixed[32..36].copy_from_slice(&header.partition.0.to_le_bytes());
    fixed[36..40].copy_from_slice(&header.value_bytes.to_le_bytes());
    fixed[40..44].copy_from_slice(&header.origin.to_le_bytes());
    fixed[44..46].copy_from_slice(&header.key_bytes.to_le_bytes());
    fixed[46] = header.kind as u8;
    let start = out.len();
    out.reserve(padded(header.length()));
    out.extend_from_slice(&fixed);
    out.extend_from_slice(key);
    let check = xxh3_64_with_seed(&out[start + 8..], seed(salt, offset));
    out[start..start + 8].copy_from_slice(&check.to_le_bytes());
    out.extend_from_slice(value);
    out.resize(start + padded(header.length()), 0);
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}

/// The header that the first bytes spell, if they could be one at all; nothing is verified yet.
pub(super) fn peek(bytes: &[u8]) -> Option<RecordHeader> {
    if bytes.len() < RECORD_HEADER_BYTES || bytes[47] != 0 {
        return None;
    }
    let header = RecordHeader {
        kind: Kind::of(bytes[46])?,
        value_check: u64_at(bytes, 8),
        token: Token(u64_at(bytes, 16)),
        sequence: u64_at(bytes, 24),
        partition: PartitionId(u32_at(bytes, 32)),
        value_bytes: u32_at(bytes, 36),
        origin: u32_at(bytes, 40),
        key_bytes: u16_at(bytes, 44),
    };
    (header.length() <= RECORD_BYTES_MAX).then_some(header)
}

/// True when the header and the key after it are what was written at `offset`. Needs both in `bytes`.
pub(super) fn header_holds(bytes: &[u8], salt: u64, offset: u64, header: &RecordHeader) -> bool {
    let end = RECORD_HEADER_BYTES + usize::from(header.key_bytes);
    bytes.len() >= end && xxh3_64_with_seed(&bytes[8..end], seed(salt, offset)) == u64_at(bytes, 0)
}

/// True when the value is what was written.
pub(super) fn value_holds(header: &RecordHeader, value: &[u8]) -> bool {
    value.len() == header.value_bytes as usize && xxh3_64(value) == header.value_check
}

/// The first bytes of a segment file.
pub(super) fn segment_header(engine: u64, id: u32, kind: SegmentKind) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(kind as u32).to_le_bytes());
    bytes[16..20].copy_from_slice(&id.to_le_bytes());
    bytes[24..32].copy_from_slice(&engine.to_le_bytes());
    let check = xxh3_64(&bytes[..56]);
    bytes[56..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// What the first bytes of a segment file say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SegmentHeader {
    /// As this engine writes them.
    Ours,
    /// Written whole by a newer version.
    Newer { version: u32 },
    /// Written whole by another engine.
    Foreign,
    /// Torn or damaged.
    Damaged,
}

/// Reads the first bytes of a segment file.
pub(super) fn read_segment_header(bytes: &[u8], engine: u64, id: u32) -> SegmentHeader {
    if bytes.len() < SEGMENT_HEADER_BYTES || xxh3_64(&bytes[..56]) != u64_at(bytes, 56) {
        return SegmentHeader::Damaged;
    }
    match (u32_at(bytes, 8), u64_at(bytes, 24) == engine && u32_at(bytes, 16) == id) {
        (version, _) if version > FORMAT_VERSION => SegmentHeader::Newer { version },
        (_, true) if bytes[..8] == SEGMENT_MAGIC => SegmentHeader::Ours,
        _ => SegmentHeader::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (RecordHeader, Vec<u8>) {
        let header = RecordHeader {
            kind: Kind::Put,
            partition: PartitionId(7),
            token: Token(0x0102_0304_0506_0708),
            sequence: 42,
            origin: 3,
            key_bytes: 3,
            value_bytes: 5,
            value_check: xxh3_64(b"value"),
        };
        let mut bytes = Vec::new();
        encode(&mut bytes, 99, 64, &header, b"key", b"value");
        (header, bytes)
    }

    #[test]
    fn a_record_is_laid_out_as_documented() {
        let (header, bytes) = sample();
        assert_eq!(bytes.len(), 56);
        assert_eq!(bytes[8..16], header.value_check.to_le_bytes());
        let fixed: [u8; 32] =
            [8, 7, 6, 5, 4, 3, 2, 1, 42, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 3, 0, 1, 0];
        assert_eq!(bytes[16..48], fixed);
        assert_eq!(&bytes[48..], b"keyvalue");
        assert_eq!(bytes[..8], [114, 123, 203, 70, 89, 86, 60, 17], "every version finds the same checksum");
        assert_eq!(peek(&bytes), Some(header));
    }

    #[test]
    fn the_longest_key_is_read_as_long_as_it_was_written() {
        for length in [255, 256, 0x1234, u16::MAX] {
            let (mut header, _) = sample();
            (header.key_bytes, header.value_bytes) = (length, 0);
            let mut bytes = Vec::new();
            encode(&mut bytes, 99, 64, &header, &vec![b'k'; usize::from(length)], &[]);
            assert_eq!(peek(&bytes), Some(header));
            assert!(header_holds(&bytes, 99, 64, &header));
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_seen() {
        let (_, bytes) = sample();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let sound = peek(&flipped).is_some_and(|header| {
                header.length() <= flipped.len()
                    && header_holds(&flipped, 99, 64, &header)
                    && value_holds(&header, &flipped[51..])
            });
            assert!(!sound, "bit {bit}");
        }
    }

    #[test]
    fn a_record_is_none_at_another_offset_or_in_another_segment() {
        let (header, bytes) = sample();
        assert!(header_holds(&bytes, 99, 64, &header));
        assert!(!header_holds(&bytes, 99, 72, &header));
        assert!(!header_holds(&bytes, 98, 64, &header));
        assert_ne!(salt(1, 5), salt(1, 6));
        assert_ne!(salt(1, 5), salt(2, 5));
    }

    #[test]
    fn segment_headers_tell_ours_newer_foreign_and_damaged_apart() {
        let ours = segment_header(5, 9, SegmentKind::Log);
        assert_eq!(read_segment_header(&ours, 5, 9), SegmentHeader::Ours);
        assert_eq!(read_segment_header(&ours, 6, 9), SegmentHeader::Foreign);
        assert_eq!(read_segment_header(&ours, 5, 8), SegmentHeader::Foreign);
        assert_eq!(read_segment_header(&ours[..63], 5, 9), SegmentHeader::Damaged);
        let with = |at: usize, byte: u8| {
            let mut other = ours;
            other[at] = byte;
            let check = xxh3_64(&other[..56]);
            other[56..].copy_from_slice(&check.to_le_bytes());
            read_segment_header(&other, 5, 9)
        };
        assert_eq!(with(8, 2), SegmentHeader::Newer { version: 2 });
        assert_eq!(with(0, b'X'), SegmentHeader::Foreign, "it is no segment of a log");
    }
}
