//! Secrets of users: 256 random bits, generated and never chosen.
//!
//! Such a secret cannot be guessed, so a plain SHA-256 of it is all that is kept: no slow hash, no cache of sessions, and
//! no log-in that stalls a worker.
//!
//! **Architecture Invariant:** a secret is not shown by `Debug`, and has no `Display`.

use std::fmt;

use model::access::SecretDigest;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// What a secret's text begins with, so that people and scanners recognise one.
const PREFIX: &str = "tontine_";

/// Random bytes of a secret.
const BYTES: usize = 32;

/// Letters that stand for them: six bits each.
const LETTERS: usize = (BYTES * 8).div_ceil(6);

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A secret as a user has it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

/// Why a text is no secret. The text is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSecret;

impl fmt::Display for NoSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this is no secret: one begins with `{PREFIX}`, and {LETTERS} letters, digits, - or _ follow"
        )
    }
}

impl std::error::Error for NoSecret {}

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// When the operating system gives no random bytes.
    pub fn generate() -> std::io::Result<Secret> {
        let mut bytes = [0; BYTES];
        let refused = |_| std::io::Error::other("the operating system gives no random bytes");
        SystemRandom::new().fill(&mut bytes).map_err(refused)?;
        Ok(Secret(format!("{PREFIX}{}", letters(&bytes))))
    }

    /// Reads one; white space around it does not matter.
    ///
    /// # Errors
    /// When the text cannot be a secret.
    pub fn parse(text: &str) -> Result<Secret, NoSecret> {
        let text = text.trim();
        let letters = text.strip_prefix(PREFIX).ok_or(NoSecret)?;
        let is_good = letters.len() == LETTERS && letters.bytes().all(|letter| ALPHABET.contains(&letter));
        if is_good { Ok(Secret(text.to_owned())) } else { Err(NoSecret) }
    }

    /// Its text, for the one who shall have it and for the wire.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn digest(&self) -> SecretDigest {
        digest_of(self.0.as_bytes())
    }
}

/// What would be kept of a secret with these bytes. Of what is no secret, too: it is nobody's.
pub fn digest_of(text: &[u8]) -> SecretDigest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text).as_ref());
    SecretDigest(bytes)
}

/// Whether two digests are the same, in the same time wherever they differ.
pub fn is_same(one: &SecretDigest, other: &SecretDigest) -> bool {
    let differing = one.0.iter().zip(&other.0).fold(0, |differing, (one, other)| differing | (one ^ other));
    std::hint::black_box(differing) == 0
}

/// Six bits a letter, as in base64url without padding.
fn letters(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(LETTERS);
    for three in bytes.chunks(3) {
        let word =
            three.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..=three.len() {
            text.push(char::from(ALPHABET[(word >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_again_and_no_two_are_the_same() {
        let (one, other) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_eq!(Secret::parse(&format!(" {}\n", one.text())), Ok(one.clone()));
        assert_ne!(one, other);
        assert!(is_same(&one.digest(), &digest_of(one.text().as_bytes())));
        assert!(!is_same(&one.digest(), &other.digest()));
        assert!(!format!("{one:?}").contains(one.text()));
    }

    #[test]
    fn texts_that_cannot_be_secrets_are_refused() {
        let good = Secret::generate().unwrap();
        let text = good.text();
        for bad in [
            "",
            "tontine_",
            "hello",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}A"),
            &format!("{}=", &text[1..]),
        ] {
            assert_eq!(Secret::parse(bad), Err(NoSecret), "{bad}");
        }
    }

    /// The vectors of RFC 4648, and the digest that `sha256sum` prints.
    #[test]
    fn letters_and_digests_are_the_standard_ones() {
        for (bytes, text) in
            [(&b"f"[..], "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"foob", "Zm9vYg"), (b"\xfb\xff", "-_8")]
        {
            assert_eq!(letters(bytes), text);
        }
        let empty = String::from(digest_of(b""));
        assert_eq!(empty, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
