//! The engine's state, and what callers do with it: read, update, drop.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use model::{PartitionId, Token};
use parking_lot::Mutex;
use runtime::{Clock, Disk, DiskError};
use tokio::sync::{Notify, oneshot};
use xxhash_rust::xxh3::xxh3_64;

use super::format::{Kind, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, header_holds, padded, peek, value_holds};
use super::index::{PartitionIndex, Slot, Stripe};
use super::options::LogOptions;
use super::segment::Segments;
use super::tail::{AppendError, Appended, Entry, Tail};
use crate::hash::fingerprint;
use crate::partitions::Partitions;
use crate::walk::{IndexedKey, Walkable, Walks};
use crate::{Change, Commit, StorageError, joined};

/// An update that finds more than this waiting for the file writes it there itself.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// While the disk is full, removals may still wait for it in memory up to this much.
const WAITING_BYTES_FULL_MAX: usize = 4 << 20;

/// Distinct corrupt records that are told apart; beyond it they are no longer counted.
const CORRUPT_PLACES_MAX: usize = 100_000;

pub(super) struct Core {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) directory: String,
    pub(super) options: LogOptions,
    /// Identity of the data: seeds all checksums.
    pub(super) engine: u64,
    pub(super) index: Partitions<PartitionIndex>,
    pub(super) segments: Segments,
    /// The id that the next segment gets.
    pub(super) segment_next: AtomicU32,
    pub(super) tail: Tail,
    pub(super) walks: Walks,

    /// Why the engine refuses all work, once it does.
    pub(super) fatal: OnceLock<String>,
    /// `fatal` is set, or the engine is closed: one load for every call.
    pub(super) refusing: AtomicBool,
    pub(super) closed: AtomicBool,
    /// The last write to the file was refused for want of space.
    pub(super) full: AtomicBool,
    /// Bytes that writers may still take, as of the last look minus what was appended since.
    pub(super) space: AtomicI64,

    /// Something was appended that the committer has not seen.
    pub(super) dirty: AtomicBool,
    pub(super) committer: Notify,
    pub(super) janitor: Notify,
    /// Held over one commit, so that the committer, a snapshot and a close do not overlap.
    pub(super) committing: tokio::sync::Mutex<()>,
    /// Held over one piece of maintenance (a compaction, a snapshot).
    pub(super) maintaining: tokio::sync::Mutex<()>,
    pub(super) waiters: Mutex<Vec<Waiter>>,
    /// The lowest segment id that may hold unsynced bytes of the log.
    pub(super) unsynced_from: AtomicU32,
    /// Where the log ended when the last snapshot was begun, and the bytes of that snapshot.
    pub(super) snapshot_position: AtomicU64,
    pub(super) snapshot_bytes: AtomicU64,

    pub(super) corrupt: Mutex<BTreeSet<(u32, u32)>>,
    /// How many of them were discarded, so that good ones could be written.
    pub(super) corrupt_discarded: AtomicU64,
    /// How many were found at opening without an entry that points at them, and are not settled.
    pub(super) corrupt_unplaced: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) compacted_bytes: AtomicU64,
    /// The directory's lock, until the engine is closed or gone.
    pub(super) lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

/// Who waits until the log is synced up to a position.
pub(super) struct Waiter {
    pub(super) position: u64,
    pub(super) answer: oneshot::Sender<Result<(), StorageError>>,
}

/// What lies at a slot.
pub(super) enum Found {
    /// A record that holds: its whole bytes, header and key included.
    Record(Vec<u8>),
    /// A record whose checksum does not hold.
    Corrupt,
    /// The segment is gone: compaction moved the record, and the index knows where.
    Moved,
}

/// The newest record of a key.
pub(super) struct Newest {
    slot: Slot,
    record: Bytes,
}

impl Core {
    pub(super) fn check(&self) -> Result<(), StorageError> {
        match self.refusing.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(self.refusal()),
        }
    }

    pub(super) fn refusal(&self) -> StorageError {
        match self.fatal.get() {
            Some(reason) => StorageError::Fatal { reason: reason.clone() },
            None => StorageError::Closed,
        }
    }

    /// The disk broke a promise: refuses all further work, and says so to all who wait.
    pub(super) fn fail(&self, error: &DiskError) -> StorageError {
        let reason = error.to_string();
        if self.fatal.set(reason).is_ok() {
            tracing::error!(directory = %self.directory, %error, "storage stopped");
        }
        self.refusing.store(true, Ordering::Release);
        let error = self.refusal();
        for waiter in self.waiters.lock().drain(..) {
            let _ = waiter.answer.send(Err(error.clone()));
        }
        self.committer.notify_one();
        self.janitor.notify_one();
        error
    }

    pub(super) fn get(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
    ) -> Result<Option<Bytes>, StorageError> {
        self.check()?;
        let Some(index) = self.index.get(partition) else { return Ok(None) };
        let fingerprint = fingerprint(key);
        let stripe = index.stripe(token, fingerprint);
        Ok(self.newest(partition, stripe, token, fingerprint, key)?.map(|newest| newest.record))
    }

    pub(super) fn newest(
        &self,
        partition: PartitionId,
        stripe: &Stripe,
        token: Token,
        fingerprint: u32,
        key: &[u8],
    ) -> Result<Option<Newest>, StorageError> {
        'again: loop {
            let mut corrupt = false;
            for slot in stripe.find(token, fingerprint) {
                match self.read(partition, &slot)? {
                    Found::Record(bytes) => {
                        let value_from = slot_value(&slot, &bytes);
                        if bytes[RECORD_HEADER_BYTES..value_from] == *key {
                            let mut record = Bytes::from(bytes);
                            record.advance(value_from);
                            return Ok(Some(Newest { slot, record }));
                        }
                    }
                    Found::Corrupt => corrupt = true,
                    Found::Moved => continue 'again,
                }
            }
            return match corrupt {
                // It cannot even be told whether it is this key's; another key with the same token and fingerprint
                // is far less likely than a flipped bit.
                true => Err(StorageError::Corrupt { partition }),
                false => Ok(None),
            };
        }
    }

    /// Reads and verifies the record at a slot.
    pub(super) fn read(&self, partition: PartitionId, slot: &Slot) -> Result<Found, StorageError> {
        let Some(segment) = self.segments.get(slot.segment) else { return Ok(Found::Moved) };
        let end = u64::from(slot.offset) + u64::from(slot.length);
        let waiting = match segment.written.load(Ordering::Acquire) >= end {
            true => None,
            false => self.tail.read_waiting(slot),
        };
        let bytes = match (waiting, segment.file()) {
            (Some(bytes), _) => bytes,
            (None, Some(file)) => {
                let mut bytes = vec![0; slot.length as usize];
                let count = file.read_at(u64::from(slot.offset), &mut bytes)?;
                bytes.truncate(count);
                bytes
            }
            (None, None) => return Ok(Found::Corrupt),
        };
        let sound = peek(&bytes).is_some_and(|header| {
            header.kind == Kind::Put
                && header.partition == partition
                && header.token == slot.token
                && header.length() == bytes.len()
                && header_holds(&bytes, segment.salt, u64::from(slot.offset), &header)
                && value_holds(&header, &bytes[RECORD_HEADER_BYTES + usize::from(header.key_bytes)..])
        });
        match sound {
            true => Ok(Found::Record(bytes)),
            false => {
                self.count_corrupt(slot.segment, slot.offset, partition);
                Ok(Found::Corrupt)
            }
        }
    }

    pub(super) fn count_corrupt(&self, segment: u32, offset: u32, partition: PartitionId) {
        let mut corrupt = self.corrupt.lock();
        if corrupt.len() < CORRUPT_PLACES_MAX && corrupt.insert((segment, offset)) {
            tracing::warn!(directory = %self.directory, segment, offset, %partition, "record fails its checksum");
        }
    }

    pub(super) fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        self.check()?;
        let index = self.index.get_or_create(partition);
        let fingerprint = fingerprint(key);
        let stripe = index.stripe(token, fingerprint);
        let gate = stripe.gate.lock();
        let newest = self.newest(partition, stripe, token, fingerprint, key)?;
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
                self.remove(index, stripe, &entry(Kind::Remove, &[], xxh3_64(&[])), &newest.slot)?
            }
            Some(record) => {
                let space = check_size(key, &record)?;
                self.check_space(space, newest.as_ref().map_or(0, |newest| newest.slot.space()))?;
                let appended = self.append(&entry(Kind::Put, &record, xxh3_64(&record)))?;
                appended.segment.live.fetch_add(appended.slot.space(), Ordering::Relaxed);
                let before = newest.map(|newest| newest.slot);
                self.point(index, stripe, before.as_ref(), appended.slot);
                appended
            }
        };
        drop(gate);
        self.noticed(&appended)?;
        Ok(Some(Commit(appended.position)))
    }

    /// Points a key's entry at its new record, under its gate.
    fn point(&self, index: &PartitionIndex, stripe: &Stripe, before: Option<&Slot>, slot: Slot) {
        let bytes = u64::from(slot.length) - RECORD_HEADER_BYTES as u64;
        match before {
            Some(before) => {
                let replaced = stripe.replace(before, slot);
                assert!(replaced, "under its gate nobody else touches a key's entry");
                self.segments.died(before.segment, before.space());
                let old_bytes = u64::from(before.length) - RECORD_HEADER_BYTES as u64;
                index.bytes.fetch_add(bytes.wrapping_sub(old_bytes), Ordering::Relaxed);
            }
            None => {
                stripe.insert(slot);
                index.bytes.fetch_add(bytes, Ordering::Relaxed);
                index.records.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Logs a removal and takes the entry out, under its gate.
    pub(super) fn remove(
        &self,
        index: &PartitionIndex,
        stripe: &Stripe,
        entry: &Entry<'_>,
        slot: &Slot,
    ) -> Result<Appended, StorageError> {
        self.check_waiting()?;
        let appended = self.append(entry)?;
        appended.segment.add_marker(appended.slot.space(), appended.origin);
        self.take_out(index, stripe, slot);
        Ok(appended)
    }

    /// Takes a key's entry out of the index, under its gate.
    pub(super) fn take_out(&self, index: &PartitionIndex, stripe: &Stripe, slot: &Slot) {
        let removed = stripe.remove(slot);
        assert!(removed, "under its gate nobody else touches a key's entry");
        self.segments.died(slot.segment, slot.space());
        index.bytes.fetch_sub(u64::from(slot.length) - RECORD_HEADER_BYTES as u64, Ordering::Relaxed);
        index.records.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn drop_partition(&self, partition: PartitionId) -> Result<(), StorageError> {
        self.check()?;
        let Some(index) = self.index.get(partition) else { return Ok(()) };
        // All gates, always in this order; nobody else holds two.
        let gates: Vec<_> = index.stripes.iter().map(|stripe| stripe.gate.lock()).collect();
        if index.records.load(Ordering::Relaxed) == 0 {
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
        for stripe in &index.stripes {
            for slot in stripe.clear() {
                self.segments.died(slot.segment, slot.space());
            }
        }
        index.records.store(0, Ordering::Relaxed);
        index.bytes.store(0, Ordering::Relaxed);
        drop(gates);
        self.notice(&appended);
        // In the file at once, so that the end of the process does not bring the partition back. When the disk is
        // full the marker waits and is tried again.
        match self.tail.flush_to(&*self.disk, appended.position) {
            Ok(()) => Ok(()),
            Err(error) => self.refused(error).map_or(Ok(()), Err),
        }
    }

    fn append(&self, entry: &Entry<'_>) -> Result<Appended, StorageError> {
        loop {
            match self.tail.append(entry, &self.segment_next) {
                Ok(appended) => {
                    self.space.fetch_sub(appended.grown as i64, Ordering::Relaxed);
                    return Ok(appended);
                }
                Err(AppendError::Closed) => return Err(self.refusal()),
                Err(AppendError::Overlong) => {
                    let bytes = self.options.segment_bytes;
                    let rotated = self.tail.rotate(&*self.disk, &self.segments, &self.segment_next, bytes);
                    if let Err(error) = rotated {
                        return Err(self.refused(error).unwrap_or(StorageError::Full));
                    }
                }
            }
        }
    }

    /// A write to the file was refused: `None` when only space is missing, so that it can be tried again.
    pub(super) fn refused(&self, error: DiskError) -> Option<StorageError> {
        match error {
            DiskError::Full => {
                self.full.store(true, Ordering::Release);
                self.committer.notify_one();
                None
            }
            error => Some(self.fail(&error)),
        }
    }

    /// Whether there is room for a put. One that takes at most half of what it replaces makes room in the end (a delete
    /// is such a put where a tombstone is remembered): it may use half of the reserve. The other half is for removals
    /// and compaction, without which no room comes back.
    fn check_space(&self, space: u64, replaced: u64) -> Result<(), StorageError> {
        let makes_room = space.saturating_mul(2) <= replaced;
        let lent = if makes_room { self.options.reserve_bytes / 2 } else { 0 };
        let left = self.space.load(Ordering::Relaxed).saturating_add_unsigned(lent);
        if !self.full.load(Ordering::Acquire) && left >= space as i64 {
            return Ok(());
        }
        // The committer looks again, and room may come from outside.
        self.dirty.store(true, Ordering::Release);
        self.committer.notify_one();
        Err(StorageError::Full)
    }

    fn check_waiting(&self) -> Result<(), StorageError> {
        let over = self.full.load(Ordering::Acquire) && self.tail.end().waiting > WAITING_BYTES_FULL_MAX;
        if over { Err(StorageError::Full) } else { Ok(()) }
    }

    pub(super) fn notice(&self, _appended: &Appended) {
        if !self.dirty.swap(true, Ordering::AcqRel) {
            self.committer.notify_one();
        }
    }

    /// Wakes the committer, and writes to the file when too much waits.
    fn noticed(&self, appended: &Appended) -> Result<(), StorageError> {
        self.notice(appended);
        if appended.waiting > WAITING_BYTES_MAX
            && let Err(error) = self.tail.flush(&*self.disk)
            && let Some(error) = self.refused(error)
        {
            return Err(error);
        }
        Ok(())
    }
}

fn slot_value(slot: &Slot, bytes: &[u8]) -> usize {
    let header = peek(bytes).expect("a record that holds has a header");
    debug_assert_eq!(header.length(), slot.length as usize);
    RECORD_HEADER_BYTES + usize::from(header.key_bytes)
}

/// Bytes that the record will take.
fn check_size(key: &[u8], record: &Bytes) -> Result<u64, StorageError> {
    let length = RECORD_HEADER_BYTES + key.len() + record.len();
    if length > RECORD_BYTES_MAX || key.len() > usize::from(u16::MAX) {
        return Err(StorageError::Disk(DiskError::Failed {
            path: String::new(),
            reason: format!("a record of {length} bytes is over the limit of {RECORD_BYTES_MAX} bytes"),
        }));
    }
    Ok(padded(length) as u64)
}

impl Walkable for Core {
    fn places(&self, partition: PartitionId, from: Token, places: &mut Vec<IndexedKey>) {
        let Some(index) = self.index.get(partition) else { return };
        for stripe in &index.stripes {
            stripe.for_each(|slot| {
                if slot.token >= from {
                    places.push((slot.token, slot.fingerprint));
                }
            });
        }
    }

    fn records_at(
        &self,
        partition: PartitionId,
        (token, fingerprint): IndexedKey,
        records: &mut Vec<(Bytes, Bytes)>,
    ) -> Result<usize, StorageError> {
        let Some(index) = self.index.get(partition) else { return Ok(0) };
        let stripe = index.stripe(token, fingerprint);
        let before = records.len();
        'again: loop {
            records.truncate(before);
            let mut corrupt = 0;
            for slot in stripe.find(token, fingerprint) {
                match self.read(partition, &slot)? {
                    Found::Record(bytes) => {
                        let value_from = slot_value(&slot, &bytes);
                        let bytes = Bytes::from(bytes);
                        records
                            .push((bytes.slice(RECORD_HEADER_BYTES..value_from), bytes.slice(value_from..)));
                    }
                    Found::Corrupt => corrupt += 1,
                    Found::Moved => continue 'again,
                }
            }
            return Ok(corrupt);
        }
    }
}
