//! Pages: how records are packed into 4 KiB, and found there.
//!
//! ```text
//! check 8 │ count 2 │ end 2 │ zeros 4 │ fingerprints, in eights │ starts │ records … │ zeros
//! record: check 4 │ head 2 (length of key, coding) │ key │ value as stored
//! ```
//!
//! Records of one prefix never straddle two pages, unless they do not fit one: so the fences in memory say which page
//! a key must be on.

use std::ops::Range;

use super::coding::Compression;
use super::format::{PAGE_BYTES, placed_check, record_check, record_hash, u16_at, u32_at, u64_at};
use super::lanes::{self, LANES};

/// Bytes before the fingerprints.
const HEAD_BYTES: usize = 16;
/// Bytes of a record before its key.
const RECORD_HEAD_BYTES: usize = 6;
/// Key and stored value of one record that a page has room for.
pub(super) const RECORD_BYTES_MAX: usize = PAGE_BYTES - HEAD_BYTES - 2 * LANES - 2 - RECORD_HEAD_BYTES;

/// The length of the longest key that a head has room for: all ones.
const HEAD_KEY_BYTES_MAX: usize = (1 << 13) - 1;

/// Length of the key and coding of the value in one number.
#[inline]
pub(super) fn head(key_bytes: usize, coding: Compression) -> u16 {
    assert!(
        key_bytes <= HEAD_KEY_BYTES_MAX,
        "a head has no room for the length of a key of {key_bytes} bytes"
    );
    key_bytes as u16 | (u16::from(coding.code()) << 13)
}

/// What [`head`] says; `None` where it was never made by it.
#[inline]
pub(super) fn unhead(head: u16) -> Option<(usize, Compression)> {
    Some((usize::from(head) & HEAD_KEY_BYTES_MAX, Compression::of((head >> 13) as u8)?))
}

/// Bytes of the fingerprints and starts of this many records.
#[inline]
fn columns_bytes(count: usize) -> usize {
    count.div_ceil(LANES) * 2 * LANES + 2 * count
}

/// Where a record of a page lies, for its check.
#[inline]
fn place(salt: u64, page: u64, index: usize) -> u64 {
    salt.wrapping_add(page << 16).wrapping_add(index as u64 + 1)
}

/// Where a page lies, for its check.
#[inline]
fn page_place(salt: u64, page: u64) -> u64 {
    salt.wrapping_add(page << 16)
}

/// A record that waits for its page.
#[derive(Clone, Copy)]
struct Waiting {
    prefix: u32,
    fingerprint: u16,
    head: u16,
    hash: u64,
    start: usize,
    end: usize,
}

/// Packs records into pages.
pub(super) struct PageBuilder {
    salt: u64,
    pages: u64,
    records: Vec<Waiting>,
    bytes: Vec<u8>,
}

/// A page that is full: its fence, and its bytes.
pub(super) struct Packed {
    pub(super) fence: u32,
    pub(super) bytes: Box<[u8; PAGE_BYTES]>,
}

impl PageBuilder {
    pub(super) fn new(salt: u64) -> PageBuilder {
        PageBuilder { salt, pages: 0, records: Vec::new(), bytes: Vec::with_capacity(2 * PAGE_BYTES) }
    }

    /// Takes a record, whose key and stored value fit a page; hands out the pages before it that are full.
    pub(super) fn add(
        &mut self,
        (prefix, fingerprint): (u32, u16),
        key: &[u8],
        (coding, stored): (Compression, &[u8]),
        full: &mut Vec<Packed>,
    ) {
        let bytes = key.len() + stored.len();
        assert!(bytes <= RECORD_BYTES_MAX, "the caller knows what fits");
        // What moves to the next page with the record may not fit there with it.
        while !self.records.is_empty() && !self.has_room(bytes) {
            full.push(self.close(self.run_start(prefix)));
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(stored);
        self.records.push(Waiting {
            prefix,
            fingerprint,
            head: head(key.len(), coding),
            hash: record_hash(key, stored),
            start,
            end: self.bytes.len(),
        });
    }

    fn has_room(&self, bytes: usize) -> bool {
        let count = self.records.len() + 1;
        HEAD_BYTES + columns_bytes(count) + RECORD_HEAD_BYTES * count + self.bytes.len() + bytes <= PAGE_BYTES
    }

    /// How many records the page closes with: those of this prefix go to the next page together, unless they are all.
    fn run_start(&self, prefix: u32) -> usize {
        let run = self.records.iter().rev().take_while(|record| record.prefix == prefix).count();
        if run == self.records.len() { run } else { self.records.len() - run }
    }

    /// The last page, if there is one.
    pub(super) fn finish(&mut self) -> Option<Packed> {
        (!self.records.is_empty()).then(|| self.close(self.records.len()))
    }

    /// Packs the first `count` records into a page.
    fn close(&mut self, count: usize) -> Packed {
        let mut page = Box::new([0; PAGE_BYTES]);
        let starts = HEAD_BYTES + count.div_ceil(LANES) * 2 * LANES;
        let columns_end = HEAD_BYTES + columns_bytes(count);
        let mut end = columns_end;
        for (index, record) in self.records[..count].iter().enumerate() {
            let body = &self.bytes[record.start..record.end];
            let stored_bytes = body.len() - (usize::from(record.head) & HEAD_KEY_BYTES_MAX);
            let check =
                record_check(record.hash, record.head, stored_bytes, place(self.salt, self.pages, index));
            page[HEAD_BYTES + 2 * index..][..2].copy_from_slice(&record.fingerprint.to_le_bytes());
            page[starts + 2 * index..][..2].copy_from_slice(&(end as u16).to_le_bytes());
            page[end..end + 4].copy_from_slice(&check.to_le_bytes());
            page[end + 4..end + 6].copy_from_slice(&record.head.to_le_bytes());
            page[end + RECORD_HEAD_BYTES..][..body.len()].copy_from_slice(body);
            end += RECORD_HEAD_BYTES + body.len();
        }
        page[8..10].copy_from_slice(&(count as u16).to_le_bytes());
        page[10..12].copy_from_slice(&(end as u16).to_le_bytes());
        let check = placed_check(&page[8..columns_end], page_place(self.salt, self.pages));
        page[..8].copy_from_slice(&check.to_le_bytes());
        let fence = self.records[0].prefix;
        self.pages += 1;
        let kept_from = self.records[count - 1].end;
        self.bytes.drain(..kept_from);
        self.records.drain(..count);
        for record in &mut self.records {
            record.start -= kept_from;
            record.end -= kept_from;
        }
        Packed { fence, bytes: page }
    }
}

/// Bytes that are not what was written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// A page whose head was verified.
pub(super) struct Page<'a> {
    bytes: &'a [u8],
    salt: u64,
    number: u64,
    count: usize,
    starts: usize,
    end: usize,
}

/// A record of a page, not verified yet.
pub(super) struct Record<'a> {
    pub(super) key: &'a [u8],
    pub(super) coding: Compression,
    pub(super) stored: &'a [u8],
    check: u32,
    head: u16,
    place: u64,
}

impl Record<'_> {
    /// Whether the check holds for these bytes of a key and a value: those of the record, or copies.
    #[inline]
    pub(super) fn holds(&self, key: &[u8], stored: &[u8]) -> bool {
        record_check(record_hash(key, stored), self.head, stored.len(), self.place) == self.check
    }
}

impl<'a> Page<'a> {
    /// Verifies the head of page `number`.
    #[inline]
    pub(super) fn open(bytes: &'a [u8], salt: u64, number: u64) -> Result<Page<'a>, Damaged> {
        let bytes = bytes.get(..PAGE_BYTES).ok_or(Damaged)?;
        let count = usize::from(u16_at(bytes, 8));
        let end = usize::from(u16_at(bytes, 10));
        let columns_end = HEAD_BYTES + columns_bytes(count);
        if count == 0 || columns_end > end || end > PAGE_BYTES {
            return Err(Damaged);
        }
        if placed_check(&bytes[8..columns_end], page_place(salt, number)) != u64_at(bytes, 0) {
            return Err(Damaged);
        }
        let starts = HEAD_BYTES + count.div_ceil(LANES) * 2 * LANES;
        Ok(Page { bytes, salt, number, count, starts, end })
    }

    /// Where a record with this fingerprint begins, on a page that nobody has verified: to fetch it ahead.
    #[inline]
    pub(super) fn guess(bytes: &[u8], fingerprint: u16) -> Option<u64> {
        let count = usize::from(u16_at(bytes.get(..PAGE_BYTES)?, 8));
        if HEAD_BYTES + columns_bytes(count) > PAGE_BYTES {
            return None;
        }
        let starts = HEAD_BYTES + count.div_ceil(LANES) * 2 * LANES;
        let page = Page { bytes, salt: 0, number: 0, count, starts, end: 0 };
        (0..count).step_by(LANES).find_map(|first| {
            let found = page.candidates(first, fingerprint);
            (found != 0)
                .then(|| u64::from(u16_at(bytes, starts + 2 * (first + found.trailing_zeros() as usize))))
        })
    }

    /// How many records it has.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The records with this fingerprint, one bit each, of the eight from `first` on.
    #[inline]
    pub(super) fn candidates(&self, first: usize, fingerprint: u16) -> u32 {
        debug_assert!(
            first < self.count && first.is_multiple_of(LANES),
            "eight fingerprints of {} begin at {first}",
            self.count
        );
        let at = HEAD_BYTES + 2 * first;
        let eight = self.bytes[at..at + 2 * LANES].try_into().expect("as many as there are lanes");
        let equal = lanes::equal(eight, fingerprint);
        // Of the last eight some may be padding.
        let real = self.count - first;
        if real >= LANES { equal } else { equal & ((1 << real) - 1) }
    }

    /// A record by its place on the page.
    #[inline]
    pub(super) fn record(&self, index: usize) -> Result<Record<'a>, Damaged> {
        debug_assert!(index < self.count, "record {index} of a page of {}", self.count);
        let Range { start, end } = self.bounds(index);
        let bytes =
            self.bytes.get(start..end).filter(|bytes| bytes.len() >= RECORD_HEAD_BYTES).ok_or(Damaged)?;
        let head = u16_at(bytes, 4);
        let (key_bytes, coding) = unhead(head).ok_or(Damaged)?;
        let body = &bytes[RECORD_HEAD_BYTES..];
        if key_bytes > body.len() {
            return Err(Damaged);
        }
        let (key, stored) = body.split_at(key_bytes);
        let place = place(self.salt, self.number, index);
        Ok(Record { key, coding, stored, check: u32_at(bytes, 0), head, place })
    }

    /// Where key and stored value of a record lie on the page.
    pub(super) fn body(&self, index: usize) -> Range<usize> {
        let Range { start, end } = self.bounds(index);
        start + RECORD_HEAD_BYTES..end
    }

    #[inline]
    fn bounds(&self, index: usize) -> Range<usize> {
        let start = |index: usize| usize::from(u16_at(self.bytes, self.starts + 2 * index));
        start(index)..if index + 1 < self.count { start(index + 1) } else { self.end }
    }
}
