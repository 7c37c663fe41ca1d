//! The log engine (D14): values append to checksummed segments, an index in memory finds them.
//!
//! ```text
//! update ─► tail ─► active segment ─► closed segments ─► compaction ─► compacted segments
//!    │        (memory)   (group commit)                       │
//!    └──────► index (memory) ◄───────────────────────────────┘ ─► snapshot (restart)
//! ```
//!
//! - `update`, `tail`, `appending`, `commit`: writing, and one sync for many writers; atomicity per key.
//! - `index`, `core`: finding, reading and verifying records.
//! - `recovery` (`reading`, `replay`, `rebuild`), `renewal`, `snapshot`, `snapshot_writer`: restarting.
//! - `space`, `compaction`, `maintenance`: room, and making it.
//! - `damage`, `discard`: records that cannot be read.
//! - `format`, `reader`, `segment`, `identity`: bytes and files.
//!
//! Format, recovery and compaction are argued in `docs/design/storage-log.md`.
//!
//! Whoever calls may survive a panic and go on (`runtime::panics`): what changes the engine's state is one whole change.
//!
//! Must never: serve bytes whose checksum does not hold, acknowledge what the durability setting does not cover, or
//! go on after a failed sync.

mod appending;
mod commit;
mod compaction;
mod core;
mod damage;
mod discard;
mod format;
mod identity;
mod index;
mod life;
mod maintenance;
mod options;
mod reader;
mod reading;
mod rebuild;
mod recovery;
mod renewal;
mod replay;
mod segment;
mod site;
mod snapshot;
mod snapshot_writer;
mod space;
mod tail;
mod update;
mod validate;

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{PartitionId, Token};
use parking_lot::Mutex;
use runtime::panics::{whole, whole_steps};
use runtime::{BoxFuture, Disk, Tasks};

use self::appending::Appending;
use self::compaction::Work;
use self::core::Core;
use self::format::SegmentKind;
use self::index::PartitionIndex;
use self::life::Life;
use self::maintenance::Maintenance;
use self::recovery::Recovered;
use self::segment::Segment;
use self::site::Site;
use self::snapshot::LastSnapshot;
use self::space::Space;
use self::tail::Tail;
use crate::engine::{
    Change, Commit, DamageStats, Durable, EngineStats, Held, Met, Remains, RepairableEngine, Room,
    ScanCursor, ScanLimit, ScanPage, StorageEngine,
};
use crate::error::StorageError;
use crate::walk::{Walkable, Walks};

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
        renewal::renew(&*disk, directory, &recovered.segments, &recovered.doubtful).await?;
        let (clock, directory) = (ports.clock.clone(), directory.to_owned());
        let core = Core::new(Site { disk, clock, directory, options, engine }, recovered, lock);
        if cfg!(debug_assertions) {
            core.validate();
        }
        let core = Arc::new(core);
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
    while !core.life.is_refusing() {
        core.maintenance.woken().await;
        core.site.clock.sleep(LOOK_INTERVAL).await;
        while !core.life.is_refusing() {
            let Some(work) = core.next_work() else { break };
            let _one_at_a_time = core.maintenance.begin().await;
            if core.life.is_refusing() {
                break;
            }
            let outcome = match &work {
                Work::Snapshot => core.snapshot().await,
                Work::Seal => core.seal().await,
                Work::Compact(sources) => core.compact(sources).await,
            };
            // A writer that was refused must not be refused once more to find that there is room again.
            core.look_at_space();
            if let Err(error) = outcome {
                tracing::warn!(directory = %core.site.directory, %error, "maintenance failed");
                core.site.clock.sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

impl Core {
    fn new(site: Site, recovered: Recovered, lock: Box<dyn Send + Sync>) -> Core {
        let segments = recovered.segments;
        let active = Segment::new(&site.directory, site.engine, segments.take_id(), SegmentKind::Log);
        let active = Arc::new(active);
        segments.insert(active.clone());
        let start = tail::Start { position: recovered.read_bytes, sequence_next: recovered.sequence_next };
        let tail = Tail::new(&site.directory, site.engine, active, start, site.options.segment_bytes);
        let core = Core {
            life: Life::default(),
            index: recovered.index,
            segments,
            appending: Appending::new(tail, recovered.unsynced_from),
            space: Space::new(site.options.reserve_bytes),
            damage: recovered.damage,
            last_snapshot: LastSnapshot::earlier(recovered.snapshot_bytes),
            maintenance: Maintenance::default(),
            walks: Walks::default(),
            lock: Mutex::new(Some(lock)),
            site,
        };
        core.look_at_space();
        core
    }

    /// Refuses all further work and ends the tasks; true when it did before.
    fn stop(&self) -> bool {
        let already = self.life.close();
        self.appending.tail().close();
        self.appending.wake();
        self.maintenance.wake();
        already
    }

    async fn close(&self) -> Result<(), StorageError> {
        let already = self.stop();
        let _maintenance_is_over = self.maintenance.begin().await;
        if already {
            return if self.life.has_failed() { Err(self.life.refusal()) } else { Ok(()) };
        }
        let outcome = self.commit_last().await;
        self.appending.answer(|_| Some(Err(self.life.refusal())));
        if cfg!(debug_assertions) {
            self.validate();
        }
        self.lock.lock().take();
        outcome
    }

    async fn commit_last(&self) -> Result<(), StorageError> {
        self.commit(true).await?;
        if self.appending.tail().mark() {
            // So that the next start can tell damage from a torn end up to here.
            self.commit(true).await?;
        }
        let changed = self.appending.tail().end().position > self.last_snapshot.position();
        let emptied = self.segments.all().iter().any(|segment| segment.is_obsolete());
        let unwritten = self.last_snapshot.bytes() == 0;
        if changed || emptied || unwritten {
            match self.snapshot().await {
                // The log has everything; the next start reads more of it.
                Err(StorageError::Full) => {
                    tracing::warn!(directory = %self.site.directory, "no room for an index snapshot");
                }
                outcome => return outcome,
            }
        }
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        let mut stats = EngineStats {
            syncs: self.appending.syncs(),
            compacted_bytes: self.maintenance.compacted_bytes(),
            disk_bytes: self.last_snapshot.bytes(),
            memory_bytes: self.appending.tail().end().waiting as u64,
            ..EngineStats::default()
        };
        self.segments.each(|segment| stats.disk_bytes += segment.written());
        for (_, partition) in self.index.iter() {
            stats.records += partition.records();
            stats.live_bytes += partition.bytes();
            stats.memory_bytes += partition.memory_bytes() as u64;
        }
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
        whole(|| self.core.update(partition, token, key, change))
    }

    fn repairable(&self) -> Option<&dyn RepairableEngine> {
        Some(self)
    }

    fn room(&self) -> Result<Room, StorageError> {
        self.core.room()
    }

    fn acknowledges_at_once(&self) -> bool {
        // Even without syncs a write must be in the file before the end of the process can do it no harm.
        false
    }

    fn position(&self) -> Commit {
        Commit(self.core.appending.tail().end().position)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        let core = self.core.clone();
        Box::pin(whole_steps(async move {
            core.life.check()?;
            core.commit(true).await
        }))
    }

    fn durable(&self, commit: Commit) -> Durable {
        whole(|| self.core.durable(commit))
    }

    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError> {
        self.core.life.check()?;
        self.core.walks.page(&*self.core, partition, after, limit)
    }

    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        self.core.life.check()?;
        crate::walk::walk(&*self.core, partition, tokens, visit)
    }

    fn find(
        &self,
        partition: PartitionId,
        token: Token,
        fingerprint: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        self.core.life.check()?;
        let mut records = Vec::new();
        self.core.records_at(partition, (token, fingerprint), &mut records)?;
        Ok(records)
    }

    fn partitions(&self) -> Vec<Held> {
        let held = |(partition, index): (_, &PartitionIndex)| Held {
            partition,
            records: index.records(),
            bytes: index.bytes(),
        };
        self.core.index.iter().map(held).filter(|held| held.records > 0).collect()
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<(), StorageError> {
        whole(|| self.core.drop_partition(partition))
    }

    fn stats(&self) -> EngineStats {
        self.core.stats()
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        let core = self.core.clone();
        Box::pin(whole_steps(async move { core.close().await }))
    }
}

impl RepairableEngine for LogEngine {
    fn discard_corrupt(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
    ) -> Result<bool, StorageError> {
        whole(|| self.core.discard_corrupt(partition, token, key))
    }

    fn discard_damaged(&self, partition: PartitionId) -> Result<u64, StorageError> {
        whole(|| self.core.discard_damaged(partition))
    }

    fn settle_unplaced(&self) {
        self.core.damage.settle_unplaced();
    }

    fn damage(&self) -> DamageStats {
        self.core.damage.stats()
    }
}
