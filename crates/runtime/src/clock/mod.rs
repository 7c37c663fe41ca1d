//! What time it is, and waiting for it to pass.

pub mod os;

use std::time::Duration;

use model::WallMillis;

use crate::BoxFuture;

/// A point on a clock that never goes backwards; only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Nanoseconds since some start.
    pub nanos: u64,
}

impl Moment {
    /// This much later; saturates.
    pub fn after(self, duration: Duration) -> Moment {
        Moment { nanos: self.nanos.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// Time since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

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
