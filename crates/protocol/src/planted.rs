//! How tests break a rule on purpose, to prove that they would notice.
//!
//! A room names its bugs in an enum and asks `planted(bug)` where a rule is kept. Outside this crate's tests that is
//! the constant `false`, and nothing of it is left in the program.

/// Gives a room `planted(bug)` and, in tests, `with(bug, test)`, which runs `test` with the bug planted.
macro_rules! plantable {
    ($bug:ty) => {
        #[cfg(not(test))]
        #[inline(always)]
        pub(super) const fn planted(_: $bug) -> bool {
            false
        }

        #[cfg(test)]
        thread_local! {
            static PLANTED: std::cell::Cell<Option<$bug>> = const { std::cell::Cell::new(None) };
        }

        #[cfg(test)]
        pub(super) fn planted(bug: $bug) -> bool {
            PLANTED.get() == Some(bug)
        }

        #[cfg(test)]
        pub(super) fn with<T>(bug: $bug, test: impl FnOnce() -> T) -> T {
            PLANTED.set(Some(bug));
            let outcome = test();
            PLANTED.set(None);
            outcome
        }
    };
}
pub(crate) use plantable;
