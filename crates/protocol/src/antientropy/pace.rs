//! How fast background work goes: a rate of bytes, and slower while requests are late.
//!
//! Comparing has a rate, which it divides. What brings whole partitions in has none: it finds the rate that requests do
//! not feel, as hints do. It goes faster by a quarter with each batch in time, and half as fast with each that is late.

use std::time::Duration;

use model::Moment;

/// Longest rest after one batch, so that no pressure stops the work for good.
const REST_MAX: Duration = Duration::from_secs(2);

/// Most times slower than its rate that it goes.
const SLOWNESS_MAX: u32 = 16;

/// The rate at which bringing in begins.
const FINDING_FIRST: u64 = 64 << 20;

/// A rate of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// 0 is as fast as it goes.
    bytes_per_second: u64,
    /// How many times slower than the rate, because requests are late.
    slowness: u32,
    /// Between these it finds its rate.
    finds: Option<(u64, u64)>,
}

impl Pace {
    /// At most this many bytes in a second; 0 is as fast as it goes.
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace { bytes_per_second, slowness: 1, finds: None }
    }

    /// As fast as requests do not feel it: never below `min` bytes in a second, if the nodes can do that, nor above `max`.
    ///
    /// # Panics
    /// When `min` is 0, or above `max`.
    pub fn finding(min: u64, max: u64) -> Pace {
        assert!(0 < min && min <= max, "work that is never done would be no background work");
        Pace { bytes_per_second: FINDING_FIRST.clamp(min, max), slowness: 1, finds: Some((min, max)) }
    }

    /// Requests take so many times what is ordinary; 1 is in time (see [`crate::lateness::Lateness::times`]).
    pub fn observe(&mut self, times: u32) {
        match self.finds {
            None => self.slowness = times.clamp(1, SLOWNESS_MAX),
            Some((min, max)) => {
                let rate = self.bytes_per_second;
                let next = if times > 1 { rate / 2 } else { rate.saturating_add(rate / 4) };
                self.bytes_per_second = next.clamp(min, max);
            }
        }
    }

    /// How many times slower than its rate it goes.
    pub fn slowness(&self) -> u32 {
        self.slowness
    }

    /// Bytes in a second, before slowness; 0 is as fast as it goes.
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// When to go on after a batch of so many bytes that ended `now`.
    pub fn after(&self, now: Moment, bytes: u64) -> Moment {
        assert!(
            (1..=SLOWNESS_MAX).contains(&self.slowness),
            "pressure slows the work down and never stops it"
        );
        if self.bytes_per_second == 0 {
            return now;
        }
        let nanos =
            u128::from(bytes) * 1_000_000_000 * u128::from(self.slowness) / u128::from(self.bytes_per_second);
        now.after(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(REST_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_requests_slow_it_down_and_never_stop_it() {
        let mut pace = Pace::new(1_000_000);
        let now = Moment::default();
        let rest = |pace: &Pace, bytes| pace.after(now, bytes).since(now);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(100));
        pace.observe(4);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(400));
        pace.observe(u32::MAX);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(1600));
        assert_eq!(rest(&pace, u64::MAX), REST_MAX);
        pace.observe(1);
        assert_eq!(pace.slowness(), 1);
        assert_eq!(rest(&Pace::new(0), u64::MAX), Duration::ZERO);
    }

    #[test]
    fn bringing_in_finds_its_rate_within_its_limits() {
        let (min, max) = (8 << 20, 1 << 30);
        let mut pace = Pace::finding(min, max);
        assert_eq!(pace.bytes_per_second(), FINDING_FIRST);
        pace.observe(3);
        assert_eq!(pace.bytes_per_second(), FINDING_FIRST / 2, "however late");
        (0..10).for_each(|_| pace.observe(16));
        assert_eq!((pace.bytes_per_second(), pace.slowness()), (min, 1));
        pace.observe(1);
        assert_eq!(pace.bytes_per_second(), min + min / 4);
        (0..100).for_each(|_| pace.observe(1));
        assert_eq!(pace.bytes_per_second(), max);
        assert_eq!(Pace::finding(1, 2).bytes_per_second(), 2);
    }
}
