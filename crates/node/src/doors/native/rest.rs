//! How long the rest of a command or frame may take that has begun to arrive.
//!
//! What has come of it is held, and counts against the bytes that may come in on the node. A client that begins and
//! never goes on would keep others out for as long as the connection is open.
//!
//! Must never: end a connection that waits between two commands.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use protocol::admission::REST_BYTES_MIN;
use runtime::Clock;
use runtime::pace::StallTimer;
use wire::ErrorCode;
use wire::messages::Failure;

/// Watches one connection.
pub(crate) struct Rest(StallTimer);

impl Rest {
    /// The next [`REST_BYTES_MIN`] of a command, or its end, must come within `time_max`.
    pub(crate) fn new(clock: Arc<dyn Clock>, time_max: Duration) -> Rest {
        Rest(StallTimer::new(clock, REST_BYTES_MIN, time_max))
    }

    /// A read has found nothing, and of the command `which` this many bytes have come: ready when that is too slow.
    pub(crate) fn poll(&mut self, which: u64, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll(which, bytes, context)
    }

    /// What the other end is told before the connection closes.
    pub(crate) fn failure(&self) -> Failure {
        let detail = format!(
            "of a command that had begun less than {REST_BYTES_MIN} bytes came within {:?}; it was not carried out, and \
             the connection is closed",
            self.0.time_max()
        );
        Failure::new(ErrorCode::Malformed, detail)
    }
}
