//! A source as a disk that is only read.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use parking_lot::Mutex;
use runtime::disk::waiting::may_wait;
use runtime::{BoxFuture, Disk, DiskError, File, FileStat, Mapping};
use tokio::runtime::{Handle, Runtime};

use super::{Meta, Origin, SourceRefusal, Stream};

/// How long a source may give nothing: longer than a pause of its machine, shorter than the patience of who waits.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The thread that the libraries run on.
pub(super) struct Executor(Option<Runtime>);

impl Executor {
    pub(super) fn start() -> Result<Executor, String> {
        let built = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sources")
            .enable_all()
            .build();
        built
            .map(|runtime| Executor(Some(runtime)))
            .map_err(|error| format!("cannot start a thread: {error}"))
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.as_ref().expect("it runs until it is dropped").handle().clone()
    }

    /// Begins something there, for any thread to wait for.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, SourceRefusal>> + Send + 'static,
    ) -> Begun<T> {
        let (answer, answered) = sync_channel(1);
        self.handle().spawn(async move {
            // Nobody waits any more when the process ends.
            let _ = answer.send(work.await);
        });
        Begun(answered)
    }

    /// Carries out something there, and waits for it on this thread, as long as a source may be silent.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, SourceRefusal>> + Send + 'static,
    ) -> Result<T, SourceRefusal> {
        let answered = self.begin(async move {
            let outcome = tokio::time::timeout(SILENCE_MAX, work).await;
            outcome.unwrap_or_else(|_| Err(silent()))
        });
        answered.wait()
    }
}

fn silent() -> SourceRefusal {
    SourceRefusal::Failed(format!("the source gave nothing for {} s", SILENCE_MAX.as_secs()))
}

/// Something that goes on, and what comes of it.
pub(super) struct Begun<T>(Receiver<Result<T, SourceRefusal>>);

impl<T> Begun<T> {
    /// Waits for its end.
    pub(super) fn wait(self) -> Result<T, SourceRefusal> {
        self.0.recv().unwrap_or_else(|_| Err(SourceRefusal::Failed("the process is ending".to_owned())))
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // It may be dropped by a thread that must not wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) fn told(path: &str) -> impl Fn(SourceRefusal) -> DiskError + '_ {
    move |refusal| match refusal {
        SourceRefusal::NotFound => DiskError::NotFound { path: path.to_owned() },
        SourceRefusal::Failed(reason) => DiskError::Failed { path: path.to_owned(), reason },
    }
}

fn only_read<T>(path: &str) -> Result<T, DiskError> {
    Err(DiskError::Failed { path: path.to_owned(), reason: "a source is only read".to_owned() })
}

/// The files below a URL.
pub(super) struct RemoteDisk {
    origin: Arc<dyn Origin>,
    executor: Arc<Executor>,
}

impl RemoteDisk {
    pub(super) fn new(origin: Arc<dyn Origin>, executor: Arc<Executor>) -> RemoteDisk {
        RemoteDisk { origin, executor }
    }

    fn meta(&self, path: &str) -> Result<Meta, DiskError> {
        self.executor.wait(self.origin.stat(path.to_owned())).map_err(told(path))
    }
}

impl Disk for RemoteDisk {
    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let meta = self.meta(path)?;
        Ok(Arc::new(RemoteFile {
            path: path.to_owned(),
            meta,
            origin: self.origin.clone(),
            executor: self.executor.clone(),
            under_way: Mutex::new(None),
        }))
    }

    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        let meta = self.meta(path)?;
        let mut hasher = DefaultHasher::new();
        meta.tag.hash(&mut hasher);
        Ok(FileStat { identity: (0, hasher.finish()), length: meta.length })
    }

    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        only_read(path)
    }

    fn rename(&self, from: &str, _: &str) -> Result<(), DiskError> {
        only_read(from)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        only_read(path)
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        let reason = "a source names no files; its manifest does".to_owned();
        Err(DiskError::Failed { path: directory.to_owned(), reason })
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        let refused = only_read(directory);
        Box::pin(async { refused })
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        only_read(path)
    }

    fn available_bytes(&self) -> u64 {
        0
    }

    fn total_bytes(&self) -> Option<u64> {
        None
    }
}

/// What comes of the last range that was asked.
struct UnderWay {
    /// Where the next byte lies.
    at: u64,
    stream: Stream,
    /// What came, and was not read yet.
    left: Bytes,
}

/// A file of a source. One stream goes on as long as reads follow each other, so that reading all of it asks once.
struct RemoteFile {
    path: String,
    meta: Meta,
    origin: Arc<dyn Origin>,
    executor: Arc<Executor>,
    under_way: Mutex<Option<UnderWay>>,
}

impl RemoteFile {
    fn begin(&self, at: u64) -> Result<UnderWay, SourceRefusal> {
        let asked = self.origin.read(self.path.clone(), self.meta.clone(), at, self.meta.length);
        let stream = self.executor.wait(asked)?;
        Ok(UnderWay { at, stream, left: Bytes::new() })
    }

    /// Fills a buffer, which ends within the file.
    fn fill(&self, mut under_way: UnderWay, mut buffer: &mut [u8]) -> Result<UnderWay, SourceRefusal> {
        under_way.pour(&mut buffer);
        if buffer.is_empty() {
            return Ok(under_way);
        }
        // All of it at once: a server may send pieces of a few kilobytes, and each crossing of threads costs as much as they.
        let UnderWay { stream, at, .. } = under_way;
        let (stream, parts) = self.executor.begin(gather(stream, buffer.len())).wait()?;
        under_way = UnderWay { at, stream, left: Bytes::new() };
        for part in parts {
            under_way.left = part;
            under_way.pour(&mut buffer);
        }
        if buffer.is_empty() {
            return Ok(under_way);
        }
        Err(SourceRefusal::Failed(format!("it ended after {} of {} bytes", under_way.at, self.meta.length)))
    }
}

impl UnderWay {
    /// Puts what is left into a buffer, as far as it goes.
    fn pour(&mut self, buffer: &mut &mut [u8]) {
        let count = self.left.len().min(buffer.len());
        let (now, rest) = std::mem::take(buffer).split_at_mut(count);
        now.copy_from_slice(&self.left[..count]);
        self.left.advance(count);
        self.at += count as u64;
        *buffer = rest;
    }
}

/// This many bytes of a stream, in the parts in which they come; fewer at its end. Each part may be as late as a source may be
/// silent.
async fn gather(mut stream: Stream, wanted: usize) -> Result<(Stream, Vec<Bytes>), SourceRefusal> {
    let (mut parts, mut bytes) = (Vec::new(), 0);
    while bytes < wanted {
        let next = tokio::time::timeout(SILENCE_MAX, stream.next()).await.map_err(|_| silent())?;
        let Some(part) = next.transpose()? else { break };
        bytes += part.len();
        parts.push(part);
    }
    Ok((stream, parts))
}

impl File for RemoteFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let wanted = self.meta.length.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if wanted == 0 {
            return Ok(0);
        }
        if !may_wait() {
            return Err(DiskError::WouldWait);
        }
        let mut under_way = self.under_way.lock();
        let goes_on = under_way.take().filter(|under_way| under_way.at == offset);
        let begun = goes_on.map_or_else(|| self.begin(offset), Ok);
        let filled =
            begun.and_then(|begun| self.fill(begun, &mut buffer[..wanted])).map_err(told(&self.path))?;
        *under_way = Some(filled);
        Ok(wanted)
    }

    fn append(&self, _: &[u8]) -> Result<u64, DiskError> {
        only_read(&self.path)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        let refused = only_read(&self.path);
        Box::pin(async { refused })
    }

    fn truncate(&self, _: u64) -> Result<(), DiskError> {
        only_read(&self.path)
    }

    fn length(&self) -> u64 {
        self.meta.length
    }

    fn map(&self) -> Result<Arc<dyn Mapping>, DiskError> {
        let reason = "a file of a source cannot be mapped".to_owned();
        Err(DiskError::Failed { path: self.path.clone(), reason })
    }
}
