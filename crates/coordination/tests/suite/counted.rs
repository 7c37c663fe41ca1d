//! A session that counts what it is asked, for tests and measurements of what an event costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use coordination::{
    CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Expected, SessionId, Stat,
    Watch,
};

/// What sessions have asked, together.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    reads: AtomicU64,
    watches: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Documents and lists that were read.
    pub(crate) reads: u64,
    /// Watches that were set with them.
    pub(crate) watches: u64,
    /// Documents that were created, set or deleted.
    pub(crate) writes: u64,
    /// Bytes of content that were read or written.
    pub(crate) bytes: u64,
}

impl Counts {
    pub(crate) fn now(&self) -> Counted {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counted {
            reads: get(&self.reads),
            watches: get(&self.watches),
            writes: get(&self.writes),
            bytes: get(&self.bytes),
        }
    }

    fn read(&self, bytes: usize, watched: bool) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.watches.fetch_add(u64::from(watched), Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl std::ops::Sub for Counted {
    type Output = Counted;
    fn sub(self, before: Counted) -> Counted {
        Counted {
            reads: self.reads - before.reads,
            watches: self.watches - before.watches,
            writes: self.writes - before.writes,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// A session whose calls are counted.
pub(crate) struct CountedSession {
    pub(crate) inner: Arc<dyn CoordinationService>,
    pub(crate) counts: Arc<Counts>,
}

fn listed(names: &[String]) -> usize {
    names.iter().map(String::len).sum()
}

#[async_trait]
impl CoordinationService for CountedSession {
    fn session(&self) -> SessionId {
        self.inner.session()
    }

    fn session_timeout(&self) -> Duration {
        self.inner.session_timeout()
    }

    async fn reopen(&self) -> Result<Arc<dyn CoordinationService>, CoordinationError> {
        let inner = self.inner.reopen().await?;
        Ok(Arc::new(CountedSession { inner, counts: self.counts.clone() }))
    }

    async fn create(
        &self,
        path: &DocumentPath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<DocumentPath, CoordinationError> {
        self.counts.write(data.len());
        self.inner.create(path, data, mode).await
    }

    async fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError> {
        let found = self.inner.get(path).await;
        self.counts.read(found.as_ref().map_or(0, |document| document.data.len()), false);
        found
    }

    async fn set(
        &self,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<Stat, CoordinationError> {
        self.counts.write(data.len());
        self.inner.set(path, data, expected).await
    }

    async fn delete(&self, path: &DocumentPath, expected: Expected) -> Result<(), CoordinationError> {
        self.counts.write(0);
        self.inner.delete(path, expected).await
    }

    async fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError> {
        let names = self.inner.children(path).await;
        self.counts.read(names.as_deref().map_or(0, listed), false);
        names
    }

    async fn get_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Option<Document>, Watch), CoordinationError> {
        let found = self.inner.get_and_watch(path).await;
        let bytes = found.as_ref().ok().and_then(|(found, _)| found.as_ref()).map_or(0, |d| d.data.len());
        self.counts.read(bytes, true);
        found
    }

    async fn children_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Vec<String>, Watch), CoordinationError> {
        let found = self.inner.children_and_watch(path).await;
        self.counts.read(found.as_ref().map_or(0, |(names, _)| listed(names)), true);
        found
    }

    async fn lost(&self) {
        self.inner.lost().await;
    }

    async fn close(&self) -> Result<(), CoordinationError> {
        self.inner.close().await
    }
}
