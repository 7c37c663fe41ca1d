//! The head of a request: where it ends, and how long the body behind it is.
//!
//! A proxy in front of a node may see another request than the node where a head says two things about its length. hyper
//! believes chunks and forgets a length beside them, and takes two lengths that are equal. Here both are refused, before
//! hyper has seen the head.
//!
//! hyper also answers a head that it cannot parse with a bare 400, which nobody counts, and cuts off what comes
//! after a `#`. So what it would not take unchanged is refused here, with the reason.
//!
//! Must never: let a head pass whose body could end at two places, or whose path hyper would mend.

use hyper::{Method, Uri};

use super::Refused;

/// Most lines of a head behind the first: what hyper takes.
pub(super) const LINES_MAX: usize = 100;
/// The version before ours, which knows no chunks.
const OLD: &[u8] = b"HTTP/1.0";

/// How the body behind a head ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// After this many bytes.
    Length(usize),
    /// By its last chunk.
    Chunks,
}

/// Whether what has come so far cannot be a request of HTTP/1: it is answered before its sender, who speaks something else,
/// waits for the end of a head that never comes.
pub(super) fn is_foreign(input: &[u8]) -> bool {
    let Some(first) = input.first() else { return false };
    let line = input.split_inclusive(|&byte| byte == b'\n').next().filter(|line| line.ends_with(b"\n"));
    let is_request = |line: &[u8]| line.windows(8).any(|part| part == b" HTTP/1.");
    !first.is_ascii_alphabetic() || line.is_some_and(|line| !is_request(line))
}

/// Behind the empty line that ends the head, if it has come; the first `searched` bytes hold no end.
pub(super) fn end(input: &[u8], searched: usize) -> Option<usize> {
    // The end may have begun in what was searched.
    let from = searched.saturating_sub(2);
    let ends = |at: usize| match input.get(at + 1..) {
        Some([b'\n', ..]) => Some(at + 2),
        Some([b'\r', b'\n', ..]) => Some(at + 3),
        _ => None,
    };
    (from..input.len()).filter(|&at| input[at] == b'\n').find_map(ends)
}

/// How the body behind a whole head ends, of a head that hyper takes.
///
/// # Errors
/// Why it is not taken.
pub(super) fn check(head: &[u8]) -> Result<Framing, Refused> {
    let malformed = |why| Refused::Malformed { why };
    let mut lines = head.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let version = request_line(lines.next().unwrap_or_default()).map_err(malformed)?;
    let (mut length, mut chunks) = (None, false);
    for (at, line) in lines.take_while(|line| !line.is_empty()).enumerate() {
        if at == LINES_MAX {
            return Err(Refused::TooManyLines { lines_max: LINES_MAX });
        }
        let (name, value) = header_line(line).map_err(malformed)?;
        if name.eq_ignore_ascii_case(b"content-length") {
            if length.is_some() {
                return Err(malformed("the head has two lengths (content-length)"));
            }
            let bytes = number(value);
            length = Some(bytes.ok_or(malformed("the length (content-length) is not a number of bytes"))?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunks || version == OLD || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(malformed(
                    "a body is sent with its length, or once in chunks (transfer-encoding: chunked) by HTTP/1.1",
                ));
            }
            chunks = true;
        }
    }
    match (length, chunks) {
        (Some(_), true) => {
            Err(malformed("the head has a length (content-length) beside chunks (transfer-encoding)"))
        }
        (None, true) => Ok(Framing::Chunks),
        (length, false) => Ok(Framing::Length(length.unwrap_or(0))),
    }
}

/// The version in the first line of a head.
fn request_line(line: &[u8]) -> Result<&[u8], &'static str> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("the first line is not METHOD PATH HTTP/1.1; a space in a path is written %20");
    };
    if Method::from_bytes(method).is_err() || !matches!(version, b"HTTP/1.1" | OLD) {
        return Err("the first line is not METHOD PATH HTTP/1.1");
    }
    // A fragment never leaves a browser. hyper would cut it off, and another key would be written.
    if target.contains(&b'#') {
        return Err("a # in a path is written %23");
    }
    match Uri::try_from(target) {
        Ok(_) => Ok(version),
        Err(_) => Err("the path has a byte that must be written as % and two digits of base 16"),
    }
}

/// The name and the value of another line of a head.
fn header_line(line: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let colon = line.iter().position(|&byte| byte == b':').unwrap_or(0);
    let (name, value) = (&line[..colon], line[colon..].get(1..).unwrap_or_default());
    if name.is_empty() || !name.iter().all(is_of_name) {
        return Err("a line of the head is not NAME: VALUE");
    }
    match value.iter().any(|&byte| byte.is_ascii_control() && byte != b'\t') {
        true => Err("a line of the head has a control character"),
        false => Ok((name, value.trim_ascii())),
    }
}

/// A number of bytes in digits.
fn number(digits: &[u8]) -> Option<usize> {
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|d| d.is_ascii_digit()))?;
    // More fits no memory, and no sum here.
    digits.parse().ok().filter(|&bytes| bytes <= usize::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> Result<Framing, Refused> {
        check(format!("PUT / HTTP/1.1\r\nhost: a\r\n{lines}\r\n").as_bytes())
    }

    #[test]
    fn a_head_ends_at_its_first_empty_line_however_it_arrives() {
        for (text, expected) in [
            ("GET / HTTP/1.1\r\na: b\r\n\r\nbody\r\n\r\n", Some(24)),
            ("GET /\n\n", Some(7)),
            ("GET /\n\r\n", Some(8)),
            ("GET /\r\n\n", Some(8)),
            ("GET /\r\n\r", None),
            ("GET /\r\na: b\r\n", None),
            ("", None),
        ] {
            assert_eq!(end(text.as_bytes(), 0), expected, "{text:?}");
            // In two pieces, cut anywhere.
            for cut in 0..text.len() {
                let first = end(&text.as_bytes()[..cut], 0);
                let found = first.or_else(|| end(text.as_bytes(), cut));
                assert_eq!(found, expected, "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn another_protocol_is_told_by_its_first_byte_or_line() {
        for foreign in
            [&b"TONTINE\x01\n"[..], b"*1\r\n$4\r\n", b"\x16\x03\x01", b"PING\r\n", b"PRI * HTTP/2.0\r\n"]
        {
            assert!(is_foreign(foreign), "{}", foreign.escape_ascii());
        }
        for ours in
            ["", "G", "GET /", "GET / HTTP/1.1", "GET / HTTP/1.0\r\n", "PUT /a HTTP/1.1\r\nhost: a\r\n"]
        {
            assert!(!is_foreign(ours.as_bytes()), "{ours}");
        }
    }

    #[test]
    fn a_body_ends_by_its_length_or_by_its_chunks() {
        assert_eq!(of(""), Ok(Framing::Length(0)));
        assert_eq!(of("Content-Length: 12\r\n"), Ok(Framing::Length(12)));
        assert_eq!(of("content-length:0012\t\r\n"), Ok(Framing::Length(12)));
        assert_eq!(of("Transfer-Encoding: Chunked\r\n"), Ok(Framing::Chunks));
        assert_eq!(of("x-content-length: 12\r\n"), Ok(Framing::Length(0)));
    }

    #[test]
    fn a_body_that_could_end_at_two_places_is_refused() {
        for lines in [
            "content-length: 1\r\ncontent-length: 2\r\n",
            "content-length: 1\r\nContent-Length: 1\r\n",
            "content-length: 1\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 1\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: identity\r\n",
            "transfer-encoding:\r\n",
            "content-length:\r\n",
            "content-length: 1, 1\r\n",
            "content-length: +1\r\n",
            "content-length: -1\r\n",
            "content-length: 0x1\r\n",
            "content-length: 1 1\r\n",
            "content-length: 99999999999999999999\r\n",
            "content-length: 18446744073709551615\r\n",
        ] {
            assert!(of(lines).is_err(), "{lines:?}");
        }
    }

    #[test]
    fn a_path_is_taken_unchanged_or_refused() {
        let of = |line: &str| check(format!("{line}\r\n\r\n").as_bytes());
        for line in [
            "GET / HTTP/1.1",
            "GET /a%23b?c=d HTTP/1.0",
            "OPTIONS * HTTP/1.1",
            "GET http://a/b HTTP/1.1",
            "GET /\u{e4} HTTP/1.1",
            "M-SEARCH / HTTP/1.1",
        ] {
            assert_eq!(of(line), Ok(Framing::Length(0)), "{line}");
        }
        let encoded = Refused::Malformed { why: "a # in a path is written %23" };
        for path in ["/a#b", "/a?b#c", "#", "/#", "http://a/b#c"] {
            assert_eq!(of(&format!("PUT {path} HTTP/1.1")), Err(encoded), "{path}");
        }
        for line in [
            "GET /a<b HTTP/1.1",
            "GET /a?b=\" HTTP/1.1",
            "GET /a`b HTTP/1.1",
            "GET a HTTP/1.1/",
            "GET /a b HTTP/1.1",
            "GET  / HTTP/1.1",
            "GET / HTTP/1.2",
            "GET / HTTP/1.1 ",
            "G(T / HTTP/1.1",
            "",
        ] {
            assert!(matches!(of(line), Err(Refused::Malformed { .. })), "{line}");
        }
    }

    #[test]
    fn a_line_is_a_name_and_a_value_and_there_are_not_too_many() {
        for lines in
            ["a\r\n", ": b\r\n", "a : b\r\n", " a: b\r\n", "a: \0\r\n", "a: b\rc: d\r\n", "a: \x7f\r\n"]
        {
            assert!(matches!(of(lines), Err(Refused::Malformed { .. })), "{lines:?}");
        }
        assert_eq!(of("a:\r\nb:\t\u{e4}\t\r\nc: d\n"), Ok(Framing::Length(0)));
        // `of` has its own line.
        assert_eq!(of(&"a: b\r\n".repeat(LINES_MAX - 1)), Ok(Framing::Length(0)));
        let more = of(&"a: b\r\n".repeat(LINES_MAX));
        assert_eq!(more, Err(Refused::TooManyLines { lines_max: LINES_MAX }));
        assert!(of("transfer-encoding: chunked\r\n").is_ok());
        assert!(check(b"PUT / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }
}
