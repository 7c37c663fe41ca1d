//! A deterministic executor with its own clock: tasks run one at a time in the order they woke, or in one that a seed
//! draws; time moves only when all of them wait.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use model::WallMillis;
use runtime::{BoxFuture, Clock, Moment, Tasks};
use storage::EnginePorts;

/// No test needs more.
const POLLS_MAX: u64 = 1_000_000;

#[derive(Clone, Default)]
pub(crate) struct World {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ready: Mutex<VecDeque<Arc<Task>>>,
    /// Draws which of the tasks that can run does.
    order: Option<Mutex<Dice>>,
    /// All tasks that were ever spawned, so that the end drops them.
    all: Mutex<Vec<Arc<Task>>>,
    polls: AtomicU64,
    nanos: AtomicU64,
    timers: Mutex<BTreeMap<(u64, u64), Waker>>,
    timer_next: AtomicU64,
}

/// A small generator (SplitMix64): the same seed always draws the same.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

struct Task {
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    world: Weak<Shared>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if let Some(world) = self.world.upgrade() {
            world.ready.lock().unwrap().push_back(self);
        }
    }
}

impl World {
    /// One whose tasks run in an order that the seed draws.
    pub(crate) fn shuffled(seed: u64) -> World {
        let order = Some(Mutex::new(Dice::new(seed)));
        World { shared: Arc::new(Shared { order, ..Shared::default() }) }
    }

    /// How often a task has been polled: between two polls nobody else ran.
    pub(crate) fn polls(&self) -> u64 {
        self.shared.polls.load(Ordering::Relaxed)
    }

    /// Drops all tasks where they are, as the end of a process does.
    pub(crate) fn end(&self) {
        let all = std::mem::take(&mut *self.shared.all.lock().unwrap());
        for task in all {
            let future = task.future.lock().unwrap().take();
            drop(future);
        }
        self.shared.ready.lock().unwrap().clear();
    }

    pub(crate) fn ports(&self) -> EnginePorts {
        EnginePorts { clock: Arc::new(self.clone()), tasks: Arc::new(self.clone()) }
    }

    /// Runs `future` to its end, and everything else beside it.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            self.shared.polls.fetch_add(1, Ordering::Relaxed);
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            if !self.run_ready() {
                assert!(self.next_timer(u64::MAX), "everybody waits for ever");
            }
        }
    }

    /// Lets this much time pass.
    pub(crate) fn pass(&self, duration: Duration) {
        let end = self.now().after(duration).nanos;
        loop {
            self.run_ready();
            if !self.next_timer(end) {
                break;
            }
        }
        self.shared.nanos.store(end, Ordering::Relaxed);
    }

    fn run_ready(&self) -> bool {
        let mut ran = false;
        loop {
            let Some(task) = self.next_ready() else { return ran };
            ran = true;
            let polls = self.shared.polls.fetch_add(1, Ordering::Relaxed);
            assert!(polls < POLLS_MAX, "tasks go on for ever");
            let Some(mut future) = task.future.lock().unwrap().take() else { continue };
            let waker = Waker::from(task.clone());
            if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                *task.future.lock().unwrap() = Some(future);
            }
        }
    }

    fn next_ready(&self) -> Option<Arc<Task>> {
        let mut ready = self.shared.ready.lock().unwrap();
        if let (Some(order), count @ 2..) = (&self.shared.order, ready.len()) {
            let drawn = order.lock().unwrap().below(count as u64) as usize;
            ready.swap(0, drawn);
        }
        ready.pop_front()
    }

    fn next_timer(&self, until: u64) -> bool {
        let mut timers = self.shared.timers.lock().unwrap();
        match timers.first_key_value().map(|(key, _)| *key) {
            Some(key) if key.0 <= until => {
                let waker = timers.remove(&key).unwrap();
                drop(timers);
                self.shared.nanos.fetch_max(key.0, Ordering::Relaxed);
                waker.wake();
                true
            }
            _ => false,
        }
    }
}

impl Tasks for World {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let task = Arc::new(Task { future: Mutex::new(Some(future)), world: Arc::downgrade(&self.shared) });
        self.shared.all.lock().unwrap().push(task.clone());
        self.shared.ready.lock().unwrap().push_back(task);
    }

    fn spawn_background(&self, future: BoxFuture<'static, ()>) {
        self.spawn(future);
    }

    fn spawn_waiting(&self, work: Box<dyn FnOnce() + Send>) {
        self.spawn(Box::pin(async move { work() }));
    }
}

impl Clock for World {
    fn now(&self) -> Moment {
        Moment { nanos: self.shared.nanos.load(Ordering::Relaxed) }
    }

    fn wall(&self) -> WallMillis {
        WallMillis(self.now().nanos / 1_000_000)
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { world: self.clone(), deadline, timer: None })
    }
}

struct Sleep {
    world: World,
    deadline: Moment,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.world.now() >= self.deadline {
            return Poll::Ready(());
        }
        let number = self.world.shared.timer_next.fetch_add(1, Ordering::Relaxed);
        let due = self.deadline.nanos;
        let key = *self.timer.get_or_insert((due, number));
        self.world.shared.timers.lock().unwrap().insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer {
            self.world.shared.timers.lock().unwrap().remove(&key);
        }
    }
}
