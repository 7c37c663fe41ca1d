//! Web servers and S3.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, HeaderMap, HeaderValue, ObjectStore,
    RetryConfig,
};
use runtime::BoxFuture;
use runtime::sources::{Scheme, SourceUrl};

use super::{Meta, Origin, Refusal, Stream};

/// The value of the header `Authorization` for web servers.
const HTTP_AUTHORIZATION: &str = "TONTINE_HTTP_AUTHORIZATION";
/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A request is repeated in place so often and so long; after that whoever asked says why it waits.
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
}

/// Prepares the way to a URL; nothing is asked yet.
pub(super) fn open(url: &SourceUrl) -> Result<Objects, String> {
    let retry =
        RetryConfig { backoff: BackoffConfig::default(), max_retries: RETRIES_MAX, retry_timeout: RETRY_MAX };
    // A stream lasts as long as its reader takes; what a source may be silent is counted beside it.
    let mut options = ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT_MAX);
    let failed = |error: Error| format!("{url} cannot be read: {}", reason(&error));
    if url.scheme() == Scheme::S3 {
        let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|allowed| allowed == "true");
        options = options.with_allow_http(allow_http);
        let builder = AmazonS3Builder::from_env().with_bucket_name(url.authority());
        let store = builder.with_retry(retry).with_client_options(options).build().map_err(failed)?;
        return Ok(Objects {
            store: Arc::new(store),
            prefix: url.path().trim_start_matches('/').to_owned(),
            scheme: url.scheme(),
        });
    }
    options = options.with_allow_http(url.scheme() == Scheme::Http);
    if let Ok(authorization) = std::env::var(HTTP_AUTHORIZATION) {
        let refused =
            |_| format!("{HTTP_AUTHORIZATION} holds what no header may hold; set it to SCHEME CREDENTIALS");
        let mut value = HeaderValue::from_str(&authorization).map_err(refused)?;
        value.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert("authorization", value);
        options = options.with_default_headers(headers);
    }
    let builder = HttpBuilder::new().with_url(url.to_string()).with_retry(retry).with_client_options(options);
    Ok(Objects {
        store: Arc::new(builder.build().map_err(failed)?),
        prefix: String::new(),
        scheme: url.scheme(),
    })
}

impl Objects {
    fn path(&self, path: &str) -> Result<Path, Refusal> {
        let whole = if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) };
        Path::parse(whole).map_err(|error| Refusal::Failed(error.to_string()))
    }
}

impl Origin for Objects {
    fn stat(&self, path: String) -> BoxFuture<'static, Result<Meta, Refusal>> {
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
    ) -> BoxFuture<'static, Result<Stream, Refusal>> {
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

/// What an error says, without what a server said in its body: that repeats whose key signed what.
fn refusal(error: &Error, scheme: Scheme) -> Refusal {
    match error {
        Error::NotFound { .. } => Refusal::NotFound,
        Error::Precondition { .. } => Refusal::Failed("it changed while it was read".to_owned()),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            let variables = match scheme {
                Scheme::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                _ => HTTP_AUTHORIZATION,
            };
            Refusal::Failed(format!(
                "permission denied; set {variables} in the environment of this node, or let it read there"
            ))
        }
        error => Refusal::Failed(reason(error)),
    }
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
