//! The sending half: an outbox, and the task that empties it.
//!
//! Senders append to one buffer under a lock that nobody holds for longer than one encoding. The writer takes the
//! whole buffer in exchange for its empty one, so that frames sent while it waits for the socket gather meanwhile.
//! It is woken only when it has nothing to write; otherwise it looks by itself.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{BufMut, BytesMut};
use model::limits::FRAME_BYTES_MAX;

use super::{LINK_QUEUED_BYTES_FREE, LINK_QUEUED_BYTES_MAX, QUEUED_BYTES_MAX};
use crate::locks::Mutex;
use crate::network::stream::WriteHalf;
use crate::network::{LinkSender, NetworkError};

/// Length of a frame's length prefix.
pub(super) const PREFIX: usize = 4;

/// A buffer that grew beyond this is given back after use instead of being kept for the next burst.
const BUFFER_KEPT_BYTES_MAX: usize = 512 * 1024;

/// How many bytes may wait, and how many do.
#[derive(Clone)]
pub(super) struct OutboxLimits {
    link_queued_bytes_max: usize,
    queued_bytes_max: usize,
    /// Bytes waiting on all links, each counted beyond its free ones.
    charged: Arc<AtomicUsize>,
}

impl OutboxLimits {
    pub(super) fn new(link_queued_bytes_max: usize, queued_bytes_max: usize) -> OutboxLimits {
        OutboxLimits { link_queued_bytes_max, queued_bytes_max, charged: Arc::default() }
    }
}

impl Default for OutboxLimits {
    fn default() -> OutboxLimits {
        OutboxLimits::new(LINK_QUEUED_BYTES_MAX, QUEUED_BYTES_MAX)
    }
}

/// What senders and the writer share.
struct Outbox {
    state: Mutex<SenderState>,
    /// Set once, when either side closes at once or writing failed; shared with the receiver.
    closed: Arc<AtomicBool>,
    limits: OutboxLimits,
}

#[derive(Default)]
struct SenderState {
    /// Whole frames that the writer has not taken yet.
    waiting: BytesMut,
    /// Bytes that the writer took and the socket did not.
    writing_bytes: usize,
    /// Part of this link in [`OutboxLimits::charged`].
    charged: usize,
    /// Nobody will send any more.
    finished: bool,
    /// Present exactly while the writer has nothing to write and sleeps.
    idle_writer: Option<Waker>,
    /// Wakes the writer wherever it sleeps, for closing.
    writer: Option<Waker>,
}

impl SenderState {
    fn queued_bytes(&self) -> usize {
        self.waiting.len() + self.writing_bytes
    }

    /// Brings this link's part of the common charge up to date.
    fn charge(&mut self, limits: &OutboxLimits) {
        let due = self.queued_bytes().saturating_sub(LINK_QUEUED_BYTES_FREE);
        if due > self.charged {
            limits.charged.fetch_add(due - self.charged, Ordering::Relaxed);
        } else if due < self.charged {
            limits.charged.fetch_sub(self.charged - due, Ordering::Relaxed);
        }
        self.charged = due;
    }
}

impl Outbox {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Forgets what waits and wakes the writer, which closes the socket.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let waker = {
            let mut state = self.state.lock();
            state.waiting = BytesMut::new();
            state.writing_bytes = 0;
            state.charge(&self.limits);
            state.idle_writer = None;
            state.writer.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Starts the writer on the calling thread's executor; also returns the flag that says that the link was closed.
pub(super) fn start(socket: WriteHalf, limits: OutboxLimits) -> (Arc<dyn LinkSender>, Arc<AtomicBool>) {
    let closed = Arc::new(AtomicBool::new(false));
    let outbox = Arc::new(Outbox { state: Mutex::default(), closed: Arc::clone(&closed), limits });
    let writer = SocketWriter {
        socket,
        outbox: Arc::clone(&outbox),
        batch: BytesMut::new(),
        written: 0,
        flushed: false,
    };
    tokio::spawn(writer.run());
    (Arc::new(TcpSender { outbox }), closed)
}

struct TcpSender {
    outbox: Arc<Outbox>,
}

impl LinkSender for TcpSender {
    /// Frames longer than the limit are refused with [`NetworkError::FrameTooLong`].
    fn send(&self, encode: &mut dyn FnMut(&mut BytesMut)) -> Result<(), NetworkError> {
        let outbox = &*self.outbox;
        let mut state = outbox.state.lock();
        // Looked at under the lock, so that nothing is queued after a close has emptied the outbox.
        if outbox.is_closed() {
            return Err(NetworkError::Closed);
        }
        let queued = state.queued_bytes();
        if queued >= outbox.limits.link_queued_bytes_max
            || (queued >= LINK_QUEUED_BYTES_FREE
                && outbox.limits.charged.load(Ordering::Relaxed) >= outbox.limits.queued_bytes_max)
        {
            return Err(NetworkError::Overloaded);
        }
        let start = state.waiting.len();
        state.waiting.put_u32_le(0);
        encode(&mut state.waiting);
        let body = state.waiting.len().checked_sub(start + PREFIX).expect("encoders only append");
        if body > FRAME_BYTES_MAX {
            state.waiting.truncate(start);
            return Err(NetworkError::FrameTooLong { bytes: body });
        }
        let prefix = u32::try_from(body).expect("the limit fits into four bytes").to_le_bytes();
        state.waiting[start..start + PREFIX].copy_from_slice(&prefix);
        if state.charged > 0 || queued + PREFIX + body > LINK_QUEUED_BYTES_FREE {
            state.charge(&outbox.limits);
        }
        let idle = state.idle_writer.take();
        drop(state);
        if let Some(writer) = idle {
            writer.wake();
        }
        Ok(())
    }

    fn close(&self) {
        self.outbox.close();
    }

    fn queued_bytes(&self) -> usize {
        self.outbox.state.lock().queued_bytes()
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.outbox.state.lock();
            state.finished = true;
            state.idle_writer.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Empties the outbox into the socket until nobody sends any more, the link is closed or the socket fails.
struct SocketWriter {
    socket: WriteHalf,
    outbox: Arc<Outbox>,
    /// What is being written; `written` of its bytes are out.
    batch: BytesMut,
    written: usize,
    /// All senders are gone and every byte is with the operating system.
    flushed: bool,
}

impl SocketWriter {
    async fn run(mut self) {
        if poll_fn(|context| self.poll_write(context)).await.is_ok() {
            // Nobody sends any more and all is flushed: the peer is told, and our receiver may still take what it has to
            // say. It may be gone already.
            let _ = poll_fn(|context| self.socket.poll_finish(context)).await;
            self.flushed = true;
        } else {
            self.outbox.close();
            // Also ends our receiver.
            self.socket.break_off();
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.outbox.is_closed() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if self.written == self.batch.len() {
                match self.socket.poll_flush(context) {
                    Poll::Ready(flushed) => flushed?,
                    Poll::Pending => {
                        self.note_progress(context);
                        return Poll::Pending;
                    }
                }
                if !std::task::ready!(self.poll_take(context)) {
                    return Poll::Ready(Ok(()));
                }
            }
            match self.socket.poll_write(context, &self.batch[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.note_progress(context);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Exchanges the empty batch for what waits; `false` when nothing will come any more.
    fn poll_take(&mut self, context: &Context<'_>) -> Poll<bool> {
        if self.batch.capacity() > BUFFER_KEPT_BYTES_MAX {
            self.batch = BytesMut::new();
        }
        self.batch.clear();
        self.written = 0;
        let mut state = self.outbox.state.lock();
        std::mem::swap(&mut state.waiting, &mut self.batch);
        state.writing_bytes = self.batch.len();
        if state.charged > 0 {
            state.charge(&self.outbox.limits);
        }
        if !self.batch.is_empty() {
            return Poll::Ready(true);
        }
        if state.finished {
            return Poll::Ready(false);
        }
        state.idle_writer = Some(context.waker().clone());
        self.remember(&mut state, context);
        Poll::Pending
    }

    /// The socket takes no more for now: tells senders how much still waits.
    fn note_progress(&self, context: &Context<'_>) {
        let mut state = self.outbox.state.lock();
        state.writing_bytes = self.batch.len() - self.written;
        state.charge(&self.outbox.limits);
        self.remember(&mut state, context);
    }

    /// Leaves the waker for a close, wherever the writer sleeps.
    fn remember(&self, state: &mut SenderState, context: &Context<'_>) {
        match &mut state.writer {
            Some(waker) => waker.clone_from(context.waker()),
            None => state.writer = Some(context.waker().clone()),
        }
        // A close between our last look at the flag and now found no waker to wake.
        if self.outbox.is_closed() {
            context.waker().wake_by_ref();
        }
    }
}

impl Drop for SocketWriter {
    /// Runs also when the executor ends before the writer does.
    fn drop(&mut self) {
        if !self.flushed {
            self.outbox.close();
        }
    }
}
