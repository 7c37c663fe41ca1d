//! HTTP requests, and what stands in them: any cutting of the input gives the same requests, and a path, an ETag or a
//! context in letters is understood in one way. The first byte says where to cut.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use runtime::clock::os::OsClock;
use runtime::http::base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use runtime::http::{Account, Arrived, Handler, Limits, Payload, Response, path, serve, tags};
use runtime::{BoxFuture, Moment};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longer than any input: a body that is not read may end a connection or not, by how much of it has come.
const BODY_BYTES_MAX: usize = 1 << 20;
const LIMITS: Limits = Limits {
    head_bytes_max: 8192,
    idle_time_max: Duration::from_secs(300),
    rest_bytes_min: 1024,
    rest_time_max: Duration::from_secs(300),
};

/// Remembers what was asked.
#[derive(Default)]
struct Asked(Mutex<Vec<String>>);

impl Handler for Asked {
    fn answer(&self, arrived: Arrived) -> BoxFuture<'_, Response> {
        Box::pin(async move {
            let said = match arrived {
                Arrived::Refused(why) => format!("{why:?}"),
                Arrived::Request(head, body) => {
                    let body = body.read(BODY_BYTES_MAX).await;
                    format!("{} {} {:?} {body:?}", head.method, head.uri, head.headers)
                }
            };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(said);
            Response::new(Payload::new(Bytes::new(), None))
        })
    }
}

/// Has room for all, and checks that it is given back.
#[derive(Default)]
struct Room(usize);

impl Account for Room {
    fn hold(&mut self, bytes: usize, _: Moment) -> bool {
        self.0 = bytes;
        true
    }

    fn poll_lost(&mut self, _: usize, _: Moment, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_unread(&mut self, _: usize, _: Moment, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_leaving(&mut self, _: &mut Context<'_>) -> Poll<()> {
        assert_eq!(self.0, 0, "between two requests nothing is held");
        Poll::Pending
    }
}

/// The requests of a connection that brings this in pieces.
async fn asked(input: &[u8], piece: usize) -> Vec<String> {
    let (mut client, theirs) = tokio::io::duplex(1 << 16);
    let handler = Asked::default();
    let serving = async {
        drop(serve(theirs, Arc::new(OsClock::new()), LIMITS, Box::new(Room::default()), &handler).await);
    };
    let sending = async {
        for piece in input.chunks(piece) {
            // It may have closed behind a request that makes no sense.
            if client.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let _ = client.shutdown().await;
        let _ = client.read_to_end(&mut Vec::new()).await;
    };
    tokio::join!(serving, sending);
    handler.0.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What stands in heads is understood in one way.
fn check_text(text: &str) {
    if let Ok(decoded) = path::decode(text) {
        let spelled: String = decoded.iter().map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(path::decode(&spelled), Ok(decoded), "each byte can be spelled out");
    }
    let _ = path::query(text);
    let _ = tags::parse(text.as_bytes());
    for alphabet in [BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD] {
        if let Ok(bytes) = alphabet.decode(text) {
            assert_eq!(alphabet.encode(&bytes), text, "two texts mean the same bytes");
        }
    }
}

/// Panics when pieces of the input are understood otherwise than the whole.
pub fn check(input: &[u8]) {
    let Some((&piece, input)) = input.split_first() else { return };
    let (piece, whole) = (usize::from(piece) % 16 + 1, input.len().max(1));
    check_text(&String::from_utf8_lossy(input));
    let executor = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let executor = executor.expect("a thread may have an executor");
    assert_eq!(executor.block_on(asked(input, piece)), executor.block_on(asked(input, whole)));
}
