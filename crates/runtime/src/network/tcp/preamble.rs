//! The first bytes of a link, by which both ends know that they speak the same protocol.
//!
//! The side that connects sends the preamble, the side that accepted answers the same, then frames follow. The line
//! feed at its end makes line protocols (Redis, HTTP) on a wrong port answer at once instead of waiting for more.
//!
//! Whoever comes with another protocol is answered in that protocol, so that a person who mixed up two ports reads
//! what happened instead of seeing a hang.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::network::NetworkError;
use crate::network::stream::{Stream, WANTS_TLS};

/// Protocol family and preamble version.
pub(super) const PREAMBLE: [u8; 9] = *b"TONTINE\x01\n";

/// Length of the protocol family's name within the preamble.
const FAMILY: usize = 7;

/// How long the other side may take to send its preamble.
pub(super) const PREAMBLE_TIME_MAX: Duration = Duration::from_secs(5);

/// How long, and how many bytes, we go on reading from a foreign peer so that it gets our answer: closing with
/// unread bytes would reset the connection and destroy the answer on its way.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(200);
const DRAIN_BYTES_MAX: usize = 64 * 1024;

const ANSWER_LINE: &[u8] = b"-ERR this is tontine's native port; Redis clients connect to its RESP port\r\n";
const ANSWER_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 69\r\n\
    Connection: close\r\n\r\nthis is tontine's native port; HTTP clients connect to its HTTP port\n";

/// Greets as the side that connected.
///
/// # Errors
/// [`NetworkError::Foreign`], or [`NetworkError::Closed`] when the peer closed or broke the connection. The caller
/// limits the time.
pub(super) async fn greet(stream: &mut Stream) -> Result<(), NetworkError> {
    let greeted = async {
        stream.write_all(&PREAMBLE).await.map_err(Failure::Broken)?;
        stream.flush().await.map_err(Failure::Broken)?;
        read(stream).await
    };
    greeted.await.map_err(|failure| match failure {
        Failure::Foreign(first) if first.len() > 1 && WANTS_TLS.starts_with(&first) => NetworkError::Tls {
            address: String::new(),
            reason: "it takes no connection without TLS; name the certificate of its node authority"
                .to_owned(),
        },
        Failure::Foreign(first) => NetworkError::Foreign { looks_like: looks_like(&first) },
        // The peer says only now what it thinks of our certificate.
        Failure::Broken(error) if error.kind() == io::ErrorKind::InvalidData => {
            NetworkError::Tls { address: String::new(), reason: error.to_string() }
        }
        Failure::Broken(_) => NetworkError::Closed,
    })
}

/// Answers as the side that accepted; a foreign peer is told in its own language.
///
/// # Errors
/// [`NetworkError::Foreign`], or [`NetworkError::Closed`] when the peer closed, broke the connection or did not
/// send its preamble in time.
pub(super) async fn answer(stream: &mut Stream) -> Result<(), NetworkError> {
    let read =
        tokio::time::timeout(PREAMBLE_TIME_MAX, read(stream)).await.map_err(|_| NetworkError::Closed)?;
    match read {
        Ok(()) => {
            stream.write_all(&PREAMBLE).await.map_err(|_| NetworkError::Closed)?;
            stream.flush().await.map_err(|_| NetworkError::Closed)
        }
        Err(Failure::Broken(_)) => Err(NetworkError::Closed),
        Err(Failure::Foreign(first)) => {
            refuse(stream, &first).await;
            Err(NetworkError::Foreign { looks_like: looks_like(&first) })
        }
    }
}

/// A fatal alert, *handshake failure*, to a peer that speaks TLS where none is spoken: text would be reported as a
/// malformed record.
const ALERT_TLS: &[u8] = &[0x15, 3, 1, 0, 2, 2, 40];

enum Failure {
    /// The first bytes, of which the last ones read differ from the preamble.
    Foreign(Vec<u8>),
    /// The connection ended or failed.
    Broken(io::Error),
}

/// Reads the preamble and not one byte more; gives up at the first byte that differs.
async fn read(stream: &mut Stream) -> Result<(), Failure> {
    let mut bytes = [0_u8; PREAMBLE.len()];
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]).await {
            Ok(0) => return Err(Failure::Broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => filled += count,
            Err(error) => return Err(Failure::Broken(error)),
        }
        if bytes[..filled] != PREAMBLE[..filled] {
            return Err(Failure::Foreign(bytes[..filled].to_vec()));
        }
    }
    Ok(())
}

/// What protocol begins with these bytes.
pub(in crate::network) fn looks_like(first: &[u8]) -> &'static str {
    const HTTP: [&[u8]; 8] = [b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"HTTP"];
    let family_bytes = first.len().min(FAMILY);
    if first.len() > FAMILY && first[..family_bytes] == PREAMBLE[..family_bytes] {
        return "another version of the native protocol";
    }
    if HTTP.iter().any(|method| first.starts_with(method) || (first.len() < 4 && method.starts_with(first))) {
        return "HTTP";
    }
    match first[0] {
        b'*' | b'$' | b'+' | b'-' | b':' | b'_' | b'%' => "RESP (Redis)",
        // A handshake or an alert record, followed by the major version 3.
        0x15 | 0x16 if first.len() < 2 || first[1] == 3 => "TLS",
        byte if byte.is_ascii_alphabetic() => "RESP (Redis) or another line protocol",
        _ => "an unknown protocol",
    }
}

/// Tells a foreign peer where it is. Best effort: it may be gone already.
async fn refuse(stream: &mut Stream, first: &[u8]) {
    let answer = match looks_like(first) {
        "HTTP" => ANSWER_HTTP,
        "TLS" => ALERT_TLS,
        _ => ANSWER_LINE,
    };
    if stream.write_all(answer).await.is_ok() {
        drain(stream).await;
    }
}

/// Gives a peer that is parted with the time to read what was said last.
pub(in crate::network) async fn drain<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let draining = async {
        stream.shutdown().await?;
        let mut scratch = [0_u8; 4096];
        let mut drained = 0;
        while drained < DRAIN_BYTES_MAX {
            match stream.read(&mut scratch).await? {
                0 => break,
                count => drained += count,
            }
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, draining).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_recognised_by_their_first_bytes() {
        for (first, expected) in [
            (&b"*1\r\n$4\r\nPI"[..], "RESP (Redis)"),
            (b"PING\r\n", "RESP (Redis) or another line protocol"),
            (b"-ERR unkn", "RESP (Redis)"),
            (b"GET / HTT", "HTTP"),
            (b"HTTP/1.1 ", "HTTP"),
            (b"G", "HTTP"),
            (b"\x16\x03\x01\x02\x00", "TLS"),
            (b"TONTINE\x02\n", "another version of the native protocol"),
            (b"TONIC", "RESP (Redis) or another line protocol"),
            (b"\x00\x00", "an unknown protocol"),
        ] {
            assert_eq!(looks_like(first), expected, "{}", first.escape_ascii());
        }
    }

    #[test]
    fn the_http_answer_announces_the_length_it_has() {
        let text = std::str::from_utf8(ANSWER_HTTP).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", body.len());
    }
}
