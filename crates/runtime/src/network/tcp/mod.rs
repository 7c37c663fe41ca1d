//! Links over TCP.
//!
//! ```text
//! connect ──► preamble ──► ◄── preamble ──► frames both ways: length (4 bytes, little endian), body
//! ```
//!
//! - A link belongs to the executor thread that accepted or opened it: its reader and its writer run there.
//! - Sending appends to an outbox that a writer task empties when the executor next runs other work, so all frames
//!   of one turn leave in one system call. Two buffers swap places: nothing is allocated for a frame.
//! - Receiving cuts frames out of the receive buffer without copying; all frames of one read are handed out before
//!   the next system call.
//! - Queues are bounded, for each link and for all links of one network together.

pub(super) use preamble::{drain, looks_like};

mod preamble;
mod receiver;
mod sender;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tracing::debug;

use super::acceptor::{self, Share, unreachable};
use super::stream::{self, Handshakes, Safety, Stream};
use super::{Link, Listener, Network, NetworkError};
use crate::BoxFuture;

/// Bytes that may wait on one link: one frame at its limit, or a peer that is a second behind a fast sender.
pub const LINK_QUEUED_BYTES_MAX: usize = model::limits::FRAME_BYTES_MAX;

/// Bytes that may wait on all links of one network together, beyond [`LINK_QUEUED_BYTES_FREE`] on each.
pub const QUEUED_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Bytes on each link that do not count towards [`QUEUED_BYTES_MAX`], so that links that keep up share nothing.
pub const LINK_QUEUED_BYTES_FREE: usize = 256 * 1024;

/// How long connecting may take, greeting included.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Greetings that one listener carries on at the same time; more wait unread.
const GREETINGS_MAX: usize = 256;

/// A silent peer is probed after this long, and given up when it answers nothing for
/// [`PEER_SILENT_TIME_MAX`]: requests have their own deadlines, this only frees what a vanished machine held.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const PEER_SILENT_TIME_MAX: Duration = Duration::from_secs(30);

/// The network of the operating system. Clones share their limits.
#[derive(Clone, Default)]
pub struct TcpNetwork {
    limits: sender::OutboxLimits,
    dialing: Dialing,
}

/// How connections are opened.
#[derive(Clone, Default)]
pub enum Dialing {
    /// Without TLS; an address that wants it cannot be reached.
    #[default]
    Plain,
    /// With TLS where the address says so.
    AsAddressed(Arc<dyn Handshakes>),
    /// With TLS always, so that nothing that is read can lead to a connection without.
    Tls(Arc<dyn Handshakes>),
}

impl TcpNetwork {
    /// A network with the limits of this module.
    pub fn new() -> TcpNetwork {
        TcpNetwork::default()
    }

    /// A network with other limits on the bytes that may wait: on one link, and (beyond
    /// [`LINK_QUEUED_BYTES_FREE`] on each) on all links together.
    pub fn with_limits(link_queued_bytes_max: usize, queued_bytes_max: usize) -> TcpNetwork {
        let limits = sender::OutboxLimits::new(link_queued_bytes_max, queued_bytes_max);
        TcpNetwork { limits, ..TcpNetwork::default() }
    }

    /// A network that opens connections so.
    pub fn dialing(dialing: Dialing) -> TcpNetwork {
        TcpNetwork { dialing, ..TcpNetwork::default() }
    }

    /// Listens and spreads the links evenly, in turn, over `shares` listeners: one for each worker.
    ///
    /// Blocks while the name is resolved, so call it before the workers start.
    ///
    /// # Errors
    /// [`NetworkError::AddressInUse`], or [`NetworkError::Unreachable`] for an address that is malformed or not
    /// ours.
    ///
    /// # Panics
    /// When `shares` is 0.
    pub fn listen_shared(
        &self,
        address: &str,
        shares: usize,
    ) -> Result<Vec<Box<dyn Listener>>, NetworkError> {
        self.listen_safely(address, shares, &Safety::Plain)
    }

    /// As [`Self::listen_shared`], with TLS as `safety` says.
    ///
    /// # Errors
    /// As [`Self::listen_shared`].
    ///
    /// # Panics
    /// As [`Self::listen_shared`].
    pub fn listen_safely(
        &self,
        address: &str,
        shares: usize,
        safety: &Safety,
    ) -> Result<Vec<Box<dyn Listener>>, NetworkError> {
        let shares = acceptor::listen(address, shares)?;
        Ok(shares.into_iter().map(|share| self.listener(share, safety)).collect())
    }

    fn listener(&self, share: Share, safety: &Safety) -> Box<dyn Listener> {
        let (limits, safety) = (self.limits.clone(), safety.clone());
        Box::new(TcpListener { share, limits, safety, greetings: FuturesUnordered::new() })
    }
}

impl Network for TcpNetwork {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Link, NetworkError>> {
        let address = address.to_owned();
        let (limits, dialing) = (self.limits.clone(), self.dialing.clone());
        Box::pin(async move {
            let (host_port, is_tls) = match address.strip_prefix(model::node::TLS_SCHEME) {
                Some(rest) => (rest, true),
                None => (address.as_str(), false),
            };
            let tls = match dialing {
                Dialing::AsAddressed(tls) if is_tls => Some(tls),
                Dialing::Tls(tls) => Some(tls),
                _ if is_tls => {
                    let reason =
                        "it is called with TLS, and no certificate of its authority is given".to_owned();
                    return Err(NetworkError::Tls { address: host_port.to_owned(), reason });
                }
                _ => None,
            };
            let stream = connect(host_port, tls.as_deref()).await?;
            Ok(link(stream, host_port.to_owned(), limits))
        })
    }

    fn listen(&self, address: &str) -> BoxFuture<'static, Result<Box<dyn Listener>, NetworkError>> {
        let address = address.to_owned();
        let network = self.clone();
        Box::pin(async move {
            let listening = {
                let address = address.clone();
                tokio::task::spawn_blocking(move || acceptor::listen(&address, 1)).await
            };
            match listening {
                Ok(shares) => Ok(network.listener(shares?.remove(0), &Safety::Plain)),
                Err(error) => Err(NetworkError::Unreachable { address, reason: error.to_string() }),
            }
        })
    }
}

async fn connect(address: &str, tls: Option<&dyn Handshakes>) -> Result<Stream, NetworkError> {
    let give_up = Instant::now() + CONNECT_TIME_MAX;
    let unreachable_for = |reason: String| NetworkError::Unreachable { address: address.to_owned(), reason };
    let connected = tokio::time::timeout_at(give_up, TcpStream::connect(address)).await;
    let connected =
        connected.map_err(|_| unreachable_for(format!("connecting timed out after {CONNECT_TIME_MAX:?}")))?;
    let tcp = connected.map_err(|error| unreachable(address, &error))?;
    configure(&tcp).map_err(|error| unreachable(address, &error))?;
    let greeting = async {
        let mut stream = match tls {
            Some(tls) => tls.connect(tcp, address).await?,
            None => Stream::Plain(tcp),
        };
        preamble::greet(&mut stream).await.map(|()| stream)
    };
    match tokio::time::timeout_at(give_up, greeting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(NetworkError::Tls { reason, .. })) => {
            Err(NetworkError::Tls { address: address.to_owned(), reason })
        }
        Ok(Err(NetworkError::Closed)) => {
            Err(unreachable_for("the peer closed the connection before its greeting".to_owned()))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(NetworkError::Silent { address: address.to_owned() }),
    }
}

fn configure(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_INTERVAL),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(PEER_SILENT_TIME_MAX))?;
    Ok(())
}

/// Makes a link of a stream whose preambles are exchanged; its writer runs on the calling thread's executor.
fn link(stream: Stream, peer: String, limits: sender::OutboxLimits) -> Link {
    let proof = stream.proof();
    let (read_half, write_half) = stream.into_split();
    let (sender, closed) = sender::start(write_half, limits);
    Link { sender, receiver: Box::new(receiver::TcpReceiver::new(read_half, closed)), peer, proof }
}

type Greeting = BoxFuture<'static, (Result<Stream, NetworkError>, SocketAddr)>;

/// One worker's share of the links to one address. A peer that greets slowly does not hold up the others.
struct TcpListener {
    share: Share,
    limits: sender::OutboxLimits,
    safety: Safety,
    greetings: FuturesUnordered<Greeting>,
}

impl Listener for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, Result<Link, NetworkError>> {
        Box::pin(async move {
            loop {
                let greeted = tokio::select! {
                    biased;
                    Some(greeted) = self.greetings.next() => greeted,
                    accepted = self.share.accept(), if self.greetings.len() < GREETINGS_MAX => {
                        let (stream, peer) = accepted?;
                        self.greetings.push(Box::pin(greeted(stream, peer, self.safety.clone())));
                        continue;
                    }
                };
                match greeted {
                    (Ok(stream), peer) => return Ok(link(stream, peer.to_string(), self.limits.clone())),
                    (Err(NetworkError::Closed), peer) => debug!(%peer, "peer left before greeting"),
                    (Err(error), _) => return Err(error),
                }
            }
        })
    }

    fn address(&self) -> String {
        self.share.address().to_string()
    }
}

async fn greeted(
    tcp: TcpStream,
    peer: SocketAddr,
    safety: Safety,
) -> (Result<Stream, NetworkError>, SocketAddr) {
    if configure(&tcp).is_err() {
        return (Err(NetworkError::Closed), peer);
    }
    let mut stream = match stream::accept(tcp, &safety, false).await {
        Ok(stream) => stream,
        Err(error) => return (Err(error), peer),
    };
    match preamble::answer(&mut stream).await {
        Ok(()) => (Ok(stream), peer),
        Err(error) => (Err(error), peer),
    }
}
