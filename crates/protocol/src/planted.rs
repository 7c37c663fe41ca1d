//! How tests break a rule on purpose, to prove that they would notice.
//!
//! A room names its bugs in an enum. Wrappers around its machines ask `planted(bug)`, and change what the machine
//! hears or says; the machines themselves have no branch for it.

/// Gives a room `planted(bug)` and `with(bug, test)`, which runs `test` with the bug planted.
macro_rules! plantable {
    ($bug:ty) => {
        thread_local! {
            static PLANTED: std::cell::Cell<Option<$bug>> = const { std::cell::Cell::new(None) };
        }

        pub(super) fn planted(bug: $bug) -> bool {
            PLANTED.get() == Some(bug)
        }

        pub(super) fn with<T>(bug: $bug, test: impl FnOnce() -> T) -> T {
            PLANTED.set(Some(bug));
            let outcome = test();
            PLANTED.set(None);
            outcome
        }
    };
}
pub(crate) use plantable;
