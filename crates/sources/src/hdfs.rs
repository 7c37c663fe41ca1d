//! Hadoop's file system. Who reads, and how a name service is found, says the environment: `HADOOP_USER_NAME`,
//! `HADOOP_CONF_DIR`, Kerberos' own.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use futures_util::StreamExt;
use hdfs_native::{Client, ClientBuilder, HdfsError, WriteOptions};
use runtime::BoxFuture;
use runtime::outputs::BUILDING;
use runtime::sources::SourceUrl;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Receiver;

use super::upload::{Destination, Part, broken_off, timed};
use super::{Meta, Origin, SourceRefusal, Stream};

/// Rights of a directory that is made: everybody may read it, as files of that library.
const DIRECTORY_MODE: u32 = 0o755;

/// A directory there.
pub(super) struct Hdfs {
    client: Arc<Client>,
    directory: String,
}

/// Prepares the way to a URL; nothing is asked yet.
pub(super) fn open(url: &SourceUrl, handle: Handle) -> Result<Hdfs, String> {
    let builder =
        ClientBuilder::new().with_url(format!("hdfs://{}", url.authority())).with_io_runtime(handle);
    let client = builder.build().map_err(|error| format!("{url} cannot be read: {error}"))?;
    Ok(Hdfs { client: Arc::new(client), directory: url.path().to_owned() })
}

fn refusal(error: HdfsError) -> SourceRefusal {
    match error {
        HdfsError::FileNotFound(_) => SourceRefusal::NotFound,
        HdfsError::RPCError(kind, _) if kind.ends_with("FileNotFoundException") => SourceRefusal::NotFound,
        HdfsError::RPCError(kind, _) if kind.ends_with("AccessControlException") => SourceRefusal::Failed(
            "permission denied; set HADOOP_USER_NAME in the environment of this program, or give it the right"
                .to_owned(),
        ),
        // What follows is a trace of the server.
        HdfsError::RPCError(kind, text) => {
            SourceRefusal::Failed(format!("{kind}: {}", text.lines().next().unwrap_or_default()))
        }
        error => SourceRefusal::Failed(error.to_string()),
    }
}

impl Origin for Hdfs {
    fn stat(&self, path: String) -> BoxFuture<'static, Result<Meta, SourceRefusal>> {
        let (client, path) = (self.client.clone(), format!("{}/{path}", self.directory));
        Box::pin(async move {
            let found = client.get_file_info(&path).await.map_err(refusal)?;
            if found.isdir {
                return Err(SourceRefusal::Failed("it is a directory".to_owned()));
            }
            let tag = Some(found.modification_time.to_string());
            Ok(Meta { length: found.length as u64, tag })
        })
    }

    fn read(
        &self,
        path: String,
        meta: Meta,
        first: u64,
        end: u64,
    ) -> BoxFuture<'static, Result<Stream, SourceRefusal>> {
        let (client, path) = (self.client.clone(), format!("{}/{path}", self.directory));
        Box::pin(async move {
            let file = client.read(&path).await.map_err(refusal)?;
            // The library ends the process's thread when it is asked beyond the end.
            if file.file_length() as u64 != meta.length {
                return Err(SourceRefusal::Failed("it changed while it was read".to_owned()));
            }
            let stream = file.read_range_stream(first as usize, (end - first) as usize);
            Ok(stream.map(|part| part.map_err(refusal)).boxed())
        })
    }
}

impl Destination for Hdfs {
    /// A file has another name until it is closed. Two that put the same never share one.
    fn put(&self, path: String, parts: Receiver<Part>) -> BoxFuture<'static, Result<(), SourceRefusal>> {
        let (client, target) = (self.client.clone(), format!("{}/{path}", self.directory));
        let name = target.rsplit('/').next().unwrap_or_default();
        // Each has its own keys, drawn anew.
        let drawn = RandomState::new().hash_one(name);
        let temporary = format!("{}/{BUILDING}/{name}-{drawn:016x}", self.directory);
        Box::pin(async move {
            let put = Box::pin(put(&client, &temporary, &target, parts)).await;
            if put.is_err() {
                // What stays goes with the directory.
                let _ = timed(client.delete(&temporary, false)).await;
            }
            put
        })
    }

    /// HDFS copies nothing by itself.
    fn take(&self, _: &SourceUrl, _: String) -> BoxFuture<'static, Result<bool, SourceRefusal>> {
        Box::pin(async { Ok(false) })
    }

    fn finish(&self) -> BoxFuture<'static, Result<(), SourceRefusal>> {
        let (client, building) = (self.client.clone(), format!("{}/{BUILDING}", self.directory));
        Box::pin(async move { timed(client.delete(&building, true)).await?.map(|_| ()).map_err(refusal) })
    }
}

async fn put(
    client: &Client,
    temporary: &str,
    target: &str,
    mut parts: Receiver<Part>,
) -> Result<(), SourceRefusal> {
    let mut file = timed(client.create(temporary, WriteOptions::default())).await?.map_err(refusal)?;
    while let Part::Bytes(bytes) = parts.recv().await.ok_or_else(broken_off)? {
        timed(Box::pin(file.write_bytes(bytes))).await?.map_err(refusal)?;
    }
    timed(Box::pin(file.close())).await?.map_err(refusal)?;
    let directory = target.rsplit_once('/').map_or("/", |(directory, _)| directory);
    timed(client.mkdirs(directory, DIRECTORY_MODE, true)).await?.map_err(refusal)?;
    timed(client.rename(temporary, target, true)).await?.map_err(refusal)
}
