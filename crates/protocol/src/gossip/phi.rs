//! How surprising a silence is: phi accrual over the last intervals between signs of life.
//!
//! Phi is the negative decimal logarithm of the probability that a node which beats as it did lately would be silent
//! for that long: 1 is one in ten, 8 is one in a hundred million. The intervals are taken to be normal, with a floor under
//! their spread, because a rhythm of a few quiet minutes says nothing about a busy second.
//!
//! Source: Hayashibara, Défago, Yared, Katayama, "The φ accrual failure detector" (2004). The tail of the normal
//! distribution is the logistic approximation of Bowling et al. (2009), which is off by less than 2 × 10⁻⁴ where the
//! tail itself is not negligible; far out only the order of magnitude matters.

use std::time::Duration;

/// Intervals that are remembered: some ten seconds' worth.
const INTERVALS_MAX: usize = 64;
/// Fewer than these say nothing; until then [`MEAN_UNKNOWN`] holds.
const INTERVALS_MIN: usize = 4;
/// Longer intervals count as this long: a pause that was survived must not blunt the detector for long.
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// What is expected of a node that was hardly heard yet: its first row comes in a few rounds, the start of a large
/// cluster takes longer than the beat of a running one.
const MEAN_UNKNOWN: Duration = Duration::from_secs(1);
/// Smallest spread, in microseconds: what a loaded machine's scheduler and one lost exchange do to a beat.
const SPREAD_MIN_US: f64 = 150_000.0;
/// Smallest spread as a share of the mean.
const SPREAD_MIN_SHARE: f64 = 0.25;
/// Where phi stops: beyond it the arithmetic underflows and nobody cares.
pub const PHI_MAX: f64 = 100.0;

/// The last intervals between one node's signs of life.
#[derive(Clone, Debug, Default)]
pub struct Window {
    micros: Vec<u32>,
    /// Where the next interval goes once the window is full.
    next: usize,
    sum: u64,
    squares: u64,
}

impl Window {
    /// Takes an interval in; the oldest goes.
    pub fn record(&mut self, interval: Duration) {
        let micros = u32::try_from(interval.min(INTERVAL_MAX).as_micros()).unwrap_or(u32::MAX);
        if self.micros.len() < INTERVALS_MAX {
            self.micros.push(micros);
        } else {
            let old = u64::from(std::mem::replace(&mut self.micros[self.next], micros));
            self.next = (self.next + 1) % INTERVALS_MAX;
            self.sum -= old;
            self.squares -= old * old;
        }
        self.sum += u64::from(micros);
        self.squares += u64::from(micros) * u64::from(micros);
    }

    /// What holds between two intervals.
    pub(super) fn check(&self) {
        assert!(self.micros.len() <= INTERVALS_MAX, "the window forgets");
        assert!(self.next == 0 || self.micros.len() == INTERVALS_MAX, "only a full window goes round");
        let sum: u64 = self.micros.iter().map(|&micros| u64::from(micros)).sum();
        assert_eq!(self.sum, sum, "the sum is that of the intervals in the window");
    }

    /// How surprising it is to have heard nothing for that long.
    pub fn phi(&self, silence: Duration) -> f64 {
        let (mean, spread) = self.expected();
        let y = (silence.as_micros() as f64 - mean) / spread;
        if y <= 0.0 {
            // At or before the expected moment: less surprising than one in two.
            return 0.0;
        }
        // ln of e / (1 + e) without underflow for the far tail.
        let exponent = y * (1.5976 + 0.070_566 * y * y);
        let ln_tail = -exponent - (-exponent).exp().ln_1p();
        (-ln_tail / std::f64::consts::LN_10).min(PHI_MAX)
    }

    /// Mean and spread of the expected interval, in microseconds.
    fn expected(&self) -> (f64, f64) {
        if self.micros.len() < INTERVALS_MIN {
            let mean = MEAN_UNKNOWN.as_micros() as f64;
            return (mean, mean / 2.0);
        }
        let count = self.micros.len() as f64;
        let mean = self.sum as f64 / count;
        let variance = (self.squares as f64 / count - mean * mean).max(0.0);
        (mean, variance.sqrt().max(SPREAD_MIN_US).max(mean * SPREAD_MIN_SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn beating(interval: Duration, count: usize) -> Window {
        let mut window = Window::default();
        (0..count).for_each(|_| window.record(interval));
        window
    }

    /// Silence at which phi reaches 8.
    fn suspicion(window: &Window) -> Duration {
        (0..20_000).map(ms).find(|&silence| window.phi(silence) >= 8.0).unwrap()
    }

    #[test]
    fn phi_grows_with_silence_and_never_leaves_its_range() {
        let window = beating(ms(200), 100);
        let phis: Vec<f64> = (0..100_000).step_by(50).map(|silence| window.phi(ms(silence))).collect();
        assert!(phis.is_sorted() && phis[0] == 0.0);
        assert_eq!(window.phi(Duration::from_secs(3600)), PHI_MAX);
        assert_eq!(window.phi(Duration::MAX), PHI_MAX);
    }

    #[test]
    fn a_steady_beat_is_missed_within_a_second_and_a_half() {
        let silence = suspicion(&beating(ms(200), 64));
        assert!((ms(900)..ms(1_300)).contains(&silence), "{silence:?}");
    }

    #[test]
    fn a_slow_beat_gets_more_patience_and_one_survived_pause_costs_little() {
        let slow = suspicion(&beating(ms(900), 64));
        assert!(slow > ms(1_700), "{slow:?}");
        let mut paused = beating(ms(200), 63);
        paused.record(Duration::from_secs(5));
        assert!(suspicion(&paused) < ms(1_500), "{:?}", suspicion(&paused));
    }

    #[test]
    fn the_window_forgets_what_is_old_exactly() {
        let mut window = beating(ms(900), 64);
        (0..64).for_each(|_| window.record(ms(100)));
        assert_eq!(window.expected(), beating(ms(100), 64).expected());
    }

    #[test]
    fn a_node_that_was_never_heard_gets_seconds() {
        let silence = suspicion(&Window::default());
        assert!((ms(3_000)..ms(5_000)).contains(&silence), "{silence:?}");
    }

    /// Tails of the normal distribution beyond one, two and three times the spread.
    #[test]
    fn phi_is_the_order_of_magnitude_of_the_normal_tail() {
        let near = |phi: f64, tail: f64| (phi + tail.log10()).abs() < 0.05;
        let steady = beating(ms(200), 64);
        for (silence, tail) in [(350, 0.158_655), (500, 0.022_750), (650, 0.001_350)] {
            let phi = steady.phi(ms(silence));
            assert!(near(phi, tail), "{phi} after {silence} ms");
        }
        let mut uneven = Window::default();
        (0..32).for_each(|_| [200, 1_000].into_iter().for_each(|interval| uneven.record(ms(interval))));
        let (mean, spread) = uneven.expected();
        assert!((mean - 600_000.0).abs() < 1.0 && (spread - 400_000.0).abs() < 1.0, "{mean} {spread}");
    }

    #[test]
    fn four_intervals_say_something_and_fewer_do_not() {
        assert_eq!(beating(ms(200), INTERVALS_MIN - 1).expected(), Window::default().expected());
        assert_eq!(beating(ms(200), INTERVALS_MIN).expected(), beating(ms(200), 64).expected());
    }
}
