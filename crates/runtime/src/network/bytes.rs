//! Plain byte streams for doors that speak somebody else's protocol (RESP, HTTP).
//!
//! Frames and preamble of the native protocol do not apply here; the door counts its own connections.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::NetworkError;
use super::acceptor::{self, Share};

/// One worker's share of the connections to one address.
///
/// When the last share of an address is dropped, the address is free again.
pub struct ByteListener {
    share: Share,
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
    Ok(acceptor::listen(address, shares)?.into_iter().map(|share| ByteListener { share }).collect())
}

impl ByteListener {
    /// The next connection, on the calling thread's executor, with Nagle's delay off. Cancel safe.
    ///
    /// # Errors
    /// [`NetworkError::Closed`] when the listener cannot go on.
    pub async fn accept(&mut self) -> Result<(TcpStream, SocketAddr), NetworkError> {
        loop {
            let (stream, peer) = self.share.accept().await?;
            // Fails only when the connection is broken already.
            if stream.set_nodelay(true).is_ok() {
                return Ok((stream, peer));
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
