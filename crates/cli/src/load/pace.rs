//! How fast a load may send, so that it leaves the cluster to others.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// Time for which records are sent at once, at most: batches are made as small, and a load that was held up catches
/// up on no more.
const BURST: Duration = Duration::from_millis(100);

/// Decides when the next batch may leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// `None`: as fast as the cluster takes them.
    records_per_second: Option<NonZeroU32>,
    /// The next batch leaves no earlier.
    free_at: Instant,
}

impl Pace {
    pub(super) fn new(records_per_second: Option<NonZeroU32>, now: Instant) -> Self {
        Pace { records_per_second, free_at: now }
    }

    /// When the next batch may leave, if not now.
    pub(super) fn waits_until(&self, now: Instant) -> Option<Instant> {
        (self.free_at > now).then_some(self.free_at)
    }

    /// Takes note that a batch of this many records leaves now.
    pub(super) fn take(&mut self, records: u64, now: Instant) {
        let Some(rate) = self.records_per_second else { return };
        let from = self.free_at.max(now.checked_sub(BURST).unwrap_or(now));
        self.free_at = from + Duration::from_secs_f64(records as f64 / f64::from(rate.get()));
    }
}

/// Records of a batch, so that none is more than a burst.
pub(super) fn batch_keys(asked: u16, records_per_second: Option<NonZeroU32>) -> usize {
    let burst = |rate: NonZeroU32| (f64::from(rate.get()) * BURST.as_secs_f64()) as usize;
    records_per_second.map_or(usize::from(asked), |rate| usize::from(asked).min(burst(rate).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Option<NonZeroU32> = NonZeroU32::new(1_000);

    #[test]
    fn batches_leave_as_far_apart_as_their_records_and_the_rate_say() {
        let start = Instant::now();
        let mut pace = Pace::new(RATE, start);
        let (mut now, mut sent) = (start, 0);
        while now < start + Duration::from_secs(10) {
            if let Some(free_at) = pace.waits_until(now) {
                // A timer that is always late costs nothing.
                now = free_at + Duration::from_millis(3);
            }
            pace.take(20, now);
            sent += 20;
        }
        assert!((9_900..=10_120).contains(&sent), "{sent} records in 10 s");
    }

    #[test]
    fn a_load_that_was_held_up_catches_up_on_a_burst_and_no_more() {
        let start = Instant::now();
        let mut pace = Pace::new(RATE, start);
        pace.take(20, start);
        let later = start + Duration::from_secs(60);
        let mut at_once = 0;
        while pace.waits_until(later).is_none() {
            pace.take(20, later);
            at_once += 20;
        }
        assert!((100..=140).contains(&at_once), "{at_once}");
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let now = Instant::now();
        let mut pace = Pace::new(None, now);
        pace.take(1_000_000, now);
        assert_eq!(pace.waits_until(now), None);
    }

    #[test]
    fn a_batch_is_never_more_than_a_burst() {
        let keys = |asked, rate| batch_keys(asked, NonZeroU32::new(rate));
        assert_eq!((keys(500, 0), keys(500, 1_000), keys(20, 1_000), keys(500, 3)), (500, 100, 20, 1));
    }
}
