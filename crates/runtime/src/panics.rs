//! Panics: which of them a process survives. All others end it at once.
//!
//! A panic is a bug, and the thread that met it may have half changed what others share: locks here are not poisoned. So
//! a process of nodes ends ([`end_the_process`]), and starts again from its disk, which is made for that. One place
//! survives: work in [`caught`], whose caller knows how to begin it anew. What must not stay half changed, above all
//! records and what is counted of them, is changed in [`whole`]: a panic there ends the process all the same, before a
//! lock is given up.
//!
//! ```text
//!   panic ──▶ the usual message ──▶ in caught, and not in whole? ── yes ──▶ unwinds to caught: an error
//!                                        └─ no ──▶ the process ends
//! ```
//!
//! A simulator judges every panic, so nothing is caught there ([`crate::Tasks::survives_panics`]).
//!
//! Must never: let a panic pass unseen.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;
use std::task::Poll;

thread_local! {
    /// Whether a panic of this thread would be caught now.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// How many changes are under way in this thread that must not stay half done.
    static CHANGES: Cell<u32> = const { Cell::new(0) };
    /// Whether a panic broke such a change off. Only where no hook has ended the process.
    static BROKE_OFF: Cell<bool> = const { Cell::new(false) };
    /// Where in the sources the last panic of this thread was.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic that was caught. Its message was printed; it may show keys, so it is not repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    /// File, line and column in the sources, where [`note_places`] was called before.
    pub place: Option<String>,
}

impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Some(place) => write!(f, "a bug: it panicked at {place}"),
            None => f.write_str("a bug: it panicked"),
        }
    }
}

/// Carries out `work`, whose panics the process survives.
///
/// # Errors
/// When it panicked; it is not polled any more then.
///
/// # Panics
/// When it panicked in [`whole`]: then the task must not go on.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        BROKE_OFF.set(false);
        let before = IS_CAUGHT.replace(true);
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        IS_CAUGHT.set(before);
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(panic) if BROKE_OFF.take() => resume_unwind(panic),
            Err(_) => Poll::Ready(Err(Panicked { place: PLACE.take() })),
        }
    })
    .await
}

/// Makes a change that must be made wholly or not survived.
pub fn whole<T>(change: impl FnOnce() -> T) -> T {
    /// Counts the change also when it panics.
    struct UnderWay;
    impl Drop for UnderWay {
        fn drop(&mut self) {
            CHANGES.set(CHANGES.get() - 1);
            if std::thread::panicking() {
                BROKE_OFF.set(true);
            }
        }
    }
    CHANGES.set(CHANGES.get() + 1);
    let _under_way = UnderWay;
    change()
}

/// From now on panics leave their place in the sources for [`caught`].
pub fn note_places() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            let place = panic.location().map(ToString::to_string);
            // A thread that is about to end may have no place for it any more.
            let _ = PLACE.try_with(|noted| noted.replace(place));
            before(panic);
        }));
    });
}

/// From now on a panic ends the process, after its message, unless [`caught`] survives it.
pub fn end_the_process() {
    note_places();
    let before = take_hook();
    set_hook(Box::new(move |panic| {
        before(panic);
        let is_survived = IS_CAUGHT.try_with(Cell::get).unwrap_or(false);
        if !is_survived || CHANGES.try_with(Cell::get).unwrap_or(1) > 0 {
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    use futures_util::FutureExt;

    use super::*;

    fn outcome<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
        caught(work).now_or_never().expect("it waits for nothing")
    }

    #[test]
    fn what_panics_is_an_error_with_its_place_and_what_does_not_is_its_answer() {
        note_places();
        assert_eq!(outcome(async { 7 }), Ok(7));
        let line = line!() + 1;
        let panicked = outcome::<()>(async { panic!("a secret key") }).unwrap_err();
        let place = panicked.place.clone().expect("places are noted");
        assert!(place.contains(&format!("panics.rs:{line}:")), "{place}");
        assert!(!panicked.to_string().contains("secret"), "{panicked}");
    }

    #[test]
    fn a_panic_in_a_whole_change_is_not_survived_and_the_next_one_is() {
        let broke_off = catch_unwind(|| outcome(async { whole(|| panic!("as planned")) }));
        assert!(broke_off.is_err(), "the task does not go on");
        assert_eq!(CHANGES.get(), 0);
        assert!(!IS_CAUGHT.get());
        assert!(outcome::<()>(async { panic!("as planned") }).is_err(), "this one is");
        assert_eq!(whole(|| 7), 7);
    }

    /// What a process does that ends with its panics: run by the test below, with the name of the panic.
    #[test]
    #[ignore = "it ends its process; the next test runs it in another one"]
    fn a_process_that_panics() {
        end_the_process();
        assert!(outcome::<()>(async { panic!("the first") }).is_err());
        println!("survived the first");
        match std::env::var("PANIC_IN").as_deref() {
            Ok("whole") => {
                let _ = outcome(async { whole(|| panic!("the second")) });
            }
            Ok("thread") => {
                let _ = std::thread::spawn(|| panic!("the second")).join();
            }
            Ok("task") => {
                let _ = catch_unwind(|| panic!("the second"));
            }
            _ => {}
        }
        println!("survived the second");
    }

    #[test]
    fn a_process_survives_panics_in_caught_and_no_others() {
        let run = |place: &str| -> Output {
            let mut itself = Command::new(std::env::current_exe().unwrap());
            let words = ["--exact", "panics::tests::a_process_that_panics", "--ignored", "--nocapture"];
            itself.args(words).env("PANIC_IN", place).output().unwrap()
        };
        for place in ["whole", "thread", "task"] {
            let Output { status, stdout, stderr } = run(place);
            let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
            assert_eq!(status.signal(), Some(libc::SIGABRT), "{place}: {status:?} {stdout} {stderr}");
            assert!(stdout.contains("survived the first"), "{place}: {stdout}");
            assert!(!stdout.contains("survived the second"), "{place}: {stdout}");
            assert!(stderr.contains("the second"), "{place}: the message was printed: {stderr}");
        }
        let all_went_well = run("nowhere");
        assert!(all_went_well.status.success(), "{all_went_well:?}");
    }
}
