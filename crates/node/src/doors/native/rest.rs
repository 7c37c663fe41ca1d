//! How long the rest of a command or frame may take that has begun to come in.
//!
//! What has come of it is held, and counts against the bytes that may come in on the node: whoever begins and never
//! goes on would keep others out for as long as the connection stands.
//!
//! It costs nothing where commands come whole. Nothing is done before a read finds no bytes while half a command
//! waits; then the clock is looked at, and the connection's one timer is made, if there is none. A timer is not moved
//! when what it was made for has come: it goes off now and then in vain.
//!
//! Must never: end a connection that waits between two commands.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use model::Moment;
use protocol::admission::REST_BYTES_MIN;
use runtime::{BoxFuture, Clock};
use wire::ErrorCode;
use wire::messages::Failure;

/// Watches one connection.
pub(crate) struct Rest {
    clock: Arc<dyn Clock>,
    time_max: Duration,
    seen: Option<Seen>,
    timer: Option<BoxFuture<'static, ()>>,
}

/// A command that had come only in part.
#[derive(Clone, Copy)]
struct Seen {
    /// Tells it from the connection's others.
    which: u64,
    /// When so much of it had come.
    at: Moment,
    bytes: usize,
}

impl Rest {
    /// The next [`REST_BYTES_MIN`] of a command, or its end, must come within `time_max`.
    pub(crate) fn new(clock: Arc<dyn Clock>, time_max: Duration) -> Rest {
        Rest { clock, time_max, seen: None, timer: None }
    }

    /// A read has found nothing, and of the command `which` so many bytes have come: ready when that is too slow.
    pub(crate) fn poll(&mut self, which: u64, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        let now = self.clock.now();
        let seen = match self.seen {
            Some(seen) if seen.which == which && bytes < seen.bytes + REST_BYTES_MIN => seen,
            _ => Seen { which, at: now, bytes },
        };
        self.seen = Some(seen);
        let deadline = seen.at.after(self.time_max);
        loop {
            let timer = self.timer.get_or_insert_with(|| self.clock.sleep_until(deadline));
            match timer.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) if self.clock.now() >= deadline => return Poll::Ready(()),
                // It was made for an earlier one.
                Poll::Ready(()) => self.timer = None,
            }
        }
    }

    /// What the other end is told before the connection closes.
    pub(crate) fn failure(&self) -> Failure {
        let detail = format!(
            "of a command that had begun less than {REST_BYTES_MIN} bytes came within {:?}; it was not carried out, and \
             the connection is closed",
            self.time_max
        );
        Failure::new(ErrorCode::Malformed, detail)
    }
}
