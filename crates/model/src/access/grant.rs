//! Rights, and the grants that give them.
//!
//! A grant is written as one word, in documents and on the command line: `read:carts`, `write:carts/user:`, `scan:*`,
//! `observe`, `operate`, `admin`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits::GRANT_PREFIX_BYTES_MAX;
use crate::store::StoreName;

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Read a key.
    Read,
    /// Write or delete a key.
    Write,
    /// Walk over the keys of a whole store, and read their values.
    Scan,
    /// See how the cluster is: status, events, metrics, plans.
    Observe,
    /// Give orders about nodes, plans, stores and repair.
    Operate,
    /// Change users.
    Admin,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Right::Read => "read",
            Right::Write => "write",
            Right::Scan => "scan",
            Right::Observe => "observe",
            Right::Operate => "operate",
            Right::Admin => "admin",
        })
    }
}

/// A right about keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyRight {
    /// [`Right::Read`].
    Read,
    /// [`Right::Write`].
    Write,
    /// [`Right::Scan`], which has no prefix: a walk goes over all keys.
    Scan,
}

impl KeyRight {
    fn right(self) -> Right {
        match self {
            KeyRight::Read => Right::Read,
            KeyRight::Write => Right::Write,
            KeyRight::Scan => Right::Scan,
        }
    }
}

/// A right that a user has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Grant {
    /// A right about keys: of one store, or of all; and of those only that begin with a prefix, which may be empty.
    Keys {
        /// Which right.
        right: KeyRight,
        /// Of which store; `None` of all.
        store: Option<StoreName>,
        /// How the keys begin.
        prefix: String,
    },
    /// [`Right::Observe`].
    Observe,
    /// [`Right::Operate`], and with it [`Right::Observe`].
    Operate,
    /// Every right.
    Admin,
}

/// Why a text is no grant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no right: use read:STORE, write:STORE, read:STORE/PREFIX, write:STORE/PREFIX, scan:STORE (`*` is every \
     store), observe, operate or admin; a prefix has at most {GRANT_PREFIX_BYTES_MAX} bytes"
)]
pub struct GrantError {
    /// As given.
    pub text: String,
}

impl Grant {
    /// Whether it gives this right, about this key of this store.
    pub fn covers(&self, asked: Right, of: &str, key: Option<&[u8]>) -> bool {
        match self {
            Grant::Admin => true,
            Grant::Operate => matches!(asked, Right::Operate | Right::Observe),
            Grant::Observe => asked == Right::Observe,
            Grant::Keys { right, store, prefix } => {
                let is_store = store.as_ref().is_none_or(|store| store.as_str() == of);
                let begins = || match key {
                    Some(key) => key.starts_with(prefix.as_bytes()),
                    None => prefix.is_empty(),
                };
                right.right() == asked && is_store && begins()
            }
        }
    }

    fn of_keys(right: KeyRight, of: &str) -> Option<Grant> {
        let (store, prefix) = of.split_once('/').unwrap_or((of, ""));
        let store = match store {
            "*" => None,
            name => Some(StoreName::new(name).ok()?),
        };
        let has_prefix = !prefix.is_empty();
        let is_good = prefix.len() <= GRANT_PREFIX_BYTES_MAX && !(has_prefix && right == KeyRight::Scan);
        is_good.then(|| Grant::Keys { right, store, prefix: prefix.to_owned() })
    }
}

impl FromStr for Grant {
    type Err = GrantError;
    fn from_str(text: &str) -> Result<Grant, GrantError> {
        let grant = match text.split_once(':') {
            None => match text {
                "observe" => Some(Grant::Observe),
                "operate" => Some(Grant::Operate),
                "admin" => Some(Grant::Admin),
                _ => None,
            },
            Some(("read", of)) => Grant::of_keys(KeyRight::Read, of),
            Some(("write", of)) => Grant::of_keys(KeyRight::Write, of),
            Some(("scan", of)) => Grant::of_keys(KeyRight::Scan, of),
            Some(_) => None,
        };
        grant.ok_or_else(|| GrantError { text: text.to_owned() })
    }
}

impl TryFrom<String> for Grant {
    type Error = GrantError;
    fn try_from(text: String) -> Result<Self, GrantError> {
        text.parse()
    }
}

impl From<Grant> for String {
    fn from(grant: Grant) -> String {
        grant.to_string()
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (right, store, prefix) = match self {
            Grant::Admin => return write!(f, "{}", Right::Admin),
            Grant::Operate => return write!(f, "{}", Right::Operate),
            Grant::Observe => return write!(f, "{}", Right::Observe),
            Grant::Keys { right, store, prefix } => (right.right(), store, prefix),
        };
        write!(f, "{right}:{}", store.as_ref().map_or("*", StoreName::as_str))?;
        if prefix.is_empty() { Ok(()) } else { write!(f, "/{prefix}") }
    }
}
