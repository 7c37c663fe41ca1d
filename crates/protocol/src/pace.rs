//! How fast background work goes: a rate of bytes, and what of the time ahead is spoken for.
//!
//! Work that wants to move bytes reserves them, and is told from when on it may. So any number of tasks share one pace,
//! and none is ever refused. Work that knows only afterwards how much it moved is told when to go on.
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

use limits::UNLIMITED;
pub use limits::{
    FETCH_CEILING_DEFAULT, FETCH_CEILING_MIN, FINDING_FIRST, Growth, PaceLimits, RECORD_BYTES, least_on,
};

const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// After this time without a break the least rate doubles, where it does.
const BOLDER_AFTER: Duration = Duration::from_secs(15);

/// A rate of bytes, and what was reserved.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    limits: PaceLimits,
    /// Bytes a second, within the limits.
    rate: u64,
    /// When it began: the least rate doubles with the time since then.
    since: Moment,
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
        Pace { limits, rate: first, since: Moment::default(), next: Moment::default() }
    }

    /// Something is to be done: after a long break what was found says nothing.
    pub fn begin(&mut self, now: Moment) {
        if self.limits.idle_max.is_some_and(|idle_max| self.next.after(idle_max) <= now) {
            self.restart(now);
        }
    }

    /// As fast as in the beginning. What was reserved stays so, and nothing is made up for.
    pub fn restart(&mut self, now: Moment) {
        (self.rate, self.since, self.next) = (self.limits.first, now, self.next.max(now));
    }

    /// Bytes a second now.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Bytes a second at most.
    pub fn most(&self) -> u64 {
        self.limits.most
    }

    /// Everything before this moment is spoken for.
    pub fn free_at(&self) -> Moment {
        self.next
    }

    /// How long bytes that are reserved now would have to wait.
    pub fn backlog(&self, now: Moment) -> Duration {
        self.next.since(now)
    }

    /// Reserves bytes; from when on they may be moved.
    pub fn reserve(&mut self, now: Moment, bytes: u64) -> Moment {
        let burst = u64::try_from(self.limits.burst.as_nanos()).unwrap_or(u64::MAX);
        let begin = self.next.max(Moment { nanos: now.nanos.saturating_sub(burst) });
        let paid = begin.after(self.takes(bytes));
        self.next = self.limits.rest_max.map_or(paid, |rest_max| paid.min(now.after(rest_max)));
        begin.max(now)
    }

    /// When to go on after a batch of so many bytes that ended `now`.
    pub fn rest(&mut self, now: Moment, bytes: u64) -> Moment {
        self.reserve(now, bytes);
        self.next.max(now)
    }

    fn takes(&self, bytes: u64) -> Duration {
        if self.limits.most == UNLIMITED {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * NANOS_PER_SECOND / u128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Requests take so many times as long as is ordinary; 1 is in time (see [`crate::lateness::Lateness::times`]).
    pub fn observe(&mut self, now: Moment, times: u32) {
        match (self.limits.growth, times > 1) {
            (Growth::Whole, true) => self.set(now, self.limits.most / u64::from(times)),
            (_, true) => self.halve(now),
            (_, false) => self.grow(now),
        }
    }

    /// Faster, as the limits say.
    pub fn grow(&mut self, now: Moment) {
        let more = match self.limits.growth {
            Growth::Step(step) => step,
            Growth::Quarter => self.rate / 4,
            Growth::Whole => self.limits.most,
        };
        self.set(now, self.rate.saturating_add(more));
    }

    /// Half as fast.
    pub fn halve(&mut self, now: Moment) {
        self.set(now, self.rate / 2);
    }

    /// This rate, or the next one within the limits.
    fn set(&mut self, now: Moment, rate: u64) {
        self.rate = rate.clamp(self.least(now), self.limits.most);
    }

    /// The least rate after it has gone on for this long.
    fn least(&self, now: Moment) -> u64 {
        let turns = now.since(self.since).as_secs() / BOLDER_AFTER.as_secs();
        let doublings = turns.min(self.limits.doublings.into());
        self.limits.least.saturating_mul(1 << doublings).min(self.limits.most)
    }
}

#[cfg(test)]
mod tests {
    use super::limits::REST_MAX;
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
            pace.observe(at(0), times);
            pace.rate() / MIB
        };
        assert_eq!([after(2), after(16), after(3), after(2), after(9)], [20, 10, 10, 10, 10]);
        assert_eq!([after(1), after(1), after(1), after(2)], [20, 30, 40, 20]);
        assert_eq!((0..20).map(|_| after(1)).max(), Some(160), "never above the ceiling");
        let mut least = Pace::new(PaceLimits::for_artifacts(0));
        (0..9).for_each(|_| least.observe(at(0), 5));
        assert_eq!((least.most(), least.rate()), (MIB, MIB / 16));
        assert_eq!(least.reserve(at(0), MIB), at(0));
        assert_eq!(least.backlog(at(0)), Duration::from_secs(16), "slow, and it comes to an end");
    }
    #[test]
    fn late_requests_slow_it_down_and_never_stop_it() {
        let mut pace = Pace::new(PaceLimits::for_comparing(1_000_000));
        let now = Moment::default();
        let rest = |pace: &Pace, bytes| pace.clone().rest(now, bytes).since(now);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(100));
        pace.observe(now, 4);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(400));
        pace.observe(now, u32::MAX);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(1600));
        assert_eq!(rest(&pace, u64::MAX), REST_MAX);
        pace.observe(now, 1);
        assert_eq!(pace.rate(), 1_000_000);
        assert_eq!(rest(&Pace::new(PaceLimits::for_comparing(0)), u64::MAX), Duration::ZERO);
    }

    fn refilling(least: u64, most: u64) -> Pace {
        Pace::new(PaceLimits::for_refilling(least, most))
    }

    #[test]
    fn bringing_in_finds_its_rate_within_its_limits() {
        let (min, max) = (8 << 20, 1 << 30);
        let mut pace = refilling(min, max);
        assert_eq!(pace.rate(), FINDING_FIRST);
        pace.observe(at(0), 3);
        assert_eq!(pace.rate(), FINDING_FIRST / 2, "however late");
        (0..10).for_each(|_| pace.observe(at(0), 16));
        assert_eq!(pace.rate(), min);
        assert_eq!(pace.rest(at(5000), min).since(at(5000)), Duration::from_millis(980), "and no slower");
        pace.observe(at(0), 1);
        assert_eq!(pace.rate(), min + min / 4);
        (0..100).for_each(|_| pace.observe(at(0), 1));
        assert_eq!(pace.rate(), max);
        assert_eq!(refilling(1, 2).rate(), 2);
    }

    #[test]
    fn what_takes_long_becomes_bolder_and_begins_anew_after_a_break() {
        let mut pace = refilling(1 << 20, 1 << 30);
        pace.begin(at(60_000));
        let mut least = |seconds: u64| {
            let now = at(60_000 + seconds * 1000);
            (0..20).for_each(|_| pace.observe(now, 2));
            pace.rest(now, 1);
            pace.begin(now);
            pace.rate() >> 20
        };
        assert_eq!([0, 14, 15, 30, 45, 300].map(&mut least), [1, 1, 2, 4, 8, 8]);
        pace.begin(at(60_000 + 309_000));
        assert_eq!(pace.rate(), 8 << 20, "a short break");
        pace.begin(at(60_000 + 311_000));
        assert_eq!(pace.rate(), FINDING_FIRST);
        pace.observe(at(60_000 + 325_000), 2);
        (0..20).for_each(|_| pace.observe(at(60_000 + 325_000), 2));
        assert_eq!(pace.rate(), 1 << 20);
    }

    #[test]
    fn bringing_in_makes_up_for_what_batches_and_timers_take() {
        let mut pace = refilling(1000, 1000);
        assert_eq!(pace.rest(at(5000), 100), at(5080), "twenty milliseconds were its own");
        assert_eq!(pace.rest(at(5090), 100), at(5180), "a batch took ten");
        assert_eq!(pace.rest(at(5190), 5), at(5190), "no rest where it is behind");
        assert_eq!(pace.rest(at(9000), 1 << 30), at(9000).after(REST_MAX));
    }

    #[test]
    fn late_requests_halve_the_rate_and_giving_never_goes_below_what_bringing_in_grows_to() {
        let mut pace = refilling(1 << 20, 1 << 30);
        pace.observe(at(0), 2);
        assert_eq!(pace.rate(), FINDING_FIRST / 2);
        let least = |mut pace: Pace, seconds: u64| {
            (0..20).for_each(|_| pace.observe(at(seconds * 1000), 2));
            pace.rate()
        };
        let giving = Pace::new(PaceLimits::for_giving(1 << 20, 1 << 30));
        assert_eq!([0, 300].map(|seconds| least(giving, seconds)), [8 << 20; 2]);
        let narrow = Pace::new(PaceLimits::for_giving(1 << 20, 3 << 20));
        assert_eq!(least(narrow, 0), 3 << 20, "nor above its greatest");
    }
}
