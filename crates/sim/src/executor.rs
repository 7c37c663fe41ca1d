//! One thread that plays all processes: tasks, timers and virtual time.
//!
//! Time stands still while any task can run, and then jumps to the next timer. Tasks run in the order in which they
//! were woken, or, if the seed wants it so, in an order that it draws. Killing a process drops its tasks, as the end
//! of a real process does: nothing of it runs any more, not even a destructor's follow-up.
//!
//! ```text
//!   ready tasks ──poll──▶ wake others, arm timers, post events
//!        ▲                                   │
//!        └──── nothing ready: time jumps to ─┘
//! ```
//!
//! [`Processor`] says what the workers of a node would have run, where a run plays that.
//!
//! Must never: read the clock of the machine, or run anything beside itself.

mod processor;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use model::{Moment, WallMillis};
use parking_lot::Mutex;
use runtime::{BoxFuture, Clock, ProcessorTime, Tasks};

use crate::dice::Dice;

pub use processor::{Power, Processor};

/// Wall-clock time at which every simulation starts, in milliseconds since 1970.
pub const WALL_START_MS: u64 = 1_760_000_000_000;

/// Polls at one instant after which tasks are taken to be waking each other for ever.
const POLLS_AT_ONE_INSTANT_MAX: u64 = 2_000_000;

/// How long it takes to read what is not in memory: other requests overtake the one that waits for it.
const DISK_READ: Duration = Duration::from_millis(1);

thread_local! {
    /// Where in the sources the last panic of this thread was.
    static PANICKED_AT: Cell<Option<String>> = const { Cell::new(None) };
}

/// Lets panics leave their place in the sources, which what is caught does not tell.
fn note_places_of_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED_AT.set(panic.location().map(ToString::to_string));
            before(panic);
        }));
    });
}

/// One life of a simulated process. A restart is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u64);

/// What ended a run before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// A task panicked.
    Panicked {
        /// What it said.
        message: String,
    },
    /// Nothing can run and no timer is armed, but the run is not done.
    Stuck,
    /// Tasks wake each other without time going on.
    Spinning,
    /// The virtual time limit passed.
    TooLong,
}

/// Plays all processes of one simulation.
pub struct Executor {
    state: Mutex<State>,
    ready: Arc<Ready>,
}

struct State {
    now: Moment,
    tasks: BTreeMap<u64, Task>,
    task_next: u64,
    living: BTreeSet<ProcessId>,
    /// Processes that stand still, with those of their tasks that were woken meanwhile.
    paused: BTreeMap<ProcessId, Vec<Arc<TaskWaker>>>,
    /// Until when what waits for a disk or a source goes on waiting.
    stalled: BTreeMap<ProcessId, Moment>,
    process_next: u64,
    timers: BTreeMap<(Moment, u64), Timer>,
    timer_next: u64,
    /// Draws the order of tasks, if the seed wants that.
    shuffle: Option<Dice>,
    trace: u64,
    steps: u64,
}

struct Task {
    process: ProcessId,
    /// Absent while it is polled.
    future: Option<BoxFuture<'static, ()>>,
}

enum Timer {
    Wake(Waker),
    Event(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct Ready {
    queue: Mutex<VecDeque<Arc<TaskWaker>>>,
}

struct TaskWaker {
    task: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            let ready = self.ready.clone();
            ready.queue.lock().push_back(self);
        }
    }
}

impl Executor {
    /// An empty world at virtual time zero. With `shuffle`, ready tasks run in an order that it draws.
    pub fn new(shuffle: Option<Dice>) -> Arc<Executor> {
        note_places_of_panics();
        let state = State {
            now: Moment::default(),
            tasks: BTreeMap::new(),
            task_next: 0,
            living: BTreeSet::new(),
            paused: BTreeMap::new(),
            stalled: BTreeMap::new(),
            process_next: 1,
            timers: BTreeMap::new(),
            timer_next: 0,
            shuffle,
            trace: 0,
            steps: 0,
        };
        Arc::new(Executor { state: Mutex::new(state), ready: Arc::default() })
    }

    /// A new living process.
    pub fn process(&self) -> ProcessId {
        let mut state = self.state.lock();
        let process = ProcessId(state.process_next);
        state.process_next += 1;
        state.living.insert(process);
        process
    }

    /// Ends a process: its tasks are dropped, and it can start no more.
    pub fn kill(&self, process: ProcessId) {
        let woken = {
            let mut state = self.state.lock();
            state.living.remove(&process);
            state.paused.remove(&process)
        };
        drop(woken);
        loop {
            // Destructors may reach into the executor, so they run without its lock.
            let dropped: Vec<Task> = {
                let mut state = self.state.lock();
                let of_process = |task: &Task| task.process == process;
                let ids: Vec<u64> =
                    state.tasks.iter().filter(|(_, task)| of_process(task)).map(|(id, _)| *id).collect();
                ids.into_iter().filter_map(|id| state.tasks.remove(&id)).collect()
            };
            if dropped.is_empty() {
                return;
            }
        }
    }

    /// Lets a process stand still, as SIGSTOP does: its sockets stay open, its timers pass, nothing of it runs.
    pub fn pause(&self, process: ProcessId) {
        self.state.lock().paused.entry(process).or_default();
    }

    /// Whether it stands still.
    pub fn is_paused(&self, process: ProcessId) -> bool {
        self.state.lock().paused.contains_key(&process)
    }

    /// Lets it go on where it was.
    pub fn resume(&self, process: ProcessId) {
        let woken = self.state.lock().paused.remove(&process).unwrap_or_default();
        self.ready.queue.lock().extend(woken);
    }

    /// Ends all processes and forgets all timers, so that nothing keeps anything alive.
    pub fn end(&self) {
        let living: Vec<ProcessId> = self.state.lock().living.iter().copied().collect();
        for process in living {
            self.kill(process);
        }
        let timers = std::mem::take(&mut self.state.lock().timers);
        drop(timers);
        let ready = std::mem::take(&mut *self.ready.queue.lock());
        drop(ready);
    }

    /// Runs a future as a task of a process; drops it when the process has ended.
    pub fn spawn(&self, process: ProcessId, future: BoxFuture<'static, ()>) {
        let waker = {
            let mut state = self.state.lock();
            if !state.living.contains(&process) {
                drop(state);
                drop(future);
                return;
            }
            let id = state.task_next;
            state.task_next += 1;
            let waker =
                Arc::new(TaskWaker { task: id, queued: AtomicBool::new(false), ready: self.ready.clone() });
            state.tasks.insert(id, Task { process, future: Some(future) });
            waker
        };
        waker.wake();
    }

    /// Virtual time.
    pub fn now(&self) -> Moment {
        self.state.lock().now
    }

    /// Calls `event` at `moment`, whatever becomes of the process that asked.
    pub fn at(&self, moment: Moment, event: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        let key = state.timer_key(moment);
        state.timers.insert(key, Timer::Event(Box::new(event)));
    }

    /// Lets what waits for a disk or a source in this process go on waiting until then.
    pub fn stall_waiting(&self, process: ProcessId, until: Moment) {
        self.state.lock().stalled.insert(process, until);
    }

    fn waits_until(&self, process: ProcessId) -> Moment {
        let state = self.state.lock();
        let stalled = state.stalled.get(&process).copied().unwrap_or_default();
        stalled.max(state.now.after(DISK_READ))
    }

    /// Completes at `deadline`.
    pub fn sleep_until(self: &Arc<Self>, deadline: Moment) -> Sleep {
        Sleep { executor: self.clone(), deadline, key: None }
    }

    /// Completes after `duration`.
    pub fn sleep(self: &Arc<Self>, duration: Duration) -> Sleep {
        self.sleep_until(self.now().after(duration))
    }

    /// Takes an observable event into the trace.
    pub fn note(&self, what: u64, detail: u64) {
        let mut state = self.state.lock();
        let now = state.now.nanos;
        for part in [what, detail, now] {
            let mixed = (state.trace ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            state.trace = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(17);
        }
    }

    /// A hash of everything observable so far: equal for two runs of one seed.
    pub fn trace(&self) -> u64 {
        self.state.lock().trace
    }

    /// Polls so far.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Plays until `done` is set.
    ///
    /// # Errors
    /// What ended it before that; `limit` is a virtual time.
    pub fn run(&self, done: &AtomicBool, limit: Moment) -> Result<(), Halt> {
        let mut polls = 0;
        loop {
            while let Some(waker) = self.next_ready() {
                self.poll(&waker)?;
                polls += 1;
                if polls > POLLS_AT_ONE_INSTANT_MAX {
                    return Err(Halt::Spinning);
                }
                if done.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
            polls = 0;
            let timer = {
                let mut state = self.state.lock();
                let Some(((moment, number), timer)) = state.timers.pop_first() else {
                    return Err(Halt::Stuck);
                };
                if moment > limit {
                    return Err(Halt::TooLong);
                }
                state.now = state.now.max(moment);
                (number, timer)
            };
            self.note(1, timer.0);
            match timer.1 {
                Timer::Wake(waker) => waker.wake(),
                Timer::Event(event) => event(),
            }
        }
    }

    fn next_ready(&self) -> Option<Arc<TaskWaker>> {
        let mut queue = self.ready.queue.lock();
        let count = queue.len();
        if count > 1
            && let Some(dice) = &mut self.state.lock().shuffle
        {
            let drawn = dice.below(count as u64) as usize;
            queue.swap(0, drawn);
        }
        queue.pop_front()
    }

    fn poll(&self, waker: &Arc<TaskWaker>) -> Result<(), Halt> {
        let future = {
            let mut state = self.state.lock();
            let process = state.tasks.get(&waker.task).map(|task| task.process);
            if let Some(woken) = process.and_then(|process| state.paused.get_mut(&process)) {
                // Still queued, here instead of there.
                woken.push(waker.clone());
                return Ok(());
            }
            waker.queued.store(false, Ordering::Relaxed);
            state.steps += 1;
            state.tasks.get_mut(&waker.task).and_then(|task| task.future.take())
        };
        let Some(mut future) = future else { return Ok(()) };
        let as_waker = Waker::from(waker.clone());
        let mut context = Context::from_waker(&as_waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        match polled {
            Ok(Poll::Pending) => {
                // Dropped below, without the lock, if its process was killed meanwhile.
                if let Some(task) = self.state.lock().tasks.get_mut(&waker.task) {
                    task.future = Some(future);
                }
                Ok(())
            }
            Ok(Poll::Ready(())) => {
                let task = self.state.lock().tasks.remove(&waker.task);
                drop(task);
                Ok(())
            }
            Err(panic) => {
                let message = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_else(|| "a panic without a message".to_owned());
                let place = PANICKED_AT.take().map_or_else(String::new, |place| format!(" ({place})"));
                Err(Halt::Panicked { message: format!("{message}{place}") })
            }
        }
    }
}

impl State {
    fn timer_key(&mut self, moment: Moment) -> (Moment, u64) {
        let number = self.timer_next;
        self.timer_next += 1;
        (moment.max(self.now), number)
    }
}

/// Waits for a virtual time.
pub struct Sleep {
    executor: Arc<Executor>,
    deadline: Moment,
    key: Option<(Moment, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut state = this.executor.state.lock();
        if state.now >= this.deadline {
            return Poll::Ready(());
        }
        let key = match this.key {
            Some(key) => key,
            None => *this.key.insert(state.timer_key(this.deadline)),
        };
        state.timers.insert(key, Timer::Wake(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.executor.state.lock().timers.remove(&key);
        }
    }
}

/// The clock of one simulated process: everybody's monotonic time, its own wall clock.
pub struct ProcessClock {
    executor: Arc<Executor>,
    wall: Arc<WallClock>,
}

/// How wrong a machine's wall clock is.
#[derive(Debug, Default)]
pub struct WallClock {
    /// Milliseconds ahead of (or behind) true time.
    pub skew_ms: AtomicI64,
    /// Parts per million by which it runs fast (or slow).
    pub drift_ppm: AtomicI64,
}

impl ProcessClock {
    /// The executor's time, and this machine's idea of the date.
    pub fn new(executor: Arc<Executor>, wall: Arc<WallClock>) -> ProcessClock {
        ProcessClock { executor, wall }
    }
}

impl Clock for ProcessClock {
    fn now(&self) -> Moment {
        self.executor.now()
    }

    fn wall(&self) -> WallMillis {
        let elapsed = (self.executor.now().nanos / 1_000_000) as i64;
        let drift = elapsed * self.wall.drift_ppm.load(Ordering::Relaxed) / 1_000_000;
        let wrong = drift + self.wall.skew_ms.load(Ordering::Relaxed);
        WallMillis((WALL_START_MS as i64 + elapsed + wrong).max(1) as u64)
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        Box::pin(self.executor.sleep_until(deadline))
    }
}

/// Runs the futures of one simulated process; background work runs in the same thread as everything else.
pub struct ProcessTasks {
    executor: Arc<Executor>,
    process: ProcessId,
    /// What its workers would have run, where that is played.
    processor: Option<Arc<Processor>>,
}

impl ProcessTasks {
    /// For this life of a process.
    pub fn new(executor: Arc<Executor>, process: ProcessId) -> ProcessTasks {
        ProcessTasks { executor, process, processor: None }
    }

    /// The same, over a played processor.
    pub fn played(executor: Arc<Executor>, process: ProcessId, processor: Arc<Processor>) -> ProcessTasks {
        ProcessTasks { executor, process, processor: Some(processor) }
    }
}

impl Tasks for ProcessTasks {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.executor.spawn(self.process, future);
    }

    fn spawn_background(&self, future: BoxFuture<'static, ()>) {
        self.executor.spawn(self.process, future);
    }

    fn spawn_waiting(&self, work: Box<dyn FnOnce() + Send>) {
        let (executor, process) = (self.executor.clone(), self.process);
        self.executor.spawn(
            self.process,
            Box::pin(async move {
                let until = executor.waits_until(process);
                executor.sleep_until(until).await;
                work();
            }),
        );
    }

    fn worker_time(&self) -> Option<ProcessorTime> {
        Some(self.processor.as_ref()?.time())
    }

    fn processors(&self) -> f64 {
        self.processor.as_ref().map_or(1.0, |processor| processor.processors())
    }
}
