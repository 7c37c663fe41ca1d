//! A generator of load that costs little itself: one thread that sends batches of gets and puts, each batch to one node.
//!
//! The nodes are bounded to most of the machine, so the ordinary driver would be the limit. This one checks only that each
//! answer has the length of a value, or says that a write was done. It speaks as a native client does to the node that
//! holds a key, or to all nodes' Redis ports in turn, which then coordinate.
//! **Never** show its figures without how long its thread was idle: a generator that had no time to spare measured itself.

mod native;
mod redis;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::driver::latencies;
use crate::processes::ThreadTimes;

use super::draws::{Draw, Draws, Routes};

/// The store that is asked.
pub(super) const STORE: &str = "default";
/// How long a batch may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a lane waits before it connects again.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// How long a lane waits for newer routes, after a node has refused a request by older ones.
const NEWS_DELAY: Duration = Duration::from_millis(5);
/// How much the receive buffer grows by.
const READ_BYTES: usize = 64 << 10;

/// What is asked for, and how hard.
#[derive(Clone, Debug)]
pub(super) struct LoadShape {
    /// All keys.
    pub(super) keys: Vec<Bytes>,
    /// Whether few of them are asked for often.
    pub(super) zipf: bool,
    /// The share of writes, 0 to 1.
    pub(super) writes: f64,
    /// Bytes of each value.
    pub(super) value_length: usize,
    /// Batches under way at once.
    pub(super) connections: usize,
    /// Requests of a batch.
    pub(super) depth: usize,
    /// Requests per second; `None` for as many as are answered.
    pub(super) rate: Option<f64>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct CallOutcome {
    /// From sending a batch to its last answer, in nanoseconds, once for each request.
    pub(super) latency: Histogram<u64>,
    /// The first thing that went wrong.
    pub(super) first_error: Option<String>,
}

/// A generator at work. Dropped, it ends by itself.
pub(super) struct Generator {
    shared: Arc<LoadShared>,
    thread: Option<JoinHandle<io::Result<()>>>,
    times: Arc<Mutex<Option<ThreadTimes>>>,
}

struct LoadShared {
    load: LoadShape,
    stop: AtomicBool,
    draws: Mutex<Draws>,
    operations: AtomicU64,
    errors: AtomicU64,
    issued: AtomicU64,
    wants_news: AtomicBool,
    seen: Mutex<CallOutcome>,
}

impl Generator {
    /// Starts asking.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(super) fn start(load: LoadShape, routes: Routes) -> io::Result<Generator> {
        let draws = Draws::new(load.keys.len(), load.zipf, load.writes, Arc::new(routes));
        let shared = Arc::new(LoadShared {
            load,
            stop: AtomicBool::new(false),
            draws: Mutex::new(draws),
            operations: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            issued: AtomicU64::new(0),
            wants_news: AtomicBool::new(false),
            seen: Mutex::new(CallOutcome { latency: latencies(), first_error: None }),
        });
        let times = Arc::new(Mutex::new(None));
        let (mine, own) = (Arc::clone(&shared), Arc::clone(&times));
        let thread = thread::Builder::new().name("generator".to_owned()).spawn(move || {
            *own.lock() = ThreadTimes::own();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(drive(mine));
            Ok(())
        })?;
        Ok(Generator { shared, thread: Some(thread), times })
    }

    /// Sends keys elsewhere from now on. Addresses keep their positions, and more may follow.
    pub(super) fn route(&self, routes: Routes) {
        self.shared.wants_news.store(false, Ordering::Relaxed);
        self.shared.draws.lock().route(Arc::new(routes));
    }

    /// Whether a node has refused a request because it followed an older document.
    pub(super) fn wants_news(&self) -> bool {
        self.shared.wants_news.load(Ordering::Relaxed)
    }

    /// Requests that were answered well, and that were not. One that a node refused because of an older document counts as
    /// neither: a client asks again.
    pub(super) fn counts(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.shared.operations), read(&self.shared.errors))
    }

    /// How long its thread has run, and waited for a processor.
    pub(super) fn times(&self) -> (Duration, Duration) {
        self.times.lock().as_ref().map(ThreadTimes::read).unwrap_or_default()
    }

    /// Forgets the latencies seen so far.
    pub(super) fn forget(&self) {
        self.shared.seen.lock().latency.reset();
    }

    /// Ends it.
    ///
    /// # Errors
    /// When the system had refused it a runtime.
    pub(super) fn stop(mut self) -> io::Result<CallOutcome> {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let empty = CallOutcome { latency: latencies(), first_error: None };
        Ok(std::mem::replace(&mut *self.shared.seen.lock(), empty))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

async fn drive(shared: Arc<LoadShared>) {
    let began = Instant::now();
    let mut lanes = tokio::task::JoinSet::new();
    let filler = Bytes::from(vec![b'x'; shared.load.value_length]);
    for _ in 0..shared.load.connections {
        let lane = Lane {
            shared: Arc::clone(&shared),
            connections: Vec::new(),
            batch: Vec::new(),
            asked: 0,
            sending: BytesMut::new(),
            filler: filler.clone(),
        };
        lanes.spawn(lane.work(began));
    }
    while lanes.join_next().await.is_some() {}
}

/// One batch after another.
struct Lane {
    shared: Arc<LoadShared>,
    /// By the position of the address.
    connections: Vec<Option<LoadConnection>>,
    batch: Vec<Draw>,
    /// Requests so far, by which those of a link are numbered.
    asked: u64,
    sending: BytesMut,
    filler: Bytes,
}

struct LoadConnection {
    stream: TcpStream,
    received: BytesMut,
}

impl Lane {
    async fn work(mut self, began: Instant) {
        let depth = self.shared.load.depth;
        while !self.shared.stop.load(Ordering::Relaxed) {
            if let Some(rate) = self.shared.load.rate {
                let issued = self.shared.issued.fetch_add(depth as u64, Ordering::Relaxed);
                let due = began + Duration::from_secs_f64(issued as f64 / rate);
                tokio::time::sleep_until(due.into()).await;
            }
            let (to, routes) = self.shared.draws.lock().next(depth, &mut self.batch);
            self.encode(&routes);
            let sent = Instant::now();
            let exchanged = tokio::time::timeout(TIMEOUT, self.exchange(to, &routes)).await;
            match exchanged.map_err(io::Error::from).and_then(|done| done) {
                Ok(replies) => {
                    let stale = replies.stale > 0;
                    self.record(sent, replies);
                    if stale {
                        self.shared.wants_news.store(true, Ordering::Relaxed);
                        tokio::time::sleep(NEWS_DELAY).await;
                    }
                }
                Err(error) => {
                    self.shared.errors.fetch_add(depth as u64, Ordering::Relaxed);
                    self.shared.seen.lock().first_error.get_or_insert_with(|| error.to_string());
                    self.connections[to] = None;
                    tokio::time::sleep(RECONNECT_DELAY).await;
                }
            }
        }
    }

    fn record(&self, sent: Instant, replies: Replies) {
        let took = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let well = replies.well as u64;
        self.shared.operations.fetch_add(well, Ordering::Relaxed);
        let mut seen = self.shared.seen.lock();
        seen.latency.saturating_record_n(took, well);
        if replies.ill > 0 {
            self.shared.errors.fetch_add(replies.ill as u64, Ordering::Relaxed);
            seen.first_error.get_or_insert(replies.reason);
        }
    }

    fn encode(&mut self, routes: &Routes) {
        self.sending.clear();
        let keys = &self.shared.load.keys;
        let with_keys = self.batch.iter().map(|draw| (*draw, &keys[draw.key as usize]));
        match &routes.owned {
            Some(owned) => {
                native::encode(with_keys, self.asked + 1, owned, &self.filler, &mut self.sending);
            }
            None => redis::encode(with_keys, &self.filler, &mut self.sending),
        }
        self.asked += self.batch.len() as u64;
    }

    async fn exchange(&mut self, to: usize, routes: &Routes) -> io::Result<Replies> {
        if self.connections.len() <= to {
            self.connections.resize_with(to + 1, || None);
        }
        let is_native = routes.owned.is_some();
        let connection = match &mut self.connections[to] {
            Some(connection) => connection,
            empty => {
                let stream = TcpStream::connect(&routes.addresses[to]).await?;
                stream.set_nodelay(true)?;
                let mut connection = LoadConnection { stream, received: BytesMut::with_capacity(READ_BYTES) };
                if is_native {
                    native::greet(&mut connection).await?;
                }
                empty.insert(connection)
            }
        };
        connection.stream.write_all(&self.sending).await?;
        let (mut replies, length) = (Replies::default(), self.shared.load.value_length);
        loop {
            let taken = match is_native {
                true => native::take(&connection.received, length, &mut replies)?,
                false => redis::take(&connection.received, length, &mut replies)?,
            };
            connection.received.advance(taken);
            if replies.count() >= self.batch.len() {
                return Ok(replies);
            }
            connection.receive().await?;
        }
    }
}

impl LoadConnection {
    async fn receive(&mut self) -> io::Result<()> {
        self.received.reserve(READ_BYTES);
        if self.stream.read_buf(&mut self.received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// The answers to a batch so far.
#[derive(Debug, Default, PartialEq)]
struct Replies {
    well: usize,
    ill: usize,
    /// Refused because the request named an older document.
    stale: usize,
    /// The first that was ill.
    reason: String,
}

impl Replies {
    fn count(&self) -> usize {
        self.well + self.ill + self.stale
    }

    fn ill(&mut self, reason: &str) {
        if self.ill == 0 {
            reason.clone_into(&mut self.reason);
        }
        self.ill += 1;
    }
}
