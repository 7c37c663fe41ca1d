//! Replies in both versions, and the client's side of them.

use bytes::{Bytes, BytesMut};
use expect_test::expect;
use proptest::collection::vec;
use proptest::prelude::*;
use wire::resp::{Protocol, Reply, ReplyParser, ReplyWriter, RespError};

fn written(protocol: Protocol, write: impl Fn(&mut ReplyWriter<'_>)) -> BytesMut {
    let mut out = BytesMut::new();
    write(&mut ReplyWriter::new(&mut out, protocol));
    out
}

type Row = (&'static str, fn(&mut ReplyWriter<'_>));

const ROWS: &[Row] = &[
    ("ok", |w| w.ok()),
    ("simple", |w| w.simple("PONG")),
    ("simple with a line end", |w| w.simple("a\r\nb")),
    ("error", |w| w.error("ERR unknown command 'x'")),
    ("error with a line end", |w| w.error("ERR a\nb")),
    ("integer", |w| w.integer(-42)),
    ("least integer", |w| w.integer(i64::MIN)),
    ("bulk", |w| w.bulk(b"a\r\nb")),
    ("empty bulk", |w| w.bulk(b"")),
    ("null", |w| w.null()),
    ("null array", |w| w.null_array()),
    ("array", |w| {
        w.array(2);
        w.integer(1);
        w.null();
    }),
    ("map", |w| {
        w.map(1);
        w.bulk(b"proto");
        w.integer(3);
    }),
    ("set", |w| {
        w.set(1);
        w.bulk(b"a");
    }),
    ("push", |w| {
        w.push(1);
        w.bulk(b"invalidate");
    }),
    ("true", |w| w.boolean(true)),
    ("false", |w| w.boolean(false)),
    ("double", |w| w.double(1.5)),
    ("whole double", |w| w.double(3.0)),
    ("tiny double", |w| w.double(1e-30)),
    ("huge double", |w| w.double(-1.25e300)),
    ("zero", |w| w.double(0.0)),
    ("infinity", |w| w.double(f64::INFINITY)),
    ("negative infinity", |w| w.double(f64::NEG_INFINITY)),
    ("not a number", |w| w.double(f64::NAN)),
    ("verbatim", |w| w.verbatim(b"txt", b"Some string")),
];

#[test]
fn replies_are_pinned_in_both_versions() {
    let mut text = String::new();
    for (name, write) in ROWS {
        let two = written(Protocol::Resp2, write);
        let three = written(Protocol::Resp3, write);
        let (two, three) = (two.escape_ascii(), three.escape_ascii());
        text += &format!("{name:<24} {:<42} {three}\n", two.to_string());
    }
    expect![[r#"
        ok                       +OK\r\n                                    +OK\r\n
        simple                   +PONG\r\n                                  +PONG\r\n
        simple with a line end   +a  b\r\n                                  +a  b\r\n
        error                    -ERR unknown command \'x\'\r\n             -ERR unknown command \'x\'\r\n
        error with a line end    -ERR a b\r\n                               -ERR a b\r\n
        integer                  :-42\r\n                                   :-42\r\n
        least integer            :-9223372036854775808\r\n                  :-9223372036854775808\r\n
        bulk                     $4\r\na\r\nb\r\n                           $4\r\na\r\nb\r\n
        empty bulk               $0\r\n\r\n                                 $0\r\n\r\n
        null                     $-1\r\n                                    _\r\n
        null array               *-1\r\n                                    _\r\n
        array                    *2\r\n:1\r\n$-1\r\n                        *2\r\n:1\r\n_\r\n
        map                      *2\r\n$5\r\nproto\r\n:3\r\n                %1\r\n$5\r\nproto\r\n:3\r\n
        set                      *1\r\n$1\r\na\r\n                          ~1\r\n$1\r\na\r\n
        push                     *1\r\n$10\r\ninvalidate\r\n                >1\r\n$10\r\ninvalidate\r\n
        true                     :1\r\n                                     #t\r\n
        false                    :0\r\n                                     #f\r\n
        double                   $3\r\n1.5\r\n                              ,1.5\r\n
        whole double             $1\r\n3\r\n                                ,3\r\n
        tiny double              $5\r\n1e-30\r\n                            ,1e-30\r\n
        huge double              $9\r\n-1.25e300\r\n                        ,-1.25e300\r\n
        zero                     $1\r\n0\r\n                                ,0\r\n
        infinity                 $3\r\ninf\r\n                              ,inf\r\n
        negative infinity        $4\r\n-inf\r\n                             ,-inf\r\n
        not a number             $3\r\nnan\r\n                              ,nan\r\n
        verbatim                 $11\r\nSome string\r\n                     =15\r\ntxt:Some string\r\n
    "#]]
    .assert_eq(&text);
}

#[test]
fn every_reply_is_one_reply_in_any_pieces() {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        for (name, write) in ROWS {
            let bytes = written(protocol, write);
            let whole = ReplyParser::default().parse(&mut bytes.clone());
            assert!(matches!(whole, Ok(Some(_))), "{name}: {whole:?}");
            let (mut parser, mut input) = (ReplyParser::default(), BytesMut::new());
            for (position, byte) in bytes.iter().enumerate() {
                assert_eq!(parser.parse(&mut input), Ok(None), "{name} cut at {position}");
                input.extend_from_slice(&[*byte]);
            }
            // NaN differs from itself.
            assert_eq!(format!("{:?}", parser.parse(&mut input)), format!("{whole:?}"), "{name}");
            assert!(input.is_empty());
        }
    }
}

#[test]
fn replies_keep_their_types_in_resp3() {
    let bulk = |text: &'static str| Reply::Bulk(Bytes::from_static(text.as_bytes()));
    let parse = |input: &[u8]| ReplyParser::default().parse(&mut BytesMut::from(input)).unwrap().unwrap();
    assert_eq!(parse(b"%1\r\n$1\r\na\r\n:1\r\n"), Reply::Map(vec![(bulk("a"), Reply::Integer(1))]));
    assert_eq!(parse(b"~1\r\n$1\r\na\r\n"), Reply::Set(vec![bulk("a")]));
    assert_eq!(parse(b">1\r\n#t\r\n"), Reply::Push(vec![Reply::Boolean(true)]));
    assert_eq!(parse(b",1.5\r\n"), Reply::Double(1.5));
    assert_eq!(parse(b",-inf\r\n"), Reply::Double(f64::NEG_INFINITY));
    assert_eq!(parse(b"(12345678901234567890\r\n"), Reply::BigNumber(Bytes::from("12345678901234567890")));
    assert_eq!(parse(b"!3\r\nERR\r\n"), Reply::BulkError(Bytes::from("ERR")));
    assert_eq!(
        parse(b"=8\r\ntxt:text\r\n"),
        Reply::Verbatim { format: Bytes::from("txt"), text: Bytes::from("text") }
    );
    assert_eq!(parse(b"*2\r\n_\r\n*-1\r\n"), Reply::Array(vec![Reply::Null, Reply::Null]));
    assert_eq!(parse(b"$-1\r\n"), Reply::Null);
}

#[test]
fn what_is_no_reply_is_refused() {
    let parse = |input: &[u8]| ReplyParser::default().parse(&mut BytesMut::from(input));
    let deep = b"*1\r\n".repeat(17);
    let inputs = [
        &b"x\r\n"[..],
        b":1x\r\n",
        b"$-2\r\n",
        b"$1\r\nab\r\n",
        b"#x\r\n",
        b",x\r\n",
        b"_x\r\n",
        b"=3\r\nabc\r\n",
    ];
    for input in inputs.into_iter().chain([&b"%-1\r\n"[..], b"!-1\r\n", b"$9223372036854775807\r\n", &deep]) {
        assert_eq!(parse(input), Err(RespError::Reply), "{}", input.escape_ascii());
    }
}

fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop::sample::select(vec![
        &b"*1\r\n"[..],
        b"*2\r\n",
        b"%1\r\n",
        b"~2\r\n",
        b">1\r\n",
        b"*-1\r\n",
        b"$1\r\n",
        b"$3\r\nabc\r\n",
        b":7\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"+OK\r\n",
        b"-ERR\r\n",
        b"=5\r\ntxt:a\r\n",
        b"\r\n",
        b"a",
        b"$",
        b"\r",
    ]);
    let fragment = prop_oneof![8 => fragment.prop_map(<[u8]>::to_vec), 1 => vec(any::<u8>(), 1..3)];
    vec(fragment, 0..20).prop_map(|fragments| fragments.concat())
}

fn parse_in_pieces(input: &[u8], piece: usize) -> (Vec<String>, bool) {
    let (mut parser, mut buffer, mut replies) = (ReplyParser::default(), BytesMut::new(), Vec::new());
    for piece in input.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match parser.parse(&mut buffer) {
                Ok(None) => break,
                Ok(Some(reply)) => replies.push(format!("{reply:?}")),
                Err(_) => return (replies, true),
            }
        }
    }
    (replies, false)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn any_input_means_the_same_in_any_pieces(input in fragments(), piece in 1..9_usize) {
        prop_assert_eq!(parse_in_pieces(&input, piece), parse_in_pieces(&input, input.len().max(1)));
    }
}
