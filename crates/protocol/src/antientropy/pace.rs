//! How fast background work goes: a rate of bytes, and slower while requests are late.
//!
//! Comparing has a rate, which it divides. What brings whole partitions in has none: it finds the rate that requests do
//! not feel, as hints do. It goes faster by a quarter with each look that finds requests in time, and half as fast with
//! each that finds them late.
//!
//! However late they are, it goes at a least rate, which doubles with the time that it takes. So a small move on a full
//! machine is not noticed, and a large one comes to an end. A process that may use a part of a processor only has a part
//! of the least rate ([`least_on`]): in a container of a tenth, sixteen mebibytes a second are a third of all it has.

use std::time::Duration;

use model::Moment;

/// Longest rest after one batch, so that no pressure stops the work for good.
const REST_MAX: Duration = Duration::from_secs(2);

/// Most times slower than its rate that it goes.
const SLOWNESS_MAX: u32 = 16;

/// The rate at which bringing in begins, in bytes a second: 16 MiB.
pub const FINDING_FIRST: u64 = 16 << 20;

/// What a record costs beside its bytes, in bytes that cost as much.
pub const RECORD_BYTES: u64 = 512;

/// From this many processors on the least rate is what it is.
const PROCESSORS_MIN: f64 = 0.5;

/// After this long without a break the least rate doubles.
const BOLDER_AFTER: Duration = Duration::from_secs(15);
/// So often at most: eight times as fast as in the beginning.
const BOLDER_MAX: u64 = 3;
/// After this long without anything to do it begins anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// What was not used is made up for within this time: timers are late by a millisecond or two, and a batch that takes
/// longer than its rate allows is followed by the next at once.
const ARREARS_MAX: Duration = Duration::from_millis(20);

/// The least rate, in bytes a second, where a process may use this many processors: with less than half a one it is a part of
/// `least`. Never 0.
pub fn least_on(processors: f64, least: u64) -> u64 {
    let part = (processors / PROCESSORS_MIN).clamp(0.0, 1.0);
    ((least as f64 * part) as u64).max(1)
}

/// A rate of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// 0 is as fast as it goes.
    bytes_per_second: u64,
    /// How many times slower than the rate, because requests are late.
    slowness: u32,
    /// What finds its rate.
    finds: Option<Finding>,
}

/// A rate that is to be found.
#[derive(Clone, Copy, Debug)]
struct Finding {
    /// The least rate in the beginning, and the greatest.
    limits: (u64, u64),
    /// How often the least rate doubles.
    doublings_max: u64,
    /// When it began.
    since: Moment,
    /// Everything before this moment is spoken for.
    next: Moment,
}

impl Finding {
    /// The least rate after it has gone on for this long.
    fn min(&self, now: Moment) -> u64 {
        let doublings = (now.since(self.since).as_secs() / BOLDER_AFTER.as_secs()).min(self.doublings_max);
        (self.limits.0 << doublings).min(self.limits.1)
    }
}

impl Pace {
    /// At most this many bytes in a second; 0 is as fast as it goes.
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace { bytes_per_second, slowness: 1, finds: None }
    }

    /// As fast as requests do not feel it: never below `min` bytes in a second, if the nodes can do that, nor above `max`.
    /// `min` doubles every 15 seconds, up to eight times as much, as long as there is something to do.
    ///
    /// # Panics
    /// When `min` is 0, or above `max`.
    pub fn finding(min: u64, max: u64) -> Pace {
        Pace::found((min, max), BOLDER_MAX)
    }

    /// The same for what is given to somebody who goes at its own pace: never below the rate to which the least of that
    /// one grows. One that gives to several, in turn, has breaks, and would begin at its least again and again.
    ///
    /// # Panics
    /// When `min` is 0, or above `max`.
    pub fn giving(min: u64, max: u64) -> Pace {
        Pace::found(((min << BOLDER_MAX).min(max), max), 0)
    }

    fn found((min, max): (u64, u64), doublings_max: u64) -> Pace {
        assert!(0 < min && min <= max, "work that is never done would be no background work");
        let (since, next) = (Moment::default(), Moment::default());
        let finds = Finding { limits: (min, max), doublings_max, since, next };
        Pace { bytes_per_second: FINDING_FIRST.clamp(min, max), slowness: 1, finds: Some(finds) }
    }

    /// Something is to be done: after a long break what was found says nothing.
    pub fn begin(&mut self, now: Moment) {
        let Some(finding) = &mut self.finds else { return };
        if finding.next.after(FORGOTTEN_AFTER) <= now {
            (finding.since, finding.next) = (now, now);
            self.bytes_per_second = FINDING_FIRST.clamp(finding.limits.0, finding.limits.1);
        }
    }

    /// Requests take this many times what is ordinary; 1 is in time (see [`crate::lateness`]).
    pub fn observe(&mut self, now: Moment, times: u32) {
        match &self.finds {
            None => self.slowness = times.clamp(1, SLOWNESS_MAX),
            Some(finding) => {
                let rate = self.bytes_per_second;
                let next = if times > 1 { rate / 2 } else { rate.saturating_add(rate / 4) };
                self.bytes_per_second = next.clamp(finding.min(now), finding.limits.1);
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
    pub fn after(&mut self, now: Moment, bytes: u64) -> Moment {
        assert!(
            (1..=SLOWNESS_MAX).contains(&self.slowness),
            "pressure slows the work down and never stops it"
        );
        if self.bytes_per_second == 0 {
            return now;
        }
        let nanos =
            u128::from(bytes) * 1_000_000_000 * u128::from(self.slowness) / u128::from(self.bytes_per_second);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let Some(finding) = &mut self.finds else { return now.after(takes.min(REST_MAX)) };
        let earliest = now.nanos.saturating_sub(ARREARS_MAX.as_nanos() as u64);
        let begin = finding.next.max(Moment { nanos: earliest });
        finding.next = begin.after(takes).min(now.after(REST_MAX));
        finding.next.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_requests_slow_it_down_and_never_stop_it() {
        let mut pace = Pace::new(1_000_000);
        let now = Moment::default();
        let rest = |pace: &Pace, bytes| pace.clone().after(now, bytes).since(now);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(100));
        pace.observe(now, 4);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(400));
        pace.observe(now, u32::MAX);
        assert_eq!(rest(&pace, 100_000), Duration::from_millis(1600));
        assert_eq!(rest(&pace, u64::MAX), REST_MAX);
        pace.observe(now, 1);
        assert_eq!(pace.slowness(), 1);
        assert_eq!(rest(&Pace::new(0), u64::MAX), Duration::ZERO);
    }

    #[test]
    fn with_less_than_half_a_processor_the_least_rate_is_a_part_of_it() {
        let least = [64.0, 0.5, 0.25, 0.1, 0.0].map(|processors| least_on(processors, 2 << 20));
        assert_eq!(least, [2 << 20, 2 << 20, 1 << 20, (2 << 20) / 5, 1]);
        assert_eq!(least_on(1.0, 2 << 20), 2 << 20, "where nobody knows");
    }

    fn at(millis: u64) -> Moment {
        Moment::default().after(Duration::from_millis(millis))
    }

    #[test]
    fn bringing_in_finds_its_rate_within_its_limits() {
        let (min, max) = (8 << 20, 1 << 30);
        let mut pace = Pace::finding(min, max);
        assert_eq!(pace.bytes_per_second(), FINDING_FIRST);
        pace.observe(at(0), 3);
        assert_eq!(pace.bytes_per_second(), FINDING_FIRST / 2, "however late");
        (0..10).for_each(|_| pace.observe(at(0), 16));
        assert_eq!((pace.bytes_per_second(), pace.slowness()), (min, 1));
        pace.observe(at(0), 1);
        assert_eq!(pace.bytes_per_second(), min + min / 4);
        (0..100).for_each(|_| pace.observe(at(0), 1));
        assert_eq!(pace.bytes_per_second(), max);
        assert_eq!(Pace::finding(1, 2).bytes_per_second(), 2);
    }

    #[test]
    fn what_takes_long_becomes_bolder_and_begins_anew_after_a_break() {
        let mut pace = Pace::finding(1 << 20, 1 << 30);
        pace.begin(at(60_000));
        let mut least = |seconds: u64| {
            let now = at(60_000 + seconds * 1000);
            (0..20).for_each(|_| pace.observe(now, 2));
            pace.after(now, 1);
            pace.begin(now);
            pace.bytes_per_second() >> 20
        };
        assert_eq!([0, 14, 15, 30, 45, 300].map(&mut least), [1, 1, 2, 4, 8, 8]);
        pace.begin(at(60_000 + 309_000));
        assert_eq!(pace.bytes_per_second(), 8 << 20, "a short break");
        pace.begin(at(60_000 + 311_000));
        assert_eq!(pace.bytes_per_second(), FINDING_FIRST);
        pace.observe(at(60_000 + 325_000), 2);
        (0..20).for_each(|_| pace.observe(at(60_000 + 325_000), 2));
        assert_eq!(pace.bytes_per_second(), 1 << 20);
    }

    #[test]
    fn bringing_in_makes_up_for_what_batches_and_timers_take() {
        let mut pace = Pace::finding(1000, 1000);
        assert_eq!(pace.after(at(5000), 100), at(5080), "twenty milliseconds were its own");
        assert_eq!(pace.after(at(5090), 100), at(5180), "a batch took ten");
        assert_eq!(pace.after(at(5190), 5), at(5190), "no rest where it is behind");
        assert_eq!(pace.after(at(9000), 1 << 30), at(9000).after(REST_MAX));
    }

    #[test]
    fn late_requests_halve_the_rate_and_giving_never_goes_below_what_bringing_in_grows_to() {
        let mut pace = Pace::finding(1 << 20, 1 << 30);
        pace.observe(at(0), 2);
        assert_eq!(pace.bytes_per_second(), FINDING_FIRST / 2);
        let least = |mut pace: Pace, seconds: u64| {
            (0..20).for_each(|_| pace.observe(at(seconds * 1000), 2));
            pace.bytes_per_second()
        };
        let giving = Pace::giving(1 << 20, 1 << 30);
        assert_eq!([0, 300].map(|seconds| least(giving, seconds)), [8 << 20; 2]);
        assert_eq!(least(Pace::giving(1 << 20, 3 << 20), 0), 3 << 20, "nor above its greatest");
    }
}
