//! Putting files where they are read later.
//!
//! ```text
//! caller ─ parts ─▶ a channel of two ─▶ the libraries' thread ─▶ the server
//! ```
//!
//! So the next part is read while the last one is sent, and no more than that is in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime::outputs::{BUILDING, Parts};
use runtime::sources::SourceUrl;
use runtime::{BoxFuture, DiskError, Output};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::SourceRefusal;
use super::remote::{Executor, told};

/// How long a server may take for one part: 8 MiB over a slow line.
const PART_TIME_MAX: Duration = Duration::from_secs(300);
/// Parts that were read and are not sent yet.
const WAITING_MAX: usize = 2;

/// What is sent of a file. A file of which all came says so: otherwise it was broken off.
pub(super) enum Part {
    Bytes(Bytes),
    Whole,
}

/// One kind of place to put files.
pub(super) trait Destination: Send + Sync {
    /// Puts a file; it has its name when it is whole.
    fn put(&self, path: String, parts: Receiver<Part>) -> BoxFuture<'static, Result<(), SourceRefusal>>;

    /// Takes over a file from below another URL of the same store, without reading it.
    fn take(&self, from: &SourceUrl, path: String) -> BoxFuture<'static, Result<bool, SourceRefusal>>;

    /// Removes what files on their way needed.
    fn finish(&self) -> BoxFuture<'static, Result<(), SourceRefusal>>;
}

/// Why a file is not put whose parts end too early.
pub(super) fn broken_off() -> SourceRefusal {
    SourceRefusal::Failed("it was broken off".to_owned())
}

/// Waits for a server as long as it may take for one part.
pub(super) async fn timed<T>(work: impl Future<Output = T>) -> Result<T, SourceRefusal> {
    let late =
        |_| SourceRefusal::Failed(format!("the server took nothing for {} s", PART_TIME_MAX.as_secs()));
    tokio::time::timeout(PART_TIME_MAX, work).await.map_err(late)
}

/// A place behind a network.
pub(super) struct RemoteOutput {
    destination: Arc<dyn Destination>,
    executor: Arc<Executor>,
}

impl RemoteOutput {
    pub(super) fn new(destination: Arc<dyn Destination>, executor: Arc<Executor>) -> RemoteOutput {
        RemoteOutput { destination, executor }
    }

    /// Hands over all parts; a server that refused hears no more of them.
    fn feed(&self, sender: &Sender<Part>, parts: &mut Parts<'_>) -> Result<(), DiskError> {
        loop {
            let next = parts()?.map_or(Part::Whole, |part| Part::Bytes(part.into()));
            let (sender, is_last) = (sender.clone(), matches!(next, Part::Whole));
            let sent =
                self.executor.begin(async move { sender.send(next).await.map_err(|_| broken_off()) }).wait();
            if is_last || sent.is_err() {
                return Ok(());
            }
        }
    }
}

impl Output for RemoteOutput {
    fn put(&self, path: &str, parts: &mut Parts<'_>) -> Result<(), DiskError> {
        let (sender, receiver) = channel(WAITING_MAX);
        let put = self.executor.begin(self.destination.put(path.to_owned(), receiver));
        let fed = self.feed(&sender, parts);
        drop(sender);
        // It ends in any case, and takes away what it has begun.
        let put = put.wait();
        fed?;
        put.map_err(|refusal| match refusal {
            SourceRefusal::NotFound => told(path)(SourceRefusal::Failed(
                "the bucket or file system is not there; create it first".to_owned(),
            )),
            refusal => told(path)(refusal),
        })
    }

    fn take(&self, from: &SourceUrl, path: &str) -> bool {
        self.executor.begin(self.destination.take(from, path.to_owned())).wait().unwrap_or(false)
    }

    fn finish(&self) -> Result<(), DiskError> {
        self.executor.begin(self.destination.finish()).wait().map_err(told(BUILDING))
    }
}
