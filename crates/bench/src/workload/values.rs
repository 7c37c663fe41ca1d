//! Values that prove themselves: every byte follows from the key, a sequence number and the length.
//!
//! A read can therefore be checked without remembering what was written: a value of another key, a torn or
//! truncated one, or one flipped bit is *corrupt*. The bytes are incompressible, so an engine that compresses
//! gains nothing from them.

use bytes::{BufMut, Bytes, BytesMut};

use crate::generators::hash::fnv_hash_bytes;
use crate::generators::rng::{WordStream, mix};

/// The shortest value that can carry its sequence number.
pub const LENGTH_MIN: usize = 8;

/// What a check of one value says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueVerdict {
    /// The value belongs to the key, whole, as the write with this number left it.
    Intact {
        /// The number of the write.
        sequence: u64,
    },
    /// The value is not one this benchmark ever made for this key.
    Corrupt,
}

fn filler(key: &[u8], sequence: u64, length: usize) -> WordStream {
    WordStream::new(fnv_hash_bytes(key) ^ mix(sequence ^ ((length as u64) << 40)))
}

/// The value of `length` bytes (at least [`LENGTH_MIN`]) that write number `sequence` gives to `key`.
pub fn make(key: &[u8], sequence: u64, length: usize) -> Bytes {
    assert!(length >= LENGTH_MIN, "a value too short to be verified");
    let mut value = BytesMut::with_capacity(length);
    value.put_u64(sequence);
    let mut words = filler(key, sequence, length);
    while value.len() + 8 <= length {
        value.put_u64_le(words.next_word());
    }
    let rest = length - value.len();
    value.put_slice(&words.next_word().to_le_bytes()[..rest]);
    value.freeze()
}

/// Checks a value read for `key`.
pub fn verify(key: &[u8], value: &[u8]) -> ValueVerdict {
    let Some((head, body)) = value.split_first_chunk::<LENGTH_MIN>() else { return ValueVerdict::Corrupt };
    let sequence = u64::from_be_bytes(*head);
    let mut words = filler(key, sequence, value.len());
    let (whole, rest) = body.as_chunks::<8>();
    let intact = whole.iter().all(|word| u64::from_le_bytes(*word) == words.next_word());
    let last = words.next_word().to_le_bytes();
    if intact && rest == &last[..rest.len()] {
        ValueVerdict::Intact { sequence }
    } else {
        ValueVerdict::Corrupt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_proves_its_key_sequence_and_length() {
        for length in [8, 9, 15, 16, 100, 1024] {
            let value = make(b"user1", 77, length);
            assert_eq!(value.len(), length);
            assert_eq!(verify(b"user1", &value), ValueVerdict::Intact { sequence: 77 });
        }
    }

    #[test]
    fn any_damage_is_noticed() {
        let value = make(b"user1", 3, 100);
        assert_eq!(verify(b"user2", &value), ValueVerdict::Corrupt, "another key");
        assert_eq!(verify(b"user1", &value[..99]), ValueVerdict::Corrupt, "truncated");
        assert_eq!(verify(b"user1", &value[..5]), ValueVerdict::Corrupt, "too short");
        assert_eq!(verify(b"user1", b""), ValueVerdict::Corrupt, "empty");
        for position in 0..100 {
            let mut damaged = value.to_vec();
            damaged[position] ^= 0x10;
            assert_eq!(verify(b"user1", &damaged), ValueVerdict::Corrupt, "bit flipped at {position}");
        }
    }

    #[test]
    fn two_writes_of_one_key_differ() {
        assert_ne!(make(b"user1", 1, 64), make(b"user1", 2, 64));
    }
}
