//! Tasks on `tokio`: beside the caller, on one background thread, or on threads that wait for the disk.

use std::io;
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

use super::processors::processors;
use super::{ProcessorTime, Tasks, WAITING_THREADS};
use crate::BoxFuture;

/// Spawns onto the `tokio` runtime of the calling thread, and onto one background thread that it has.
///
/// Dropping it ends the background thread after the poll that runs there; its unfinished tasks are dropped.
#[derive(Debug)]
pub struct OsTasks {
    background: Handle,
    stop: Arc<Notify>,
    /// Where Linux says what the background thread has had of the processors.
    counted: Arc<OnceLock<PathBuf>>,
    workers: Mutex<Vec<CountedWorker>>,
}

/// A worker thread whose time is counted.
#[derive(Debug)]
struct CountedWorker {
    /// Where Linux says what it has had of the processors, until it ends.
    file: PathBuf,
    /// What it said last.
    last: ProcessorTime,
}

impl OsTasks {
    /// Starts the background thread.
    ///
    /// # Errors
    /// When the operating system refuses a thread or an event queue.
    pub fn start() -> io::Result<OsTasks> {
        // The threads that wait are this runtime's blocking ones: nothing else asks for such.
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WAITING_THREADS)
            .thread_name("disk-read")
            .build()?;
        let background = runtime.handle().clone();
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let counted = Arc::new(OnceLock::new());
        let told = Arc::clone(&counted);
        std::thread::Builder::new().name("background".into()).spawn(move || {
            if let Some(file) = schedstat() {
                told.get_or_init(|| file);
            }
            runtime.block_on(stopped.notified());
            // A blocking call that a task left behind must not keep the process from ending.
            runtime.shutdown_background();
        })?;
        Ok(OsTasks { background, stop, counted, workers: Mutex::default() })
    }
}

impl Drop for OsTasks {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

impl Tasks for OsTasks {
    /// # Panics
    /// Outside a `tokio` runtime.
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }

    fn spawn_background(&self, future: BoxFuture<'static, ()>) {
        self.background.spawn(future);
    }

    fn spawn_waiting(&self, work: Box<dyn FnOnce() + Send>) {
        self.background.spawn_blocking(work);
    }

    fn survives_panics(&self) -> bool {
        crate::panics::is_ended_by_panics()
    }

    fn background_time(&self) -> Option<ProcessorTime> {
        read_time(self.counted.get()?)
    }

    fn count_worker(&self) {
        let Some(file) = schedstat() else { return };
        let mut workers = self.workers.lock();
        if workers.iter().all(|worker| worker.file != file) {
            workers.push(CountedWorker { file, last: ProcessorTime::default() });
        }
    }

    fn worker_time(&self) -> Option<ProcessorTime> {
        let mut workers = self.workers.lock();
        for worker in &mut *workers {
            worker.last = read_time(&worker.file).unwrap_or(worker.last);
        }
        workers.iter().map(|worker| worker.last).reduce(Add::add)
    }

    fn process_time(&self) -> Option<Duration> {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::try_from(time).ok()
    }

    fn processors(&self) -> f64 {
        processors().unwrap_or(1.0)
    }
}

/// Where Linux says what the calling thread has had of the processors.
fn schedstat() -> Option<PathBuf> {
    let thread = std::fs::read_link("/proc/thread-self").ok()?;
    let file = PathBuf::from("/proc").join(thread).join("schedstat");
    // A kernel may be built without it.
    read_time(&file).map(|_| file)
}

fn read_time(file: &Path) -> Option<ProcessorTime> {
    processor_time(&std::fs::read_to_string(file).ok()?)
}

/// Reads `schedstat`: nanoseconds on a processor, nanoseconds that it waited for one, and how often it had one.
fn processor_time(text: &str) -> Option<ProcessorTime> {
    let mut nanos = text.split_ascii_whitespace().map(|word| word.parse().map(Duration::from_nanos));
    Some(ProcessorTime { ran: nanos.next()?.ok()?, waited: nanos.next()?.ok()? })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::super::waited;
    use super::*;
    use crate::clock::Clock;
    use crate::clock::os::OsClock;

    #[tokio::test]
    async fn spawned_futures_run_on_the_callers_thread() {
        let tasks = OsTasks::start().unwrap();
        let (answer, answered) = oneshot::channel();
        tasks.spawn(Box::pin(async move { answer.send(std::thread::current().id()).unwrap() }));
        assert_eq!(answered.await.unwrap(), std::thread::current().id());
    }

    #[tokio::test]
    async fn background_futures_run_on_another_thread_and_can_sleep_there() {
        let tasks = OsTasks::start().unwrap();
        let (answer, answered) = oneshot::channel();
        tasks.spawn_background(Box::pin(async move {
            let clock: &dyn Clock = &OsClock::new();
            clock.sleep(Duration::from_millis(1)).await;
            answer.send(std::thread::current().name().map(str::to_owned)).unwrap();
        }));
        assert_eq!(answered.await.unwrap().as_deref(), Some("background"));
    }

    #[test]
    fn the_time_of_a_thread_is_read_from_what_the_system_counts() {
        let [ran, waited] = [7, 9].map(Duration::from_nanos);
        assert_eq!(processor_time("7 9 1\n"), Some(ProcessorTime { ran, waited }));
        assert_eq!((processor_time("7"), processor_time("7 x 1")), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_background_thread_is_the_one_that_is_counted() {
        let tasks = OsTasks::start().unwrap();
        let (answer, answered) = oneshot::channel();
        tasks.spawn_background(Box::pin(async move {
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(30) {
                std::hint::spin_loop();
            }
            answer.send(()).unwrap();
        }));
        answered.await.unwrap();
        let time = tasks.background_time().expect("this system counts");
        assert!(time.ran + time.waited >= Duration::from_millis(25), "{time:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_of_workers_is_summed_and_kept_when_they_end() {
        let tasks = Arc::new(OsTasks::start().unwrap());
        assert_eq!(tasks.worker_time(), None, "there are none");
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (counted, was_counted) = std::sync::mpsc::channel();
        let busy = tasks.clone();
        let worker = std::thread::spawn(move || {
            busy.count_worker();
            busy.count_worker();
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(30) {
                std::hint::spin_loop();
            }
            counted.send(()).unwrap();
            let _ = asked.recv();
        });
        was_counted.recv().unwrap();
        let time = tasks.worker_time().expect("this system counts");
        assert!(time.ran + time.waited >= Duration::from_millis(25), "{time:?}");
        assert!(time.ran < Duration::from_secs(20), "counted once: {time:?}");
        drop(ask);
        worker.join().unwrap();
        let kept = tasks.worker_time().expect("it was counted");
        assert!(kept.ran >= time.ran, "{time:?} {kept:?}");
        let count = tasks.processors();
        assert!(count > 0.0, "{count}");
    }

    #[tokio::test]
    async fn what_waits_runs_beside_everything_else() {
        let tasks = OsTasks::start().unwrap();
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let slow = waited(&tasks, move || waits.recv().unwrap());
        let quick = waited(&tasks, move || go.send(()).unwrap());
        assert_eq!(tokio::join!(slow, quick), (Some(()), Some(())), "the first waits for the second");
        let name = waited(&tasks, || std::thread::current().name().map(str::to_owned)).await.unwrap();
        assert_eq!(name.as_deref(), Some("disk-read"));
    }

    #[tokio::test]
    async fn dropping_the_tasks_drops_what_runs_in_the_background() {
        let tasks = OsTasks::start().unwrap();
        let (kept, dropped) = oneshot::channel::<()>();
        tasks.spawn_background(Box::pin(async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        }));
        drop(tasks);
        assert!(dropped.await.is_err());
    }
}
