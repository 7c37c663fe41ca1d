//! The operating system's clocks.
//!
//! All instances in one process count from the same start, so that moments taken on different threads compare.

use std::sync::OnceLock;
use std::time::Instant;

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
        // The time of the kernel's last tick, at most a few milliseconds ago. Each request asks, and an exact answer
        // took 2% of a SET.
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let (seconds, nanos) =
            (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
        WallMillis(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let wait = deadline.since(self.now());
        Box::pin(tokio::time::sleep(wait))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_wall_clock_is_the_systems() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let wall = Duration::from_millis(OsClock::new().wall().0);
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        // A tick is at most 10 ms; a machine that hangs for a while may miss some.
        assert!(before.saturating_sub(Duration::from_secs(10)) <= wall && wall <= after);
    }

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
