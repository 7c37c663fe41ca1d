//! Replies, in the version of the protocol that the connection speaks.

use bytes::{BufMut, BytesMut};

use super::number::Digits;
use super::protocol::Protocol;

/// Appends replies to a connection's send buffer.
///
/// Arrays, maps, sets and pushes are written as their length; their elements follow as their own replies.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut BytesMut,
    protocol: Protocol,
}

impl<'a> ReplyWriter<'a> {
    /// Writes to `out` in `protocol`.
    pub fn new(out: &'a mut BytesMut, protocol: Protocol) -> Self {
        ReplyWriter { out, protocol }
    }

    /// The version in which it writes.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.put_slice(b"+OK\r\n");
    }

    /// A short text without line ends; any that it has become spaces.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: a code in capitals, a space, a sentence. Line ends become spaces.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    /// A whole number.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    /// Bytes.
    #[inline]
    pub fn bulk(&mut self, value: &[u8]) {
        self.out.reserve(value.len() + 32);
        self.number(b'$', value.len() as i64);
        self.out.put_slice(value);
        self.out.put_slice(b"\r\n");
    }

    /// No value.
    #[inline]
    pub fn null(&mut self) {
        self.out.put_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// No array.
    pub fn null_array(&mut self) {
        self.out.put_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The start of an array of this many elements.
    pub fn array(&mut self, length: usize) {
        self.number(b'*', length as i64);
    }

    /// The start of a map of this many pairs: key, value, key, value. In RESP2 an array of them all.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.number(b'*', 2 * pairs as i64),
            Protocol::Resp3 => self.number(b'%', pairs as i64),
        }
    }

    /// The start of a set of this many elements. In RESP2 an array.
    pub fn set(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.number(b'*', length as i64),
            Protocol::Resp3 => self.number(b'~', length as i64),
        }
    }

    /// The start of a message that nobody asked for. In RESP2 an array.
    pub fn push(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.number(b'*', length as i64),
            Protocol::Resp3 => self.number(b'>', length as i64),
        }
    }

    /// Yes or no. In RESP2 the number 1 or 0.
    pub fn boolean(&mut self, value: bool) {
        self.out.put_slice(match (self.protocol, value) {
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
        });
    }

    /// A floating-point number in its shortest exact form. In RESP2 a bulk.
    pub fn double(&mut self, value: f64) {
        let text = double_text(value);
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', &text),
        }
    }

    /// Text with a format of three letters, such as `txt`. In RESP2 a bulk of the text.
    pub fn verbatim(&mut self, format: &[u8; 3], text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.out.reserve(text.len() + 36);
                self.number(b'=', text.len() as i64 + 4);
                self.out.put_slice(format);
                self.out.put_u8(b':');
                self.out.put_slice(text);
                self.out.put_slice(b"\r\n");
            }
        }
    }

    #[inline]
    fn number(&mut self, kind: u8, value: i64) {
        let digits = Digits::of(value);
        let digits = digits.as_bytes();
        // One append of the whole line: each has its own check.
        let mut line = [kind; 23];
        line[1..=digits.len()].copy_from_slice(digits);
        line[digits.len() + 1] = b'\r';
        line[digits.len() + 2] = b'\n';
        self.out.put_slice(&line[..digits.len() + 3]);
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.out.reserve(text.len() + 3);
        self.out.put_u8(kind);
        for byte in text.bytes() {
            self.out.put_u8(if byte == b'\r' || byte == b'\n' { b' ' } else { byte });
        }
        self.out.put_slice(b"\r\n");
    }
}

fn double_text(value: f64) -> String {
    if value.is_nan() {
        "nan".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "inf" } else { "-inf" }.to_owned()
    } else if value == 0.0 || (1e-5..1e17).contains(&value.abs()) {
        format!("{value}")
    } else {
        format!("{value:e}")
    }
}
