//! How fast background work goes: a rate of bytes, and what of the time ahead is spoken for.
//!
//! Work that wants to move bytes reserves them, and is told from when on it may. So any number of tasks share one pace,
//! and none is ever refused.
//!
//! ```text
//!   now ────────┬─────────┬─────────┬──────────▶
//!               └ block 1 └ block 2 └ next: from here on
//! ```
//!
//! Now and then the driver looks whether requests are late ([`crate::lateness`]), and tells. The rate falls each time
//! that they are, and grows each time that they are not. So the work takes what requests leave.
//!
//! Each use has its limits: they are side by side in [`PaceLimits`].
//!
//! **Architecture Invariant:** no lateness takes a pace below its least rate, so background work comes to an end.

mod limits;

use std::time::Duration;

use model::Moment;

pub use limits::{FETCH_CEILING_DEFAULT, FETCH_CEILING_MIN, Growth, PaceLimits};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A rate of bytes, and what was reserved.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    limits: PaceLimits,
    /// Bytes a second, within the limits.
    rate: u64,
    /// Everything before this moment is spoken for.
    next: Moment,
}

impl Pace {
    /// Nothing is reserved so far.
    ///
    /// # Panics
    /// When the limits are not in order, or the least is 0.
    pub fn new(limits: PaceLimits) -> Pace {
        let PaceLimits { least, first, most, .. } = limits;
        assert!(0 < least, "work that is never done would be no background work");
        assert!(least <= first && first <= most, "a pace begins within its limits");
        Pace { limits, rate: first, next: Moment::default() }
    }

    /// Bytes a second now.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Bytes a second at most.
    pub fn most(&self) -> u64 {
        self.limits.most
    }

    /// How long bytes that are reserved now would have to wait.
    pub fn backlog(&self, now: Moment) -> Duration {
        self.next.since(now)
    }

    /// Reserves bytes; from when on they may be moved.
    pub fn reserve(&mut self, now: Moment, bytes: u64) -> Moment {
        let begin = self.next.max(now);
        self.next = begin.after(self.takes(bytes));
        begin
    }

    fn takes(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * NANOS_PER_SECOND / u128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Requests take so many times as long as is ordinary; 1 is in time (see [`crate::lateness::Lateness::times`]).
    pub fn observe(&mut self, times: u32) {
        if times > 1 {
            self.halve();
        } else {
            self.grow();
        }
    }

    /// Half as fast.
    fn halve(&mut self) {
        self.set(self.rate / 2);
    }

    /// Faster, as it grows.
    fn grow(&mut self) {
        let Growth::Step(step) = self.limits.growth;
        self.set(self.rate.saturating_add(step));
    }

    /// This rate, or the next one within the limits.
    fn set(&mut self, rate: u64) {
        self.rate = rate.clamp(self.limits.least, self.limits.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(millis: u64) -> Moment {
        Moment::default().after(Duration::from_millis(millis))
    }

    #[test]
    fn however_many_reserve_no_more_moves_than_the_rate_and_one_block() {
        let mut pace = Pace::new(PaceLimits::for_artifacts(64 * MIB));
        assert_eq!((pace.rate(), FETCH_CEILING_DEFAULT), (16 * MIB, 128 * MIB));
        let begins: Vec<Moment> = (0..33).map(|_| pace.reserve(at(500), MIB)).collect();
        assert_eq!((begins[0], begins[1]), (at(500), at(500).after(Duration::from_micros(62_500))));
        assert_eq!(begins[32], at(2500), "32 MiB took two seconds");
        assert_eq!(pace.backlog(at(2500)), Duration::from_micros(62_500));
        assert_eq!((pace.backlog(at(9000)), pace.reserve(at(9000), MIB)), (Duration::ZERO, at(9000)));
        assert_eq!(pace.reserve(at(9000), 0), at(9000).after(Duration::from_micros(62_500)), "no burst");
    }

    #[test]
    fn late_requests_halve_the_rate_and_it_grows_back_by_small_steps() {
        let mut pace = Pace::new(PaceLimits::for_artifacts(160 * MIB));
        let mut after = |times| {
            pace.observe(times);
            pace.rate() / MIB
        };
        assert_eq!([after(2), after(16), after(3), after(2), after(9)], [20, 10, 10, 10, 10]);
        assert_eq!([after(1), after(1), after(1), after(2)], [20, 30, 40, 20]);
        assert_eq!((0..20).map(|_| after(1)).max(), Some(160), "never above the ceiling");
        let mut least = Pace::new(PaceLimits::for_artifacts(0));
        (0..9).for_each(|_| least.observe(5));
        assert_eq!((least.most(), least.rate()), (MIB, MIB / 16));
        assert_eq!(least.reserve(at(0), MIB), at(0));
        assert_eq!(least.backlog(at(0)), Duration::from_secs(16), "slow, and it comes to an end");
    }
}
