//! How many bytes of answers one connection may hold that have not had their turn.
//!
//! A pipeline of a hundred gets of large values would hold gigabytes for a client that does not read. What a command will
//! answer is known only when it is read; so an answer that finds no room is dropped and read again when there is some.
//! That changes nothing: the command is not answered, so a later write to its key still waits for it.
//!
//! ```text
//!   read ─▶ take: room? ─ yes ─▶ held ─▶ its turn ─▶ released
//!                  └ no ─▶ dropped ─▶ reserve: waits for so much room ─▶ read again
//! ```
//!
//! **Architecture Invariant:** the command whose turn it is finds room whatever is held, so that those behind it cannot keep
//! it waiting. What a command answers that has changed something is held in any case: it cannot be read again.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Bytes of answers that are held at most before their turn. One answer has 60 MiB at most.
pub(super) const HELD_BYTES_MAX: usize = 64 << 20;

/// The room of one connection.
#[derive(Debug, Default)]
pub(super) struct Room {
    held: AtomicUsize,
    /// The number of the first command that is not answered.
    first: AtomicU64,
    /// How many wait. Nobody is told of room where nobody does.
    waiting: AtomicUsize,
    changed: Notify,
}

impl Room {
    /// Bytes that are held or reserved.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that find room now.
    pub(super) fn left(&self) -> usize {
        HELD_BYTES_MAX.saturating_sub(self.held())
    }

    /// Holds this many bytes, whatever is held.
    pub(super) fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Holds them for the command of this number, if there is room or it is its turn.
    pub(super) fn take(&self, number: u64, bytes: usize) -> bool {
        let fits = bytes <= self.left() || number <= self.first.load(Ordering::Relaxed);
        if fits {
            self.hold(bytes);
        }
        fits
    }

    /// The same, as soon as that is so.
    pub(super) async fn reserve(&self, number: u64, bytes: usize) {
        loop {
            let changed = self.changed.notified();
            if self.take(number, bytes) {
                return;
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
            changed.await;
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives back what was held or reserved.
    pub(super) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// An answer of this many bytes has had its turn, and the next is that of `first`.
    pub(super) fn answered(&self, bytes: usize, first: u64) {
        self.first.store(first, Ordering::Relaxed);
        self.release(bytes);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn an_answer_without_room_waits_for_room_or_for_its_turn() {
        let room = Room::default();
        assert!(room.take(3, HELD_BYTES_MAX) && room.take(4, 0) && !room.take(5, 1));
        let (mut first, mut sixth) = (Box::pin(room.reserve(1, 10)), Box::pin(room.reserve(6, 20)));
        assert!(first.as_mut().now_or_never().is_none() && sixth.as_mut().now_or_never().is_none());
        room.answered(0, 1);
        assert!(first.as_mut().now_or_never().is_some(), "its turn has come");
        assert_eq!(room.held(), HELD_BYTES_MAX + 10);
        room.release(29);
        assert!(sixth.as_mut().now_or_never().is_none());
        room.release(1);
        assert!(sixth.as_mut().now_or_never().is_some());
        assert_eq!(room.left(), 0);
    }
}
