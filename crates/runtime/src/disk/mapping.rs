//! Files that never change, mapped into memory and read where they lie.
//!
//! A mapped page that is not in memory makes the thread that touches it wait for the device, without a trace, and a
//! device that fails makes the touch a signal. So a page is brought in by a system call before it is touched: on a
//! thread that would not wait ([`waiting`](super::waiting)) the caller is refused instead, and an error of the device
//! stays an error.
//!
//! What was in memory may be evicted later. [`Mapping::refresh`] looks again; between two looks a touch may wait, or
//! fail. Then the bytes read as zeros and the mapping is [not sound](Mapping::is_sound) from then on.
//!
//! Must never: end the process because a file was cut or cannot be read.

use std::ops::{Deref, Range};

use parking_lot::MappedMutexGuard;

use super::DiskError;

/// Bytes of a mapping that are looked at as long as it lives. The simulated disk waits for it: hold one at a time, and
/// call nothing of the disk meanwhile.
pub enum View<'a> {
    /// Where the system mapped them. Another process may change them: verify what was copied, not what will be.
    Mapped(&'a [u8]),
    /// As the simulated disk has them.
    Held(MappedMutexGuard<'a, [u8]>),
}

impl Deref for View<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            View::Mapped(bytes) => bytes,
            View::Held(bytes) => bytes,
        }
    }
}

/// A file as it was when it was mapped; whoever maps it never changes it again.
pub trait Mapping: Send + Sync {
    /// Its length in bytes.
    fn length(&self) -> u64;

    /// Looks at some bytes, which are in memory or are brought there first.
    ///
    /// # Errors
    /// [`DiskError::WouldWait`] to a caller that would not wait; [`DiskError::Failed`] when the file has become
    /// shorter, or the device refuses.
    fn view(&self, range: Range<u64>) -> Result<View<'_>, DiskError>;

    /// Tells the processor that these bytes will be looked at. Costs nothing and promises nothing.
    fn prefetch(&self, offset: u64);

    /// Asks the device for what is not in memory, without waiting for it.
    fn fetch_ahead(&self, range: Range<u64>);

    /// Whether all bytes that were ever viewed were those of the file. Whoever concludes from bytes that something is
    /// *not* there asks afterwards.
    fn is_sound(&self) -> bool;

    /// Looks again which pages are in memory. Not for a thread that answers requests.
    fn refresh(&self);
}
