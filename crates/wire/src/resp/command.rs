//! Commands: arrays of bulk strings, and inline lines.
//!
//! The parser remembers how far it has come in a command that has not arrived whole, so a large value that trickles
//! in costs one look per arrival and not a new scan. A finished command is split off the buffer and owns its bytes;
//! its arguments are positions in them. Handing out an argument as [`Bytes`] costs a shared count, looking at it
//! costs nothing, and most commands only look at most of theirs.

use bytes::{Buf, Bytes, BytesMut};
use model::limits::{FRAME_BYTES_MAX, MULTI_KEYS_MAX};
use smallvec::SmallVec;

use super::argument::ArgRange;
use super::error::RespError;
use super::inline;
use super::number::{NumberLine, line};
use super::protocol::Protocol;
use super::reply::ReplyWriter;

/// Longest inline command in bytes, as in Redis.
const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Arguments of a command that is read to its end only to refuse it, as in Redis; one that announces more ends the
/// connection.
const DROPPED_ARGS_MAX: usize = 1024 * 1024;
/// Bytes that are kept of the name of such a command.
const DROPPED_NAME_BYTES_MAX: usize = 128;

/// What a connection may send in one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandLimits {
    /// Arguments, the command's name included. A command that has more is read to its end and handed out without them,
    /// to be refused; on a connection that has not authenticated, it is an error.
    pub args_max: usize,
    /// Bytes of one argument.
    pub bulk_bytes_max: usize,
    /// Bytes of a whole command with its lengths.
    pub command_bytes_max: usize,
    /// Whether the limits are those of a connection that has not authenticated, which its refusals then say.
    pub unauthenticated: bool,
}

impl CommandLimits {
    /// For a connection that may do everything: a multi-put of the most keys, a frame's worth of bytes.
    pub const DEFAULT: CommandLimits = CommandLimits {
        args_max: 2 * MULTI_KEYS_MAX + 1,
        bulk_bytes_max: FRAME_BYTES_MAX,
        command_bytes_max: FRAME_BYTES_MAX,
        unauthenticated: false,
    };

    /// For a connection that has not authenticated: enough to do so.
    pub const UNAUTHENTICATED: CommandLimits = CommandLimits {
        args_max: 10,
        bulk_bytes_max: 16 * 1024,
        command_bytes_max: 256 * 1024,
        unauthenticated: true,
    };
}

/// One command with at least one argument, the first being its name.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    bytes: Bytes,
    args: SmallVec<[ArgRange; 4]>,
    dropped: usize,
}

impl Command {
    /// The number of arguments, the name included.
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// Arguments that it came with and that are gone, because they were more than a command may have: all but the name.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// The name, in whatever case it was sent.
    pub fn name(&self) -> &[u8] {
        &self.bytes[self.args[0].range()]
    }

    /// An argument; 0 is the name.
    #[inline]
    pub fn arg(&self, position: usize) -> Option<&[u8]> {
        self.args.get(position).map(|arg| &self.bytes[arg.range()])
    }

    /// An argument, sharing the command's bytes.
    #[inline]
    pub fn bytes(&self, position: usize) -> Option<Bytes> {
        self.args.get(position).map(|arg| self.bytes.slice(arg.range()))
    }

    /// Bytes of the whole command as it came.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// All arguments, the name first.
    pub fn args(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.args.iter().map(|arg| &self.bytes[arg.range()])
    }

    /// Whether it is a part of an HTTP request that was taken for a command: a header `Host:`, or `POST`. Redis closes
    /// such a connection, and so must we: browsers and proxies can be made to send both, with commands after them.
    pub fn is_http(&self) -> bool {
        let host = self.name().get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"host:"));
        host || self.name().eq_ignore_ascii_case(b"post")
    }

    /// Appends a command as a client sends it.
    pub fn encode(args: &[&[u8]], out: &mut BytesMut) {
        let mut writer = ReplyWriter::new(out, Protocol::Resp2);
        writer.array(args.len());
        args.iter().for_each(|arg| writer.bulk(arg));
    }
}

/// A command that has arrived whole and is still at the front of its connection's input.
///
/// Most commands are answered at a look at their arguments; for these nothing is split off and shared. Hand in the
/// input unchanged.
#[derive(Debug)]
pub struct CommandRead {
    bytes: usize,
    args: SmallVec<[ArgRange; 4]>,
}

impl CommandRead {
    /// The number of arguments, the name included.
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// An argument; 0 is the name.
    #[inline]
    pub fn arg<'a>(&self, input: &'a [u8], position: usize) -> Option<&'a [u8]> {
        self.args.get(position).map(|arg| &input[arg.range()])
    }

    /// Takes it off the input.
    pub fn take(self, input: &mut BytesMut) -> Command {
        Command { bytes: input.split_to(self.bytes).freeze(), args: self.args, dropped: 0 }
    }

    /// Drops it from the input.
    pub fn pass(self, input: &mut BytesMut) {
        input.advance(self.bytes);
    }
}

/// The next command of an input.
#[derive(Debug)]
pub enum Arrived {
    /// It is there: take it, or pass it.
    Seen(CommandRead),
    /// It has been taken: it was an inline line, or had more arguments than are kept.
    Taken(Command),
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.args().map(|arg| arg.escape_ascii().to_string())).finish()
    }
}

impl Dropping {
    /// Takes the name off the input.
    fn new(name: CommandRead, left: usize, input: &mut BytesMut) -> Self {
        let kept = name.arg(input, 0).unwrap_or_default();
        let bytes = Bytes::copy_from_slice(&kept[..kept.len().min(DROPPED_NAME_BYTES_MAX)]);
        let args = SmallVec::from_slice(&[ArgRange::new(0, bytes.len())]);
        let dropping = Dropping { command: Command { bytes, args, dropped: left }, left, bytes: name.bytes };
        name.pass(input);
        dropping
    }
}

/// Takes commands off the front of one connection's input.
#[derive(Debug)]
pub struct CommandParser {
    limits: CommandLimits,
    /// Arguments to be kept of those that the command at the front has announced; 0 before its first line is read.
    expected: usize,
    /// Those that come after them, and are dropped as they come.
    surplus: usize,
    /// A command of which the rest is being dropped.
    dropping: Option<Dropping>,
    /// Those of them that have arrived.
    args: SmallVec<[ArgRange; 4]>,
    /// Everything before this position of the input is done with.
    at: usize,
    /// Length of the argument at that position, once its line is read.
    bulk: Option<usize>,
}

/// A command with more arguments than are kept, of which the name has arrived.
#[derive(Debug)]
struct Dropping {
    command: Command,
    /// Arguments that are still missing.
    left: usize,
    /// Bytes that it has so far.
    bytes: usize,
}

impl CommandParser {
    /// A parser for a new connection.
    ///
    /// # Panics
    /// When a limit is 4 GiB or more.
    pub fn new(limits: CommandLimits) -> Self {
        let (expected, surplus, args) = (0, 0, SmallVec::new());
        let mut parser = CommandParser { limits, expected, surplus, dropping: None, args, at: 0, bulk: None };
        parser.set_limits(limits);
        parser
    }

    /// Changes the limits, for example once the connection has authenticated.
    ///
    /// # Panics
    /// When a limit is 4 GiB or more.
    pub fn set_limits(&mut self, limits: CommandLimits) {
        assert!(u32::try_from(limits.command_bytes_max).is_ok(), "positions in a command have 32 bits");
        self.limits = limits;
    }

    /// Bytes that the argument at hand still lacks, given how many are in the input; 0 when that is not known.
    ///
    /// A peer can announce much and send nothing: reserve at once no more than a few times what has arrived.
    pub fn bytes_lacking(&self, input_bytes: usize) -> usize {
        // What is dropped as it comes needs no room.
        let kept = self.bulk.filter(|_| self.dropping.is_none());
        kept.map_or(0, |length| (self.at + length + 2).saturating_sub(input_bytes))
    }

    /// Takes the next command off the front of `input`; `None` when it has not arrived whole.
    ///
    /// Until it has, the caller only appends to `input`. Empty commands are passed over.
    ///
    /// # Errors
    /// After one the connection cannot go on, and neither can the parser.
    pub fn parse(&mut self, input: &mut BytesMut) -> Result<Option<Command>, RespError> {
        Ok(self.look(input)?.map(|arrived| match arrived {
            Arrived::Seen(seen) => seen.take(input),
            Arrived::Taken(command) => command,
        }))
    }

    /// As [`parse`](Self::parse), but leaves the command at the front of `input`, for the caller to take or to pass
    /// before the next call.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn look(&mut self, input: &mut BytesMut) -> Result<Option<Arrived>, RespError> {
        loop {
            if self.dropping.is_some() {
                return Ok(self.drop_args(input)?.map(Arrived::Taken));
            }
            if self.expected == 0 {
                match input.first() {
                    None => return Ok(None),
                    Some(b'*') => match self.read_header(input)? {
                        Some(0) => continue,
                        Some(args) => self.expected = args,
                        None => return Ok(None),
                    },
                    Some(_) => match self.read_inline(input)? {
                        Some(command) if command.args.is_empty() => continue,
                        command => return Ok(command.map(Arrived::Taken)),
                    },
                }
            }
            if !self.read_args(input)? {
                return Ok(None);
            }
            let seen = CommandRead { bytes: self.at, args: std::mem::take(&mut self.args) };
            (self.expected, self.at) = (0, 0);
            match std::mem::take(&mut self.surplus) {
                0 => return Ok(Some(Arrived::Seen(seen))),
                surplus => self.dropping = Some(Dropping::new(seen, surplus, input)),
            }
        }
    }

    /// Reads `*<count>\r\n`; a count of zero or less is taken off the input.
    #[inline]
    fn read_header(&mut self, input: &mut BytesMut) -> Result<Option<usize>, RespError> {
        let (count, length) = match line(&input[1..]) {
            NumberLine::Incomplete => return Ok(None),
            NumberLine::Invalid => return Err(RespError::MultibulkLength),
            NumberLine::Number(count, length) => (count, length),
        };
        let Ok(count @ 1..) = usize::try_from(count) else {
            input.advance(1 + length);
            return Ok(Some(0));
        };
        self.at = 1 + length;
        if count <= self.limits.args_max {
            return Ok(Some(count));
        }
        if self.limits.unauthenticated {
            return Err(RespError::UnauthenticatedMultibulkLength);
        }
        if count > DROPPED_ARGS_MAX {
            return Err(RespError::MultibulkLength);
        }
        self.surplus = count - 1;
        Ok(Some(1))
    }

    /// Reads arguments up to the number announced; false when they have not all arrived.
    #[inline]
    fn read_args(&mut self, input: &[u8]) -> Result<bool, RespError> {
        while self.args.len() < self.expected {
            let length = match self.bulk {
                Some(length) => length,
                None => match self.read_bulk_length(input)? {
                    Some(length) => length,
                    None => return Ok(false),
                },
            };
            let end = self.at + length;
            let Some(line_end) = input.get(end..end + 2) else {
                self.bulk = Some(length);
                return Ok(false);
            };
            if line_end != b"\r\n" {
                return Err(RespError::BulkEnd);
            }
            self.args.push(ArgRange::new(self.at, length));
            self.at = end + 2;
            self.bulk = None;
        }
        Ok(true)
    }

    /// Takes the rest of a command that is dropped off the input; hands the command out when all of it has come.
    #[cold]
    fn drop_args(&mut self, input: &mut BytesMut) -> Result<Option<Command>, RespError> {
        let Some(mut dropping) = self.dropping.take() else { return Ok(None) };
        while dropping.left > 0 {
            let length = match self.bulk {
                Some(length) => length,
                None => {
                    let Some(length) = self.read_bulk_length(input)? else { break };
                    input.advance(self.at);
                    dropping.bytes += std::mem::take(&mut self.at) + length + 2;
                    if dropping.bytes > self.limits.command_bytes_max {
                        return Err(RespError::CommandTooBig { bytes_max: self.limits.command_bytes_max });
                    }
                    length
                }
            };
            let come = length.min(input.len());
            input.advance(come);
            self.bulk = Some(length - come);
            let Some(line_end) = input.get(..2).filter(|_| come == length) else { break };
            if line_end != b"\r\n" {
                return Err(RespError::BulkEnd);
            }
            input.advance(2);
            self.bulk = None;
            dropping.left -= 1;
        }
        if dropping.left == 0 {
            return Ok(Some(dropping.command));
        }
        self.dropping = Some(dropping);
        Ok(None)
    }

    #[inline]
    fn read_bulk_length(&mut self, input: &[u8]) -> Result<Option<usize>, RespError> {
        let (number, line_bytes) = match input.get(self.at..) {
            None | Some([]) => return Ok(None),
            Some([b'$', rest @ ..]) => match line(rest) {
                NumberLine::Incomplete => return Ok(None),
                NumberLine::Invalid => return Err(RespError::BulkLength),
                NumberLine::Number(number, length) => (number, length),
            },
            Some([got, ..]) => return Err(RespError::ExpectedBulk { got: *got }),
        };
        let length = usize::try_from(number).map_err(|_| RespError::BulkLength)?;
        if length > self.limits.bulk_bytes_max {
            return Err(match self.limits.unauthenticated {
                true => RespError::UnauthenticatedBulkLength,
                false => RespError::BulkLength,
            });
        }
        let at = self.at + 1 + line_bytes;
        if at + length + 2 > self.limits.command_bytes_max {
            return Err(RespError::CommandTooBig { bytes_max: self.limits.command_bytes_max });
        }
        self.at = at;
        Ok(Some(length))
    }

    /// Reads one line; a command without arguments is an empty line.
    #[cold]
    fn read_inline(&mut self, input: &mut BytesMut) -> Result<Option<Command>, RespError> {
        if let Some(looks_like) = inline::foreign_start(input) {
            return Err(RespError::Foreign { looks_like });
        }
        let Some(found) = input[self.at..].iter().position(|&byte| byte == b'\n') else {
            self.at = input.len();
            return if input.len() > INLINE_BYTES_MAX { Err(RespError::InlineTooBig) } else { Ok(None) };
        };
        let end = self.at + found;
        if end > INLINE_BYTES_MAX {
            return Err(RespError::InlineTooBig);
        }
        self.at = 0;
        let line = input.split_to(end + 1);
        let line = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
        if let Some(looks_like) = inline::foreign_line(line) {
            return Err(RespError::Foreign { looks_like });
        }
        let mut bytes = BytesMut::with_capacity(line.len());
        let args = inline::split(line, &mut bytes)?;
        Ok(Some(Command { bytes: bytes.freeze(), args, dropped: 0 }))
    }
}
