//! Redis commands and replies: any cutting of the input gives the same commands, replies and errors. The first byte
//! says where to cut.

use bytes::BytesMut;
use wire::resp::{CommandLimits, CommandParser, ReplyParser, RespError};

type Outcome = (Vec<String>, Option<RespError>);

fn in_pieces(
    input: &[u8],
    piece: usize,
    mut parse: impl FnMut(&mut BytesMut) -> Result<Option<String>, RespError>,
) -> Outcome {
    let (mut buffer, mut parsed) = (BytesMut::new(), Vec::new());
    for piece in input.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match parse(&mut buffer) {
                Ok(None) => break,
                Ok(Some(one)) => parsed.push(one),
                Err(error) => return (parsed, Some(error)),
            }
        }
    }
    (parsed, None)
}

fn commands(input: &[u8], piece: usize) -> Outcome {
    let limits =
        CommandLimits { args_max: 8, bulk_bytes_max: 64, command_bytes_max: 128, unauthenticated: false };
    let mut parser = CommandParser::new(limits);
    in_pieces(input, piece, |buffer| Ok(parser.parse(buffer)?.map(|command| format!("{command:?}"))))
}

fn replies(input: &[u8], piece: usize) -> Outcome {
    let mut parser = ReplyParser::default();
    in_pieces(input, piece, |buffer| Ok(parser.parse(buffer)?.map(|reply| format!("{reply:?}"))))
}

/// Panics when pieces of the input are understood otherwise than the whole.
pub fn check(input: &[u8]) {
    let Some((&piece, input)) = input.split_first() else { return };
    let (piece, whole) = (usize::from(piece) % 16 + 1, input.len().max(1));
    assert_eq!(commands(input, piece), commands(input, whole));
    assert_eq!(replies(input, piece), replies(input, whole));
}
