//! The bytes of a chunk that are the same in both layouts: its footer, its blocks, its checks.
//! `docs/reference/artifact.md` describes them; the two change together, and with them [`FORMAT`].

use std::fmt;
use std::str::FromStr;

use model::Token;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Version of the format, of chunks and manifests alike.
pub const FORMAT: u32 = 1;
/// Bytes of a page in the layout of that name.
pub(super) const PAGE_BYTES: usize = 4096;
/// Bytes of a block, the unit in which a chunk is fetched and verified.
pub const BLOCK_BYTES: usize = 1 << 20;
/// Bytes of a footer.
pub(super) const FOOTER_BYTES: usize = 96;
/// Bytes of a digest.
const DIGEST_BYTES: usize = 16;

const CHUNK_MAGIC: &[u8; 8] = b"TONTCHNK";

/// Names a file by its contents: XXH3-128 in its canonical order of bytes, in base 16. It tells damage and stale
/// copies, not forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; DIGEST_BYTES]);

impl Digest {
    /// Of some bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(xxh3_128(bytes).to_be_bytes())
    }
}

/// A file of an artifact: a chunk, or a delta. Both are fetched, verified and named alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileEntry {
    /// Names it.
    pub digest: Digest,
    /// Its length.
    pub bytes: u64,
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Digest, String> {
        let well_formed = text.len() == 2 * DIGEST_BYTES
            && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        match u128::from_str_radix(text, 16) {
            Ok(number) if well_formed => Ok(Digest(number.to_be_bytes())),
            _ => Err(format!("{text:?} is no digest: use 32 digits in base 16")),
        }
    }
}

/// How records lie in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In pages of 4 KiB, one fence of each in memory: a get touches one page.
    Pages,
    /// One after the other, the position of each in memory: a get touches one record.
    Slots,
}

impl Layout {
    pub(super) fn code(self) -> u8 {
        match self {
            Layout::Pages => 1,
            Layout::Slots => 2,
        }
    }

    pub(super) fn of(code: u8) -> Option<Layout> {
        match code {
            1 => Some(Layout::Pages),
            2 => Some(Layout::Slots),
            _ => None,
        }
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Pages => "pages",
            Layout::Slots => "slots",
        }
    }
}

/// A slice of the token space, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its first token.
    pub first: Token,
    /// Its last token.
    pub last: Token,
}

impl Slice {
    /// All tokens.
    pub const WHOLE: Slice = Slice { first: Token(0), last: Token(u64::MAX) };

    /// Whether a token lies in it.
    pub fn contains(&self, token: Token) -> bool {
        (self.first..=self.last).contains(&token)
    }
}

/// What the end of a chunk says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) layout: Layout,
    /// By how many bits the distance of a token from the slice's first is shifted left before its upper half is a
    /// fence's prefix. In slots it is 0.
    pub(super) shift: u8,
    pub(super) slice: Slice,
    pub(super) records: u64,
    /// Bytes of keys and values before compression.
    pub(super) payload_bytes: u64,
    /// Bytes of pages or records.
    pub(super) data_bytes: u64,
    /// Bytes of fences or buckets.
    pub(super) index_bytes: u64,
    pub(super) index_check: u64,
}

impl Footer {
    pub(super) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(CHUNK_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12] = self.layout.code();
        bytes[13] = self.shift;
        let numbers = [
            self.slice.first.0,
            self.slice.last.0,
            self.records,
            self.payload_bytes,
            self.data_bytes,
            self.index_bytes,
            self.index_check,
        ];
        for (place, number) in numbers.iter().enumerate() {
            bytes[16 + 8 * place..24 + 8 * place].copy_from_slice(&number.to_le_bytes());
        }
        let check = xxh3_64(&bytes[..FOOTER_BYTES - 8]);
        bytes[FOOTER_BYTES - 8..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a footer; the error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Footer, &'static str> {
        if bytes.len() != FOOTER_BYTES || !bytes.starts_with(CHUNK_MAGIC) {
            return Err("it does not end as a chunk does");
        }
        if u64_at(bytes, FOOTER_BYTES - 8) != xxh3_64(&bytes[..FOOTER_BYTES - 8]) {
            return Err("the checksum of its footer does not match");
        }
        if u32_at(bytes, 8) != FORMAT {
            return Err("it has a newer format; upgrade tontine");
        }
        let slice = Slice { first: Token(u64_at(bytes, 16)), last: Token(u64_at(bytes, 24)) };
        let layout = Layout::of(bytes[12]).ok_or("its layout is unknown")?;
        let footer = Footer {
            layout,
            shift: bytes[13],
            slice,
            records: u64_at(bytes, 32),
            payload_bytes: u64_at(bytes, 40),
            data_bytes: u64_at(bytes, 48),
            index_bytes: u64_at(bytes, 56),
            index_check: u64_at(bytes, 64),
        };
        let zeros = bytes[14..16].iter().chain(&bytes[72..88]).all(|&byte| byte == 0);
        if !zeros || slice.first > slice.last || footer.shift > 63 {
            return Err("its footer contradicts itself");
        }
        Ok(footer)
    }

    /// Makes page numbers and positions of different slices differ, so that bytes in the wrong place are noticed.
    pub(super) fn salt(slice: Slice) -> u64 {
        (slice.first.0 ^ 0x746f_6e74_696e_6532).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The prefix of a token in a chunk of pages.
#[inline]
pub(super) fn prefix(token: Token, first: Token, shift: u8) -> u32 {
    ((token.0.wrapping_sub(first.0) << shift) >> 32) as u32
}

/// The shift for a slice that reaches at most from `first` to `last`.
pub(super) fn shift(first: Token, last: Token) -> u8 {
    (last.0 - first.0).leading_zeros().min(63) as u8
}

/// Where the parts of a chunk's file of this length end: its body (data, index, footer) and its list of blocks.
pub(super) fn body_bytes(file_bytes: u64) -> Option<u64> {
    let blocks = file_bytes.div_ceil((BLOCK_BYTES + DIGEST_BYTES) as u64);
    let body = file_bytes.checked_sub(blocks * DIGEST_BYTES as u64)?;
    (body >= FOOTER_BYTES as u64 && body.div_ceil(BLOCK_BYTES as u64) == blocks).then_some(body)
}

/// The digest of a chunk: of its list of blocks and the length of its body, so that each block can be verified as it
/// comes.
pub(super) fn chunk_digest(blocks: &[u8], body_bytes: u64) -> Digest {
    let mut all = blocks.to_vec();
    all.extend_from_slice(&body_bytes.to_le_bytes());
    Digest::of(&all)
}

/// A record's own hash, wherever it lies.
#[inline]
pub(super) fn record_hash(key: &[u8], stored: &[u8]) -> u64 {
    xxh3_64(stored).wrapping_mul(0x9fb2_1c65_1e98_df25) ^ xxh3_64(key)
}

/// The check of a record: its hash, its lengths and coding, and where it lies.
#[inline]
pub(super) fn record_check(hash: u64, head: u16, stored_bytes: usize, place: u64) -> u32 {
    let shape = u64::from(head) ^ ((stored_bytes as u64) << 16);
    let mixed =
        (hash ^ shape.wrapping_mul(0xc2b2_ae3d_27d4_eb4f) ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0x1656_67b1_9e37_79f9);
    (mixed >> 32) as u32
}

/// A hash of bytes that belong to one place.
#[inline]
pub(super) fn placed_check(bytes: &[u8], place: u64) -> u64 {
    let mixed = xxh3_64(bytes) ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.wrapping_mul(0x1656_67b1_9e37_79f9) ^ (mixed >> 29)
}

#[inline]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_as_it_is_written() {
        let digest = Digest::of(b"tontine");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert!("0".repeat(31).parse::<Digest>().is_err() && "G".repeat(32).parse::<Digest>().is_err());
    }

    #[test]
    fn the_length_of_a_file_tells_where_its_body_ends() {
        for body in [96, 97, 1 << 20, (1 << 20) + 1, (5 << 20) - 1] {
            let blocks: u64 = u64::div_ceil(body, 1 << 20);
            assert_eq!(body_bytes(body + 16 * blocks), Some(body));
        }
        assert_eq!(body_bytes(0), None);
        assert_eq!(body_bytes((1 << 20) + 17), None, "no body has that many bytes");
    }

    #[test]
    fn a_footer_reads_as_it_was_written_and_a_flipped_bit_is_noticed() {
        let slice = Slice { first: Token(7), last: Token(900) };
        let footer = Footer {
            layout: Layout::Slots,
            shift: 0,
            slice,
            records: 3,
            payload_bytes: 40,
            data_bytes: 70,
            index_bytes: 64,
            index_check: 9,
        };
        let bytes = footer.encode();
        assert_eq!(Footer::decode(&bytes), Ok(footer));
        for bit in 0..FOOTER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::decode(&flipped).is_err(), "bit {bit}");
        }
    }
}
