//! The Redis door: any Redis client, RESP2 and RESP3, pipelined.
//!
//! Commands of one connection take effect and are answered in the order sent. Commands on different keys run side by
//! side, because each may have to wait for a quorum; a command waits for earlier ones on the same keys only, and is
//! answered as soon as all before it are. Plain commands that have arrived together travel together: one message to
//! each node carries all of them.
//!
//! What cannot be promised without consensus is not promised: see `docs/reference/resp.md` for NX, XX and DEL's
//! count.
//!
//! **Architecture Invariant:** the door knows commands and replies; what a read or write is, `front` decides.

mod arguments;
mod buffers;
mod clients;
mod commands;
mod connection;
mod glob;
mod reply;
mod rights;
mod room;
mod session;
mod together;
mod transaction;
mod unread;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::admission::{Admission, Peer};
use tokio::io::{AsyncRead, AsyncWrite};
use wire::error::ErrorCode;

use self::buffers::Buffers;
use self::clients::Client;
use crate::doors::closing::{Closing, DoorStage};
use crate::doors::counters::DoorCounters;
use crate::doors::parting::part;
use crate::front::Front;

/// Settings of the door.
#[derive(Clone, Debug)]
pub struct RespOptions {
    /// The store that commands use until the client chooses another. Default: `default`.
    pub store: String,
    /// The password that AUTH must give, if one is needed. Default: none.
    pub password: Option<String>,
    /// Port that INFO names. Default: 0.
    pub port: u16,
    /// Process that INFO names. Default: 0.
    pub process_id: u32,
    /// The CPU time of this process that INFO names, if something reads it. Default: nothing.
    pub cpu: Option<fn() -> CpuTime>,
}

/// CPU time that a process has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In the process.
    pub user: Duration,
    /// In the kernel, for it.
    pub system: Duration,
}

impl Default for RespOptions {
    fn default() -> Self {
        RespOptions { store: "default".to_owned(), password: None, port: 0, process_id: 0, cpu: None }
    }
}

/// What all workers' doors of one node share.
pub struct RespShared {
    options: RespOptions,
    admission: Arc<Admission>,
    connections: AtomicUsize,
    next_id: AtomicU64,
    commands: AtomicU64,
    /// Bytes of answers that connections may leave unread beyond what each may anyway.
    unread: Arc<AtomicUsize>,
    clients: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Minute of the node's life, from 1, in which a connection was last found to speak HTTP; 0 before the first.
    http_minute: AtomicU64,
    closing: Closing,
}

impl RespShared {
    /// Nobody is connected yet. `admission` says how much the node may take in, over all its doors.
    pub fn new(options: RespOptions, admission: Arc<Admission>) -> Arc<Self> {
        Arc::new(RespShared {
            options,
            admission,
            connections: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            commands: AtomicU64::new(0),
            unread: Arc::default(),
            clients: Mutex::default(),
            http_minute: AtomicU64::new(0),
            closing: Closing::default(),
        })
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Commands since the start.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    /// Closes each connection behind its next answer from now on: the node will stop.
    pub(crate) fn close_after_answers(&self) {
        self.close(DoorStage::AfterAnswers);
    }

    /// Closes each connection that is between two commands, now or later.
    pub(crate) fn close_between_commands(&self) {
        self.close(DoorStage::BetweenCommands);
    }

    fn close(&self, stage: DoorStage) {
        self.closing.reach(stage);
        self.clients.lock().values().for_each(|client| client.waker.wake());
    }

    /// Whether connections are open whose commands are still carried out.
    pub(crate) fn has_clients(&self) -> bool {
        !self.clients.lock().is_empty()
    }
}

/// The door of one worker.
#[derive(Clone)]
pub struct Door {
    front: Arc<Front>,
    shared: Arc<RespShared>,
    buffers: Arc<Buffers>,
    counters: Arc<DoorCounters>,
}

impl Door {
    /// Commands enter at `front`.
    pub(crate) fn new(front: Arc<Front>, shared: Arc<RespShared>, counters: Arc<DoorCounters>) -> Self {
        Door { front, shared, buffers: Arc::default(), counters }
    }

    /// Completes when the door takes no new connections any more, because its node will stop.
    pub async fn closing(&self) {
        self.shared.closing.begun().await;
    }

    /// Serves one connection until either side closes it.
    pub async fn serve<S>(&self, stream: S, peer: String, local: String)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let admitted = self.shared.admission.connect().and_then(|mut connection| {
            connection.identify(Peer::Client)?;
            Ok(connection)
        });
        let Ok(admitted) = admitted else {
            self.counters.refused(ErrorCode::TooManyConnections);
            return self.refuse(stream).await;
        };
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let client = Arc::new(Client::new(id, peer.clone(), local, self.front.clock().now()));
        self.shared.clients.lock().insert(id, client.clone());
        let session = session::Session::new(id, peer, client, &self.shared.options);
        connection::serve(self, stream, session, admitted).await;
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Warns of a connection that speaks HTTP, at most once a minute: whoever makes browsers send such requests can make
    /// them send many.
    fn warn_of_http(&self, peer: &str) {
        let minute = self.front.uptime().as_secs() / 60 + 1;
        if self.shared.http_minute.swap(minute, Ordering::Relaxed) != minute {
            tracing::warn!(%peer, "connection closed: it sent an http request to the redis address");
        }
    }

    /// Tells a client that there is no place for it, in Redis's words, and waits until it has closed the connection:
    /// most clients send their first commands before they read anything.
    async fn refuse<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        self.part(stream, b"-ERR max number of clients reached\r\n").await;
    }

    /// Says something for the last time, and gives the client the time to read it.
    async fn part<S>(&self, stream: S, last_words: &[u8])
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let stops = self.shared.closing.stage() > DoorStage::Open;
        part(stream, last_words, (&self.shared.admission, stops), self.front.clock()).await;
    }
}
