//! How fast each kind of background work goes at least, at most and in the beginning.

use std::time::Duration;

/// Bytes a second that a node fetches at most unless its operator says otherwise: about half of what one core copies and
/// verifies, and of a common disk.
pub const FETCH_CEILING_DEFAULT: u64 = 128 << 20;
/// The lowest ceiling: one block a second.
pub const FETCH_CEILING_MIN: u64 = 1 << 20;
/// The lowest rate of artifacts is this part of their ceiling, and so is a step.
const ARTIFACT_SHARE: u64 = 16;
/// Artifacts begin at this part of their ceiling.
const ARTIFACT_FIRST_SHARE: u64 = 4;

/// The rate at which bringing in begins, in bytes a second: 16 MiB.
pub const FINDING_FIRST: u64 = 16 << 20;

/// What a record costs beside its bytes, in bytes that cost as much.
pub const RECORD_BYTES: u64 = 512;

/// Longest rest after one batch of records, so that no pressure stops the work for good.
pub(super) const REST_MAX: Duration = Duration::from_secs(2);

/// Most times slower than its rate that comparing goes.
const SLOWNESS_MAX: u64 = 16;

/// The least rate of bringing in doubles so often: up to eight times as fast as in the beginning.
const DOUBLINGS: u32 = 3;
/// After this time without anything to do bringing in begins anew.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// What was not used is made up for within this time: timers are late by a millisecond or two, and a batch that takes
/// longer than its rate allows is followed by the next at once.
const ARREARS_MAX: Duration = Duration::from_millis(20);

/// Of hints, so much time that was not used is made up for: a pause does not end in a burst.
const HINT_BURST: Duration = Duration::from_millis(100);

/// From so many processors on the least rate is what it is.
const PROCESSORS_MIN: f64 = 0.5;

/// As fast as it goes, in bytes a second.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// The least rate, in bytes a second, where a process may use so many processors: with less than half a one it is a part of
/// `least`. In a container of a tenth, sixteen mebibytes a second are a third of all it has. Never 0.
pub fn least_on(processors: f64, least: u64) -> u64 {
    let part = (processors / PROCESSORS_MIN).clamp(0.0, 1.0);
    ((least as f64 * part) as u64).max(1)
}

/// What a pace keeps to. The rates are in bytes a second, with 0 < `least` ≤ `first` ≤ `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceLimits {
    /// In the beginning it never goes slower.
    pub least: u64,
    /// It never goes faster.
    pub most: u64,
    /// How fast it begins.
    pub first: u64,
    /// How it grows.
    pub growth: Growth,
    /// How often the least rate doubles, each time after 15 seconds without a break.
    pub doublings: u32,
    /// So much time that was not used is made up for.
    pub burst: Duration,
    /// Bytes are paid for with no more time than this, from the moment at which they are reserved.
    pub rest_max: Option<Duration>,
    /// After this time without anything to do it begins anew.
    pub idle_max: Option<Duration>,
}

/// What a look does to a pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Half as fast when requests are late, and faster by so many bytes a second when they are in time.
    Step(u64),
    /// Half as fast when requests are late, and faster by a quarter when they are in time.
    Quarter,
    /// As many times slower than the greatest rate as requests are late.
    Whole,
}

impl PaceLimits {
    /// Bytes are paid for when they are reserved, whole, and nothing is made up for.
    fn between(least: u64, most: u64, first: u64, growth: Growth) -> PaceLimits {
        let (doublings, burst) = (0, Duration::ZERO);
        PaceLimits { least, most, first, growth, doublings, burst, rest_max: None, idle_max: None }
    }

    /// Of artifacts that a node fetches, merges or gives, of all stores together: at most `ceiling` bytes a second, but
    /// no less than [`FETCH_CEILING_MIN`].
    pub fn for_artifacts(ceiling: u64) -> PaceLimits {
        let most = ceiling.max(FETCH_CEILING_MIN);
        let share = most / ARTIFACT_SHARE;
        PaceLimits::between(share, most, most / ARTIFACT_FIRST_SHARE, Growth::Step(share))
    }

    /// Of hints on their way to one target: between these rates, in bytes a second, and faster by `step` with each quick
    /// answer. It begins at the least, so that many holders do not overrun a target together that came back. A rate of 0
    /// counts as 1: delivery ends.
    pub fn for_hints(least: u64, most: u64, step: u64) -> PaceLimits {
        let least = least.max(1);
        let limits = PaceLimits::between(least, most.max(1), least, Growth::Step(step));
        PaceLimits { burst: HINT_BURST, ..limits }
    }

    /// Of comparing replicas, which has a rate and divides it: at most so many bytes a second; 0 is as fast as it goes.
    pub fn for_comparing(bytes_per_second: u64) -> PaceLimits {
        let most = if bytes_per_second == 0 { UNLIMITED } else { bytes_per_second };
        let limits = PaceLimits::between((most / SLOWNESS_MAX).max(1), most, most, Growth::Whole);
        PaceLimits { rest_max: Some(REST_MAX), ..limits }
    }

    /// Of bringing whole partitions in, which finds the rate that requests do not feel: never below `least` bytes a
    /// second, if the nodes can do that, nor above `most`. `least` doubles every 15 seconds, up to eight times as much,
    /// as long as there is something to do. So a small move on a full machine is not noticed, and a large one comes to
    /// an end.
    ///
    /// # Panics
    /// When `least` is above `most`.
    pub fn for_refilling(least: u64, most: u64) -> PaceLimits {
        PaceLimits {
            doublings: DOUBLINGS,
            burst: ARREARS_MAX,
            rest_max: Some(REST_MAX),
            idle_max: Some(IDLE_MAX),
            ..PaceLimits::between(least, most, FINDING_FIRST.clamp(least, most), Growth::Quarter)
        }
    }

    /// The same for what is given to a node that refills at a pace of its own: never below the rate to which the least of
    /// that one grows. A node that gives to several, in turn, has breaks, and would begin at its least again and again.
    pub fn for_giving(least: u64, most: u64) -> PaceLimits {
        let grown = least.saturating_mul(1 << DOUBLINGS).min(most);
        PaceLimits { doublings: 0, ..PaceLimits::for_refilling(grown, most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_less_than_half_a_processor_the_least_rate_is_a_part_of_it() {
        let least = [64.0, 0.5, 0.25, 0.1, 0.0].map(|processors| least_on(processors, 2 << 20));
        assert_eq!(least, [2 << 20, 2 << 20, 1 << 20, (2 << 20) / 5, 1]);
        assert_eq!(least_on(1.0, 2 << 20), 2 << 20, "where nobody knows");
    }
}
