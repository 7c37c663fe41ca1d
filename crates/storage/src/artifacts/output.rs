//! A file that is written in blocks of 1 MiB, each with its digest: a chunk, or a delta.

use std::sync::Arc;

use runtime::{DiskError, File};

use super::chunk_writer::WriteError;
use super::format::{BLOCK_BYTES, Digest, FOOTER_BYTES, chunk_digest};

/// A file that is written in blocks, each with its digest.
pub(super) struct Output {
    pub(super) file: Arc<dyn File>,
    /// What is not written yet: less than a block.
    buffer: Vec<u8>,
    written: u64,
    blocks: Vec<u8>,
}

impl Output {
    pub(super) fn new(file: Arc<dyn File>) -> Output {
        Output { file, buffer: Vec::with_capacity(BLOCK_BYTES), written: 0, blocks: Vec::new() }
    }

    pub(super) fn length(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), WriteError> {
        while self.buffer.len() + bytes.len() >= BLOCK_BYTES {
            let (now, rest) = bytes.split_at(BLOCK_BYTES - self.buffer.len());
            self.buffer.extend_from_slice(now);
            self.write()?;
            bytes = rest;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self) -> Result<(), WriteError> {
        self.blocks.extend_from_slice(&Digest::of(&self.buffer).0);
        self.file.append(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// What was pushed at this offset.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let from_file =
            usize::try_from(self.written.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let (first, rest) = into.split_at_mut(from_file);
        self.file.read_at(offset, first)?;
        let from = (offset + from_file as u64).saturating_sub(self.written) as usize;
        rest.copy_from_slice(&self.buffer[from..from + rest.len()]);
        Ok(())
    }

    /// The digest of what was pushed, and the length of its file with the list of its blocks.
    pub(super) fn finish(&mut self) -> Result<(Digest, u64), WriteError> {
        if !self.buffer.is_empty() {
            self.write()?;
        }
        debug_assert!(self.written >= FOOTER_BYTES as u64);
        self.file.append(&self.blocks)?;
        Ok((chunk_digest(&self.blocks, self.written), self.written + self.blocks.len() as u64))
    }
}
