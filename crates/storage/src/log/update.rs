//! Writing: one key's change under its gate, and the forgetting of a partition.

use model::{PartitionId, Token};
use xxhash_rust::xxh3::xxh3_64;

use super::core::Core;
use super::format::{Kind, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, padded};
use super::index::{Gate, Slot};
use super::tail::{AppendError, Appended, Entry};
use crate::engine::{Change, Commit, joined};
use crate::error::StorageError;
use crate::hash::fingerprint;

/// An update that finds more than this waiting for the file writes it there itself.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// While the disk is full, removals may still wait for it in memory up to this much.
const WAITING_BYTES_FULL_MAX: usize = 4 << 20;

impl Core {
    pub(super) fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&bytes::Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        self.life.check()?;
        let index = self.index.get_or_create(partition);
        let fingerprint = fingerprint(key);
        let gate = index.gate(token, fingerprint);
        let newest = self.newest(partition, key, || gate.find(token, fingerprint))?;
        let entry =
            |kind, value, value_check| Entry { kind, partition, token, fingerprint, key, value, value_check };
        let put = match change(newest.as_ref().map(|newest| &newest.record)) {
            Change::Keep => return Ok(None),
            Change::Remove => None,
            Change::Put(record) => Some(record),
            Change::PutJoined(head, tail) => Some(joined(&head, tail)),
        };
        let appended = match put {
            None => {
                let Some(newest) = newest else { return Ok(None) };
                self.remove(&gate, &entry(Kind::Remove, &[], xxh3_64(&[])), &newest.slot)?
            }
            Some(record) => {
                let space = check_length(key.len(), record.len())?;
                self.check_space(space, newest.as_ref().map_or(0, |newest| newest.slot.space()))?;
                let appended = self.append(&entry(Kind::Put, &record, xxh3_64(&record)))?;
                debug_assert_eq!(appended.slot.space(), space, "what was checked is what is appended");
                appended.segment.add_live(space);
                let before = newest.map(|newest| newest.slot);
                gate.point(before.as_ref(), appended.slot);
                if let Some(before) = before {
                    self.segments.died(before.segment, before.space());
                }
                appended
            }
        };
        drop(gate);
        self.noticed(&appended)?;
        Ok(Some(Commit(appended.position)))
    }

    /// Logs a removal and takes the entry out, under its gate.
    pub(super) fn remove(
        &self,
        gate: &Gate<'_>,
        entry: &Entry<'_>,
        slot: &Slot,
    ) -> Result<Appended, StorageError> {
        self.check_waiting()?;
        let appended = self.append(entry)?;
        appended.segment.add_marker(appended.slot.space(), appended.origin);
        self.take_out(gate, slot);
        Ok(appended)
    }

    /// Takes a key's entry out of the index, under its gate.
    pub(super) fn take_out(&self, gate: &Gate<'_>, slot: &Slot) {
        gate.take_out(slot);
        self.segments.died(slot.segment, slot.space());
    }

    pub(super) fn drop_partition(&self, partition: PartitionId) -> Result<(), StorageError> {
        self.life.check()?;
        let Some(index) = self.index.get(partition) else { return Ok(()) };
        let gates = index.all_gates();
        if index.records() == 0 {
            return Ok(());
        }
        self.check_waiting()?;
        let entry = Entry {
            kind: Kind::Drop,
            partition,
            token: Token(0),
            fingerprint: 0,
            key: &[],
            value: &[],
            value_check: xxh3_64(&[]),
        };
        let appended = self.append(&entry)?;
        appended.segment.add_marker(appended.slot.space(), appended.origin);
        for slot in gates.clear() {
            self.segments.died(slot.segment, slot.space());
        }
        drop(gates);
        self.appending.note();
        // In the file at once, so that the end of the process does not bring the partition back. When the disk is
        // full the marker waits and is tried again.
        match self.appending.tail().flush_to(&*self.site.disk, appended.position) {
            Ok(()) => Ok(()),
            Err(error) => self.refused(error).map_or(Ok(()), Err),
        }
    }

    fn append(&self, entry: &Entry<'_>) -> Result<Appended, StorageError> {
        loop {
            match self.appending.tail().append(entry, &self.segments) {
                Ok(appended) => {
                    self.space.take(appended.grown);
                    return Ok(appended);
                }
                Err(AppendError::Closed) => return Err(self.life.refusal()),
                Err(AppendError::Overlong) => {
                    let bytes = self.site.options.segment_bytes;
                    let rotated = self.appending.tail().rotate(&*self.site.disk, &self.segments, bytes);
                    if let Err(error) = rotated {
                        return Err(self.refused(error).unwrap_or(StorageError::Full));
                    }
                }
            }
        }
    }

    /// Whether there is room for a put that takes so much and replaces so much.
    fn check_space(&self, space: u64, replaced: u64) -> Result<(), StorageError> {
        self.space.check(space, replaced).inspect_err(|_| {
            // The committer looks again, and room may come from outside.
            self.appending.note();
            self.appending.wake();
        })
    }

    fn check_waiting(&self) -> Result<(), StorageError> {
        let over = self.space.is_full() && self.appending.tail().end().waiting > WAITING_BYTES_FULL_MAX;
        if over { Err(StorageError::Full) } else { Ok(()) }
    }

    /// Wakes the committer, and writes to the file when too much waits.
    fn noticed(&self, appended: &Appended) -> Result<(), StorageError> {
        self.appending.note();
        if appended.waiting > WAITING_BYTES_MAX
            && let Err(error) = self.appending.tail().flush(&*self.site.disk)
            && let Some(error) = self.refused(error)
        {
            return Err(error);
        }
        Ok(())
    }
}

/// Bytes that a record will take in its segment.
fn check_length(key_bytes: usize, record_bytes: usize) -> Result<u64, StorageError> {
    let length = RECORD_HEADER_BYTES + key_bytes + record_bytes;
    let too_long = |bytes: usize, bytes_max: usize| {
        Err(StorageError::TooLong { bytes: bytes as u64, bytes_max: bytes_max as u64 })
    };
    if key_bytes > usize::from(u16::MAX) {
        return too_long(key_bytes, usize::from(u16::MAX));
    }
    if length > RECORD_BYTES_MAX {
        return too_long(key_bytes + record_bytes, RECORD_BYTES_MAX - RECORD_HEADER_BYTES);
    }
    Ok(padded(length) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_its_header_and_padding_and_at_most_a_gibibyte() {
        assert_eq!(check_length(1, 0), Ok(56));
        assert_eq!(check_length(4, 5), Ok(64));
        let most = RECORD_BYTES_MAX - RECORD_HEADER_BYTES;
        assert_eq!(check_length(8, most - 8), Ok(1 << 30));
        let refused = StorageError::TooLong { bytes: most as u64 + 1, bytes_max: most as u64 };
        assert_eq!(check_length(8, most - 7), Err(refused));
        assert_eq!(check_length(65_535, 1), Ok(65_584));
        let refused = StorageError::TooLong { bytes: 65_536, bytes_max: 65_535 };
        assert_eq!(check_length(65_536, 1), Err(refused));
    }
}
