//! How fast a node fetches artifacts, or gives them: one budget over all stores, sources and peers.
//!
//! Whoever wants bytes reserves them and is told from when on it may move them. So any number of fetches share the
//! budget, and none is ever refused.
//!
//! ```text
//!   now ────────┬─────────┬─────────┬──────────▶
//!               └ block 1 └ block 2 └ next: from here on
//! ```
//!
//! The rate keeps the pace that handoff keeps: it halves each time that somebody looks and requests are late, and grows by
//! a small step each time that they are not. It stays between a share of the ceiling and the ceiling: fetching takes what
//! requests leave, and comes to an end.

use std::time::Duration;

use model::Moment;

/// Bytes a second that a node fetches at most unless its operator says otherwise: about half of what one core copies and
/// verifies, and of a common disk.
pub const FETCH_CEILING_DEFAULT: u64 = 128 << 20;
/// The lowest ceiling: one block a second.
pub const FETCH_CEILING_MIN: u64 = 1 << 20;
/// The lowest rate is this part of the ceiling.
const FLOOR_SHARE: u64 = 16;
/// A step is this part of the ceiling.
const STEP_SHARE: u64 = 16;
/// A budget begins at this part of the ceiling.
const BEGIN_SHARE: u64 = 4;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A budget of bytes.
#[derive(Clone, Debug)]
pub struct FetchPace {
    /// At least [`FETCH_CEILING_MIN`].
    ceiling: u64,
    /// Bytes a second; from a share of the ceiling up to the ceiling.
    rate: u64,
    /// Everything before this moment is spoken for.
    next: Moment,
}

impl FetchPace {
    /// At most `ceiling` bytes a second, but no less than [`FETCH_CEILING_MIN`].
    pub fn new(ceiling: u64) -> FetchPace {
        let ceiling = ceiling.max(FETCH_CEILING_MIN);
        FetchPace { ceiling, rate: ceiling / BEGIN_SHARE, next: Moment::default() }
    }

    /// Bytes a second now.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Bytes a second at most.
    pub fn ceiling(&self) -> u64 {
        self.ceiling
    }

    /// How long bytes that are reserved now would have to wait.
    pub fn backlog(&self, now: Moment) -> Duration {
        self.next.since(now)
    }

    /// Reserves bytes; from when on they may be moved.
    pub fn reserve(&mut self, now: Moment, bytes: u64) -> Moment {
        let begin = self.next.max(now);
        let nanos = u128::from(bytes) * NANOS_PER_SECOND / u128::from(self.rate);
        self.next = begin.after(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        begin
    }

    /// Somebody has looked whether requests are late: this many times as long as is ordinary, 1 is in time (see
    /// [`crate::lateness::Lateness::times`]).
    pub fn observe(&mut self, times: u32) {
        let floor = self.ceiling / FLOOR_SHARE;
        self.rate = match times > 1 {
            true => (self.rate / 2).max(floor),
            false => self.rate.saturating_add(self.ceiling / STEP_SHARE).min(self.ceiling),
        };
        assert!((floor..=self.ceiling).contains(&self.rate), "the rate is within its limits");
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
        let mut pace = FetchPace::new(64 * MIB);
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
        let mut pace = FetchPace::new(160 * MIB);
        let mut after = |times| {
            pace.observe(times);
            pace.rate() / MIB
        };
        assert_eq!([after(2), after(16), after(3), after(2), after(9)], [20, 10, 10, 10, 10]);
        assert_eq!([after(1), after(1), after(1), after(2)], [20, 30, 40, 20]);
        assert_eq!((0..20).map(|_| after(1)).max(), Some(160), "never above the ceiling");
        let mut least = FetchPace::new(0);
        (0..9).for_each(|_| least.observe(5));
        assert_eq!((least.ceiling(), least.rate()), (MIB, MIB / 16));
        assert_eq!(least.reserve(at(0), MIB), at(0));
        assert_eq!(least.backlog(at(0)), Duration::from_secs(16), "slow, and it comes to an end");
    }
}
