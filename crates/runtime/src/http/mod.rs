//! HTTP over any byte stream: what a server needs that knows nothing of stores.
//!
//! ```text
//!   stream ─┬─ HTTP/1.1 ─▶ Gate: one request at a time, counted, in order ─▶ hyper ─┬─▶ Handler ─▶ answer
//!           └─ HTTP/2 ───▶ Socket ─▶ h2 ─▶ each stream by itself, counted ──────────┘
//! ```
//!
//! hyper parses heads and frames bodies; it gets no clock, task or listener, so that simulation plays
//! what production runs. It writes no date, which it would read from the system's clock.
//!
//! h2 frames HTTP/2 ([`streams`]), without a task or a listener either. But it looks at the system's clock to forget
//! streams that were reset, so simulation plays HTTP/1.1 only.
//!
//! **Architecture Invariant:** a connection speaks here of bytes, heads and limits; what a path means, its handler knows.

mod body;
mod frames;
mod gate;
mod head;
pub mod path;
mod socket;
pub mod strangers;
mod stream;
pub mod streams;
pub mod tags;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::service::service_fn;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use self::gate::Gate;
use crate::{BoxFuture, Clock, Moment};

pub use self::body::{Arriving, Kept, Payload, Pieces, Unread};
pub use base64;
pub use hyper::http::request::Parts;
pub use hyper::{HeaderMap, Method, Request, StatusCode, Uri, header};

/// An answer.
pub type Response = hyper::Response<Payload>;

/// Longest head of a request: a key of 4 KiB in which each byte is encoded, an ETag of 6 KiB, and what proxies add.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;

/// How long a connection may wait for its next request: longer than the pools of usual clients keep theirs, because a
/// request that crosses the end is one that its client must send again.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(300);

/// Bytes that hyper holds at most of a request that it reads, and of answers before it waits for the other end.
///
/// More than a head may have. Each connection may keep a buffer of this size for as long as it lives, beside its account.
const BUFFER_BYTES_MAX: usize = 48 * 1024;
const _: () = assert!(BUFFER_BYTES_MAX > HEAD_BYTES_MAX, "hyper parses whole heads");

/// What one connection may do, and of HTTP/2 each stream.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a head. Default: [`HEAD_BYTES_MAX`].
    pub head_bytes_max: usize,
    /// Time between two requests: of HTTP/2, without any. Default: [`IDLE_TIME_MAX`].
    pub idle_time_max: Duration,
    /// Bytes of a request that has begun, or of an answer, that must go on within the time of `rest_time_max`.
    pub rest_bytes_min: usize,
    /// How long these may take.
    pub rest_time_max: Duration,
}

/// The account in which a connection's requests count while they come in, and whether it may go on.
pub trait Account: Send {
    /// Counts so many bytes of a request that is coming in, in place of as many as before; 0 when it has come whole.
    /// False when there is no room for them.
    fn hold(&mut self, bytes: usize, now: Moment) -> bool;

    /// So much has come of the request, and nothing more is there now: ready when others got its room.
    fn poll_lost(&mut self, come: usize, now: Moment, context: &mut Context<'_>) -> Poll<()>;

    /// So much of the answer has been sent, and nothing more can be sent now: ready when others got its room.
    fn poll_unread(&mut self, sent: usize, now: Moment, context: &mut Context<'_>) -> Poll<()>;

    /// Ready when a connection that is between two requests shall end.
    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// Why a request was refused before it came whole. The connection ends behind the answer; of HTTP/2, its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its head is longer than the limit.
    HeadTooLong {
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// Its head has too many lines.
    TooManyLines {
        /// The limit.
        lines_max: usize,
    },
    /// It has a byte where none may be, or where its body ends cannot be told.
    Malformed {
        /// Why.
        why: &'static str,
    },
    /// It came too slowly.
    TooSlow {
        /// This many bytes.
        bytes_min: usize,
        /// Must come within this time.
        time_max: Duration,
    },
    /// There is no room for it.
    NoRoom,
    /// It was slow, and others got its room.
    RoomLost,
}

/// What a handler answers.
pub enum Arrived {
    /// A request whose head has come. By HTTP/2 a GET or HEAD has no body here: it is dropped as it comes.
    Request(Box<Parts>, Arriving),
    /// One that was refused.
    Refused(Refused),
}

/// Answers the requests of a connection, one after the other.
pub trait Handler: Send + Sync {
    /// The answer. A body that was not read ends the connection behind it.
    fn answer(&self, arrived: Arrived) -> BoxFuture<'_, Response>;
}

/// What the gate and the handler of one connection share.
pub(crate) struct Line {
    account: Mutex<Box<dyn Account>>,
    refused: Mutex<Option<Refused>>,
    /// Bytes of the head of the request.
    head_bytes: AtomicUsize,
    /// Whether the request has come to its end.
    is_whole: AtomicBool,
    /// Whether its body is waited for, by HTTP/2.
    is_wanted: AtomicBool,
    clock: Arc<dyn Clock>,
}

impl Line {
    fn new(account: Box<dyn Account>, clock: Arc<dyn Clock>) -> Arc<Line> {
        Arc::new(Line {
            account: Mutex::new(account),
            refused: Mutex::default(),
            head_bytes: AtomicUsize::new(0),
            is_whole: AtomicBool::new(true),
            is_wanted: AtomicBool::new(false),
            clock,
        })
    }

    fn hold(&self, bytes: usize, now: Moment) -> bool {
        self.account.lock().hold(bytes, now)
    }

    fn poll_lost(&self, come: usize, now: Moment, context: &mut Context<'_>) -> Poll<()> {
        self.account.lock().poll_lost(come, now, context)
    }

    fn poll_unread(&self, sent: usize, now: Moment, context: &mut Context<'_>) -> Poll<()> {
        self.account.lock().poll_unread(sent, now, context)
    }

    fn poll_leaving(&self, context: &mut Context<'_>) -> Poll<()> {
        self.account.lock().poll_leaving(context)
    }

    fn refuse(&self, why: Refused) {
        *self.refused.lock() = Some(why);
    }

    fn refused(&self) -> Option<Refused> {
        self.refused.lock().take()
    }

    /// The head of the next request has come. `is_whole`: nothing follows it.
    fn begin(&self, head_bytes: usize, is_whole: bool) {
        self.head_bytes.store(head_bytes, Ordering::Relaxed);
        self.is_whole.store(is_whole, Ordering::Relaxed);
    }

    /// The request has come whole: whoever carries it out counts it from now on.
    fn arrived(&self) {
        self.is_whole.store(true, Ordering::Relaxed);
        self.hold(0, self.clock.now());
    }
}

/// Serves one connection by HTTP/1.1 until either side closes it. Hands the stream back if its other end may not have read the last
/// answer yet: whoever closes it at once destroys that.
pub async fn serve<S, H>(
    stream: S,
    clock: Arc<dyn Clock>,
    limits: Limits,
    account: Box<dyn Account>,
    handler: &H,
) -> Option<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    H: Handler,
{
    let line = Line::new(account, clock.clone());
    let mut gate = Gate::new(stream, clock, limits, line.clone());
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (head, incoming) = request.into_parts();
        // Only hyper knows where such a body ends, so the gate cannot tell where the next request begins.
        let is_last = head.headers.contains_key(header::TRANSFER_ENCODING);
        let arrived = match line.refused() {
            Some(why) => Arrived::Refused(why),
            None => Arrived::Request(Box::new(head), Arriving::new(incoming, line.clone())),
        };
        let line = &line;
        async move {
            let mut response = handler.answer(arrived).await;
            // What has not been read of a body is not read any more, so no request comes after it. An answer in pieces
            // lasts long, and by HTTP/1.0 ends with its connection.
            let ends = is_last || response.body().is_endless();
            if ends || !line.is_whole.load(Ordering::Relaxed) {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.auto_date_header(false).half_close(true).header_read_timeout(None).max_buf_size(BUFFER_BYTES_MAX);
    // However it ends, the connection is over; what went wrong, the other end was told if it could be.
    let _ = Box::pin(http.serve_connection(&mut gate, service)).await;
    gate.unread()
}
