//! One thread per core: each worker owns a single-threaded executor, and a connection lives and dies on one of them.
//!
//! Work stealing would spread load finer, but costs every task atomic hand-overs and cold caches; measured, this
//! shape needs less processor time per request. Connections are spread when they are accepted instead
//! (`network::tcp::TcpNetwork::listen_shared`, `network::bytes::listen`).

use std::fmt;
use std::future::Future;
use std::io;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};

use crate::Ports;

/// What one worker is given.
pub struct Worker {
    /// Its number, from 0.
    pub index: usize,
    /// The doors to the world; shared by all workers.
    pub ports: Ports,
    /// Tells when to end.
    pub stop: Stop,
}

/// Completes when the workers are asked to stop.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: watch::Receiver<bool>,
}

impl Stop {
    /// Whether the workers were asked to stop.
    pub fn is_asked(&self) -> bool {
        *self.asked.borrow() || self.asked.has_changed().is_err()
    }

    /// Completes once the workers are asked to stop, or whoever could ask is gone.
    pub async fn asked(&mut self) {
        // An error means that `Workers` was dropped, which asks as well.
        let _ = self.asked.wait_for(|asked| *asked).await;
    }
}

/// A worker's thread panicked; the message went to the standard error stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPanicked {
    /// The worker's number.
    pub index: usize,
}

impl fmt::Display for WorkerPanicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} panicked", self.index)
    }
}

impl std::error::Error for WorkerPanicked {}

/// Running worker threads. Dropping it asks them to stop without waiting.
pub struct Workers<T> {
    threads: Vec<(JoinHandle<()>, oneshot::Receiver<T>)>,
    stop: watch::Sender<bool>,
}

impl<T: Send + 'static> Workers<T> {
    /// Starts `count` threads and runs `work` on each until its future completes; tasks that it spawned there and
    /// left behind are dropped with its executor.
    ///
    /// The future never leaves its thread, so it need not be `Send`.
    ///
    /// # Errors
    /// When the operating system refuses a thread or an event queue; workers already started are asked to stop.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn start<W, F>(count: usize, ports: &Ports, work: W) -> io::Result<Workers<T>>
    where
        W: Fn(Worker) -> F + Clone + Send + 'static,
        F: Future<Output = T>,
    {
        Workers::start_each(vec![(); count], ports, move |worker, ()| work(worker))
    }

    /// As [`start`](Self::start), one worker for each of `inputs`, which it is handed: its listeners, for example.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// When there are no inputs.
    pub fn start_each<I, W, F>(inputs: Vec<I>, ports: &Ports, work: W) -> io::Result<Workers<T>>
    where
        I: Send + 'static,
        W: Fn(Worker, I) -> F + Clone + Send + 'static,
        F: Future<Output = T>,
    {
        assert!(!inputs.is_empty(), "somebody has to work");
        let (stop, asked) = watch::channel(false);
        let mut workers = Workers { threads: Vec::with_capacity(inputs.len()), stop };
        for (index, input) in inputs.into_iter().enumerate() {
            let worker = Worker { index, ports: ports.clone(), stop: Stop { asked: asked.clone() } };
            let executor = Builder::new_current_thread().enable_all().build()?;
            let work = work.clone();
            let (finish, finished) = oneshot::channel();
            let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                worker.ports.tasks.count_worker();
                let output = executor.block_on(async move { work(worker, input).await });
                drop(executor);
                // Nobody may be waiting for the output.
                let _ = finish.send(output);
            })?;
            workers.threads.push((thread, finished));
        }
        Ok(workers)
    }

    /// Asks all workers to stop.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until all workers have ended; their outputs in the order of their numbers. Does not ask them to stop.
    ///
    /// # Errors
    /// When one panicked: all others have ended too.
    pub async fn join(mut self) -> Result<Vec<T>, WorkerPanicked> {
        let mut outputs = Vec::with_capacity(self.threads.len());
        let mut panicked = None;
        for (index, (thread, finished)) in std::mem::take(&mut self.threads).into_iter().enumerate() {
            match finished.await {
                Ok(output) => outputs.push(output),
                Err(_) => panicked = Some(WorkerPanicked { index }),
            }
            // The output was the thread's last word, so this does not block; a panic is already noted.
            let _ = thread.join();
        }
        panicked.map_or(Ok(outputs), Err)
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
