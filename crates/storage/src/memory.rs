//! The memory engine: records in stripeed hash tables, gone when the process ends.
//!
//! Every partition has its own tables, so that a scan or a drop touches no other; every partition is split into
//! [`STRIPES`] tables with a lock each, so that threads seldom meet. A get is one lookup and one reference count.
//!
//! Must never: copy a record to show it, or call the caller's closure without the lock of its key.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use hashbrown::HashTable;
use hashbrown::hash_table::{Entry, VacantEntry};
use model::{PartitionId, Token};
use parking_lot::RwLock;
use runtime::BoxFuture;
use runtime::panics::whole;

use crate::engine::{
    Change, Commit, Durable, EngineStats, Held, Met, ScanCursor, ScanLimit, ScanPage, StorageEngine, joined,
};
use crate::error::StorageError;
use crate::hash::{fingerprint, spread, stripe};
use crate::partitions::Partitions;
use crate::walk::{IndexedKey, Walkable, Walks};

/// Tables per partition.
const STRIPES: usize = 8;

/// Keeps records in memory only: nothing survives the process, and a write is as durable as it gets at once.
///
/// A record is kept as the caller gave it: bytes that share a larger buffer keep that buffer alive.
pub struct MemoryEngine {
    partitions: Partitions<Partition>,
    walks: Walks,
    closed: AtomicBool,
}

#[derive(Default)]
struct Partition {
    stripes: [Stripe; STRIPES],
    records: AtomicU64,
    /// Of keys and records.
    bytes: AtomicU64,
}

/// It has its own cache line, so that the locks of neighbours do not share one.
#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    table: RwLock<HashTable<MemoryRecord>>,
}

/// One cache line, so that a lookup of a short key touches no other memory than this and the record's count.
struct MemoryRecord {
    token: Token,
    key: Key,
    record: Bytes,
}

const _: () = assert!(size_of::<MemoryRecord>() == 64);

/// Keys up to this many bytes are kept inside the table.
const KEY_BYTES_INLINE: usize = 22;

enum Key {
    Short(u8, [u8; KEY_BYTES_INLINE]),
    Long(Box<[u8]>),
}

impl Key {
    fn new(key: &[u8]) -> Key {
        let mut bytes = [0; KEY_BYTES_INLINE];
        match bytes.get_mut(..key.len()) {
            Some(inline) => {
                inline.copy_from_slice(key);
                Key::Short(key.len() as u8, bytes)
            }
            None => Key::Long(key.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Key::Short(length, bytes) => &bytes[..usize::from(*length)],
            Key::Long(bytes) => bytes,
        }
    }
}

impl MemoryRecord {
    fn fingerprint(&self) -> u32 {
        fingerprint(self.key.bytes())
    }

    fn hash(&self) -> u64 {
        spread(self.token, self.fingerprint())
    }

    fn is(&self, token: Token, key: &[u8]) -> bool {
        self.token == token && *self.key.bytes() == *key
    }
}

/// Puts `new` in the place of `old`; a record of the same length that nobody else holds is written into the memory of
/// the old one. Records are freed in random order, which is the slow way for an allocator; one that was made a moment
/// ago for this write is freed fast.
fn replace(old: &mut Bytes, new: Bytes) {
    *old = match std::mem::take(old).try_into_mut() {
        Ok(mut place) if place.len() == new.len() => {
            place.copy_from_slice(&new);
            place.freeze()
        }
        _ => new,
    };
}

/// As [`replace`], with pieces that are copied once: into the memory of the old record, or into their own.
fn replace_joined(old: &mut Bytes, head: &[u8], tail: &[u8]) {
    *old = match std::mem::take(old).try_into_mut() {
        Ok(mut place) if place.len() == head.len() + tail.len() => {
            let (first, rest) = place.split_at_mut(head.len());
            first.copy_from_slice(head);
            rest.copy_from_slice(tail);
            place.freeze()
        }
        _ => joined(head, tail),
    };
}

/// The memory of `partition` counts a record that was `old` bytes and is `new` now.
fn count_replaced(partition: &Partition, old: usize, new: usize) {
    // Most records keep their length, and the count lies far away.
    if old != new {
        partition.bytes.fetch_add((new as u64).wrapping_sub(old as u64), Ordering::Relaxed);
    }
}

fn insert(
    partition: &Partition,
    vacant: VacantEntry<'_, MemoryRecord>,
    token: Token,
    key: &[u8],
    record: Bytes,
) {
    partition.bytes.fetch_add((key.len() + record.len()) as u64, Ordering::Relaxed);
    partition.records.fetch_add(1, Ordering::Relaxed);
    vacant.insert(MemoryRecord { token, key: Key::new(key), record });
}

impl Default for MemoryEngine {
    fn default() -> Self {
        MemoryEngine::new()
    }
}

impl MemoryEngine {
    /// An empty engine.
    pub fn new() -> MemoryEngine {
        MemoryEngine {
            partitions: Partitions::new(),
            walks: Walks::default(),
            closed: AtomicBool::new(false),
        }
    }

    fn check_open(&self) -> Result<(), StorageError> {
        match self.closed.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(StorageError::Closed),
        }
    }

    /// As [`StorageEngine::update`].
    fn updated<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        self.check_open()?;
        let partition = self.partitions.get_or_create(partition);
        let hash = spread(token, fingerprint(key));
        let mut table = partition.stripes[stripe(hash, STRIPES)].table.write();
        match table.entry(hash, |record| record.is(token, key), MemoryRecord::hash) {
            Entry::Occupied(mut occupied) => match change(Some(&occupied.get().record)) {
                Change::Keep => Ok(None),
                Change::Put(record) => {
                    count_replaced(partition, occupied.get().record.len(), record.len());
                    replace(&mut occupied.get_mut().record, record);
                    Ok(Some(Commit::default()))
                }
                Change::PutJoined(head, tail) => {
                    count_replaced(partition, occupied.get().record.len(), head.len() + tail.len());
                    replace_joined(&mut occupied.get_mut().record, &head, tail);
                    Ok(Some(Commit::default()))
                }
                Change::Remove => {
                    let (removed, _) = occupied.remove();
                    let bytes = removed.key.bytes().len() + removed.record.len();
                    partition.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
                    partition.records.fetch_sub(1, Ordering::Relaxed);
                    Ok(Some(Commit::default()))
                }
            },
            Entry::Vacant(vacant) => match change(None) {
                Change::Keep | Change::Remove => Ok(None),
                Change::Put(record) => {
                    insert(partition, vacant, token, key, record);
                    Ok(Some(Commit::default()))
                }
                Change::PutJoined(head, tail) => {
                    insert(partition, vacant, token, key, joined(&head, tail));
                    Ok(Some(Commit::default()))
                }
            },
        }
    }
}

impl StorageEngine for MemoryEngine {
    fn get(&self, partition: PartitionId, token: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.check_open()?;
        let Some(partition) = self.partitions.get(partition) else { return Ok(None) };
        let hash = spread(token, fingerprint(key));
        let table = partition.stripes[stripe(hash, STRIPES)].table.read();
        Ok(table.find(hash, |record| record.is(token, key)).map(|record| record.record.clone()))
    }

    fn read(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        visit: &mut dyn FnMut(&Bytes),
    ) -> Result<bool, StorageError> {
        self.check_open()?;
        let Some(partition) = self.partitions.get(partition) else { return Ok(false) };
        let hash = spread(token, fingerprint(key));
        let table = partition.stripes[stripe(hash, STRIPES)].table.read();
        let found = table.find(hash, |record| record.is(token, key));
        Ok(found.map(|record| visit(&record.record)).is_some())
    }

    fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        whole(|| self.updated(partition, token, key, change))
    }

    fn acknowledges_at_once(&self) -> bool {
        true
    }

    fn position(&self) -> Commit {
        Commit::default()
    }

    /// Nothing survives the process in any case.
    fn sync(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        Box::pin(std::future::ready(self.check_open()))
    }

    fn durable(&self, _commit: Commit) -> Durable {
        Durable::Already
    }

    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError> {
        self.check_open()?;
        self.walks.page(self, partition, after, limit)
    }

    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        self.check_open()?;
        crate::walk::walk(self, partition, tokens, visit)
    }

    fn find(
        &self,
        partition: PartitionId,
        token: Token,
        fingerprint: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        self.check_open()?;
        let mut records = Vec::new();
        self.records_at(partition, (token, fingerprint), &mut records)?;
        Ok(records)
    }

    fn partitions(&self) -> Vec<Held> {
        let held = |(partition, sums): (_, &Partition)| Held {
            partition,
            records: sums.records.load(Ordering::Relaxed),
            bytes: sums.bytes.load(Ordering::Relaxed),
        };
        self.partitions.iter().map(held).filter(|held| held.records > 0).collect()
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<(), StorageError> {
        self.check_open()?;
        let Some(partition) = self.partitions.get(partition) else { return Ok(()) };
        whole(|| {
            // All locks at once, so that nobody sees a half; always in this order, and nobody else holds two.
            let mut tables: Vec<_> = partition.stripes.iter().map(|stripe| stripe.table.write()).collect();
            for table in &mut tables {
                **table = HashTable::new();
            }
            partition.records.store(0, Ordering::Relaxed);
            partition.bytes.store(0, Ordering::Relaxed);
        });
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        let mut stats = EngineStats::default();
        for (_, partition) in self.partitions.iter() {
            let bytes = partition.bytes.load(Ordering::Relaxed);
            let tables = partition.stripes.iter().map(|stripe| stripe.table.read().allocation_size());
            stats.records += partition.records.load(Ordering::Relaxed);
            stats.live_bytes += bytes;
            stats.memory_bytes += bytes + (tables.sum::<usize>() + size_of::<Partition>()) as u64;
        }
        stats
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        self.closed.store(true, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Walkable for MemoryEngine {
    fn places(&self, partition: PartitionId, from: Token, places: &mut Vec<IndexedKey>) {
        let Some(partition) = self.partitions.get(partition) else { return };
        for stripe in &partition.stripes {
            let table = stripe.table.read();
            let later = table.iter().filter(|record| record.token >= from);
            places.extend(later.map(|record| (record.token, record.fingerprint())));
        }
    }

    fn records_at(
        &self,
        partition: PartitionId,
        (token, fingerprint): IndexedKey,
        records: &mut Vec<(Bytes, Bytes)>,
    ) -> Result<usize, StorageError> {
        let Some(partition) = self.partitions.get(partition) else { return Ok(0) };
        let hash = spread(token, fingerprint);
        let table = partition.stripes[stripe(hash, STRIPES)].table.read();
        let here = table.iter_hash(hash).filter(|r| r.token == token && r.fingerprint() == fingerprint);
        records.extend(here.map(|r| (Bytes::copy_from_slice(r.key.bytes()), r.record.clone())));
        Ok(0)
    }
}
