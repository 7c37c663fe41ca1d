//! What every command knows: where the cluster is, which store is meant, how answers are shown.
//!
//! **Architecture Invariant:** commands depend on this module, and this module on no command.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientOptions, StoreHandle};
use runtime::Ports;
use runtime::secret::Secret;

use crate::durations;
use model::{ArtifactNumber, Cluster, Store};

use crate::failure::CliError;
use crate::text::Format;
use crate::tls_settings;

/// What every command knows.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Common options")]
pub struct CliContext {
    /// Native addresses of one or more nodes of the cluster; one that answers is enough.
    #[arg(
        long,
        global = true,
        env = "TONTINE_CONNECT",
        value_delimiter = ',',
        default_value = "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403",
        value_name = "HOST:PORT,…"
    )]
    pub connect: Vec<String>,
    /// Whether addresses were given, and not only guessed.
    #[arg(skip)]
    pub connect_named: bool,
    /// Which store to use; `tontine status` lists the stores.
    #[arg(
        long,
        short = 's',
        global = true,
        env = "TONTINE_STORE",
        default_value = "default",
        value_name = "NAME"
    )]
    pub store: String,
    /// Whether a store was named: some commands are about all of them otherwise.
    #[arg(skip)]
    pub store_named: bool,
    /// Output format. With `json`, a command prints one JSON document: its answer on standard output, or its error on
    /// standard error.
    #[arg(long, short = 'o', global = true, value_enum, default_value = "text", value_name = "FORMAT")]
    pub output: Format,
    /// Same as `-o json`.
    #[arg(long, global = true)]
    pub json: bool,
    /// Time limit for each request, 1ms to 1h.
    #[arg(
        long,
        global = true,
        env = "TONTINE_DEADLINE",
        default_value = "5s",
        value_parser = durations::within(Duration::from_millis(1), Duration::from_secs(3600)),
        value_name = "DURATION"
    )]
    pub deadline: Duration,
    /// The certificate of the cluster's node authority: nodes are called with TLS, and must show a certificate of it.
    #[arg(long, global = true, env = "TONTINE_TLS_AUTHORITY", value_name = "FILE")]
    pub tls_authority: Option<PathBuf>,
    /// A file with your secret, for a closed cluster. TONTINE_SECRET holds the secret itself, in place of a file.
    #[arg(long, global = true, env = "TONTINE_SECRET_FILE", value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

impl CliContext {
    /// How answers are shown.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// A client of the cluster.
    pub(crate) async fn client(&self) -> Result<Client, CliError> {
        if let Some(odd) = self.connect.iter().find(|address| !address.contains(':')) {
            return Err(CliError::Usage(format!(
                "--connect takes addresses such as 127.0.0.1:7401, separated by commas; {odd:?} has no port"
            )));
        }
        let secret = tls_settings::secret(self.secret_file.as_deref(), self.tls_authority.as_deref())?;
        self.client_of(&self.connect, secret).await
    }

    /// A client that connects to one of these addresses with this secret.
    pub(crate) async fn client_of(
        &self,
        addresses: &[String],
        secret: Option<Secret>,
    ) -> Result<Client, CliError> {
        let mut ports = Ports::os().map_err(CliError::io("cannot start the background thread"))?;
        ports.network = Arc::new(tls_settings::network_of_client(self.tls_authority.as_deref())?);
        let (name, deadline) = ("tontine-cli".to_owned(), self.deadline);
        let options = ClientOptions { name, deadline, secret, ..ClientOptions::default() };
        let connected = Client::connect(addresses, ports, options).await;
        connected.map_err(|error| CliError::NoAnswer { error, named: self.connect_named })
    }
}

/// Runs a command's future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::io("cannot start the event loop"))?
        .block_on(future)
}

/// A store to walk: as it is, or, where it is read-only, one artifact of it from the first page to the last. That is the one
/// of this number, or the one that is served now.
///
/// # Errors
/// When there is no such store or artifact, or it serves none yet.
pub(crate) fn walkable(
    client: &Client,
    store: &str,
    artifact: Option<u64>,
) -> Result<(StoreHandle, Store), CliError> {
    let handle = client.store(store)?;
    let cluster = client.cluster();
    let Some(listed) = cluster.read_only(store) else {
        let handle = match artifact {
            Some(number) => handle.of_artifact(ArtifactNumber(number))?,
            None => handle,
        };
        return Ok((handle, writable(&cluster, store)?.clone()));
    };
    let number = artifact.map(ArtifactNumber).or_else(|| listed.served().map(|served| served.number));
    let number = number.ok_or_else(|| {
        CliError::Other(format!(
            "store {store} serves no artifact yet, so it has no keys; to see what is on its way, run `{} artifact list \
             {store}`",
            crate::output::program()
        ))
    })?;
    Ok((handle.of_artifact(number)?, listed.as_store()))
}

/// The store of this name, which takes writes.
///
/// # Errors
/// When it is a read-only store, or there is none.
pub(crate) fn writable<'a>(cluster: &'a Cluster, store: &str) -> Result<&'a Store, CliError> {
    cluster.store(store).ok_or_else(|| {
        CliError::Other(format!(
            "store {store} is read-only: it takes no writes; to give it other contents, run `{} artifact build` and \
             `artifact push`",
            crate::output::program()
        ))
    })
}
