//! Reading on a thread that must not wait for the device.
//!
//! A worker answers many requests one after the other. One that reads what the system does not have in memory would
//! hold up all the others for as long as the device takes: a tenth of a millisecond if all is well, a tenth of a second
//! when it is busy with something else. So a worker first tries without waiting; what would have waited is begun again
//! on a thread that may ([`Tasks::spawn_waiting`](crate::Tasks::spawn_waiting)).
//!
//! Must never: reach beyond the closure. What the same thread reads before and after it may wait.

use std::cell::Cell;

use super::DiskError;

/// Whether the calling thread may wait.
#[derive(Clone, Copy, PartialEq)]
enum ThreadWaits {
    Willing,
    Unwilling,
    /// A read has been refused since.
    Refused,
}

thread_local! {
    static STANDING: Cell<ThreadWaits> = const { Cell::new(ThreadWaits::Willing) };
}

/// What [`without_waiting`] brought.
#[derive(Clone, Copy, Debug)]
pub struct Tried<T> {
    /// What the closure returned; of what was refused it knows only that it failed.
    pub answer: T,
    /// Whether a read was refused because it would have waited.
    pub refused: bool,
}

/// Runs `work` with reads that fail with [`DiskError::WouldWait`] instead of waiting for the device. After the first
/// one all others fail, too: whatever `work` was about will be begun again.
pub fn without_waiting<T>(work: impl FnOnce() -> T) -> Tried<T> {
    struct Before(ThreadWaits);
    impl Drop for Before {
        fn drop(&mut self) {
            STANDING.set(self.0);
        }
    }
    let before = Before(STANDING.replace(ThreadWaits::Unwilling));
    let answer = work();
    let refused = STANDING.get() == ThreadWaits::Refused;
    drop(before);
    Tried { answer, refused }
}

/// Whether a read of the calling thread may wait.
pub fn may_wait() -> bool {
    STANDING.get() == ThreadWaits::Willing
}

/// Whether a read has been refused in the closure that runs: whatever else it does is for nothing.
pub fn is_refused() -> bool {
    STANDING.get() == ThreadWaits::Refused
}

/// For implementations of [`File`](super::File): refuses a read that would have waited.
pub(super) fn refuse() -> DiskError {
    STANDING.set(ThreadWaits::Refused);
    DiskError::WouldWait
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reaches_the_end_of_its_closure_and_no_further() {
        assert!(may_wait());
        let outer = without_waiting(|| {
            assert!(!may_wait() && !is_refused());
            let inner = without_waiting(refuse);
            assert!(inner.refused && inner.answer == DiskError::WouldWait);
            assert!(!is_refused(), "what was tried inside was seen to there");
        });
        assert!(!outer.refused && may_wait());
    }

    #[test]
    fn a_panic_leaves_the_thread_as_it_was() {
        let panicked = std::panic::catch_unwind(|| without_waiting(|| panic!("as planned")));
        assert!(panicked.is_err() && may_wait());
    }
}
