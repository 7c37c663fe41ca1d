//! The benchmark's dice: one small, fast, seedable generator (xoshiro256++ filled by splitmix64).
//!
//! The original draws from the JVM's thread-local random source, which nobody can replay.
//! A benchmark here is replayable instead: the same seed and lane give the same keys in the same order.
//! Never used for anything that must be hard to guess.

/// The odd constant of splitmix64: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// One step of the splitmix64 output function: spreads every input bit over the whole word.
#[inline]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// An endless stream of words that depends on its seed alone: the filler of verifiable values.
#[derive(Clone, Debug)]
pub struct WordStream {
    state: u64,
}

impl WordStream {
    /// A stream that begins at `seed`.
    pub fn new(seed: u64) -> Self {
        WordStream { state: seed }
    }

    /// The next word.
    #[inline]
    pub fn next_word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }
}

/// A seeded pseudo-random generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator that belongs to `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut words = WordStream::new(seed);
        Rng { state: [words.next_word(), words.next_word(), words.next_word(), words.next_word()] }
    }

    /// An independent generator for one of many lanes of the same run.
    pub fn for_lane(seed: u64, lane: u64) -> Self {
        Rng::from_seed(mix(seed ^ mix(lane.wrapping_add(1).wrapping_mul(GOLDEN))))
    }

    /// Sixty-four random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let answer = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        answer
    }

    /// A number in `[0, 1)` with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A whole number in `[0, bound)`.
    ///
    /// # Panics
    /// When `bound` is zero: there is no such number.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a draw below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published reference: xoshiro256++ from the state 1, 2, 3, 4.
    #[test]
    fn the_first_words_are_those_of_the_published_algorithm() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let words: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        assert_eq!(
            words,
            [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205],
            "state transitions differ from the reference"
        );
    }

    #[test]
    fn splitmix_of_seed_zero_matches_the_published_vector() {
        let mut words = WordStream::new(0);
        assert_eq!(words.next_word(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(words.next_word(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn lanes_of_one_seed_differ_and_are_repeatable() {
        let draw = |lane| Rng::for_lane(7, lane).next_u64();
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn unit_stays_in_its_half_open_interval_and_is_centred() {
        let mut rng = Rng::from_seed(11);
        let mut sum = 0.0;
        for _ in 0..100_000 {
            let draw = rng.unit();
            assert!((0.0..1.0).contains(&draw));
            sum += draw;
        }
        // The standard error of the mean is 0.0009: this is more than five of them.
        assert!((sum / 100_000.0 - 0.5).abs() < 0.005);
    }
}
