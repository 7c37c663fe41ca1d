//! Says in the log when a worker of this process does not turn, and ends a process that does not end by itself.
//!
//! ```text
//!   worker: a timer, once a second ─▶ its counter ◀─ this thread, once a second ─▶ one line when it hangs
//! ```
//!
//! A worker serves its connections on one thread. One that loops or waits for a lock serves none of them, and says nothing.
//! Its timer costs no request anything.
//!
//! Must never: end a process that serves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use runtime::Ports;

/// How often a worker raises its counter, and how often that is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Looks without a turn after which a worker is said to hang. They are counted, not timed: a process that was
/// suspended as a whole hangs for nobody.
const LOOKS_MAX: u32 = 5;
/// How long a process may take to stop. It writes an index snapshot of each store, which takes minutes where keys are many
/// and the disk is slow; so only what hangs takes longer.
const STOP_TIME_MAX: Duration = Duration::from_secs(600);
/// The status with which a process ends that did not stop.
const NOT_STOPPED: i32 = 2;

/// Watches the workers of a node until it is dropped.
pub(crate) struct Watchdog {
    turns: Arc<Vec<AtomicU64>>,
}

impl Watchdog {
    /// Watches this many workers.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn start(node: model::NodeId, workers: usize) -> std::io::Result<Watchdog> {
        let turns: Arc<Vec<AtomicU64>> = Arc::new((0..workers).map(|_| AtomicU64::new(0)).collect());
        let watched = Arc::downgrade(&turns);
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || watch(node, &watched))?;
        Ok(Watchdog { turns })
    }

    /// Begins to raise the counter of the calling worker.
    pub(crate) fn turn(turns: &Arc<Vec<AtomicU64>>, index: usize, ports: &Ports) {
        let (turns, clock) = (turns.clone(), ports.clock.clone());
        ports.tasks.spawn(Box::pin(async move {
            loop {
                turns[index].fetch_add(1, Ordering::Relaxed);
                clock.sleep(INTERVAL).await;
            }
        }));
    }

    /// The counters, for [`Watchdog::turn`].
    pub(crate) fn turns(&self) -> Arc<Vec<AtomicU64>> {
        self.turns.clone()
    }
}

/// What is known of one worker.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    turns: u64,
    /// Looks since it turned last.
    looks: u32,
}

/// What there is to say of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    StandsStill,
    TurnsAgain,
}

impl Seen {
    fn look(&mut self, turns: u64) -> Option<News> {
        if turns != self.turns {
            let stood = std::mem::replace(self, Seen { turns, looks: 0 });
            return (stood.looks >= LOOKS_MAX).then_some(News::TurnsAgain);
        }
        self.looks = self.looks.saturating_add(1);
        (self.looks == LOOKS_MAX).then_some(News::StandsStill)
    }
}

fn watch(node: model::NodeId, watched: &Weak<Vec<AtomicU64>>) {
    let mut seen = Vec::new();
    while let Some(turns) = watched.upgrade() {
        seen.resize(turns.len(), Seen::default());
        for (index, (turns, seen)) in turns.iter().zip(&mut seen).enumerate() {
            let worker = format!("worker-{index}");
            match seen.look(turns.load(Ordering::Relaxed)) {
                None => {}
                Some(News::StandsStill) => {
                    let seconds = LOOKS_MAX;
                    tracing::error!(%node, worker, seconds, "worker hangs: its connections are not served");
                }
                Some(News::TurnsAgain) => tracing::warn!(%node, worker, "worker turns again"),
            }
        }
        drop(turns);
        std::thread::sleep(INTERVAL);
    }
}

/// Ends the process if it has not stopped in time. It is on its own thread: what hangs may hold any other.
pub(crate) fn limit_stop(node: model::NodeId) {
    let spawned = std::thread::Builder::new().name("stop-limit".to_owned()).spawn(move || {
        std::thread::sleep(STOP_TIME_MAX);
        let seconds = STOP_TIME_MAX.as_secs();
        tracing::error!(%node, seconds, "node did not stop in time, the process is ended: its next start treats this as a crash");
        std::process::exit(NOT_STOPPED);
    });
    if let Err(error) = spawned {
        tracing::warn!(%node, %error, "stopping has no limit of time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that is killed while it writes its snapshots starts as after a crash, and takes as long the next time.
    #[test]
    fn the_service_manager_waits_longer_than_the_limit_and_the_page_names_it() {
        let unit = include_str!("../../../packaging/tontine.service");
        let waits = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
        assert!(waits.parse::<u64>().unwrap() > STOP_TIME_MAX.as_secs(), "{waits}");
        let page = include_str!("../../../docs/operating/running.md");
        assert!(page.contains(&format!("{} minutes", STOP_TIME_MAX.as_secs() / 60)));
    }

    #[test]
    fn a_worker_that_hangs_is_reported_once_and_when_it_turns_again() {
        let mut seen = Seen::default();
        let mut told = Vec::new();
        for turns in [1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 4] {
            told.extend(seen.look(turns));
        }
        assert_eq!(told, [News::StandsStill, News::TurnsAgain]);
    }

    /// With a real worker: it is seen to turn, and to hang while its thread is held.
    #[tokio::test]
    async fn the_counter_of_a_worker_stops_while_its_thread_is_held() {
        let ports = Ports::os().unwrap();
        let watchdog = Watchdog::start(model::NodeId(1), 1).unwrap();
        let turns = watchdog.turns();
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(parking_lot::Mutex::new(held));
        let workers = runtime::workers::Workers::start(1, &ports, move |worker| {
            let (turns, held) = (turns.clone(), held.clone());
            async move {
                Watchdog::turn(&turns, worker.index, &worker.ports);
                worker.ports.clock.sleep(Duration::from_millis(10)).await;
                // Ends when the test lets go.
                let _ = held.lock().recv();
            }
        })
        .unwrap();
        let count = || watchdog.turns[0].load(Ordering::Relaxed);
        while count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(2 * INTERVAL).await;
        assert_eq!(count(), 1);
        drop(hold);
        workers.join().await.unwrap();
    }
}
