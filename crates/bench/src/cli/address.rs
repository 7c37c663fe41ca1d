//! How systems are named on the command line.

use std::str::FromStr;

/// Where a running system is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A RESP server.
    Resp(String),
    /// Nodes of a Tontine cluster: one that answers is enough.
    Native(Vec<String>),
}

/// An address that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no address; give resp://HOST:PORT or native://HOST:PORT")]
pub struct BadAddress {
    given: String,
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(given: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress { given: given.to_owned() };
        let sound = |address: &str| {
            address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        match given.split_once("://").unwrap_or(("resp", given)) {
            ("resp" | "redis", address) if sound(address) => Ok(Address::Resp(address.to_owned())),
            ("native", addresses) if addresses.split(',').all(sound) => {
                Ok(Address::Native(addresses.split(',').map(str::to_owned).collect()))
            }
            _ => Err(bad()),
        }
    }
}

/// A system to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum System {
    /// Started here.
    Tontine,
    /// Started here.
    Redis,
    /// Running already.
    At(Address),
}

impl FromStr for System {
    type Err = BadAddress;

    fn from_str(given: &str) -> Result<Self, BadAddress> {
        match given {
            "tontine" => Ok(System::Tontine),
            "redis" => Ok(System::Redis),
            address => address.parse().map(System::At),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Resp(address) => write!(formatter, "resp://{address}"),
            Address::Native(addresses) => write!(formatter, "native://{}", addresses.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        assert_eq!("redis://h:6379".parse(), Ok(Address::Resp("h:6379".to_owned())));
        assert_eq!("[::1]:6379".parse(), Ok(Address::Resp("[::1]:6379".to_owned())));
        let cluster = Address::Native(vec!["h:1".to_owned(), "h:2".to_owned()]);
        assert_eq!("native://h:1,h:2".parse(), Ok(cluster.clone()));
        assert_eq!(cluster.to_string().parse(), Ok(cluster));
        for bad in ["", "h", "h:", ":1", "h:0", "h:70000", "http://h:1", "native://", "native://h:1,h"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
        assert_eq!("redis".parse(), Ok(System::Redis));
    }
}
