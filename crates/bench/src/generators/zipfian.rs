//! Skewed choices: plain, scrambled and latest-first Zipfian.
//!
//! Item `k` (from zero) of `n` has probability `1 / ((k+1)^theta * zeta(n, theta))`.
//! The draw is the approximation of Gray et al., "Quickly generating billion-record synthetic databases"
//! (SIGMOD 1994): exact for the two most popular items, a power law through the rest.
//!
//! Where YCSB's arithmetic is peculiar, so is this one, on purpose, because figures are compared:
//! the scrambled generator always draws from ten billion and one items, whatever the number of records,
//! and `eta` keeps using the first item count after the item count grew.

use super::counter::AcknowledgedCounter;
use super::hash::fnv_hash;
use super::rng::Rng;

/// The skew of every YCSB workload.
pub const THETA: f64 = 0.99;

/// How many items the scrambled generator draws from (and one more: its bounds are inclusive).
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// `zeta(SCRAMBLED_ITEMS, THETA)`, which would take minutes to sum up.
pub const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// The generalised harmonic number of `to`, continued from its value `sum` at `from`.
pub fn zeta(from: u64, to: u64, theta: f64, sum: f64) -> f64 {
    (from..to).fold(sum, |sum, item| sum + 1.0 / ((item + 1) as f64).powf(theta))
}

/// Zipfian numbers: the least is the most popular.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    base: u64,
    theta: f64,
    alpha: f64,
    zeta_two: f64,
    zeta_items: f64,
    /// The item count that `zeta_items` belongs to; it never falls.
    zeta_count: u64,
    eta: f64,
    second_limit: f64,
}

impl Zipfian {
    /// Numbers in `[least, greatest]`. Takes time linear in their count: build once and clone.
    pub fn new(least: u64, greatest: u64, theta: f64) -> Self {
        let items = greatest - least + 1;
        Zipfian::with_zeta(least, greatest, theta, zeta(0, items, theta, 0.0))
    }

    /// As [`Zipfian::new`] with the zeta of the item count already known.
    pub fn with_zeta(least: u64, greatest: u64, theta: f64, zeta_items: f64) -> Self {
        assert!(greatest >= least, "a range with no items");
        assert!(theta > 0.0 && theta < 1.0, "theta outside (0, 1)");
        let items = greatest - least + 1;
        let mut zipfian = Zipfian {
            items,
            base: least,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta_two: zeta(0, 2, theta, 0.0),
            zeta_items,
            zeta_count: items,
            eta: 0.0,
            second_limit: 1.0 + 0.5f64.powf(theta),
        };
        zipfian.refresh_eta();
        zipfian
    }

    fn refresh_eta(&mut self) {
        let ratio = (2.0 / self.items as f64).powf(1.0 - self.theta);
        self.eta = (1.0 - ratio) / (1.0 - self.zeta_two / self.zeta_items);
    }

    /// The next number among the items given at construction.
    #[inline]
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        self.next_of(self.items, rng)
    }

    /// The next number when there are `item_count` items by now.
    ///
    /// Growth extends zeta by the new terms only; a smaller count leaves it alone.
    #[inline]
    pub fn next_of(&mut self, item_count: u64, rng: &mut Rng) -> u64 {
        if item_count > self.zeta_count {
            self.zeta_items = zeta(self.zeta_count, item_count, self.theta, self.zeta_items);
            self.zeta_count = item_count;
            self.refresh_eta();
        }
        self.place(rng.unit(), item_count)
    }

    /// The number that belongs to the uniform draw `unit`.
    fn place(&self, unit: f64, item_count: u64) -> u64 {
        let scaled = unit * self.zeta_items;
        if scaled < 1.0 {
            return self.base;
        }
        if scaled < self.second_limit {
            return self.base + 1;
        }
        let fraction = (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        self.base + (item_count as f64 * fraction) as u64
    }
}

/// Zipfian popularity, scattered over the whole range by a hash.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    ranks: Zipfian,
    least: u64,
    count: u64,
}

impl ScrambledZipfian {
    /// Numbers in `[least, greatest]`.
    pub fn new(least: u64, greatest: u64) -> Self {
        assert!(greatest >= least, "a range with no items");
        let ranks = Zipfian::with_zeta(0, SCRAMBLED_ITEMS, THETA, SCRAMBLED_ZETA);
        ScrambledZipfian { ranks, least, count: greatest - least + 1 }
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        self.least + fnv_hash(self.ranks.next(rng)) % self.count
    }
}

/// The newest acknowledged record is the most popular, older ones follow a Zipfian.
#[derive(Clone, Debug)]
pub struct SkewedLatest {
    ages: Zipfian,
}

impl SkewedLatest {
    /// Choices among the records that `inserted` has acknowledged so far.
    ///
    /// # Panics
    /// With fewer than two records there is no order to skew.
    pub fn new(inserted: &AcknowledgedCounter) -> Self {
        let newest =
            inserted.newest().filter(|newest| *newest > 0).expect("latest needs two records or more");
        SkewedLatest { ages: Zipfian::new(0, newest - 1, THETA) }
    }

    /// The next record number. Record 0 never comes up: ages run up to the newest, exclusive.
    #[inline]
    pub fn next(&mut self, inserted: &AcknowledgedCounter, rng: &mut Rng) -> u64 {
        let newest = inserted.newest().expect("records were there at construction and never go");
        newest - self.ages.next_of(newest, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generators::statistics::chi_square;

    /// The probabilities that the approximation itself implies, by inverting it at every item boundary.
    fn implied(items: u64, theta: f64) -> Vec<f64> {
        let zeta_items: f64 = (1..=items).map(|rank| (rank as f64).powf(-theta)).sum();
        let zeta_two = 1.0 + 0.5f64.powf(theta);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta_two / zeta_items);
        let starts_at =
            |item: u64| -> f64 { ((item as f64 / items as f64).powf(1.0 - theta) - 1.0 + eta) / eta };
        let (first, second) = (1.0 / zeta_items, zeta_two / zeta_items);
        let mut bounds = vec![0.0, first, second];
        bounds.extend((3..=items).map(|item| starts_at(item).max(second)));
        bounds.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn zeta_grows_by_its_terms_and_matches_known_values() {
        assert!((zeta(0, 2, THETA, 0.0) - (1.0 + 2f64.powf(-THETA))).abs() < 1e-15);
        let whole = zeta(0, 10_000, THETA, 0.0);
        let continued = zeta(4_000, 10_000, THETA, zeta(0, 4_000, THETA, 0.0));
        assert_eq!(whole, continued);
        // Euler-Maclaurin: zeta(n) = n^(1-t)/(1-t) + Z(t) + n^-t/2 + ..., with Z(0.99) taken from our own sum;
        // continued to ten billion it must meet the constant that YCSB ships.
        let tail = |n: f64| n.powf(1.0 - THETA) / (1.0 - THETA) + 0.5 * n.powf(-THETA);
        let constant = zeta(0, 1_000_000, THETA, 0.0) - tail(1e6);
        let at_ten_billion = tail(SCRAMBLED_ITEMS as f64) + constant;
        assert!((at_ten_billion - SCRAMBLED_ZETA).abs() < 1e-6, "{at_ten_billion}");
    }

    #[test]
    fn draws_follow_the_closed_form() {
        let items = 100;
        let expected = implied(items, THETA);
        assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let mut zipfian = Zipfian::new(0, items - 1, THETA);
        let mut rng = Rng::from_seed(1);
        let mut seen = vec![0u64; items as usize];
        for _ in 0..200_000 {
            seen[zipfian.next(&mut rng) as usize] += 1;
        }
        // 99 degrees of freedom: the 0.1 % limit is 148.
        let distance = chi_square(&seen, &expected);
        assert!(distance < 148.0, "{distance}");
    }

    #[test]
    fn popular_items_have_the_true_zipfian_share() {
        let items = 1_000;
        let zeta_items = zeta(0, items, THETA, 0.0);
        let mut zipfian = Zipfian::new(0, items - 1, THETA);
        let mut rng = Rng::from_seed(2);
        let (mut first, mut second) = (0, 0);
        let draws = 400_000;
        for _ in 0..draws {
            match zipfian.next(&mut rng) {
                0 => first += 1,
                1 => second += 1,
                _ => {}
            }
        }
        let share = |count: i32| f64::from(count) / f64::from(draws);
        assert!((share(first) - 1.0 / zeta_items).abs() < 0.003);
        assert!((share(second) - 2f64.powf(-THETA) / zeta_items).abs() < 0.003);
    }

    #[test]
    fn growth_is_incremental_and_reaches_the_new_items() {
        let mut grown = Zipfian::new(0, 999, THETA);
        let mut rng = Rng::from_seed(3);
        let past_the_old_end = (0..20_000).filter(|_| grown.next_of(5_000, &mut rng) >= 1_000).count();
        assert!(past_the_old_end > 1_000, "{past_the_old_end}");
        assert_eq!(grown.zeta_items, zeta(0, 5_000, THETA, 0.0));
        grown.next_of(10, &mut rng);
        assert_eq!(grown.zeta_count, 5_000, "a smaller count must not recompute");
    }

    #[test]
    fn scrambling_scatters_the_ranks_of_ten_billion_items() {
        let mut scrambled = ScrambledZipfian::new(0, 999);
        let mut rng = Rng::from_seed(4);
        let mut seen = vec![0u64; 1_000];
        let draws = 200_000u32;
        for _ in 0..draws {
            seen[scrambled.next(&mut rng) as usize] += 1;
        }
        let hottest = (0..1_000).max_by_key(|&item| seen[item]).unwrap();
        assert_eq!(hottest as u64, fnv_hash(0) % 1_000);
        // Rank 0 has 1/zeta of all draws, and its slot gets a thousandth of everything else besides.
        let share = seen[hottest] as f64 / f64::from(draws);
        let expected = 1.0 / SCRAMBLED_ZETA;
        assert!(share > expected && share < expected + 0.006, "{share} against {expected}");
        assert!(seen.iter().all(|&count| count > 0), "the tail of ten billion ranks covers every record");
    }

    #[test]
    fn latest_prefers_the_newest_and_follows_insertions() {
        let inserted = AcknowledgedCounter::new(1_000);
        let mut latest = SkewedLatest::new(&inserted);
        let mut rng = Rng::from_seed(5);
        let newest = (0..10_000).filter(|_| latest.next(&inserted, &mut rng) == 999).count();
        let expected = 10_000.0 / zeta(0, 999, THETA, 0.0);
        assert!((newest as f64 - expected).abs() < 5.0 * expected.sqrt(), "{newest} against {expected}");
        for _ in 0..500 {
            let number = inserted.take();
            inserted.acknowledge(number).unwrap();
        }
        let draws: Vec<u64> = (0..10_000).map(|_| latest.next(&inserted, &mut rng)).collect();
        assert!(draws.iter().filter(|&&draw| draw == 1_499).count() > 1_000);
        assert!(draws.iter().all(|&draw| (1..1_500).contains(&draw)));
    }

    #[test]
    fn pinned_draws_do_not_change() {
        let mut rng = Rng::from_seed(42);
        let mut zipfian = Zipfian::new(0, 999, THETA);
        let plain: Vec<u64> = (0..8).map(|_| zipfian.next(&mut rng)).collect();
        let mut scrambled = ScrambledZipfian::new(0, 999);
        let scattered: Vec<u64> = (0..8).map(|_| scrambled.next(&mut rng)).collect();
        expect_test::expect!["[246, 5, 886, 104, 210, 43, 0, 49] [16, 79, 523, 528, 845, 393, 156, 995]"]
            .assert_eq(&format!("{plain:?} {scattered:?}"));
    }
}
