//! Plain byte streams for doors that speak somebody else's protocol (RESP, HTTP).
//!
//! Frames and preamble of the native protocol do not apply here; the door counts its own connections.

use std::net::SocketAddr;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::NetworkError;
use super::acceptor::{self, Share};
use super::stream::{self, Safety, Stream};
use crate::BoxFuture;

/// Handshakes that one listener carries on at the same time; more wait unread.
const HANDSHAKES_MAX: usize = 256;

/// One worker's share of the connections to one address.
///
/// When the last share of an address is dropped, the address is free again.
pub struct ByteListener {
    share: Share,
    safety: Safety,
    http: bool,
    handshakes: FuturesUnordered<BoxFuture<'static, (Result<Stream, NetworkError>, SocketAddr)>>,
}

/// Listens at `address` (`host:port`; port 0 takes any free port) and spreads the connections evenly, in turn, over
/// `shares` listeners: one for each worker.
///
/// Blocks while the name is resolved, so call it before the workers start.
///
/// # Errors
/// [`NetworkError::AddressInUse`], or [`NetworkError::Unreachable`] for an address that is malformed or not ours.
///
/// # Panics
/// When `shares` is 0.
pub fn listen(address: &str, shares: usize) -> Result<Vec<ByteListener>, NetworkError> {
    listen_safely(address, shares, &Safety::Plain, false)
}

/// As [`listen`], with TLS as `safety` says; over it, `http` offers to speak HTTP.
///
/// # Errors
/// As [`listen`].
///
/// # Panics
/// As [`listen`].
pub fn listen_safely(
    address: &str,
    shares: usize,
    safety: &Safety,
    http: bool,
) -> Result<Vec<ByteListener>, NetworkError> {
    let shares = acceptor::listen(address, shares)?.into_iter();
    let listener =
        |share| ByteListener { share, safety: safety.clone(), http, handshakes: FuturesUnordered::new() };
    Ok(shares.map(listener).collect())
}

impl ByteListener {
    /// The next connection, on the calling thread's executor, with Nagle's delay off. Cancel safe. A peer that is slow
    /// in its handshake does not hold up the others.
    ///
    /// # Errors
    /// [`NetworkError::Closed`] when the listener cannot go on. Any other error concerns one peer only, which was told.
    pub async fn accept(&mut self) -> Result<(Stream, SocketAddr), NetworkError> {
        loop {
            let (accepted, peer) = tokio::select! {
                biased;
                Some(shaken) = self.handshakes.next() => shaken,
                accepted = self.share.accept(), if self.handshakes.len() < HANDSHAKES_MAX => {
                    let (tcp, peer) = match accepted {
                        Ok(accepted) => accepted,
                        // Those that came before are still handed out.
                        Err(error) => match self.handshakes.next().await {
                            Some((Ok(stream), peer)) => return Ok((stream, peer)),
                            Some(_) => continue,
                            None => return Err(error),
                        },
                    };
                    // Fails only when the connection is broken already.
                    if tcp.set_nodelay(true).is_err() {
                        continue;
                    }
                    if let Safety::Plain = self.safety {
                        return Ok((Stream::Plain(tcp), peer));
                    }
                    let (safety, http) = (self.safety.clone(), self.http);
                    self.handshakes.push(Box::pin(async move { (stream::accept(tcp, &safety, http).await, peer) }));
                    continue;
                }
            };
            match accepted {
                Ok(stream) => return Ok((stream, peer)),
                Err(NetworkError::Closed) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends accepting, for all shares of the address: whoever comes from now on is refused. Connections that came before
    /// are still handed out; after them, accepting is [`NetworkError::Closed`].
    pub fn close(&self) {
        self.share.close();
    }

    /// The address with the port that was really taken.
    pub fn address(&self) -> SocketAddr {
        self.share.address()
    }
}
