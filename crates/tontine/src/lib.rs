//! Tontine for applications: the one crate that a program names.
//!
//! [`connect`] takes the addresses of some nodes and gives a [`Client`]; [`Client::store`] gives a [`StoreHandle`],
//! which puts, gets and deletes. Everything that these take or return is here under one name, so that no program
//! depends on a crate of our inside. `docs/guides/rust.md` has recipes, which a test compiles and runs.
//!
//! The library runs on `tokio`: call it inside a runtime whose drivers are enabled, as `#[tokio::main]` and
//! `Builder::enable_all` do. Either flavour will do, and a clone of a client may be used on any thread of it. A client
//! ends with the runtime in which it was connected. It also has its own background thread.
//!
//! **Architecture Invariant:** nothing is decided here; this crate gives names to what `client` does.

use std::path::Path;
use std::sync::Arc;

use runtime::network::tcp::{Dialing, TcpNetwork};
use runtime::network::tls::{Tls, TlsFiles};
use runtime::secret::Secret;

pub use bytes::Bytes;
pub use client::{
    Client, ClientError, ClientOptions, DeleteOptions, Found, Merge, PutOptions, StoreHandle, report,
};
pub use model::{
    Cluster, Consistency, Context, Node, NodeId, PartitionId, Resolver, Store, Version, VersionSet,
    WallMillis,
};
pub use wire::ErrorCode;
pub use wire::messages::{Condition, RequestOptions, Written};

/// Connects to a cluster, of which `addresses` (`host:port` of the native protocol) name some nodes. One that answers is
/// enough: the client learns the others from it, and goes on without it.
///
/// # Errors
/// [`ClientError::NotConnected`] when none of them answers as a node does.
pub async fn connect<A: AsRef<str>>(addresses: &[A]) -> Result<Client, ClientError> {
    connect_with(addresses, ClientOptions::default()).await
}

/// As [`connect`], with settings.
///
/// # Errors
/// As [`connect`].
pub async fn connect_with<A: AsRef<str>>(
    addresses: &[A],
    options: ClientOptions,
) -> Result<Client, ClientError> {
    let ports = runtime::Ports::os().map_err(|error| ClientError::NotConnected {
        detail: format!("the client's background thread cannot be started: {error}"),
    })?;
    Client::connect(addresses, ports, options).await
}

/// Connects to a closed cluster. `authority` is the file with the certificate of its node authority, and `secret` the text
/// of a user's secret, best read from a file that only the program reads. Every node is called with TLS.
///
/// # Errors
/// [`ClientError::NotConnected`] when the file or the secret cannot be used, or as [`connect`].
pub async fn connect_closed<A: AsRef<str>>(
    addresses: &[A],
    authority: &Path,
    secret: &str,
    options: ClientOptions,
) -> Result<Client, ClientError> {
    let refused = |error: &dyn std::fmt::Display| ClientError::NotConnected { detail: error.to_string() };
    let secret = Some(Secret::parse(secret).map_err(|error| refused(&error))?);
    let files = TlsFiles { authority: authority.to_owned(), own: None };
    let tls = Tls::read(files).map_err(|error| refused(&error))?;
    let mut ports = runtime::Ports::os().map_err(|error| refused(&error))?;
    ports.network = Arc::new(TcpNetwork::dialing(Dialing::Tls(tls)));
    Client::connect(addresses, ports, ClientOptions { secret, ..options }).await
}
