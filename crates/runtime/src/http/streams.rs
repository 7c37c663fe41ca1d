//! HTTP/2 over any byte stream: one task for a connection, and in it a future for each of its streams.
//!
//! ```text
//!                      ┌ stream 1: account, handler, answer ┐
//!   Socket ─▶ h2 ─▶────┼ stream 3: account, handler, answer ┼──▶ h2 ─▶ Socket
//!                      └ stream 5: reset by the client      ┘
//! ```
//!
//! Each stream is what a connection is by HTTP/1.1: it has its own account, and it alone ends where it is slow. So
//! h2 is used as it is: no task, no executor, and no window that opens by itself.
//!
//! A client may reset as many streams as it had answered, and some more. Each costs a request that is begun in vain, so
//! a connection that lives of resets is ended.
//!
//! **Architecture Invariant:** what a connection holds outside of its accounts is bounded by the constants here,
//! however many streams it opens.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use tokio::io::{AsyncRead, AsyncWrite};

use super::frames::Piece;
use super::socket::Socket;
use super::stream::{self, StreamEnd, StreamSetting};
use super::{Account, Handler, Limits};
use crate::{BoxFuture, Clock};

/// Most streams of a connection at a time; h2 refuses more, and a client tries those again.
pub const STREAMS_MAX: u32 = 32;

/// Bytes that a client may send ahead, for each stream and for all of a connection: the protocol's own beginning.
pub const WINDOW_BYTES: u32 = 65_535;

/// Streams of a connection that its client may reset before they are answered, beyond as many as were answered whole.
pub const RESETS_FREE: u64 = 100;

/// Streams that were ended here and are known for a second, so that what is still on its way to them is ignored: four
/// rounds of refused requests. Each costs some 400 bytes.
const ENDED_KNOWN_MAX: usize = 4 * STREAMS_MAX as usize;
/// Streams that h2 resets by itself, in all the life of a connection; it ends behind that. h2 never counts them down: a
/// frame for a stream that is not known any more is one, and so are a head that makes no sense and a stream too many.
///
/// It is a bound on memory, too, which [`RESETS_FREE`] is not, because such streams are never seen here: a client that
/// reads nothing lets each wait, and each that waits was measured at 900 bytes.
const ERRORS_MAX: usize = 2_000;

/// Longest words of a refusal.
const REFUSAL_BYTES_MAX: usize = 1024;

/// Requests of a connection under way, with those whose streams were reset and which still write.
const UNDER_WAY_MAX: usize = 2 * STREAMS_MAX as usize;

/// Gives each stream of a connection what it needs.
pub trait Streams: Send + Sync {
    /// For one more stream: the account in which its request and answer count, and what answers it.
    fn open(&self) -> (Box<dyn Account>, Box<dyn Handler + '_>);

    /// Ready when the connection shall end behind the streams that are under way.
    fn poll_leaving(&self, context: &mut Context<'_>) -> Poll<()>;
}

/// Serves one connection by HTTP/2 until either side closes it. Hands the stream back if its other end may not have read
/// everything yet: whoever closes it at once destroys that.
pub async fn serve<S, T>(stream: S, clock: Arc<dyn Clock>, limits: Limits, streams: &T) -> Option<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: Streams,
{
    let mut socket = Socket::new(stream, clock.clone(), &limits);
    Box::pin(converse(&mut socket, clock, limits, streams)).await;
    socket.unread()
}

/// What is said to a connection that is not served: an end before its first stream, with these words for people.
pub fn refusal(words: &str) -> Vec<u8> {
    let words = &words.as_bytes()[..words.len().min(REFUSAL_BYTES_MAX)];
    let length = 8 + words.len();
    // An empty SETTINGS, which must be first. Then GOAWAY: its length, its kind, its stream, the last stream, the reason.
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let [high, low] = [(length >> 8) as u8, length as u8];
    let goaway = [0, high, low, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let reason = u32::from(Reason::ENHANCE_YOUR_CALM).to_be_bytes();
    [&settings[..], &goaway, &reason, words].concat()
}

async fn converse<S, T>(socket: &mut Socket<S>, clock: Arc<dyn Clock>, limits: Limits, streams: &T)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: Streams,
{
    let head_bytes_max = u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(head_bytes_max)
        // A table is memory of the connection that nobody counts.
        .header_table_size(0)
        .max_concurrent_reset_streams(ENDED_KNOWN_MAX)
        .max_local_error_reset_streams(Some(ERRORS_MAX));
    let mut shaking = Box::pin(builder.handshake::<_, Piece>(socket));
    let mut idle = clock.sleep(limits.idle_time_max);
    let connection = poll_fn(|context| {
        if let Poll::Ready(shaken) = shaking.as_mut().poll(context) {
            return Poll::Ready(shaken.ok());
        }
        let is_over = idle.as_mut().poll(context).is_ready() || streams.poll_leaving(context).is_ready();
        if is_over { Poll::Ready(None) } else { Poll::Pending }
    });
    // Whoever sends something else is told so by h2.
    let Some(connection) = connection.await else { return };
    let mut conversation = Conversation {
        connection,
        under_way: FuturesUnordered::new(),
        streams,
        clock,
        limits,
        idle: None,
        answered: 0,
        resets: 0,
        ends: Ends::No,
    };
    poll_fn(|context| conversation.poll(context)).await;
    let Conversation { connection, mut under_way, .. } = conversation;
    drop(connection);
    // Streams find that out and end, but for writes.
    while under_way.next().await.is_some() {}
}

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// It does.
    No,
    /// It ends behind the streams that are under way.
    Behind,
    /// It ends now: only its last frames must leave.
    Now,
}

/// One connection.
struct Conversation<'a, S, T> {
    connection: Connection<&'a mut Socket<S>, Piece>,
    under_way: FuturesUnordered<BoxFuture<'a, StreamEnd>>,
    streams: &'a T,
    clock: Arc<dyn Clock>,
    limits: Limits,
    /// Goes off when the connection has been without a stream for long enough.
    idle: Option<BoxFuture<'static, ()>>,
    /// Streams that were answered whole.
    answered: u64,
    /// Streams that ended before that, because of the client.
    resets: u64,
    ends: Ends,
}

impl<'a, S, T> Conversation<'a, S, T>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: Streams,
{
    /// Ready when the connection is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut goes_on = false;
            match self.connection.poll_accept(context) {
                // However it ends, it is over; what went wrong, the other end was told if it could be.
                Poll::Ready(None | Some(Err(_))) => return Poll::Ready(()),
                Poll::Ready(Some(Ok((request, respond)))) => {
                    goes_on = true;
                    self.open(request, respond);
                }
                Poll::Pending => {}
            }
            // Between two streams that come, so that none ends unseen.
            while let Poll::Ready(Some(end)) = self.under_way.poll_next_unpin(context) {
                goes_on = true;
                if self.is_over_with(end) {
                    return Poll::Ready(());
                }
            }
            if !goes_on {
                ready!(self.poll_quiet(context));
            }
        }
    }

    fn open(&mut self, request: hyper::Request<RecvStream>, respond: SendResponse<Piece>) {
        if self.ends == Ends::Now {
            return;
        }
        self.idle = None;
        let (account, handler) = self.streams.open();
        let setting = StreamSetting { clock: self.clock.clone(), limits: self.limits };
        self.under_way.push(Box::pin(stream::serve(request, respond, account, handler, setting)));
        if self.under_way.len() > UNDER_WAY_MAX {
            self.end_now(Reason::ENHANCE_YOUR_CALM);
        }
    }

    /// Counts a stream that has ended. Says whether its connection is over with it.
    fn is_over_with(&mut self, end: StreamEnd) -> bool {
        match end {
            StreamEnd::Answered { closes } => {
                self.answered += 1;
                if closes {
                    self.end_behind();
                }
            }
            StreamEnd::Broken => {
                self.resets += 1;
                if self.resets > RESETS_FREE + self.answered && self.ends != Ends::Now {
                    self.end_now(Reason::ENHANCE_YOUR_CALM);
                }
            }
            StreamEnd::Cut => {}
            StreamEnd::Stuck => return true,
        }
        false
    }

    /// Nothing goes on now: ready when something is to be done about that.
    fn poll_quiet(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.ends == Ends::Now {
            return Poll::Pending;
        }
        let leaves = self.streams.poll_leaving(context).is_ready();
        if leaves && self.ends == Ends::No {
            self.end_behind();
            return Poll::Ready(());
        }
        if !self.under_way.is_empty() || self.connection.has_streams() {
            return Poll::Pending;
        }
        let idle = self.idle.get_or_insert_with(|| self.clock.sleep(self.limits.idle_time_max));
        if idle.as_mut().poll(context).is_pending() && !leaves {
            return Poll::Pending;
        }
        self.end_now(Reason::NO_ERROR);
        Poll::Ready(())
    }

    /// Lets the client open no more streams, once it has heard so.
    fn end_behind(&mut self) {
        if self.ends == Ends::No {
            self.ends = Ends::Behind;
            self.connection.graceful_shutdown();
        }
    }

    /// Tells the client which streams were the last that were looked at.
    fn end_now(&mut self, reason: Reason) {
        self.ends = Ends::Now;
        self.connection.abrupt_shutdown(reason);
    }
}
