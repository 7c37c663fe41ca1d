//! Sixteen-bit fingerprints compared many at once.
//!
//! SSE2 is part of every x86-64, so nothing has to be asked for at run time; everywhere else eight comparisons one
//! after the other answer the same, and compilers make vectors of them.

/// Fingerprints that are compared at once.
pub(super) const LANES: usize = 8;

/// Which of the eight fingerprints equal `wanted`: one bit each, the first the lowest.
#[inline]
pub(super) fn equal(fingerprints: &[u8; 2 * LANES], wanted: u16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        with_sse2(fingerprints, wanted)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        portable(fingerprints, wanted)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn with_sse2(fingerprints: &[u8; 2 * LANES], wanted: u16) -> u32 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
        _mm_setzero_si128,
    };
    // SAFETY: the load reads the sixteen bytes of the array; SSE2 is there on every x86-64.
    unsafe {
        let found = _mm_loadu_si128(fingerprints.as_ptr().cast());
        let equal = _mm_cmpeq_epi16(found, _mm_set1_epi16(wanted.cast_signed()));
        _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())).cast_unsigned()
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn portable(fingerprints: &[u8; 2 * LANES], wanted: u16) -> u32 {
    let wanted = wanted.to_le_bytes();
    let lanes = fingerprints.chunks_exact(2).enumerate();
    lanes.fold(0, |found, (lane, bytes)| found | (u32::from(bytes == wanted) << lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_plain_code_find_the_same() {
        for seed in 0..2000_u64 {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(
                &(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x8003_8003_8003_8003).to_le_bytes(),
            );
            bytes[8..].copy_from_slice(
                &(seed.wrapping_mul(0xd6e8_feb8_6659_fd93) & 0x8003_8003_8003_8003).to_le_bytes(),
            );
            for wanted in [0, 1, 2, 3, 0x8000, 0x8001, 0x8003, 0x7fff, 0xffff] {
                assert_eq!(equal(&bytes, wanted), portable(&bytes, wanted), "{bytes:?} {wanted}");
            }
        }
    }
}
