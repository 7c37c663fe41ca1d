//! Brings a chunk, or a delta, to this disk, block by block, from whoever has it. The list of its blocks comes first, and its digest
//! is the chunk's name; then each block is compared with the list before it is written.
//!
//! ```text
//!   list of blocks ─▶ resume: what is here of the chunk is compared, block by block, and kept as far as it is right
//!                        └─▶ wanted: which bytes come next ─▶ put: compared, written ─▶ … ─▶ finish: synced
//! ```
//!
//! So a fetch that was broken off, by whatever, goes on after the last block that is here.
//!
//! Must never: give a file a chunk's name whose bytes are not that chunk.

use std::ops::Range;
use std::sync::Arc;

use runtime::{Disk, DiskError, File};
use thiserror::Error;

use super::artifact::chunk_path;
use super::format::{BLOCK_BYTES, Digest, FileEntry, body_bytes, chunk_digest};

/// Why a chunk could not be brought here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The source does not give it.
    #[error("the source does not give chunk {chunk}: {error}")]
    Source {
        /// The chunk.
        chunk: Digest,
        /// What it said.
        error: DiskError,
    },
    /// What the source gives is something else.
    #[error("the source gives another chunk {chunk}: {what}")]
    Differs {
        /// The chunk.
        chunk: Digest,
        /// What is wrong.
        what: String,
    },
    /// This node's disk refuses.
    #[error("chunk {chunk} cannot be stored: {error}")]
    Target {
        /// The chunk.
        chunk: Digest,
        /// What it said.
        error: DiskError,
    },
}

fn differs(entry: FileEntry, what: impl Into<String>) -> FetchError {
    FetchError::Differs { chunk: entry.digest, what: what.into() }
}

/// A chunk of a source, open to be read.
pub struct SourceChunk {
    chunk: Digest,
    file: Arc<dyn File>,
}

impl SourceChunk {
    /// Opens it, and compares its length. Waits for the source.
    ///
    /// # Errors
    /// When the source does not give a file of that length.
    pub fn open(source: &dyn Disk, entry: FileEntry) -> Result<SourceChunk, FetchError> {
        let chunk = entry.digest;
        let file = source.open(&chunk_path(chunk)).map_err(|error| FetchError::Source { chunk, error })?;
        let (found, expected) = (file.length(), entry.bytes);
        match found == expected {
            true => Ok(SourceChunk { chunk, file }),
            false => Err(differs(entry, format!("it has {found} bytes, and the manifest says {expected}"))),
        }
    }

    /// Bytes of it, which nothing has verified. They do not stay in memory. Waits for the source.
    ///
    /// # Errors
    /// When the source does not give all of them.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>, FetchError> {
        let chunk = self.chunk;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = self.file.read_at(range.start, &mut bytes);
        let read = read.map_err(|error| FetchError::Source { chunk, error })?;
        if read < bytes.len() {
            let what = format!("it ends at {}", range.start + read as u64);
            return Err(FetchError::Differs { chunk, what });
        }
        self.file.drop_cached(range);
        Ok(bytes)
    }
}

/// The list of a chunk's blocks, and how far they were compared with it.
struct Blocks {
    chunk: Digest,
    list: Vec<u8>,
    /// Bytes before the list.
    body: u64,
    at: u64,
}

impl Blocks {
    /// Takes a list that has the chunk's digest.
    fn of(entry: FileEntry, list: Vec<u8>) -> Result<Blocks, FetchError> {
        let place = Fetch::list(entry)?;
        if list.len() as u64 != place.end - place.start || chunk_digest(&list, place.start) != entry.digest {
            return Err(differs(entry, "its bytes have another digest"));
        }
        Ok(Blocks { chunk: entry.digest, list, body: place.start, at: 0 })
    }

    /// Which bytes of the file come next, a block; `None` behind the last one.
    fn wanted(&self) -> Option<Range<u64>> {
        (self.at < self.body).then(|| self.at..(self.at + BLOCK_BYTES as u64).min(self.body))
    }

    fn is_next(&self, block: &[u8]) -> bool {
        let which = (self.at / BLOCK_BYTES as u64) as usize * 16;
        Digest::of(block).0[..] == self.list[which..which + 16]
    }

    /// The bytes that came next must be these. Returns where they lie.
    fn expect(&self, block: &[u8]) -> Result<Range<u64>, FetchError> {
        let wanted = self.wanted().unwrap_or(self.at..self.at);
        if block.len() as u64 != wanted.end - wanted.start || !self.is_next(block) {
            return Err(FetchError::Differs {
                chunk: self.chunk,
                what: format!("the block at {} has another digest", self.at),
            });
        }
        Ok(wanted)
    }
}

/// A file of a source from its beginning to its end, each block of which is compared before it is handed out.
pub struct VerifiedFile {
    source: SourceChunk,
    blocks: Blocks,
    is_over: bool,
}

impl VerifiedFile {
    /// Opens it, and verifies the list of its blocks. Waits for the source.
    ///
    /// # Errors
    /// When the source does not give a file of that length and digest.
    pub fn open(source: &dyn Disk, entry: FileEntry) -> Result<VerifiedFile, FetchError> {
        let source = SourceChunk::open(source, entry)?;
        let list = source.read(Fetch::list(entry)?)?;
        Ok(VerifiedFile { source, blocks: Blocks::of(entry, list)?, is_over: false })
    }

    /// Its next bytes, at most a block or the list of blocks; `None` at its end. Waits for the source.
    ///
    /// # Errors
    /// When the source does not give them, or gives others.
    pub fn read(&mut self) -> Result<Option<Vec<u8>>, FetchError> {
        if let Some(range) = self.blocks.wanted() {
            let block = self.source.read(range)?;
            self.blocks.at = self.blocks.expect(&block)?.end;
            return Ok(Some(block));
        }
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(None);
        }
        Ok(Some(self.blocks.list.clone()))
    }
}

/// A chunk on its way.
pub struct Fetch {
    target: Arc<dyn File>,
    blocks: Blocks,
}

impl Fetch {
    /// Where the list of a chunk's blocks lies in its file.
    ///
    /// # Errors
    /// When no chunk has the length that the manifest says.
    pub fn list(entry: FileEntry) -> Result<Range<u64>, FetchError> {
        let body = body_bytes(entry.bytes).ok_or_else(|| differs(entry, "no chunk has its length"))?;
        Ok(body..entry.bytes)
    }

    /// Begins, or goes on after the last block that is here in a file of this name: those before it are compared with
    /// the list, but for the first `verified` bytes, and whatever else the file holds is cut off. Waits for the disk.
    ///
    /// # Errors
    /// When the list is not that of the chunk, or the disk refuses.
    pub fn resume(
        (target, part): (&dyn Disk, &str),
        entry: FileEntry,
        list: Vec<u8>,
        verified: u64,
    ) -> Result<Fetch, FetchError> {
        let chunk = entry.digest;
        let blocks = Blocks::of(entry, list)?;
        let kept = |error| FetchError::Target { chunk, error };
        let (file, is_new) = match target.open(part) {
            Ok(file) => (file, false),
            Err(DiskError::NotFound { .. }) => (target.create(part).map_err(kept)?, true),
            Err(error) => return Err(kept(error)),
        };
        let verified = if verified <= file.length().min(blocks.body) { verified } else { 0 };
        let mut fetch = Fetch { target: file, blocks: Blocks { at: verified, ..blocks } };
        if !is_new {
            fetch.keep_verified().map_err(kept)?;
        }
        Ok(fetch)
    }

    /// Goes behind the blocks that are here, and cuts off the rest.
    fn keep_verified(&mut self) -> Result<(), DiskError> {
        let length = self.target.length();
        let mut block = Vec::new();
        while let Some(next) = self.wanted().filter(|next| next.end <= length) {
            block.resize((next.end - next.start) as usize, 0);
            let read = self.target.read_at(next.start, &mut block)?;
            self.target.drop_cached(next.clone());
            if read < block.len() || !self.blocks.is_next(&block) {
                break;
            }
            self.blocks.at = next.end;
        }
        if length > self.blocks.at {
            self.target.truncate(self.blocks.at)?;
        }
        match self.blocks.at == self.blocks.body {
            true => self.target.append(&self.blocks.list).map(|_| ()),
            false => Ok(()),
        }
    }

    /// How many bytes of it are here.
    pub fn here(&self) -> u64 {
        self.blocks.at
    }

    /// Which bytes of its file come next, a block; `None` when all are here.
    pub fn wanted(&self) -> Option<Range<u64>> {
        self.blocks.wanted()
    }

    /// Takes the bytes that came next. What is written does not stay in memory. Waits for the disk.
    ///
    /// # Errors
    /// When they are not those of the chunk, or the disk refuses; then it is of no use any more, and [`Fetch::resume`]
    /// goes on.
    pub fn put(&mut self, block: &[u8]) -> Result<(), FetchError> {
        let wanted = self.blocks.expect(block)?;
        let chunk = self.blocks.chunk;
        let kept = |error| FetchError::Target { chunk, error };
        self.target.append(block).map_err(kept)?;
        self.blocks.at = wanted.end;
        if self.blocks.at == self.blocks.body {
            self.target.append(&self.blocks.list).map_err(kept)?;
        }
        self.target.drop_cached(wanted);
        Ok(())
    }

    /// Makes durable what came.
    ///
    /// # Errors
    /// When the disk refuses.
    pub async fn finish(self) -> Result<(), FetchError> {
        let Blocks { chunk, at, body, .. } = self.blocks;
        assert_eq!(at, body, "all blocks are here");
        self.target.sync().await.map_err(|error| FetchError::Target { chunk, error })?;
        self.target.drop_cached(0..self.target.length());
        Ok(())
    }
}
