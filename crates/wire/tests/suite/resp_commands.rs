//! Commands off a connection, however the network cuts them.

use bytes::BytesMut;
use expect_test::{Expect, expect};
use proptest::collection::vec;
use proptest::prelude::*;
use wire::resp::{Arrived, Command, CommandLimits, CommandParser, RespError};

/// What comes out of `input` when it arrives in pieces of these lengths, over and over: commands, then perhaps the
/// error.
fn parse_in_pieces(
    input: &[u8],
    pieces: &[usize],
    limits: CommandLimits,
) -> (Vec<Vec<Vec<u8>>>, Option<RespError>) {
    let mut parser = CommandParser::new(limits);
    let (mut buffer, mut commands) = (BytesMut::new(), Vec::new());
    let (mut rest, mut pieces) = (input, pieces.iter().cycle());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((*pieces.next().unwrap()).clamp(1, rest.len()));
        buffer.extend_from_slice(piece);
        rest = after;
        loop {
            match parser.parse(&mut buffer) {
                Ok(None) => break,
                Ok(Some(command)) => commands.push(command.args().map(<[u8]>::to_vec).collect()),
                Err(error) => return (commands, Some(error)),
            }
        }
    }
    (commands, None)
}

fn show((commands, error): (Vec<Vec<Vec<u8>>>, Option<RespError>)) -> String {
    let mut text = String::new();
    for command in commands {
        let args: Vec<String> = command.iter().map(|arg| arg.escape_ascii().to_string()).collect();
        text += &format!("[{}]\n", args.join("|"));
    }
    if let Some(error) = error {
        text += &format!("{error}\n");
    }
    text
}

/// The same for every way to cut the input into equal pieces.
fn check(input: &[u8], expected: Expect) {
    let whole = show(parse_in_pieces(input, &[input.len()], CommandLimits::DEFAULT));
    for piece in 1..input.len().min(40) {
        assert_eq!(
            show(parse_in_pieces(input, &[piece], CommandLimits::DEFAULT)),
            whole,
            "in pieces of {piece}"
        );
    }
    expected.assert_eq(&whole);
}

#[test]
fn pipelined_commands_come_out_in_order() {
    check(
        b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nPING\r\n",
        expect![[r#"
            [GET|k]
            [SET|k|\r\n]
            [PING]
        "#]],
    );
}

#[test]
fn arguments_may_be_empty_and_hold_any_bytes() {
    check(
        b"*3\r\n$4\r\nECHO\r\n$0\r\n\r\n$4\r\n\x00\xff\r\n\r\n",
        expect![[r#"
        [ECHO||\x00\xff\r\n]
    "#]],
    );
}

#[test]
fn empty_commands_are_passed_over() {
    check(
        b"*0\r\n*-1\r\n\r\n\n   \r\n*1\r\n$4\r\nPING\r\n*-5\r\nPING\r\n",
        expect![[r#"
        [PING]
        [PING]
    "#]],
    );
}

#[test]
fn inline_commands_split_at_spaces_outside_quotes() {
    check(
        b"SET  key \"a b\\x41\\n\\\"\" 'it\\'s \\n'\r\nget k\"e\"\nPING\r\n",
        expect![[r#"
        [SET|key|a bA\n\"|it\'s \\n]
        [get|ke]
        [PING]
    "#]],
    );
}

#[test]
fn inline_quotes_must_close_at_the_end_of_a_word() {
    check(
        b"SET \"k\r\n",
        expect![[r#"
        Protocol error: unbalanced quotes in request
    "#]],
    );
    check(
        b"SET 'k\r\n",
        expect![[r#"
        Protocol error: unbalanced quotes in request
    "#]],
    );
    check(
        b"SET \"k\"v\r\n",
        expect![[r#"
        Protocol error: unbalanced quotes in request
    "#]],
    );
    check(
        b"SET 'k'v\r\n",
        expect![[r#"
        Protocol error: unbalanced quotes in request
    "#]],
    );
}

#[test]
fn a_count_that_is_no_number_is_refused() {
    check(
        b"PING\r\n*x\r\n",
        expect![[r#"
        [PING]
        Protocol error: invalid multibulk length
    "#]],
    );
    check(
        b"*\r\n",
        expect![[r#"
        Protocol error: invalid multibulk length
    "#]],
    );
    check(
        b"*01\r\n",
        expect![[r#"
        Protocol error: invalid multibulk length
    "#]],
    );
    check(
        b"*1 \r\n",
        expect![[r#"
        Protocol error: invalid multibulk length
    "#]],
    );
    check(
        b"*99999999999999999999\r\n",
        expect![[r#"
        Protocol error: invalid multibulk length
    "#]],
    );
    check(
        b"*1048577\r\n",
        expect![[r#"
        Protocol error: invalid multibulk length
    "#]],
    );
}

#[test]
fn a_length_that_is_no_number_is_refused() {
    check(
        b"*1\r\n$x\r\n",
        expect![[r#"
        Protocol error: invalid bulk length
    "#]],
    );
    check(
        b"*1\r\n$-1\r\n",
        expect![[r#"
        Protocol error: invalid bulk length
    "#]],
    );
    check(
        b"*1\r\n$\r\n",
        expect![[r#"
        Protocol error: invalid bulk length
    "#]],
    );
    check(
        b"*1\r\n$9223372036854775807\r\n",
        expect![[r#"
        Protocol error: invalid bulk length
    "#]],
    );
    check(
        b"*1\r\n$67108865\r\n",
        expect![[r#"
        Protocol error: invalid bulk length
    "#]],
    );
    check(
        b"*1\r\n$67108860\r\n",
        expect![[r#"
        Protocol error: too big command, the limit is 67108864 bytes
    "#]],
    );
}

#[test]
fn an_argument_must_start_and_end_where_it_should() {
    check(
        b"*1\r\n:1\r\n",
        expect![[r#"
        Protocol error: expected '$', got ':'
    "#]],
    );
    check(
        b"*1\r\n\r\n",
        expect![[r#"
        Protocol error: expected '$', got '\r'
    "#]],
    );
    check(
        b"*1\r\n$4\r\nPINGPONG",
        expect![[r#"
        Protocol error: bulk does not end where its length says
    "#]],
    );
    check(
        b"*1\r\n$4\rxPING\r\n",
        expect![[r#"
        Protocol error: invalid bulk length
    "#]],
    );
}

#[test]
fn other_protocols_are_recognised() {
    check(
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        expect![[r#"
        Protocol error: this port speaks the Redis protocol, not HTTP
    "#]],
    );
    check(
        b"TONTINE\x01\n\x05\x00\x00\x00",
        expect![[r#"
        Protocol error: this port speaks the Redis protocol, not the native protocol
    "#]],
    );
    check(
        b"POST /put HTTP/1.0\r\n",
        expect![[r#"
        Protocol error: this port speaks the Redis protocol, not HTTP
    "#]],
    );
    check(
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        expect![[r#"
        Protocol error: this port speaks the Redis protocol, not TLS
    "#]],
    );
}

/// `curl -X SET` made a command of its first line.
#[test]
fn an_http_request_is_recognised_whatever_its_method() {
    for line in ["SET /k HTTP/1.1", "FOO http://h/k HTTP/1.0", "PRI * HTTP/2.0", "CONNECT h:1 HTTP/1.1"] {
        let (commands, error) =
            parse_in_pieces(format!("{line}\r\n").as_bytes(), &[1000], CommandLimits::DEFAULT);
        assert_eq!((commands, error), (vec![], Some(RespError::Foreign { looks_like: "HTTP" })), "{line}");
    }
    let is_http = |name: &str| {
        let mut input = BytesMut::from(format!("*1\r\n${}\r\n{name}\r\n", name.len()).as_bytes());
        CommandParser::new(CommandLimits::DEFAULT).parse(&mut input).unwrap().unwrap().is_http()
    };
    assert!(["POST", "post", "Host:", "HOST:localhost"].into_iter().all(is_http));
    assert!(!["POS", "POSTS", "Host", "host", "GET", ""].into_iter().any(is_http));
}

#[test]
fn a_key_may_look_like_another_protocol() {
    check(
        b"SET k HTTP/1.1\r\nGET HTTP/1.1\r\nSET /k 'HTTP/1.1'\r\n",
        expect![[r#"
        [SET|k|HTTP/1.1]
        [GET|HTTP/1.1]
        [SET|/k|HTTP/1.1]
    "#]],
    );
}

#[test]
fn an_inline_command_without_end_is_refused_at_its_limit() {
    let line = vec![b'a'; 64 * 1024];
    assert_eq!(parse_in_pieces(&line, &[1000], CommandLimits::DEFAULT), (vec![], None));
    let line = vec![b'a'; 64 * 1024 + 1];
    for pieces in [&[1000][..], &[70_000]] {
        assert_eq!(
            parse_in_pieces(&line, pieces, CommandLimits::DEFAULT),
            (vec![], Some(RespError::InlineTooBig))
        );
    }
    let line = [vec![b'a'; 64 * 1024 + 1], b"\r\n".to_vec()].concat();
    assert_eq!(parse_in_pieces(&line, &[70_000], CommandLimits::DEFAULT).1, Some(RespError::InlineTooBig));
}

#[test]
fn before_authentication_commands_are_small_and_the_refusal_says_so() {
    let parse = |input: &[u8]| parse_in_pieces(input, &[7], CommandLimits::UNAUTHENTICATED);
    assert_eq!(parse(b"*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n").0.len(), 1);
    let many = parse(b"*11\r\n").1.unwrap();
    assert_eq!(many.to_string(), "Protocol error: unauthenticated multibulk length");
    let long = parse(b"*2\r\n$16385\r\n").1.unwrap();
    assert_eq!(long.to_string(), "Protocol error: unauthenticated bulk length");
}

#[test]
fn many_arguments_together_stay_under_the_limit_of_a_command() {
    let limits = CommandLimits { command_bytes_max: 100, ..CommandLimits::DEFAULT };
    let small =
        b"*2\r\n$40\r\n0123456789012345678901234567890123456789\r\n$30\r\n012345678901234567890123456789\r\n";
    assert_eq!(parse_in_pieces(small, &[9], limits).0.len(), 1);
    let large = b"*2\r\n$40\r\n0123456789012345678901234567890123456789\r\n$60\r\n";
    let refused = parse_in_pieces(large, &[9], limits).1.unwrap();
    assert_eq!(refused.to_string(), "Protocol error: too big command, the limit is 100 bytes");
}

/// It once ended the connection, so a client that sent too many keys never read why.
#[test]
fn a_command_with_too_many_arguments_is_read_to_its_end_and_handed_out_without_them() {
    let limits =
        CommandLimits { args_max: 3, bulk_bytes_max: 10, command_bytes_max: 60, unauthenticated: false };
    let input = b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n$0\r\n\r\n$1\r\nd\r\nPING\r\n";
    for piece in 1..=input.len() {
        let mut parser = CommandParser::new(limits);
        let (mut buffer, mut commands) = (BytesMut::new(), Vec::new());
        for part in input.chunks(piece) {
            buffer.extend_from_slice(part);
            while let Some(command) = parser.parse(&mut buffer).unwrap() {
                commands.push((command.name().to_vec(), command.len(), command.dropped()));
            }
            let half_line = buffer.len();
            assert!(half_line <= piece.max(14), "{half_line} bytes are kept of what is dropped");
        }
        assert_eq!(commands, [(b"MSET".to_vec(), 1, 4), (b"PING".to_vec(), 1, 0)], "in pieces of {piece}");
    }
    let refused =
        |input: &[u8], limits| parse_in_pieces(input, &[7], limits).1.map(|error| error.to_string());
    let long = b"*9\r\n$4\r\nMSET\r\n$9\r\n123456789\r\n$9\r\n123456789\r\n$9\r\n123456789\r\n$9\r\n";
    let too_big = Some("Protocol error: too big command, the limit is 60 bytes".to_owned());
    assert_eq!(refused(long, limits), too_big);
    let unended = b"*5\r\n$4\r\nMSET\r\n$1\r\nab\r\n";
    assert_eq!(refused(unended, limits), Some(RespError::BulkEnd.to_string()));
    assert_eq!(refused(b"*1048577\r\n", limits), Some(RespError::MultibulkLength.to_string()));
    let unauthenticated = CommandLimits { unauthenticated: true, ..limits };
    assert_eq!(refused(input, unauthenticated), Some(RespError::UnauthenticatedMultibulkLength.to_string()));
}

#[test]
fn arguments_share_the_receive_buffer() {
    let mut input = BytesMut::from(&b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n*1\r\n"[..]);
    let received = input.as_ptr() as usize;
    let command = CommandParser::new(CommandLimits::DEFAULT).parse(&mut input).unwrap().unwrap();
    assert_eq!(command.bytes(1).unwrap().as_ptr() as usize, received + 17);
    assert_eq!((command.name(), command.arg(1), command.arg(2)), (&b"GET"[..], Some(&b"key"[..]), None));
    assert_eq!(command.bytes(2), None);
    assert_eq!(&input[..], b"*1\r\n", "what follows stays");
}

#[test]
fn a_command_may_be_looked_at_and_passed_without_being_taken() {
    let mut input = BytesMut::from(
        &b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\nping now\r\n*2\r\n$3\r\nGET\r\n$1"[..],
    );
    let mut parser = CommandParser::new(CommandLimits::DEFAULT);
    let Some(Arrived::Seen(get)) = parser.look(&mut input).unwrap() else { panic!("it is no inline line") };
    assert_eq!((get.len(), get.arg(&input, 1), get.arg(&input, 2)), (2, Some(&b"a"[..]), None));
    get.pass(&mut input);
    let Some(Arrived::Seen(ping)) = parser.look(&mut input).unwrap() else { panic!("it is no inline line") };
    assert_eq!(ping.take(&mut input).name(), b"PING");
    let Some(Arrived::Taken(ping)) = parser.look(&mut input).unwrap() else { panic!("it is an inline line") };
    assert_eq!(ping.arg(1), Some(&b"now"[..]));
    assert!(parser.look(&mut input).unwrap().is_none(), "half a command has arrived");
    input.extend_from_slice(b"\r\nb\r\n");
    assert_eq!(parser.parse(&mut input).unwrap().unwrap().arg(1), Some(&b"b"[..]));
    assert!(input.is_empty());
}

#[test]
fn the_parser_says_how_much_of_a_large_argument_is_missing() {
    let mut input = BytesMut::from(&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000\r\nabc"[..]);
    let mut parser = CommandParser::new(CommandLimits::DEFAULT);
    assert_eq!(parser.bytes_lacking(input.len()), 0, "nothing is known yet");
    assert_eq!(parser.parse(&mut input), Ok(None));
    assert_eq!(parser.bytes_lacking(input.len()), 997 + 2);
    input.extend_from_slice(&[b'd'; 997]);
    assert_eq!(parser.parse(&mut input), Ok(None));
    input.extend_from_slice(b"\r\n");
    assert_eq!(parser.parse(&mut input).unwrap().unwrap().len(), 3);
    assert_eq!(parser.bytes_lacking(input.len()), 0);
}

fn commands() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let arg = prop_oneof![8 => vec(any::<u8>(), 0..12), 1 => vec(any::<u8>(), 9_990..10_010)];
    vec(vec(arg, 1..7), 1..6)
}

/// Bytes made of the protocol's own fragments.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop::sample::select(vec![
        &b"*1\r\n"[..],
        b"*2\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"$0\r\n",
        b"$1\r\n",
        b"$-1\r\n",
        b"$4\r\nPING\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"a",
        b" ",
        b"\"",
        b"'",
        b"\\x4",
        b"$",
        b"*",
        b"9",
        b"0",
        b"\x16",
        b"\x03",
    ]);
    let fragment = prop_oneof![6 => fragment.prop_map(<[u8]>::to_vec), 1 => vec(any::<u8>(), 1..3)];
    vec(fragment, 0..30).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn commands_survive_in_any_pieces(commands in commands(), pieces in vec(1..4_000_usize, 1..5)) {
        let mut input = BytesMut::new();
        for command in &commands {
            let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            Command::encode(&args, &mut input);
        }
        prop_assert_eq!(parse_in_pieces(&input, &pieces, CommandLimits::DEFAULT), (commands, None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_input_means_the_same_in_any_pieces(input in fragments(), pieces in vec(1..9_usize, 1..5)) {
        let limits = CommandLimits { args_max: 5, bulk_bytes_max: 20, command_bytes_max: 40, unauthenticated: false };
        let whole = parse_in_pieces(&input, &[input.len().max(1)], limits);
        prop_assert_eq!(parse_in_pieces(&input, &pieces, limits), whole);
    }
}
