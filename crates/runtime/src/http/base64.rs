//! Bytes as text: base 64, in its two alphabets (RFC 4648).

/// Which letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// With `+` and `/`, filled with `=`: what JSON documents hold.
    Standard,
    /// With `-` and `_`, not filled: what stands in headers and paths.
    Url,
}

impl Alphabet {
    fn letters(self) -> &'static [u8; 64] {
        match self {
            Alphabet::Standard => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
            Alphabet::Url => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
        }
    }

    fn value(self, letter: u8) -> Option<u32> {
        let at = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            _ if letter == self.letters()[62] => 62,
            _ if letter == self.letters()[63] => 63,
            _ => return None,
        };
        Some(u32::from(at))
    }
}

/// The text of these bytes.
pub fn encode(bytes: &[u8], alphabet: Alphabet) -> String {
    let letters = alphabet.letters();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for at in 0..4 {
            if at <= group.len() {
                text.push(char::from(letters[(bits >> (18 - 6 * at) & 63) as usize]));
            } else if alphabet == Alphabet::Standard {
                text.push('=');
            }
        }
    }
    text
}

/// The bytes of a text; `None` when [`encode`] writes no such text. So two texts never mean the same bytes.
pub fn decode(text: &str, alphabet: Alphabet) -> Option<Vec<u8>> {
    let bare = match alphabet {
        Alphabet::Url => text,
        Alphabet::Standard if text.len().is_multiple_of(4) => {
            let fewer = text.strip_suffix('=').unwrap_or(text);
            fewer.strip_suffix('=').unwrap_or(fewer)
        }
        Alphabet::Standard => return None,
    };
    let mut bytes = Vec::with_capacity(bare.len() / 4 * 3 + 2);
    for group in bare.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for letter in group {
            bits = bits << 6 | alphabet.value(*letter)?;
        }
        bits <<= 6 * (4 - group.len());
        let (whole, rest) = (group.len() * 6 / 8, bits & (0xff_ffff >> (8 * (group.len() * 6 / 8))));
        if whole == 0 || rest != 0 {
            return None;
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..=whole]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes(), Alphabet::Standard), text);
            assert_eq!(decode(text, Alphabet::Standard).as_deref(), Some(bytes.as_bytes()));
            assert_eq!(encode(bytes.as_bytes(), Alphabet::Url), text.trim_end_matches('='));
            assert_eq!(decode(text.trim_end_matches('='), Alphabet::Url).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(encode(&[0xfb, 0xff], Alphabet::Url), "-_8");
        assert_eq!(encode(&[0xfb, 0xff], Alphabet::Standard), "+/8=");
    }

    #[test]
    fn every_byte_at_every_place_comes_back() {
        for length in 1..=5 {
            for byte in 0..=255_u8 {
                let bytes = vec![byte; length];
                for alphabet in [Alphabet::Standard, Alphabet::Url] {
                    assert_eq!(decode(&encode(&bytes, alphabet), alphabet), Some(bytes.clone()));
                }
            }
        }
    }

    #[test]
    fn what_nobody_writes_is_refused() {
        for text in
            ["Z", "Zg=", "Zg", "Zh==", "Zm9=", "Zg==Zg==", "Z===", "====", "Zm9v!", "Zm-v", "Zm 9v", "=Zg="]
        {
            assert_eq!(decode(text, Alphabet::Standard), None, "{text}");
        }
        for text in ["Z", "Zg==", "Zh", "Zm9", "Zm+v", "Zm9vY"] {
            assert_eq!(decode(text, Alphabet::Url), None, "{text}");
        }
    }
}
