//! The layer between a connection of HTTP/2 and h2: it ends a connection whose other end does not read.
//!
//! h2 waits for a socket that takes nothing for as long as that takes. How fast each answer goes, its stream watches;
//! here it is about everything else that must go out, such as heads and acknowledgements.
//!
//! Must never: let a write wait for longer than the time that it is given.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Limits;
use crate::Clock;
use crate::pace::StallTimer;

/// One connection, as h2 reads and writes it.
pub(super) struct Socket<S> {
    stream: S,
    going: StallTimer,
    /// Numbers what is written between two moments in which everything had left.
    which: u64,
    sent: usize,
    /// The other end has said all that it will.
    is_read: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    pub(super) fn new(stream: S, clock: Arc<dyn Clock>, limits: &Limits) -> Socket<S> {
        let going = StallTimer::new(clock, limits.rest_bytes_min, limits.rest_time_max);
        Socket { stream, going, which: 0, sent: 0, is_read: false }
    }

    /// The connection, if its other end may still be sending: closing it at once would destroy the last frames.
    pub(super) fn unread(self) -> Option<S> {
        (!self.is_read).then_some(self.stream)
    }

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

    fn poll_going<T>(&mut self, done: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            return done;
        }
        ready!(self.going.poll(self.which, self.sent, context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut socket.stream).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = read {
            socket.is_read |= buffer.filled().len() == before && buffer.remaining() > 0;
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        let written = Pin::new(&mut socket.stream).poll_write(context, bytes);
        socket.poll_written(written, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        let written = Pin::new(&mut socket.stream).poll_write_vectored(context, pieces);
        socket.poll_written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let flushed = Pin::new(&mut socket.stream).poll_flush(context);
        if flushed.is_ready() {
            socket.which += 1;
        }
        socket.poll_going(flushed, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let ended = Pin::new(&mut socket.stream).poll_shutdown(context);
        socket.poll_going(ended, context)
    }
}
