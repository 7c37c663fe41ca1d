//! Choices with a closed form: uniform, hotspot, exponential, and a pick among weighted answers.

use super::rng::Rng;

/// Every number of `[least, greatest]` alike.
#[derive(Clone, Debug)]
pub struct Uniform {
    least: u64,
    count: u64,
}

impl Uniform {
    /// Numbers in `[least, greatest]`.
    pub fn new(least: u64, greatest: u64) -> Self {
        assert!(greatest >= least, "a range with no numbers");
        Uniform { least, count: greatest - least + 1 }
    }

    /// The next number.
    #[inline]
    pub fn next(&self, rng: &mut Rng) -> u64 {
        self.least + rng.below(self.count)
    }
}

/// A share of the operations goes to a small hot set at the start of the range, uniformly; the rest elsewhere.
#[derive(Clone, Debug)]
pub struct Hotspot {
    least: u64,
    hot: u64,
    cold: u64,
    hot_operations: f64,
}

impl Hotspot {
    /// Numbers in `[least, greatest]`: the first `hot_data` (0 to 1) of them get `hot_operations` (0 to 1) of
    /// the draws. A fraction outside its range counts as 0, as in the original.
    pub fn new(least: u64, greatest: u64, hot_data: f64, hot_operations: f64) -> Self {
        assert!(greatest >= least, "a range with no numbers");
        let fraction = |given: f64| if (0.0..=1.0).contains(&given) { given } else { 0.0 };
        let count = greatest - least + 1;
        let hot = (count as f64 * fraction(hot_data)) as u64;
        Hotspot { least, hot, cold: count - hot, hot_operations: fraction(hot_operations) }
    }

    /// The next number. An empty hot or cold set leaves its draws to the other one.
    #[inline]
    pub fn next(&self, rng: &mut Rng) -> u64 {
        let hot = rng.unit() < self.hot_operations;
        if (hot && self.hot > 0) || self.cold == 0 {
            self.least + rng.below(self.hot)
        } else {
            self.least + self.hot + rng.below(self.cold)
        }
    }
}

/// Exponentially distributed lengths, from zero up.
#[derive(Clone, Debug)]
pub struct Exponential {
    gamma: f64,
}

impl Exponential {
    /// Lengths with the given mean.
    pub fn with_mean(mean: f64) -> Self {
        assert!(mean > 0.0, "a mean that is not positive");
        Exponential { gamma: 1.0 / mean }
    }

    /// Lengths of which `percentile` percent (0 to 100, exclusive) lie below `range`.
    pub fn with_percentile(percentile: f64, range: f64) -> Self {
        assert!(percentile > 0.0 && percentile < 100.0 && range > 0.0, "an impossible percentile");
        Exponential { gamma: -(1.0 - percentile / 100.0).ln() / range }
    }

    /// The next length; infinite once in 2^53 draws.
    #[inline]
    pub fn next(&self, rng: &mut Rng) -> f64 {
        -rng.unit().ln() / self.gamma
    }
}

/// One of a few answers, each with a weight.
#[derive(Clone, Debug)]
pub struct Discrete<T> {
    /// Answers with the upper end of their share of `[0, 1)`.
    shares: Vec<(f64, T)>,
}

impl<T: Copy> Discrete<T> {
    /// Answers with their weights; those without a positive weight never come up. `None` when none is left.
    pub fn new(weights: &[(f64, T)]) -> Option<Self> {
        let positive = weights.iter().filter(|(weight, _)| *weight > 0.0);
        let sum: f64 = positive.clone().map(|(weight, _)| weight).sum();
        let mut end = 0.0;
        let shares: Vec<(f64, T)> = positive
            .map(|(weight, answer)| {
                end += weight / sum;
                (end, *answer)
            })
            .collect();
        (!shares.is_empty()).then_some(Discrete { shares })
    }

    /// The next answer.
    #[inline]
    pub fn next(&self, rng: &mut Rng) -> T {
        let draw = rng.unit();
        // Rounding may leave the last end a hair below 1: whatever is left belongs to the last answer.
        let found = self.shares.iter().find(|(end, _)| draw < *end).or(self.shares.last());
        found.expect("a discrete choice has an answer").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generators::statistics::chi_square;

    #[test]
    fn uniform_gives_every_number_its_share_and_both_ends() {
        let uniform = Uniform::new(5, 24);
        let mut rng = Rng::from_seed(1);
        let mut seen = vec![0u64; 20];
        for _ in 0..100_000 {
            seen[(uniform.next(&mut rng) - 5) as usize] += 1;
        }
        // 19 degrees of freedom: the 0.1 % limit is 43.8.
        let distance = chi_square(&seen, &[0.05; 20]);
        assert!(distance < 43.8, "{distance}");
    }

    #[test]
    fn hotspot_splits_operations_between_hot_and_cold() {
        let hotspot = Hotspot::new(100, 199, 0.2, 0.8);
        let mut rng = Rng::from_seed(2);
        let mut seen = vec![0u64; 100];
        for _ in 0..200_000 {
            seen[(hotspot.next(&mut rng) - 100) as usize] += 1;
        }
        let expected: Vec<f64> =
            (0..100).map(|item| if item < 20 { 0.8 / 20.0 } else { 0.2 / 80.0 }).collect();
        let distance = chi_square(&seen, &expected);
        assert!(distance < 148.0, "{distance}");
    }

    #[test]
    fn hotspot_with_an_empty_side_uses_the_other() {
        let mut rng = Rng::from_seed(3);
        let no_hot = Hotspot::new(0, 3, 0.1, 1.0);
        let no_cold = Hotspot::new(0, 3, 1.0, 0.0);
        let out_of_range = Hotspot::new(0, 3, 7.0, -1.0);
        for _ in 0..100 {
            assert!(no_hot.next(&mut rng) < 4);
            assert!(no_cold.next(&mut rng) < 4);
            assert!(out_of_range.next(&mut rng) < 4);
        }
    }

    #[test]
    fn exponential_meets_its_percentile_and_its_mean() {
        let mut rng = Rng::from_seed(4);
        let by_percentile = Exponential::with_percentile(95.0, 1_000.0);
        let below = (0..100_000).filter(|_| by_percentile.next(&mut rng) < 1_000.0).count();
        assert!((below as f64 / 100_000.0 - 0.95).abs() < 0.004, "{below}");
        let by_mean = Exponential::with_mean(30.0);
        let mean = (0..100_000).map(|_| by_mean.next(&mut rng)).sum::<f64>() / 100_000.0;
        assert!((mean - 30.0).abs() < 0.5, "{mean}");
    }

    #[test]
    fn discrete_follows_its_weights_and_skips_the_weightless() {
        let choice = Discrete::new(&[(3.0, 'a'), (0.0, 'b'), (1.0, 'c')]).unwrap();
        let mut rng = Rng::from_seed(5);
        let mut seen = [0u64; 2];
        for _ in 0..100_000 {
            match choice.next(&mut rng) {
                'a' => seen[0] += 1,
                'c' => seen[1] += 1,
                other => panic!("{other} has no weight"),
            }
        }
        // One degree of freedom: the 0.1 % limit is 10.8.
        assert!(chi_square(&seen, &[0.75, 0.25]) < 10.8);
        assert!(Discrete::<char>::new(&[(0.0, 'a')]).is_none());
    }

    #[test]
    fn pinned_draws_do_not_change() {
        let mut rng = Rng::from_seed(42);
        let uniform = Uniform::new(0, 999);
        let hotspot = Hotspot::new(0, 999, 0.2, 0.8);
        let lengths = Exponential::with_mean(100.0);
        let drawn = format!(
            "{:?} {:?} {:?}",
            (0..5).map(|_| uniform.next(&mut rng)).collect::<Vec<_>>(),
            (0..5).map(|_| hotspot.next(&mut rng)).collect::<Vec<_>>(),
            (0..5).map(|_| lengths.next(&mut rng) as u64).collect::<Vec<_>>(),
        );
        expect_test::expect!["[814, 318, 983, 701, 793] [25, 41, 647, 744, 80] [60, 154, 298, 55, 76]"]
            .assert_eq(&drawn);
    }
}
