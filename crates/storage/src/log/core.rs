//! The engine's state, and reading: where a key's record lies, whether it holds.
//!
//! Each part keeps its own invariants behind its own methods; what needs several of them is an operation of [`Core`],
//! in the file that says what it is about (`update`, `commit`, `compaction`, `snapshot_writer`, `discard`).

use bytes::{Buf, Bytes};
use model::{PartitionId, Token};
use parking_lot::Mutex;
use runtime::DiskError;

use super::appending::Appending;
use super::damage::Damage;
use super::format::{Kind, RECORD_HEADER_BYTES, header_holds, peek, value_holds};
use super::index::{Index, Slot, Slots};
use super::life::Life;
use super::maintenance::Maintenance;
use super::segment::Segments;
use super::site::Site;
use super::snapshot::LastSnapshot;
use super::space::Space;
use crate::engine::Room;
use crate::error::StorageError;
use crate::hash::fingerprint;
use crate::walk::{IndexedKey, Walkable, Walks};

pub(super) struct Core {
    pub(super) site: Site,
    pub(super) life: Life,
    pub(super) index: Index,
    pub(super) segments: Segments,
    pub(super) appending: Appending,
    pub(super) space: Space,
    pub(super) damage: Damage,
    pub(super) last_snapshot: LastSnapshot,
    pub(super) maintenance: Maintenance,
    pub(super) walks: Walks,
    /// The directory's lock, until the engine is closed or gone.
    pub(super) lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

/// What lies at a slot.
pub(super) enum SlotFound {
    /// A record that holds: its whole bytes, header and key included.
    Record(Vec<u8>),
    /// A record whose checksum does not hold.
    Corrupt,
    /// The segment is gone: compaction moved the record, and the index knows where.
    Moved,
}

/// The newest record of a key.
pub(super) struct Newest {
    pub(super) slot: Slot,
    pub(super) record: Bytes,
}

impl Core {
    /// The disk broke a promise: refuses all further work, and says so to all who wait.
    pub(super) fn fail(&self, error: &DiskError) -> StorageError {
        if self.life.fail(error.to_string()) {
            tracing::error!(directory = %self.site.directory, %error, "storage stopped");
        }
        let error = self.life.refusal();
        self.appending.answer(|_| Some(Err(error.clone())));
        self.appending.wake();
        self.maintenance.wake();
        error
    }

    /// A write to the file was refused: `None` when only space is missing, so that it can be tried again.
    pub(super) fn refused(&self, error: DiskError) -> Option<StorageError> {
        match error {
            DiskError::Full => {
                self.space.set_full(true);
                self.appending.wake();
                None
            }
            error => Some(self.fail(&error)),
        }
    }

    /// Sees how much writers may still take.
    pub(super) fn look_at_space(&self) {
        let waiting = self.appending.tail().end().waiting as u64;
        self.space.look(self.site.disk.available_bytes(), waiting);
    }

    /// How much writers may still take, now.
    pub(super) fn room(&self) -> Result<Room, StorageError> {
        self.life.check()?;
        self.look_at_space();
        Ok(self.space.room())
    }

    pub(super) fn get(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
    ) -> Result<Option<Bytes>, StorageError> {
        self.life.check()?;
        let Some(index) = self.index.get(partition) else { return Ok(None) };
        let fingerprint = fingerprint(key);
        let newest = self.newest(partition, key, || index.find(token, fingerprint))?;
        Ok(newest.map(|newest| newest.record))
    }

    /// The newest record of a key, whose entries `find` looks up.
    pub(super) fn newest(
        &self,
        partition: PartitionId,
        key: &[u8],
        find: impl Fn() -> Slots,
    ) -> Result<Option<Newest>, StorageError> {
        'again: loop {
            let mut corrupt = false;
            for slot in find() {
                match self.read(partition, &slot)? {
                    SlotFound::Record(bytes) => {
                        let value_from = slot_value(&slot, &bytes);
                        if bytes[RECORD_HEADER_BYTES..value_from] == *key {
                            let mut record = Bytes::from(bytes);
                            record.advance(value_from);
                            return Ok(Some(Newest { slot, record }));
                        }
                    }
                    SlotFound::Corrupt => corrupt = true,
                    SlotFound::Moved => continue 'again,
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
    pub(super) fn read(&self, partition: PartitionId, slot: &Slot) -> Result<SlotFound, StorageError> {
        let Some(segment) = self.segments.get(slot.segment) else { return Ok(SlotFound::Moved) };
        let waiting = match segment.written() >= slot.end() {
            true => None,
            false => self.appending.tail().read_waiting(slot),
        };
        let bytes = match (waiting, segment.file()) {
            (Some(bytes), _) => bytes,
            (None, Some(file)) => {
                let mut bytes = vec![0; slot.length as usize];
                let count = file.read_at(u64::from(slot.offset), &mut bytes)?;
                bytes.truncate(count);
                bytes
            }
            (None, None) => return Ok(SlotFound::Corrupt),
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
            true => Ok(SlotFound::Record(bytes)),
            false => {
                self.count_corrupt(slot.segment, slot.offset, partition);
                Ok(SlotFound::Corrupt)
            }
        }
    }

    pub(super) fn count_corrupt(&self, segment: u32, offset: u32, partition: PartitionId) {
        if self.damage.meet((segment, offset)) {
            let directory = &self.site.directory;
            tracing::warn!(%directory, segment, offset, %partition, "record fails its checksum");
        }
    }
}

/// Where the value begins in the bytes of a record that holds.
fn slot_value(slot: &Slot, bytes: &[u8]) -> usize {
    let header = peek(bytes).expect("a record that holds has a header");
    debug_assert_eq!(header.length(), slot.length as usize);
    RECORD_HEADER_BYTES + usize::from(header.key_bytes)
}

impl Walkable for Core {
    fn places(&self, partition: PartitionId, from: Token, places: &mut Vec<IndexedKey>) {
        let Some(index) = self.index.get(partition) else { return };
        index.for_each(|slot| {
            if slot.token >= from {
                places.push((slot.token, slot.fingerprint));
            }
        });
    }

    fn records_at(
        &self,
        partition: PartitionId,
        (token, fingerprint): IndexedKey,
        records: &mut Vec<(Bytes, Bytes)>,
    ) -> Result<usize, StorageError> {
        let Some(index) = self.index.get(partition) else { return Ok(0) };
        let before = records.len();
        'again: loop {
            records.truncate(before);
            let mut corrupt = 0;
            for slot in index.find(token, fingerprint) {
                match self.read(partition, &slot)? {
                    SlotFound::Record(bytes) => {
                        let value_from = slot_value(&slot, &bytes);
                        let bytes = Bytes::from(bytes);
                        records
                            .push((bytes.slice(RECORD_HEADER_BYTES..value_from), bytes.slice(value_from..)));
                    }
                    SlotFound::Corrupt => corrupt += 1,
                    SlotFound::Moved => continue 'again,
                }
            }
            return Ok(corrupt);
        }
    }
}
