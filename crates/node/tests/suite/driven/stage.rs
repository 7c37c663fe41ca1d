//! One thread, and time that moves when nothing else can.

use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use model::{Moment, WallMillis};
use parking_lot::Mutex;
use runtime::{BoxFuture, Clock, Entropy, Tasks};

/// What the wall clock shows when a stage begins, in milliseconds.
pub(crate) const WALL_BEGIN: u64 = 1_000_000_000;
/// A test that takes longer than this by the stage's clock waits for something that never comes.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// The same for what is looked at again and again.
const UNTIL_MAX: Duration = Duration::from_secs(120);

/// Clock, tasks and dice of all nodes of a test; clones are the same stage.
#[derive(Clone, Default)]
pub(crate) struct Stage(Arc<Inner>);

#[derive(Default)]
struct Inner {
    now: AtomicU64,
    dice: AtomicU64,
    timer_next: AtomicU64,
    timers: Mutex<BTreeSet<(u64, u64)>>,
    spawned: Mutex<Vec<BoxFuture<'static, ()>>>,
    running: Mutex<Vec<BoxFuture<'static, ()>>>,
    woken: AtomicBool,
    /// Of those who wait for the clock: what polls only what was woken must learn of it.
    sleepers: Mutex<Vec<Waker>>,
    survives_panics: AtomicBool,
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
    }
}

impl Stage {
    /// Runs the future, and everything that was spawned, until it is done.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let waker = Waker::from(self.0.clone());
        let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
        let give_up = self.0.now.load(Ordering::Relaxed) + TIME_MAX.as_nanos() as u64;
        loop {
            self.0.woken.store(false, Ordering::Relaxed);
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
            self.turn(&mut context);
            if !self.0.woken.load(Ordering::Relaxed) && self.0.spawned.lock().is_empty() {
                self.advance();
                assert!(self.0.now.load(Ordering::Relaxed) < give_up, "what is waited for never comes");
            }
        }
    }

    /// What begins from now on survives panics, as nodes of the operating system do.
    #[allow(dead_code, reason = "unit tests of the crate compile this file, too")]
    pub(crate) fn survive_panics(&self) {
        self.0.survives_panics.store(true, Ordering::Relaxed);
    }

    /// Runs everything for this long.
    pub(crate) fn pass(&self, duration: Duration) {
        self.run((self as &dyn Clock).sleep(duration));
    }

    /// Runs everything until this holds.
    pub(crate) fn until(&self, mut holds: impl FnMut() -> bool) {
        let deadline = Clock::now(self).after(UNTIL_MAX);
        while !holds() {
            assert!(Clock::now(self) < deadline, "what is waited for never comes");
            self.pass(Duration::from_millis(5));
        }
    }

    /// All tasks end where they are, as those of a process do.
    pub(crate) fn end_tasks(&self) {
        // What ends may spawn: no lock may be held.
        let running = std::mem::take(&mut *self.0.running.lock());
        drop(running);
        let spawned = std::mem::take(&mut *self.0.spawned.lock());
        drop(spawned);
    }

    fn turn(&self, context: &mut Context<'_>) {
        let mut running = std::mem::take(&mut *self.0.running.lock());
        running.append(&mut self.0.spawned.lock());
        running.retain_mut(|task| task.as_mut().poll(context).is_pending());
        *self.0.running.lock() = running;
    }

    fn advance(&self) {
        // A timer of the past belongs to somebody who does not look at it yet.
        let later = (self.0.now.load(Ordering::Relaxed) + 1, 0);
        let first = self.0.timers.lock().range(later..).next().copied();
        let (at, _) = first.expect("everybody waits for somebody, and nobody for the clock");
        self.0.now.fetch_max(at, Ordering::Relaxed);
        let sleepers = std::mem::take(&mut *self.0.sleepers.lock());
        sleepers.into_iter().for_each(Waker::wake);
    }
}

impl Clock for Stage {
    fn now(&self) -> Moment {
        Moment { nanos: self.0.now.load(Ordering::Relaxed) }
    }

    fn wall(&self) -> WallMillis {
        WallMillis(WALL_BEGIN + self.0.now.load(Ordering::Relaxed) / 1_000_000)
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let timer = (deadline.nanos, self.0.timer_next.fetch_add(1, Ordering::Relaxed));
        self.0.timers.lock().insert(timer);
        Box::pin(Sleep { stage: self.0.clone(), timer })
    }
}

struct Sleep {
    stage: Arc<Inner>,
    timer: (u64, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.stage.now.load(Ordering::Relaxed) >= self.timer.0 {
            return Poll::Ready(());
        }
        self.stage.sleepers.lock().push(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.stage.timers.lock().remove(&self.timer);
    }
}

impl Tasks for Stage {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.0.spawned.lock().push(future);
    }

    fn spawn_background(&self, future: BoxFuture<'static, ()>) {
        self.spawn(future);
    }

    fn spawn_waiting(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn survives_panics(&self) -> bool {
        self.0.survives_panics.load(Ordering::Relaxed)
    }
}

impl Entropy for Stage {
    /// Numbers in a row, far apart.
    fn next_u64(&self) -> u64 {
        let count = self.0.dice.fetch_add(1, Ordering::Relaxed) + 1;
        count.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
