//! The log engine (D14): values append to checksummed segments, an index in memory finds them.
//!
//! ```text
//! update ─► tail ─► active segment ─► closed segments ─► compaction ─► compacted segments
//!    │        (memory)   (group commit)                       │
//!    └──────► index (memory) ◄───────────────────────────────┘ ─► snapshot (restart)
//! ```
//!
//! - `tail`, `commit`: appending, and one sync for many writers.
//! - `index`, `core`: finding, reading and verifying records; atomicity per key.
//! - `recovery` (`replay`, `rebuild`), `snapshot`: restarting.
//! - `compaction`: making room.
//! - `format`, `reader`, `segment`, `identity`: bytes and files.
//!
//! Format, recovery and compaction are argued in `docs/design/storage-log.md`.
//!
//! Must never: serve bytes whose checksum does not hold, acknowledge what the durability setting does not cover, or
//! go on after a failed sync.

mod commit;
mod compaction;
mod core;
mod damage;
mod format;
mod identity;
mod index;
mod options;
mod reader;
mod rebuild;
mod recovery;
mod replay;
mod segment;
mod snapshot;
mod tail;

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{PartitionId, Token};
use parking_lot::Mutex;
use runtime::{BoxFuture, Disk, Tasks};
use tokio::sync::Notify;

use self::compaction::Work;
use self::core::Core;
use self::format::SegmentKind;
use self::recovery::Recovered;
use self::segment::Segment;
use self::tail::Tail;
use crate::walk::{Walkable, Walks};
use crate::{
    Change, Commit, Durable, EngineStats, Met, Remains, ScanCursor, ScanLimit, ScanPage, StorageEngine,
    StorageError,
};

pub use self::options::{Durability, EnginePorts, LogOptions};

/// How often maintenance looks for work while there are writes: it takes a look at each segment.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long maintenance waits after it failed for want of space.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The default persistent engine. Reads are one positioned read of the file; writes are acknowledged as
/// [`LogOptions::durability`] says.
///
/// A partition index takes 25 bytes of memory per key, before the slack of its tables (they are 7/16 to 7/8 full).
///
/// Dropping it without [`StorageEngine::close`] loses nothing that was acknowledged, but what nobody waited for, and
/// the next start reads the end of the log.
pub struct LogEngine {
    core: Arc<Core>,
    /// Where the committer runs, which must not end before the engine.
    _tasks: Arc<dyn Tasks>,
}

impl LogEngine {
    /// Opens the engine in `directory` of the disk; an empty or missing directory becomes a new engine.
    ///
    /// Reads the index snapshot and the log after it (everything, if there is no usable snapshot) before it returns.
    ///
    /// # Errors
    /// [`StorageError::Disk`] with [`runtime::DiskError::Locked`] while another process has it open,
    /// [`StorageError::NewerFormat`] when a newer program wrote it, [`StorageError::Foreign`] when the directory
    /// holds something else, [`StorageError::Full`] when a new engine does not fit, or what the disk refused.
    pub async fn open(
        disk: Arc<dyn Disk>,
        directory: &str,
        options: LogOptions,
        ports: EnginePorts,
    ) -> Result<Arc<LogEngine>, StorageError> {
        let options = options.within_limits();
        let lock = disk.lock(&format!("{directory}/{}", identity::LOCK))?;
        let engine = identity::load_or_create(&*disk, &*ports.clock, directory).await?;
        let recovered = recovery::recover(&*disk, directory, engine)?;
        let core = Arc::new(Core::new(disk, directory, options, &ports, engine, recovered, lock));
        ports.tasks.spawn_background(Box::pin(commit::run(core.clone())));
        ports.tasks.spawn_background(Box::pin(maintain(core.clone())));
        Ok(Arc::new(LogEngine { core, _tasks: ports.tasks }))
    }
}

impl LogEngine {
    /// What lies in `directory`. A segment is missed when the last index snapshot names it; one that was begun after
    /// that is not. Changes nothing.
    ///
    /// # Errors
    /// As [`LogEngine::open`], but for the lock, which it does not need.
    pub fn remains(disk: &dyn Disk, directory: &str) -> Result<Remains, StorageError> {
        let Some(engine) = identity::load(disk, directory)? else { return Ok(Remains::Nothing) };
        match snapshot::has_its_segments(disk, directory, engine)? {
            true => Ok(Remains::Whole(engine)),
            false => Ok(Remains::Part(engine)),
        }
    }
}

impl Drop for LogEngine {
    fn drop(&mut self) {
        self.core.stop();
    }
}

/// Compacts and snapshots; looks for work some time after a commit.
async fn maintain(core: Arc<Core>) {
    while !core.refusing.load(Ordering::Acquire) {
        core.janitor.notified().await;
        core.clock.sleep(LOOK_INTERVAL).await;
        while !core.refusing.load(Ordering::Acquire) {
            let Some(work) = core.next_work() else { break };
            let _one_at_a_time = core.maintaining.lock().await;
            if core.refusing.load(Ordering::Acquire) {
                break;
            }
            let outcome = match &work {
                Work::Snapshot => core.snapshot().await,
                Work::Compact(sources) => core.compact(sources).await,
            };
            // A writer that was refused must not be refused once more to find that there is room again.
            core.look_at_space();
            if let Err(error) = outcome {
                tracing::warn!(directory = %core.directory, %error, "maintenance failed");
                core.clock.sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

impl Core {
    fn new(
        disk: Arc<dyn Disk>,
        directory: &str,
        options: LogOptions,
        ports: &EnginePorts,
        engine: u64,
        recovered: Recovered,
        lock: Box<dyn Send + Sync>,
    ) -> Core {
        let active = Segment::new(directory, engine, recovered.segment_next, SegmentKind::Log);
        let active = Arc::new(active);
        recovered.segments.insert(active.clone());
        let tail = Tail::new(
            directory,
            engine,
            active,
            tail::Start { position: recovered.read_bytes, sequence_next: recovered.sequence_next },
            options.segment_bytes,
        );
        let core = Core {
            disk,
            clock: ports.clock.clone(),
            directory: directory.to_owned(),
            options,
            engine,
            index: recovered.index,
            segments: recovered.segments,
            segment_next: AtomicU32::new(recovered.segment_next + 1),
            tail,
            walks: Walks::default(),
            fatal: OnceLock::new(),
            refusing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            full: AtomicBool::new(false),
            space: AtomicI64::new(0),
            dirty: AtomicBool::new(false),
            committer: Notify::new(),
            janitor: Notify::new(),
            committing: tokio::sync::Mutex::new(()),
            maintaining: tokio::sync::Mutex::new(()),
            waiters: Mutex::new(Vec::new()),
            unsynced_from: AtomicU32::new(recovered.unsynced_from),
            snapshot_position: AtomicU64::new(0),
            snapshot_bytes: AtomicU64::new(recovered.snapshot_bytes),
            corrupt: Mutex::new(recovered.corrupt),
            corrupt_discarded: AtomicU64::new(0),
            corrupt_unplaced: AtomicU64::new(recovered.unplaced),
            syncs: AtomicU64::new(0),
            compacted_bytes: AtomicU64::new(0),
            lock: Mutex::new(Some(lock)),
        };
        core.look_at_space();
        core
    }

    /// Refuses all further work and ends the tasks.
    fn stop(&self) {
        self.tail.close();
        self.closed.store(true, Ordering::Release);
        self.refusing.store(true, Ordering::Release);
        self.committer.notify_one();
        self.janitor.notify_one();
    }

    async fn close(&self) -> Result<(), StorageError> {
        let already = self.closed.swap(true, Ordering::AcqRel);
        self.stop();
        let _maintenance_is_over = self.maintaining.lock().await;
        if already {
            return self.fatal.get().map_or(Ok(()), |_| Err(self.refusal()));
        }
        let outcome = self.commit_last().await;
        self.answer(|_| Some(Err(self.refusal())));
        self.lock.lock().take();
        outcome
    }

    async fn commit_last(&self) -> Result<(), StorageError> {
        self.commit(true).await?;
        if self.tail.mark() {
            // So that the next start can tell damage from a torn end up to here.
            self.commit(true).await?;
        }
        let changed = self.tail.end().position > self.snapshot_position.load(Ordering::Relaxed);
        let emptied = self.segments.all().iter().any(|segment| segment.obsolete.load(Ordering::Acquire));
        let unwritten = self.snapshot_bytes.load(Ordering::Relaxed) == 0;
        if changed || emptied || unwritten {
            match self.snapshot().await {
                // The log has everything; the next start reads more of it.
                Err(StorageError::Full) => {
                    tracing::warn!(directory = %self.directory, "no room for an index snapshot");
                }
                outcome => return outcome,
            }
        }
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        let corrupt = self.corrupt.lock().len() as u64;
        let mut stats = EngineStats {
            corrupt_records: corrupt,
            corrupt_records_left: corrupt.saturating_sub(self.corrupt_discarded.load(Ordering::Relaxed)),
            corrupt_unplaced: self.corrupt_unplaced.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            compacted_bytes: self.compacted_bytes.load(Ordering::Relaxed),
            disk_bytes: self.snapshot_bytes.load(Ordering::Relaxed),
            ..EngineStats::default()
        };
        self.segments.each(|segment| stats.disk_bytes += segment.written.load(Ordering::Relaxed));
        for (_, partition) in self.index.iter() {
            let tables: usize = partition.stripes.iter().map(index::Stripe::allocation_bytes).sum();
            stats.records += partition.records.load(Ordering::Relaxed);
            stats.live_bytes += partition.bytes.load(Ordering::Relaxed);
            stats.memory_bytes += (tables + size_of::<index::PartitionIndex>()) as u64;
        }
        stats.memory_bytes += self.tail.end().waiting as u64;
        stats
    }
}

impl StorageEngine for LogEngine {
    fn get(&self, partition: PartitionId, token: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.core.get(partition, token, key)
    }

    fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        self.core.update(partition, token, key, change)
    }

    fn discard_corrupt(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
    ) -> Result<bool, StorageError> {
        self.core.discard_corrupt(partition, token, key)
    }

    fn discard_damaged(&self, partition: PartitionId) -> Result<u64, StorageError> {
        self.core.discard_damaged(partition)
    }

    fn settle_unplaced(&self) {
        let settled = self.core.corrupt_unplaced.swap(0, Ordering::Relaxed);
        self.core.corrupt_discarded.fetch_add(settled, Ordering::Relaxed);
    }

    fn room(&self) -> Result<u64, StorageError> {
        self.core.room()
    }

    fn acknowledges_at_once(&self) -> bool {
        // Even without syncs a write must be in the file before the end of the process can do it no harm.
        false
    }

    fn position(&self) -> Commit {
        Commit(self.core.tail.end().position)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        let core = self.core.clone();
        Box::pin(async move {
            core.check()?;
            core.commit(true).await
        })
    }

    fn durable(&self, commit: Commit) -> Durable {
        self.core.durable(commit)
    }

    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError> {
        self.core.check()?;
        self.core.walks.page(&*self.core, partition, after, limit)
    }

    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        self.core.check()?;
        crate::walk::walk(&*self.core, partition, tokens, visit)
    }

    fn find(
        &self,
        partition: PartitionId,
        token: Token,
        fingerprint: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        self.core.check()?;
        let mut records = Vec::new();
        self.core.records_at(partition, (token, fingerprint), &mut records)?;
        Ok(records)
    }

    fn partitions(&self) -> Vec<(PartitionId, u64)> {
        let counted = self.core.index.iter().map(|(id, index)| (id, index.records.load(Ordering::Relaxed)));
        counted.filter(|&(_, records)| records > 0).collect()
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<(), StorageError> {
        self.core.drop_partition(partition)
    }

    fn stats(&self) -> EngineStats {
        self.core.stats()
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        let core = self.core.clone();
        Box::pin(async move { core.close().await })
    }
}
