//! Where a key falls inside an index: its own fingerprint beside the token, and one spread over both.
//!
//! The token alone would not do: on a ring that is ordered by key, neighbours share its first bytes, and keys with a
//! long common prefix share it whole. The fingerprint comes from the whole key with another seed, so a table stays
//! fast whatever the tokens are. No random state: simulation must see the same order again.

use model::Token;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Makes fingerprints independent of tokens, which use seed 0. Snapshots on disk depend on it; it never changes.
const FINGERPRINT_SEED: u64 = 0x746f_6e74_696e_6531;

/// 32 bits of the key's own hash, independent of its token: together they name a key (see [`crate::StorageEngine::find`]).
pub fn fingerprint(key: &[u8]) -> u32 {
    (xxh3_64_with_seed(key, FINGERPRINT_SEED) >> 32) as u32
}

/// The hash that tables use.
pub(crate) fn spread(token: Token, fingerprint: u32) -> u64 {
    let mixed = (token.0 ^ (u64::from(fingerprint) << 17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Which of `stripes` (a power of two, at most 256) a hash falls into: bits that tables do not lean on.
pub(crate) fn stripe(hash: u64, stripes: usize) -> usize {
    ((hash >> 48) as usize) & (stripes - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_token_still_spread() {
        let mut stripes = [0; 16];
        for number in 0..1600u32 {
            let key = format!("the same prefix {number}");
            stripes[stripe(spread(Token(7), fingerprint(key.as_bytes())), 16)] += 1;
        }
        assert!(stripes.iter().all(|&count| (50..200).contains(&count)), "{stripes:?}");
    }

    #[test]
    fn fingerprints_are_pinned_because_snapshots_on_disk_hold_them() {
        assert_eq!(
            fingerprint(b"tontine"),
            (xxh3_64_with_seed(b"tontine", 0x746f_6e74_696e_6531) >> 32) as u32
        );
    }
}
