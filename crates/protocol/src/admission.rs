//! Admission: how many requests and bytes may be under way at once, per connection and per node.
//!
//! A node that takes in more than it can finish answers nobody in time and, in the end, dies of it. So each front
//! door asks before it carries out a request that cannot be answered at once, and refuses with *overloaded* at a
//! limit: at once, with nothing done, so that the caller may try elsewhere.
//!
//! ```text
//!   accept ── Admission::connect ──▶ Connection ── admit(bytes) ──▶ Permit ── drop when answered
//!                   │                    │
//!                   └ connections        └ requests and bytes of this connection, then of the node
//!                                          (and who is at the other end, once that is known: `identify`)
//! ```
//!
//! **Why other nodes have room of their own.** A client's request waits at its coordinator for replicas elsewhere. If
//! clients could fill every node, each node would refuse the very requests that the others need to finish theirs,
//! and all would be busy refusing. A replica's part waits for nobody, so admitting it always frees something.
//! Clients may therefore use only a part of the node's limits, other nodes all of it.
//!
//! A request that is still coming in counts with the bytes of it that have come ([`Coming`]), so that many slow
//! connections cannot fill the memory with beginnings. They may use a part of the bytes only: a client that begins much
//! and finishes nothing must not take the room of requests that have come whole. When that part is full, slow requests
//! give up their places to those that need one ([`unfinished`]).
//!
//! What is counted is released by dropping the permit, also when the future that held it is dropped unfinished.
//!
//! **Architecture Invariant:** nothing waits here. A queue in front of a full node is only a slower refusal.

mod coming;
mod unfinished;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::limits::FRAME_BYTES_MAX;

pub use self::coming::{Coming, InputRoom};
use self::unfinished::Unfinished;

/// Most connections of clients at one node: each costs buffers, and a runaway pool must not take the last of them.
pub const CONNECTIONS_MAX: usize = 10_000;

/// Most requests under way on one connection. A deep pipeline of a multiplexed client, and far from a node's limit.
pub const CONNECTION_REQUESTS_MAX: usize = 4_096;

/// Most bytes of requests under way on one connection: two frames of the largest kind.
pub const CONNECTION_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// Most requests under way on one node. At a few kilobytes of state each, some hundred megabytes.
pub const NODE_REQUESTS_MAX: usize = 65_536;

/// Most bytes of requests under way on one node.
pub const NODE_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// The part of the node's limits that only other nodes may use: one in this many.
pub const NODES_ONLY_PART: usize = 4;

/// The part of the node's bytes that requests may use which are still coming in: one in this many.
pub const COMING_PART: usize = 2;

/// Bytes of a request that is still coming in which are not counted: the buffer that each connection has anyway.
pub const COMING_BYTES_FREE: usize = 16 * 1024;

/// Places beside those of clients: for other nodes, and for whoever has not yet said who it is.
const OTHER_CONNECTIONS_MIN: usize = 64;

/// Most refused connections that are kept open until they have read why. Beyond it they are told and closed, so that a
/// crowd that cannot be served does not use up what it was refused for.
pub const FAREWELLS_MAX: usize = 64;

/// Longest time that a refused connection is kept open so that its other end can read why.
pub const FAREWELL_TIME_MAX: Duration = Duration::from_millis(500);

/// Bytes of a command or frame that has begun that must come within the time of [`AdmissionLimits::rest_time_max`],
/// unless it ends before. About 1 KiB a second by default: slower than any line that somebody would send 64 MiB over.
pub const REST_BYTES_MIN: usize = 64 * 1024;

/// How long these may take while others find no room, by default: a tenth of a slow office line.
pub const SLOW_TIME_MIN: Duration = Duration::from_secs(1);

/// How long these may take, by default: longer than a connection pauses that will go on.
pub const REST_TIME_MAX: Duration = Duration::from_secs(60);

/// The limits of one node's front doors, all doors together. What can be answered at once is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Connections of clients at the same time. Default: [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// Requests under way on one connection. Default: [`CONNECTION_REQUESTS_MAX`].
    pub connection_requests_max: usize,
    /// Bytes of requests under way on one connection. Default: [`CONNECTION_BYTES_MAX`].
    pub connection_bytes_max: usize,
    /// Requests under way on the node. Default: [`NODE_REQUESTS_MAX`].
    pub node_requests_max: usize,
    /// Bytes of requests under way on the node. Default: [`NODE_BYTES_MAX`].
    pub node_bytes_max: usize,
    /// How long the next [`REST_BYTES_MIN`] of a command may take that has begun to come in. Default:
    /// [`REST_TIME_MAX`].
    pub rest_time_max: Duration,
    /// How long the next [`REST_BYTES_MIN`] of it may take while others find no room; slower ones give up theirs.
    /// Default: [`SLOW_TIME_MIN`].
    pub slow_time_min: Duration,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client: its requests may wait for other nodes.
    Client,
    /// Another node: its requests are parts of requests that it has already admitted.
    Node,
}

/// Which limit refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overloaded {
    /// The node has as many connections as it serves.
    Connections {
        /// The limit.
        max: usize,
    },
    /// The connection has as many requests under way as one may.
    ConnectionRequests {
        /// The limit.
        max: usize,
    },
    /// The connection has as many bytes of requests under way as one may.
    ConnectionBytes {
        /// The limit in bytes.
        max: usize,
    },
    /// The node has as many requests under way as it takes from such a peer.
    NodeRequests {
        /// The limit for this kind of peer.
        max: usize,
    },
    /// The node has as many bytes of requests under way as it takes from such a peer.
    NodeBytes {
        /// The limit for this kind of peer, in bytes.
        max: usize,
    },
    /// The request came in so slowly that others got its room.
    TooSlow {
        /// How long it was slow.
        time: Duration,
    },
    /// The node is about to stop: it answers what it has taken in, and takes nothing more from clients.
    Stopping,
}

/// What is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests admitted and not yet answered.
    pub requests: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// The accounts of one node. Shared by all its doors and workers.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    connections: AtomicUsize,
    /// Those of them that are clients'.
    clients: AtomicUsize,
    /// Refused connections that are being told why.
    farewells: AtomicUsize,
    stopping: AtomicBool,
    gauge: Gauge,
    /// Requests that are still coming in; their bytes are in `gauge`.
    unfinished: Mutex<Unfinished>,
}

/// Leave to keep a refused connection open until it has read why; drop it when the connection is closed.
#[derive(Debug)]
#[must_use = "the connection counts as closed when this is dropped"]
pub struct Farewell {
    admission: Arc<Admission>,
}

/// The accounts of one connection; dropping the last reference to it and its permits disconnects it.
#[derive(Debug)]
pub struct ConnectionAccount {
    admission: Arc<Admission>,
    /// Who it is; `None` until it has said so.
    peer: Option<Peer>,
    gauge: Gauge,
}

/// One admitted request: drop it when the request is answered.
#[derive(Debug)]
#[must_use = "the request counts as answered when its permit is dropped"]
pub struct Permit {
    connection: Arc<ConnectionAccount>,
    bytes: usize,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        AdmissionLimits {
            connections_max: CONNECTIONS_MAX,
            connection_requests_max: CONNECTION_REQUESTS_MAX,
            connection_bytes_max: CONNECTION_BYTES_MAX,
            node_requests_max: NODE_REQUESTS_MAX,
            node_bytes_max: NODE_BYTES_MAX,
            rest_time_max: REST_TIME_MAX,
            slow_time_min: SLOW_TIME_MIN,
        }
    }
}

impl Admission {
    /// The accounts of a node with nothing under way.
    ///
    /// # Panics
    /// When a limit is beyond what can be counted: 2^24 - 1 requests, 2^40 - 1 bytes.
    pub fn new(limits: AdmissionLimits) -> Arc<Self> {
        for requests in [limits.connection_requests_max, limits.node_requests_max] {
            assert!(requests < REQUESTS_END, "at most 2^24 - 1 requests can be counted");
        }
        for bytes in [limits.connection_bytes_max, limits.node_bytes_max] {
            assert!((bytes as u64) < ONE_REQUEST, "at most 2^40 - 1 bytes can be counted");
        }
        Arc::new(Admission {
            limits,
            connections: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            farewells: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            gauge: Gauge::default(),
            unfinished: Mutex::default(),
        })
    }

    /// Takes in a connection whose other end is not known yet.
    ///
    /// # Errors
    /// [`Overloaded::Connections`] when the node has as many as it serves: those of clients, and some beside them so
    /// that other nodes still find a place.
    pub fn connect(self: &Arc<Self>) -> Result<Arc<ConnectionAccount>, Overloaded> {
        let max = self.limits.connections_max;
        let beside = OTHER_CONNECTIONS_MIN.max(max / NODES_ONLY_PART);
        match take_place(&self.connections, max.saturating_add(beside)) {
            true => {
                let admission = Arc::clone(self);
                Ok(Arc::new(ConnectionAccount { admission, peer: None, gauge: Gauge::default() }))
            }
            false => Err(Overloaded::Connections { max }),
        }
    }

    /// Leave to keep a connection that was refused open for at most [`FAREWELL_TIME_MAX`]: closing a connection with
    /// unread bytes destroys the answer on its way. `None` when [`FAREWELLS_MAX`] are kept so already.
    pub fn farewell(self: &Arc<Self>) -> Option<Farewell> {
        take_place(&self.farewells, FAREWELLS_MAX).then(|| Farewell { admission: Arc::clone(self) })
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Admits no more requests of clients from now on. Other nodes are still served: what they ask is part of requests
    /// that were admitted before.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// What is under way on the node.
    pub fn load(&self) -> Load {
        self.gauge.load()
    }

    /// The limits.
    pub fn limits(&self) -> &AdmissionLimits {
        &self.limits
    }

    /// How much of the node a peer may use.
    fn limits_of(&self, peer: Peer) -> Load {
        let AdmissionLimits { node_requests_max: requests, node_bytes_max: bytes, .. } = self.limits;
        match peer {
            Peer::Node => Load { requests, bytes },
            Peer::Client => Load {
                requests: requests - requests / NODES_ONLY_PART,
                bytes: bytes - bytes / NODES_ONLY_PART,
            },
        }
    }
}

impl ConnectionAccount {
    /// Takes in who is at the other end. Comes once, before the first request.
    ///
    /// # Errors
    /// [`Overloaded::Connections`] when it is a client and the node has as many of those as it serves.
    ///
    /// # Panics
    /// When it comes later.
    pub fn identify(self: &mut Arc<Self>, peer: Peer) -> Result<(), Overloaded> {
        let connection = Arc::get_mut(self).expect("nothing has been admitted before");
        assert!(connection.peer.is_none(), "nobody says twice who it is");
        let max = connection.admission.limits.connections_max;
        if peer == Peer::Client && !take_place(&connection.admission.clients, max) {
            return Err(Overloaded::Connections { max });
        }
        connection.peer = Some(peer);
        Ok(())
    }

    /// Asks for one request of this many bytes to be carried out.
    ///
    /// A request whose bytes alone are over a limit is admitted when nothing else is under way there: limits bound
    /// what piles up, the largest single request is bounded by the frame.
    ///
    /// # Errors
    /// The limit that is reached, or that the node stops; nothing has been counted then.
    pub fn admit(self: &Arc<Self>, bytes: usize) -> Result<Permit, Overloaded> {
        if self.peer != Some(Peer::Node) && self.admission.stopping.load(Ordering::Relaxed) {
            return Err(Overloaded::Stopping);
        }
        let limits = &self.admission.limits;
        let own = Load { requests: limits.connection_requests_max, bytes: limits.connection_bytes_max };
        self.gauge.take(bytes, own).map_err(|full| match full {
            Full::Requests => Overloaded::ConnectionRequests { max: own.requests },
            Full::Bytes => Overloaded::ConnectionBytes { max: own.bytes },
        })?;
        let node = self.admission.limits_of(self.peer.unwrap_or(Peer::Client));
        self.admission.gauge.take(bytes, node).map_err(|full| {
            self.gauge.give_back(bytes);
            match full {
                Full::Requests => Overloaded::NodeRequests { max: node.requests },
                Full::Bytes => Overloaded::NodeBytes { max: node.bytes },
            }
        })?;
        Ok(Permit { connection: Arc::clone(self), bytes })
    }

    /// The account of what is still coming in on the connection; nothing yet.
    pub fn coming(self: &Arc<Self>) -> Coming {
        self.coming_among(1)
    }

    /// The same where up to this many requests come in on the connection at a time: what one connection need not count, they
    /// share.
    pub fn coming_among(self: &Arc<Self>, requests: usize) -> Coming {
        Coming::new(self, COMING_BYTES_FREE / requests)
    }

    /// What is under way on the connection.
    pub fn load(&self) -> Load {
        self.gauge.load()
    }
}

impl Drop for ConnectionAccount {
    fn drop(&mut self) {
        debug_assert_eq!(self.load(), Load::default(), "each permit keeps its connection");
        if self.peer == Some(Peer::Client) {
            let clients = self.admission.clients.fetch_sub(1, Ordering::Relaxed);
            assert!(clients > 0, "a client that leaves was counted");
        }
        let connections = self.admission.connections.fetch_sub(1, Ordering::Relaxed);
        assert!(connections > 0, "a connection that ends was counted");
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let farewells = self.admission.farewells.fetch_sub(1, Ordering::Relaxed);
        assert!((1..=FAREWELLS_MAX).contains(&farewells), "one of at most so many ends");
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.connection.gauge.give_back(self.bytes);
        self.connection.admission.gauge.give_back(self.bytes);
    }
}

impl fmt::Display for Overloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Overloaded::Connections { max } => {
                write!(
                    f,
                    "this node already serves {max} client connections, which is the limit; close idle ones"
                )
            }
            Overloaded::ConnectionRequests { max } => {
                write!(
                    f,
                    "this connection already has {max} requests in flight, which is the limit; wait for answers or open \
                     another connection"
                )
            }
            Overloaded::ConnectionBytes { max } => {
                write!(
                    f,
                    "this connection's requests in flight have reached the limit of {max} bytes; wait for answers"
                )
            }
            Overloaded::NodeRequests { max } => {
                write!(
                    f,
                    "this node already has {max} requests in flight, which is the limit; try again later or on \
                     another node"
                )
            }
            Overloaded::NodeBytes { max } => {
                write!(
                    f,
                    "this node's requests in flight have reached the limit of {max} bytes; try again later or on another \
                     node"
                )
            }
            Overloaded::TooSlow { time } => write!(
                f,
                "the request timed out and was not carried out: less than {REST_BYTES_MIN} bytes of it arrived in the \
                 last {time:?}, and other requests needed its room"
            ),
            Overloaded::Stopping => f.write_str("this node is stopping; try another node"),
        }
    }
}

impl std::error::Error for Overloaded {}

/// A panic elsewhere leaves these accounts whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts one more, unless there are `max`.
fn take_place(places: &AtomicUsize, max: usize) -> bool {
    let more = |taken: usize| (taken < max).then_some(taken + 1);
    places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Requests count in the upper 24 bits, bytes in the lower 40: one atomic step takes or gives back both.
const ONE_REQUEST: u64 = 1 << 40;

/// One more than the most requests that can be counted.
const REQUESTS_END: usize = 1 << 24;

/// Requests and bytes under way somewhere.
#[derive(Debug, Default)]
struct Gauge(AtomicU64);

enum Full {
    Requests,
    Bytes,
}

impl Gauge {
    fn load(&self) -> Load {
        unpack(self.0.load(Ordering::Relaxed))
    }

    /// Counts a request of so many bytes, unless that exceeds the limits.
    fn take(&self, bytes: usize, max: Load) -> Result<(), Full> {
        let mut full = Full::Requests;
        let more = |packed: u64| {
            let load = unpack(packed);
            if load.requests >= max.requests {
                full = Full::Requests;
                return None;
            }
            if load != Load::default() && load.bytes.saturating_add(bytes) > max.bytes {
                full = Full::Bytes;
                return None;
            }
            Some(packed + ONE_REQUEST + countable(bytes))
        };
        // Counters order nothing but themselves.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(|_| ()).map_err(|_| full)
    }

    /// Counts bytes that belong to no request yet, unless that exceeds the limit and something else is counted.
    fn take_bytes(&self, bytes: usize, max: usize) -> bool {
        let more = |packed: u64| {
            let load = unpack(packed);
            let fits = load == Load::default() || load.bytes.saturating_add(bytes) <= max;
            fits.then_some(packed + countable(bytes))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Takes back what [`Gauge::take_bytes`] counted.
    fn give_back_bytes(&self, bytes: usize) {
        let before = unpack(self.0.fetch_sub(countable(bytes), Ordering::Relaxed));
        debug_assert!(before.bytes as u64 >= countable(bytes), "counted before");
    }

    /// Takes back what [`Gauge::take`] counted.
    fn give_back(&self, bytes: usize) {
        let before = unpack(self.0.fetch_sub(ONE_REQUEST + countable(bytes), Ordering::Relaxed));
        debug_assert!(before.requests > 0 && before.bytes as u64 >= countable(bytes), "counted before");
    }
}

/// A request's bytes as they are counted. A lone request may be longer than any limit, and must not spill over.
fn countable(bytes: usize) -> u64 {
    (bytes as u64).min(ONE_REQUEST / 2)
}

fn unpack(packed: u64) -> Load {
    Load { requests: (packed / ONE_REQUEST) as usize, bytes: (packed % ONE_REQUEST) as usize }
}

const _: () = assert!(CONNECTION_BYTES_MAX >= FRAME_BYTES_MAX, "one frame must fit a connection");
const _: () = assert!(NODE_BYTES_MAX >= 4 * CONNECTION_BYTES_MAX, "one connection must not fill a node");
