//! Brings a chunk from a source to this disk, block by block. The list of its blocks comes first, and its digest is the
//! chunk's name; then each block is compared with the list before it is written.
//!
//! Must never: give a file a chunk's name whose bytes are not that chunk.

use std::sync::Arc;

use runtime::{Disk, DiskError, File};
use thiserror::Error;

use super::format::{BLOCK_BYTES, Digest, body_bytes, chunk_digest};
use super::manifest::ChunkEntry;

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

/// A chunk on its way.
pub struct Fetch {
    chunk: Digest,
    source: Arc<dyn File>,
    target: Arc<dyn File>,
    /// Digests of its blocks.
    blocks: Vec<u8>,
    body: u64,
    at: u64,
}

impl Fetch {
    /// Begins: verifies the list of blocks, and makes a file of this name for what comes. Whatever had the name is gone.
    ///
    /// # Errors
    /// When the source does not give that chunk.
    pub fn begin(
        (source, path): (&dyn Disk, &str),
        (target, part): (&dyn Disk, &str),
        entry: &ChunkEntry,
    ) -> Result<Fetch, FetchError> {
        let chunk = entry.digest;
        let from = |error| FetchError::Source { chunk, error };
        let differs = |what: String| FetchError::Differs { chunk, what };
        let file = source.open(path).map_err(from)?;
        if file.length() != entry.file_bytes {
            let (found, expected) = (file.length(), entry.file_bytes);
            return Err(differs(format!("it has {found} bytes, and the manifest says {expected}")));
        }
        let body =
            body_bytes(entry.file_bytes).ok_or_else(|| differs("no chunk has its length".to_owned()))?;
        let mut blocks = vec![0; (entry.file_bytes - body) as usize];
        let read = file.read_at(body, &mut blocks).map_err(from)?;
        if read < blocks.len() || chunk_digest(&blocks, body) != chunk {
            return Err(differs("its bytes have another digest".to_owned()));
        }
        let kept = |error| FetchError::Target { chunk, error };
        match target.remove(part) {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(kept(error)),
        }
        let target = target.create(part).map_err(kept)?;
        Ok(Fetch { chunk, source: file, target, blocks, body, at: 0 })
    }

    /// Brings one block, and tells how many bytes it has; 0 when all are here. Waits for the disks.
    ///
    /// # Errors
    /// As [`Fetch::begin`]; what is here is of no use then.
    pub fn step(&mut self) -> Result<usize, FetchError> {
        let chunk = self.chunk;
        let kept = |error| FetchError::Target { chunk, error };
        let wanted = (self.body - self.at).min(BLOCK_BYTES as u64) as usize;
        if wanted == 0 {
            return Ok(0);
        }
        let mut block = vec![0; wanted];
        let read = self.source.read_at(self.at, &mut block);
        let read = read.map_err(|error| FetchError::Source { chunk, error })?;
        let which = (self.at / BLOCK_BYTES as u64) as usize * 16;
        if read < wanted || Digest::of(&block).0[..] != self.blocks[which..which + 16] {
            let what = format!("the block at {} has another digest", self.at);
            return Err(FetchError::Differs { chunk, what });
        }
        self.target.append(&block).map_err(kept)?;
        self.at += wanted as u64;
        if self.at == self.body {
            self.target.append(&self.blocks).map_err(kept)?;
        }
        Ok(wanted)
    }

    /// Makes durable what came.
    ///
    /// # Errors
    /// When the disk refuses.
    pub async fn finish(self) -> Result<(), FetchError> {
        debug_assert_eq!(self.at, self.body, "all blocks are here");
        let chunk = self.chunk;
        self.target.sync().await.map_err(|error| FetchError::Target { chunk, error })
    }
}
