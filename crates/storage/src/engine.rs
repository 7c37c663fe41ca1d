//! The engine traits: what every engine does, and what those do beside it whose records can be damaged where they lie.

use std::ops::{ControlFlow, RangeInclusive};

use bytes::Bytes;
use model::{PartitionId, Token};
use runtime::BoxFuture;
use smallvec::SmallVec;

use crate::error::StorageError;

/// What [`StorageEngine::update`] shall do with the record, as its closure decides under the key's lock.
#[derive(Debug)]
pub enum Change<'a> {
    /// Leave what is there.
    Keep,
    /// Replace it with these bytes.
    Put(Bytes),
    /// Replace it with these two pieces, one behind the other: for whoever has the long one somewhere else, of which
    /// the engine makes its own copy.
    PutJoined(Head, &'a [u8]),
    /// Remove it physically, without a trace. (A user's delete is a `Put` of a tombstone.)
    Remove,
}

/// The short first piece of a record; up to 64 bytes need no allocation.
pub type Head = SmallVec<[u8; 64]>;

/// Position in an engine's order of writes, for waiting until they are durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Commit(pub u64);

/// The record that two pieces make, in a buffer of exactly its size.
pub(crate) fn joined(head: &[u8], tail: &[u8]) -> Bytes {
    let mut record = Vec::with_capacity(head.len() + tail.len());
    record.extend_from_slice(head);
    record.extend_from_slice(tail);
    Bytes::from(record)
}

/// Where a scan of one partition goes on: strictly after this token and key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanCursor {
    /// Token of the last record seen.
    pub token: Token,
    /// Key of the last record seen.
    pub key: Bytes,
}

/// One page of a scan, in (token, key) order.
#[derive(Clone, Debug, Default)]
pub struct ScanPage {
    /// Keys and records.
    pub records: Vec<(Bytes, Bytes)>,
    /// The token of each record that is left out because it cannot be read. Not even its key can be trusted.
    pub damaged: Vec<Token>,
    /// Where to go on; `None` when the partition is exhausted.
    pub next: Option<ScanCursor>,
}

/// A record as [`StorageEngine::walk`] meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met<'a> {
    /// It can be read.
    Record {
        /// Its key.
        key: &'a Bytes,
        /// Its bytes.
        record: &'a Bytes,
    },
    /// It is there but its checksum does not hold; not even its key can be trusted.
    Corrupt,
}

/// How much one page may hold.
#[derive(Clone, Copy, Debug)]
pub struct ScanLimit {
    /// Records at most.
    pub records_max: usize,
    /// Bytes of keys and records after which the page ends (it holds at least one record if there is one).
    pub bytes_max: usize,
}

/// What an engine holds and costs, now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Live records.
    pub records: u64,
    /// Bytes of live keys and records.
    pub live_bytes: u64,
    /// Bytes on disk, dead ones included.
    pub disk_bytes: u64,
    /// Bytes of memory for indexes and caches, as the engine counts them.
    pub memory_bytes: u64,
    /// Times that writes were synced to the device.
    pub syncs: u64,
    /// Bytes written by compaction.
    pub compacted_bytes: u64,
}

/// What an engine holds of one partition, now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub partition: PartitionId,
    /// Live records; at least one.
    pub records: u64,
    /// Bytes of live keys and records.
    pub bytes: u64,
}

/// What an engine knows of its damaged records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageStats {
    /// Records found damaged since the engine was opened.
    pub found: u64,
    /// Of them, those that nothing has replaced: neither discarded nor written over.
    pub left: u64,
    /// Of those left, damage that the last opening found and that no key's entry points at: see
    /// [`RepairableEngine::settle_unplaced`].
    pub unplaced: u64,
}

/// How much an engine may still take, and what it could not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that puts may take before they are refused with [`StorageError::Full`]; `u64::MAX` without a limit.
    pub bytes: u64,
    /// Bytes of the largest put that was refused for want of room and that there is no room for now; 0 when there is
    /// none.
    pub wanted: u64,
    /// Puts that were refused for want of room since the engine was opened.
    pub refused: u64,
}

impl Room {
    /// Of an engine that never refuses.
    pub const UNLIMITED: Room = Room { bytes: u64::MAX, wanted: 0, refused: 0 };
}

/// What lies where an engine shall be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// No engine.
    Nothing,
    /// The engine with this number, which no other has, and all that it knows of.
    Whole(u64),
    /// The engine with this number, but files that it knows of are missing.
    Part(u64),
}

/// A place for records. Calls are synchronous because they are served from memory or the page cache; only waiting
/// for durability is asynchronous. A caller that must not wait when they are not
/// ([`without_waiting`](runtime::disk::waiting::without_waiting)) gets [`DiskError::WouldWait`] from [`get`](Self::get),
/// [`read`](Self::read) and [`update`](Self::update) before anything was changed.
///
/// All partitions exist implicitly; one without records costs nothing.
pub trait StorageEngine: Send + Sync {
    /// The record of a key. `token` is the key's token, which the caller has at hand.
    fn get(&self, partition: PartitionId, token: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError>;

    /// Shows the record of a key to `visit` without handing it out, and says whether there is one. For readers that
    /// copy what they need at once: no count is shared and nothing is allocated where the engine can help it.
    /// `visit` must be quick and must not call the engine.
    fn read(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        visit: &mut dyn FnMut(&Bytes),
    ) -> Result<bool, StorageError> {
        let record = self.get(partition, token, key)?;
        record.iter().for_each(visit);
        Ok(record.is_some())
    }

    /// Reads the record, lets `change` decide, and applies its decision, atomically for this key: no other update
    /// of the key runs in between, and no reader sees a half.
    ///
    /// Returns the position of the write (`None` for [`Change::Keep`], and for the removal of what is not there).
    /// The change is visible at once; it is durable according to the engine's setting only when [`Self::durable`]
    /// says so. A put may also be refused (with `Full`) after `change` has run; then nothing was changed.
    ///
    /// `change` is called at most once, and not at all on an error before it. It must not call the engine.
    fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError>;

    /// Whether [`Self::durable`] need not be called: a write is as durable as promised when `update` returns. False
    /// for an engine whose writes reach a file only then, whatever its setting promises about syncs.
    fn acknowledges_at_once(&self) -> bool;

    /// The engine as one whose records can be damaged where they lie; `None` where they cannot.
    fn repairable(&self) -> Option<&dyn RepairableEngine> {
        None
    }

    /// How much puts may still take, and whether one was refused for want of it.
    ///
    /// # Errors
    /// Why the engine refuses all work.
    fn room(&self) -> Result<Room, StorageError> {
        Ok(Room::UNLIMITED)
    }

    /// Waits until the write at `commit` is as durable as the engine's setting promises to whoever acknowledges it.
    fn durable(&self, commit: Commit) -> Durable;

    /// Makes everything that was written before durable on the device, whatever the engine's setting promises.
    fn sync(&self) -> BoxFuture<'static, Result<(), StorageError>>;

    /// The position of the newest write: whoever found a record in place and wants to acknowledge it waits for this.
    fn position(&self) -> Commit;

    /// One page of a partition, strictly after `after`, in (token, key) order. Records written or removed while a
    /// scan runs may or may not appear; all others appear exactly once.
    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError>;

    /// Shows the records of a partition whose tokens lie in `tokens` to `visit`, in order of token and then key, until
    /// it breaks off; at each token those that are corrupt come last.
    ///
    /// Unlike a scan it meets damaged records, and everything that was written before it was called: whoever keeps
    /// writers away for its time sees the whole truth. It costs a look at the partition's whole index each time, where
    /// a scan remembers its way. `visit` must not call the engine.
    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError>;

    /// The records of a partition whose keys have this token and this [`fingerprint`]: nearly always one at most. For
    /// whoever remembers of a key only these 12 bytes. Damaged records are left out.
    fn find(
        &self,
        partition: PartitionId,
        token: Token,
        fingerprint: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, StorageError>;

    /// Partitions that hold records, by id, and how much each holds.
    fn partitions(&self) -> Vec<Held>;

    /// Forgets all records of a partition at once; space comes back later.
    fn drop_partition(&self, partition: PartitionId) -> Result<(), StorageError>;

    /// What it holds and costs.
    fn stats(&self) -> EngineStats;

    /// Makes everything durable, writes what makes the next start fast, and refuses further work.
    fn close(&self) -> BoxFuture<'static, Result<(), StorageError>>;
}

/// An engine whose records can be damaged where they lie. It tells of damage and forgets it when it is told to; where
/// good records come from is not its business.
pub trait RepairableEngine: Send + Sync {
    /// Forgets a record that [`StorageEngine::get`] and [`StorageEngine::update`] report as corrupt, so that a good
    /// one can be written in its place; true when there was such a record. Until then `update` refuses: a version made
    /// without knowing the one before could reuse its dot.
    ///
    /// # Errors
    /// As [`StorageEngine::update`].
    fn discard_corrupt(&self, partition: PartitionId, token: Token, key: &[u8])
    -> Result<bool, StorageError>;

    /// Forgets the records of a partition that cannot be read and that a get, a scan or a walk has met, whatever their
    /// keys, and says how many those were: for records that nothing will replace, and that must not stand in the way of
    /// others. It reads no others, so it takes the time of looking through an index.
    ///
    /// # Errors
    /// As [`StorageEngine::update`].
    fn discard_damaged(&self, partition: PartitionId) -> Result<u64, StorageError>;

    /// The caller has brought back all that this engine should hold since it was opened, so damage at places that no
    /// key's entry points at counts no longer as left.
    fn settle_unplaced(&self);

    /// What was found damaged, and what of it is left.
    fn damage(&self) -> DamageStats;
}

/// The answer of [`StorageEngine::durable`]: nothing to wait for (no allocation), or a future.
pub enum Durable {
    /// Already as durable as promised.
    Already,
    /// Completes when it is.
    Waits(BoxFuture<'static, Result<(), StorageError>>),
}

impl Durable {
    /// The answer is known already.
    pub(crate) fn now(outcome: Result<(), StorageError>) -> Durable {
        Durable::Waits(Box::pin(std::future::ready(outcome)))
    }

    /// Waits.
    pub async fn wait(self) -> Result<(), StorageError> {
        match self {
            Durable::Already => Ok(()),
            Durable::Waits(future) => future.await,
        }
    }
}
