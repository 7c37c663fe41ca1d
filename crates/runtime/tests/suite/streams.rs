//! What a connection may do to a server that serves it by `runtime::http::streams`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use runtime::clock::os::OsClock;
use runtime::http::streams::{RESETS_FREE, STREAMS_MAX, Streams, serve};
use runtime::http::{Account, Arrived, Handler, Limits, Payload, Request, Response};
use runtime::{BoxFuture, Moment};
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::task::JoinHandle;

/// Gives each stream room for everything, and says what it was asked.
#[derive(Default)]
struct Open {
    leaves: AtomicBool,
    waker: AtomicWaker,
    /// Requests for `/slow` that have begun, and that have come to their end.
    begun: AtomicUsize,
    ended: AtomicUsize,
    /// Lets them end.
    go_on: tokio::sync::Notify,
}

struct Rich;

struct Echo<'a>(&'a Open);

impl Streams for Open {
    fn open(&self) -> (Box<dyn Account>, Box<dyn Handler + '_>) {
        (Box::new(Rich), Box::new(Echo(self)))
    }

    fn poll_leaving(&self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.leaves.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Account for Rich {
    fn hold(&mut self, _: usize, _: Moment) -> bool {
        true
    }

    fn poll_lost(&mut self, _: usize, _: Moment, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_unread(&mut self, _: usize, _: Moment, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_leaving(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Handler for Echo<'_> {
    fn answer(&self, arrived: Arrived) -> BoxFuture<'_, Response> {
        Box::pin(async move {
            let said = match arrived {
                Arrived::Refused(why) => format!("refused {why:?}"),
                Arrived::Request(head, _) if head.uri.path() == "/slow" => {
                    self.0.begun.fetch_add(1, Ordering::Relaxed);
                    self.0.go_on.notified().await;
                    self.0.ended.fetch_add(1, Ordering::Relaxed);
                    "slow".to_owned()
                }
                Arrived::Request(head, body) => match body.read(1 << 20).await {
                    Ok(body) => format!("{} {} {} bytes", head.method, head.uri, body.len()),
                    Err(why) => format!("{why:?}"),
                },
            };
            Response::new(Payload::new(Bytes::from(said), None))
        })
    }
}

const LIMITS: Limits = Limits {
    head_bytes_max: 4096,
    idle_time_max: Duration::from_secs(60),
    rest_bytes_min: 1024,
    rest_time_max: Duration::from_secs(60),
};

/// A connection, and whether the server handed it back, to be read to its end.
fn start(limits: Limits) -> (DuplexStream, Arc<Open>, JoinHandle<bool>) {
    let (client, theirs) = tokio::io::duplex(1 << 16);
    let open = Arc::new(Open::default());
    let own = open.clone();
    let server = tokio::spawn(async move {
        let Some(mut unread) = serve(theirs, Arc::new(OsClock::new()), limits, &*own).await else {
            return false;
        };
        // As doors do: closing it at once would destroy the last frames.
        let rest = async { while unread.read(&mut [0; 1024]).await.is_ok_and(|count| count > 0) {} };
        let _ = tokio::time::timeout(Duration::from_millis(100), rest).await;
        true
    });
    (client, open, server)
}

#[tokio::test]
async fn a_connection_without_a_stream_may_wait_and_ends_when_it_shall() {
    let limits = Limits {
        rest_time_max: Duration::from_millis(1),
        idle_time_max: Duration::from_millis(100),
        ..LIMITS
    };
    let (_silent, _, served) = start(limits);
    assert!(served.await.unwrap(), "it has not said a word");
    let (client, _, _) = start(limits);
    let (mut sender, connection) = h2::client::handshake(client).await.unwrap();
    let ended = tokio::spawn(connection);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let request = Request::builder().uri("https://a/b?c").body(()).unwrap();
    let (answer, _) = sender.send_request(request, true).unwrap();
    let body = answer.await.unwrap().into_body().data().await.unwrap().unwrap();
    assert_eq!(body, "GET /b?c 0 bytes");
    ended.await.unwrap().unwrap();

    let (client, open, served) = start(LIMITS);
    let (sender, connection) = h2::client::handshake(client).await.unwrap();
    let ended = tokio::spawn(connection);
    tokio::time::sleep(Duration::from_millis(10)).await;
    open.leaves.store(true, Ordering::Relaxed);
    open.waker.wake();
    ended.await.unwrap().unwrap();
    served.await.unwrap();
    drop(sender);
}

#[tokio::test]
async fn a_connection_that_ends_lets_the_streams_under_way_end() {
    let (client, open, served) = start(LIMITS);
    let (mut sender, connection) = h2::client::handshake(client).await.unwrap();
    let ended = tokio::spawn(connection);
    let request = Request::builder().method("PUT").uri("https://a/b").body(()).unwrap();
    let (answer, mut sending) = sender.send_request(request, false).unwrap();
    sending.send_data(Bytes::from_static(b"hel"), false).unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    open.leaves.store(true, Ordering::Relaxed);
    open.waker.wake();
    tokio::time::sleep(Duration::from_millis(10)).await;
    sending.send_data(Bytes::from_static(b"lo"), true).unwrap();
    let body = answer.await.unwrap().into_body().data().await.unwrap().unwrap();
    assert_eq!(body, "PUT /b 5 bytes");
    ended.await.unwrap().unwrap();
    served.await.unwrap();
}

/// Waits until the condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not seen: {what}");
}

/// Begins this many slow requests one after the other, each of which the client resets; fewer if the connection ends before.
async fn reset(client: DuplexStream, open: &Open, method: &str, count: usize) -> Result<usize, h2::Error> {
    let (sender, connection) = h2::client::handshake(client).await.unwrap();
    let ended = tokio::spawn(connection);
    for number in 1..=count {
        let request = Request::builder().method(method).uri("https://a/slow").body(()).unwrap();
        let begun = open.begun.load(Ordering::Relaxed);
        let Ok(mut sender) = sender.clone().ready().await else { break };
        let Ok((_answer, mut sending)) = sender.send_request(request, true) else { break };
        until("it has begun", || open.begun.load(Ordering::Relaxed) > begun || ended.is_finished()).await;
        sending.send_reset(h2::Reason::CANCEL);
        if ended.is_finished() {
            ended.await.unwrap()?;
            return Ok(number);
        }
    }
    drop(sender);
    ended.await.unwrap().map(|()| count)
}

#[tokio::test]
async fn a_request_that_reads_ends_with_its_stream_and_one_that_writes_is_not_dropped() {
    for (method, goes_on) in
        [("GET", false), ("HEAD", false), ("PUT", true), ("POST", true), ("DELETE", true)]
    {
        let (client, open, served) = start(LIMITS);
        assert_eq!(reset(client, &open, method, 3).await.unwrap(), 3);
        if goes_on {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!served.is_finished(), "{method}: its connection has ended, and it has not");
            until("all have ended", || {
                open.go_on.notify_one();
                open.ended.load(Ordering::Relaxed) == 3
            })
            .await;
        }
        served.await.unwrap();
        let (begun, ended) = (open.begun.load(Ordering::Relaxed), open.ended.load(Ordering::Relaxed));
        assert_eq!((begun, ended), (3, if goes_on { 3 } else { 0 }), "{method}");
    }
}

#[tokio::test]
async fn requests_whose_streams_are_reset_end_their_connection_after_a_limit() {
    let reads = usize::try_from(RESETS_FREE).unwrap() + 1;
    for (method, limit) in [("GET", reads), ("PUT", 2 * STREAMS_MAX as usize + 1)] {
        let (client, open, served) = start(LIMITS);
        let error = reset(client, &open, method, 200).await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM), "{error}");
        let begun = open.begun.load(Ordering::Relaxed);
        assert!((limit..limit + 2).contains(&begun), "{method}: {begun} have begun");
        until("it has ended", || {
            open.go_on.notify_waiters();
            served.is_finished()
        })
        .await;
    }
}
