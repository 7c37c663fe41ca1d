//! The service within one process, for simulation and tests: one tree, any number of sessions.
//!
//! Deterministic: every operation takes effect when its future is first polled (or at the second time, where it is told to
//! yield), and events reach watchers before
//! the operation that caused them returns. Nothing is durable.
//!
//! For simulation it can do what a real ensemble does: be away, be behind, end a session at any call, and leave a
//! write without an answer ([`MemoryFaults`]).

mod faults;

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use runtime::locks::{Mutex, MutexGuard};
use tokio::sync::watch;

use self::faults::{Fate, FaultDice};
pub use self::faults::{MemoryFaultCounts, MemoryFaults};
use crate::tree::{Tree, TreeChange};
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

/// Told of each document that is created or set, with its content.
type Observer = Box<dyn Fn(&DocumentPath, &Bytes) + Send>;

struct Shared {
    tree: Tree,
    available: bool,
    observer: Option<Observer>,
    dice: FaultDice,
    /// Whether each call lets others go first.
    yields: bool,
    sessions: BTreeMap<SessionId, Session>,
    /// What new sessions find, where they may be behind.
    lagging: Option<Lagging>,
}

/// A server that is behind.
struct Lagging {
    seen: Tree,
    /// Changes that it does not have yet, in their order: as many as sessions may be behind.
    unseen: VecDeque<TreeChange>,
}

struct Session {
    /// The documents as the session sees them.
    seen: Tree,
    /// Changes that it does not see yet, in their order.
    unseen: VecDeque<TreeChange>,
    /// A write that was not confirmed, and is still to happen.
    late: Option<Write>,
    watches: WatchRegistry,
    ended: watch::Sender<bool>,
}

/// A write as it was asked for.
enum Write {
    Create { path: DocumentPath, data: Bytes, mode: CreateMode },
    Set { path: DocumentPath, data: Bytes, expected: Expected },
    Delete { path: DocumentPath, expected: Expected },
}

impl Session {
    /// Sees `count` changes more, and fires the watches that they concern.
    fn catch_up(&mut self, count: usize) {
        for change in self.unseen.drain(..count) {
            let mut events = Vec::new();
            self.seen.apply(&change, &mut events);
            for event in &events {
                self.watches.fire(event);
            }
        }
    }
}

impl Default for MemoryService {
    fn default() -> MemoryService {
        MemoryService::new()
    }
}

impl MemoryService {
    /// An empty tree.
    pub fn new() -> MemoryService {
        let shared = Shared {
            tree: Tree::new(),
            available: true,
            observer: None,
            dice: FaultDice::default(),
            yields: false,
            sessions: BTreeMap::new(),
            lagging: None,
        };
        MemoryService { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Opens a session. Works also while the service is unavailable; its operations do not.
    pub fn open(&self) -> MemorySession {
        let mut shared = self.shared.lock();
        let id = shared.tree.next_session();
        let (ended, is_ended) = watch::channel(false);
        shared.change(&TreeChange::SessionOpened { session: id });
        let (seen, unseen) = match &shared.lagging {
            Some(lagging) => (lagging.seen.clone(), lagging.unseen.clone()),
            None => (shared.tree.clone(), VecDeque::new()),
        };
        let count = shared.dice.catches_up(unseen.len());
        let mut session = Session { seen, unseen, late: None, watches: WatchRegistry::default(), ended };
        session.catch_up(count);
        shared.sessions.insert(id, session);
        MemorySession { id, shared: Arc::clone(&self.shared), ended: is_ended }
    }

    /// Ends a session as if its process had died. Its owner learns it by `lost`. Harmless when it has ended.
    pub fn kill(&self, session: SessionId) {
        self.shared.lock().end(session);
    }

    /// Lets calls go wrong from now on, or no more.
    pub fn set_faults(&self, faults: MemoryFaults) {
        let mut shared = self.shared.lock();
        shared.dice.begin(faults);
        let lags = faults.behind_at_first && faults.behind_max > 0;
        shared.lagging = lags.then(|| Lagging { seen: shared.tree.clone(), unseen: VecDeque::new() });
        for session in shared.sessions.values_mut().filter(|_| faults.behind_max == 0) {
            session.catch_up(session.unseen.len());
        }
    }

    /// Makes the whole service unavailable, or available again. Sessions survive: whoever wants one to end in the
    /// meantime kills it.
    pub fn set_available(&self, available: bool) {
        self.shared.lock().available = available;
    }

    /// Lets each call wait for one turn of whoever runs it before it takes effect, from now on, or no more. Then others come
    /// between two calls of one caller, as they do where calls travel.
    pub fn set_yielding(&self, yields: bool) {
        self.shared.lock().yields = yields;
    }

    /// How often calls have gone wrong so far.
    pub fn fault_counts(&self) -> MemoryFaultCounts {
        self.shared.lock().dice.counts
    }

    /// Whether it answers.
    pub fn is_available(&self) -> bool {
        self.shared.lock().available
    }

    /// Tells `observer` of each document that is created or set from now on, at that moment, for tests that judge what
    /// others write. It must not call the service.
    pub fn observe(&self, observer: impl Fn(&DocumentPath, &Bytes) + Send + 'static) {
        self.shared.lock().observer = Some(Box::new(observer));
    }
}

impl Shared {
    /// What comes before every call of a session.
    fn begin(&mut self, id: SessionId) -> Result<(), CoordinationError> {
        self.tree.check_session(id)?;
        if !self.available {
            let reason = "the service was made unavailable".to_owned();
            return Err(CoordinationError::Unavailable { reason });
        }
        if self.dice.ends_session() {
            self.end(id);
            return Err(CoordinationError::SessionLost);
        }
        if let Some(write) = self.session(id).late.take() {
            // Nobody waits for its answer.
            let _ = self.write_now(id, &write);
        }
        Ok(())
    }

    /// What the session reads from.
    fn read(&mut self, id: SessionId) -> Result<&mut Session, CoordinationError> {
        self.begin(id)?;
        let missing = self.session(id).unseen.len();
        let count = self.dice.catches_up(missing);
        self.dice.counts.reads_behind += u64::from(count < missing);
        let session = self.session(id);
        session.catch_up(count);
        Ok(session)
    }

    /// Carries out a write as the dice have it.
    fn write(&mut self, id: SessionId, write: Write) -> Result<TreeChange, CoordinationError> {
        self.begin(id)?;
        match self.dice.fate() {
            Fate::Confirmed => {
                let answer = self.write_now(id, &write);
                // What is too large is not even sent. All else took its place among all writes, refused or not.
                if !matches!(answer, Err(CoordinationError::TooLarge { .. })) {
                    let session = self.session(id);
                    session.catch_up(session.unseen.len());
                }
                return answer;
            }
            // It need not even see it itself: it goes on at another server.
            Fate::Unconfirmed => drop(self.write_now(id, &write)),
            Fate::Lost => {}
            Fate::Late => self.session(id).late = Some(write),
        }
        Err(CoordinationError::Indeterminate { reason: "the dice kept the answer".to_owned() })
    }

    fn write_now(&mut self, id: SessionId, write: &Write) -> Result<TreeChange, CoordinationError> {
        let change = match write {
            Write::Create { path, data, mode } => self.tree.plan_create(id, path, data.clone(), *mode),
            Write::Set { path, data, expected } => self.tree.plan_set(id, path, data.clone(), *expected),
            Write::Delete { path, expected } => self.tree.plan_delete(id, path, *expected),
        }?;
        self.change(&change);
        Ok(change)
    }

    /// Applies a change. Sessions see it now or later; at once, when it fires a watch of theirs.
    fn change(&mut self, change: &TreeChange) {
        if let (Some(observer), TreeChange::Created { path, data, .. } | TreeChange::Set { path, data }) =
            (&self.observer, change)
        {
            observer(path, data);
        }
        let mut events: Vec<Event> = Vec::new();
        self.tree.apply(change, &mut events);
        let behind_max = self.dice.faults.behind_max;
        if let Some(lagging) = &mut self.lagging {
            lagging.unseen.push_back(change.clone());
            if lagging.unseen.len() > behind_max {
                let oldest = lagging.unseen.pop_front().expect("it was pushed");
                lagging.seen.apply(&oldest, &mut Vec::new());
            }
        }
        for session in self.sessions.values_mut() {
            session.unseen.push_back(change.clone());
            let fires = events.iter().any(|event| session.watches.concerns(event));
            if fires || session.unseen.len() > behind_max {
                session.catch_up(session.unseen.len());
            }
        }
    }

    fn end(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            session.ended.send_replace(true);
            self.change(&TreeChange::SessionEnded { session: id });
        }
    }

    fn session(&mut self, session: SessionId) -> &mut Session {
        self.sessions.get_mut(&session).expect("open sessions are registered")
    }
}

/// One session with a [`MemoryService`].
pub struct MemorySession {
    id: SessionId,
    shared: Arc<Mutex<Shared>>,
    ended: watch::Receiver<bool>,
}

impl MemorySession {
    /// The service, when others have had their turn.
    async fn turn(&self) -> MutexGuard<'_, Shared> {
        let mut waits = self.shared.lock().yields;
        let others = poll_fn(|context| match std::mem::take(&mut waits) {
            true => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            false => Poll::Ready(()),
        });
        others.await;
        self.shared.lock()
    }
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
        let write = Write::Create { path: path.clone(), data, mode };
        let TreeChange::Created { path, .. } = self.turn().await.write(self.id, write)? else {
            unreachable!("creations are planned as such")
        };
        Ok(path)
    }

    async fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError> {
        self.turn().await.read(self.id)?.seen.get(path)
    }

    async fn set(
        &self,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<Stat, CoordinationError> {
        let mut shared = self.turn().await;
        shared.write(self.id, Write::Set { path: path.clone(), data, expected })?;
        Ok(shared.tree.stat(path).expect("it was just set"))
    }

    async fn delete(&self, path: &DocumentPath, expected: Expected) -> Result<(), CoordinationError> {
        self.turn().await.write(self.id, Write::Delete { path: path.clone(), expected }).map(drop)
    }

    async fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError> {
        self.turn().await.read(self.id)?.seen.children(path)
    }

    async fn get_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Option<Document>, Watch), CoordinationError> {
        let mut shared = self.turn().await;
        let session = shared.read(self.id)?;
        let answer = (session.seen.get(path).ok(), session.watches.watch_document(path));
        // What the session did not see yet is news now.
        session.catch_up(session.unseen.len());
        Ok(answer)
    }

    async fn children_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Vec<String>, Watch), CoordinationError> {
        let mut shared = self.turn().await;
        let session = shared.read(self.id)?;
        let answer = (session.seen.children(path)?, session.watches.watch_list(path));
        session.catch_up(session.unseen.len());
        Ok(answer)
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
