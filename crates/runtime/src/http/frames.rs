//! The bytes of a stream of HTTP/2: those that come, and those that go.
//!
//! h2 lets a client send no more than a window, for each stream and for all of a connection. A window opens again only
//! by what was read here and found room. So what h2 holds ahead of us is bounded, and all else is counted.
//!
//! Must never: open a window for bytes that found no room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use h2::RecvStream;

use super::{Kept, Limits, Line, Refused, Unread};
use crate::pace::StallTimer;

/// What a request costs that waits for its body, beside what has come of it: as measured, with the future that carries it
/// out. A connection of HTTP/1.1 has one such request; here it is counted, because there may be many.
const WAITING_BYTES: usize = 12 * 1024;

/// The body of a request, as its frames come.
pub(super) struct BodyFrames {
    frames: RecvStream,
    declared: Option<u64>,
    /// Bytes of the request that have come, its head with them.
    come: usize,
    /// Bytes of the body that are still missing, as far as that is known.
    left: usize,
    /// Whether it was waited for, which costs [`WAITING_BYTES`]. One that came with its head costs them to nobody.
    has_waited: bool,
    coming: StallTimer,
    limits: Limits,
}

impl BodyFrames {
    /// What comes behind a head of this many bytes, which declares a length or not.
    pub(super) fn new(
        frames: RecvStream,
        head_bytes: usize,
        declared: Option<u64>,
        line: &Line,
        limits: Limits,
    ) -> BodyFrames {
        let declared = if frames.is_end_stream() { Some(0) } else { declared };
        let coming = StallTimer::new(line.clock.clone(), limits.rest_bytes_min, limits.rest_time_max);
        let left = declared.map_or(usize::MAX, |bytes| bytes as usize);
        BodyFrames { frames, declared, come: head_bytes, left, has_waited: false, coming, limits }
    }

    /// The length of the body, if it is known.
    pub(super) fn declared(&self) -> Option<u64> {
        self.declared
    }

    /// The next piece, once it has found room; `None` at the end. It says nothing of trailers.
    pub(super) fn poll_piece(
        &mut self,
        line: &Line,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Unread>>> {
        let Poll::Ready(piece) = self.frames.poll_data(context) else {
            line.is_wanted.store(true, Ordering::Relaxed);
            if !std::mem::replace(&mut self.has_waited, true) && !self.hold(line) {
                return refused(line, Refused::NoRoom);
            }
            let why = ready!(self.poll_slow(line, context));
            return refused(line, why);
        };
        let piece = match piece {
            None => return Poll::Ready(None),
            Some(Err(_)) => return Poll::Ready(Some(Err(Unread::Broken))),
            Some(Ok(piece)) => piece,
        };
        self.come += piece.len();
        self.left = self.left.saturating_sub(piece.len());
        if !self.hold(line) {
            return refused(line, Refused::NoRoom);
        }
        // It fails only where more is given back than was taken.
        match self.frames.flow_control().release_capacity(piece.len()) {
            Ok(()) => Poll::Ready(Some(Ok(piece))),
            Err(_) => Poll::Ready(Some(Err(Unread::Broken))),
        }
    }

    /// Counts what has come, and what that costs.
    fn hold(&self, line: &Line) -> bool {
        let waiting = if self.has_waited { WAITING_BYTES } else { 0 };
        // As much again as has come may be reserved for more.
        line.hold(self.come + waiting + self.left.min(self.come), line.clock.now())
    }

    /// Nothing more of it is there now: ready when it is too slow.
    fn poll_slow(&mut self, line: &Line, context: &mut Context<'_>) -> Poll<Refused> {
        if line.poll_lost(self.come, line.clock.now(), context).is_ready() {
            return Poll::Ready(Refused::RoomLost);
        }
        let (bytes_min, time_max) = (self.limits.rest_bytes_min, self.limits.rest_time_max);
        self.coming.poll(0, self.come, context).map(|()| Refused::TooSlow { bytes_min, time_max })
    }
}

fn refused(line: &Line, why: Refused) -> Poll<Option<Result<Bytes, Unread>>> {
    line.hold(0, line.clock.now());
    Poll::Ready(Some(Err(Unread::Refused(why))))
}

/// A piece of an answer, as h2 has it. It holds its room until all of it has left, or h2 has dropped it.
pub(super) struct Piece {
    kept: Kept,
    way: Arc<Way>,
}

/// How far the pieces of one answer have gone.
#[derive(Default)]
pub(super) struct Way {
    sent: AtomicUsize,
    /// Whether h2 has a piece of it.
    is_taken: AtomicBool,
    waker: AtomicWaker,
}

impl Piece {
    /// The one piece of its answer that is on its way now.
    pub(super) fn new(kept: Kept, way: &Arc<Way>) -> Piece {
        way.is_taken.store(true, Ordering::Release);
        Piece { kept, way: way.clone() }
    }
}

impl Way {
    /// Bytes that have left.
    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::Acquire)
    }

    /// Whether h2 holds a piece; whenever that or [`Way::sent`] changes, the caller is woken.
    pub(super) fn is_taken(&self, context: &mut Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.holds()
    }

    /// Whether h2 holds a piece.
    pub(super) fn holds(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.kept.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.kept.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.kept.advance(count);
        self.way.sent.fetch_add(count, Ordering::AcqRel);
        self.way.waker.wake();
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.way.is_taken.store(false, Ordering::Release);
        self.way.waker.wake();
    }
}
