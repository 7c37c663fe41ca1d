//! A lock whose state no panic leaves half changed: a panic while it is held ends the process, as one in
//! [`whole`](crate::panics::whole) does, where the hook of [`crate::panics`] is installed.
//!
//! State that rounds of chores share with others lies behind it: a chore that panicked is begun anew
//! ([`crate::panics`]), and must find that state as it was before or after a change.
//!
//! Must never: be held over an await. Its guard cannot cross threads, so the compiler refuses that.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::panics::UnderWay;

/// As [`parking_lot::Mutex`], but for panics.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

/// The state, until it is dropped.
pub struct MutexGuard<'a, T: ?Sized> {
    // Given up first: the change is over when others may see it.
    state: parking_lot::MutexGuard<'a, T>,
    _under_way: UnderWay,
}

impl<T> Mutex<T> {
    /// Holds `state`.
    pub const fn new(state: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(state))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until nobody else holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let state = self.0.lock();
        MutexGuard { state, _under_way: UnderWay::begin() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::panics::caught;

    #[test]
    fn a_panic_while_it_is_held_is_not_survived_and_one_after_it_is() {
        let lock = Mutex::new((0, 0));
        let held = || {
            let mut state = lock.lock();
            state.0 += 1;
            panic!("as planned");
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            caught(async { held() }).now_or_never()
        }));
        assert!(outcome.is_err(), "half a change is seen by nobody");
        let given_up = async {
            lock.lock().1 += 1;
            panic!("as planned");
        };
        let outcome = caught::<()>(given_up).now_or_never().expect("it waits for nothing");
        assert!(outcome.is_err(), "that is told");
        assert_eq!(*lock.lock(), (1, 1));
    }
}
