//! Buffers that the connections of one worker lend each other.
//!
//! A connection needs one only from the moment when bytes arrive until its answers are sent, and a worker serves one
//! connection at a time: so nearly always the same few are in use, and their lines are near when the kernel copies
//! into them. An idle connection holds none, and one that waits
//! for the rest of a command has its own buffer, as large as that command needs.

use bytes::BytesMut;
use parking_lot::Mutex;

/// Bytes of a buffer: a pipeline of a few dozen commands of 1 KiB takes one read.
const BUFFER_BYTES: usize = 64 * 1024;
/// A buffer that grew beyond this is given back to the allocator.
const BUFFER_BYTES_KEPT: usize = 4 * BUFFER_BYTES;
/// Most buffers that wait for the next connection.
const SPARE_MAX: usize = 8;

/// Empty buffers, the one used last on top.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<BytesMut>>);

impl Buffers {
    /// An empty buffer with room for [`BUFFER_BYTES`].
    pub(super) fn take(&self) -> BytesMut {
        self.0.lock().pop().unwrap_or_else(|| BytesMut::with_capacity(BUFFER_BYTES))
    }

    /// Takes a buffer back, whatever is left in it. One whose bytes are still shared is nobody's.
    pub(super) fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        if buffer.try_reclaim(BUFFER_BYTES) && buffer.capacity() <= BUFFER_BYTES_KEPT {
            let mut spare = self.0.lock();
            if spare.len() < SPARE_MAX {
                spare.push(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_whole_unless_it_is_shared_or_has_grown() {
        let buffers = Buffers::default();
        let mut used = buffers.take();
        used.extend_from_slice(&[7; 1000]);
        let place = used.as_ptr();
        bytes::Buf::advance(&mut used, 600);
        buffers.give(used);
        let mut again = buffers.take();
        assert_eq!((again.as_ptr(), again.len(), again.capacity()), (place, 0, BUFFER_BYTES));

        again.extend_from_slice(&[8; 1000]);
        let kept = again.split_to(900).freeze();
        buffers.give(again);
        assert_ne!(buffers.take().as_ptr(), place, "somebody still reads it");
        assert!(kept.iter().all(|&byte| byte == 8));

        buffers.give(BytesMut::with_capacity(BUFFER_BYTES_KEPT + 1));
        assert_eq!(buffers.take().capacity(), BUFFER_BYTES);
        (0..2 * SPARE_MAX).for_each(|_| buffers.give(BytesMut::with_capacity(BUFFER_BYTES)));
        assert_eq!(buffers.0.lock().len(), SPARE_MAX);
    }
}
