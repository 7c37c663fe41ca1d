//! Randomness, seeded in simulation.

pub mod os;

/// A source of random numbers. Not for secrets.
pub trait Entropy: Send + Sync {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;
}

impl dyn Entropy {
    /// A number in `0..bound` (bias below 2⁻³² for bounds below 2³²).
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing lies below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}
