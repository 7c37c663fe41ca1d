//! A generator of load that costs little itself: one thread that sends batches of GET and SET to nodes' Redis ports, each
//! to the node that holds its keys.
//!
//! The nodes are bounded to most of the machine, so the ordinary driver would be the limit. This one checks only that each
//! answer has the length of a value, or says that a write was done.
//! **Never** show its figures without how long its thread was idle: a generator that had no time to spare measured itself.

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
use crate::target::resp_codec;

use super::draws::{Draw, Draws, Routes};

/// How long a batch may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a lane waits before it connects again.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// How much the receive buffer grows by.
const READ_BYTES: usize = 64 << 10;

/// What is asked for, and how hard.
#[derive(Clone, Debug)]
pub(super) struct Load {
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
pub(super) struct Seen {
    /// From sending a batch to its last answer, in nanoseconds, once for each request.
    pub(super) latency: Histogram<u64>,
    /// The first thing that went wrong.
    pub(super) first_error: Option<String>,
}

/// A generator at work. Dropped, it ends by itself.
pub(super) struct Generator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
    times: Arc<Mutex<Option<ThreadTimes>>>,
}

struct Shared {
    load: Load,
    stop: AtomicBool,
    draws: Mutex<Draws>,
    addresses: Mutex<Vec<String>>,
    operations: AtomicU64,
    errors: AtomicU64,
    issued: AtomicU64,
    seen: Mutex<Seen>,
}

impl Generator {
    /// Starts asking.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(super) fn start(load: Load, routes: Routes) -> io::Result<Generator> {
        let addresses = routes.addresses.clone();
        let draws = Draws::new(load.keys.len(), load.zipf, load.writes, Arc::new(routes));
        let shared = Arc::new(Shared {
            load,
            stop: AtomicBool::new(false),
            draws: Mutex::new(draws),
            addresses: Mutex::new(addresses),
            operations: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            issued: AtomicU64::new(0),
            seen: Mutex::new(Seen { latency: latencies(), first_error: None }),
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
        self.shared.addresses.lock().clone_from(&routes.addresses);
        self.shared.draws.lock().route(Arc::new(routes));
    }

    /// Requests that were answered well, and that were not.
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
    pub(super) fn stop(mut self) -> io::Result<Seen> {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let empty = Seen { latency: latencies(), first_error: None };
        Ok(std::mem::replace(&mut *self.shared.seen.lock(), empty))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

async fn drive(shared: Arc<Shared>) {
    let began = Instant::now();
    let mut lanes = tokio::task::JoinSet::new();
    for _ in 0..shared.load.connections {
        let lane = Lane {
            shared: Arc::clone(&shared),
            connections: Vec::new(),
            batch: Vec::new(),
            sending: Vec::new(),
            filler: vec![b'x'; shared.load.value_length],
        };
        lanes.spawn(lane.work(began));
    }
    while lanes.join_next().await.is_some() {}
}

/// One batch after another.
struct Lane {
    shared: Arc<Shared>,
    /// By the position of the address.
    connections: Vec<Option<Connection>>,
    batch: Vec<Draw>,
    sending: Vec<u8>,
    filler: Vec<u8>,
}

struct Connection {
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
            let to = self.shared.draws.lock().next(depth, &mut self.batch);
            self.encode();
            let sent = Instant::now();
            let exchanged = tokio::time::timeout(TIMEOUT, self.exchange(to)).await;
            match exchanged.map_err(io::Error::from).and_then(|done| done) {
                Ok(replies) => {
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
                Err(error) => {
                    self.shared.errors.fetch_add(depth as u64, Ordering::Relaxed);
                    self.shared.seen.lock().first_error.get_or_insert_with(|| error.to_string());
                    self.connections[to] = None;
                    tokio::time::sleep(RECONNECT_DELAY).await;
                }
            }
        }
    }

    fn encode(&mut self) {
        self.sending.clear();
        for draw in &self.batch {
            let key = &self.shared.load.keys[draw.key as usize];
            match draw.write {
                true => resp_codec::encode(&[b"SET", key, &self.filler], &mut self.sending),
                false => resp_codec::encode(&[b"GET", key], &mut self.sending),
            }
        }
    }

    async fn exchange(&mut self, to: usize) -> io::Result<Replies> {
        if self.connections.len() <= to {
            self.connections.resize_with(to + 1, || None);
        }
        let connection = match &mut self.connections[to] {
            Some(connection) => connection,
            empty => {
                let address = self.shared.addresses.lock()[to].clone();
                let stream = TcpStream::connect(&address).await?;
                stream.set_nodelay(true)?;
                empty.insert(Connection { stream, received: BytesMut::with_capacity(READ_BYTES) })
            }
        };
        connection.stream.write_all(&self.sending).await?;
        let mut replies = Replies::default();
        loop {
            let taken = replies.take(&connection.received, self.shared.load.value_length)?;
            connection.received.advance(taken);
            if replies.well + replies.ill >= self.batch.len() {
                return Ok(replies);
            }
            connection.received.reserve(READ_BYTES);
            if connection.stream.read_buf(&mut connection.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The answers to a batch so far.
#[derive(Debug, Default, PartialEq)]
struct Replies {
    well: usize,
    ill: usize,
    /// The first that was not well.
    reason: String,
}

impl Replies {
    /// Counts the whole answers at the front of what was received, and says how many bytes they have.
    fn take(&mut self, received: &[u8], value_length: usize) -> io::Result<usize> {
        let mut at = 0;
        while let Some(end) = received[at..].iter().position(|&byte| byte == b'\n') {
            let line = received[at..at + end].trim_ascii_end();
            let mut next = at + end + 1;
            match line.split_first() {
                Some((b'+', _)) => self.well += 1,
                Some((b'$', b"-1")) => self.ill("no record"),
                Some((b'$', digits)) => {
                    let length =
                        std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<usize>().ok());
                    let length = length.ok_or(io::ErrorKind::InvalidData)?;
                    next += length + 2;
                    if received.len() < next {
                        break;
                    }
                    match length == value_length {
                        true => self.well += 1,
                        false => self.ill("a value of another length"),
                    }
                }
                Some((b'-', text)) => self.ill(&String::from_utf8_lossy(text)),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            at = next;
        }
        Ok(at)
    }

    fn ill(&mut self, reason: &str) {
        if self.ill == 0 {
            reason.clone_into(&mut self.reason);
        }
        self.ill += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_as_they_come_and_judged_by_their_kind_and_length() {
        let mut replies = Replies::default();
        let all = b"+OK\r\n$3\r\nabc\r\n$-1\r\n-ERR busy\r\n$2\r\nab\r\n$3\r\nab";
        assert_eq!(replies.take(&all[..8], 3).unwrap(), 5, "the second is not whole");
        assert_eq!(replies.take(&all[5..], 3).unwrap(), all.len() - 5 - 6);
        assert_eq!(replies, Replies { well: 2, ill: 3, reason: "no record".to_owned() });
        assert!(Replies::default().take(b"what\r\n", 3).is_err());
    }
}
