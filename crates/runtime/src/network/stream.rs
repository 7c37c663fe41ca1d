//! A connection, with TLS or without; and what its other end has proved.
//!
//! ```text
//! accepted ─▶ first byte ─┬─ 0x16: a TLS handshake ─▶ Stream::Tls
//!                         └─ anything else          ─▶ Stream::Plain, or refused in words
//! ```
//!
//! Both come to the same port, so that a running cluster is turned over node by node. No protocol of ours begins with
//! 0x16, and each of them lets the side speak first that connects.
//!
//! **Architecture Invariant:** a listener that requires TLS hands out nothing that came without.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::{NetworkError, Proof};
use crate::BoxFuture;

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;

/// How long a handshake may take, the first byte included.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);

/// What is said, in Redis's words, to a connection without TLS where TLS is required. It has the length of a preamble at
/// least, so that the native protocol recognises it.
pub(super) const WANTS_TLS: &[u8] = b"-TLS this port takes no connection without TLS\r\n";

/// The same to an HTTP client.
const WANTS_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 73\r\n\
    Connection: close\r\n\r\nthis port takes no connection without TLS: begin the address with https:\n";

/// Longest method by which an HTTP client is known, and a blank.
const METHOD_BYTES: usize = 8;

/// Makes encrypted connections of plain ones. `network::tls` has the one way; builds without it have none.
pub trait Handshakes: Send + Sync {
    /// As the side that connected, to this `host:port`.
    ///
    /// # Errors
    /// [`NetworkError::Tls`].
    fn connect<'a>(&'a self, tcp: TcpStream, address: &'a str)
    -> BoxFuture<'a, Result<Stream, NetworkError>>;

    /// As the side that accepted; `http` offers to speak HTTP.
    ///
    /// # Errors
    /// [`NetworkError::Tls`].
    fn accept(&self, tcp: TcpStream, http: bool) -> BoxFuture<'_, Result<Stream, NetworkError>>;
}

/// An encrypted connection.
pub trait Encrypted: AsyncRead + AsyncWrite + Send + Unpin {
    /// Whether the other end has shown a certificate of the node authority.
    fn is_of_node(&self) -> bool;

    /// The protocol that both ends agreed on in their handshake, if they did.
    fn protocol(&self) -> Option<&[u8]>;

    /// What is below.
    fn tcp(&self) -> &TcpStream;
}

/// How a listener treats TLS.
#[derive(Clone)]
pub enum Safety {
    /// It speaks none.
    Plain,
    /// It takes connections with TLS and without, by their first byte.
    Accept(Arc<dyn Handshakes>),
    /// It takes no connection without TLS.
    Require(Arc<dyn Handshakes>),
}

/// One connection.
pub enum Stream {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<dyn Encrypted>),
}

impl Stream {
    /// What the other end has proved.
    pub fn proof(&self) -> Proof {
        match self {
            // Certificates of any other authority were refused.
            Stream::Tls(stream) if stream.is_of_node() => Proof::Node,
            _ => Proof::None,
        }
    }

    /// The protocol that both ends agreed on in their handshake, if they did.
    pub fn protocol(&self) -> Option<&[u8]> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(stream) => stream.protocol(),
        }
    }

    /// What is below.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.tcp(),
        }
    }

    /// The halves of a link.
    pub(super) fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Stream::Plain(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Plain(read), WriteHalf::Plain(write))
            }
            tls => {
                let shared = Arc::new(Mutex::new(tls));
                (ReadHalf::Tls(shared.clone()), WriteHalf::Tls(shared))
            }
        }
    }
}

/// Takes an accepted connection as the listener wants it.
///
/// # Errors
/// [`NetworkError::Foreign`] without TLS where it is required: the other end was told. [`NetworkError::Tls`] when the
/// handshake fails. [`NetworkError::Closed`] when the other end says nothing in time, or has gone.
pub(super) async fn accept(tcp: TcpStream, safety: &Safety, http: bool) -> Result<Stream, NetworkError> {
    let (tls, is_required) = match safety {
        Safety::Plain => return Ok(Stream::Plain(tcp)),
        Safety::Accept(tls) => (tls, false),
        Safety::Require(tls) => (tls, true),
    };
    let accepted =
        tokio::time::timeout(HANDSHAKE_TIME_MAX, accept_by_first_byte(tcp, &**tls, is_required, http));
    accepted.await.unwrap_or(Err(NetworkError::Closed))
}

async fn accept_by_first_byte(
    mut tcp: TcpStream,
    tls: &dyn Handshakes,
    is_required: bool,
    http: bool,
) -> Result<Stream, NetworkError> {
    let mut first = [0; METHOD_BYTES];
    let count = match tcp.peek(&mut first).await {
        Ok(0) | Err(_) => return Err(NetworkError::Closed),
        Ok(count) => count,
    };
    if first[0] != HANDSHAKE {
        if !is_required {
            return Ok(Stream::Plain(tcp));
        }
        let speaks_http = http || super::tcp::looks_like(&first[..count]) == "HTTP";
        // It may be gone already.
        let _ = tcp.write_all(if speaks_http { WANTS_HTTPS } else { WANTS_TLS }).await;
        super::tcp::drain(&mut tcp).await;
        return Err(NetworkError::Foreign { looks_like: "a protocol without TLS" });
    }
    tls.accept(tcp, http).await
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    /// A head and the value behind it are one call of the system, and one record of TLS.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// The reading half of a link.
pub(super) enum ReadHalf {
    Plain(OwnedReadHalf),
    Tls(Arc<Mutex<Stream>>),
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ReadHalf::Plain(half) => Pin::new(half).poll_read(context, buffer),
            ReadHalf::Tls(shared) => Pin::new(&mut *shared.lock()).poll_read(context, buffer),
        }
    }
}

/// The writing half of a link.
pub(super) enum WriteHalf {
    Plain(OwnedWriteHalf),
    Tls(Arc<Mutex<Stream>>),
}

impl WriteHalf {
    /// Ends the connection, both ways. Fails only when the peer was faster.
    pub(super) fn break_off(&self) {
        self.shut_down(Shutdown::Both);
    }

    fn shut_down(&self, which: Shutdown) {
        let _ = match self {
            WriteHalf::Plain(half) => SockRef::from(half.as_ref()).shutdown(which),
            WriteHalf::Tls(shared) => SockRef::from(shared.lock().tcp()).shutdown(which),
        };
    }

    pub(super) fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            WriteHalf::Plain(half) => Pin::new(half).poll_write(context, bytes),
            WriteHalf::Tls(shared) => Pin::new(&mut *shared.lock()).poll_write(context, bytes),
        }
    }

    /// Hands to the operating system what was encrypted and not sent.
    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            WriteHalf::Plain(_) => Poll::Ready(Ok(())),
            WriteHalf::Tls(shared) => Pin::new(&mut *shared.lock()).poll_flush(context),
        }
    }

    /// Tells the peer that nothing more will come. A plain half does so when it is dropped.
    pub(super) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            WriteHalf::Plain(_) => Poll::Ready(Ok(())),
            WriteHalf::Tls(shared) => Pin::new(&mut *shared.lock()).poll_shutdown(context),
        }
    }
}

impl Drop for WriteHalf {
    /// The other half keeps the connection; nothing more is written to it.
    fn drop(&mut self) {
        // A plain half does so by itself.
        if let WriteHalf::Tls(_) = self {
            self.shut_down(Shutdown::Write);
        }
    }
}
