//! A deterministic executor with its own clock: tasks run one at a time in the order they woke, time moves only when
//! all of them wait.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use model::WallMillis;
use runtime::{BoxFuture, Clock, Moment, Tasks};
use storage::EnginePorts;

#[derive(Clone, Default)]
pub(crate) struct World {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ready: Mutex<VecDeque<Arc<Task>>>,
    nanos: AtomicU64,
    timers: Mutex<BTreeMap<(u64, u64), Waker>>,
    timer_next: AtomicU64,
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
    pub(crate) fn ports(&self) -> EnginePorts {
        EnginePorts { clock: Arc::new(self.clone()), tasks: Arc::new(self.clone()) }
    }

    /// Runs `future` to its end, and everything else beside it.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
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
            let Some(task) = self.shared.ready.lock().unwrap().pop_front() else { return ran };
            ran = true;
            let Some(mut future) = task.future.lock().unwrap().take() else { continue };
            let waker = Waker::from(task.clone());
            if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                *task.future.lock().unwrap() = Some(future);
            }
        }
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
        let task = Task { future: Mutex::new(Some(future)), world: Arc::downgrade(&self.shared) };
        self.shared.ready.lock().unwrap().push_back(Arc::new(task));
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
