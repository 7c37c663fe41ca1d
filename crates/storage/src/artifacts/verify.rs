//! Reads the file of a chunk from end to end where it lies, to see whether it still is what its name says: for a scrub,
//! which reads what nobody else does.
//!
//! The list of its blocks has the digest that names it, and each block is compared with the list. So nothing of it is
//! decoded, and the manifest is not needed.
//!
//! Must never: push out of memory what others read.

use std::sync::Arc;

use runtime::{DiskError, File};

use super::format::{BLOCK_BYTES, Digest, FileEntry, body_bytes, chunk_digest};

/// A file that is being verified.
pub struct Verify {
    file: Arc<dyn File>,
    /// Digests of its blocks.
    blocks: Vec<u8>,
    body: u64,
    at: u64,
}

impl Verify {
    /// Compares length and list. Nothing where they are not those of the chunk. Waits for the disk.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn begin(file: Arc<dyn File>, entry: FileEntry) -> Result<Option<Verify>, DiskError> {
        let Some(body) = body_bytes(entry.bytes).filter(|_| file.length() == entry.bytes) else {
            return Ok(None);
        };
        let mut blocks = vec![0; (entry.bytes - body) as usize];
        let read = file.read_in_passing(body, &mut blocks)?;
        let is_its_list = read == blocks.len() && chunk_digest(&blocks, body) == entry.digest;
        Ok(is_its_list.then_some(Verify { file, blocks, body, at: 0 }))
    }

    /// Bytes that the next step reads, a block; 0 when all were read.
    pub fn next_bytes(&self) -> u64 {
        (self.body - self.at).min(BLOCK_BYTES as u64)
    }

    /// Reads the next block; false where it is not that of the chunk. Waits for the disk.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn step(&mut self) -> Result<bool, DiskError> {
        let mut block = vec![0; self.next_bytes() as usize];
        let read = self.file.read_in_passing(self.at, &mut block)?;
        let which = (self.at / BLOCK_BYTES as u64) as usize * size_of::<Digest>();
        self.at += block.len() as u64;
        Ok(read == block.len() && Digest::of(&block).0[..] == self.blocks[which..which + size_of::<Digest>()])
    }
}
