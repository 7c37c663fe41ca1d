//! Which ensemble, below which document, and as whom.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::{DocumentPath, PATH_BYTES_MAX};

/// How an address of an ensemble begins.
pub const SCHEME: &str = "zookeeper://";

/// The port of a server whose address names none.
const PORT_DEFAULT: u16 = 2181;

/// Servers of an address at most: the largest ensembles have nine, with observers a few more.
const SERVERS_MAX: usize = 64;

/// How long the ensemble keeps a session that it does not hear, by default.
pub const SESSION_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Where an ensemble is: `zookeeper://HOST:PORT,HOST:PORT/CHROOT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperAddress {
    /// Its servers, each `HOST:PORT`; an IPv6 address has brackets.
    pub servers: Vec<String>,
    /// The document below which ours are; the root when the address names none.
    pub chroot: DocumentPath,
}

/// Why a text is no address of an ensemble.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It does not begin with the scheme.
    #[error("{address:?} is no ZooKeeper address: write {SCHEME}HOST:PORT,HOST:PORT/CHROOT")]
    Scheme {
        /// The text.
        address: String,
    },
    /// One of its servers is none.
    #[error("{address:?} names the server {server:?}, which is not HOST:PORT with a port from 1 to 65535")]
    Server {
        /// The text.
        address: String,
        /// The server.
        server: String,
    },
    /// It names too many servers.
    #[error("a ZooKeeper address names at most {SERVERS_MAX} servers, not {servers}")]
    TooManyServers {
        /// How many it names.
        servers: usize,
    },
    /// The document below which ours are to be cannot be one.
    #[error("{address:?} names a chroot that ZooKeeper refuses: {reason}")]
    Chroot {
        /// The text.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl FromStr for ZooKeeperAddress {
    type Err = AddressError;

    fn from_str(address: &str) -> Result<ZooKeeperAddress, AddressError> {
        let scheme = || AddressError::Scheme { address: address.to_owned() };
        let rest = address.strip_prefix(SCHEME).ok_or_else(scheme)?;
        let (servers, chroot) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let refused = |reason: String| AddressError::Chroot { address: address.to_owned(), reason };
        if chroot.len() > 1 && chroot.ends_with('/') {
            return Err(refused("it ends with a slash; leave that out".to_owned()));
        }
        let chroot = DocumentPath::new(if chroot.is_empty() { "/" } else { chroot })
            .map_err(|error| refused(error.to_string()))?;
        if chroot.as_str().contains(',') {
            return Err(refused("it contains a comma; the servers come before the chroot".to_owned()));
        }
        if chroot.as_str().len() > PATH_BYTES_MAX {
            return Err(refused(format!("it is longer than {PATH_BYTES_MAX} bytes")));
        }
        let named: Vec<&str> = servers.split(',').collect();
        if named.len() > SERVERS_MAX {
            return Err(AddressError::TooManyServers { servers: named.len() });
        }
        let server = |text: &str| {
            let no_server = || AddressError::Server { address: address.to_owned(), server: text.to_owned() };
            parse_server(text).ok_or_else(no_server)
        };
        let servers = named.into_iter().map(server).collect::<Result<_, _>>()?;
        Ok(ZooKeeperAddress { servers, chroot })
    }
}

/// A server's address with its port; `None` when it is none.
fn parse_server(text: &str) -> Option<String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (format!("[{host}]"), port)
        }
        None => {
            let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
            (!host.is_empty() && host.chars().all(is_letter)).then_some(())?;
            (host.to_owned(), port)
        }
    };
    let port = match port {
        "" => PORT_DEFAULT,
        port => port.strip_prefix(':')?.parse().ok().filter(|&port| port != 0)?,
    };
    Some(format!("{host}:{port}"))
}

impl fmt::Display for ZooKeeperAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.connect_string())
    }
}

impl ZooKeeperAddress {
    /// The address as ZooKeeper's own clients write it.
    pub(super) fn connect_string(&self) -> String {
        let chroot = if self.chroot.is_root() { "" } else { self.chroot.as_str() };
        format!("{}{chroot}", self.servers.join(","))
    }
}

/// A user of the ensemble, by ZooKeeper's digest scheme.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user_and_password: String,
}

impl Credentials {
    /// Reads `USER:PASSWORD`; `None` when it is not of this form.
    pub fn new(user_and_password: &str) -> Option<Credentials> {
        let (user, password) = user_and_password.split_once(':')?;
        let fits = !user.is_empty() && !password.is_empty() && !user_and_password.contains(char::is_control);
        fits.then(|| Credentials { user_and_password: user_and_password.to_owned() })
    }

    /// The user.
    pub fn user(&self) -> &str {
        self.user_and_password.split_once(':').map_or("", |(user, _)| user)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.user_and_password.as_bytes()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(...)")
    }
}

/// How a session is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperOptions {
    /// Which ensemble, and below which document.
    pub address: ZooKeeperAddress,
    /// How long the ensemble keeps a session that it does not hear; it may grant another time. Also the limit on each
    /// call. Default: [`SESSION_TIMEOUT_DEFAULT`].
    pub session_timeout: Duration,
    /// As whom. With credentials, every document that the session creates can be changed by this user only, and read
    /// by all; without, all may change it. Default: none.
    pub credentials: Option<Credentials>,
    /// Whether the chroot is created when it does not exist. Otherwise calls answer `Unavailable` until it does.
    /// Default: no.
    pub create_chroot: bool,
}

impl ZooKeeperOptions {
    /// The defaults, for an ensemble.
    pub fn new(address: ZooKeeperAddress) -> ZooKeeperOptions {
        ZooKeeperOptions {
            address,
            session_timeout: SESSION_TIMEOUT_DEFAULT,
            credentials: None,
            create_chroot: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for (text, servers, chroot) in [
            ("zookeeper://h1:2181,h2:2182/tontine", vec!["h1:2181", "h2:2182"], "/tontine"),
            ("zookeeper://zk-1.example.org/a/b", vec!["zk-1.example.org:2181"], "/a/b"),
            ("zookeeper://127.0.0.1:4000", vec!["127.0.0.1:4000"], "/"),
            ("zookeeper://[::1]:4000,[fe80::1]/x", vec!["[::1]:4000", "[fe80::1]:2181"], "/x"),
        ] {
            let address: ZooKeeperAddress = text.parse().unwrap();
            assert_eq!((address.servers.clone(), address.chroot.as_str()), (to_owned(&servers), chroot));
            assert_eq!(address.to_string().parse(), Ok(address), "{text}");
        }
    }

    fn to_owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_no_address_is_refused_by_what_is_wrong_with_it() {
        for text in ["h1:2181/x", "zookeeper:h1", "zk://h1"] {
            assert!(matches!(text.parse::<ZooKeeperAddress>(), Err(AddressError::Scheme { .. })), "{text}");
        }
        for text in [
            "zookeeper://",
            "zookeeper:///x",
            "zookeeper://h1,",
            "zookeeper://h1:0",
            "zookeeper://h1:70000",
            "zookeeper://h1:x",
            "zookeeper://user@h1",
            "zookeeper://::1:2181",
            "zookeeper://[nothing]:2181",
        ] {
            assert!(matches!(text.parse::<ZooKeeperAddress>(), Err(AddressError::Server { .. })), "{text}");
        }
        let long = format!("zookeeper://h1/{}", "x".repeat(PATH_BYTES_MAX));
        for text in
            ["zookeeper://h1//", "zookeeper://h1/a/", "zookeeper://h1/a,h2/a", "zookeeper://h1/zookeeper"]
                .into_iter()
                .chain([long.as_str()])
        {
            assert!(matches!(text.parse::<ZooKeeperAddress>(), Err(AddressError::Chroot { .. })), "{text}");
        }
        let said = "zookeeper://h1/Shop/".parse::<ZooKeeperAddress>().unwrap_err().to_string();
        assert!(said.ends_with("refuses: it ends with a slash; leave that out"), "{said}");
        let many = format!("zookeeper://{}", vec!["h1"; SERVERS_MAX + 1].join(","));
        let refused = AddressError::TooManyServers { servers: SERVERS_MAX + 1 };
        assert_eq!(many.parse::<ZooKeeperAddress>(), Err(refused));
    }

    #[test]
    fn credentials_have_a_user_and_a_password_and_do_not_show_it() {
        for bad in ["", "user", "user:", ":password", "user:pass\nword"] {
            assert_eq!(Credentials::new(bad), None, "{bad:?}");
        }
        let credentials = Credentials::new("user:pass:word").unwrap();
        assert!(!format!("{credentials:?}").contains("pass"));
    }
}
