//! Seeded dice (SplitMix64): the only randomness of a simulation.
//!
//! Must never: be fed from a clock, an address or a hash with a random key.

use std::time::Duration;

use parking_lot::Mutex;
use runtime::Entropy;

/// A generator whose whole future follows from its seed.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Dice {
        Dice { state: seed }
    }

    /// Dice of their own for one purpose, so that what one part of a run draws does not move the others.
    pub fn apart(seed: u64, purpose: u64) -> Dice {
        let mut dice = Dice::new(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Dice::new(dice.roll())
    }

    /// The next 64 bits.
    pub fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of them.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        assert!(!choices.is_empty(), "there must be something to pick from");
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// A time in `from..=to` milliseconds, with microseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.between(from * 1000, to * 1000))
    }
}

/// The randomness of one simulated process.
pub struct ProcessEntropy {
    dice: Mutex<Dice>,
}

impl ProcessEntropy {
    /// From its own dice.
    pub fn new(dice: Dice) -> ProcessEntropy {
        ProcessEntropy { dice: Mutex::new(dice) }
    }
}

impl Entropy for ProcessEntropy {
    fn next_u64(&self) -> u64 {
        self.dice.lock().roll()
    }
}
