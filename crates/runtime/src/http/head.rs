//! The head of a request: where it ends, and how long the body behind it is.
//!
//! A proxy in front of a node may see another request than the node where a head says two things about its length. hyper
//! believes chunks and forgets a length beside them, and takes two lengths that are equal. Here both are refused, before
//! hyper has seen the head.
//!
//! Must never: let a head pass whose body could end at two places.

/// How the body behind a head ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// After so many bytes.
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

/// How the body behind a whole head ends.
///
/// # Errors
/// Why that cannot be told.
pub(super) fn framing(head: &[u8]) -> Result<Framing, &'static str> {
    let (mut length, mut chunks) = (None, false);
    for line in head.split(|&byte| byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            if length.is_some() {
                return Err("the head has two lengths (content-length)");
            }
            length = Some(number(value).ok_or("the length (content-length) is not a number of bytes")?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunks || !value.eq_ignore_ascii_case(b"chunked") {
                return Err("a body is sent with its length, or once in chunks (transfer-encoding: chunked)");
            }
            chunks = true;
        }
    }
    match (length, chunks) {
        (Some(_), true) => Err("the head has a length (content-length) beside chunks (transfer-encoding)"),
        (None, true) => Ok(Framing::Chunks),
        (length, false) => Ok(Framing::Length(length.unwrap_or(0))),
    }
}

/// A number of bytes in digits.
fn number(digits: &[u8]) -> Option<usize> {
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|d| d.is_ascii_digit()))?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> Result<Framing, &'static str> {
        framing(format!("PUT / HTTP/1.1\r\nhost: a\r\n{lines}\r\n").as_bytes())
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
        ] {
            assert!(of(lines).is_err(), "{lines:?}");
        }
    }
}
