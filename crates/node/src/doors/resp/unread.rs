//! How many answers a client may leave unread.
//!
//! Some clients write a whole pipeline before they read the first answer (redis-py does). A door that takes in no
//! further command while answers wait would stand still with such a client for ever: each waits for the other. So the
//! bound begins low, which is all that a client needs that reads, and doubles each time that nothing was sent for a
//! moment while commands wait. At its highest, or when all connections together have too much, the client is given a
//! while to read, and then the connection is closed with the reason.
//!
//! Must never: ask the clock or make a timer while the other end reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use model::Moment;
use runtime::{BoxFuture, Clock};
use wire::ErrorCode;
use wire::messages::Failure;

/// Bytes of answers that may wait for a client that reads.
const UNREAD_BYTES_MIN: usize = 256 * 1024;
/// Bytes that may wait for one that does not: what the answer of one command may have.
const UNREAD_BYTES_MAX: usize = 64 << 20;
/// Bytes above the least, of all connections of the node together.
const UNREAD_BYTES_ALL_MAX: usize = 512 << 20;
/// How long nothing is sent before the bound doubles: far longer than a client needs that reads.
const STANDSTILL: Duration = Duration::from_millis(50);
/// How long nothing is sent at the highest bound before the connection is closed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The bound of one connection.
pub(super) struct Unread {
    clock: Arc<dyn Clock>,
    /// What all connections have above the least.
    all: Arc<AtomicUsize>,
    bytes_max: usize,
    /// When it was first seen that nothing is sent.
    since: Option<Moment>,
    timer: Option<BoxFuture<'static, ()>>,
}

/// What becomes of a connection that stands still.
pub(super) enum Standstill {
    /// More answers may wait.
    Raised,
    /// It is closed, and told this.
    Over(Failure),
}

impl Unread {
    pub(super) fn new(clock: Arc<dyn Clock>, all: Arc<AtomicUsize>) -> Unread {
        Unread { clock, all, bytes_max: UNREAD_BYTES_MIN, since: None, timer: None }
    }

    /// Bytes of answers beyond which no further command is taken in.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The other end has taken something.
    pub(super) fn sent(&mut self) {
        self.since = None;
    }

    /// It has taken everything.
    pub(super) fn all_sent(&mut self) {
        self.since = None;
        if self.bytes_max > UNREAD_BYTES_MIN {
            self.lower();
        }
    }

    fn lower(&mut self) {
        self.all.fetch_sub(self.bytes_max - UNREAD_BYTES_MIN, Ordering::Relaxed);
        self.bytes_max = UNREAD_BYTES_MIN;
    }

    /// Commands wait, so do as many answers as may, and nothing can be sent.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Standstill> {
        let since = *self.since.get_or_insert_with(|| self.clock.now());
        let may_rise = self.bytes_max < UNREAD_BYTES_MAX
            && self.all.load(Ordering::Relaxed) + self.bytes_max <= UNREAD_BYTES_ALL_MAX;
        let deadline = since.after(if may_rise { STANDSTILL } else { PATIENCE });
        loop {
            let timer = self.timer.get_or_insert_with(|| self.clock.sleep_until(deadline));
            match timer.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) if self.clock.now() >= deadline => break,
                // It was made for an earlier standstill.
                Poll::Ready(()) => self.timer = None,
            }
        }
        (self.since, self.timer) = (None, None);
        if !may_rise {
            return Poll::Ready(Standstill::Over(self.failure()));
        }
        self.all.fetch_add(self.bytes_max, Ordering::Relaxed);
        self.bytes_max *= 2;
        Poll::Ready(Standstill::Raised)
    }

    fn failure(&self) -> Failure {
        let detail = format!(
            "{} bytes of answers wait on this connection, and none was read for {PATIENCE:?}; commands behind them were not \
             carried out, and the connection is closed: read answers while you send commands, or send fewer at once",
            self.bytes_max
        );
        Failure::new(ErrorCode::Overloaded, detail)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.lower();
    }
}
