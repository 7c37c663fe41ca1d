//! The service of an Apache ZooKeeper ensemble: for the processes of many machines.
//!
//! ```text
//!  caller ── call ──► client ── request ──► the ensemble
//!                       ▲  thread of the session: connects, keeps the session alive, reconnects
//!                       └─ supervisor: opens the session, says that it ended, closes it
//! ```
//!
//! Opening a session never waits for the ensemble: a thread connects in the background, and before there is a session
//! every call answers `Unavailable`. A session that has ended stays ended; whoever used it opens another one.
//! A call is sent when its future is first polled, and never again: what happened in between is for the caller to find
//! out. So a write that was sent and not answered is `Indeterminate`, and one that found no connection `Unavailable`.
//!
//! Must never: repeat a request, answer `Unavailable` for a write that may have happened, or wait without a limit.

mod answers;
mod options;
mod supervisor;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use zookeeper_client::{Acl, Acls, Client, OneshotWatcher, Permission, SessionState, StateWatcher};

pub use self::options::{
    AddressError, Credentials, SCHEME, SESSION_TIMEOUT_DEFAULT, ZooKeeperAddress, ZooKeeperOptions,
};
pub use self::supervisor::SessionRefusal;

use self::answers::{Outcome, PendingCall, event_kind, settle, stat, version};
use self::supervisor::{Ending, SessionLife};
use crate::tree::check_size;
use crate::{
    CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Event, Expected, SessionId,
    Stat, Watch,
};

/// What documents allow that a session with credentials creates: all to its user, reading to everybody.
static USER_WRITES: [Acl; 2] =
    [Acl::new_const(Permission::ALL, "auth", ""), Acl::new_const(Permission::READ, "world", "anyone")];

/// What a session and its supervisor share.
struct SessionShared {
    options: ZooKeeperOptions,
    /// The session's id, 0 before there is one.
    id: AtomicU64,
    /// Milliseconds for which the ensemble keeps the session unheard: as asked, then as granted.
    session_timeout_ms: AtomicU64,
}

impl SessionShared {
    /// What the documents that the session creates allow.
    fn acls(&self) -> Acls<'static> {
        match self.options.credentials {
            Some(_) => Acls::new(&USER_WRITES),
            None => Acls::anyone_all(),
        }
    }
}

/// One session with an ensemble.
pub struct ZooKeeperSession {
    shared: Arc<SessionShared>,
    state: watch::Receiver<SessionLife>,
    /// Set when the session is to end.
    stop: watch::Sender<bool>,
    /// Of the session's thread.
    runtime: tokio::runtime::Handle,
}

impl ZooKeeperSession {
    /// Begins to open a session, and returns at once.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn open(options: ZooKeeperOptions) -> io::Result<ZooKeeperSession> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let timeout_ms = u64::try_from(options.session_timeout.as_millis()).unwrap_or(u64::MAX);
        let shared =
            SessionShared { options, id: AtomicU64::new(0), session_timeout_ms: AtomicU64::new(timeout_ms) };
        let shared = Arc::new(shared);
        let reason = format!("no session with {} yet", shared.options.address);
        let (publish, state) = watch::channel(SessionLife::Connecting { reason, refused: None });
        let (stop, stopped) = watch::channel(false);
        let supervised = shared.clone();
        std::thread::Builder::new().name("coordination".to_owned()).spawn(move || {
            runtime.block_on(supervisor::run(&supervised, &publish, stopped));
        })?;
        Ok(ZooKeeperSession { shared, state, stop, runtime: handle })
    }

    /// Waits until there is a session, or the ensemble has refused one, at most for `limit`.
    ///
    /// # Errors
    /// `Unavailable` when there is none in time; says why. `SessionLost` when it has ended already.
    pub async fn connected(&self, limit: Duration) -> Result<(), CoordinationError> {
        let mut state = self.state.clone();
        let is_settled =
            |state: &SessionLife| !matches!(state, SessionLife::Connecting { refused: None, .. });
        // Both kinds of failure are read from the state.
        let _ = self.bounded(limit, state.wait_for(is_settled)).await;
        self.connection().map(drop)
    }

    /// Why the ensemble refuses the session, as long as it does: somebody has to mend something.
    pub fn refused(&self) -> Option<(SessionRefusal, String)> {
        match &*self.state.borrow() {
            SessionLife::Connecting { reason, refused: Some(refusal) } => Some((*refusal, reason.clone())),
            _ => None,
        }
    }

    /// The client, while it has a connection, and what tells when that breaks.
    fn connection(&self) -> Result<Connection, CoordinationError> {
        match &*self.state.borrow() {
            SessionLife::Connecting { reason, .. } => {
                Err(CoordinationError::Unavailable { reason: reason.clone() })
            }
            SessionLife::Open { client } => {
                // From here on it misses no change.
                let mut states = client.state_watcher();
                match states.state() {
                    SessionState::SyncConnected => Ok(Connection { client: client.clone(), states }),
                    state if state.is_terminated() => Err(CoordinationError::SessionLost),
                    _ => {
                        let reason =
                            format!("no connection to {} at the moment", self.shared.options.address);
                        Err(CoordinationError::Unavailable { reason })
                    }
                }
            }
            SessionLife::Closing | SessionLife::Ended { .. } => Err(CoordinationError::SessionLost),
        }
    }

    /// Limits a future's time by the clock of the session's thread, so that any executor can poll it.
    fn bounded<F: Future>(&self, limit: Duration, future: F) -> tokio::time::Timeout<F> {
        let _entered = self.runtime.enter();
        tokio::time::timeout(limit, future)
    }

    /// Carries out a call in bounded time, or as long as the connection holds: the client keeps what it could not send
    /// for the next connection, which may be long in coming. The request was sent when `sent` was made.
    async fn call<T>(
        &self,
        call: PendingCall,
        path: &DocumentPath,
        mut states: StateWatcher,
        sent: impl Future<Output = Result<T, zookeeper_client::Error>> + Send,
    ) -> Result<T, CoordinationError> {
        let limit = self.session_timeout();
        let connected = async {
            tokio::select! {
                biased;
                answer = sent => answer,
                () = disconnected(&mut states) => Err(zookeeper_client::Error::ConnectionLoss),
            }
        };
        let outcome: Outcome<T> = self.bounded(limit, connected).await;
        settle(call, path, limit, outcome)
    }

    /// A watch of the trait for one of the client. Dropping it removes the client's.
    fn watch(&self, path: &DocumentPath, watcher: OneshotWatcher) -> Watch {
        let (mut trigger, watch) = Watch::new();
        let path = path.clone();
        self.runtime.spawn(async move {
            tokio::select! {
                biased;
                event = watcher.changed() => {
                    if let Some(kind) = event_kind(event.event_type) {
                        trigger.fire(Event { path, kind });
                    }
                }
                () = trigger.abandoned() => {}
            }
        });
        watch
    }

    /// Names below a document without those that are ZooKeeper's own, sorted.
    fn own_children(&self, path: &DocumentPath, mut names: Vec<String>) -> Vec<String> {
        if path.is_root() && self.shared.options.address.chroot.is_root() {
            names.retain(|name| name != "zookeeper");
        }
        names.sort_unstable();
        names
    }
}

/// What a call works with.
struct Connection {
    client: Client,
    states: StateWatcher,
}

/// Completes when the connection breaks. Calls of a session that ends are answered otherwise.
async fn disconnected(states: &mut StateWatcher) {
    while states.changed().await != SessionState::Disconnected {}
}

impl Drop for ZooKeeperSession {
    fn drop(&mut self) {
        // Its thread closes the session, in bounded time.
        self.stop.send_replace(true);
    }
}

fn create_mode(mode: CreateMode) -> zookeeper_client::CreateMode {
    match mode {
        CreateMode::Persistent => zookeeper_client::CreateMode::Persistent,
        CreateMode::Ephemeral => zookeeper_client::CreateMode::Ephemeral,
        CreateMode::PersistentSequential => zookeeper_client::CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential => zookeeper_client::CreateMode::EphemeralSequential,
    }
}

#[async_trait]
impl CoordinationService for ZooKeeperSession {
    fn session(&self) -> SessionId {
        SessionId(self.shared.id.load(Ordering::Acquire))
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_millis(self.shared.session_timeout_ms.load(Ordering::Acquire))
    }

    async fn reopen(&self) -> Result<Arc<dyn CoordinationService>, CoordinationError> {
        let options = self.shared.options.clone();
        let limit = options.session_timeout;
        let failed = |error: io::Error| CoordinationError::Unavailable { reason: error.to_string() };
        let session = ZooKeeperSession::open(options).map_err(failed)?;
        match (session.connected(limit).await, session.refused()) {
            (Ok(()), _) => Ok(Arc::new(session)),
            (Err(_), Some((SessionRefusal::NoChroot, _))) => {
                Err(CoordinationError::NoNode { path: DocumentPath::root() })
            }
            (Err(error), _) => Err(error),
        }
    }

    async fn create(
        &self,
        path: &DocumentPath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<DocumentPath, CoordinationError> {
        let Connection { client, states } = self.connection()?;
        check_size(path, &data)?;
        if path.is_root() {
            return Err(CoordinationError::NodeExists { path: path.clone() });
        }
        let options = create_mode(mode).with_acls(self.shared.acls());
        let sent = client.create(path.as_str(), &data, &options);
        match self.call(PendingCall::Write, path, states, sent).await {
            Ok((_, sequence)) if mode.is_sequential() => {
                let named = DocumentPath::recorded(&format!("{path}{sequence}"));
                Ok(named.expect("a path with ten or nineteen digits more is one"))
            }
            Ok(_) => Ok(path.clone()),
            Err(CoordinationError::NoNode { path }) => Err(CoordinationError::NoParent { path }),
            Err(error) => Err(error),
        }
    }

    async fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError> {
        let Connection { client, states } = self.connection()?;
        let (data, found) =
            self.call(PendingCall::Read, path, states, client.get_data(path.as_str())).await?;
        Ok(Document { data: Bytes::from(data), stat: stat(&found) })
    }

    async fn set(
        &self,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<Stat, CoordinationError> {
        let Connection { client, states } = self.connection()?;
        check_size(path, &data)?;
        let version = version(path, expected)?;
        let sent = client.set_data(path.as_str(), &data, version);
        self.call(PendingCall::Write, path, states, sent).await.map(|found| stat(&found))
    }

    async fn delete(&self, path: &DocumentPath, expected: Expected) -> Result<(), CoordinationError> {
        let Connection { client, states } = self.connection()?;
        if path.is_root() {
            return Err(CoordinationError::NotEmpty { path: path.clone() });
        }
        let version = version(path, expected)?;
        self.call(PendingCall::Write, path, states, client.delete(path.as_str(), version)).await
    }

    async fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError> {
        let Connection { client, states } = self.connection()?;
        let names = self.call(PendingCall::Read, path, states, client.list_children(path.as_str())).await?;
        Ok(self.own_children(path, names))
    }

    async fn get_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Option<Document>, Watch), CoordinationError> {
        let Connection { client, states } = self.connection()?;
        // ZooKeeper watches what is there and what is not by two requests. When the document comes and goes between
        // them, both are made again.
        let reading = async {
            loop {
                match client.get_and_watch_data(path.as_str()).await {
                    Ok((data, found, watcher)) => {
                        let document = Document { data: Bytes::from(data), stat: stat(&found) };
                        return Ok((Some(document), watcher));
                    }
                    Err(zookeeper_client::Error::NoNode) => {}
                    Err(error) => return Err(error),
                }
                if let (None, watcher) = client.check_and_watch_stat(path.as_str()).await? {
                    return Ok((None, watcher));
                }
            }
        };
        let (document, watcher) = self.call(PendingCall::Read, path, states, reading).await?;
        Ok((document, self.watch(path, watcher)))
    }

    async fn children_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Vec<String>, Watch), CoordinationError> {
        let Connection { client, states } = self.connection()?;
        let sent = client.list_and_watch_children(path.as_str());
        let (names, watcher) = self.call(PendingCall::Read, path, states, sent).await?;
        Ok((self.own_children(path, names), self.watch(path, watcher)))
    }

    async fn lost(&self) {
        // An error means that the session's thread is gone, and the session with it.
        let _ = self.state.clone().wait_for(|state| matches!(state, SessionLife::Ended { .. })).await;
    }

    async fn close(&self) -> Result<(), CoordinationError> {
        self.stop.send_replace(true);
        let mut state = self.state.clone();
        // The supervisor ends in bounded time.
        let ended = state.wait_for(|state| matches!(state, SessionLife::Ended { .. })).await;
        match ended.as_deref() {
            Ok(SessionLife::Ended { ending: Ending::Closed }) => Ok(()),
            Ok(SessionLife::Ended { ending: Ending::Unconfirmed { reason } }) => {
                Err(CoordinationError::Indeterminate { reason: reason.clone() })
            }
            _ => Err(CoordinationError::SessionLost),
        }
    }
}
