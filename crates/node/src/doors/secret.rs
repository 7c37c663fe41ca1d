//! Comparing secrets, such as a password that a client gives.
//!
//! Must never: tell by its duration how much of a secret was right.

/// Compares without telling by its duration where the difference is.
pub(super) fn same(given: &[u8], expected: &[u8]) -> bool {
    let difference = given.iter().zip(expected).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == expected.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identical_bytes_are_equal() {
        assert!(same(b"secret", b"secret") && same(b"", b""));
        for other in ["", "secre", "secrets", "Secret", "secreT"] {
            assert!(!same(other.as_bytes(), b"secret") && !same(b"secret", other.as_bytes()), "{other}");
        }
    }
}
