//! Text whose characters take two or four bytes each: what spreadsheets call Unicode text. Its bytes must not become keys.

use std::io::{Cursor, Read};

use super::record::Input;
use crate::failure::CliError;

/// Bytes at the start of a file that are looked at.
const LOOKED_AT_BYTES: u64 = 4096;

/// The same input, unless it is UTF-16 or UTF-32.
pub(super) fn refuse_wide(mut input: Input, name: &str) -> Result<Input, CliError> {
    let mut start = Vec::new();
    let read = input.by_ref().take(LOOKED_AT_BYTES).read_to_end(&mut start);
    read.map_err(CliError::io(format!("cannot read {name}")))?;
    match wide(&start) {
        None => Ok(Box::new(Cursor::new(start).chain(input))),
        Some(encoding) => Err(CliError::Other(format!(
            "{name} is in {encoding}, and UTF-8 is needed; convert it and load the result: iconv -f {encoding} -t UTF-8 \
             FILE > FILE.utf8"
        ))),
    }
}

/// The encoding of which this is the start, if its characters take more bytes than one.
///
/// A key of bytes may begin as a mark does, so a mark counts only where there are zeros, which tabs, commas and line
/// ends bring along. Without a mark, every other byte must be zero.
fn wide(start: &[u8]) -> Option<&'static str> {
    let zeros = |parity: usize| start.iter().skip(parity).step_by(2).filter(|&&byte| byte == 0).count();
    let (even, odd) = (zeros(0), zeros(1));
    match start {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] if even + odd > 0 => Some("UTF-16"),
        [_, _, _, _, ..] if even == 0 && odd == start.len() / 2 => Some("UTF-16LE"),
        [_, _, _, _, ..] if odd == 0 && even == start.len().div_ceil(2) => Some("UTF-16BE"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, big_endian: bool) -> Vec<u8> {
        let units = text.encode_utf16();
        units.flat_map(|unit| if big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
    }

    #[test]
    fn text_of_wide_characters_is_known_with_and_without_its_mark() {
        for big_endian in [false, true] {
            assert_eq!(wide(&of("\u{feff}k1\tv1\r\n", big_endian)), Some("UTF-16"));
            assert_eq!(wide(&of("\u{feff}\u{4e00}\t\u{4e8c}\n", big_endian)), Some("UTF-16"));
        }
        assert_eq!(wide(&of("k1\tv1\r\n", false)), Some("UTF-16LE"));
        assert_eq!(wide(&of("{\"id\": 1}", true)), Some("UTF-16BE"));
        assert_eq!(wide(b"\xff\xfe\0\0k\0\0\0"), Some("UTF-32"));
        for other in [
            &b""[..],
            b"k",
            b"k1\tv1\n",
            b"\xff\xfe\x01\tbytes\n",
            b"\0\x01\0\x02\t3\n",
            b"\xef\xbb\xbfk\tv\n",
        ] {
            assert_eq!(wide(other), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_looked_at_is_read_all_the_same() {
        let text = "key\tvalue\n".repeat(10_000);
        let mut read = String::new();
        let input: Input = Box::new(Cursor::new(text.clone().into_bytes()));
        refuse_wide(input, "it").unwrap().read_to_string(&mut read).unwrap();
        assert!(read == text);
    }
}
