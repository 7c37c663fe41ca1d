//! Certificates on the command line: which a process shows, whom it trusts, and what it takes without TLS.
//!
//! ```text
//!   serve, headmaster   --tls-cert and --tls-key of a node, --tls-authority
//!   every other command --tls-authority, and a secret: --secret-file or TONTINE_SECRET
//! ```
//!
//! Must never: take a secret from the command line, which everybody on the machine sees, or send one without TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use model::WallMillis;
use node::access::Certificate;
use protocol::report::TlsStatus;
use runtime::network::stream::{Handshakes, Safety};
use runtime::network::tcp::{Dialing, TcpNetwork};
use runtime::network::tls::{Tls, TlsFiles};
use runtime::secret::Secret;

use crate::failure::CliError;

/// The variable that holds a user's secret.
pub(crate) const SECRET_VARIABLE: &str = "TONTINE_SECRET";

/// What a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsMode {
    /// Connections with TLS and without, so that a running cluster can be turned over.
    Accept,
    /// Connections with TLS only; others call the node with TLS from then on.
    Require,
}

/// The certificate by which a process proves that it is a node.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Certificates")]
pub struct CertificateArguments {
    /// The node's certificate, in PEM: `tontine cert node` makes one. It is read again when the file changes.
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate of --tls-cert, in PEM.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

impl CertificateArguments {
    /// The certificate, read, with the authority's; `None` without any.
    ///
    /// # Errors
    /// When one of the three is missing, or a file cannot be used.
    pub(crate) fn read(&self, authority: Option<&Path>) -> Result<Option<Arc<Tls>>, CliError> {
        match (&self.tls_cert, &self.tls_key, authority) {
            // An authority alone is of use to the commands that call nodes.
            (None, None, _) => Ok(None),
            (Some(certificate), Some(key), Some(authority)) => {
                let own = Some((certificate.clone(), key.clone()));
                read(TlsFiles { authority: authority.to_owned(), own }).map(Some)
            }
            _ => Err(CliError::Usage(
                "--tls-cert, --tls-key and --tls-authority go together: a node shows its certificate, and checks those of \
                 the others"
                    .to_owned(),
            )),
        }
    }

    /// As words of another command line.
    pub(crate) fn as_arguments(&self, authority: Option<&Path>) -> Vec<String> {
        let words = [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key)];
        let own = words.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)));
        let all = own.chain(authority.map(|path| ("--tls-authority", path)));
        all.map(|(option, path)| format!("{option}={}", path.display())).collect()
    }
}

/// Refuses a certificate that the other nodes would not take where they call this node.
///
/// # Errors
/// With what is wrong, and what helps.
pub(crate) fn must_hold(tls: Option<&Arc<Tls>>, address: &str) -> Result<(), CliError> {
    let Some(tls) = tls else { return Ok(()) };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    tls.must_hold_for(address).map_err(|error| {
        CliError::Other(format!(
            "{error}; give the authority that made it with --tls-authority, or make a new one: {} cert node AUTHORITY NAME \
             {host} --renew",
            crate::output::program()
        ))
    })
}

/// What a node says of its certificate.
#[derive(Debug)]
pub(crate) struct ShownCertificate {
    pub(crate) tls: Arc<Tls>,
    pub(crate) mode: Option<TlsMode>,
}

impl Certificate for ShownCertificate {
    fn status(&self) -> TlsStatus {
        let since_1970 = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let millis = |at| WallMillis(u64::try_from(since_1970(at).as_millis()).unwrap_or(u64::MAX));
        let plain_accepted = self.mode != Some(TlsMode::Require);
        TlsStatus { certificate_expires_ms: self.tls.expires().map(millis), plain_accepted }
    }
}

fn read(files: TlsFiles) -> Result<Arc<Tls>, CliError> {
    Tls::read(files).map_err(|error| CliError::Other(error.to_string()))
}

/// How a node or a headmaster opens links: with TLS where the cluster document says so.
pub(crate) fn network_of_node(tls: Option<&Arc<Tls>>) -> TcpNetwork {
    let dialing = tls.map_or(Dialing::Plain, |tls| Dialing::AsAddressed(shared(tls)));
    TcpNetwork::dialing(dialing)
}

/// How a command opens links: always with TLS, once it names an authority.
pub(crate) fn network_of_client(authority: Option<&Path>) -> Result<TcpNetwork, CliError> {
    let Some(authority) = authority else { return Ok(TcpNetwork::new()) };
    let tls = read(TlsFiles { authority: authority.to_owned(), own: None })?;
    Ok(TcpNetwork::dialing(Dialing::Tls(shared(&tls))))
}

fn shared(tls: &Arc<Tls>) -> Arc<dyn Handshakes> {
    tls.clone()
}

/// How a node listens.
///
/// # Errors
/// When TLS is wanted without a certificate, or the other way round.
pub(crate) fn safety(mode: Option<TlsMode>, tls: Option<&Arc<Tls>>) -> Result<Safety, CliError> {
    match (mode, tls) {
        (None, None) => Ok(Safety::Plain),
        (Some(TlsMode::Accept), Some(tls)) => Ok(Safety::Accept(shared(tls))),
        (Some(TlsMode::Require), Some(tls)) => Ok(Safety::Require(shared(tls))),
        (Some(_), None) => Err(CliError::Usage(
            "--tls needs a certificate: give --tls-cert, --tls-key and --tls-authority".to_owned(),
        )),
        (None, Some(_)) => Err(CliError::Usage(
            "a certificate needs --tls accept, to take connections with TLS and without, or --tls require"
                .to_owned(),
        )),
    }
}

/// The user's secret, from a file or from the environment.
///
/// # Errors
/// When it is none, or could only be sent without TLS.
pub(crate) fn secret(file: Option<&Path>, authority: Option<&Path>) -> Result<Option<Secret>, CliError> {
    let (text, from) = match file {
        Some(path) => {
            let what = format!("cannot read the secret in {}", path.display());
            (std::fs::read_to_string(path).map_err(CliError::io(what))?, path.display().to_string())
        }
        None => match std::env::var(SECRET_VARIABLE) {
            Ok(text) if !text.is_empty() => (text, SECRET_VARIABLE.to_owned()),
            _ => return Ok(None),
        },
    };
    let secret = Secret::parse(&text).map_err(|error| CliError::Usage(format!("{from}: {error}")))?;
    if authority.is_none() {
        return Err(CliError::Usage(format!(
            "the secret of {from} is sent over TLS only; name the certificate of the node authority with --tls-authority"
        )));
    }
    Ok(Some(secret))
}
