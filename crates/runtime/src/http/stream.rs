//! One stream of HTTP/2: a request and its answer.
//!
//! ```text
//!   HEADERS ─▶ in order? ─▶ Handler ─▶ HEADERS, and each piece of the body: h2 has one at a time
//!                │ no                          │
//!                └▶ Handler, with the reason   └ unread for too long, or its room is lost ─▶ RST_STREAM
//! ```
//!
//! h2 has judged the frames and the pseudo-headers, and refuses by itself what HTTP/2 does not allow: lines that speak
//! of a connection, a body of another length than its head says. The rest is refused here, with the reason.
//!
//! A request that only reads is dropped when the client resets its stream. One that may write goes on, so that what it has
//! begun at some replicas is ended at all of them, as by HTTP/1.1 where its client leaves.
//!
//! Must never: drop a request in the middle of a write, or keep what a stream holds beyond its reset for longer.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode, Uri, Version};

use super::body::Content;
use super::frames::{BodyFrames, Piece, Way};
use super::head::LINES_MAX;
use super::{Account, Arrived, Arriving, Handler, Kept, Limits, Line, Parts, Payload, Refused, Response};
use crate::Clock;
use crate::pace::StallTimer;

/// What the protocol counts for each line of a head beside its name and value.
const LINE_BYTES: usize = 32;
/// Lines of a head that only a connection of HTTP/1.1 has.
const OF_CONNECTIONS: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The client has its whole answer. `closes`: its connection shall end.
    Answered { closes: bool },
    /// It ended before its answer: the client has reset it, or broken the protocol.
    Broken,
    /// Its answer was cut off here.
    Cut,
    /// So was this one, in the middle of a frame. The rest of it cannot be taken back, so its connection ends with it.
    Stuck,
}

/// What a stream has of its connection.
pub(super) struct StreamSetting {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: Limits,
}

/// Carries out one request.
pub(super) async fn serve(
    request: hyper::Request<RecvStream>,
    mut respond: SendResponse<Piece>,
    account: Box<dyn Account>,
    handler: Box<dyn Handler + '_>,
    setting: StreamSetting,
) -> StreamEnd {
    let StreamSetting { clock, limits } = setting;
    let line = Line::new(account, clock.clone());
    let is_head = request.method() == Method::HEAD;
    let only_reads = only_reads(request.method());
    let expected = request.headers().get(header::EXPECT);
    let mut expects = expected.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let arrived = arrived(request, &line, limits);
    let mut answering = handler.answer(arrived);
    let mut is_reset = false;
    let response = poll_fn(|context| {
        is_reset = is_reset || respond.poll_reset(context).is_ready();
        if is_reset && only_reads {
            return Poll::Ready(None);
        }
        let answered = answering.as_mut().poll(context);
        if answered.is_pending() && expects && !is_reset && line.is_wanted.load(Ordering::Relaxed) {
            expects = false;
            go_on(&mut respond);
        }
        answered.map(|response| (!is_reset).then_some(response))
    });
    let Some(response) = response.await else { return StreamEnd::Broken };
    drop(answering);
    // What was not read of the request is not counted any more.
    line.arrived();
    let going = StallTimer::new(clock, limits.rest_bytes_min, limits.rest_time_max);
    let watch = AnswerWatch { line, going, way: Arc::default(), which: 0, is_fresh: false };
    send(respond, response, is_head, watch).await
}

/// Whether such a request only reads, and has no body that anybody reads.
fn only_reads(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// The request as it is carried out. Of one that is refused nothing is kept beyond this, however long its answer takes.
fn arrived(request: hyper::Request<RecvStream>, line: &Arc<Line>, limits: Limits) -> Arrived {
    let (mut head, frames) = request.into_parts();
    let head_bytes = head_bytes(&head);
    line.begin(head_bytes, frames.is_end_stream());
    match judged(&mut head, head_bytes, &limits) {
        Err(why) => Arrived::Refused(why),
        Ok(_) if only_reads(&head.method) => {
            Arrived::Request(Box::new(head), Arriving::dropped(line.clone()))
        }
        Ok(declared) => {
            let frames = BodyFrames::new(frames, head_bytes, declared, line, limits);
            Arrived::Request(Box::new(head), Arriving::of_stream(frames, line.clone()))
        }
    }
}

/// Tells a client that waits for it that its body is wanted.
fn go_on(respond: &mut SendResponse<Piece>) {
    let mut response = hyper::Response::new(());
    *response.status_mut() = StatusCode::CONTINUE;
    // A stream that has ended meanwhile is noticed when it is answered.
    let _ = respond.send_informational(response);
}

/// Refuses what HTTP/2 takes and we do not. Makes of the head what it would be by HTTP/1.1, and hands back the length that
/// it declares.
fn judged(head: &mut Parts, head_bytes: usize, limits: &Limits) -> Result<Option<u64>, Refused> {
    let malformed = |why| Refused::Malformed { why };
    if head_bytes > limits.head_bytes_max {
        return Err(Refused::HeadTooLong { bytes_max: limits.head_bytes_max });
    }
    if head.headers.len() > LINES_MAX {
        return Err(Refused::TooManyLines { lines_max: LINES_MAX });
    }
    if head.headers.get_all(header::CONTENT_LENGTH).iter().count() > 1 {
        return Err(malformed("the head has two lengths (content-length)"));
    }
    if let Some(authority) = head.uri.authority() {
        let mut hosts = head.headers.get_all(header::HOST).iter();
        if hosts.any(|host| host.as_bytes() != authority.as_str().as_bytes()) {
            return Err(malformed("the head names two hosts (:authority and host)"));
        }
        if !head.headers.contains_key(header::HOST) {
            let host = HeaderValue::from_str(authority.as_str());
            let host = host.map_err(|_| malformed("the host (:authority) is none"))?;
            head.headers.insert(header::HOST, host);
        }
    }
    head.uri = head.uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
    let declared = head.headers.get(header::CONTENT_LENGTH).map(|value| value.to_str().ok()?.parse().ok());
    match declared {
        None => Ok(None),
        Some(Some(bytes)) => Ok(Some(bytes)),
        Some(None) => Err(malformed("the length (content-length) is not a number of bytes")),
    }
}

/// How long a head is, as the protocol counts it.
fn head_bytes(head: &Parts) -> usize {
    let lines = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + LINE_BYTES);
    let path = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = head.uri.authority().map_or(0, |authority| authority.as_str().len());
    let first = head.method.as_str().len() + path + authority;
    lines.sum::<usize>() + first + 4 * LINE_BYTES
}

/// Watches how an answer leaves.
struct AnswerWatch {
    line: Arc<Line>,
    going: StallTimer,
    way: Arc<Way>,
    /// Numbers pieces: between two of them any time may pass.
    which: u64,
    /// Whether h2 was not asked to send yet since it was given the piece.
    is_fresh: bool,
}

async fn send(
    mut respond: SendResponse<Piece>,
    response: Response,
    is_head: bool,
    mut watch: AnswerWatch,
) -> StreamEnd {
    let (mut head, payload) = response.into_parts();
    let closes = head.headers.contains_key(header::CONNECTION);
    OF_CONNECTIONS.iter().for_each(|name| drop(head.headers.remove(*name)));
    head.version = Version::HTTP_2;
    let length = length(&payload);
    let may_have_body = head.status != StatusCode::NO_CONTENT && head.status != StatusCode::NOT_MODIFIED;
    if let Some(length) = length.filter(|_| may_have_body) {
        head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let has_body = may_have_body && !is_head && length != Some(0);
    let response = hyper::Response::from_parts(head, ());
    let Ok(mut stream) = respond.send_response(response, !has_body) else { return StreamEnd::Broken };
    if !has_body {
        return StreamEnd::Answered { closes };
    }
    match watch.send_body(&mut stream, payload.into_content()).await {
        Ok(()) => StreamEnd::Answered { closes },
        Err(end) => end,
    }
}

/// The length of a body, if it is known.
fn length(payload: &Payload) -> Option<u64> {
    hyper::body::Body::size_hint(payload).exact()
}

impl AnswerWatch {
    async fn send_body(&mut self, stream: &mut SendStream<Piece>, content: Content) -> Result<(), StreamEnd> {
        let mut pieces = match content {
            Content::Whole(kept) => return self.send_piece(stream, kept.unwrap_or_default(), true).await,
            Content::Pieces(pieces) => pieces,
        };
        loop {
            let next = poll_fn(|context| {
                if stream.poll_reset(context).is_ready() {
                    return Poll::Ready(Err(StreamEnd::Broken));
                }
                pieces.as_mut().poll_next(context).map(Ok)
            });
            match next.await? {
                Some(piece) => self.send_piece(stream, piece, false).await?,
                None => return self.send_piece(stream, Kept::default(), true).await,
            }
        }
    }

    /// Sends a piece, and waits until it has left.
    async fn send_piece(
        &mut self,
        stream: &mut SendStream<Piece>,
        kept: Kept,
        is_last: bool,
    ) -> Result<(), StreamEnd> {
        let end = self.way.sent() + bytes::Buf::remaining(&kept);
        stream.send_data(Piece::new(kept, &self.way), is_last).map_err(|_| StreamEnd::Broken)?;
        (self.which, self.is_fresh) = (self.which + 1, true);
        let is_slow = poll_fn(|context| self.poll_left(stream, context)).await;
        if is_slow {
            stream.send_reset(Reason::CANCEL);
            // h2 has dropped the piece now, unless it has begun a frame of it.
            return Err(if self.way.holds() { StreamEnd::Stuck } else { StreamEnd::Cut });
        }
        if self.way.sent() == end { Ok(()) } else { Err(StreamEnd::Broken) }
    }

    /// Ready when h2 has the piece no more, or with true when the other end reads it too slowly.
    fn poll_left(&mut self, stream: &mut SendStream<Piece>, context: &mut Context<'_>) -> Poll<bool> {
        if !self.way.is_taken(context) || stream.poll_reset(context).is_ready() {
            return Poll::Ready(false);
        }
        if std::mem::take(&mut self.is_fresh) {
            // Most pieces leave at once, and then need no timer.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let sent = self.way.sent();
        if self.line.poll_unread(sent, self.line.clock.now(), context).is_pending() {
            ready!(self.going.poll(self.which, sent, context));
        }
        Poll::Ready(true)
    }
}
