//! The threads that sync files, so that no executor thread ever waits for a device.
//!
//! Requests queue per file. A thread takes a file with all who wait for it, syncs once, and answers them all.
//! Whoever asks while that sync runs waits for the next one, because the running one may have begun before the
//! caller's bytes were written.
//!
//! A system tells once that it could not write bytes, and then takes them for written. Who asked may have gone away
//! meanwhile, so a file of which a sync failed remembers that, until it
//! is opened again. A directory does not.
//!
//! Must never: call bytes of an open file synced of which an earlier sync failed.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::translate;
use crate::BoxFuture;
use crate::disk::DiskError;

/// Threads per disk: one for the log that requests wait on, one so that a slow background sync does not stand
/// before it.
const THREADS: usize = 2;

type Answer = oneshot::Sender<Result<(), DiskError>>;

/// Why a sync of a file failed, once one did.
pub(super) type Unsynced = Arc<OnceLock<DiskError>>;

/// Syncs files on its own threads; they end when it is dropped.
pub(super) struct Syncer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// Descriptors whose sync runs now.
    running: BTreeSet<i32>,
    closed: bool,
}

/// One file, and all who wait for its next sync.
struct Request {
    path: Arc<str>,
    file: Arc<fs::File>,
    unsynced: Unsynced,
    answers: Vec<Answer>,
}

impl Syncer {
    /// Starts the threads.
    pub(super) fn start() -> std::io::Result<Syncer> {
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::with_capacity(THREADS);
        for _ in 0..THREADS {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name("disk-sync".to_owned());
            threads.push(builder.spawn(move || shared.serve())?);
        }
        Ok(Syncer { shared, threads })
    }

    /// Completes when a sync that began after this call has ended.
    pub(super) fn sync(
        &self,
        path: Arc<str>,
        file: Arc<fs::File>,
        unsynced: Unsynced,
    ) -> BoxFuture<'static, Result<(), DiskError>> {
        let (answer, answered) = oneshot::channel();
        let shown = path.clone();
        {
            let mut queue = self.shared.queue.lock();
            let descriptor = file.as_raw_fd();
            match queue.requests.iter_mut().find(|waiting| waiting.file.as_raw_fd() == descriptor) {
                Some(waiting) => waiting.answers.push(answer),
                None => {
                    queue.requests.push_back(Request { path, file, unsynced, answers: vec![answer] });
                }
            }
        }
        self.shared.work.notify_one();
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| {
                Err(DiskError::Failed { path: shown.to_string(), reason: "the disk was closed".to_owned() })
            })
        })
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // What waits is still synced: a thread ends only when the queue is empty.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        loop {
            let Some(request) = self.next() else { return };
            let synced = request.file.sync_data().map_err(|error| translate(&request.path, &error));
            let outcome = match synced {
                Ok(()) => request.unsynced.get().map_or(Ok(()), |error| Err(error.clone())),
                Err(error) => Err(request.unsynced.get_or_init(|| error).clone()),
            };
            self.queue.lock().running.remove(&request.file.as_raw_fd());
            // A request for the same file may have been passed over while this one ran.
            self.work.notify_one();
            for answer in request.answers {
                let _ = answer.send(outcome.clone());
            }
        }
    }

    /// The oldest request whose file is not being synced; `None` when closed and nothing waits.
    fn next(&self) -> Option<Request> {
        let mut queue = self.queue.lock();
        loop {
            let ready =
                queue.requests.iter().position(|request| !queue.running.contains(&request.file.as_raw_fd()));
            if let Some(request) = ready.and_then(|position| queue.requests.remove(position)) {
                queue.running.insert(request.file.as_raw_fd());
                return Some(request);
            }
            if queue.closed && queue.requests.is_empty() {
                return None;
            }
            self.work.wait(&mut queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use futures_util::FutureExt;

    use super::*;

    /// A pipe cannot be synced, which stands for a device that fails.
    #[tokio::test]
    async fn a_sync_that_failed_while_nobody_listened_is_not_forgotten() {
        let syncer = Syncer::start().unwrap();
        let (unsynced, path): (Unsynced, Arc<str>) = (Unsynced::default(), "a".into());
        let (_reader, writer) = std::io::pipe().unwrap();
        let pipe = Arc::new(fs::File::from(OwnedFd::from(writer)));
        let asked = syncer.sync(path.clone(), pipe, unsynced.clone());
        assert!(asked.now_or_never().is_none_or(|done| done.is_err()), "whoever asked is gone");
        while unsynced.get().is_none() {
            tokio::task::yield_now().await;
        }
        let file = || Arc::new(tempfile::tempfile().unwrap());
        assert!(
            syncer.sync(path.clone(), file(), unsynced).await.is_err(),
            "the system says that all is well"
        );
        assert_eq!(syncer.sync(path, file(), Unsynced::default()).await, Ok(()));
    }
}
