//! A batch to a node's Redis port.

use std::io;

use bytes::{Bytes, BytesMut};

use crate::target::resp_codec;

use super::{Draw, Replies};

/// Appends a GET or SET for each.
pub(super) fn encode<'a>(
    batch: impl Iterator<Item = (Draw, &'a Bytes)>,
    value: &Bytes,
    sending: &mut BytesMut,
) {
    let mut bytes = Vec::new();
    for (draw, key) in batch {
        match draw.write {
            true => resp_codec::encode(&[b"SET", key, value], &mut bytes),
            false => resp_codec::encode(&[b"GET", key], &mut bytes),
        }
    }
    sending.extend_from_slice(&bytes);
}

/// Counts the whole answers at the front of what was received, and says how many bytes they have.
pub(super) fn take(received: &[u8], value_length: usize, replies: &mut Replies) -> io::Result<usize> {
    let mut at = 0;
    while let Some(end) = received[at..].iter().position(|&byte| byte == b'\n') {
        let line = received[at..at + end].trim_ascii_end();
        let mut next = at + end + 1;
        match line.split_first() {
            Some((b'+', _)) => replies.well += 1,
            Some((b'$', b"-1")) => replies.ill("no record"),
            Some((b'$', digits)) => {
                let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<usize>().ok());
                let length = length.ok_or(io::ErrorKind::InvalidData)?;
                next += length + 2;
                if received.len() < next {
                    break;
                }
                match length == value_length {
                    true => replies.well += 1,
                    false => replies.ill("a value of another length"),
                }
            }
            Some((b'-', text)) => replies.ill(&String::from_utf8_lossy(text)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        at = next;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_as_they_come_and_judged_by_their_kind_and_length() {
        let mut replies = Replies::default();
        let all = b"+OK\r\n$3\r\nabc\r\n$-1\r\n-ERR busy\r\n$2\r\nab\r\n$3\r\nab";
        assert_eq!(take(&all[..8], 3, &mut replies).unwrap(), 5, "the second is not whole");
        assert_eq!(take(&all[5..], 3, &mut replies).unwrap(), all.len() - 5 - 6);
        assert_eq!(replies, Replies { well: 2, ill: 3, stale: 0, reason: "no record".to_owned() });
        assert!(take(b"what\r\n", 3, &mut replies).is_err());
    }
}
