//! Reads one chunk where it is mapped.
//!
//! Verified is what is used, each time: the head of the page that says whether a key is there, the record that holds
//! it. What stays in memory was verified when it was loaded. A value is copied first and verified then, so that no
//! byte that was not verified is ever answered, whatever happens to the file meanwhile.

mod seek;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use model::Token;
use runtime::{DiskError, File, Mapping};
use xxhash_rust::xxh3::xxh3_64;

use super::coding::{Compression, Opener};
use super::error::{OpenError, ReadError};
use super::format::{FOOTER_BYTES, Footer, Layout, PAGE_BYTES, body_bytes, chunk_digest, prefix};
use super::lanes::LANES;
use super::manifest::ChunkEntry;
use super::page::{Damaged, Page};
use super::record::{self, Head};
use super::table::{Table, Ways};

/// Bytes of a line of the processor's cache.
const LINE_BYTES: u64 = 64;
/// Bytes of a record that are fetched ahead at most; the processor sees for itself that more follow.
const AHEAD_BYTES_MAX: u64 = 1024;
/// Largest value after decompression, whatever a record says.
const VALUE_BYTES_MAX: usize = 64 << 20;

/// A chunk that is open.
pub(super) struct Chunk {
    mapping: Arc<dyn Mapping>,
    entry: ChunkEntry,
    salt: u64,
    data_bytes: u64,
    index: Index,
    /// Bytes of a record to fetch ahead.
    ahead_bytes: u64,
}

enum Index {
    Pages {
        /// The prefix of the first record of each page.
        fences: Box<[u32]>,
        shift: u8,
        /// Pages for each 2³² prefixes, in 32.32 bits: where a prefix should be, as hashes are spread evenly.
        pace: u64,
    },
    Slots(Table),
}

/// Where a key may be, found without touching the file.
#[derive(Clone, Copy)]
pub(super) enum Aim {
    /// The key sorts before all that is there.
    Nowhere,
    /// On these pages.
    Pages { first: u32, end: u32 },
    /// Where the table says.
    Ways(Ways),
}

/// What was found out about a read before its error is told to the caller.
pub(super) enum ChunkRefused {
    Damaged,
    Disk(DiskError),
}

impl From<Damaged> for ChunkRefused {
    fn from(_: Damaged) -> ChunkRefused {
        ChunkRefused::Damaged
    }
}

impl From<DiskError> for ChunkRefused {
    fn from(error: DiskError) -> ChunkRefused {
        ChunkRefused::Disk(error)
    }
}

/// A record of a chunk, for a visitor.
pub(super) struct Visited<'a> {
    pub(super) key: &'a [u8],
    pub(super) coding: Compression,
    pub(super) stored: &'a [u8],
}

impl Chunk {
    /// Opens a chunk: maps its file, reads its footer, its index and the list of its blocks, and compares them with the
    /// manifest. What cannot be read of these counts as damage.
    pub(super) fn open(file: &dyn File, entry: &ChunkEntry) -> Result<Chunk, OpenError> {
        let wrong = |what: &str| OpenError::Chunk { chunk: entry.digest, what: what.to_owned() };
        let disk = |error| OpenError::Disk { chunk: Some(entry.digest), error };
        let file_bytes = file.length();
        if file_bytes != entry.file_bytes {
            let expected = entry.file_bytes;
            return Err(wrong(&format!("it has {file_bytes} bytes, and the manifest says {expected}")));
        }
        let body = body_bytes(file_bytes).ok_or_else(|| wrong("no chunk has its length"))?;
        let footer_at = body - FOOTER_BYTES as u64;
        let part = |offset, bytes| {
            read(file, offset, bytes).map_err(|error| wrong(&format!("it cannot be read: {error}")))
        };
        // Nothing here needs the list, but it is what other nodes verify by when they are given the chunk.
        if chunk_digest(&part(body, file_bytes - body)?, body) != entry.digest {
            return Err(wrong("the list of its blocks has another digest"));
        }
        let footer = Footer::decode(&part(footer_at, FOOTER_BYTES as u64)?).map_err(wrong)?;
        let said = (footer.slice, footer.layout, footer.records, footer.payload_bytes);
        if said != (entry.slice, entry.layout, entry.records, entry.payload_bytes) {
            return Err(wrong("it and the manifest contradict each other"));
        }
        if footer.data_bytes.checked_add(footer.index_bytes) != Some(footer_at) {
            return Err(wrong("its parts have other lengths than its footer says"));
        }
        let index = part(footer.data_bytes, footer.index_bytes)?;
        if xxh3_64(&index) != footer.index_check {
            return Err(wrong("the checksum of its index does not match"));
        }
        let index = Index::load(&footer, &index).ok_or_else(|| wrong("its index contradicts its footer"))?;
        let mapping = file.map().map_err(disk)?;
        if mapping.length() != file_bytes {
            return Err(wrong("its length changed while it was opened"));
        }
        let mean = footer.data_bytes.checked_div(footer.records).unwrap_or(0);
        Ok(Chunk {
            mapping,
            salt: Footer::salt(footer.slice),
            data_bytes: footer.data_bytes,
            index,
            ahead_bytes: mean.min(AHEAD_BYTES_MAX),
            entry: entry.clone(),
        })
    }

    pub(super) fn entry(&self) -> &ChunkEntry {
        &self.entry
    }

    /// Bytes that it keeps in memory.
    pub(super) fn resident_bytes(&self) -> usize {
        match &self.index {
            Index::Pages { fences, .. } => size_of_val::<[u32]>(fences),
            Index::Slots(table) => table.bytes(),
        }
    }

    /// Looks again which of its pages are in memory.
    pub(super) fn refresh(&self) {
        self.mapping.refresh();
    }

    /// The error of a read.
    #[cold]
    pub(super) fn error(&self, refused: ChunkRefused) -> ReadError {
        match refused {
            ChunkRefused::Damaged => ReadError::Corrupt { chunk: self.entry.digest },
            ChunkRefused::Disk(error) => ReadError::Disk { chunk: self.entry.digest, error },
        }
    }

    /// Where a key may be.
    #[inline]
    pub(super) fn aim(&self, token: Token, key: &[u8]) -> Aim {
        match &self.index {
            Index::Slots(table) => Aim::Ways(table.ways(key)),
            Index::Pages { fences, shift, pace } => {
                let prefix = prefix(token, self.entry.slice.first, *shift);
                pages_of(fences, prefix, *pace)
            }
        }
    }

    /// Tells processor and device what a get of a key will touch first.
    #[inline]
    pub(super) fn prefetch(&self, aim: Aim, may_wait: bool) {
        match (&self.index, aim) {
            (_, Aim::Nowhere) => {}
            (Index::Slots(table), Aim::Ways(ways)) => table.prefetch(ways),
            (_, Aim::Pages { first, .. }) => {
                let at = u64::from(first) * PAGE_BYTES as u64;
                // The head, and the columns of some thirty records.
                (0..3).for_each(|line| self.mapping.prefetch(at + line * LINE_BYTES));
                if may_wait {
                    self.mapping.fetch_ahead(at..at + PAGE_BYTES as u64);
                }
            }
            (Index::Pages { .. }, Aim::Ways(_)) => unreachable!("slots only aim by ways"),
        }
    }

    /// Tells processor and device where the first candidate lies. It believes what it reads: nothing is concluded here.
    #[inline]
    pub(super) fn prefetch_record(&self, aim: Aim, token: Token, may_wait: bool) {
        let at = match (&self.index, aim) {
            (Index::Slots(table), Aim::Ways(ways)) => {
                let Some(position) = table.candidates(ways).next() else { return };
                u64::from(position)
            }
            (_, Aim::Pages { first, .. }) => {
                let at = u64::from(first) * PAGE_BYTES as u64;
                let Ok(view) = self.mapping.view(at..at + PAGE_BYTES as u64) else { return };
                let Some(start) = Page::guess(&view, token.0 as u16) else { return };
                at + start
            }
            _ => return,
        };
        let lines = (at % LINE_BYTES + self.ahead_bytes) / LINE_BYTES;
        (0..=lines).for_each(|line| self.mapping.prefetch(at + line * LINE_BYTES));
        if may_wait {
            self.mapping.fetch_ahead(at..(at + self.ahead_bytes + 1).min(self.data_bytes));
        }
    }

    /// Appends the value of a key to `out`; false when the key is not there.
    #[inline]
    pub(super) fn get(
        &self,
        aim: Aim,
        token: Token,
        key: &[u8],
        opener: &Opener,
        out: &mut Vec<u8>,
    ) -> Result<bool, ChunkRefused> {
        let start = out.len();
        let found = match (&self.index, aim) {
            (_, Aim::Nowhere) => None,
            (Index::Slots(table), Aim::Ways(ways)) => self.get_from_slots(table, ways, key, out)?,
            (_, Aim::Pages { first, end }) => self.get_from_pages(first..end, token, key, out)?,
            (Index::Pages { .. }, Aim::Ways(_)) => unreachable!("slots only aim by ways"),
        };
        match found {
            // Zeros in the place of a page that was missing may have looked like a key that is not there.
            None if !self.mapping.is_sound() => Err(ChunkRefused::Damaged),
            None => {
                debug_assert_eq!(out.len(), start, "a key that is not there has no value");
                Ok(false)
            }
            Some(Compression::None) => Ok(true),
            Some(coding) => {
                let value =
                    opener.open(coding, &out[start..], VALUE_BYTES_MAX).ok_or(ChunkRefused::Damaged)?;
                out.truncate(start);
                out.extend_from_slice(&value);
                Ok(true)
            }
        }
    }

    #[inline]
    fn get_from_pages(
        &self,
        pages: Range<u32>,
        token: Token,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Compression>, ChunkRefused> {
        debug_assert!(
            u64::from(pages.end) * PAGE_BYTES as u64 <= self.data_bytes,
            "pages {pages:?} lie within {} bytes",
            self.data_bytes
        );
        for number in pages {
            let at = u64::from(number) * PAGE_BYTES as u64;
            let view = self.mapping.view(at..at + PAGE_BYTES as u64)?;
            let page = Page::open(&view, self.salt, u64::from(number))?;
            for first in (0..page.count()).step_by(LANES) {
                let mut candidates = page.candidates(first, token.0 as u16);
                while candidates != 0 {
                    let record = page.record(first + candidates.trailing_zeros() as usize)?;
                    candidates &= candidates - 1;
                    if record.key == key {
                        let start = out.len();
                        out.extend_from_slice(record.stored);
                        if record.holds(key, &out[start..]) {
                            return Ok(Some(record.coding));
                        }
                        out.truncate(start);
                        return Err(ChunkRefused::Damaged);
                    }
                    if !record.holds(record.key, record.stored) {
                        return Err(ChunkRefused::Damaged);
                    }
                }
            }
        }
        Ok(None)
    }

    #[inline]
    fn get_from_slots(
        &self,
        table: &Table,
        ways: Ways,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Compression>, ChunkRefused> {
        for position in table.candidates(ways) {
            let head = self.head(position)?;
            let body = self.body(position, &head)?;
            let view = self.mapping.view(body)?;
            let (viewed, asked) = (view.len(), head.key_bytes + head.stored_bytes);
            debug_assert_eq!(viewed, asked, "a view has the bytes that it was asked for");
            let (stored_key, stored) = view.split_at(head.key_bytes);
            if stored_key == key {
                let start = out.len();
                out.extend_from_slice(stored);
                if head.holds(key, &out[start..], self.salt, position) {
                    return Ok(Some(head.coding));
                }
                out.truncate(start);
                return Err(ChunkRefused::Damaged);
            }
            if !head.holds(stored_key, stored, self.salt, position) {
                return Err(ChunkRefused::Damaged);
            }
        }
        Ok(None)
    }

    /// The head of the record at a position, not verified.
    #[inline]
    fn head(&self, position: u32) -> Result<Head, ChunkRefused> {
        let at = u64::from(position);
        let end = at + record::HEAD_BYTES as u64;
        if end > self.data_bytes {
            return Err(ChunkRefused::Damaged);
        }
        let view = self.mapping.view(at..end)?;
        Head::read(&view).ok_or(ChunkRefused::Damaged)
    }

    /// Where key and value of a record lie.
    #[inline]
    fn body(&self, position: u32, head: &Head) -> Result<Range<u64>, ChunkRefused> {
        let start = u64::from(position) + record::HEAD_BYTES as u64;
        let end = u64::from(position) + head.record_bytes() as u64;
        if end > self.data_bytes { Err(ChunkRefused::Damaged) } else { Ok(start..end) }
    }

    /// Visits records in the order of tokens, from a place on that a walk before named; 0 is the first. The place
    /// after the last is returned when the visitor stops; `None` at the end.
    pub(super) fn walk(
        &self,
        from: u64,
        visit: &mut dyn FnMut(Visited<'_>) -> ControlFlow<()>,
    ) -> Result<Option<u64>, ChunkRefused> {
        let end = match &self.index {
            Index::Pages { fences, .. } => (fences.len() as u64) << 16,
            Index::Slots(_) => self.data_bytes,
        };
        assert!(from <= end, "a walk goes on at {from}, behind the end of its chunk at {end}");
        match &self.index {
            Index::Pages { fences, .. } => self.walk_pages(fences.len() as u64, from, visit),
            Index::Slots(_) => self.walk_slots(from, visit),
        }
    }

    fn walk_pages(
        &self,
        pages: u64,
        from: u64,
        visit: &mut dyn FnMut(Visited<'_>) -> ControlFlow<()>,
    ) -> Result<Option<u64>, ChunkRefused> {
        let (mut number, mut index) = (from >> 16, (from & 0xffff) as usize);
        while number < pages {
            let at = number * PAGE_BYTES as u64;
            let copy = self.mapping.view(at..at + PAGE_BYTES as u64)?.to_vec();
            let page = Page::open(&copy, self.salt, number)?;
            while index < page.count() {
                let record = page.record(index)?;
                if !record.holds(record.key, record.stored) {
                    return Err(ChunkRefused::Damaged);
                }
                index += 1;
                let next = (number << 16) + index as u64;
                let visited = Visited { key: record.key, coding: record.coding, stored: record.stored };
                if visit(visited).is_break() {
                    return Ok(Some(next));
                }
            }
            (number, index) = (number + 1, 0);
        }
        Ok(None)
    }

    /// Copies key and value of the record at a position, and verifies them.
    fn copy_record(&self, position: u32, copy: &mut Vec<u8>) -> Result<Head, ChunkRefused> {
        let head = self.head(position)?;
        copy.clear();
        copy.extend_from_slice(&self.mapping.view(self.body(position, &head)?)?);
        let (key, stored) = copy.split_at(head.key_bytes);
        if head.holds(key, stored, self.salt, position) { Ok(head) } else { Err(ChunkRefused::Damaged) }
    }

    fn walk_slots(
        &self,
        from: u64,
        visit: &mut dyn FnMut(Visited<'_>) -> ControlFlow<()>,
    ) -> Result<Option<u64>, ChunkRefused> {
        let mut at = from;
        let mut copy = Vec::new();
        while at < self.data_bytes {
            let position = u32::try_from(at).map_err(|_| ChunkRefused::Damaged)?;
            let head = self.copy_record(position, &mut copy)?;
            let (key, stored) = copy.split_at(head.key_bytes);
            at += head.record_bytes() as u64;
            if visit(Visited { key, coding: head.coding, stored }).is_break() {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }
}

impl Index {
    fn load(footer: &Footer, bytes: &[u8]) -> Option<Index> {
        if footer.layout == Layout::Slots {
            return Table::load(bytes).filter(|_| footer.data_bytes <= u64::from(u32::MAX)).map(Index::Slots);
        }
        let (fences, rest) = bytes.as_chunks::<4>();
        let pages = footer.data_bytes / PAGE_BYTES as u64;
        let whole = footer.data_bytes.is_multiple_of(PAGE_BYTES as u64) && rest.is_empty();
        if !whole || fences.len() as u64 != pages || pages > u64::from(u32::MAX) {
            return None;
        }
        let fences: Box<[u32]> = fences.iter().map(|fence| u32::from_le_bytes(*fence)).collect();
        if !fences.is_sorted() {
            return None;
        }
        let span = u64::from(prefix(footer.slice.last, footer.slice.first, footer.shift)) + 1;
        Some(Index::Pages { pace: (pages << 32) / span, fences, shift: footer.shift })
    }
}

/// The pages on which records with a prefix may lie: one, unless those of this prefix fill several.
#[inline]
fn pages_of(fences: &[u32], prefix: u32, pace: u64) -> Aim {
    let Some(last) = last_page(fences, prefix, pace) else { return Aim::Nowhere };
    let mut first = last;
    while fences[first] == prefix && first > 0 && fences[first - 1] == prefix {
        first -= 1;
    }
    debug_assert!(fences[last] <= prefix, "page {last} begins behind prefix {prefix}: {}", fences[last]);
    debug_assert!(fences.get(last + 1).is_none_or(|next| *next > prefix), "page {last} is not the last one");
    debug_assert!(
        first == 0 || fences[first - 1] < prefix,
        "prefix {prefix} begins in front of page {first}"
    );
    Aim::Pages { first: first as u32, end: last as u32 + 1 }
}

/// The last page whose fence is not above a prefix. Hashes are spread evenly, so it is near where it should be.
#[inline]
fn last_page(fences: &[u32], prefix: u32, pace: u64) -> Option<usize> {
    /// Steps from there before the rest is halved: each costs less than a branch that is guessed wrong.
    const STEPS_MAX: usize = 16;
    if fences.is_empty() {
        return None;
    }
    let guess = ((u128::from(prefix) * u128::from(pace)) >> 32) as usize;
    let mut page = guess.min(fences.len() - 1);
    if fences[page] <= prefix {
        for _ in 0..STEPS_MAX {
            if page + 1 == fences.len() || fences[page + 1] > prefix {
                return Some(page);
            }
            page += 1;
        }
        return Some(page + fences[page..].partition_point(|fence| *fence <= prefix) - 1);
    }
    for _ in 0..STEPS_MAX {
        page = page.checked_sub(1)?;
        if fences[page] <= prefix {
            return Some(page);
        }
    }
    fences[..page].partition_point(|fence| *fence <= prefix).checked_sub(1)
}

/// Bytes of a file, all of them.
fn read(file: &dyn File, offset: u64, bytes: u64) -> Result<Vec<u8>, DiskError> {
    // The length was compared with the file's.
    let mut buffer = vec![0; bytes as usize];
    let count = file.read_at(offset, &mut buffer)?;
    if count < buffer.len() {
        let reason = "it ended earlier than its length says".to_owned();
        return Err(DiskError::Failed { path: "chunk".to_owned(), reason });
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_found_wherever_the_guess_lands() {
        for pages in [1_usize, 2, 3, 17, 300, 5000] {
            for skew in [1_u64, 7, 4000] {
                let fences: Vec<u32> = (0..pages as u64)
                    .map(|page| (page * page * skew / pages as u64 * 3 + 5) as u32)
                    .collect();
                let pace = (pages as u64) << 32 >> 24;
                for prefix in fences.iter().flat_map(|&fence| [fence.saturating_sub(1), fence, fence + 1]) {
                    let expected = fences.iter().rposition(|&fence| fence <= prefix);
                    assert_eq!(last_page(&fences, prefix, pace), expected, "{pages} pages, prefix {prefix}");
                }
            }
        }
        assert_eq!(last_page(&[], 7, 0), None);
    }
}
