//! The operating system's clocks.
//!
//! All instances in one process count from the same start, so that moments taken on different threads compare.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use model::WallMillis;

use super::{Clock, Moment};
use crate::BoxFuture;

/// The moment from which this process counts.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// The clocks of the machine; sleeping needs a `tokio` runtime on the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct OsClock {
    start: Instant,
}

impl OsClock {
    /// The clock of this process.
    pub fn new() -> OsClock {
        OsClock { start: start() }
    }
}

impl Default for OsClock {
    fn default() -> OsClock {
        OsClock::new()
    }
}

impl Clock for OsClock {
    fn now(&self) -> Moment {
        // One nanosecond is added so that no reading equals `Moment::default()`, which means "never" to some callers.
        Moment { nanos: u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX - 1) + 1 }
    }

    fn wall(&self) -> WallMillis {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        WallMillis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let wait = deadline.since(self.now());
        Box::pin(tokio::time::sleep(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_two_instances_compare() {
        let (first, second) = (OsClock::new(), OsClock::new());
        let earlier = first.now();
        let later = second.now();
        assert!(later >= earlier);
        assert!(first.now() >= later);
    }

    #[tokio::test]
    async fn sleeping_ends_at_the_deadline_and_not_before() {
        let clock = OsClock::new();
        let deadline = clock.now().after(Duration::from_millis(5));
        clock.sleep_until(deadline).await;
        assert!(clock.now() >= deadline);
        clock.sleep_until(Moment::default()).await;
    }
}
