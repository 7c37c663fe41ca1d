//! Forgetting records that cannot be read, for who has another copy, or none to wait for.
//!
//! A damaged record stays in the index, so that it is never taken for one that is not there; only a caller who knows
//! better may forget it.

use std::sync::atomic::Ordering;

use model::{PartitionId, Token};
use xxhash_rust::xxh3::xxh3_64;

use super::core::{Core, Found};
use super::format::{Kind, RECORD_HEADER_BYTES, header_holds, peek};
use super::index::{PartitionIndex, Slot, Stripe};
use super::tail::Entry;
use crate::StorageError;
use crate::hash::fingerprint;

impl Core {
    /// Removes a key whose record is corrupt, so that a good one can be written; true when there was one.
    pub(super) fn discard_corrupt(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
    ) -> Result<bool, StorageError> {
        self.check()?;
        let Some(index) = self.index.get(partition) else { return Ok(false) };
        let fingerprint = fingerprint(key);
        let stripe = index.stripe(token, fingerprint);
        let gate = stripe.gate.lock();
        if !matches!(
            self.newest(partition, stripe, token, fingerprint, key),
            Err(StorageError::Corrupt { .. })
        ) {
            return Ok(false);
        }
        let mut discarded = false;
        for slot in stripe.find(token, fingerprint) {
            if matches!(self.read(partition, &slot)?, Found::Corrupt) {
                self.remove_damaged(partition, index, stripe, &slot, key)?;
                self.count_discarded(&slot);
                discarded = true;
            }
        }
        drop(gate);
        Ok(discarded)
    }

    /// Forgets the records of a partition that somebody has met and could not read, whatever their keys; says how many
    /// there were. No other record is read for it. Where not even the key can be read nothing is logged: the next
    /// opening may find the record again, as damaged as before.
    pub(super) fn discard_damaged(&self, partition: PartitionId) -> Result<u64, StorageError> {
        self.check()?;
        let Some(index) = self.index.get(partition) else { return Ok(0) };
        let met = self.corrupt.lock().clone();
        let mut discarded = 0;
        for stripe in &index.stripes {
            let mut slots = Vec::new();
            stripe.for_each(|slot| {
                if met.contains(&(slot.segment, slot.offset)) {
                    slots.push(*slot);
                }
            });
            let _gate = stripe.gate.lock();
            for slot in slots {
                if !stripe.holds(&slot) || !matches!(self.read(partition, &slot)?, Found::Corrupt) {
                    continue;
                }
                match self.readable_key(&slot)? {
                    Some(key) => self.remove_damaged(partition, index, stripe, &slot, &key)?,
                    None => self.take_out(index, stripe, &slot),
                }
                self.count_discarded(&slot);
                discarded += 1;
            }
        }
        Ok(discarded)
    }

    /// A record that cannot be read is in the index no more: nobody meets it again.
    fn count_discarded(&self, slot: &Slot) {
        if self.corrupt.lock().contains(&(slot.segment, slot.offset)) {
            self.corrupt_discarded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Logs that a damaged record is gone and takes it out of the index, under its gate.
    fn remove_damaged(
        &self,
        partition: PartitionId,
        index: &PartitionIndex,
        stripe: &Stripe,
        slot: &Slot,
        key: &[u8],
    ) -> Result<(), StorageError> {
        let (token, fingerprint) = (slot.token, slot.fingerprint);
        let (value, value_check) = (&[][..], xxh3_64(&[]));
        let entry = Entry { kind: Kind::Remove, partition, token, fingerprint, key, value, value_check };
        let appended = self.remove(index, stripe, &entry, slot)?;
        self.notice(&appended);
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
