//! Forgetting records that cannot be read, for a caller who has another copy, or none to wait for.
//!
//! A damaged record stays in the index, so that it is never taken for one that is not there; only a caller who knows
//! better may forget it.

use model::{PartitionId, Token};
use xxhash_rust::xxh3::xxh3_64;

use super::core::{Core, SlotFound};
use super::format::{Kind, RECORD_HEADER_BYTES, header_holds, peek};
use super::index::{Gate, Slot};
use super::tail::Entry;
use crate::error::StorageError;
use crate::hash::fingerprint;

impl Core {
    /// Removes a key whose record is corrupt, so that a good one can be written; true when there was one.
    pub(super) fn discard_corrupt(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
    ) -> Result<bool, StorageError> {
        self.life.check()?;
        let Some(index) = self.index.get(partition) else { return Ok(false) };
        let fingerprint = fingerprint(key);
        let gate = index.gate(token, fingerprint);
        let newest = self.newest(partition, key, || gate.find(token, fingerprint));
        if !matches!(newest, Err(StorageError::Corrupt { .. })) {
            return Ok(false);
        }
        let mut discarded = false;
        for slot in gate.find(token, fingerprint) {
            if matches!(self.read(partition, &slot)?, SlotFound::Corrupt) {
                self.remove_damaged(partition, &gate, &slot, key)?;
                self.damage.discard(slot.place());
                discarded = true;
            }
        }
        assert!(discarded, "a key is corrupt where one of its records is");
        Ok(discarded)
    }

    /// Forgets the records of a partition that somebody has met and could not read, whatever their keys; says how many
    /// there were. No other record is read for it. Where not even the key can be read nothing is logged: the next
    /// opening may find the record again, as damaged as before.
    pub(super) fn discard_damaged(&self, partition: PartitionId) -> Result<u64, StorageError> {
        self.life.check()?;
        let Some(index) = self.index.get(partition) else { return Ok(0) };
        let met = self.damage.places();
        let mut discarded = 0;
        for gate in index.gates() {
            let mut slots = Vec::new();
            gate.for_each(|slot| {
                if met.contains(&slot.place()) {
                    slots.push(*slot);
                }
            });
            for slot in slots {
                if !matches!(self.read(partition, &slot)?, SlotFound::Corrupt) {
                    continue;
                }
                match self.readable_key(&slot)? {
                    Some(key) => self.remove_damaged(partition, &gate, &slot, &key)?,
                    None => self.take_out(&gate, &slot),
                }
                self.damage.discard(slot.place());
                discarded += 1;
            }
        }
        Ok(discarded)
    }

    /// Logs that a damaged record is gone and takes it out of the index, under its gate.
    fn remove_damaged(
        &self,
        partition: PartitionId,
        gate: &Gate<'_>,
        slot: &Slot,
        key: &[u8],
    ) -> Result<(), StorageError> {
        let (token, fingerprint) = (slot.token, slot.fingerprint);
        let (value, value_check) = (&[][..], xxh3_64(&[]));
        let entry = Entry { kind: Kind::Remove, partition, token, fingerprint, key, value, value_check };
        self.remove(gate, &entry, slot)?;
        self.appending.note();
        Ok(())
    }

    /// The key of a record whose value is damaged, if its header is not.
    fn readable_key(&self, slot: &Slot) -> Result<Option<Vec<u8>>, StorageError> {
        let Some(segment) = self.segments.get(slot.segment) else { return Ok(None) };
        let Some(file) = segment.file() else { return Ok(None) };
        let mut bytes = vec![0; slot.length as usize];
        let count = file.read_at(u64::from(slot.offset), &mut bytes)?;
        let Some(header) = peek(&bytes[..count]) else { return Ok(None) };
        if !header_holds(&bytes[..count], segment.salt, u64::from(slot.offset), &header) {
            return Ok(None);
        }
        let key = &bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + usize::from(header.key_bytes)];
        let is_its = header.token == slot.token && fingerprint(key) == slot.fingerprint;
        Ok(is_its.then(|| key.to_vec()))
    }
}
