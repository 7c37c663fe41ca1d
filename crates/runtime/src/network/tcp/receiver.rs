//! The receiving half: cuts frames out of the receive buffer without copying.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use model::limits::FRAME_BYTES_MAX;
use tokio::io::AsyncReadExt;

use super::sender::PREFIX;
use crate::network::stream::ReadHalf;
use crate::network::{LinkReceiver, NetworkError, Room};

/// What one read asks for at first: enough for a burst of small requests, small enough for thousands of idle links.
const READ_BYTES_MIN: usize = 16 * 1024;

/// Bytes of a frame that has not been kept by which its sender is told which it was.
const HEAD_BYTES: usize = 64;

/// What one read asks for at most, on a link whose reads come back full.
const READ_BYTES_MAX: usize = 256 * 1024;

pub(super) struct TcpReceiver {
    socket: ReadHalf,
    /// Bytes read and not yet handed out; begins at a frame.
    buffer: BytesMut,
    /// What the next read asks for.
    read_bytes: usize,
    /// Is asked before much is kept of a frame that has not come whole.
    room: Option<Room>,
    /// Whether `room` was asked for some.
    occupies: bool,
    /// Bytes of a frame without room that are yet to be passed over.
    passing: usize,
    /// Bytes that have come in all.
    received: u64,
    /// The link was closed on our side.
    closed: Arc<AtomicBool>,
    /// No frame can follow: the peer closed, or sent what is no frame.
    ended: bool,
}

impl TcpReceiver {
    pub(super) fn new(socket: ReadHalf, closed: Arc<AtomicBool>) -> TcpReceiver {
        TcpReceiver {
            socket,
            buffer: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            room: None,
            occupies: false,
            passing: 0,
            received: 0,
            closed,
            ended: false,
        }
    }

    /// The next whole frame in the buffer, or how many bytes are missing for it at least.
    fn cut(&mut self) -> Result<Cut, NetworkError> {
        let passed = self.passing.min(self.buffer.len());
        self.buffer.advance(passed);
        self.passing -= passed;
        if self.passing > 0 {
            // The buffer is empty, and may have been a large one.
            return Ok(Cut::Missing(self.passing.min(READ_BYTES_MIN)));
        }
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else {
            return Ok(Cut::Missing(PREFIX - self.buffer.len()));
        };
        let body = u32::from_le_bytes(*prefix) as usize;
        if body > FRAME_BYTES_MAX {
            return Err(NetworkError::FrameTooLong { bytes: body });
        }
        let have = self.buffer.len() - PREFIX;
        if have < body {
            let missing = body - have;
            if self.has_room(missing) {
                return Ok(Cut::Missing(missing));
            }
            let head = Bytes::copy_from_slice(&self.buffer[PREFIX..PREFIX + have.min(HEAD_BYTES)]);
            self.buffer = BytesMut::new();
            self.passing = missing;
            return Err(NetworkError::NotKept { head });
        }
        if self.occupies {
            self.occupies = false;
            if let Some(room) = &mut self.room {
                // There is always room for nothing.
                let _ = room(0);
            }
        }
        self.buffer.advance(PREFIX);
        Ok(Cut::Frame(self.buffer.split_to(body).freeze()))
    }

    /// Whether there is room for what has come of a frame and for the next read. A buffer of the least size is any
    /// link's own.
    fn has_room(&mut self, missing: usize) -> bool {
        let Some(room) = &mut self.room else { return true };
        if self.buffer.len() < READ_BYTES_MIN {
            return true;
        }
        self.occupies = room(self.buffer.len() + missing.min(self.buffer.len().max(self.read_bytes)));
        self.occupies
    }

    /// Makes room for the next read. A frame's announced length is believed only as far as bytes have come, so that
    /// nobody makes us reserve 64 MiB by announcing them.
    fn make_room(&mut self, missing: usize) {
        let wanted = missing.min(self.buffer.len().max(self.read_bytes)).max(self.read_bytes);
        if self.buffer.capacity() - self.buffer.len() < missing.min(self.read_bytes / 4).max(1) {
            self.buffer.reserve(wanted);
        }
    }
}

enum Cut {
    Frame(Bytes),
    Missing(usize),
}

impl LinkReceiver for TcpReceiver {
    fn bound(&mut self, room: Room) {
        self.room = Some(room);
    }

    fn begun(&self) -> Option<(u64, usize)> {
        match (self.passing, self.buffer.len()) {
            (0, 0) => None,
            // By where it begins.
            (0, come) => Some((self.received - come as u64, come)),
            // By where it ends.
            (passing, _) => Some((self.received + passing as u64, FRAME_BYTES_MAX.saturating_sub(passing))),
        }
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, NetworkError>> {
        loop {
            if self.ended || self.closed.load(Ordering::Acquire) {
                return Poll::Ready(Err(NetworkError::Closed));
            }
            let missing = match self.cut() {
                Ok(Cut::Frame(frame)) => return Poll::Ready(Ok(Some(frame))),
                Ok(Cut::Missing(missing)) => missing,
                Err(error) => {
                    self.ended = !matches!(error, NetworkError::NotKept { .. });
                    return Poll::Ready(Err(error));
                }
            };
            self.make_room(missing);
            let room = self.buffer.capacity() - self.buffer.len();
            let read = ready!(pin!(self.socket.read_buf(&mut self.buffer)).poll(context));
            match read {
                Ok(0) => {
                    self.ended = true;
                    let clean = self.buffer.is_empty() && !self.closed.load(Ordering::Acquire);
                    return Poll::Ready(if clean { Ok(None) } else { Err(NetworkError::Closed) });
                }
                Ok(count) => {
                    self.received += count as u64;
                    if count == room {
                        self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
                    }
                }
                Err(_) => {
                    self.ended = true;
                    return Poll::Ready(Err(NetworkError::Closed));
                }
            }
        }
    }
}
