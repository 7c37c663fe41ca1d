//! Which event each value is, seen at the port of the engines: what a plain client is not told.
//!
//! Without it, two plain writes could not be ordered, and a stale answer to a plain client would pass.
//!
//! Must never: change what an engine does, or answer.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;
use model::{Dot, PartitionId, Timestamp, Token, Value};
use node::engines::Engines;
use parking_lot::Mutex;
use runtime::BoxFuture;
use storage::{
    Change, Commit, Durable, EngineStats, Met, Remains, RepairableEngine, Room, ScanCursor, ScanLimit,
    ScanPage, StorageEngine, StorageError,
};

/// The event that each value is, and its timestamp. Each value of a run is written once.
pub type Events = BTreeMap<Bytes, (Dot, Timestamp)>;

/// What all engines of a run have stored. Clones are the same.
#[derive(Clone, Default)]
pub struct Witness {
    events: Arc<Mutex<Events>>,
}

impl Witness {
    /// All that was seen so far.
    pub fn events(&self) -> Events {
        self.events.lock().clone()
    }

    fn see(&self, record: &Bytes) {
        let Ok(record) = wire::versions::decode_record(record) else { return };
        let mut events = self.events.lock();
        for version in record.set.versions() {
            if let Value::Present(value) = &version.value {
                events.entry(value.clone()).or_insert((version.dot, version.timestamp));
            }
        }
    }
}

/// Opens engines whose records are seen.
pub struct WitnessedEngines {
    /// Who opens them.
    pub inner: Arc<dyn Engines>,
    /// Who sees.
    pub witness: Witness,
}

impl Engines for WitnessedEngines {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn forget(&self) -> bool {
        self.inner.forget()
    }

    fn remains(&self, name: &str) -> Result<Remains, StorageError> {
        self.inner.remains(name)
    }

    fn open(&self, name: &str) -> BoxFuture<'static, Result<Arc<dyn StorageEngine>, StorageError>> {
        let (opening, witness) = (self.inner.open(name), self.witness.clone());
        // What lies in an engine of hints is no record.
        let hints = name.ends_with("hints");
        Box::pin(async move {
            let inner = opening.await?;
            Ok(if hints { inner } else { Arc::new(WitnessedEngine { inner, witness }) as Arc<_> })
        })
    }
}

struct WitnessedEngine {
    inner: Arc<dyn StorageEngine>,
    witness: Witness,
}

impl StorageEngine for WitnessedEngine {
    fn get(&self, partition: PartitionId, token: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.inner.get(partition, token, key)
    }

    fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        let mut written = None;
        let commit = self.inner.update(partition, token, key, &mut |record| {
            let change = change(record);
            written = match &change {
                Change::Put(record) => Some(record.clone()),
                Change::PutJoined(head, value) => Some(Bytes::from([&head[..], value].concat())),
                _ => None,
            };
            change
        })?;
        // What the engine refused has been no event: another node may stamp the write anew.
        if let (Some(_), Some(record)) = (&commit, &written) {
            self.witness.see(record);
        }
        Ok(commit)
    }

    fn acknowledges_at_once(&self) -> bool {
        self.inner.acknowledges_at_once()
    }

    fn repairable(&self) -> Option<&dyn RepairableEngine> {
        self.inner.repairable()
    }

    fn room(&self) -> Result<Room, StorageError> {
        self.inner.room()
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        self.inner.sync()
    }

    fn durable(&self, commit: Commit) -> Durable {
        self.inner.durable(commit)
    }

    fn position(&self) -> Commit {
        self.inner.position()
    }

    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError> {
        self.inner.scan(partition, after, limit)
    }

    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        self.inner.walk(partition, tokens, visit)
    }

    fn find(
        &self,
        partition: PartitionId,
        token: Token,
        fingerprint: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        self.inner.find(partition, token, fingerprint)
    }

    fn partitions(&self) -> Vec<(PartitionId, u64)> {
        self.inner.partitions()
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<(), StorageError> {
        self.inner.drop_partition(partition)
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        self.inner.close()
    }
}
