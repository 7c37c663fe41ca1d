//! A stream of bytes over a link, for the protocol that has no frames.
//!
//! Each write goes out in pieces of drawn lengths, so that commands and replies arrive cut anywhere. What carries
//! streams loses, doubles and reorders nothing, whatever the network does to frames: TCP sees to that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use runtime::{Entropy, Link, LinkReceiver, LinkSender};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that travel together, as in a packet.
const PIECE_BYTES_MAX: u64 = 1460;

/// One end of a stream.
pub struct LinkStream {
    /// Gone once this end has said all.
    sender: Option<Arc<dyn LinkSender>>,
    receiver: Box<dyn LinkReceiver>,
    /// Arrived, and not yet read.
    unread: Bytes,
    entropy: Arc<dyn Entropy>,
}

impl LinkStream {
    /// Over a link to the port of a door that speaks bytes.
    pub fn new(link: Link, entropy: Arc<dyn Entropy>) -> LinkStream {
        LinkStream { sender: Some(link.sender), receiver: link.receiver, unread: Bytes::new(), entropy }
    }
}

impl AsyncRead for LinkStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(self.receiver.poll_receive(context)) {
                Ok(Some(piece)) => self.unread = piece,
                Ok(None) => return Poll::Ready(Ok(())),
                Err(_) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        }
        let count = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread[..count]);
        self.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LinkStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(sender) = &self.sender else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let count = bytes.len().min(1 + self.entropy.below(PIECE_BYTES_MAX) as usize);
        match sender.send(&mut |frame| frame.extend_from_slice(&bytes[..count])) {
            Ok(()) => Poll::Ready(Ok(count)),
            Err(_) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sender = None;
        Poll::Ready(Ok(()))
    }
}
