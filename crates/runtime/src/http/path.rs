//! Paths and queries: names that may hold any bytes.
//!
//! A path is cut at its slashes first and decoded afterwards, so a key may hold a slash (`%2F`). Two spellings of one
//! key are one key; what is no spelling at all is refused, because a guess would write somewhere else.
//!
//! Must never: mend a path. `..`, `//` and a broken `%` are what they are.

use std::fmt;

use bytes::Bytes;

/// A `%` without two digits of base 16 behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEncoding;

impl fmt::Display for BadEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a % has no two digits of base 16 behind it; write a % itself as %25")
    }
}

impl std::error::Error for BadEncoding {}

/// The bytes that a part of a path or query stands for. A `+` stands for itself.
///
/// # Errors
/// When a `%` has no two digits behind it.
pub fn decode(text: &str) -> Result<Bytes, BadEncoding> {
    if !text.contains('%') {
        return Ok(Bytes::copy_from_slice(text.as_bytes()));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let (Some(&high), Some(&low)) = (rest.first(), rest.get(1)) else { return Err(BadEncoding) };
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(BadEncoding);
        decoded.push((digit(high)? << 4 | digit(low)?) as u8);
        rest = &rest[2..];
    }
    Ok(decoded.into())
}

/// What a path has where a pattern such as `/v1/stores/{store}` has names in braces, not decoded; `None` when the
/// path is another one.
pub fn matched<'a>(pattern: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let (mut parts, mut found) = (path.split('/'), Vec::new());
    for expected in pattern.split('/') {
        let part = parts.next()?;
        if expected.starts_with('{') {
            found.push(part);
        } else if part != expected {
            return None;
        }
    }
    parts.next().is_none().then_some(found)
}

/// The names and values of a query, decoded, in their order. A name without `=` has an empty value.
///
/// # Errors
/// When a `%` has no two digits behind it.
pub fn query(text: &str) -> Result<Vec<(Bytes, Bytes)>, BadEncoding> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name)?, decode(value)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_may_stand_for_any_bytes() {
        for (text, expected) in [
            ("plain", &b"plain"[..]),
            ("", b""),
            ("a%2Fb", b"a/b"),
            ("%00%ff%FF", b"\0\xff\xff"),
            ("a+b", b"a+b"),
            ("%25%32%35", b"%25"),
            ("\u{e4}", b"\xc3\xa4"),
        ] {
            assert_eq!(decode(text).unwrap(), expected, "{text}");
        }
        let all: String = (0..=255).map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(decode(&all).unwrap(), (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn bad_percent_encoding_is_refused() {
        for text in ["%", "a%", "%2", "%2g", "%g2", "%%", "%+1", "%-1", "% 1", "%\u{e4}"] {
            assert_eq!(decode(text), Err(BadEncoding), "{text}");
            assert!(query(&format!("r={text}")).is_err() && query(&format!("{text}=1")).is_err());
        }
    }

    #[test]
    fn a_path_is_cut_before_it_is_decoded_and_never_mended() {
        let pattern = "/v1/stores/{store}/keys/{key}";
        assert_eq!(matched(pattern, "/v1/stores/s/keys/a%2Fb"), Some(vec!["s", "a%2Fb"]));
        assert_eq!(matched(pattern, "/v1/stores/s/keys/.."), Some(vec!["s", ".."]));
        assert_eq!(
            matched(pattern, "/v1/stores/s/keys/"),
            Some(vec!["s", ""]),
            "an empty key, which is refused as one"
        );
        for other in [
            "/v1/stores/s/keys",
            "/v1/stores/s/keys/a/b",
            "/v1/stores//s/keys/a",
            "v1/stores/s/keys/a",
            "/",
            "",
        ] {
            assert_eq!(matched(pattern, other), None, "{other}");
        }
        assert_eq!(matched("/health", "/health"), Some(vec![]));
        assert_eq!(matched("/health", "/health/"), None);
    }

    #[test]
    fn a_query_has_names_and_values() {
        let pair = |name: &'static str, value: &'static str| (Bytes::from(name), Bytes::from(value));
        assert_eq!(query("r=1&w&&x=a%26b=c").unwrap(), [pair("r", "1"), pair("w", ""), pair("x", "a&b=c")]);
        assert_eq!(query("").unwrap(), []);
    }
}
