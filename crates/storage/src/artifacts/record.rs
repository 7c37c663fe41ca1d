//! Records of the layout *slots*, one after the other in the order of tokens.
//!
//! ```text
//! check 4 │ head 2 (length of key, coding) │ length of the stored value 4 │ key │ value as stored
//! ```

use super::coding::Compression;
use super::format::{record_check, record_hash, u16_at, u32_at};
use super::page::{head, unhead};

/// What takes the place of a coding when a delta's record deletes its key.
const DELETED: u16 = 7 << 13;
/// Bytes before the key.
pub(super) const HEAD_BYTES: usize = 10;

#[inline]
fn place(salt: u64, position: u32) -> u64 {
    salt.wrapping_add(u64::from(position))
}

/// Appends a record that will lie at `position`.
pub(super) fn append(
    out: &mut Vec<u8>,
    (salt, position): (u64, u32),
    key: &[u8],
    (coding, stored): (Compression, &[u8]),
) {
    append_headed(out, (salt, position), head(key.len(), coding), key, stored);
}

/// Appends a record of a delta that deletes a key.
pub(super) fn append_deletion(out: &mut Vec<u8>, (salt, position): (u64, u32), key: &[u8]) {
    append_headed(out, (salt, position), key.len() as u16 | DELETED, key, &[]);
}

fn append_headed(out: &mut Vec<u8>, (salt, position): (u64, u32), head: u16, key: &[u8], stored: &[u8]) {
    let check = record_check(record_hash(key, stored), head, stored.len(), place(salt, position));
    out.extend_from_slice(&check.to_le_bytes());
    out.extend_from_slice(&head.to_le_bytes());
    out.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(stored);
}

/// The head of a record, not verified yet.
#[derive(Clone, Copy)]
pub(super) struct Head {
    check: u32,
    head: u16,
    pub(super) key_bytes: usize,
    pub(super) coding: Compression,
    pub(super) stored_bytes: usize,
}

impl Head {
    /// Reads it; `None` where nothing like it was written.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let bytes = bytes.get(..HEAD_BYTES)?;
        let head = u16_at(bytes, 4);
        let (key_bytes, coding) = unhead(head)?;
        Some(Head {
            check: u32_at(bytes, 0),
            head,
            key_bytes,
            coding,
            stored_bytes: u32_at(bytes, 6) as usize,
        })
    }

    /// Reads the head of a delta's record, and whether it deletes its key.
    pub(super) fn read_delta(bytes: &[u8]) -> Option<(Head, bool)> {
        if u16_at(bytes.get(..HEAD_BYTES)?, 4) & DELETED != DELETED {
            return Head::read(bytes).map(|head| (head, false));
        }
        let head = u16_at(bytes, 4);
        let key_bytes = usize::from(head & !DELETED);
        let (check, coding) = (u32_at(bytes, 0), Compression::None);
        let deletes = Head { check, head, key_bytes, coding, stored_bytes: u32_at(bytes, 6) as usize };
        (deletes.stored_bytes == 0).then_some((deletes, true))
    }

    /// Bytes of the whole record.
    #[inline]
    pub(super) fn record_bytes(&self) -> usize {
        HEAD_BYTES + self.key_bytes + self.stored_bytes
    }

    /// Whether the check holds for these bytes of a key and a value.
    #[inline]
    pub(super) fn holds(&self, key: &[u8], stored: &[u8], salt: u64, position: u32) -> bool {
        record_check(record_hash(key, stored), self.head, stored.len(), place(salt, position)) == self.check
    }
}
