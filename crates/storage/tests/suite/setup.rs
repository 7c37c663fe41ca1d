//! Every engine on every disk it can stand on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use model::{PartitionId, Token};
use runtime::disk::os::OsDisk;
use runtime::disk::simulated::SimulatedDisk;
use storage::{
    Change, Commit, Durability, EnginePorts, LogEngine, LogOptions, MemoryEngine, ScanLimit, StorageEngine,
    StorageError,
};

use crate::world::World;

pub(crate) const DIRECTORY: &str = "store/log";

/// Segments so small that every test rotates, compacts and snapshots.
pub(crate) fn small(durability: Durability) -> LogOptions {
    LogOptions { durability, segment_bytes: 1024, reserve_bytes: 0, snapshot_bytes: 4096 }
}

pub(crate) enum Setup {
    Memory,
    Simulated { world: World, disk: SimulatedDisk, options: LogOptions },
    Os { directory: tempfile::TempDir, ports: EnginePorts, options: LogOptions },
}

impl Setup {
    pub(crate) fn all() -> Vec<Setup> {
        let clock = Arc::new(runtime::clock::os::OsClock::new());
        let tasks = Arc::new(runtime::tasks::os::OsTasks::start().unwrap());
        let ports = EnginePorts { clock, tasks };
        let mut all = vec![Setup::Memory];
        for durability in [Durability::Always, Durability::Every { milliseconds: 1 }, Durability::System] {
            all.push(Setup::simulated(durability));
            let directory = tempfile::tempdir().unwrap();
            all.push(Setup::Os { directory, ports: ports.clone(), options: small(durability) });
        }
        all
    }

    pub(crate) fn simulated(durability: Durability) -> Setup {
        Setup::Simulated { world: World::default(), disk: SimulatedDisk::new(1), options: small(durability) }
    }

    pub(crate) fn is_persistent(&self) -> bool {
        !matches!(self, Setup::Memory)
    }

    pub(crate) fn open(&self) -> Arc<dyn StorageEngine> {
        match self {
            Setup::Memory => Arc::new(MemoryEngine::new()),
            Setup::Simulated { world, disk, options } => {
                let disk = Arc::new(disk.clone());
                world.block_on(LogEngine::open(disk, DIRECTORY, *options, world.ports())).unwrap()
            }
            Setup::Os { directory, ports, options } => {
                let disk = Arc::new(OsDisk::open(directory.path()).unwrap());
                let opening = LogEngine::open(disk, DIRECTORY, *options, ports.clone());
                block_on(opening).unwrap()
            }
        }
    }

    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        match self {
            Setup::Simulated { world, .. } => world.block_on(future),
            _ => block_on(future),
        }
    }

    pub(crate) fn put(
        &self,
        engine: &dyn StorageEngine,
        partition: u32,
        key: &str,
        value: impl Into<Vec<u8>>,
    ) {
        let commit = write(engine, partition, key.as_bytes(), Some(value.into())).unwrap().unwrap();
        self.wait(engine.durable(commit).wait()).unwrap();
    }
}

/// Waits on this thread, without a clock.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// Puts a value or removes the key.
pub(crate) fn write(
    engine: &dyn StorageEngine,
    partition: u32,
    key: &[u8],
    value: Option<Vec<u8>>,
) -> Result<Option<Commit>, StorageError> {
    let mut value = Some(value);
    engine.update(PartitionId(partition), Token::of(key), key, &mut |_| match value
        .take()
        .expect("called at most once")
    {
        Some(value) => Change::Put(Bytes::from(value)),
        None => Change::Remove,
    })
}

pub(crate) fn get(engine: &dyn StorageEngine, partition: u32, key: &str) -> Option<Vec<u8>> {
    let found = engine.get(PartitionId(partition), Token::of(key.as_bytes()), key.as_bytes());
    found.unwrap().map(|record| record.to_vec())
}

/// Partitions that hold records, and how many each holds.
pub(crate) fn counted(engine: &dyn StorageEngine) -> Vec<(PartitionId, u64)> {
    engine.partitions().into_iter().map(|held| (held.partition, held.records)).collect()
}

/// All records of a partition, in pages.
pub(crate) fn scan_all(
    engine: &dyn StorageEngine,
    partition: u32,
    limit: ScanLimit,
) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
    let mut records = Vec::new();
    let mut after = None;
    loop {
        let page = engine.scan(PartitionId(partition), after.as_ref(), limit)?;
        assert!(page.records.len() <= limit.records_max.max(1));
        records.extend(page.records);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(records),
        }
    }
}

pub(crate) const WHOLE: ScanLimit = ScanLimit { records_max: usize::MAX, bytes_max: usize::MAX };

/// Says stop when it goes, also by a panic: threads that went on behind a failure would keep a test from its end.
pub(crate) struct Stops<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
