//! Deltas: what of a chunk is another than in the parent's chunk of the same slice, as puts and deletes in the order of
//! token and key.
//!
//! ```text
//! records: check 4 │ head 2 (length of key, coding or "deleted") │ length of the stored value 4 │ key │ value as stored
//! footer 96 │ list of blocks
//! ```
//!
//! The last two parts are as those of a chunk, so a delta is fetched, verified and named as a chunk is.

use std::sync::Arc;

use model::Token;
use runtime::{Disk, File};
use xxhash_rust::xxh3::xxh3_64;

use super::chunk_writer::{DATA_BYTES_MAX, WriteError};
use super::coding::Compression;
use super::format::{Digest, FOOTER_BYTES, Slice, u32_at, u64_at};
use super::lineage::DeltaEntry;
use super::output::Output;
use super::record;

const MAGIC: &[u8; 8] = b"TONTDELT";
/// Version of the format of deltas.
const FORMAT: u32 = 1;

/// As [`Footer::salt`](super::format::Footer::salt), but no record of a chunk passes for one of a delta.
pub(super) fn salt(slice: Slice) -> u64 {
    (slice.first.0 ^ 0x746f_6e74_696e_6535).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What the end of a delta says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeltaFooter {
    pub(super) slice: Slice,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    /// Bytes of records.
    pub(super) data_bytes: u64,
    /// The chunk that it changes.
    pub(super) parent: Digest,
}

impl DeltaFooter {
    pub(super) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        let numbers = [self.slice.first.0, self.slice.last.0, self.puts, self.deletes, self.data_bytes];
        for (place, number) in numbers.iter().enumerate() {
            bytes[16 + 8 * place..24 + 8 * place].copy_from_slice(&number.to_le_bytes());
        }
        bytes[56..72].copy_from_slice(&self.parent.0);
        let check = xxh3_64(&bytes[..FOOTER_BYTES - 8]);
        bytes[FOOTER_BYTES - 8..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a footer; the error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<DeltaFooter, &'static str> {
        if bytes.len() != FOOTER_BYTES || !bytes.starts_with(MAGIC) {
            return Err("it does not end as a delta does");
        }
        if u64_at(bytes, FOOTER_BYTES - 8) != xxh3_64(&bytes[..FOOTER_BYTES - 8]) {
            return Err("the checksum of its footer does not match");
        }
        if u32_at(bytes, 8) != FORMAT {
            return Err("it has a newer format; upgrade tontine");
        }
        let slice = Slice { first: Token(u64_at(bytes, 16)), last: Token(u64_at(bytes, 24)) };
        let zeros = bytes[12..16].iter().chain(&bytes[72..88]).all(|&byte| byte == 0);
        if !zeros || slice.first > slice.last {
            return Err("its footer contradicts itself");
        }
        Ok(DeltaFooter {
            slice,
            puts: u64_at(bytes, 32),
            deletes: u64_at(bytes, 40),
            data_bytes: u64_at(bytes, 48),
            parent: Digest(bytes[56..72].try_into().expect("sixteen bytes")),
        })
    }
}

/// A delta that was written and is not durable yet.
pub struct FinishedDelta {
    /// What the manifest says of it.
    pub entry: DeltaEntry,
    /// Where it lies.
    pub path: String,
    /// To sync it.
    pub file: Arc<dyn File>,
}

/// Writes a delta, whose changes come in the order of token and key.
pub(super) struct DeltaWriter {
    path: String,
    output: Output,
    salt: u64,
    footer: DeltaFooter,
    buffer: Vec<u8>,
}

impl DeltaWriter {
    /// Begins one at a path that is free.
    pub(super) fn create(
        disk: &dyn Disk,
        path: &str,
        (parent, slice): (Digest, Slice),
    ) -> Result<DeltaWriter, WriteError> {
        Ok(DeltaWriter {
            path: path.to_owned(),
            output: Output::new(disk.create(path)?),
            salt: salt(slice),
            footer: DeltaFooter { slice, puts: 0, deletes: 0, data_bytes: 0, parent },
            buffer: Vec::new(),
        })
    }

    /// A key has this value now, stored so.
    pub(super) fn put(&mut self, key: &[u8], sealed: (Compression, &[u8])) -> Result<(), WriteError> {
        let place = self.place()?;
        record::append(&mut self.buffer, place, key, sealed);
        self.footer.puts += 1;
        self.output.push(&self.buffer)
    }

    /// A key is gone.
    pub(super) fn delete(&mut self, key: &[u8]) -> Result<(), WriteError> {
        let place = self.place()?;
        record::append_deletion(&mut self.buffer, place, key);
        self.footer.deletes += 1;
        self.output.push(&self.buffer)
    }

    fn place(&mut self) -> Result<(u64, u32), WriteError> {
        let position = self.output.length();
        if position > DATA_BYTES_MAX {
            return Err(WriteError::TooLong);
        }
        self.buffer.clear();
        Ok((self.salt, position as u32))
    }

    /// Whether nothing has changed.
    pub(super) fn is_empty(&self) -> bool {
        self.footer.puts + self.footer.deletes == 0
    }

    /// Ends the delta that makes the chunk at this place of the manifest.
    pub(super) fn finish(mut self, chunk: u32) -> Result<FinishedDelta, WriteError> {
        self.footer.data_bytes = self.output.length();
        let DeltaFooter { puts, deletes, parent, .. } = self.footer;
        self.output.push(&self.footer.encode())?;
        let (digest, file_bytes) = self.output.finish()?;
        let entry = DeltaEntry { digest, parent, file_bytes, puts, deletes, chunk };
        Ok(FinishedDelta { entry, path: self.path, file: self.output.file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footer_reads_as_it_was_written_and_a_flipped_bit_is_noticed() {
        let slice = Slice { first: Token(7), last: Token(900) };
        let footer = DeltaFooter { slice, puts: 3, deletes: 1, data_bytes: 70, parent: Digest::of(b"p") };
        let bytes = footer.encode();
        assert_eq!(DeltaFooter::decode(&bytes), Ok(footer));
        for bit in 0..FOOTER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(DeltaFooter::decode(&flipped).is_err(), "bit {bit}");
        }
    }
}
