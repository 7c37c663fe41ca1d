//! Keys and where they fall in the token space.

use bytes::Bytes;
use thiserror::Error;

use crate::limits::KEY_BYTES_MAX;

/// A key: 1 to [`KEY_BYTES_MAX`] arbitrary bytes, checked when it enters the system.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Bytes);

/// Why bytes are no key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// A key has at least one byte.
    #[error("key is empty; a key has 1 to {KEY_BYTES_MAX} bytes")]
    Empty,
    /// A key has at most [`KEY_BYTES_MAX`] bytes.
    #[error("key of {bytes} bytes is over the limit of {KEY_BYTES_MAX} bytes")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
}

impl Key {
    /// Checks the length and takes the bytes without copying them.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, KeyError> {
        let bytes = bytes.into();
        Key::check(&bytes)?;
        Ok(Key(bytes))
    }

    /// Checks that `bytes` would make a key.
    pub fn check(bytes: &[u8]) -> Result<(), KeyError> {
        match bytes.len() {
            0 => Err(KeyError::Empty),
            bytes if bytes > KEY_BYTES_MAX => Err(KeyError::TooLong { bytes }),
            _ => Ok(()),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, shared.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// A point of the 64-bit token space: XXH3-64 of the key with seed 0.
///
/// The hash is part of the wire contract (clients route by it) and of the disk format; it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

impl Token {
    /// The token of a key's bytes.
    pub fn of(key: &[u8]) -> Self {
        Token(xxhash_rust::xxh3::xxh3_64(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_pinned_because_clients_and_disks_depend_on_them() {
        assert_eq!(Token::of(b"tontine"), Token(xxhash_rust::xxh3::xxh3_64_with_seed(b"tontine", 0)));
        assert_eq!(Token::of(b""), Token(0x2d06_8005_38d3_94c2));
    }

    #[test]
    fn keys_over_the_limit_are_refused() {
        assert_eq!(Key::new(&b""[..]), Err(KeyError::Empty));
        assert!(Key::new(vec![0; KEY_BYTES_MAX]).is_ok());
        assert_eq!(Key::new(vec![0; KEY_BYTES_MAX + 1]), Err(KeyError::TooLong { bytes: KEY_BYTES_MAX + 1 }));
    }
}
