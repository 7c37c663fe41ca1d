//! Inline commands: what a person types into a bare connection.
//!
//! Words are split at whitespace. Double quotes allow spaces and the escapes `\n \r \t \b \a \xHH`; single quotes
//! allow spaces and `\'`.

use bytes::BytesMut;
use smallvec::SmallVec;

use super::argument::ArgRange;
use super::error::{HTTP, RespError};

/// Which other protocol a connection's first bytes belong to, if that shows before a line is complete.
pub(super) fn foreign_start(input: &[u8]) -> Option<&'static str> {
    // A TLS handshake starts with a record of type 22, version 3.x, and may hold no line end at all.
    input.starts_with(&[0x16, 0x03]).then_some("TLS")
}

/// Which other protocol a line belongs to, if it does.
pub(super) fn foreign_line(line: &[u8]) -> Option<&'static str> {
    // `runtime` opens native links with this line.
    if line.starts_with(b"TONTINE\x01") {
        return Some("the native protocol");
    }
    is_http_request(line).then_some(HTTP)
}

/// Whether a line is the first of an HTTP request, whatever its method: `curl -X SET` makes `SET /k HTTP/1.1`.
///
/// No client sends a command in such a line, and a person who means one can put the last word in quotes.
fn is_http_request(line: &[u8]) -> bool {
    const METHODS: [&[u8]; 8] =
        [b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT"];
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return false;
    };
    let names_a_resource =
        target.starts_with(b"/") || target == b"*" || target.windows(3).any(|part| part == b"://");
    version.starts_with(b"HTTP/") && (names_a_resource || METHODS.contains(&method))
}

/// The words of a line, unescaped one after the other into `out`.
pub(super) fn split(line: &[u8], out: &mut BytesMut) -> Result<SmallVec<[ArgRange; 4]>, RespError> {
    let mut args = SmallVec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let start = out.len();
        rest = word(rest, out)?.trim_ascii_start();
        args.push(ArgRange::new(start, out.len() - start));
    }
    Ok(args)
}

/// Unescapes the word at the front and returns what follows it.
fn word<'a>(mut rest: &'a [u8], out: &mut BytesMut) -> Result<&'a [u8], RespError> {
    loop {
        match rest {
            [] => return Ok(rest),
            [byte, ..] if byte.is_ascii_whitespace() => return Ok(rest),
            [b'"', after @ ..] => return closed(double_quoted(after, out)?),
            [b'\'', after @ ..] => return closed(single_quoted(after, out)?),
            [byte, after @ ..] => {
                out.extend_from_slice(&[*byte]);
                rest = after;
            }
        }
    }
}

/// After a closing quote a word must end.
fn closed(rest: &[u8]) -> Result<&[u8], RespError> {
    match rest.first() {
        Some(byte) if !byte.is_ascii_whitespace() => Err(RespError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], out: &mut BytesMut) -> Result<&'a [u8], RespError> {
    loop {
        let (byte, after) = match rest {
            [] => return Err(RespError::UnbalancedQuotes),
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex(*high) << 4 | hex(*low), after)
            }
            [b'\\', escaped, after @ ..] => (unescape(*escaped), after),
            [byte, after @ ..] => (*byte, after),
        };
        out.extend_from_slice(&[byte]);
        rest = after;
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], out: &mut BytesMut) -> Result<&'a [u8], RespError> {
    loop {
        let (byte, after) = match rest {
            [] => return Err(RespError::UnbalancedQuotes),
            [b'\'', after @ ..] => return Ok(after),
            [b'\\', b'\'', after @ ..] => (b'\'', after),
            [byte, after @ ..] => (*byte, after),
        };
        out.extend_from_slice(&[byte]);
        rest = after;
    }
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

fn hex(digit: u8) -> u8 {
    (digit as char).to_digit(16).map_or(0, |value| value as u8)
}
