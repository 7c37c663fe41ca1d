//! The wrong protocol on a port, and bytes that are no protocol at all.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::resp::{Redis, Reply, open, raw};

/// What opens a native link.
const PREAMBLE: &[u8] = b"TONTINE\x01\n";

/// What opens a TLS session: a handshake record of 512 bytes, and the first of them.
const TLS_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn each_port_tells_clients_of_another_protocol_where_they_are() {
    let cluster = Cluster::with(1, &[]);
    let redis = raw(&cluster.native(1), b"*1\r\n$4\r\nPING\r\n", false);
    assert!(text(&redis).starts_with("-ERR this is tontine's native port"), "{}", text(&redis));
    let http = raw(&cluster.native(1), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", false);
    assert!(text(&http).starts_with("HTTP/1.1 400 Bad Request"), "{}", text(&http));
    let http = raw(&cluster.resp(1), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true);
    assert!(text(&http).contains("HTTP"), "{}", text(&http));
    let native = raw(&cluster.resp(1), PREAMBLE, false);
    assert!(text(&native).starts_with("-ERR") && text(&native).contains("native"), "{}", text(&native));
    // A client of TLS takes text for a malformed record; what it understands is the alert *handshake failure*.
    assert_eq!(raw(&cluster.native(1), TLS_HELLO, false), [0x15, 3, 1, 0, 2, 2, 40]);
    let tls = raw(&cluster.resp(1), TLS_HELLO, false);
    assert!(text(&tls).starts_with("-ERR") && text(&tls).contains("TLS"), "{}", text(&tls));

    for foreign in [PREAMBLE, TLS_HELLO, b"PING\r\n"] {
        let http = raw(&cluster.http(1), foreign, false);
        assert!(text(&http).starts_with("HTTP/1.1 400 Bad Request"), "{}", text(&http));
        assert!(text(&http).contains("this is an HTTP port"), "{}", text(&http));
    }
    let mut command = cluster.command(&["get", "k"]);
    let output = command.env("TONTINE_CONNECT", cluster.http(1)).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("HTTP"), "{}", text(&output.stderr));

    let mut command = cluster.command(&["get", "k"]);
    let output = command.env("TONTINE_CONNECT", cluster.resp(1)).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("Redis"), "{}", text(&output.stderr));

    cluster.run(&["put", "k", "v"]).exits(0);
}

#[test]
fn malformed_and_truncated_frames_end_their_link_and_nothing_else() {
    let cluster = Cluster::with(1, &[]);
    let address = cluster.native(1);
    let frame = |body: &[u8]| [PREAMBLE, &u32::try_from(body.len()).unwrap().to_le_bytes(), body].concat();
    let attempts: [Vec<u8>; 7] = [
        // A request before hello, a kind that does not exist, an id that is no varint, an empty body.
        frame(&[1, 1, 0]),
        frame(&[255, 1]),
        frame(&[1, 255, 255]),
        frame(&[]),
        // More than any frame may have.
        [PREAMBLE, &[255; 4]].concat(),
        // Ends within the frame, and within the preamble.
        [PREAMBLE, &[100, 0, 0, 0, 1]].concat(),
        PREAMBLE[..4].to_vec(),
    ];
    for bytes in attempts {
        let answer = raw(&address, &bytes, true);
        assert!(answer.is_empty() || answer.starts_with(PREAMBLE), "{answer:?}");
    }
    cluster.run(&["put", "k", "v"]).exits(0);
    assert_eq!(cluster.run(&["get", "k"]).exits(0).text(), "v\n");
}

#[test]
fn malformed_resp_is_answered_with_a_protocol_error() {
    let cluster = Cluster::with(1, &[]);
    for bytes in [&b"*1\r\n$x\r\n"[..], b"*2\r\n$-5\r\n", b"*99999999999\r\n", b"*1\r\n:4\r\n"] {
        let answer = text(&raw(&cluster.resp(1), bytes, true));
        assert!(answer.starts_with("-ERR Protocol error"), "{bytes:?}: {answer}");
    }
    // The first command is whole, the second never ends.
    let answer = raw(&cluster.resp(1), b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$100\r\nabc", true);
    assert_eq!(text(&answer), "+PONG\r\n");
    assert_eq!(Redis::connect(&cluster.resp(1)).call(&[b"PING"]), Reply::Status("PONG".to_owned()));
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let cluster = Cluster::with(1, &["--connections-max=3"]);
    let mut first = Redis::connect(&cluster.resp(1));
    first.call(&[b"PING"]);
    let others: Vec<Redis> = (0..2)
        .map(|_| {
            let mut redis = Redis::connect(&cluster.resp(1));
            redis.call(&[b"PING"]);
            redis
        })
        .collect();
    let mut answer = String::new();
    open(&cluster.resp(1)).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("-ERR max number of clients reached"), "{answer}");
    drop(others);
    assert_eq!(first.call(&[b"PING"]), Reply::Status("PONG".to_owned()));
}

#[test]
fn a_stalled_command_is_ended_with_a_message_and_a_slow_one_is_not() {
    let cluster = Cluster::with(1, &["--rest-time-max=2s"]);
    let open = || open(&cluster.resp(1));
    let set =
        |key: &str, value: &str| format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n${}\r\n{value}\r\n", value.len());
    let whole = set("a", &"v".repeat(300_000));
    let (mut still, mut slow, mut idle) = (open(), open(), open());
    still.write_all(&whole.as_bytes()[..100_000]).unwrap();
    let began = Instant::now();
    for part in whole.as_bytes().chunks(100_000) {
        slow.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(900));
    }
    let mut told = String::new();
    still.read_to_string(&mut told).unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "not before its time");
    assert!(
        told.starts_with("-ERR malformed: of a command that had begun less than 65536 bytes came within 2s"),
        "{told}"
    );
    for (stream, command) in [(&mut slow, String::new()), (&mut idle, set("b", "v"))] {
        stream.write_all(command.as_bytes()).unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n");
    }
}
