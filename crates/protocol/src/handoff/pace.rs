//! How fast one target is sent its hints: a pace, and a pause that doubles.

use std::time::Duration;

use model::Moment;

use super::interface::HandoffOptions;
use crate::pace::{Pace, PaceLimits};

/// Most doublings of the pause: its limit comes first in any case.
const DOUBLINGS_MAX: u32 = 16;

/// The pace of one target.
#[derive(Clone, Debug)]
pub(super) struct TargetPace {
    pace: Pace,
    /// Batches sent before this have been answered for by the last halving.
    halved_at: Moment,
    /// Failures of batches sent before this have been answered for by the last pause.
    paused_at: Moment,
    /// Whether requests were late when that was looked at last.
    pressed: bool,
    /// Failures in a row.
    failures: u32,
    /// Nothing is sent before this.
    resume_at: Moment,
    /// State of the jitter's dice.
    dice: u64,
}

impl TargetPace {
    pub(super) fn new(options: &HandoffOptions, dice: u64, now: Moment) -> Self {
        let HandoffOptions { rate_min, rate_max, rate_step, .. } = *options;
        let mut pace = Pace::new(PaceLimits::for_hints(rate_min, rate_max, rate_step));
        pace.restart(now);
        TargetPace { pace, halved_at: now, paused_at: now, pressed: false, failures: 0, resume_at: now, dice }
    }

    pub(super) fn rate(&self) -> u64 {
        self.pace.rate()
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// The first moment at which a batch may be sent.
    pub(super) fn ready_at(&self) -> Moment {
        self.pace.free_at()
    }

    /// The target is sent nothing before this.
    pub(super) fn resume_at(&self) -> Moment {
        self.resume_at
    }

    /// What holds between two steps.
    pub(super) fn check(&self, options: &HandoffOptions) {
        assert!(
            (options.rate_min.max(1)..=options.rate_max.max(1)).contains(&self.rate()),
            "the rate is within its limits"
        );
        assert!(self.failures == 0 || self.resume_at >= self.paused_at, "a target that failed is left alone");
    }

    /// A batch of so many bytes is sent.
    pub(super) fn take(&mut self, now: Moment, bytes: u64) {
        assert!(self.ready_at() <= now, "no more is sent than the rate allows");
        self.pace.reserve(now, bytes);
    }

    /// A quick answer: a bit faster unless requests are late, and past failures are forgotten.
    pub(super) fn quicken(&mut self, now: Moment) {
        self.failures = 0;
        if !self.pressed {
            self.pace.grow(now);
        }
    }

    /// A late answer to a batch sent at `sent_at`: half as fast. Batches that were under way together halve once.
    pub(super) fn halve(&mut self, sent_at: Moment, now: Moment) {
        if sent_at >= self.halved_at {
            self.halved_at = now;
            self.pace.halve(now);
        }
    }

    /// Somebody has looked whether requests are late at either end: half as fast each time that they are.
    pub(super) fn press(&mut self, now: Moment, pressed: bool) {
        self.pressed = pressed;
        if pressed {
            self.pace.halve(now);
        }
    }

    /// A failure of a batch sent at `sent_at`: leaves the target alone for a pause that doubles, half of it drawn.
    /// Batches that were under way together fail together, and make one pause.
    pub(super) fn pause(&mut self, options: &HandoffOptions, sent_at: Moment, now: Moment) {
        if sent_at < self.paused_at {
            return;
        }
        self.paused_at = now;
        let doubled = options.pause_min.saturating_mul(1 << self.failures.min(DOUBLINGS_MAX));
        let whole = doubled.min(options.pause_max);
        self.failures = self.failures.saturating_add(1);
        let half = u64::try_from(whole.as_nanos() / 2).unwrap_or(u64::MAX);
        let drawn = (u128::from(half) * u128::from(self.roll() >> 32)) >> 32;
        let pause = Duration::from_nanos(half.saturating_add(drawn as u64));
        self.resume_at = self.resume_at.max(now.after(pause));
    }

    /// The target came back: begins slowly, and not together with all other holders.
    pub(super) fn begin_again(&mut self, options: &HandoffOptions, now: Moment) {
        self.pace.restart(now);
        let rest = u64::try_from(options.rest.as_nanos()).unwrap_or(u64::MAX);
        let drawn = (u128::from(rest) * u128::from(self.roll() >> 32)) >> 32;
        self.resume_at = self.resume_at.max(now.after(Duration::from_nanos(drawn as u64)));
    }

    /// Splitmix64: enough for jitter, and the same on every machine.
    fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.dice;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment { nanos: ms * 1_000_000 }
    }

    fn options() -> HandoffOptions {
        HandoffOptions { rate_min: 1000, rate_max: 10_000, rate_step: 1000, ..HandoffOptions::default() }
    }

    #[test]
    fn a_batch_larger_than_the_burst_is_paid_off_afterwards() {
        let mut pace = TargetPace::new(&options(), 1, at(0));
        assert_eq!(pace.ready_at(), at(0));
        pace.take(at(0), 2001);
        assert_eq!(pace.ready_at(), at(2001));
        pace.take(at(9000), 100);
        assert_eq!(pace.ready_at(), at(9000), "it holds a tenth of a second");
        pace.take(at(9000), 1);
        assert_eq!(pace.ready_at(), at(9001), "and no more");
    }

    #[test]
    fn the_rate_grows_by_steps_and_falls_by_halves_within_its_limits() {
        let mut pace = TargetPace::new(&options(), 1, at(0));
        (0..20).for_each(|_| pace.quicken(at(0)));
        assert_eq!(pace.rate(), 10_000);
        pace.halve(at(5), at(10));
        pace.halve(at(6), at(11));
        assert_eq!(pace.rate(), 5_000, "two batches of one flight halve once");
        for ms in 0..20 {
            pace.halve(at(100 + ms), at(100 + ms));
        }
        assert_eq!(pace.rate(), 1000);
    }

    #[test]
    fn late_requests_take_the_pace_down_to_its_lowest_and_hold_it_there_until_they_are_in_time() {
        let mut pace = TargetPace::new(&options(), 1, at(0));
        (0..20).for_each(|_| pace.quicken(at(0)));
        pace.press(at(0), true);
        pace.quicken(at(0));
        assert_eq!(pace.rate(), 5_000);
        (0..20).for_each(|_| pace.press(at(0), true));
        pace.quicken(at(0));
        assert_eq!(pace.rate(), 1000, "never less, so delivery ends");
        pace.press(at(0), false);
        assert_eq!(pace.rate(), 1000);
        pace.quicken(at(0));
        assert_eq!(pace.rate(), 2000);
    }

    #[test]
    fn pauses_double_up_to_their_limit_and_end_with_a_quick_answer() {
        let (mut pace, options) = (TargetPace::new(&options(), 7, at(0)), options());
        let mut now = at(0);
        for doubled in [200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000] {
            pace.pause(&options, now, now);
            let pause = pace.resume_at().since(now).as_millis();
            assert!((doubled / 2..=doubled).contains(&pause), "{pause} of {doubled}");
            now = pace.resume_at();
        }
        pace.quicken(at(0));
        pace.pause(&options, now, now);
        assert!(pace.resume_at().since(now) <= options.pause_min);
    }

    #[test]
    fn holders_with_other_dice_pause_differently() {
        let pause = |dice| {
            let mut pace = TargetPace::new(&options(), dice, at(0));
            pace.pause(&options(), at(0), at(0));
            pace.resume_at()
        };
        assert_ne!(pause(1), pause(2));
        assert_eq!(pause(1), pause(1));
    }

    #[test]
    fn a_target_that_comes_back_is_sent_little_however_fast_it_was() {
        let (mut pace, options) = (TargetPace::new(&options(), 7, at(0)), options());
        (0..20).for_each(|_| pace.quicken(at(0)));
        pace.begin_again(&options, at(500));
        assert_eq!(pace.rate(), 1000);
        assert!(at(500) <= pace.resume_at() && pace.resume_at() < at(500).after(options.rest));
    }

    /// The first numbers of the published generator.
    #[test]
    fn the_dice_are_the_same_on_every_machine() {
        let mut pace = TargetPace::new(&options(), 1_234_567, at(0));
        let rolled: Vec<u64> = (0..3).map(|_| pace.roll()).collect();
        assert_eq!(rolled, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
