//! Randomness seeded by the operating system.
//!
//! Every thread has its own generator (xoshiro256++, four words of state), so drawing a number is a few
//! instructions and never a system call or a lock.

use std::cell::Cell;

use super::Entropy;

thread_local! {
    static STATE: Cell<[u64; 4]> = Cell::new(seed());
}

/// Four random words from the operating system.
fn seed() -> [u64; 4] {
    let mut bytes = [0_u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the operating system gives no random bytes: {error}"),
        }
    }
    let mut words = [0_u64; 4];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight bytes"));
    }
    // The all-zero state is the one from which this generator never leaves.
    if words == [0; 4] { [1, 2, 3, 4] } else { words }
}

/// One step of xoshiro256++.
fn step(state: &mut [u64; 4]) -> u64 {
    let output = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
    let shifted = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = state[3].rotate_left(45);
    output
}

/// The generator of the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn next_u64(&self) -> u64 {
        STATE.with(|cell| {
            let mut state = cell.get();
            let output = step(&mut state);
            cell.set(state);
            output
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_sequence() {
        // First outputs of xoshiro256++ for the state 1, 2, 3, 4, as its authors' reference program prints them.
        let mut state = [1, 2, 3, 4];
        let outputs: Vec<u64> = (0..4).map(|_| step(&mut state)).collect();
        assert_eq!(outputs, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn two_threads_draw_different_numbers() {
        let here: Vec<u64> = (0..4).map(|_| OsEntropy.next_u64()).collect();
        let there =
            std::thread::spawn(|| (0..4).map(|_| OsEntropy.next_u64()).collect::<Vec<u64>>()).join().unwrap();
        assert_ne!(here, there);
    }
}
