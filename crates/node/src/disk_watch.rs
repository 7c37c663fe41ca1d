//! A disk that is timed: how long its syncs take, and a line in the log when it is slow.
//!
//! A disk that is about to fail, or is shared with somebody who writes a lot, first becomes slow. Writes wait for its
//! syncs, so this is where users meet it, and the operator should read of it in the log and see it in the metrics.
//!
//! Must never: change what the disk does, or ask the clock where nothing is waited for.

use std::sync::Arc;
use std::time::Duration;

use model::{Moment, NodeId};
use parking_lot::Mutex;
use runtime::{BoxFuture, Clock, Disk, DiskError, File, FileStat};

use crate::metrics::{Histogram, Metrics};

/// A sync that takes longer is slow: a hundred times what a healthy disk takes.
pub const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Time between two lines of the log about it.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// A node's disk, timed.
pub struct DiskWatch {
    inner: Arc<dyn Disk>,
    syncs: Arc<Syncs>,
}

struct Syncs {
    node: NodeId,
    clock: Arc<dyn Clock>,
    took: Histogram,
    slow: Mutex<Slow>,
}

/// Slow syncs that the log does not know of yet.
#[derive(Default)]
struct Slow {
    count: u64,
    longest: Duration,
    told_at: Option<Moment>,
}

struct WatchedFile {
    inner: Arc<dyn File>,
    syncs: Arc<Syncs>,
}

impl DiskWatch {
    /// Times this disk of a node from now on.
    pub fn new(inner: Arc<dyn Disk>, node: NodeId, clock: Arc<dyn Clock>) -> Arc<DiskWatch> {
        let syncs = Syncs { node, clock, took: Histogram::default(), slow: Mutex::default() };
        Arc::new(DiskWatch { inner, syncs: Arc::new(syncs) })
    }

    /// Shows its numbers among those of its node.
    pub fn register(&self, metrics: &Metrics) {
        metrics.add_durations("tontine_disk_sync_duration_seconds", &[], self.syncs.took.clone());
    }

    fn watch(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(WatchedFile { inner, syncs: self.syncs.clone() })
    }
}

impl Syncs {
    fn time(
        self: &Arc<Self>,
        sync: BoxFuture<'static, Result<(), DiskError>>,
    ) -> BoxFuture<'static, Result<(), DiskError>> {
        let (syncs, began) = (self.clone(), self.clock.now());
        Box::pin(async move {
            let synced = sync.await;
            let now = syncs.clock.now();
            let took = now.since(began);
            syncs.took.observe(took);
            if let Some((slow, longest)) = syncs.note(took, now) {
                let (node, seconds) = (syncs.node, longest.as_secs_f64());
                tracing::warn!(%node, seconds, slow, "disk is slow to sync");
            }
            synced
        })
    }

    /// Slow syncs since the log was told last, and the longest of them, if it shall be told now.
    fn note(&self, took: Duration, now: Moment) -> Option<(u64, Duration)> {
        if took < SLOW_AFTER {
            return None;
        }
        let mut slow = self.slow.lock();
        slow.count += 1;
        slow.longest = slow.longest.max(took);
        if slow.told_at.is_some_and(|at| now.since(at) < TELL_INTERVAL) {
            return None;
        }
        let told = std::mem::replace(&mut *slow, Slow { told_at: Some(now), ..Slow::default() });
        Some((told.count, told.longest))
    }
}

impl Disk for DiskWatch {
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        Ok(self.watch(self.inner.create(path)?))
    }

    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        Ok(self.watch(self.inner.open(path)?))
    }

    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        self.inner.stat(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.inner.remove(path)
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.inner.list(directory)
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        self.syncs.time(self.inner.sync_directory(directory))
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        self.inner.lock(path)
    }

    fn available_bytes(&self) -> u64 {
        self.inner.available_bytes()
    }

    fn total_bytes(&self) -> Option<u64> {
        self.inner.total_bytes()
    }

    fn mappings_left(&self) -> usize {
        self.inner.mappings_left()
    }
}

impl File for WatchedFile {
    fn append(&self, bytes: &[u8]) -> Result<u64, DiskError> {
        self.inner.append(bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.inner.read_at(offset, buffer)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        self.syncs.time(self.inner.sync())
    }

    fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.inner.truncate(length)
    }

    fn length(&self) -> u64 {
        self.inner.length()
    }

    fn map(&self) -> Result<Arc<dyn runtime::Mapping>, DiskError> {
        self.inner.map()
    }

    fn drop_cached(&self, range: std::ops::Range<u64>) {
        self.inner.drop_cached(range);
    }

    fn read_in_passing(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.inner.read_in_passing(offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use runtime::clock::os::OsClock;
    use runtime::disk::simulated::SimulatedDisk;

    use super::*;

    fn watch() -> Arc<DiskWatch> {
        DiskWatch::new(Arc::new(SimulatedDisk::new(1)), NodeId(1), Arc::new(OsClock::new()))
    }

    #[tokio::test]
    async fn every_sync_is_timed_and_the_disk_behaves_as_before() {
        let disk = watch();
        let file = disk.create("a/b").unwrap();
        assert_eq!((file.append(b"bytes").unwrap(), file.length()), (0, 5));
        file.sync().await.unwrap();
        disk.sync_directory("a").await.unwrap();
        assert_eq!(disk.list("a").unwrap(), ["b"]);
        let mut read = [0; 5];
        assert_eq!((disk.open("a/b").unwrap().read_at(0, &mut read).unwrap(), &read), (5, b"bytes"));
        let metrics = Metrics::new();
        disk.register(&metrics);
        assert!(
            metrics.text().contains("tontine_disk_sync_duration_seconds_count 2\n"),
            "{}",
            metrics.text()
        );
    }

    #[test]
    fn a_slow_disk_is_reported_at_once_and_then_at_most_every_ten_seconds() {
        let disk = watch();
        let at = |seconds: u64| Moment::default().after(Duration::from_secs(seconds));
        let note = |took_ms: u64, now| disk.syncs.note(Duration::from_millis(took_ms), now);
        assert_eq!(note(999, at(100)), None);
        assert_eq!(note(1500, at(100)), Some((1, Duration::from_millis(1500))));
        assert_eq!(note(4000, at(105)), None);
        assert_eq!(note(2000, at(109)), None);
        assert_eq!(note(1000, at(110)), Some((3, Duration::from_secs(4))));
        assert_eq!(note(1000, at(200)), Some((1, Duration::from_secs(1))));
    }
}
