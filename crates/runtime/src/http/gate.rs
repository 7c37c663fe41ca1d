//! The layer between a connection and hyper: one request at a time, and none that is not in order.
//!
//! ```text
//!   stream ─▶ input ─▶ is the head whole, short enough, and in order? ─▶ hyper ─▶ Handler
//!                        └ no: hyper is given a head of the gate's own, and the handler the reason
//! ```
//!
//! hyper would judge most of it by itself, but not all ([`super::head`]), and it would answer without a word. Answering
//! here would mix with an answer that hyper is still sending. So what is refused is replaced, and answered in its turn.
//!
//! What has come of a request is counted here, and how fast; so is how fast answers go.
//!
//! Must never: hand on a byte of a second request before the first is answered, or hold more of a head than its limit.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, BytesMut};
use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::head::{self, Framing};
use super::{Limits, Line, Refused};
use crate::pace::StallTimer;
use crate::{BoxFuture, Clock};

/// Bytes that a read asks for while a head comes in.
const HEAD_READ_BYTES: usize = 16 * 1024;
/// Bytes that a read asks for while a body comes in.
const BODY_READ_BYTES: usize = 64 * 1024;
/// What hyper is given in place of a request that is refused.
const REPLACED: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
/// The bytes of a body whose end only hyper knows. Such a request is the last of its connection.
const UNKNOWN: usize = usize::MAX;

/// One connection, as hyper reads and writes it.
pub(super) struct Gate<S> {
    stream: S,
    clock: Arc<dyn Clock>,
    limits: Limits,
    line: Arc<Line>,
    /// What has come and hyper does not have yet.
    input: BytesMut,
    /// Bytes at its beginning in which no end of a head was found.
    searched: usize,
    /// Whether the request in `input` is counted already.
    begun: bool,
    /// Bytes of this request that hyper may still be given.
    pass: usize,
    /// Bytes of it that have come.
    come: usize,
    /// Numbers requests.
    which: u64,
    coming: StallTimer,
    going: StallTimer,
    /// Bytes of the answer that the other end has taken.
    sent: usize,
    /// Goes off when the connection has waited for its next request for long enough.
    idle: Option<BoxFuture<'static, ()>>,
    /// Nothing comes after what `pass` lets through.
    ends: bool,
    /// The other end has said all that it will.
    is_read: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Gate<S> {
    pub(super) fn new(stream: S, clock: Arc<dyn Clock>, limits: Limits, line: Arc<Line>) -> Gate<S> {
        let pace = || StallTimer::new(clock.clone(), limits.rest_bytes_min, limits.rest_time_max);
        Gate {
            stream,
            limits,
            line,
            input: BytesMut::new(),
            searched: 0,
            begun: false,
            pass: 0,
            come: 0,
            which: 0,
            coming: pace(),
            going: pace(),
            sent: 0,
            idle: None,
            ends: false,
            is_read: false,
            clock,
        }
    }

    /// The connection, if its other end may still be sending: closing it at once would destroy the last answer.
    pub(super) fn unread(self) -> Option<S> {
        (!self.is_read).then_some(self.stream)
    }

    /// Reads on, at most this many bytes; none when the other end has said all.
    fn poll_fill(&mut self, bytes_max: usize, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.reserve(bytes_max);
        let read = pin!(self.stream.read_buf(&mut (&mut self.input).limit(bytes_max))).poll(context);
        if self.input.is_empty() {
            // A connection that waits holds no buffer.
            self.input = BytesMut::new();
        }
        let count = ready!(read)?;
        self.come += count;
        self.is_read |= count == 0;
        Poll::Ready(Ok(count))
    }

    /// Waits for the next request; ready when hyper may be given some of it, or nothing more at all.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.skip_empty_lines();
            if !self.begun && !self.input.is_empty() {
                (self.begun, self.come, self.searched, self.idle) = (true, self.input.len(), 0, None);
                self.sent = 0;
                self.which += 1;
            }
            // Empty lines between two requests belong to none.
            if self.begun && !self.line.hold(self.come, self.clock.now()) {
                return self.replace(Refused::NoRoom);
            }
            if head::is_foreign(&self.input) {
                return self.replace(Refused::Malformed {
                    why: "this is an HTTP port, and what came is no request of HTTP/1",
                });
            }
            let end = head::end(&self.input, self.searched);
            if end.unwrap_or(self.input.len()) > self.limits.head_bytes_max {
                return self.replace(Refused::HeadTooLong { bytes_max: self.limits.head_bytes_max });
            }
            if let Some(end) = end {
                return self.pass_on(end);
            }
            self.searched = self.input.len();
            match self.poll_fill(HEAD_READ_BYTES, context) {
                Poll::Ready(Ok(0)) => {
                    self.ends = true;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if self.begun => {
                    let slow = ready!(self.poll_slow(context));
                    return self.replace(slow);
                }
                Poll::Pending => return self.poll_idle(context),
            }
        }
    }

    /// Drops the empty lines that may stand before a request.
    fn skip_empty_lines(&mut self) {
        if !self.begun {
            let empty = self.input.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            self.input.advance(empty);
        }
    }

    /// Lets a whole head through, and as much behind it as belongs to it.
    fn pass_on(&mut self, end: usize) -> Poll<io::Result<()>> {
        let framing = match head::check(&self.input[..end]) {
            Err(why) => return self.replace(why),
            Ok(framing) => framing,
        };
        match framing {
            Framing::Length(length) => self.pass = end + length,
            Framing::Chunks => (self.pass, self.ends) = (UNKNOWN, true),
        }
        self.line.begin(end, framing == Framing::Length(0));
        self.begun = false;
        Poll::Ready(Ok(()))
    }

    /// Puts a head of our own in the place of what came; nothing comes after it.
    fn replace(&mut self, why: Refused) -> Poll<io::Result<()>> {
        self.line.refuse(why);
        self.line.hold(0, self.clock.now());
        self.input = BytesMut::from(REPLACED);
        (self.pass, self.ends, self.begun) = (REPLACED.len(), true, false);
        Poll::Ready(Ok(()))
    }

    /// No request has begun, and nothing is there: ready when the connection ends.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let idle = self.idle.get_or_insert_with(|| self.clock.sleep(self.limits.idle_time_max));
        if idle.as_mut().poll(context).is_pending() && self.line.poll_leaving(context).is_pending() {
            return Poll::Pending;
        }
        self.ends = true;
        Poll::Ready(Ok(()))
    }

    /// Of a request that has begun nothing more is there now: ready when it is too slow.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<Refused> {
        if self.line.poll_lost(self.come, self.clock.now(), context).is_ready() {
            return Poll::Ready(Refused::RoomLost);
        }
        let (bytes_min, time_max) = (self.limits.rest_bytes_min, self.limits.rest_time_max);
        self.coming.poll(self.which, self.come, context).map(|()| Refused::TooSlow { bytes_min, time_max })
    }

    /// Reads on in a body; afterwards something is there, or nothing comes any more.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_fill(self.pass.min(BODY_READ_BYTES), context) {
            Poll::Ready(Ok(0)) => {
                (self.pass, self.ends) = (0, true);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(_)) => {
                let left = self.pass - self.input.len().min(self.pass);
                match self.line.hold(self.come + left.min(self.come), self.clock.now()) {
                    true => Poll::Ready(Ok(())),
                    false => Poll::Ready(self.break_off(Refused::NoRoom)),
                }
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let slow = ready!(self.poll_slow(context));
                Poll::Ready(self.break_off(slow))
            }
        }
    }

    /// Ends a request in its body: whoever reads that asks the line why.
    fn break_off(&mut self, why: Refused) -> io::Result<()> {
        self.line.refuse(why);
        self.line.hold(0, self.clock.now());
        (self.pass, self.ends, self.input) = (0, true, BytesMut::new());
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> hyper::rt::Read for Gate<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let gate = self.get_mut();
        if gate.pass == 0 && !gate.ends {
            ready!(gate.poll_head(context))?;
        } else if gate.pass > 0 && gate.input.is_empty() {
            ready!(gate.poll_body(context))?;
        }
        let count = gate.input.len().min(gate.pass).min(cursor.remaining());
        cursor.put_slice(&gate.input[..count]);
        gate.input.advance(count);
        if gate.pass != UNKNOWN {
            gate.pass -= count;
            if gate.pass == 0 {
                gate.line.hold(0, gate.clock.now());
            }
        }
        if gate.input.is_empty() {
            gate.input = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Gate<S> {
    /// Counts what was written.
    fn poll_written(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = written {
            self.sent += count;
        }
        self.poll_going(written, context)
    }

    /// An answer that is not read in time, or whose room others got, ends the connection; also where it waits below, as with
    /// TLS, and everything was written.
    fn poll_going<T>(&mut self, done: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            return done;
        }
        let lost = self.line.poll_unread(self.sent, self.clock.now(), context);
        if lost.is_pending() {
            ready!(self.going.poll(self.which, self.sent, context));
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> hyper::rt::Write for Gate<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let gate = self.get_mut();
        let written = Pin::new(&mut gate.stream).poll_write(context, bytes);
        gate.poll_written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        // So hyper keeps values as they are, and copies none beside their heads.
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let gate = self.get_mut();
        let written = Pin::new(&mut gate.stream).poll_write_vectored(context, pieces);
        gate.poll_written(written, context)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gate = self.get_mut();
        let flushed = Pin::new(&mut gate.stream).poll_flush(context);
        gate.poll_going(flushed, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gate = self.get_mut();
        let ended = Pin::new(&mut gate.stream).poll_shutdown(context);
        gate.poll_going(ended, context)
    }
}
