//! Panics: which of them a process survives. All others end it at once.
//!
//! A panic is a bug, and the thread that met it may have half changed what others share: locks here are not poisoned. So
//! a process of nodes ends ([`end_the_process`]), and starts again from its disk, which is made for that. One place
//! survives: work in [`caught`], whose caller knows how to begin it anew. What must not stay half changed is changed in
//! [`whole`], [`whole_steps`] or [`whole_through`], or lies behind a lock of [`crate::locks`]. A panic there ends the process all the same,
//! before a lock is given up.
//!
//! ```text
//!   panic ──▶ the usual message ──▶ in caught, and not in whole? ── yes ──▶ unwinds to caught: an error
//!                                        └─ no ──▶ the process ends
//! ```
//!
//! The process ends where the panic begins, before anything unwinds. So whoever catches panics above, such as the
//! executor around each task, or a join of a thread, has none to catch.
//!
//! A simulator judges every panic, so nothing is caught there ([`crate::Tasks::survives_panics`]).
//!
//! Must never: let a panic pass unseen.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

/// Whether a panic ends this process unless it is survived.
static ENDS: AtomicBool = AtomicBool::new(false);

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
    let _under_way = UnderWay::begin();
    change()
}

/// Carries out work that waits now and then, and each step of which is such a change. It may be given up while it waits.
pub async fn whole_steps<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| whole(|| work.as_mut().poll(context))).await
}

/// As [`whole_steps`], of work that must come to its end: a panic beside it that breaks it off is not survived either.
pub async fn whole_through<T>(work: impl Future<Output = T>) -> T {
    /// Whether work has begun that is not done.
    struct Waits(bool);
    impl Drop for Waits {
        fn drop(&mut self) {
            if self.0 && std::thread::panicking() {
                BROKE_OFF.set(true);
                if ENDS.load(Ordering::Relaxed) {
                    // The message was printed when the panic began.
                    std::process::abort();
                }
            }
        }
    }
    let mut work = std::pin::pin!(whole_steps(work));
    let mut waits = Waits(false);
    std::future::poll_fn(|context| {
        let polled = work.as_mut().poll(context);
        waits.0 = polled.is_pending();
        polled
    })
    .await
}

/// A change that must be made wholly, from its begin until this is dropped. It stays in its thread.
pub(crate) struct UnderWay {
    /// What a panic drops may make changes, too: these are not broken off.
    in_panic: bool,
    _in_thread: PhantomData<*const ()>,
}

impl UnderWay {
    pub(crate) fn begin() -> UnderWay {
        CHANGES.set(CHANGES.get() + 1);
        UnderWay { in_panic: std::thread::panicking(), _in_thread: PhantomData }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        CHANGES.set(CHANGES.get() - 1);
        if std::thread::panicking() && !self.in_panic {
            BROKE_OFF.set(true);
        }
    }
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
    ENDS.store(true, Ordering::Relaxed);
    set_hook(Box::new(move |panic| {
        before(panic);
        let is_survived = IS_CAUGHT.try_with(Cell::get).unwrap_or(false);
        if !is_survived || CHANGES.try_with(Cell::get).unwrap_or(1) > 0 {
            std::process::abort();
        }
    }));
}

/// Whether [`end_the_process`] was called: only then may some panics be survived, because all others are not.
pub fn is_ended_by_panics() -> bool {
    ENDS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    use futures_util::FutureExt;

    use super::*;
    use crate::Tasks;

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

    #[test]
    fn a_panic_in_a_later_step_is_not_survived_either() {
        let mut has_waited = false;
        let mut waits = Box::pin(caught(whole_steps(std::future::poll_fn(move |_| {
            assert!(!std::mem::replace(&mut has_waited, true), "as planned");
            Poll::<()>::Pending
        }))));
        assert!((&mut waits).now_or_never().is_none());
        assert!(catch_unwind(AssertUnwindSafe(|| (&mut waits).now_or_never())).is_err());
    }

    #[test]
    fn work_that_must_come_to_its_end_is_not_broken_off_by_a_panic_beside_it() {
        let given_up = async {
            let mut work = Box::pin(whole_steps(std::future::pending::<()>()));
            assert!((&mut work).now_or_never().is_none(), "it has begun");
            panic!("as planned");
        };
        assert!(outcome::<()>(given_up).is_err(), "this may be given up");
        let waits = || Box::pin(whole_through(std::future::pending::<()>()));
        let broken_off = async {
            let mut work = waits();
            assert!((&mut work).now_or_never().is_none(), "it has begun");
            panic!("as planned");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| outcome::<()>(broken_off))).is_err());
        let not_begun = async {
            let _work = waits();
            panic!("as planned");
        };
        assert!(outcome::<()>(not_begun).is_err(), "nothing was broken off");
        let done = async {
            assert_eq!(whole_through(async { 7 }).await, 7);
            panic!("as planned");
        };
        assert!(outcome::<()>(done).is_err(), "nothing was broken off");
        drop(waits());
    }

    #[test]
    fn what_a_panic_drops_may_make_whole_changes() {
        struct Tidies;
        impl Drop for Tidies {
            fn drop(&mut self) {
                whole(|| ());
            }
        }
        let panics = async {
            let _tidies = Tidies;
            panic!("as planned");
        };
        assert!(outcome::<()>(panics).is_err(), "that change was made");
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
            Ok("beside") => {
                let beside = async {
                    let mut work = Box::pin(whole_through(std::future::pending::<()>()));
                    let _ = (&mut work).now_or_never();
                    panic!("the second");
                };
                let _ = outcome::<()>(beside);
            }
            Ok("lock") => {
                let lock = crate::locks::Mutex::new(());
                let _ = outcome::<()>(async {
                    let _held = lock.lock();
                    panic!("the second");
                });
            }
            Ok("thread") => {
                let _ = std::thread::spawn(|| panic!("the second")).join();
            }
            Ok("catch") => {
                let _ = catch_unwind(|| panic!("the second"));
            }
            Ok("task") => in_task(|tasks, ends| {
                tasks.spawn_background(Box::pin(async move {
                    let _ends = ends;
                    panic!("the second");
                }));
            }),
            Ok("waiting") => in_task(|tasks, ends| {
                tasks.spawn_waiting(Box::new(move || {
                    let _ends = ends;
                    panic!("the second");
                }));
            }),
            _ => {}
        }
        println!("survived the second");
    }

    /// Lets the executor do something, and waits until it has dropped what it was given.
    fn in_task(work: impl FnOnce(&dyn Tasks, std::sync::mpsc::Sender<()>)) {
        let tasks = crate::tasks::os::OsTasks::start().unwrap();
        assert!(tasks.survives_panics(), "all others end the process");
        let (ends, ended) = std::sync::mpsc::channel();
        work(&tasks, ends);
        let _ = ended.recv();
    }

    #[test]
    fn a_process_survives_panics_in_caught_and_no_others() {
        let run = |place: &str| -> Output {
            let mut itself = Command::new(std::env::current_exe().unwrap());
            let words = ["--exact", "panics::tests::a_process_that_panics", "--ignored", "--nocapture"];
            itself.args(words).env("PANIC_IN", place).output().unwrap()
        };
        for place in ["whole", "beside", "lock", "thread", "catch", "task", "waiting"] {
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
