//! What time it is, and waiting for it to pass.

pub mod os;

use std::time::Duration;

pub use model::Moment;
use model::WallMillis;

use crate::BoxFuture;

/// The clock of one process.
pub trait Clock: Send + Sync {
    /// The monotonic clock.
    fn now(&self) -> Moment;

    /// The wall clock: may be skewed, may jump. Never used to measure a duration.
    fn wall(&self) -> WallMillis;

    /// Completes at `deadline` or soon after; at once when it has passed.
    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()>;
}

impl dyn Clock {
    /// Completes after `duration` or soon after.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now().after(duration))
    }
}
