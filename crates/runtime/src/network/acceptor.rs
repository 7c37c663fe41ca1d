//! Accepts connections on one address and deals them out to the workers in turn.
//!
//! ```text
//!              ┌─► share 0 (worker 0)
//! accept ──────┼─► share 1 (worker 1)
//! (own thread) └─► share 0 ...
//! ```
//!
//! Letting the kernel spread connections (`SO_REUSEPORT`) hashes them: three clients may all land on one of two
//! workers, and a foreign process of the same user can silently join the port. One listener that deals in turn is
//! even from the first connection on, and a port in use is an error.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::Builder;
use tokio::sync::{Notify, mpsc};
use tracing::warn;

use super::NetworkError;

/// Connections that the kernel holds before they are accepted.
const BACKLOG: i32 = 1024;

/// Accepted connections that may wait for one worker. When all have this many, no more are accepted for a while: the kernel
/// holds some, and lets the others try again. Nobody is dropped without a word.
const SHARE_WAITING_MAX: usize = 1024;

/// Pause after a failed accept (usually: no file descriptors left), so that it does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// One worker's share of the connections to one address.
///
/// When the last share of an address is dropped, the address is free again.
pub(super) struct Share {
    waiting: mpsc::Receiver<TcpStream>,
    acceptor: Arc<Acceptor>,
}

impl Share {
    /// The next connection, registered with the calling thread's executor.
    ///
    /// # Errors
    /// [`NetworkError::Closed`] when the acceptor ended.
    pub(super) async fn accept(&mut self) -> Result<(tokio::net::TcpStream, SocketAddr), NetworkError> {
        loop {
            let stream = self.waiting.recv().await.ok_or(NetworkError::Closed)?;
            // A connection that broke while it waited is nobody's business.
            let Ok(peer) = stream.peer_addr() else { continue };
            let Ok(stream) = tokio::net::TcpStream::from_std(stream) else { continue };
            return Ok((stream, peer));
        }
    }

    /// Ends accepting, for all shares: whoever comes from now on is refused. Connections that the kernel has taken in are
    /// still handed out; after them, accepting is [`NetworkError::Closed`].
    pub(super) fn close(&self) {
        self.acceptor.stop.notify_one();
    }

    /// The address with the port that was really taken.
    pub(super) fn address(&self) -> SocketAddr {
        self.acceptor.address
    }
}

/// The accepting thread; ends when the last share is dropped.
struct Acceptor {
    address: SocketAddr,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread does nothing but accept, so this takes microseconds; afterwards the port is free.
            let _ = thread.join();
        }
    }
}

/// Listens at `address` and deals connections to `shares` shares.
///
/// # Errors
/// [`NetworkError::AddressInUse`], or [`NetworkError::Unreachable`] for an address that is malformed or not ours.
///
/// # Panics
/// When `shares` is 0.
pub(super) fn listen(address: &str, shares: usize) -> Result<Vec<Share>, NetworkError> {
    assert!(shares > 0, "somebody has to accept");
    let listener = bind(address)?;
    start(listener, shares).map_err(|error| unreachable(address, &error))
}

/// The error of an address that cannot be used.
pub(super) fn unreachable(address: &str, error: &io::Error) -> NetworkError {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        return NetworkError::Refused { address: address.to_owned() };
    }
    NetworkError::Unreachable { address: address.to_owned(), reason: error.to_string() }
}

/// Binds the first of the addresses behind the name that can be bound.
fn bind(address: &str) -> Result<TcpListener, NetworkError> {
    let resolved = address.to_socket_addrs().map_err(|error| unreachable(address, &error))?;
    let mut failure = None;
    for candidate in resolved {
        match bind_one(candidate) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(NetworkError::AddressInUse { address: address.to_owned() });
            }
            Err(error) => failure = Some(error),
        }
    }
    let error =
        failure.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host name has no address"));
    Err(unreachable(address, &error))
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Lets a restarted process take its port while connections of the old one linger; two listeners stay impossible.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn start(listener: TcpListener, shares: usize) -> io::Result<Vec<Share>> {
    let address = listener.local_addr()?;
    let executor = Builder::new_current_thread().enable_all().build()?;
    let stop = Arc::new(Notify::new());
    let (dealers, hands): (Vec<_>, Vec<_>) = (0..shares).map(|_| mpsc::channel(SHARE_WAITING_MAX)).unzip();
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new()
        .name(format!("accept-{}", address.port()))
        .spawn(move || executor.block_on(run(listener, &dealers, &stopped)))?;
    let acceptor = Arc::new(Acceptor { address, stop, thread: Some(thread) });
    Ok(hands.into_iter().map(|waiting| Share { waiting, acceptor: Arc::clone(&acceptor) }).collect())
}

async fn run(listener: TcpListener, dealers: &[mpsc::Sender<TcpStream>], stop: &Notify) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "listening socket refused by the event queue"),
    };
    let mut next = 0;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.notified() => return hand_out_rest(listener, dealers, next),
            accepted = listener.accept() => accepted,
        };
        match accepted.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => {
                let mut left = deal(dealers, &mut next, stream);
                if left.is_some() {
                    warn!("every worker is too far behind to take a connection, accepting none for a while");
                }
                while let Some(stream) = left {
                    tokio::select! {
                        biased;
                        () = stop.notified() => return,
                        () = tokio::time::sleep(ACCEPT_RETRY) => {}
                    }
                    left = deal(dealers, &mut next, stream);
                }
            }
            Err(error) => {
                warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Hands out the connections that the kernel has taken in: closing the listener would break them.
fn hand_out_rest(listener: tokio::net::TcpListener, dealers: &[mpsc::Sender<TcpStream>], mut next: usize) {
    // Asked itself, not the event queue, which may not have heard of the last ones.
    let Ok(listener) = listener.into_std() else { return };
    for _ in 0..BACKLOG {
        let Ok((stream, _)) = listener.accept() else { return };
        if stream.set_nonblocking(true).is_ok() && deal(dealers, &mut next, stream).is_some() {
            return;
        }
    }
}

/// Hands a connection to the next share that takes it; hands it back when all are full.
fn deal(dealers: &[mpsc::Sender<TcpStream>], next: &mut usize, mut stream: TcpStream) -> Option<TcpStream> {
    let mut full = false;
    for _ in 0..dealers.len() {
        let dealer = &dealers[*next % dealers.len()];
        *next = next.wrapping_add(1);
        match dealer.try_send(stream) {
            Ok(()) => return None,
            Err(mpsc::error::TrySendError::Full(back)) => (stream, full) = (back, true),
            Err(mpsc::error::TrySendError::Closed(back)) => stream = back,
        }
    }
    // Where no share is left, the listener is about to close.
    full.then_some(stream)
}
