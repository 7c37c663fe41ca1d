//! How fast bytes must come or go: this many within a time, or all of them.
//!
//! It costs nothing where they do. Nothing is done before one finds that nothing goes on; then the clock is looked at,
//! and the one timer is made, if there is none. A timer is not moved when what it was made for has gone on: it goes off
//! now and then in vain.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::{BoxFuture, Clock, Moment};

/// Watches one direction of one connection.
pub struct StallTimer {
    clock: Arc<dyn Clock>,
    bytes_min: usize,
    time_max: Duration,
    seen: Option<Seen>,
    timer: Option<BoxFuture<'static, ()>>,
}

/// A message of which only a part had come, or gone.
#[derive(Clone, Copy)]
struct Seen {
    /// Tells it from the connection's others.
    which: u64,
    /// When so much of it had.
    at: Moment,
    bytes: usize,
}

impl StallTimer {
    /// The next `bytes_min` bytes of a message, or its end, must come within `time_max`.
    pub fn new(clock: Arc<dyn Clock>, bytes_min: usize, time_max: Duration) -> StallTimer {
        StallTimer { clock, bytes_min, time_max, seen: None, timer: None }
    }

    /// Nothing goes on now, and of the message `which` so many bytes have come: ready when that is too slow.
    pub fn poll(&mut self, which: u64, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        let now = self.clock.now();
        let seen = match self.seen {
            Some(seen) if seen.which == which && bytes < seen.bytes + self.bytes_min => seen,
            _ => Seen { which, at: now, bytes },
        };
        self.seen = Some(seen);
        let deadline = seen.at.after(self.time_max);
        loop {
            let timer = self.timer.get_or_insert_with(|| self.clock.sleep_until(deadline));
            match timer.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) if self.clock.now() >= deadline => return Poll::Ready(()),
                // It was made for an earlier message.
                Poll::Ready(()) => self.timer = None,
            }
        }
    }

    /// The time that it was given.
    pub fn time_max(&self) -> Duration {
        self.time_max
    }
}
