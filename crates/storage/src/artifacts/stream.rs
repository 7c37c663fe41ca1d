//! Reads all records of a chunk or a delta, one after the other, in long reads. Gets read where a file is mapped
//! instead, and need only a few of its pages.

use std::ops::Range;
use std::sync::Arc;

use model::Token;
use runtime::File;

use super::coding::Compression;
use super::delta::{self, DeltaFooter};
use super::format::{FOOTER_BYTES, Footer, Layout, PAGE_BYTES, body_bytes};
use super::manifest::TokenHash;
use super::page::{Damaged, Page};
use super::record::{HEAD_BYTES, Head};

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Why a file cannot be read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

impl From<Damaged> for Broken {
    fn from(_: Damaged) -> Broken {
        Broken("a checksum does not match".to_owned())
    }
}

fn broken(what: &str) -> Broken {
    Broken(what.to_owned())
}

enum Kind {
    Pages,
    Slots,
    Delta,
}

/// Where a record lies in the buffer.
struct RecordFound {
    key: Range<usize>,
    stored: Range<usize>,
    /// How the value is compressed; `None` deletes the key.
    coding: Option<Compression>,
}

/// A record as it is stored.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) token: Token,
    pub(super) key: &'a [u8],
    /// Coding and stored bytes of its value; `None` deletes the key.
    pub(super) sealed: Option<(Compression, &'a [u8])>,
}

/// Hands out records in their order.
pub(super) struct Stream {
    file: Arc<dyn File>,
    hash: TokenHash,
    kind: Kind,
    salt: u64,
    data_bytes: u64,
    /// Where in the file the buffer begins.
    offset: u64,
    buffer: Vec<u8>,
    /// Where in the buffer that begins what is not in `found` yet.
    at: usize,
    /// Records of one page, or one record.
    found: Vec<RecordFound>,
    next: usize,
}

impl Stream {
    /// Begins with the first record of a chunk.
    pub(super) fn of_chunk(file: Arc<dyn File>, hash: TokenHash) -> Result<(Stream, Footer), Broken> {
        let (footer_at, bytes) = footer(&*file)?;
        let footer = Footer::decode(&bytes).map_err(broken)?;
        if footer.data_bytes.checked_add(footer.index_bytes) != Some(footer_at) {
            return Err(broken("its parts have other lengths than its footer says"));
        }
        let kind = match footer.layout {
            Layout::Pages => Kind::Pages,
            Layout::Slots => Kind::Slots,
        };
        let stream = Stream::begin(file, hash, kind, (Footer::salt(footer.slice), footer.data_bytes))?;
        Ok((stream, footer))
    }

    /// Begins with the first record of a delta.
    pub(super) fn of_delta(file: Arc<dyn File>, hash: TokenHash) -> Result<(Stream, DeltaFooter), Broken> {
        let (footer_at, bytes) = footer(&*file)?;
        let footer = DeltaFooter::decode(&bytes).map_err(broken)?;
        if footer.data_bytes != footer_at {
            return Err(broken("its records have another length than its footer says"));
        }
        let salt = delta::salt(footer.slice);
        let stream = Stream::begin(file, hash, Kind::Delta, (salt, footer.data_bytes))?;
        Ok((stream, footer))
    }

    fn begin(
        file: Arc<dyn File>,
        hash: TokenHash,
        kind: Kind,
        (salt, data_bytes): (u64, u64),
    ) -> Result<Stream, Broken> {
        let (buffer, found) = (Vec::new(), Vec::new());
        let mut stream =
            Stream { file, hash, kind, salt, data_bytes, offset: 0, buffer, at: 0, found, next: 0 };
        stream.fill()?;
        Ok(stream)
    }

    /// The record that is its turn; `None` at the end.
    pub(super) fn current(&self) -> Option<Item<'_>> {
        self.found.get(self.next).map(|found| {
            let key = &self.buffer[found.key.clone()];
            let stored = &self.buffer[found.stored.clone()];
            Item { token: self.hash.token(key), key, sealed: found.coding.map(|coding| (coding, stored)) }
        })
    }

    /// Goes on to the next record.
    pub(super) fn advance(&mut self) -> Result<(), Broken> {
        self.next += 1;
        if self.next >= self.found.len() { self.fill() } else { Ok(()) }
    }

    /// Finds the next records, whose checks hold.
    fn fill(&mut self) -> Result<(), Broken> {
        self.found.clear();
        self.next = 0;
        if self.offset + self.at as u64 >= self.data_bytes {
            return Ok(());
        }
        match self.kind {
            Kind::Pages => self.fill_page(),
            Kind::Slots | Kind::Delta => self.fill_record(),
        }
    }

    fn fill_page(&mut self) -> Result<(), Broken> {
        self.need(PAGE_BYTES)?;
        let number = (self.offset + self.at as u64) / PAGE_BYTES as u64;
        let page = Page::open(&self.buffer[self.at..], self.salt, number)?;
        for index in 0..page.count() {
            let record = page.record(index)?;
            if !record.holds(record.key, record.stored) {
                return Err(Damaged.into());
            }
            let body = page.body(index);
            let (start, end) = (self.at + body.start, self.at + body.end);
            let middle = start + record.key.len();
            let coding = Some(record.coding);
            self.found.push(RecordFound { key: start..middle, stored: middle..end, coding });
        }
        self.at += PAGE_BYTES;
        Ok(())
    }

    fn fill_record(&mut self) -> Result<(), Broken> {
        self.need(HEAD_BYTES)?;
        let bytes = &self.buffer[self.at..];
        let read = match self.kind {
            Kind::Delta => Head::read_delta(bytes),
            _ => Head::read(bytes).map(|head| (head, false)),
        };
        let (head, deletes) = read.ok_or(Damaged)?;
        let position = u32::try_from(self.offset + self.at as u64).map_err(|_| Damaged)?;
        self.need(head.record_bytes())?;
        let start = self.at + HEAD_BYTES;
        let middle = start + head.key_bytes;
        let end = self.at + head.record_bytes();
        let (key, stored) = (start..middle, middle..end);
        if !head.holds(&self.buffer[key.clone()], &self.buffer[stored.clone()], self.salt, position) {
            return Err(Damaged.into());
        }
        let coding = (!deletes).then_some(head.coding);
        self.found.push(RecordFound { key, stored, coding });
        self.at = end;
        Ok(())
    }

    /// Reads on until this many bytes of what comes next are in the buffer.
    fn need(&mut self, bytes: usize) -> Result<(), Broken> {
        if self.buffer.len() - self.at >= bytes {
            return Ok(());
        }
        let left = self.data_bytes - (self.offset + self.at as u64);
        if left < bytes as u64 {
            return Err(broken("it ends in the middle of a record"));
        }
        self.buffer.drain(..self.at);
        self.offset += self.at as u64;
        self.at = 0;
        let have = self.buffer.len();
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.max(READ_BYTES));
        self.buffer.resize(wanted, 0);
        let read = self.file.read_at(self.offset + have as u64, &mut self.buffer[have..]);
        match read {
            Ok(read) if read == wanted - have => Ok(()),
            Ok(_) => Err(broken("it is shorter than when it was opened")),
            Err(error) => Err(Broken(error.to_string())),
        }
    }
}

/// The footer's bytes, and where it lies.
fn footer(file: &dyn File) -> Result<(u64, Vec<u8>), Broken> {
    let body = body_bytes(file.length()).ok_or_else(|| broken("no chunk has its length"))?;
    let at = body - FOOTER_BYTES as u64;
    let mut bytes = vec![0; FOOTER_BYTES];
    match file.read_at(at, &mut bytes) {
        Ok(FOOTER_BYTES) => Ok((at, bytes)),
        Ok(_) => Err(broken("it is shorter than when it was opened")),
        Err(error) => Err(Broken(error.to_string())),
    }
}
