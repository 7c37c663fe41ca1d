//! Running futures beside the caller.

pub mod os;
mod processors;

use std::ops::Add;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::BoxFuture;

/// Where futures run.
///
/// Code above this crate never calls an executor directly. Channels, locks and notifications of `tokio::sync` are
/// allowed everywhere, because they work on any executor; `tokio::{spawn, time, net, fs}` only in this crate.
pub trait Tasks: Send + Sync {
    /// Runs `future` on the caller's own executor thread, so that it shares the caller's connections and caches.
    fn spawn(&self, future: BoxFuture<'static, ()>);

    /// Runs `future` on the executor thread kept for work that may hold the processor or the disk for milliseconds
    /// (compaction, syncing, scrubbing), away from requests.
    fn spawn_background(&self, future: BoxFuture<'static, ()>);

    /// Runs `work` on a thread that may wait for the disk. Several run at once, at most [`WAITING_THREADS`]; what comes
    /// when all of them are busy waits its turn. It is dropped without having run when the process ends before.
    fn spawn_waiting(&self, work: Box<dyn FnOnce() + Send>);

    /// Whether a panic in the background may be caught, and the work begun anew ([`crate::panics`]). Not where somebody
    /// judges every panic, as a simulator does; nor where other panics do not end the process.
    fn survives_panics(&self) -> bool {
        false
    }

    /// What the background thread has had of the processors so far; `None` where nobody counts that.
    fn background_time(&self) -> Option<ProcessorTime> {
        None
    }

    /// The calling thread is a worker: [`worker_time`](Self::worker_time) counts it from now on.
    fn count_worker(&self) {}

    /// What all worker threads have had of the processors since they began, those included that have ended; `None` where
    /// nobody counts that, or no thread is a worker.
    fn worker_time(&self) -> Option<ProcessorTime> {
        None
    }

    /// What all threads of this process have had of the processors since it began; `None` where nobody counts that.
    fn process_time(&self) -> Option<Duration> {
        None
    }

    /// How many processors this process may use now: those that it may run on, or less where its control group has a
    /// quota. 1 where nobody knows.
    fn processors(&self) -> f64 {
        1.0
    }
}

/// What a thread has had of the processors since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTime {
    /// How long it ran.
    pub ran: Duration,
    /// How long it had something to do and no processor to run on.
    pub waited: Duration,
}

impl Add for ProcessorTime {
    type Output = ProcessorTime;
    fn add(self, other: ProcessorTime) -> ProcessorTime {
        ProcessorTime { ran: self.ran + other.ran, waited: self.waited + other.waited }
    }
}

/// Threads that wait for the disk: enough to keep a device busy, few enough to cost nothing.
pub const WAITING_THREADS: usize = 16;

/// Runs `work` where it may wait for the disk; `None` when the process ends before it has run. Work that nobody waits
/// for any more when its turn comes is left.
pub async fn waited<T: Send + 'static>(
    tasks: &dyn Tasks,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    tasks.spawn_waiting(Box::new(move || {
        if !answer.is_closed() {
            // Whoever asked may have gone meanwhile.
            let _ = answer.send(work());
        }
    }));
    answered.await.ok()
}
