//! Certificates of nodes, as connections need them: read from files, and read again when these change.
//!
//! One file names the *node authority*. Whoever holds a certificate of it is a node; a certificate of any other authority
//! is refused. So the authority of a company, which gives certificates to everyone, must not be the node authority.
//!
//! What others would refuse of this process's own certificate, a node refuses itself: when it starts, and when files change.
//!
//! Files are looked at when a connection is opened, once a second at most. What cannot be read, as while a file is being
//! written, is told once in the log, and the last good certificates stay in use. Connections that stand keep theirs.
//!
//! **Architecture Invariant:** all encryption is *ring*'s, named here and nowhere taken from a process-wide default.

mod validity;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::NetworkError;
use super::stream::{Encrypted, Handshakes, Stream};
use crate::BoxFuture;

/// Time until files that could not be used are read again, although they are the same: they may be good only later.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// How often files are looked at, at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What HTTP may be spoken over a connection, best first.
const HTTP_PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];

/// What HTTP/2 is called in a handshake.
pub const HTTP_2: &[u8] = b"h2";

/// Where the certificates are, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the node authority; of several, while one replaces another.
    pub authority: PathBuf,
    /// The certificate of this process, the ones between it and the authority behind it, and its key. A process without
    /// them proves nothing, and can accept no connection.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Why certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    /// The file that it is about.
    pub file: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be used: {}", self.file.display(), self.reason)
    }
}

impl std::error::Error for TlsError {}

/// The certificates of a process, always as the files say.
pub struct Tls {
    files: TlsFiles,
    state: Mutex<TlsState>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

struct TlsState {
    loaded: Loaded,
    /// What the files looked like when they were read last, also when they could not be used.
    stamps: Vec<Option<Stamp>>,
    looked: Instant,
    /// When they were read last, and whether something of them could not be used.
    read: Instant,
    failed: bool,
    /// By which others call this process, once that is known.
    address: Option<String>,
}

/// By which a file that was written again is known.
type Stamp = (SystemTime, (i64, i64), u64, u64);

#[derive(Clone)]
struct Loaded {
    own: Option<Own>,
    connecting: Arc<ClientConfig>,
    accepting: Option<Accepting>,
    /// When the certificate of this process expires.
    expires: Option<SystemTime>,
}

#[derive(Clone)]
struct Accepting {
    plain: Arc<ServerConfig>,
    /// The same, which offers to speak HTTP.
    http: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// With the first file that cannot be used.
    pub fn read(files: TlsFiles) -> Result<Arc<Tls>, TlsError> {
        let stamps = files.stamps();
        let loaded = Loaded::read(&files)?;
        let now = Instant::now();
        let state = TlsState { loaded, stamps, looked: now, read: now, failed: false, address: None };
        Ok(Arc::new(Tls { files, state: Mutex::new(state) }))
    }

    /// Whether this process has a certificate, so that it can accept connections.
    pub fn has_certificate(&self) -> bool {
        self.files.own.is_some()
    }

    /// Whether other nodes will take the certificate of this process: it is of the authority, valid now, and made out for
    /// `address`. From then on, files that fail in this are not taken over.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn must_hold_for(&self, address: &str) -> Result<(), TlsError> {
        let mut state = self.state.lock();
        Loaded::read(&self.files)?.holds_for(&self.files, address)?;
        state.address = Some(address.to_owned());
        Ok(())
    }

    /// When the certificate of this process expires, as the file says now; `None` without one.
    pub fn expires(&self) -> Option<SystemTime> {
        self.newest().expires
    }

    /// How to open a connection.
    fn connecting(&self) -> Arc<ClientConfig> {
        self.newest().connecting
    }

    /// How to accept one; `None` without a certificate.
    fn accepting(&self, http: bool) -> Option<Arc<ServerConfig>> {
        let accepting = self.newest().accepting?;
        Some(if http { accepting.http } else { accepting.plain })
    }

    /// What the files hold, as far as it can be used.
    fn newest(&self) -> Loaded {
        let mut held = self.state.lock();
        let state = &mut *held;
        let since = state.looked.elapsed();
        if since >= LOOK_INTERVAL {
            let stamps = self.files.stamps();
            let is_due = state.failed && state.read.elapsed() >= RETRY_INTERVAL;
            state.looked = Instant::now();
            if is_due || stamps != state.stamps {
                (state.stamps, state.read) = (stamps, Instant::now());
                let outcome = state.loaded.again(&self.files, state.address.as_deref());
                state.failed = outcome.is_err();
                match outcome {
                    Ok(()) => tracing::info!("certificates read again"),
                    Err(error) => {
                        tracing::warn!(file = %error.file.display(), reason = error.reason,
                            "certificates not read again, the last good ones stay in use");
                    }
                }
            }
        }
        state.loaded.clone()
    }
}

impl TlsFiles {
    fn stamps(&self) -> Vec<Option<Stamp>> {
        let own = self.own.iter().flat_map(|(certificate, key)| [certificate, key]);
        std::iter::once(&self.authority).chain(own).map(|path| stamp(path)).collect()
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    // A change of its rights counts, too.
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    Some((metadata.modified().ok()?, changed, metadata.len(), metadata.ino()))
}

impl Loaded {
    fn read(files: &TlsFiles) -> Result<Loaded, TlsError> {
        Loaded::of(files, roots(&files.authority)?, Own::of(files)?)
    }

    /// Takes over what the files hold now. An authority that was withdrawn is trusted no longer, also if the certificate
    /// beside it cannot be used.
    fn again(&mut self, files: &TlsFiles, address: Option<&str>) -> Result<(), TlsError> {
        let roots = roots(&files.authority)?;
        let read = Own::of(files).and_then(|own| Loaded::of(files, roots.clone(), own)).and_then(|loaded| {
            address.map_or(Ok(()), |address| loaded.holds_for(files, address))?;
            Ok(loaded)
        });
        let (loaded, outcome) = match read {
            Ok(loaded) => (loaded, Ok(())),
            Err(error) => (Loaded::of(files, roots, self.own.clone())?, Err(error)),
        };
        *self = loaded;
        outcome
    }

    fn of(files: &TlsFiles, roots: RootCertStore, own: Option<Own>) -> Result<Loaded, TlsError> {
        let (provider, roots) = (Arc::new(ring::default_provider()), Arc::new(roots));
        let authority =
            |error: &dyn fmt::Display| TlsError { file: files.authority.clone(), reason: error.to_string() };
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| authority(&error))?
            .with_root_certificates(roots.clone());
        let connecting = match &own {
            Some(own) => client
                .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
                .map_err(|error| own.unfit(&error))?,
            None => client.with_no_client_auth(),
        };
        let expires = own.as_ref().and_then(|own| validity::expires(own.chain.first()?));
        let accepting = own.as_ref().map(|own| Accepting::of(own, &provider, roots)).transpose()?;
        Ok(Loaded { own, connecting: Arc::new(connecting), accepting, expires })
    }
}

impl Loaded {
    /// Whether a node that trusts the same authority would take this certificate at `address`, and from a node: shakes hands
    /// with itself.
    fn holds_for(&self, files: &TlsFiles, address: &str) -> Result<(), TlsError> {
        let (Some(accepting), Some((certificate, _))) = (&self.accepting, &files.own) else { return Ok(()) };
        let refused = |reason: String| {
            let reason = format!("others would refuse it at {address}: {reason}");
            TlsError { file: certificate.clone(), reason }
        };
        let broken = |error: rustls::Error| refused(error.to_string());
        let name = name_of(address).map_err(refused)?;
        let near = ClientConnection::new(self.connecting.clone(), name).map_err(broken)?;
        let far = ServerConnection::new(accepting.plain.clone()).map_err(broken)?;
        let (mut near, mut far) = (Connection::from(near), Connection::from(far));
        // Each passes the other all that it has to say, until one refuses.
        while near.is_handshaking() || far.is_handshaking() {
            pass(&mut near, &mut far).and_then(|()| pass(&mut far, &mut near)).map_err(refused)?;
        }
        Ok(())
    }
}

/// Gives the other end what this one has to say.
fn pass(from: &mut Connection, to: &mut Connection) -> Result<(), String> {
    let mut said = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut said).map_err(|error| error.to_string())?;
    }
    let mut rest = &said[..];
    while !rest.is_empty() {
        to.read_tls(&mut rest).map_err(|error| error.to_string())?;
        to.process_new_packets().map_err(|error| error.to_string())?;
    }
    Ok(())
}

impl Accepting {
    fn of(
        own: &Own,
        provider: &Arc<CryptoProvider>,
        roots: Arc<RootCertStore>,
    ) -> Result<Accepting, TlsError> {
        // Clients prove who they are by secrets; a certificate that is shown must be a node's.
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| own.refused(&error))?;
        let plain = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| own.refused(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(own.chain.clone(), own.key.clone_key())
            .map_err(|error| own.unfit(&error))?;
        let mut http = plain.clone();
        http.alpn_protocols = HTTP_PROTOCOLS.iter().map(|name| name.to_vec()).collect();
        Ok(Accepting { plain: Arc::new(plain), http: Arc::new(http) })
    }
}

/// The certificate of this process.
#[derive(Clone)]
struct Own {
    file: PathBuf,
    key_file: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
}

impl Own {
    /// That of these files, if there is one.
    fn of(files: &TlsFiles) -> Result<Option<Own>, TlsError> {
        files.own.as_ref().map(|(certificate, key)| Own::read(certificate, key)).transpose()
    }

    fn read(certificate: &Path, key: &Path) -> Result<Own, TlsError> {
        let chain = certificates(certificate)?;
        let key_file = key.to_owned();
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError {
            file: key_file.clone(),
            reason: format!("it holds no private key ({error})"),
        })?;
        Ok(Own { file: certificate.to_owned(), key_file, chain, key: Arc::new(key) })
    }

    fn refused(&self, error: &dyn fmt::Display) -> TlsError {
        TlsError { file: self.file.clone(), reason: error.to_string() }
    }

    /// Why the library does not take the certificate with the key.
    fn unfit(&self, error: &rustls::Error) -> TlsError {
        if !matches!(error, rustls::Error::InconsistentKeys(_)) {
            return self.refused(error);
        }
        let reason = format!(
            "it is not the certificate of the key in {}; give the certificate and the key that were made together",
            self.key_file.display()
        );
        TlsError { file: self.file.clone(), reason }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refused = |reason: String| TlsError { file: path.to_owned(), reason };
    let read = CertificateDer::pem_file_iter(path).map_err(|error| refused(error.to_string()))?;
    let found: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| refused(error.to_string()))?;
    if found.is_empty() { Err(refused("it holds no certificate".to_owned())) } else { Ok(found) }
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError { file: path.to_owned(), reason: error.to_string() })?;
    }
    Ok(roots)
}

/// The name by which the certificate at an address must be made out.
///
/// # Errors
/// When the address names no host.
fn name_of(address: &str) -> Result<ServerName<'static>, String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned())
        .map_err(|_| format!("{host:?} is no name that a certificate could have"))
}

/// Why a handshake failed, for people. The other end of many a plain port hangs up, or says something else.
fn explained(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the peer hung up in the handshake: it speaks no TLS, or takes none".to_owned()
        }
        io::ErrorKind::InvalidData if error.to_string().contains("InvalidContentType") => {
            "the peer speaks no TLS".to_owned()
        }
        _ => error.to_string(),
    }
}

impl Handshakes for Tls {
    fn connect<'a>(
        &'a self,
        tcp: TcpStream,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Stream, NetworkError>> {
        Box::pin(async move {
            let failed = |reason: String| NetworkError::Tls { address: address.to_owned(), reason };
            let name = name_of(address).map_err(failed)?;
            let connecting = TlsConnector::from(self.connecting()).connect(name, tcp);
            let connected = connecting.await.map_err(|error| failed(explained(&error)))?;
            Ok(Stream::Tls(Box::new(OverTls(connected.into()))))
        })
    }

    fn accept(&self, tcp: TcpStream, http: bool) -> BoxFuture<'_, Result<Stream, NetworkError>> {
        Box::pin(async move {
            let address = tcp.peer_addr().map_or_else(|_| "a peer".to_owned(), |peer| peer.to_string());
            let failed = |reason: String| NetworkError::Tls { address, reason };
            let Some(config) = self.accepting(http) else {
                return Err(failed("this process has no certificate".to_owned()));
            };
            let accepted = TlsAcceptor::from(config).accept(tcp).await;
            let accepted = accepted.map_err(|error| failed(explained(&error)))?;
            Ok(Stream::Tls(Box::new(OverTls(accepted.into()))))
        })
    }
}

/// A connection under TLS.
struct OverTls(TlsStream<TcpStream>);

impl Encrypted for OverTls {
    fn is_of_node(&self) -> bool {
        // Certificates of any other authority were refused.
        self.0.get_ref().1.peer_certificates().is_some()
    }

    fn protocol(&self) -> Option<&[u8]> {
        self.0.get_ref().1.alpn_protocol()
    }

    fn tcp(&self) -> &TcpStream {
        self.0.get_ref().0
    }
}

impl AsyncRead for OverTls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for OverTls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
