//! Users of a closed cluster: their secrets, their rights, and how both change.
//!
//! Users stand in the cluster document, so each node keeps a copy, and an older one never comes back. A secret is 256
//! random bits, so its plain SHA-256 tells nothing about it: the document may be read by others. Each user has up to two
//! secrets, so that one can be replaced while programs still use the other.
//!
//! A cluster with users is *closed*, and stays so: its last administrator cannot be removed. What clients without a secret may
//! do then, are the rights of the user [`ANYONE`]: none, where there is no such user. So a running cluster is closed without
//! a failed request: with that user as its first administrator, which is removed when every program has a secret.
//!
//! **Architecture Invariant:** no secret is ever here, only its digest.

mod change;
mod grant;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Unknown;
use crate::limits::USER_NAME_BYTES_MAX;
use crate::store::StoreName;

pub use change::{UserChange, UserError};
pub use grant::{Grant, GrantError, KeyRight, Right};

/// The name by which Redis clients mean the user whose secret they give. No user has it.
pub const USER_BY_SECRET: &str = "default";

/// The user that a client without a secret is taken for.
pub const ANYONE: &str = "anyone";

/// A user's name: 1 to 64 bytes of `a-z 0-9 _ - .`, starting with a letter, and not [`USER_BY_SECRET`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserName(String);

/// Why a text is no user's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{name:?} is no user's name: use 1 to {USER_NAME_BYTES_MAX} of a-z 0-9 _ - . beginning with a letter, and not \
     {USER_BY_SECRET:?}"
)]
pub struct UserNameError {
    /// As given.
    pub name: String,
}

impl UserName {
    /// Checks the characters and the length.
    ///
    /// # Errors
    /// When it is no name.
    pub fn new(name: impl Into<String>) -> Result<UserName, UserNameError> {
        let name = name.into();
        let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.".contains(&b);
        let well_formed = name.len() <= USER_NAME_BYTES_MAX
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.bytes().all(is_letter)
            && name != USER_BY_SECRET;
        if well_formed { Ok(UserName(name)) } else { Err(UserNameError { name }) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is that of clients without a secret.
    pub fn is_anyone(&self) -> bool {
        self.0 == ANYONE
    }
}

impl TryFrom<String> for UserName {
    type Error = UserNameError;
    fn try_from(name: String) -> Result<Self, UserNameError> {
        UserName::new(name)
    }
}

impl From<UserName> for String {
    fn from(name: UserName) -> String {
        name.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 of a secret's text, as 64 hexadecimal digits in documents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretDigest(pub [u8; 32]);

/// Why a text is no digest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a secret's digest is 64 hexadecimal digits")]
pub struct SecretDigestError;

impl TryFrom<String> for SecretDigest {
    type Error = SecretDigestError;
    fn try_from(text: String) -> Result<Self, SecretDigestError> {
        let mut digest = [0; 32];
        if text.len() != 2 * digest.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(SecretDigestError);
        }
        for (byte, at) in digest.iter_mut().zip((0..text.len()).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| SecretDigestError)?;
        }
        Ok(SecretDigest(digest))
    }
}

impl From<SecretDigest> for String {
    fn from(digest: SecretDigest) -> String {
        digest.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for SecretDigest {
    /// Enough to tell two apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, ..] = self.0;
        write!(f, "{first:02x}{second:02x}…")
    }
}

/// One user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// What is kept of its secrets, newest first: one, or two while one is replaced. None of [`ANYONE`].
    pub secrets: Vec<SecretDigest>,
    /// What it may do.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub grants: BTreeSet<Grant>,
    /// The store in which its Redis connections start. Default: the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_store: Option<StoreName>,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl User {
    /// Whether one of its rights covers this. Of a right about no key, `store` is not asked.
    pub fn may(&self, right: Right, store: &str, key: Option<&[u8]>) -> bool {
        self.grants.iter().any(|grant| grant.covers(right, store, key))
    }

    /// Whether it may change users.
    pub fn is_admin(&self) -> bool {
        self.grants.contains(&Grant::Admin)
    }
}

/// All users of a cluster. Empty: the cluster is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Users(BTreeMap<UserName, User>);

impl Users {
    /// Whether nobody is judged.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The user of this name.
    pub fn get(&self, name: &str) -> Option<&User> {
        self.0.iter().find(|(known, _)| known.as_str() == name).map(|(_, user)| user)
    }

    /// Each with its name, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&UserName, &User)> {
        self.0.iter()
    }

    /// Whose secret this is, among those that `is_it` says yes to. All are asked, so that the time tells nothing.
    pub fn holder(&self, is_it: impl Fn(&SecretDigest) -> bool) -> Option<(&UserName, &User)> {
        let mut found = None;
        for (name, user) in &self.0 {
            for digest in &user.secrets {
                if is_it(digest) {
                    found = Some((name, user));
                }
            }
        }
        found
    }
}
