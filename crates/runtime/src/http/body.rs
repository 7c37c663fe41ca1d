//! The bodies of requests and answers.

use std::any::Any;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};

use super::{Line, Refused};

/// The body of a request, which may still be coming in.
pub struct Arriving {
    incoming: Incoming,
    line: Arc<Line>,
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
        Arriving { incoming, line }
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
        let declared = self.incoming.size_hint().exact();
        if declared.is_some_and(|bytes| bytes > bytes_max as u64) {
            return Err(Unread::TooLong);
        }
        let declared = declared.map_or(usize::MAX, |bytes| bytes as usize);
        let mut body = BytesMut::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut self.incoming).poll_frame(context)).await {
            let Ok(frame) = frame else {
                return Err(self.line.refused().map_or(Unread::Broken, Unread::Refused));
            };
            // Trailers say nothing that is asked for here.
            let Ok(piece) = frame.into_data() else { continue };
            if piece.len() > bytes_max - body.len() {
                return Err(Unread::TooLong);
            }
            if body.is_empty() && piece.len() == declared {
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
}

/// The body of an answer: bytes, and what is given back when the other end has taken them.
#[derive(Default)]
pub struct Payload {
    bytes: Option<Kept>,
}

/// Bytes on their way out.
pub struct Kept {
    bytes: Bytes,
    /// Dropped with the bytes.
    _held: Option<Box<dyn Any + Send>>,
}

impl Payload {
    /// These bytes, which hold `held` until they have left.
    pub fn new(bytes: Bytes, held: Option<Box<dyn Any + Send>>) -> Payload {
        Payload { bytes: Some(Kept { bytes, _held: held }) }
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
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Kept>, Infallible>>> {
        Poll::Ready(self.bytes.take().map(|kept| Ok(Frame::data(kept))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.as_ref().is_none_or(|kept| kept.bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |kept| kept.bytes.len() as u64))
    }
}
