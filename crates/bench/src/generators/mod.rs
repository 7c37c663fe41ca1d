//! Random choices: which record an operation touches, and which operation it is.
//!
//! The algorithms and constants are those of YCSB's core, so that figures can be laid beside published ones.
//! What differs: every draw comes from a seeded [`Rng`], each lane of a run owns its generators, and only the
//! counters are shared. **Never** read a clock or the system's randomness here: same seed, same run.

pub mod counter;
pub mod hash;
pub mod rng;
pub mod simple;
pub mod zipfian;

pub use counter::{AcknowledgedCounter, Counter, TooManyPending};
pub use rng::Rng;
pub use simple::{Discrete, Exponential, Hotspot, Uniform};
pub use zipfian::{ScrambledZipfian, SkewedLatest, Zipfian};

#[cfg(test)]
pub(crate) mod statistics {
    //! Just enough statistics to judge a generator.

    /// Pearson's distance between counts and expected shares; compare with a chi-square limit of `n - 1`.
    pub(crate) fn chi_square(seen: &[u64], shares: &[f64]) -> f64 {
        assert_eq!(seen.len(), shares.len());
        let total = seen.iter().sum::<u64>() as f64;
        let terms = seen.iter().zip(shares).map(|(&count, &share)| {
            let expected = share * total;
            (count as f64 - expected).powi(2) / expected
        });
        terms.sum()
    }
}
