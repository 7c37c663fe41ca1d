//! How long this node's own workers take for the least of requests.
//!
//! ```text
//!   background ── asked at ──▶ worker 0, worker 1, … ── how long ago that was ──▶ the slowest counts
//! ```
//!
//! A worker answers between two requests, on the thread that serves them. So the answer waits as long as a request
//! would that comes in at that moment: for requests that came before it, and for a processor.
//! Where requests are quick although no processor is idle, the background thread's own waiting tells. It may wait for
//! other nodes of the same machine that work in the background, too: so that counts only while there are requests.
//!
//! Must never: wait for a worker for longer than [`PATIENCE`], or cost anything while nobody asks.

mod paced;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use model::Moment;
use protocol::lateness::{Contention, Lateness};
use runtime::locks::Mutex;
use runtime::{Clock, ProcessorTime, Tasks};
use tokio::sync::{mpsc, oneshot};

pub(crate) use paced::{Looks, Paced};

/// Whoever takes longer counts as having taken this long.
const PATIENCE: Duration = Duration::from_millis(500);
/// Questions that wait for one worker; more are not asked.
const QUESTIONS_MAX: usize = 16;

/// From this many requests in a second on, the background thread's own waiting counts.
const REQUESTS_MIN: u64 = 500;

/// When it was asked, and where the answer goes.
type Question = (Moment, oneshot::Sender<Duration>);

/// The workers of one node.
pub struct Pulse {
    clock: Arc<dyn Clock>,
    tasks: Arc<dyn Tasks>,
    workers: Mutex<Vec<mpsc::Sender<Question>>>,
    lateness: Mutex<Lateness>,
    contention: Mutex<Contention>,
    requests_per_second: AtomicU64,
}

impl Pulse {
    /// Of a node without workers so far.
    pub fn new(clock: Arc<dyn Clock>, tasks: Arc<dyn Tasks>) -> Arc<Pulse> {
        let (workers, lateness, contention, requests_per_second) = Default::default();
        Arc::new(Pulse { clock, tasks, workers, lateness, contention, requests_per_second })
    }

    /// How many requests came in each of the last seconds.
    pub(crate) fn counted(&self, requests_per_second: u64) {
        self.requests_per_second.store(requests_per_second, Ordering::Relaxed);
    }

    /// Asks the calling worker too, from now on.
    pub fn add_worker(&self, tasks: &dyn Tasks) {
        let (sender, mut questions) = mpsc::channel::<Question>(QUESTIONS_MAX);
        self.workers.lock().push(sender);
        let clock = self.clock.clone();
        tasks.spawn(Box::pin(async move {
            while let Some((asked_at, answer)) = questions.recv().await {
                // Whoever asked may have waited long enough.
                let _ = answer.send(clock.now().since(asked_at));
            }
        }));
    }

    /// How many times as long as is ordinary the slowest worker takes now, or the background thread; 1 is in time.
    pub async fn times(&self) -> u32 {
        let mut answers = Vec::new();
        {
            let mut workers = self.workers.lock();
            workers.retain(|worker| !worker.is_closed());
            for worker in &*workers {
                let (answer, answered) = oneshot::channel();
                // One that has this many questions open has not answered for a while: patience tells.
                answers.push(answered);
                if let Err(mpsc::error::TrySendError::Full((_, answer))) =
                    worker.try_send((self.clock.now(), answer))
                {
                    let _ = answer.send(PATIENCE);
                }
            }
        }
        let slowest = async {
            let took = join_all(answers).await.into_iter().flatten().max();
            took.unwrap_or_default()
        };
        let took = match select(Box::pin(slowest), self.clock.sleep(PATIENCE)).await {
            Either::Left((took, _)) => took,
            Either::Right(_) => PATIENCE,
        };
        self.lateness.lock().times(took).max(self.contention())
    }

    /// How many times as long as with its own processor the background thread takes; 1 where nobody knows.
    fn contention(&self) -> u32 {
        let Some(ProcessorTime { ran, waited }) = self.tasks.background_time() else { return 1 };
        let times = self.contention.lock().times(ran, waited);
        if self.requests_per_second.load(Ordering::Relaxed) >= REQUESTS_MIN { times } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use runtime::{BoxFuture, Ports};

    use super::*;

    /// Its background thread waits three times as long as it runs.
    #[derive(Default)]
    struct Crowded(AtomicU64);

    impl Tasks for Crowded {
        fn spawn(&self, _: BoxFuture<'static, ()>) {}
        fn spawn_background(&self, _: BoxFuture<'static, ()>) {}
        fn spawn_waiting(&self, _: Box<dyn FnOnce() + Send>) {}

        fn background_time(&self) -> Option<ProcessorTime> {
            let ran = Duration::from_millis(10 * self.0.fetch_add(1, Ordering::Relaxed));
            Some(ProcessorTime { ran, waited: 3 * ran })
        }
    }

    #[tokio::test]
    async fn waiting_for_a_processor_counts_while_there_are_requests() {
        let pulse = Pulse::new(Ports::os().unwrap().clock, Arc::new(Crowded::default()));
        let mut told = Vec::new();
        for requests in [0, 0, REQUESTS_MIN, REQUESTS_MIN - 1, 100_000] {
            pulse.counted(requests);
            told.push(pulse.times().await);
        }
        assert_eq!(told, [1, 1, 4, 1, 4]);
    }
}
