//! The hash that scatters popular items and names keys: 64-bit FNV-1a over the eight bytes of a number.
//!
//! It must stay bit for bit what YCSB computes, so that a key loaded by either client is found by the other.

const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const PRIME: u64 = 1_099_511_628_211;

/// FNV-1a over the little-endian bytes of `number`, as a Java `long` made positive.
///
/// The one number whose hash is the least `long` would stay negative in Java; here it becomes 2^63.
#[inline]
pub fn fnv_hash(number: u64) -> u64 {
    let mut hash = OFFSET_BASIS;
    for octet in number.to_le_bytes() {
        hash = (hash ^ u64::from(octet)).wrapping_mul(PRIME);
    }
    hash.cast_signed().unsigned_abs()
}

/// FNV-1a over any bytes, unsigned.
#[inline]
pub fn fnv_hash_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(OFFSET_BASIS, |hash, &octet| (hash ^ u64::from(octet)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `user6284781860667377211` is known to everybody who ever loaded YCSB: it is record 0.
    #[test]
    fn record_zero_has_the_well_known_hash() {
        assert_eq!(fnv_hash(0), 6_284_781_860_667_377_211);
        assert_eq!(fnv_hash(1), 8_517_097_267_634_966_620);
    }

    #[test]
    fn bytes_hash_as_published() {
        assert_eq!(fnv_hash_bytes(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv_hash_bytes(b"foobar"), 0x8594_4171_F739_67E8);
    }
}
