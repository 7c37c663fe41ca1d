//! HTTP that goes where it was sent: an answer that points elsewhere is an error.
//!
//! What a node may read is its operator's list of URLs. A server on it that redirects would add any address to that list,
//! inside the node's network, too.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpService,
};
use object_store::{ClientOptions, Error, HeaderMap, Result};
use reqwest::Url;
use reqwest::redirect::Policy;

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Makes clients that follow no redirects. A stream lasts as long as its reader takes, so they have no limit of time;
/// what a server may be silent is counted by whoever waits.
#[derive(Debug, Default)]
pub(super) struct Direct {
    /// Sent with each request.
    headers: HeaderMap,
}

impl Direct {
    pub(super) fn new(headers: HeaderMap) -> Direct {
        Direct { headers }
    }
}

impl HttpConnector for Direct {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let is_plain = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|may| may == "true");
        let client = reqwest::Client::builder()
            .user_agent(concat!("tontine/", env!("CARGO_PKG_VERSION")))
            .default_headers(self.headers.clone())
            .connect_timeout(CONNECT_MAX)
            .https_only(!is_plain)
            .redirect(Policy::none())
            .build();
        let client = client.map_err(|error| Error::Generic { store: "HTTP", source: Box::new(error) })?;
        Ok(HttpClient::new(Straight(client)))
    }
}

#[derive(Debug)]
struct Straight(reqwest::Client);

#[async_trait]
impl HttpService for Straight {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = HttpService::call(&self.0, request).await?;
        let location = answer.headers().get("location").filter(|_| answer.status().is_redirection());
        match location {
            None => Ok(answer),
            Some(location) => Err(HttpError::new(
                HttpErrorKind::Unknown,
                Redirected::to(location.to_str().unwrap_or_default()),
            )),
        }
    }
}

/// A server answered that what was asked lies elsewhere.
#[derive(Debug)]
pub(super) struct Redirected {
    /// Scheme, host and port; a path may hold a secret. None when they are the server's own.
    place: Option<String>,
}

impl Redirected {
    fn to(location: &str) -> Redirected {
        let place = Url::parse(location).ok().map(|url| url.origin().ascii_serialization());
        Redirected { place }
    }
}

impl fmt::Display for Redirected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.as_deref().unwrap_or("another path");
        write!(
            f,
            "the server redirects to {place}, and redirects are not followed; name the URL where the artifact lies"
        )
    }
}

impl std::error::Error for Redirected {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_host_and_nothing_that_may_be_secret() {
        for (location, place) in [
            ("https://me:hunter2@tables.example/hunter2?signature=hunter2", "https://tables.example,"),
            ("http://127.0.0.1:8080/hunter2", "http://127.0.0.1:8080,"),
            ("/hunter2", "another path,"),
        ] {
            let told = Redirected::to(location).to_string();
            assert!(told.contains(&format!("redirects to {place}")) && !told.contains("hunter2"), "{told}");
        }
    }
}
