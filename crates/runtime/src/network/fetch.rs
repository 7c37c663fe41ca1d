//! What a foreign server says once: a few bytes are sent to it, and its words are read until it ends them.
//!
//! It is for daemons that are asked for their figures, such as those of Ganglia and Prometheus. They speak neither frames
//! nor the native protocol, and a connection to them is used once.
//!
//! Must never: wait longer, or keep more, than the caller allows.

use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::NetworkError;
use super::acceptor::unreachable;
use crate::BoxFuture;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;

/// One question to a foreign server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Where it listens, as `host:port`.
    pub address: String,
    /// What is said to it first; may be empty.
    pub words: Vec<u8>,
    /// The most bytes that it may answer.
    pub bytes_max: usize,
    /// How long all of it may take, the look-up of the name included.
    pub time_max: Duration,
}

/// Why a server gave no whole answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum FetchError {
    /// There is no connection.
    NotConnected(NetworkError),
    /// The answer was not whole in time.
    Slow {
        /// The server.
        address: String,
        /// How long it was given.
        time_max: Duration,
    },
    /// The answer is longer than the limit. What came of it is dropped.
    Long {
        /// The server.
        address: String,
        /// The limit.
        bytes_max: usize,
    },
    /// The connection broke.
    Broken {
        /// The server.
        address: String,
        /// What the operating system said.
        reason: String,
    },
}

impl fmt::Display for FetchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::NotConnected(error) => error.fmt(formatter),
            FetchError::Slow { address, time_max } => {
                write!(formatter, "{address} did not answer within {} s", time_max.as_secs_f64())
            }
            FetchError::Long { address, bytes_max } => {
                write!(formatter, "the answer of {address} is longer than {bytes_max} bytes")
            }
            FetchError::Broken { address, reason } => {
                write!(formatter, "the connection to {address} broke: {reason}")
            }
        }
    }
}

impl std::error::Error for FetchError {}

/// Asks foreign servers.
pub trait Fetcher: Send + Sync {
    /// Asks one, and returns all that it said until it closed the connection. Cancel safe.
    ///
    /// # Errors
    /// [`FetchError`]; of an answer that is not whole, nothing is returned.
    fn fetch(&self, question: Question) -> BoxFuture<'static, Result<Vec<u8>, FetchError>>;
}

/// Asks by TCP, without TLS.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpFetcher;

impl Fetcher for TcpFetcher {
    fn fetch(&self, question: Question) -> BoxFuture<'static, Result<Vec<u8>, FetchError>> {
        Box::pin(async move {
            match tokio::time::timeout(question.time_max, answer(&question)).await {
                Ok(answered) => answered,
                Err(_) => Err(FetchError::Slow { address: question.address, time_max: question.time_max }),
            }
        })
    }
}

async fn answer(question: &Question) -> Result<Vec<u8>, FetchError> {
    let address = &question.address;
    let broken =
        |error: std::io::Error| FetchError::Broken { address: address.clone(), reason: error.to_string() };
    let mut stream = TcpStream::connect(address)
        .await
        .map_err(|error| FetchError::NotConnected(unreachable(address, &error)))?;
    stream.write_all(&question.words).await.map_err(broken)?;
    let mut all = Vec::new();
    let mut part = vec![0; READ_BYTES];
    loop {
        let count = stream.read(&mut part).await.map_err(broken)?;
        if count == 0 {
            return Ok(all);
        }
        if all.len() + count > question.bytes_max {
            return Err(FetchError::Long { address: address.clone(), bytes_max: question.bytes_max });
        }
        all.extend_from_slice(&part[..count]);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Asks a server that reads five bytes, says this many and then hangs or closes.
    async fn ask(says: usize, hangs: bool) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 5];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(&asked, b"hello");
            // A peer that has heard enough closes the connection.
            let _ = stream.write_all(&vec![b'x'; says]).await;
            if hangs {
                std::future::pending::<()>().await;
            }
        });
        let (words, time_max) = (b"hello".to_vec(), Duration::from_millis(500));
        let answer = TcpFetcher.fetch(Question { address, words, bytes_max: 200_000, time_max }).await;
        server.abort();
        answer.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn an_answer_is_whole_or_an_error() {
        assert_eq!(ask(200_000, false).await.unwrap().len(), 200_000);
        assert_eq!(ask(0, false).await.unwrap().len(), 0);
        assert!(ask(200_001, false).await.is_err_and(|why| why.contains("is longer than 200000 bytes")));
        assert!(ask(10, true).await.is_err_and(|why| why.contains("did not answer within 0.5 s")));
    }

    #[tokio::test]
    async fn a_port_at_which_nobody_listens_refuses() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let question =
            Question { address: free, words: Vec::new(), bytes_max: 1, time_max: Duration::from_secs(5) };
        let refused = TcpFetcher.fetch(question).await;
        let is_refused = matches!(refused, Err(FetchError::NotConnected(NetworkError::Refused { .. })));
        assert!(is_refused, "{refused:?}");
    }
}
