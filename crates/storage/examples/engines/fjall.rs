//! A peer from outside: fjall, a well-kept log-structured merge tree in Rust, behind the same trait.
//!
//! It is opened with its defaults but for compression, which has nothing to gain on random values. A write is in the
//! system's hands when it is acknowledged, and a thread syncs the journal every 10 ms, as the log engine does by
//! itself. An update reads the record first, as the trait demands and as the log engine does. Partitions are not kept
//! apart, which spares it their part of a key.

use std::ops::{ControlFlow, RangeInclusive};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use model::{PartitionId, Token};
use runtime::{BoxFuture, DiskError};
use storage::{
    Change, Commit, Durable, EngineStats, Met, ScanCursor, ScanLimit, ScanPage, StorageEngine, StorageError,
};

const SYNC_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) struct Fjall {
    database: Database,
    records: Keyspace,
    writes: AtomicU64,
    syncer: Option<JoinHandle<()>>,
    ends: Arc<AtomicBool>,
    syncs: Arc<AtomicU64>,
}

impl Fjall {
    pub(crate) fn open(directory: &Path) -> Fjall {
        let database = Database::builder(directory.join("fjall")).open().unwrap();
        let records = database.keyspace("records", KeyspaceCreateOptions::default).unwrap();
        let (ends, syncs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (journal, stop, count) = (database.clone(), ends.clone(), syncs.clone());
        let syncer = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(SYNC_INTERVAL);
                journal.persist(PersistMode::SyncData).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Fjall { database, records, writes: AtomicU64::new(0), syncer: Some(syncer), ends, syncs }
    }

    /// How many records there are, by reading them all.
    pub(crate) fn count(&self) -> u64 {
        self.records.len().unwrap() as u64
    }
}

impl Drop for Fjall {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.syncer.take().map(JoinHandle::join);
        self.database.persist(PersistMode::SyncAll).unwrap();
    }
}

fn failed(error: &fjall::Error) -> StorageError {
    StorageError::Disk(DiskError::Failed { path: "fjall".to_owned(), reason: error.to_string() })
}

impl StorageEngine for Fjall {
    fn get(&self, _: PartitionId, _: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let found = self.records.get(key).map_err(|error| failed(&error))?;
        Ok(found.map(Bytes::from))
    }

    fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        let before = self.get(partition, token, key)?;
        match change(before.as_ref()) {
            Change::Keep => return Ok(None),
            Change::Remove => self.records.remove(key),
            Change::Put(record) => self.records.insert(key, record),
            Change::PutJoined(head, rest) => self.records.insert(key, [&head[..], rest].concat()),
        }
        .map_err(|error| failed(&error))?;
        Ok(Some(Commit(self.writes.fetch_add(1, Ordering::Relaxed) + 1)))
    }

    fn acknowledges_at_once(&self) -> bool {
        true
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        let synced = self.database.persist(PersistMode::SyncData).map_err(|error| failed(&error));
        Box::pin(std::future::ready(synced))
    }

    fn durable(&self, _: Commit) -> Durable {
        Durable::Already
    }

    fn position(&self) -> Commit {
        Commit(self.writes.load(Ordering::Relaxed))
    }

    fn scan(&self, _: PartitionId, _: Option<&ScanCursor>, _: ScanLimit) -> Result<ScanPage, StorageError> {
        Err(not_measured("no mix scans"))
    }

    fn walk(
        &self,
        _: PartitionId,
        _: RangeInclusive<Token>,
        _: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        Err(not_measured("no mix walks"))
    }

    fn find(&self, _: PartitionId, _: Token, _: u32) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        Err(not_measured("no mix looks for fingerprints"))
    }

    fn partitions(&self) -> Vec<(PartitionId, u64)> {
        Vec::new()
    }

    fn drop_partition(&self, _: PartitionId) -> Result<(), StorageError> {
        Err(not_measured("no mix drops partitions"))
    }

    /// What it knows of itself: nothing of memory, so the process's own is to be looked at.
    fn stats(&self) -> EngineStats {
        let records = self.records.approximate_len() as u64;
        EngineStats {
            records,
            disk_bytes: self.database.disk_space().unwrap(),
            syncs: self.syncs.load(Ordering::Relaxed),
            ..EngineStats::default()
        }
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        self.sync()
    }
}

/// What the mixes never ask for is not made of it.
fn not_measured(what: &str) -> StorageError {
    StorageError::Fatal { reason: format!("this engine is here to be measured, and {what}") }
}
