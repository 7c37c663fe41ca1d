//! Where a cluster's coordination service is, as people write it; and the one place that opens it.
//!
//! | address | service |
//! |---|---|
//! | `zookeeper://HOST:PORT,HOST:PORT/CHROOT` | a ZooKeeper ensemble |
//! | `dir:PATH`, or a path alone | a directory of this machine |
//!
//! A path alone may have no colon or comma before its first slash: `zk1:2181,zk2:2181/shop` is what ZooKeeper's own tools
//! take, and means an ensemble.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use crate::embedded::{self, EmbeddedSession};
use crate::zookeeper::{
    AddressError, Credentials, SCHEME, SessionRefusal, ZooKeeperAddress, ZooKeeperOptions, ZooKeeperSession,
};
use crate::{CoordinationError, CoordinationService};

/// How the address of a directory may begin.
const DIRECTORY: &str = "dir:";

/// Which service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The one of a directory.
    Directory(PathBuf),
    /// The one of an ensemble.
    ZooKeeper(ZooKeeperAddress),
}

impl Address {
    /// Whether two texts name the same service: one directory, or a chroot of ensembles that have a server in common. Who
    /// names a part of the servers, or names them in another order, means the same ensemble.
    pub fn are_same(one: &str, other: &str) -> bool {
        let parsed = (one.parse(), other.parse());
        let (Ok(Address::ZooKeeper(left)), Ok(Address::ZooKeeper(right))) = parsed else {
            return one == other;
        };
        left.chroot == right.chroot && left.servers.iter().any(|server| right.servers.contains(server))
    }
}

/// Why a text names no service.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// It begins as the address of an ensemble does, and is none.
    #[error(transparent)]
    ZooKeeper(#[from] AddressError),
    /// It looks like the servers of an ensemble, without the scheme. A directory of that name on each machine would be a
    /// cluster on each.
    #[error(
        "{address:?} looks like the servers of a ZooKeeper ensemble; write {fitting}, or {DIRECTORY}PATH for a directory"
    )]
    NoScheme {
        /// The text.
        address: String,
        /// How to write it.
        fitting: String,
    },
    /// It names another kind of service.
    #[error(
        "{address:?} names no service that Tontine knows; write {SCHEME}HOST:PORT/CHROOT or {DIRECTORY}PATH"
    )]
    Unknown {
        /// The text.
        address: String,
    },
}

impl FromStr for Address {
    type Err = ParseError;

    fn from_str(address: &str) -> Result<Address, ParseError> {
        if address.starts_with(SCHEME) {
            return Ok(Address::ZooKeeper(address.parse()?));
        }
        let path = address.strip_prefix(DIRECTORY).unwrap_or(address);
        if path == address && looks_like_servers(address) {
            return Err(ParseError::NoScheme { address: address.to_owned(), fitting: with_scheme(address) });
        }
        // A path may hold a colon, but nobody means one that looks like an address.
        if path.is_empty() || path.contains("://") {
            return Err(ParseError::Unknown { address: address.to_owned() });
        }
        let Ok(path) = path.parse::<PathBuf>() as Result<PathBuf, Infallible>;
        Ok(Address::Directory(path))
    }
}

/// Whether the first part of a path, up to a slash, is written as hosts with ports are.
fn looks_like_servers(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    !path.contains("://") && first.contains([':', ','])
}

/// Servers as the address of an ensemble, if they can be one.
fn with_scheme(servers: &str) -> String {
    let servers = servers.strip_prefix(SCHEME.trim_end_matches('/')).unwrap_or(servers);
    let address = format!("{SCHEME}{}", servers.trim_start_matches('/'));
    match address.parse::<ZooKeeperAddress>() {
        Ok(address) => address.to_string(),
        Err(_) => format!("{SCHEME}HOST:PORT,HOST:PORT/CHROOT"),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Directory(path) => write!(f, "{}", path.display()),
            Address::ZooKeeper(address) => write!(f, "{address}"),
        }
    }
}

/// Why a service could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory refuses.
    #[error(transparent)]
    Directory(#[from] embedded::OpenError),
    /// The ensemble answers, and the chroot is not there. It is made when a cluster is created or brought back.
    #[error("{reason}")]
    NoChroot {
        /// Which one, and what to do.
        reason: String,
    },
    /// The ensemble answers, and refuses: the credentials are wrong, or may not use the chroot.
    #[error("{reason}")]
    Refused {
        /// What it refuses, and what to do.
        reason: String,
    },
    /// The operating system refuses a thread.
    #[error("cannot start the thread of a coordination session: {0}")]
    Thread(#[from] io::Error),
}

/// A service, and how sessions with it are opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePlace {
    /// Which service.
    pub address: Address,
    /// How long an ensemble keeps a session that it does not hear.
    pub session_timeout: Duration,
    /// As whom, at an ensemble.
    pub credentials: Option<Credentials>,
}

impl ServicePlace {
    /// Opens a session. A directory is made where there is none; a chroot only when `create_chroot` says so. Waits for
    /// an ensemble for `patience` at most: after that, calls say why there is no session yet.
    ///
    /// # Errors
    /// See [`OpenError`]. An ensemble that is away is none, one that refuses is.
    pub async fn open(
        &self,
        create_chroot: bool,
        patience: Duration,
    ) -> Result<Arc<dyn CoordinationService>, OpenError> {
        let address = match &self.address {
            Address::Directory(path) => return Ok(Arc::new(EmbeddedSession::open(path).await?)),
            Address::ZooKeeper(address) => address.clone(),
        };
        let (session_timeout, credentials) = (self.session_timeout, self.credentials.clone());
        let options = ZooKeeperOptions { address, session_timeout, credentials, create_chroot };
        let session = ZooKeeperSession::open(options)?;
        if let Err(CoordinationError::Unavailable { reason }) = session.connected(patience).await {
            match session.refused() {
                Some((SessionRefusal::NoChroot, reason)) => return Err(OpenError::NoChroot { reason }),
                Some((SessionRefusal::Denied, reason)) => return Err(OpenError::Refused { reason }),
                None => {}
            }
            tracing::warn!(reason, "coordination session not opened in time");
        }
        Ok(Arc::new(session))
    }
}

/// Opens sessions with services by their addresses, for those whose documents have moved.
#[async_trait]
pub trait Places: fmt::Debug + Send + Sync {
    /// Opens a session with a service that is there already.
    ///
    /// # Errors
    /// Why there is none, for people.
    async fn open_at(&self, address: &str) -> Result<Arc<dyn CoordinationService>, String>;

    /// As which user of an ensemble; empty for nobody in particular.
    fn user(&self) -> String;

    /// The address from which the node has come, in its own words.
    fn address(&self) -> String;
}

/// How long a session with the new place may take; whoever waits tries again.
const OPEN_TIME_MAX: Duration = Duration::from_secs(5);

#[async_trait]
impl Places for ServicePlace {
    async fn open_at(&self, address: &str) -> Result<Arc<dyn CoordinationService>, String> {
        let place = self.at(address).map_err(|error| error.to_string())?;
        if let Address::Directory(directory) = &place.address
            && !directory.is_dir()
        {
            // Opening would make one.
            return Err(format!(
                "there is no coordination directory {} on this machine",
                directory.display()
            ));
        }
        place.open(false, OPEN_TIME_MAX).await.map_err(|error| error.to_string())
    }

    fn user(&self) -> String {
        self.credentials.as_ref().map_or_else(String::new, |credentials| credentials.user().to_owned())
    }

    fn address(&self) -> String {
        self.portable()
    }
}

impl ServicePlace {
    /// Another service, as the same user.
    ///
    /// # Errors
    /// When the text names no service.
    pub fn at(&self, address: &str) -> Result<ServicePlace, ParseError> {
        Ok(ServicePlace { address: address.parse()?, ..self.clone() })
    }

    /// The address as every process of this machine may write it: the path of a directory is absolute.
    pub fn portable(&self) -> String {
        match &self.address {
            Address::Directory(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("{DIRECTORY}{}", path.display())
            }
            Address::ZooKeeper(address) => address.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ensemble_is_known_by_any_of_its_servers_and_its_chroot() {
        let first = "zookeeper://h1:2181,h2:2181/shop";
        for same in [first, "zookeeper://h2:2181,h1:2181/shop", "zookeeper://h2/shop"] {
            assert!(Address::are_same(first, same), "{same}");
        }
        for other in
            ["zookeeper://h1:2181/other", "zookeeper://h3:2181/shop", "zookeeper://h1:2182/shop", "dir:/shop"]
        {
            assert!(!Address::are_same(first, other), "{other}");
        }
        assert!(Address::are_same("dir:/shop", "dir:/shop") && !Address::are_same("dir:/shop", "dir:/other"));
    }

    #[test]
    fn addresses_name_a_directory_or_an_ensemble() {
        let directory = |path: &str| Ok(Address::Directory(path.into()));
        assert_eq!("dir:a/b".parse(), directory("a/b"));
        assert_eq!("tontine-data/coordination".parse(), directory("tontine-data/coordination"));
        let ensemble: Address = "zookeeper://h:1/x".parse().unwrap();
        assert!(matches!(&ensemble, Address::ZooKeeper(address) if address.chroot.as_str() == "/x"));
        assert_eq!(ensemble.to_string(), "zookeeper://h:1/x");
        for unknown in ["", "dir:", "etcd://h:1", "dir:zk://h"] {
            assert!(matches!(unknown.parse::<Address>(), Err(ParseError::Unknown { .. })), "{unknown}");
        }
        for (servers, fitting) in [
            ("zk1:2181,zk2:2181/shop", "zookeeper://zk1:2181,zk2:2181/shop"),
            ("zookeeper:/zk1:2181/shop", "zookeeper://zk1:2181/shop"),
            ("zk1,zk2/shop", "zookeeper://zk1:2181,zk2:2181/shop"),
            ("zookeeper:zk1:x", "zookeeper://HOST:PORT,HOST:PORT/CHROOT"),
        ] {
            let error = servers.parse::<Address>().unwrap_err();
            assert!(error.to_string().contains(&format!("write {fitting}, or dir:PATH")), "{error}");
        }
        assert_eq!("dir:zk1:2181".parse(), directory("zk1:2181"), "it says what it is");
        assert_eq!("./zk1:2181".parse(), directory("./zk1:2181"));
        assert!(matches!("zookeeper://".parse::<Address>(), Err(ParseError::ZooKeeper(_))));
    }
}
