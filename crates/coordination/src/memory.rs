//! The service within one process, for simulation and tests: one tree, any number of sessions.
//!
//! Deterministic: every operation takes effect when its future is first polled, and events reach watchers before
//! the operation that caused them returns. Nothing is durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::tree::{Change, Tree};
use crate::watch::WatchRegistry;
use crate::{
    CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Event, Expected, SessionId,
    Stat, Watch,
};

/// One tree of documents, shared by its sessions. Clones are the same service.
#[derive(Clone)]
pub struct MemoryService {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    tree: Tree,
    available: bool,
    sessions: BTreeMap<SessionId, Session>,
}

struct Session {
    watches: WatchRegistry,
    ended: watch::Sender<bool>,
}

impl Default for MemoryService {
    fn default() -> MemoryService {
        MemoryService::new()
    }
}

impl MemoryService {
    /// An empty tree.
    pub fn new() -> MemoryService {
        let shared = Shared { tree: Tree::new(), available: true, sessions: BTreeMap::new() };
        MemoryService { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Opens a session. Works also while the service is unavailable; its operations do not.
    pub fn open(&self) -> MemorySession {
        let mut shared = self.shared.lock();
        let id = shared.tree.next_session();
        let (ended, is_ended) = watch::channel(false);
        shared.change(&Change::SessionOpened { session: id });
        shared.sessions.insert(id, Session { watches: WatchRegistry::default(), ended });
        MemorySession { id, shared: Arc::clone(&self.shared), ended: is_ended }
    }

    /// Ends a session as if its process had died. Its owner learns it by `lost`. Harmless when it has ended.
    pub fn kill(&self, session: SessionId) {
        self.shared.lock().end(session);
    }

    /// Makes the whole service unavailable, or available again. Sessions survive: whoever wants one to end in the
    /// meantime kills it.
    pub fn set_available(&self, available: bool) {
        self.shared.lock().available = available;
    }
}

impl Shared {
    fn check(&self, session: SessionId) -> Result<(), CoordinationError> {
        self.tree.check_session(session)?;
        if self.available {
            return Ok(());
        }
        Err(CoordinationError::Unavailable { reason: "the service was made unavailable".to_owned() })
    }

    /// Applies a change and fires the watches of all sessions.
    fn change(&mut self, change: &Change) {
        let mut events: Vec<Event> = Vec::new();
        self.tree.apply(change, &mut events);
        for event in &events {
            for session in self.sessions.values_mut() {
                session.watches.fire(event);
            }
        }
    }

    fn end(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            session.ended.send_replace(true);
            self.change(&Change::SessionEnded { session: id });
        }
    }

    fn watches(&mut self, session: SessionId) -> &mut WatchRegistry {
        &mut self.sessions.get_mut(&session).expect("open sessions are registered").watches
    }
}

/// One session with a [`MemoryService`].
pub struct MemorySession {
    id: SessionId,
    shared: Arc<Mutex<Shared>>,
    ended: watch::Receiver<bool>,
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.shared.lock().end(self.id);
    }
}

#[async_trait]
impl CoordinationService for MemorySession {
    fn session(&self) -> SessionId {
        self.id
    }

    fn session_timeout(&self) -> Duration {
        Duration::ZERO
    }

    async fn reopen(&self) -> Result<Arc<dyn CoordinationService>, CoordinationError> {
        if !self.shared.lock().available {
            return Err(CoordinationError::Unavailable { reason: "the service is away".to_owned() });
        }
        Ok(Arc::new(MemoryService { shared: Arc::clone(&self.shared) }.open()))
    }

    async fn create(
        &self,
        path: &DocumentPath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<DocumentPath, CoordinationError> {
        let mut shared = self.shared.lock();
        shared.check(self.id)?;
        let change = shared.tree.plan_create(self.id, path, data, mode)?;
        shared.change(&change);
        let Change::Created { path, .. } = change else { unreachable!("creations are planned as such") };
        Ok(path)
    }

    async fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError> {
        let shared = self.shared.lock();
        shared.check(self.id)?;
        shared.tree.get(path)
    }

    async fn set(
        &self,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<Stat, CoordinationError> {
        let mut shared = self.shared.lock();
        shared.check(self.id)?;
        let change = shared.tree.plan_set(self.id, path, data, expected)?;
        shared.change(&change);
        Ok(shared.tree.stat(path).expect("it was just set"))
    }

    async fn delete(&self, path: &DocumentPath, expected: Expected) -> Result<(), CoordinationError> {
        let mut shared = self.shared.lock();
        shared.check(self.id)?;
        let change = shared.tree.plan_delete(self.id, path, expected)?;
        shared.change(&change);
        Ok(())
    }

    async fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError> {
        let shared = self.shared.lock();
        shared.check(self.id)?;
        shared.tree.children(path)
    }

    async fn get_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Option<Document>, Watch), CoordinationError> {
        let mut shared = self.shared.lock();
        shared.check(self.id)?;
        let document = shared.tree.get(path).ok();
        Ok((document, shared.watches(self.id).watch_document(path)))
    }

    async fn children_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Vec<String>, Watch), CoordinationError> {
        let mut shared = self.shared.lock();
        shared.check(self.id)?;
        let children = shared.tree.children(path)?;
        Ok((children, shared.watches(self.id).watch_list(path)))
    }

    async fn lost(&self) {
        // An error means that the session was removed, which is the same.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    async fn close(&self) -> Result<(), CoordinationError> {
        self.shared.lock().end(self.id);
        Ok(())
    }
}
