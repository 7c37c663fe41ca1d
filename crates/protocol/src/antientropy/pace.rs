//! How fast background work goes: a rate of bytes, and slower while requests are late.

use std::time::Duration;

use model::Moment;

/// Longest rest after one batch, so that no pressure stops the work for good.
const REST_MAX: Duration = Duration::from_secs(2);

/// Most times slower than its rate that it goes.
const SLOWNESS_MAX: u32 = 16;

/// A rate of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    bytes_per_second: u64,
    /// How many times slower than the rate, because requests are late.
    slowness: u32,
}

impl Pace {
    /// At most this many bytes in a second; 0 is as fast as it goes.
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace { bytes_per_second, slowness: 1 }
    }

    /// Requests take so many times what is ordinary; 1 is in time (see [`crate::lateness::Lateness::times`]).
    pub fn observe(&mut self, times: u32) {
        self.slowness = times.clamp(1, SLOWNESS_MAX);
    }

    /// How many times slower than its rate it goes.
    pub fn slowness(&self) -> u32 {
        self.slowness
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
}
