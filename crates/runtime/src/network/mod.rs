//! Opaque frames between processes.
//!
//! A link carries frames both ways. Over TCP they arrive whole, once and in order until the link breaks; the
//! simulated network may also lose, delay, duplicate and reorder them, so protocols above must bear it.
//! The length prefix of a frame belongs to this port (4 bytes, little endian, length of the body); the body belongs
//! to `wire`.

mod acceptor;
pub mod bytes;
pub mod conformance;
pub mod fetch;
pub mod stream;
pub mod tcp;
#[cfg(feature = "tls")]
pub mod tls;

use std::fmt;
use std::task::{Context, Poll};

use ::bytes::{Bytes, BytesMut};

use crate::BoxFuture;

/// Why the network refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetworkError {
    /// Nobody listens at the address: its machine answered and said so. The process that listened there is gone, where
    /// one that is merely stuck would have kept the connection waiting.
    Refused {
        /// The address.
        address: String,
    },
    /// No connection for another reason: no answer, no way, or the address is malformed.
    Unreachable {
        /// The address.
        address: String,
        /// What the operating system said.
        reason: String,
    },
    /// The connection is open, and nobody greets: the process there is stopped or stuck.
    Silent {
        /// The address.
        address: String,
    },
    /// The address to listen on is taken.
    AddressInUse {
        /// The address.
        address: String,
    },
    /// The link is closed, by either side or by a failure.
    Closed,
    /// The peer sent a frame longer than the limit.
    FrameTooLong {
        /// Its announced length in bytes.
        bytes: usize,
    },
    /// The peer does not speak this protocol: its first bytes are those of another.
    Foreign {
        /// What its bytes look like.
        looks_like: &'static str,
    },
    /// The connection is open, and TLS over it fails: certificates do not fit, or one end speaks none.
    Tls {
        /// The address.
        address: String,
        /// Why.
        reason: String,
    },
    /// More than the limit of bytes wait to be sent on this link.
    Overloaded,
    /// There is no room for a frame that is coming in ([`LinkReceiver::bound`]): the rest of it is passed over, and the
    /// link goes on behind it.
    NotKept {
        /// The first bytes of its body, as many as tell which it was.
        head: Bytes,
    },
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkError::Refused { address } => {
                write!(f, "{address} refused the connection: no process listens there")
            }
            NetworkError::Unreachable { address, reason } => write!(f, "cannot reach {address}: {reason}"),
            NetworkError::Silent { address } => {
                write!(
                    f,
                    "{address} accepts connections and does not answer: its process is stopped or stuck"
                )
            }
            NetworkError::AddressInUse { address } => {
                write!(
                    f,
                    "address {address} is in use; stop the process that listens there or choose another port"
                )
            }
            NetworkError::Closed => f.write_str("the connection is closed"),
            NetworkError::FrameTooLong { bytes } => {
                write!(
                    f,
                    "frame of {bytes} bytes is over the limit of {} bytes",
                    model::limits::FRAME_BYTES_MAX
                )
            }
            NetworkError::Foreign { looks_like } => {
                write!(f, "the peer speaks {looks_like}, not the native protocol")
            }
            NetworkError::Tls { address, reason } => write!(f, "no TLS with {address}: {reason}"),
            NetworkError::NotKept { .. } => f.write_str("the node has no memory left for an incoming frame"),
            NetworkError::Overloaded => {
                f.write_str("the bytes waiting to be sent to this peer have reached the limit")
            }
        }
    }
}

impl std::error::Error for NetworkError {}

/// Both halves of a link, and who is at the other end as far as the network knows.
pub struct Link {
    /// Sends frames.
    pub sender: std::sync::Arc<dyn LinkSender>,
    /// Receives frames.
    pub receiver: Box<dyn LinkReceiver>,
    /// Address of the other end, for logs.
    pub peer: String,
    /// What the other end has proved.
    pub proof: Proof,
}

/// What the other end of a connection has proved by the connection itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proof {
    /// Nothing.
    #[default]
    None,
    /// That it holds a certificate of the node authority.
    Node,
}

/// The sending half.
pub trait LinkSender: Send + Sync {
    /// Appends one frame, whose body `encode` writes, to what waits to be sent. Never blocks.
    ///
    /// Frames sent before the executor next runs other work leave together. Dropping all senders closes the link
    /// after the queue is flushed.
    ///
    /// # Errors
    /// [`NetworkError::Closed`], or [`NetworkError::Overloaded`] when the queue is over its limit: the frame was
    /// not queued and `encode` was not called.
    fn send(&self, encode: &mut dyn FnMut(&mut BytesMut)) -> Result<(), NetworkError>;

    /// Closes the link at once, both ways.
    fn close(&self);

    /// Bytes that wait to be sent.
    fn queued_bytes(&self) -> usize;
}

/// The receiving half.
pub trait LinkReceiver: Send {
    /// The next frame's body; `Ok(None)` when the peer closed the link cleanly.
    ///
    /// Bytes may share a larger receive buffer: whoever keeps them for long copies them.
    ///
    /// # Errors
    /// After [`NetworkError::NotKept`] the next frame can be received; any other ends the link.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, NetworkError>>;

    /// Asks `room` from now on before more is kept of a frame that is coming in. A link whose frames arrive whole has
    /// no use for it.
    fn bound(&mut self, room: Room) {
        drop(room);
    }

    /// Of a frame that has begun and not come whole: what tells it from the link's others, and how much of it has
    /// come. `None` between two frames, and on a link whose frames arrive whole.
    fn begun(&self) -> Option<(u64, usize)> {
        None
    }
}

/// Whether there is room for so many bytes of a frame that is coming in, in place of as many as were asked for before;
/// 0 when it has come whole. When there is none, none of them are kept.
pub type Room = Box<dyn FnMut(usize) -> bool + Send>;

impl dyn LinkReceiver {
    /// Awaits the next frame's body; `Ok(None)` when the peer closed the link cleanly.
    pub async fn receive(&mut self) -> Result<Option<Bytes>, NetworkError> {
        std::future::poll_fn(|context| self.poll_receive(context)).await
    }
}

/// Accepts links.
pub trait Listener: Send {
    /// The next link that a peer opened. Cancel safe.
    ///
    /// # Errors
    /// [`NetworkError::Closed`] when the listener cannot go on. Any other error concerns one peer only
    /// ([`NetworkError::Foreign`]: it was answered and its connection closed); accept again.
    fn accept(&mut self) -> BoxFuture<'_, Result<Link, NetworkError>>;

    /// The address that it listens on, with the port that was really taken.
    fn address(&self) -> String;
}

/// Opens and accepts links. Addresses are `host:port`; those to connect to may say `tls://host:port`.
pub trait Network: Send + Sync {
    /// Opens a link.
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Link, NetworkError>>;

    /// Listens; port 0 takes any free port.
    fn listen(&self, address: &str) -> BoxFuture<'static, Result<Box<dyn Listener>, NetworkError>>;
}
