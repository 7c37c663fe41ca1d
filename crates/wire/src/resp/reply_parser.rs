//! The client's side: replies off the front of a receive buffer.

use bytes::{Bytes, BytesMut};

use super::error::RespError;
use super::number::{NumberLine, integer, line};

/// A reply of either version.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+`
    Simple(Bytes),
    /// `-`
    Error(Bytes),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Bytes),
    /// `_`, and RESP2's lengths of -1
    Null,
    /// `#`
    Boolean(bool),
    /// `,`
    Double(f64),
    /// `(`
    BigNumber(Bytes),
    /// `!`
    BulkError(Bytes),
    /// `=`
    Verbatim {
        /// Three letters.
        format: Bytes,
        /// The text.
        text: Bytes,
    },
    /// `*`
    Array(Vec<Reply>),
    /// `~`
    Set(Vec<Reply>),
    /// `>`
    Push(Vec<Reply>),
    /// `%`
    Map(Vec<(Reply, Reply)>),
}

/// Longest text or bulk in bytes: Redis's own limit.
const BULK_BYTES_MAX: usize = 512 << 20;

/// Deepest nesting of arrays, maps, sets and pushes.
const DEPTH_MAX: usize = 16;

/// Takes replies off the front of one connection's input.
#[derive(Debug, Default)]
pub struct ReplyParser {
    /// The reply at the front cannot be whole before the input has this many bytes.
    bytes_min: usize,
}

impl ReplyParser {
    /// Takes the next reply off the front of `input`; `None` when it has not arrived whole. Until it has, the caller
    /// only appends.
    ///
    /// # Errors
    /// [`RespError::Reply`] when it is none, longer than Redis allows, or nested deeper than 16 levels.
    pub fn parse(&mut self, input: &mut BytesMut) -> Result<Option<Reply>, RespError> {
        if input.len() < self.bytes_min {
            return Ok(None);
        }
        // Measure first, so that nothing is allocated on the word of a length that has nothing behind it.
        match measure(input, 0, DEPTH_MAX)? {
            Extent::Lacks { bytes_min } => {
                self.bytes_min = bytes_min;
                Ok(None)
            }
            Extent::Ends(end) => {
                self.bytes_min = 0;
                let source = input.split_to(end).freeze();
                let reply = Builder { source, at: 0 }.reply()?;
                Ok(Some(reply))
            }
        }
    }
}

/// How far a reply reaches.
enum Extent {
    Ends(usize),
    Lacks { bytes_min: usize },
}

fn measure(input: &[u8], start: usize, depth: usize) -> Result<Extent, RespError> {
    let Some(&kind) = input.get(start) else {
        return Ok(Extent::Lacks { bytes_min: start + 1 });
    };
    let rest = &input[start + 1..];
    match kind {
        b'+' | b'-' | b'_' | b'#' | b',' | b'(' => {
            Ok(match rest.windows(2).position(|window| window == b"\r\n") {
                Some(found) => Extent::Ends(start + 1 + found + 2),
                None => Extent::Lacks { bytes_min: input.len() + 1 },
            })
        }
        b':' | b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' => match line(rest) {
            NumberLine::Incomplete => Ok(Extent::Lacks { bytes_min: input.len() + 1 }),
            NumberLine::Invalid => Err(RespError::Reply),
            NumberLine::Number(number, length) => {
                measure_counted(input, kind, number, start + 1 + length, depth)
            }
        },
        _ => Err(RespError::Reply),
    }
}

fn measure_counted(
    input: &[u8],
    kind: u8,
    number: i64,
    body: usize,
    depth: usize,
) -> Result<Extent, RespError> {
    let count = match (kind, number) {
        (b':', _) | (b'$' | b'*', -1) => return Ok(Extent::Ends(body)),
        (_, number) => usize::try_from(number).map_err(|_| RespError::Reply)?,
    };
    if matches!(kind, b'$' | b'!' | b'=') {
        if count > BULK_BYTES_MAX {
            return Err(RespError::Reply);
        }
        let end = body + count + 2;
        return match input.get(end - 2..end) {
            None => Ok(Extent::Lacks { bytes_min: end }),
            Some(b"\r\n") => Ok(Extent::Ends(end)),
            Some(_) => Err(RespError::Reply),
        };
    }
    let depth = depth.checked_sub(1).ok_or(RespError::Reply)?;
    let elements = if kind == b'%' { count.checked_mul(2).ok_or(RespError::Reply)? } else { count };
    let mut at = body;
    for _ in 0..elements {
        match measure(input, at, depth)? {
            Extent::Ends(end) => at = end,
            lacks @ Extent::Lacks { .. } => return Ok(lacks),
        }
    }
    Ok(Extent::Ends(at))
}

/// Builds a reply that has been measured.
struct Builder {
    source: Bytes,
    at: usize,
}

impl Builder {
    fn reply(&mut self) -> Result<Reply, RespError> {
        let kind = self.source[self.at];
        self.at += 1;
        match kind {
            b'+' => Ok(Reply::Simple(self.text())),
            b'-' => Ok(Reply::Error(self.text())),
            b'(' => Ok(Reply::BigNumber(self.text())),
            b'_' => self.text().is_empty().then_some(Reply::Null).ok_or(RespError::Reply),
            b'#' => match &self.text()[..] {
                b"t" => Ok(Reply::Boolean(true)),
                b"f" => Ok(Reply::Boolean(false)),
                _ => Err(RespError::Reply),
            },
            b',' => {
                let text = self.text();
                let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                number.map(Reply::Double).ok_or(RespError::Reply)
            }
            b':' => Ok(Reply::Integer(self.number()?)),
            kind => match self.number()? {
                -1 => Ok(Reply::Null),
                count => self.counted(kind, usize::try_from(count).map_err(|_| RespError::Reply)?),
            },
        }
    }

    fn counted(&mut self, kind: u8, count: usize) -> Result<Reply, RespError> {
        Ok(match kind {
            b'$' => Reply::Bulk(self.body(count)),
            b'!' => Reply::BulkError(self.body(count)),
            b'=' => {
                let body = self.body(count);
                if body.get(3) != Some(&b':') {
                    return Err(RespError::Reply);
                }
                Reply::Verbatim { format: body.slice(..3), text: body.slice(4..) }
            }
            b'%' => Reply::Map(
                (0..count).map(|_| Ok((self.reply()?, self.reply()?))).collect::<Result<_, RespError>>()?,
            ),
            b'~' => Reply::Set(self.elements(count)?),
            b'>' => Reply::Push(self.elements(count)?),
            _ => Reply::Array(self.elements(count)?),
        })
    }

    fn elements(&mut self, count: usize) -> Result<Vec<Reply>, RespError> {
        (0..count).map(|_| self.reply()).collect()
    }

    fn text(&mut self) -> Bytes {
        let found = self.source[self.at..].windows(2).position(|window| window == b"\r\n");
        let length = found.expect("a measured line has an end");
        self.body(length)
    }

    fn number(&mut self) -> Result<i64, RespError> {
        integer(&self.text()).ok_or(RespError::Reply)
    }

    fn body(&mut self, length: usize) -> Bytes {
        let body = self.source.slice(self.at..self.at + length);
        self.at += length + 2;
        body
    }
}
