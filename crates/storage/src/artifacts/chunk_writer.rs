//! Writes one chunk: records in, in the order of token and key; a file out that is named by its contents.
//!
//! Must never: depend on anything but the records, the slice and the settings, so that whoever builds the same chunk
//! gets the same bytes.

use std::sync::Arc;

use model::Token;
use runtime::{Disk, DiskError, File};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::coding::{Compression, Sealer};
use super::format::{Footer, Layout, PAGE_BYTES, Slice, prefix, shift};
use super::manifest::ChunkEntry;
use super::output::Output;
use super::page::{self, Packed, Page, PageBuilder};
use super::{record, table};

/// Bytes of records after which a chunk ends within a partition, with room for one more: positions have 32 bits.
pub const DATA_BYTES_MAX: u64 = u32::MAX as u64 - (64 << 20);

/// Why a chunk cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The disk refused.
    #[error("{0}")]
    Disk(#[from] DiskError),
    /// The record does not come after the one before it.
    #[error("the records are not in the order of token and key, or two have the same key")]
    Order,
    /// The record belongs into another slice.
    #[error("token {token:016x} lies outside the slice {first:016x} to {last:016x}")]
    Outside {
        /// The record's token.
        token: u64,
        /// First token of the slice.
        first: u64,
        /// Last token of the slice.
        last: u64,
    },
    /// Nobody meets this by chance.
    #[error("more than 20 keys of one chunk share a 64-bit hash, which the layout \"slots\" does not hold")]
    TooManyAlike,
    /// Its records stopped coming before its end.
    #[error("the build was broken off")]
    BrokenOff,
    /// The slice has more than a chunk holds.
    #[error("a chunk would be longer than {DATA_BYTES_MAX} bytes")]
    TooLong,
}

/// What a chunk is being made of.
enum Body {
    Pages { builder: PageBuilder, fences: Vec<u32> },
    Slots { records: Vec<(u64, u32)> },
}

/// Writes one chunk.
pub struct ChunkWriter {
    disk: Arc<dyn Disk>,
    path: String,
    output: Output,
    /// The slice, as far as it may reach.
    outer: Slice,
    body: Body,
    salt: u64,
    shift: u8,
    records: u64,
    payload_bytes: u64,
    last: Option<(Token, Vec<u8>)>,
    buffer: Vec<u8>,
    full: Vec<Packed>,
}

/// A chunk that was written and is not durable yet.
pub struct Finished {
    /// What the manifest says of it.
    pub entry: ChunkEntry,
    /// Where it lies.
    pub path: String,
    /// To sync it.
    pub file: Arc<dyn File>,
}

impl ChunkWriter {
    /// Begins a chunk at a path that is free. Its slice begins at `outer.first` and reaches at most to `outer.last`.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(
        disk: Arc<dyn Disk>,
        path: &str,
        outer: Slice,
        layout: Layout,
    ) -> Result<ChunkWriter, WriteError> {
        ChunkWriter::shifted(disk, path, outer, layout, shift(outer.first, outer.last))
    }

    /// Begins a chunk of the same slice as another one, whose layout and prefixes it takes over.
    pub(super) fn like(disk: Arc<dyn Disk>, path: &str, footer: &Footer) -> Result<ChunkWriter, WriteError> {
        ChunkWriter::shifted(disk, path, footer.slice, footer.layout, footer.shift)
    }

    fn shifted(
        disk: Arc<dyn Disk>,
        path: &str,
        outer: Slice,
        layout: Layout,
        shift: u8,
    ) -> Result<ChunkWriter, WriteError> {
        let output = Output::new(disk.create(path)?);
        let salt = Footer::salt(outer);
        let body = match layout {
            Layout::Pages => Body::Pages { builder: PageBuilder::new(salt), fences: Vec::new() },
            Layout::Slots => Body::Slots { records: Vec::new() },
        };
        Ok(ChunkWriter {
            disk,
            path: path.to_owned(),
            output,
            outer,
            body,
            salt,
            shift,
            records: 0,
            payload_bytes: 0,
            last: None,
            buffer: Vec::new(),
            full: Vec::new(),
        })
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// When it is not the next, not of this slice, or the disk refuses.
    pub fn add(
        &mut self,
        token: Token,
        key: &[u8],
        value: &[u8],
        sealer: &mut Sealer,
    ) -> Result<(), WriteError> {
        self.add_sealed(token, key, sealer.seal(value), value.len())
    }

    /// Takes the next record, whose value is sealed already; `value_bytes` is its length before compression.
    pub(super) fn add_sealed(
        &mut self,
        token: Token,
        key: &[u8],
        sealed: (Compression, &[u8]),
        value_bytes: usize,
    ) -> Result<(), WriteError> {
        if !self.outer.contains(token) {
            let Slice { first, last } = self.outer;
            return Err(WriteError::Outside { token: token.0, first: first.0, last: last.0 });
        }
        if self.last.as_ref().is_some_and(|(before, last)| (*before, &last[..]) >= (token, key)) {
            return Err(WriteError::Order);
        }
        match &mut self.last {
            Some((before, last)) => {
                *before = token;
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last = Some((token, key.to_vec())),
        }
        self.records += 1;
        self.payload_bytes += (key.len() + value_bytes) as u64;
        if matches!(self.body, Body::Pages { .. }) && key.len() + sealed.1.len() > page::RECORD_BYTES_MAX {
            self.leave_pages()?;
        }
        self.put(token, key, sealed)
    }

    fn put(&mut self, token: Token, key: &[u8], sealed: (Compression, &[u8])) -> Result<(), WriteError> {
        match &mut self.body {
            Body::Pages { builder, fences } => {
                let prefix = prefix(token, self.outer.first, self.shift);
                builder.add((prefix, token.0 as u16), key, sealed, &mut self.full);
                for packed in self.full.drain(..) {
                    fences.push(packed.fence);
                    self.output.push(&packed.bytes[..])?;
                }
                Ok(())
            }
            Body::Slots { records } => {
                let position = self.output.length();
                if position > DATA_BYTES_MAX {
                    return Err(WriteError::TooLong);
                }
                records.push((table::slot_hash(key), position as u32));
                self.buffer.clear();
                record::append(&mut self.buffer, (self.salt, position as u32), key, sealed);
                self.output.push(&self.buffer)
            }
        }
    }

    /// A record fits no page: what was written goes into slots, and so does all that comes.
    fn leave_pages(&mut self) -> Result<(), WriteError> {
        let path = format!("{}.slots", self.path);
        let file = match self.disk.create(&path) {
            // A writer that was broken off has left it.
            Err(DiskError::Exists { .. }) => self.disk.remove(&path).and_then(|()| self.disk.create(&path)),
            created => created,
        };
        let output = Output::new(file?);
        let pages = std::mem::replace(&mut self.output, output);
        let Body::Pages { mut builder, .. } =
            std::mem::replace(&mut self.body, Body::Slots { records: Vec::new() })
        else {
            unreachable!("only pages are left")
        };
        let mut page = vec![0; PAGE_BYTES];
        let damaged = || DiskError::Failed {
            path: self.path.clone(),
            reason: "it reads otherwise than it was written".to_owned(),
        };
        let (damaged, salt) = (damaged(), self.salt);
        for number in 0..pages.length() / PAGE_BYTES as u64 {
            pages.read(number * PAGE_BYTES as u64, &mut page)?;
            self.take_page(&page, salt, number, &damaged)?;
        }
        if let Some(last) = builder.finish() {
            self.take_page(&last.bytes[..], salt, pages.length() / PAGE_BYTES as u64, &damaged)?;
        }
        self.disk.remove(&self.path)?;
        self.path = path;
        Ok(())
    }

    fn take_page(
        &mut self,
        bytes: &[u8],
        salt: u64,
        number: u64,
        damaged: &DiskError,
    ) -> Result<(), WriteError> {
        let page = Page::open(bytes, salt, number).map_err(|_| damaged.clone())?;
        for index in 0..page.count() {
            let record = page.record(index).map_err(|_| damaged.clone())?;
            if !record.holds(record.key, record.stored) {
                return Err(damaged.clone().into());
            }
            // The token decides only where pages end.
            self.put(Token(0), record.key, (record.coding, record.stored))?;
        }
        Ok(())
    }

    /// Ends the chunk; its slice reaches to `last`.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn finish(mut self, last: Token) -> Result<Finished, WriteError> {
        assert!(self.outer.contains(last), "the slice ends within what it may reach");
        assert!(self.last.as_ref().is_none_or(|(token, _)| *token <= last), "the slice holds its records");
        let (layout, index) = match &mut self.body {
            Body::Pages { builder, fences } => {
                if let Some(packed) = builder.finish() {
                    fences.push(packed.fence);
                    self.output.push(&packed.bytes[..])?;
                }
                (Layout::Pages, fences.iter().flat_map(|fence| fence.to_le_bytes()).collect())
            }
            Body::Slots { records } => {
                (Layout::Slots, table::build(records).map_err(|_| WriteError::TooManyAlike)?)
            }
        };
        let data_bytes = self.output.length();
        let slice = Slice { first: self.outer.first, last };
        let footer = Footer {
            layout,
            shift: if layout == Layout::Pages { self.shift } else { 0 },
            slice,
            records: self.records,
            payload_bytes: self.payload_bytes,
            data_bytes,
            index_bytes: index.len() as u64,
            index_check: xxh3_64(&index),
        };
        self.output.push(&index)?;
        self.output.push(&footer.encode())?;
        let (digest, file_bytes) = self.output.finish()?;
        let (records, payload_bytes) = (self.records, self.payload_bytes);
        let entry = ChunkEntry { digest, slice, layout, file_bytes, records, payload_bytes };
        Ok(Finished { entry, path: self.path, file: self.output.file })
    }

    /// Bytes of keys and values so far.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// The last record's token.
    pub fn last_token(&self) -> Option<Token> {
        self.last.as_ref().map(|(token, _)| *token)
    }
}
