//! Mutations of inputs, from a seed: the same seed gives the same inputs on every machine.

/// Numbers that decoders get wrong: ends of ranges, and lengths near a limit.
const NUMBERS: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 62, u64::MAX];
/// Most changes to one input.
const CHANGES_MAX: u64 = 6;

/// SplitMix64: small, and good enough to choose bytes.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall the same way for the same seed.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or 0 when that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.roll() % bound as u64) as usize }
    }
}

/// One of the seeds with a few changes, at most `bytes_max` long.
pub fn mutate(dice: &mut Dice, seeds: &[Vec<u8>], bytes_max: usize) -> Vec<u8> {
    let mut input = seeds[dice.below(seeds.len())].clone();
    for _ in 0..=dice.below(CHANGES_MAX as usize) {
        change(dice, &mut input, seeds);
    }
    input.truncate(bytes_max);
    input
}

fn change(dice: &mut Dice, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = dice.below(input.len() + 1);
    let length = dice.below(17.min(input.len() + 1 - at));
    match dice.below(8) {
        0 if at < input.len() => input[at] ^= 1 << dice.below(8),
        1 if at < input.len() => input[at] = dice.roll() as u8,
        2 => drop(input.drain(at..at + length)),
        3 => {
            let piece = input[at..at + length].to_vec();
            let to = dice.below(input.len() + 1);
            input.splice(to..to, piece);
        }
        4 => {
            let fresh: Vec<u8> = (0..dice.below(9)).map(|_| dice.roll() as u8).collect();
            input.splice(at..at, fresh);
        }
        5 => {
            let number = NUMBERS[dice.below(NUMBERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][dice.below(4)].min(input.len() - at);
            input[at..at + width].copy_from_slice(&number[..width]);
        }
        6 => input.truncate(at),
        _ => {
            let other = &seeds[dice.below(seeds.len())];
            let from = dice.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence_of_inputs_within_their_limit() {
        let seeds = vec![b"hello".to_vec(), vec![7; 100], Vec::new()];
        let inputs = |seed| {
            let mut dice = Dice::new(seed);
            (0..500).map(|_| mutate(&mut dice, &seeds, 64)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(3).iter().all(|input| input.len() <= 64));
        assert!(inputs(3).iter().any(|input| !seeds.contains(input)));
    }
}
