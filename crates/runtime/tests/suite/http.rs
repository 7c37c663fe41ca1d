//! What a connection may do to a server that serves it by `runtime::http`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use runtime::clock::os::OsClock;
use runtime::http::{Account, Arrived, HEAD_BYTES_MAX, Handler, Limits, Payload, Refused, Response, serve};
use runtime::{BoxFuture, Moment};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Longest body that the tests' handler reads.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Says what it was asked.
#[derive(Default)]
struct Echo {
    asked: Mutex<Vec<String>>,
}

impl Handler for Echo {
    fn answer(&self, arrived: Arrived) -> BoxFuture<'_, Response> {
        Box::pin(async move {
            let said = match arrived {
                Arrived::Refused(why) => format!("refused {why:?}"),
                Arrived::Request(head, body) => {
                    let body = match body.read(BODY_BYTES_MAX).await {
                        Ok(body) => format!("{} bytes", body.len()),
                        Err(why) => format!("{why:?}"),
                    };
                    format!("{} {} {body}", head.method, head.uri)
                }
            };
            self.asked.lock().push(said.clone());
            Response::new(Payload::new(Bytes::from(said), None))
        })
    }
}

/// What a connection holds, and what there is room for.
#[derive(Default)]
struct Ledger {
    held: AtomicUsize,
    most: AtomicUsize,
    room: AtomicUsize,
    leaves: AtomicBool,
    /// Others got the room of its answer.
    lost: AtomicBool,
    waker: AtomicWaker,
}

struct Held(Arc<Ledger>);

impl Account for Held {
    fn hold(&mut self, bytes: usize, _: Moment) -> bool {
        if bytes > self.0.room.load(Ordering::Relaxed) {
            return false;
        }
        self.0.held.store(bytes, Ordering::Relaxed);
        self.0.most.fetch_max(bytes, Ordering::Relaxed);
        true
    }

    fn poll_lost(&mut self, _: usize, _: Moment, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_unread(&mut self, _: usize, _: Moment, _: &mut Context<'_>) -> Poll<()> {
        if self.0.lost.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.0.waker.register(context.waker());
        if self.0.leaves.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // As the accounts of doors do: what a connection holds ends with it.
        self.0.held.store(0, Ordering::Relaxed);
    }
}

struct Served {
    client: DuplexStream,
    handler: Arc<Echo>,
    ledger: Arc<Ledger>,
    /// Whether the server handed the stream back, to be read to its end.
    server: tokio::task::JoinHandle<bool>,
}

impl Served {
    fn with(limits: Limits, buffer: usize) -> Served {
        let (client, theirs) = tokio::io::duplex(buffer);
        let (handler, ledger) = (Arc::new(Echo::default()), Arc::new(Ledger::default()));
        ledger.room.store(usize::MAX, Ordering::Relaxed);
        let (own, account) = (handler.clone(), Box::new(Held(ledger.clone())));
        let server = tokio::spawn(async move {
            serve(theirs, Arc::new(OsClock::new()), limits, account, &*own).await.is_some()
        });
        Served { client, handler, ledger, server }
    }

    fn start() -> Served {
        Served::with(LIMITS, 1 << 16)
    }

    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    /// All that it answers until it closes.
    async fn rest(mut self) -> (String, Vec<String>) {
        let mut text = String::new();
        self.client.read_to_string(&mut text).await.unwrap();
        drop(self.client);
        self.server.await.unwrap();
        assert_eq!(self.ledger.held.load(Ordering::Relaxed), 0, "what is over is not counted");
        (text, self.handler.asked.lock().clone())
    }

    /// Reads until this many answers with these words have come.
    async fn expect(&mut self, words: &str) {
        let mut text = Vec::new();
        while !String::from_utf8_lossy(&text).contains(words) {
            assert!(self.client.read_buf(&mut text).await.unwrap() > 0, "closed: {}", text.escape_ascii());
        }
    }
}

const LIMITS: Limits = Limits {
    head_bytes_max: 4096,
    idle_time_max: Duration::from_secs(60),
    rest_bytes_min: 1024,
    rest_time_max: Duration::from_secs(60),
};

const CLOSE: &str = "connection: close\r\n\r\n";

async fn asked(text: &str) -> Vec<String> {
    let mut served = Served::start();
    served.send(text).await;
    served.client.shutdown().await.unwrap();
    served.rest().await.1
}

#[tokio::test]
async fn requests_are_answered_in_order_however_they_arrive() {
    let text = format!(
        "\r\nGET /1 HTTP/1.1\r\n\r\nPUT /2 HTTP/1.1\r\ncontent-length: 5\r\n\r\nhelloGET /3 HTTP/1.1\r\n{CLOSE}"
    );
    let expected = ["GET /1 0 bytes", "PUT /2 5 bytes", "GET /3 0 bytes"];
    assert_eq!(asked(&text).await, expected);
    let mut served = Served::start();
    for byte in text.bytes() {
        served.client.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let (answers, asked) = served.rest().await;
    assert_eq!(asked, expected);
    let places: Vec<_> = expected.iter().map(|said| answers.find(said).unwrap()).collect();
    assert!(places.is_sorted(), "{answers}");
    assert!(!answers.contains("date:"), "it would be the system's: {answers}");
}

#[tokio::test]
async fn a_chunked_body_is_read_and_is_the_last_of_its_connection() {
    let body = "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n";
    let text = format!("PUT /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    let mut served = Served::start();
    served.send(&format!("{text}GET /b HTTP/1.1\r\n\r\n")).await;
    served.client.shutdown().await.unwrap();
    let (_, asked) = served.rest().await;
    assert_eq!(asked, ["PUT /a 11 bytes"]);
}

#[tokio::test]
async fn a_request_that_could_end_at_two_places_is_refused_and_nothing_after_it_is_carried_out() {
    for lines in [
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: 5\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "transfer-encoding: gzip\r\n",
        "content-length: 5x\r\n",
    ] {
        let text = format!("PUT /a HTTP/1.1\r\n{lines}\r\nhelloGET /b HTTP/1.1\r\n\r\n");
        let asked = asked(&text).await;
        assert_eq!(asked.len(), 1, "{lines:?}: {asked:?}");
        assert!(asked[0].starts_with("refused Malformed"), "{lines:?}: {asked:?}");
    }
}

#[tokio::test]
async fn what_is_no_request_is_carried_out_as_none() {
    for text in [
        "nonsense\r\n\r\n",
        "GET /a b HTTP/1.1\r\n\r\n",
        "GET /a#b HTTP/1.1\r\n\r\n",
        "GET /a?b#c HTTP/1.1\r\n\r\n",
        "GET /a HTTP/1.1\r\nname : value\r\n\r\n",
        "GET /a HTTP/1.1\r\n folded\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "*1\r\n$4\r\nPING\r\n\r\n",
        "TONTINE\u{1}\n",
        "\u{16}\u{3}\u{1}",
        "PUT /a HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /a HTTP/1.1\r\nnever: ends\r\n",
    ] {
        let asked = asked(text).await;
        assert!(asked.iter().all(|said| said.starts_with("refused Malformed")), "{text:?}: {asked:?}");
    }
}

/// hyper answers what it cannot parse by itself, with a bare 400 that nobody counts.
#[tokio::test]
async fn the_handler_answers_any_byte_in_a_head() {
    for byte in 0..=255 {
        for (before, after) in [
            (&b"G"[..], &b"T / HTTP/1.1\r\n"[..]),
            (b"GET /", b" HTTP/1.1\r\n"),
            (b"GET /?", b" HTTP/1.1\r\n"),
            (b"GET http://a", b"/ HTTP/1.1\r\n"),
            (b"GET ", b" HTTP/1.1\r\n"),
            (b"GET / HTTP/1.", b"\r\n"),
            (b"GET / HTTP/1.1", b"\r\n"),
            (b"GET / HTTP/1.1\r\n", b"a: b\r\n"),
            (b"GET / HTTP/1.1\r\na", b": b\r\n"),
            (b"GET / HTTP/1.1\r\na:", b"b\r\n"),
            (b"GET / HTTP/1.1\r\na: b", b"\r\n"),
            (b"GET / HTTP/1.1\r\na: b\r\n", b""),
        ] {
            let text = [before, &[byte], after, b"\r\nGET / HTTP/1.1\r\n\r\n"].concat();
            let mut served = Served::start();
            served.client.write_all(&text).await.unwrap();
            served.client.shutdown().await.unwrap();
            let (answers, asked) = served.rest().await;
            assert!(!asked.is_empty(), "{}", text.escape_ascii());
            let count = answers.matches("HTTP/1.1 ").count() + answers.matches("HTTP/1.0 ").count();
            assert_eq!(count, asked.len(), "{}: {answers}", text.escape_ascii());
        }
    }
}

#[tokio::test]
async fn a_whole_head_of_the_longest_kind_is_taken() {
    let mut served = Served::with(Limits { head_bytes_max: HEAD_BYTES_MAX, ..LIMITS }, 1 << 16);
    let length = HEAD_BYTES_MAX - "GET / HTTP/1.1\r\nx: \r\n\r\n".len();
    served.send(&format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(length))).await;
    served.expect("GET / 0 bytes").await;
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(LIMITS.head_bytes_max));
    let expected = format!("refused {:?}", Refused::HeadTooLong { bytes_max: LIMITS.head_bytes_max });
    assert_eq!(asked(&long).await, std::slice::from_ref(&expected));
    assert_eq!(asked(&long[..long.len() - 2]).await, [expected], "before its end has come");
    let short = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(LIMITS.head_bytes_max - 18));
    assert_eq!(short.len(), LIMITS.head_bytes_max);
    assert!(asked(&short).await[0].starts_with("GET /aaa"));
}

#[tokio::test]
async fn a_body_has_the_length_that_it_said_and_no_more_than_is_taken() {
    let put =
        |length: usize, body: &str| format!("PUT /a HTTP/1.1\r\ncontent-length: {length}\r\n\r\n{body}");
    assert_eq!(asked(&put(6, "hello")).await, ["PUT /a Broken"]);
    assert_eq!(asked(&put(BODY_BYTES_MAX + 1, "")).await, ["PUT /a TooLong"]);
    assert_eq!(asked(&put(4, "hello")).await, ["PUT /a 4 bytes"], "what is too much is no request");
    let chunks = |size: &str| {
        format!("PUT /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{size}\r\nhello\r\n0\r\n\r\n")
    };
    assert_eq!(asked(&chunks("x")).await, ["PUT /a Broken"]);
    assert_eq!(asked(&chunks("fffffffffffffffff")).await, ["PUT /a Broken"]);
    let mut served = Served::start();
    served.send("PUT /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n200000\r\n").await;
    let piece = vec![b'a'; 1 << 21];
    // It may stop reading before all is sent.
    let _ = served.client.write_all(&piece[..BODY_BYTES_MAX + 70_000]).await;
    served.expect("PUT /a TooLong").await;
}

#[tokio::test]
async fn a_client_that_expects_a_word_before_its_body_gets_it() {
    let mut served = Served::start();
    served.send("PUT /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n").await;
    served.expect("HTTP/1.1 100 Continue\r\n\r\n").await;
    served.send("hello").await;
    served.expect("PUT /a 5 bytes").await;
    let mut served = Served::start();
    let length = BODY_BYTES_MAX + 1;
    served
        .send(&format!("PUT /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"))
        .await;
    served.client.shutdown().await.unwrap();
    let (text, asked) = served.rest().await;
    assert_eq!((asked, text.contains("100 Continue")), (vec!["PUT /a TooLong".to_owned()], false));
}

#[tokio::test]
async fn every_byte_that_has_come_of_a_request_is_counted_until_it_is_whole() {
    let mut served = Served::start();
    let body = "a".repeat(200_000);
    let head = format!("PUT /a HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
    served.send(&head).await;
    served.send(&body[..150_000]).await;
    let (ledger, least) = (served.ledger.clone(), 150_000 + head.len());
    let counted = async {
        while ledger.held.load(Ordering::Relaxed) < least {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), counted).await.unwrap();
    served.send(&body[150_000..]).await;
    served.expect("PUT /a 200000 bytes").await;
    assert_eq!(ledger.held.load(Ordering::Relaxed), 0);
    let most = ledger.most.load(Ordering::Relaxed);
    assert!(most <= body.len() + head.len(), "an announced length reserves nothing: {most}");
}

/// Found by fuzzing: the line end that some clients send behind a body counted as all of the request before it, for as long
/// as the connection waited for the next one.
#[tokio::test]
async fn an_empty_line_between_two_requests_holds_nothing() {
    let mut served = Served::start();
    let body = "a".repeat(100_000);
    served.send(&format!("PUT /a HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    served.expect("PUT /a 100000 bytes").await;
    served.send("\r\n").await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(served.ledger.held.load(Ordering::Relaxed), 0);
    served.send("GET /b HTTP/1.1\r\n\r\n").await;
    served.expect("GET /b 0 bytes").await;
}

#[tokio::test]
async fn a_request_for_which_there_is_no_room_is_refused() {
    for (room, text, expected) in [
        (100, format!("GET /{} HTTP/1.1\r\n", "a".repeat(200)), "refused NoRoom"),
        (
            100,
            format!("PUT /a HTTP/1.1\r\ncontent-length: 500\r\n\r\n{}", "a".repeat(400)),
            "PUT /a Refused(NoRoom)",
        ),
    ] {
        let mut served = Served::start();
        served.ledger.room.store(room, Ordering::Relaxed);
        // The body comes apart from its head.
        let cut = text.find("\r\n\r\n").map_or(text.len(), |end| end + 4);
        served.send(&text[..cut]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let _ = served.client.write_all(&text.as_bytes()[cut..]).await;
        let (_, asked) = served.rest().await;
        assert_eq!(asked, [expected]);
    }
}

#[tokio::test]
async fn a_slow_client_is_told_and_parted_with() {
    let limits = Limits { rest_time_max: Duration::from_millis(50), ..LIMITS };
    for text in ["GET /a HTTP/1.1\r\n", "PUT /a HTTP/1.1\r\ncontent-length: 5\r\n\r\nhell"] {
        let mut served = Served::with(limits, 1 << 16);
        served.send(text).await;
        let (_, asked) = served.rest().await;
        assert!(asked[0].contains("TooSlow"), "{text:?}: {asked:?}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_parted_with() {
    let limits = Limits { rest_time_max: Duration::from_millis(50), ..LIMITS };
    let mut served = Served::with(limits, 64);
    let text = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1000));
    let (mut reading, mut writing) = tokio::io::split(served.client);
    let _ = writing.write_all(text.as_bytes()).await;
    assert!(tokio::time::timeout(Duration::from_secs(20), &mut served.server).await.is_ok());
    let mut rest = Vec::new();
    reading.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() < 1000, "it did not get all of it");
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_parted_with_when_others_need_the_room() {
    let mut served = Served::with(LIMITS, 64);
    served.ledger.lost.store(true, Ordering::Relaxed);
    served.send(&format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1000))).await;
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), &mut served.server).await.unwrap().unwrap();
    served.client.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() < 1000, "it did not get all of it");
}

#[tokio::test]
async fn a_connection_between_two_requests_may_wait_and_ends_when_it_shall() {
    let limits = Limits {
        rest_time_max: Duration::from_millis(1),
        idle_time_max: Duration::from_millis(100),
        ..LIMITS
    };
    let mut served = Served::with(limits, 1 << 16);
    tokio::time::sleep(Duration::from_millis(30)).await;
    served.send("GET /a HTTP/1.1\r\n\r\n").await;
    served.expect("GET /a 0 bytes").await;
    let (rest, _) = served.rest().await;
    assert_eq!(rest, "", "it was idle for too long");

    let mut served = Served::start();
    served.send("GET /a HTTP/1.1\r\n\r\n").await;
    served.expect("GET /a 0 bytes").await;
    let ledger = served.ledger.clone();
    ledger.leaves.store(true, Ordering::Relaxed);
    ledger.waker.wake();
    assert_eq!(served.rest().await.0, "");
}

#[tokio::test]
async fn an_answer_says_whether_its_reader_may_still_be_sending() {
    let mut served = Served::start();
    served.send(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
    let mut text = String::new();
    served.client.read_to_string(&mut text).await.unwrap();
    assert!(served.server.await.unwrap(), "the server does not know yet that it was read");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
}
