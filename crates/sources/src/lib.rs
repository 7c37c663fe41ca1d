//! Artifacts behind a network: web servers, S3, HDFS.
//!
//! ```text
//! Sources::open(URL) → RemoteDisk → RemoteFile ─ read_at ─▶ a stream that goes on where the last read ended
//! output(URL) → RemoteOutput ─ put ─▶ parts, one after the other ─▶ the name, when all are there
//! ```
//!
//! The port reads as a disk does, on threads that may wait; the libraries are asynchronous and run on one thread of their
//! own here. With the feature `remote` off there is nothing in this crate, and nothing to compile for it.
//!
//! Must never: put a credential into an error. Credentials come from the environment of the process.
#![cfg(feature = "remote")]

mod direct;
mod hdfs;
mod object;
mod remote;
mod upload;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use runtime::outputs::writable;
use runtime::sources::{OsSources, Scheme, SourceUrl};
use runtime::{BoxFuture, Disk, Output, Sources};

use self::remote::{Executor, RemoteDisk};
use self::upload::{Destination, RemoteOutput};

/// Why a source does not give what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SourceRefusal {
    /// It has no such file.
    NotFound,
    /// Something else, for people.
    Failed(String),
}

/// What a source says of a file.
#[derive(Clone, Debug)]
struct Meta {
    length: u64,
    /// What changes when the file does, if the source says such a thing.
    tag: Option<String>,
}

/// The bytes of a range, as they come.
type Stream = BoxStream<'static, Result<Bytes, SourceRefusal>>;

/// One kind of source.
trait Origin: Send + Sync {
    /// How long a file is.
    fn stat(&self, path: String) -> BoxFuture<'static, Result<Meta, SourceRefusal>>;

    /// The bytes from `first` up to `end`, of the file that `meta` was said of.
    fn read(
        &self,
        path: String,
        meta: Meta,
        first: u64,
        end: u64,
    ) -> BoxFuture<'static, Result<Stream, SourceRefusal>>;
}

/// Every kind of source: directories of this machine, and what lies behind a network.
pub struct AllSources {
    executor: Arc<Executor>,
}

impl AllSources {
    /// Starts the thread that the libraries run on.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn new() -> Result<AllSources, String> {
        // Several libraries may bring one; whoever comes first decides, and all are sound.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(AllSources { executor: Arc::new(Executor::start()?) })
    }

    /// The place that a URL names, for files to be put in; nothing is asked yet.
    ///
    /// # Errors
    /// With what is wrong, for people: what is only read, a directory (of those knows the port), or settings that cannot be.
    pub fn output(&self, url: &SourceUrl) -> Result<Arc<dyn Output>, String> {
        writable(url)?;
        let destination: Arc<dyn Destination> = match url.scheme() {
            Scheme::S3 => Arc::new(object::open(url)?),
            Scheme::Hdfs => Arc::new(hdfs::open(url, self.executor.handle())?),
            _ => return Err(format!("{url} is a directory of this machine")),
        };
        Ok(Arc::new(RemoteOutput::new(destination, self.executor.clone())))
    }
}

impl fmt::Debug for AllSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AllSources")
    }
}

impl Sources for AllSources {
    fn open(&self, url: &str) -> Result<Arc<dyn Disk>, String> {
        let parsed = SourceUrl::parse(url)?;
        let origin: Arc<dyn Origin> = match parsed.scheme() {
            Scheme::File => return OsSources.open(url),
            Scheme::Http | Scheme::Https | Scheme::S3 => Arc::new(object::open(&parsed)?),
            Scheme::Hdfs => Arc::new(hdfs::open(&parsed, self.executor.handle())?),
        };
        Ok(Arc::new(RemoteDisk::new(origin, self.executor.clone())))
    }
}
