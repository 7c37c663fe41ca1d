//! RESP2 as a client needs it: commands out, replies in.
//!
//! Independent of the server's own codec on purpose: a benchmark should not share its subject's mistakes.

use bytes::{Buf, Bytes, BytesMut};

/// The largest bulk or line accepted; anything longer is a broken stream.
const BULK_LENGTH_MAX: usize = 64 << 20;
/// The longest header line (`$123`, `+OK`, an error text).
const LINE_LENGTH_MAX: usize = 64 << 10;
/// The most elements of one array.
const ARRAY_LENGTH_MAX: usize = 1 << 20;
/// How deep arrays may nest.
const DEPTH_MAX: usize = 8;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RespReply {
    /// `+OK`
    Simple(Bytes),
    /// `-ERR …`
    Error(Bytes),
    /// `:1`
    Integer(i64),
    /// `$…`
    Bulk(Bytes),
    /// `$-1` or `*-1`
    Null,
    /// `*…`
    Array(Vec<RespReply>),
}

/// The bytes are no RESP2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a RESP2 reply: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Appends a command: an array of bulk strings.
pub(crate) fn encode(arguments: &[&[u8]], out: &mut Vec<u8>) {
    header(b'*', arguments.len(), out);
    for argument in arguments {
        header(b'$', argument.len(), out);
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

fn header(kind: u8, number: usize, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.push(kind);
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

/// Takes one complete reply off the front of `buffer`, or leaves it untouched when there is none yet.
///
/// # Errors
/// [`Malformed`] when no further byte can make sense of it.
pub(crate) fn decode(buffer: &mut BytesMut) -> Result<Option<RespReply>, Malformed> {
    // Find the end first: splitting is then a reference count, not a copy, and never has to be undone.
    let Some(end) = skip(buffer, 0, 0)? else { return Ok(None) };
    let mut whole = buffer.split_to(end).freeze();
    Ok(Some(take(&mut whole)))
}

/// The position after the reply that starts at `from`, when all of it is there.
fn skip(buffer: &[u8], from: usize, depth: usize) -> Result<Option<usize>, Malformed> {
    let Some(line) = line(buffer, from)? else { return Ok(None) };
    let after = from + line.len() + 2;
    match line.first() {
        Some(b'+' | b'-') => Ok(Some(after)),
        Some(b':') => number(&line[1..]).map(|_| Some(after)),
        Some(b'$') => match length(&line[1..], BULK_LENGTH_MAX)? {
            None => Ok(Some(after)),
            Some(length) => match buffer.get(after + length..after + length + 2) {
                None => Ok(None),
                Some(b"\r\n") => Ok(Some(after + length + 2)),
                Some(_) => Err(Malformed("a bulk string without its end")),
            },
        },
        Some(b'*') => {
            if depth == DEPTH_MAX {
                return Err(Malformed("arrays nested too deep"));
            }
            let mut at = after;
            for _ in 0..length(&line[1..], ARRAY_LENGTH_MAX)?.unwrap_or(0) {
                match skip(buffer, at, depth + 1)? {
                    Some(next) => at = next,
                    None => return Ok(None),
                }
            }
            Ok(Some(at))
        }
        _ => Err(Malformed("unknown type byte")),
    }
}

/// Reads a reply that [`skip`] found whole and sound.
fn take(whole: &mut Bytes) -> RespReply {
    let end = whole.windows(2).position(|pair| pair == b"\r\n").expect("skip found the line's end");
    let line = whole.split_to(end);
    whole.advance(2);
    let content = line.slice(1..);
    match line[0] {
        b'+' => RespReply::Simple(content),
        b'-' => RespReply::Error(content),
        b':' => RespReply::Integer(number(&content).expect("skip read this number")),
        b'$' => match length(&content, BULK_LENGTH_MAX).expect("skip read this length") {
            None => RespReply::Null,
            Some(length) => {
                let bulk = whole.split_to(length);
                whole.advance(2);
                RespReply::Bulk(bulk)
            }
        },
        _ => match length(&content, ARRAY_LENGTH_MAX).expect("skip read this length") {
            None => RespReply::Null,
            Some(count) => RespReply::Array((0..count).map(|_| take(whole)).collect()),
        },
    }
}

fn line(buffer: &[u8], from: usize) -> Result<Option<&[u8]>, Malformed> {
    let rest = &buffer[from..];
    match rest.iter().position(|&byte| byte == b'\n') {
        Some(end) if end > 0 && rest[end - 1] == b'\r' => Ok(Some(&rest[..end - 1])),
        Some(_) => Err(Malformed("a line that ends without a carriage return")),
        None if rest.len() > LINE_LENGTH_MAX => Err(Malformed("a line without an end")),
        None => Ok(None),
    }
}

fn number(digits: &[u8]) -> Result<i64, Malformed> {
    let text = std::str::from_utf8(digits).map_err(|_| Malformed("a number that is no text"))?;
    text.parse().map_err(|_| Malformed("a number that is none"))
}

fn length(digits: &[u8], limit: usize) -> Result<Option<usize>, Malformed> {
    match number(digits)? {
        -1 => Ok(None),
        count => match usize::try_from(count) {
            Ok(count) if count <= limit => Ok(Some(count)),
            _ => Err(Malformed("a length beyond the limit")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_all(bytes: &[u8]) -> Result<Vec<RespReply>, Malformed> {
        let mut buffer = BytesMut::from(bytes);
        let mut replies = Vec::new();
        while let Some(reply) = decode(&mut buffer)? {
            replies.push(reply);
        }
        assert!(buffer.is_empty(), "{buffer:?} is left");
        Ok(replies)
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        encode(&[b"SET", b"a", b"0123456789"], &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$10\r\n0123456789\r\n");
    }

    #[test]
    fn every_reply_type_is_read() {
        let replies =
            decode_all(b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n*2\r\n$0\r\n\r\n*1\r\n:1\r\n");
        let expected = vec![
            RespReply::Simple(Bytes::from_static(b"OK")),
            RespReply::Error(Bytes::from_static(b"ERR no")),
            RespReply::Integer(-7),
            RespReply::Bulk(Bytes::from_static(b"a\r\n")),
            RespReply::Null,
            RespReply::Null,
            RespReply::Array(vec![
                RespReply::Bulk(Bytes::new()),
                RespReply::Array(vec![RespReply::Integer(1)]),
            ]),
        ];
        assert_eq!(replies, Ok(expected));
    }

    #[test]
    fn a_reply_cut_anywhere_waits_for_the_rest() {
        let whole = b"*3\r\n$5\r\nhello\r\n:12\r\n+OK\r\n";
        for cut in 0..whole.len() {
            let mut buffer = BytesMut::from(&whole[..cut]);
            assert_eq!(decode(&mut buffer), Ok(None), "cut at {cut}");
            assert_eq!(buffer.len(), cut, "nothing may be consumed");
            buffer.extend_from_slice(&whole[cut..]);
            assert!(matches!(decode(&mut buffer), Ok(Some(RespReply::Array(items))) if items.len() == 3));
        }
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"$2\r\nabcd",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b":1x\r\n",
            b"\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        ] {
            assert!(decode_all(bytes).is_err(), "{:?}", Bytes::copy_from_slice(bytes));
        }
    }
}
