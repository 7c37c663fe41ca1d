//! Web servers and S3.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, HeaderMap, HeaderValue, ObjectStore,
    ObjectStoreExt, PutPayload, RetryConfig, WriteMultipart,
};
use runtime::BoxFuture;
use runtime::sources::{Scheme, SourceUrl};
use tokio::sync::mpsc::Receiver;

use super::direct::{Direct, Redirected};
use super::upload::{Destination, Part, broken_off, timed};
use super::{Meta, Origin, SourceRefusal, Stream};

/// The value of the header `Authorization` for web servers.
const HTTP_AUTHORIZATION: &str = "TONTINE_HTTP_AUTHORIZATION";
/// Bytes that go to S3 in one request: it takes parts of 5 MiB and more, and at most 10,000 of a file.
const PART_BYTES: usize = 8 << 20;
/// Requests of one file that are under way at a time.
const PARTS_AT_ONCE: usize = 2;
/// A request is repeated in place this often and this long; after that whoever asked says why it waits.
const RETRIES_MAX: usize = 2;
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Longest reason that an error repeats.
const REASON_MAX: usize = 300;

/// A web server's directory, or a bucket's.
pub(super) struct Objects {
    store: Arc<dyn ObjectStore>,
    /// What comes before each path; empty for a web server, whose URL holds it.
    prefix: String,
    scheme: Scheme,
    /// The host, or the bucket.
    authority: String,
}

/// Prepares the way to a URL; nothing is asked yet.
pub(super) fn open(url: &SourceUrl) -> Result<Objects, String> {
    let retry =
        RetryConfig { backoff: BackoffConfig::default(), max_retries: RETRIES_MAX, retry_timeout: RETRY_MAX };
    let mut options = ClientOptions::new();
    let failed = |error: Error| format!("{url} cannot be read: {}", reason(&error));
    if url.scheme() == Scheme::S3 {
        let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|allowed| allowed == "true");
        options = options.with_allow_http(allow_http);
        let builder = AmazonS3Builder::from_env().with_bucket_name(url.authority());
        let builder = builder.with_http_connector(Direct::default());
        let store = builder.with_retry(retry).with_client_options(options).build().map_err(failed)?;
        return Ok(Objects {
            store: Arc::new(store),
            prefix: url.path().trim_start_matches('/').to_owned(),
            scheme: url.scheme(),
            authority: url.authority().to_owned(),
        });
    }
    options = options.with_allow_http(url.scheme() == Scheme::Http);
    let mut headers = HeaderMap::new();
    if let Ok(authorization) = std::env::var(HTTP_AUTHORIZATION) {
        let refused =
            |_| format!("{HTTP_AUTHORIZATION} holds what no header may hold; set it to SCHEME CREDENTIALS");
        let mut value = HeaderValue::from_str(&authorization).map_err(refused)?;
        value.set_sensitive(true);
        headers.insert("authorization", value);
    }
    let builder = HttpBuilder::new().with_url(url.to_string()).with_http_connector(Direct::new(headers));
    let builder = builder.with_retry(retry).with_client_options(options);
    Ok(Objects {
        store: Arc::new(builder.build().map_err(failed)?),
        prefix: String::new(),
        scheme: url.scheme(),
        authority: url.authority().to_owned(),
    })
}

impl Objects {
    fn path(&self, path: &str) -> Result<Path, SourceRefusal> {
        within(&self.prefix, path)
    }
}

/// A path below another one.
fn within(prefix: &str, path: &str) -> Result<Path, SourceRefusal> {
    let whole = if prefix.is_empty() { path.to_owned() } else { format!("{prefix}/{path}") };
    Path::parse(whole).map_err(|error| SourceRefusal::Failed(error.to_string()))
}

impl Origin for Objects {
    fn stat(&self, path: String) -> BoxFuture<'static, Result<Meta, SourceRefusal>> {
        let (store, path, scheme) = (self.store.clone(), self.path(&path), self.scheme);
        Box::pin(async move {
            let path = path?;
            let options = GetOptions { head: true, ..GetOptions::default() };
            let found = store.get_opts(&path, options).await.map_err(|error| refusal(&error, scheme))?;
            Ok(Meta { length: found.meta.size, tag: found.meta.e_tag })
        })
    }

    fn read(
        &self,
        path: String,
        meta: Meta,
        first: u64,
        end: u64,
    ) -> BoxFuture<'static, Result<Stream, SourceRefusal>> {
        let (store, path, scheme) = (self.store.clone(), self.path(&path), self.scheme);
        Box::pin(async move {
            let path = path?;
            let options = GetOptions {
                range: Some(GetRange::Bounded(first..end)),
                // A weak tag never matches here.
                if_match: meta.tag.filter(|tag| !tag.starts_with("W/")),
                ..GetOptions::default()
            };
            let got = store.get_opts(&path, options).await.map_err(|error| refusal(&error, scheme))?;
            let stream = got.into_stream();
            Ok(stream.map(move |part| part.map_err(|error| refusal(&error, scheme))).boxed())
        })
    }
}

impl Destination for Objects {
    /// A file has its name when its last request has been answered; a small one is one request.
    fn put(&self, path: String, parts: Receiver<Part>) -> BoxFuture<'static, Result<(), SourceRefusal>> {
        let (store, path, scheme) = (self.store.clone(), self.path(&path), self.scheme);
        Box::pin(async move { put(&*store, &path?, parts, scheme).await })
    }

    /// A copy within the bucket.
    fn take(&self, from: &SourceUrl, path: String) -> BoxFuture<'static, Result<bool, SourceRefusal>> {
        let (store, scheme) = (self.store.clone(), self.scheme);
        let is_near = from.scheme() == Scheme::S3 && from.authority() == self.authority;
        let (from, to) = (within(from.path().trim_start_matches('/'), &path), self.path(&path));
        Box::pin(async move {
            let (true, from, to) = (is_near, from?, to?) else { return Ok(false) };
            timed(store.copy(&from, &to)).await?.map(|()| true).map_err(|error| refusal(&error, scheme))
        })
    }

    fn finish(&self) -> BoxFuture<'static, Result<(), SourceRefusal>> {
        Box::pin(async { Ok(()) })
    }
}

async fn put(
    store: &dyn ObjectStore,
    path: &Path,
    mut parts: Receiver<Part>,
    scheme: Scheme,
) -> Result<(), SourceRefusal> {
    let refused = |error: Error| refusal(&error, scheme);
    let mut first: Vec<Bytes> = Vec::new();
    while first.iter().map(Bytes::len).sum::<usize>() < PART_BYTES {
        match parts.recv().await.ok_or_else(broken_off)? {
            Part::Bytes(bytes) => first.push(bytes),
            Part::Whole => {
                let payload = PutPayload::from_iter(first);
                return timed(store.put(path, payload)).await?.map(|_| ()).map_err(refused);
            }
        }
    }
    let upload = timed(store.put_multipart(path)).await?.map_err(refused)?;
    let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
    first.into_iter().for_each(|bytes| upload.put(bytes));
    match feed(&mut upload, parts).await {
        Ok(()) => timed(upload.finish()).await?.map(|_| ()).map_err(refused),
        Err(stopped) => {
            // What cannot be taken back is for the rules of the bucket (docs/operating/sources.md).
            let _ = timed(upload.abort()).await;
            Err(match stopped {
                Stopped::Refused(error) => refused(error),
                Stopped::Broken(refusal) => refusal,
            })
        }
    }
}

/// Why parts are not all sent.
enum Stopped {
    Refused(Error),
    Broken(SourceRefusal),
}

async fn feed(upload: &mut WriteMultipart, mut parts: Receiver<Part>) -> Result<(), Stopped> {
    loop {
        match parts.recv().await.ok_or_else(|| Stopped::Broken(broken_off()))? {
            Part::Bytes(bytes) => {
                let room = timed(upload.wait_for_capacity(PARTS_AT_ONCE)).await.map_err(Stopped::Broken)?;
                room.map_err(Stopped::Refused)?;
                upload.put(bytes);
            }
            Part::Whole => return Ok(()),
        }
    }
}

/// What an error says, without what a server said in its body: that repeats whose key signed what.
fn refusal(error: &Error, scheme: Scheme) -> SourceRefusal {
    match error {
        Error::NotFound { .. } => SourceRefusal::NotFound,
        Error::Precondition { .. } => SourceRefusal::Failed("it changed while it was read".to_owned()),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            let variables = match scheme {
                Scheme::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                _ => HTTP_AUTHORIZATION,
            };
            SourceRefusal::Failed(format!(
                "permission denied; set {variables} in the environment of this program, or give it the right"
            ))
        }
        Error::NotSupported { .. } if scheme != Scheme::S3 => SourceRefusal::Failed(
            "the web server does not answer requests for a range of a file; serve the directory with one that does, \
             such as nginx"
                .to_owned(),
        ),
        error => SourceRefusal::Failed(redirected(error).unwrap_or_else(|| reason(error))),
    }
}

/// That a server redirects, if it does.
fn redirected(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(deeper) = cause {
        if let Some(redirected) = deeper.downcast_ref::<Redirected>() {
            return Some(redirected.to_string());
        }
        cause = deeper.source();
    }
    None
}

/// The causes of an error, up to where the body of an answer begins.
fn reason(error: &Error) -> String {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let text = deeper.to_string();
        if !reason.contains(&text) {
            reason = format!("{reason}: {text}");
        }
        cause = deeper.source();
    }
    let body = reason.find(['<', '\n']).unwrap_or(reason.len());
    reason[..body].trim_end_matches([':', ' ']).chars().take(REASON_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_repeats_nothing_of_a_body() {
        let body = "Server returned non-2xx status code: 403 Forbidden: <Error><AWSAccessKeyId>hunter2</AWSAccessKeyId>";
        let error = Error::Generic { store: "S3", source: body.into() };
        let told = reason(&error);
        assert!(told.contains("403 Forbidden") && !told.contains("hunter2"), "{told}");
    }
}
