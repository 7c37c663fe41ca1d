//! The bodies of requests and answers.

use std::any::Any;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::Stream;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};

use super::frames::BodyFrames;
use super::{Line, Refused};

/// The body of a request, which may still be coming in.
pub struct Arriving {
    source: BodySource,
    line: Arc<Line>,
}

/// Where it comes from. What comes by HTTP/1.1 was counted by the gate.
enum BodySource {
    Connection(Incoming),
    Stream(BodyFrames),
    /// Nobody reads it, so it was dropped.
    Nowhere,
}

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is longer than its reader takes.
    TooLong,
    /// It ended before its length, or its chunks make no sense.
    Broken,
    /// The connection's account or pace refused it.
    Refused(Refused),
}

impl Arriving {
    pub(super) fn new(incoming: Incoming, line: Arc<Line>) -> Arriving {
        Arriving { source: BodySource::Connection(incoming), line }
    }

    /// The body of a stream of HTTP/2.
    pub(super) fn of_stream(frames: BodyFrames, line: Arc<Line>) -> Arriving {
        Arriving { source: BodySource::Stream(frames), line }
    }

    /// That of a stream whose request only reads: what comes of it is dropped, so that it keeps no window from others.
    pub(super) fn dropped(line: Arc<Line>) -> Arriving {
        Arriving { source: BodySource::Nowhere, line }
    }

    /// Bytes of the head before it.
    pub fn head_bytes(&self) -> usize {
        self.line.head_bytes.load(Ordering::Relaxed)
    }

    /// All of it, at most so many bytes. Of a body that is too long nothing is read if it says so in its head.
    ///
    /// # Errors
    /// When it has not come whole. The connection ends behind the answer then.
    pub async fn read(mut self, bytes_max: usize) -> Result<Bytes, Unread> {
        let declared = self.declared();
        if declared.is_some_and(|bytes| bytes > bytes_max as u64) {
            return Err(Unread::TooLong);
        }
        let declared = declared.map_or(usize::MAX, |bytes| bytes as usize);
        // A frame is a part of the buffer that its connection reads into, which it would keep.
        let may_keep = matches!(self.source, BodySource::Connection(_));
        let mut body = BytesMut::new();
        while let Some(piece) = poll_fn(|context| self.poll_piece(context)).await {
            let piece = piece?;
            if piece.len() > bytes_max - body.len() {
                return Err(Unread::TooLong);
            }
            if may_keep && body.is_empty() && piece.len() == declared {
                self.line.arrived();
                return Ok(piece);
            }
            if body.capacity() - body.len() < piece.len() {
                // No more than has come: announcing a length reserves nothing.
                let left = declared.saturating_sub(body.len());
                body.reserve(piece.len().max(left.min(body.len() + piece.len())));
            }
            body.extend_from_slice(&piece);
        }
        self.line.arrived();
        Ok(body.freeze())
    }

    /// Its length, if its head says it.
    fn declared(&self) -> Option<u64> {
        match &self.source {
            BodySource::Connection(incoming) => incoming.size_hint().exact(),
            BodySource::Stream(frames) => frames.declared(),
            BodySource::Nowhere => Some(0),
        }
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Unread>>> {
        let incoming = match &mut self.source {
            BodySource::Connection(incoming) => incoming,
            BodySource::Stream(frames) => return frames.poll_piece(&self.line, context),
            BodySource::Nowhere => return Poll::Ready(None),
        };
        while let Some(frame) = ready!(Pin::new(&mut *incoming).poll_frame(context)) {
            let Ok(frame) = frame else {
                return Poll::Ready(Some(Err(self.line.refused().map_or(Unread::Broken, Unread::Refused))));
            };
            // Trailers say nothing that is asked for here.
            if let Ok(piece) = frame.into_data() {
                return Poll::Ready(Some(Ok(piece)));
            }
        }
        Poll::Ready(None)
    }
}

/// The body of an answer: bytes, or pieces that are still being made; and what is given back when the other end has
/// taken them.
#[derive(Default)]
pub struct Payload {
    content: Content,
}

/// What a body holds.
pub(super) enum Content {
    /// All of it.
    Whole(Option<Kept>),
    /// Piece by piece. Its length is not known, so it ends by its last chunk.
    Pieces(Pieces),
}

/// The pieces of a body, each when it is there.
pub type Pieces = Pin<Box<dyn Stream<Item = Kept> + Send>>;

impl Default for Content {
    fn default() -> Content {
        Content::Whole(None)
    }
}

/// Bytes on their way out.
#[derive(Default)]
pub struct Kept {
    bytes: Bytes,
    /// Dropped with the bytes.
    _held: Option<Box<dyn Any + Send>>,
}

impl Kept {
    /// These bytes, which hold `held` until they have left.
    pub fn new(bytes: Bytes, held: Option<Box<dyn Any + Send>>) -> Kept {
        Kept { bytes, _held: held }
    }
}

impl Payload {
    /// These bytes, which hold `held` until they have left.
    pub fn new(bytes: Bytes, held: Option<Box<dyn Any + Send>>) -> Payload {
        Payload { content: Content::Whole(Some(Kept::new(bytes, held))) }
    }

    /// These pieces. They are asked for when the other end has taken those before, but for some kilobytes.
    pub fn pieces(pieces: Pieces) -> Payload {
        Payload { content: Content::Pieces(pieces) }
    }

    pub(super) fn into_content(self) -> Content {
        self.content
    }

    /// Whether its end cannot be known beforehand.
    pub(super) fn is_endless(&self) -> bool {
        matches!(self.content, Content::Pieces(_))
    }
}

impl Buf for Kept {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

impl hyper::body::Body for Payload {
    type Data = Kept;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Kept>, Infallible>>> {
        let kept = match &mut self.content {
            Content::Whole(kept) => Poll::Ready(kept.take()),
            Content::Pieces(pieces) => pieces.as_mut().poll_next(context),
        };
        kept.map(|kept| kept.map(|kept| Ok(Frame::data(kept))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(kept) => kept.as_ref().is_none_or(|kept| kept.bytes.is_empty()),
            Content::Pieces(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(kept) => {
                SizeHint::with_exact(kept.as_ref().map_or(0, |kept| kept.bytes.len() as u64))
            }
            Content::Pieces(_) => SizeHint::default(),
        }
    }
}
