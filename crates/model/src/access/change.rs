//! How users change: each change is one order.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{ANYONE, Grant, SecretDigest, User, UserName, Users};
use crate::Unknown;
use crate::limits::{USER_GRANTS_MAX, USERS_MAX};
use crate::store::StoreName;

/// What shall become of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum UserChange {
    /// There shall be one. The first user of a cluster closes it.
    Create {
        /// Its name.
        user: UserName,
        /// What is kept of its secret; of [`ANYONE`], which has none, nothing is.
        secret: SecretDigest,
        /// What it may do.
        grants: BTreeSet<Grant>,
        /// The store in which its Redis connections start.
        redis_store: Option<StoreName>,
    },
    /// It shall have other rights.
    Grant {
        /// Its name.
        user: UserName,
        /// Rights that it gets.
        give: BTreeSet<Grant>,
        /// Rights that it loses.
        take: BTreeSet<Grant>,
        /// The store in which its Redis connections start, if that changes.
        redis_store: Option<StoreName>,
    },
    /// It gets a new secret. The one that it has stays until it is retired, or no other does.
    Rotate {
        /// Its name.
        user: UserName,
        /// What is kept of the new secret.
        secret: SecretDigest,
        /// Whether no other secret of it is taken any more.
        at_once: bool,
    },
    /// No secret of it but the newest is taken any more.
    Retire {
        /// Its name.
        user: UserName,
    },
    /// There shall be no such user.
    Remove {
        /// Its name.
        user: UserName,
    },
}

impl UserChange {
    /// Whom it is about.
    pub fn user(&self) -> &UserName {
        match self {
            UserChange::Create { user, .. }
            | UserChange::Grant { user, .. }
            | UserChange::Rotate { user, .. }
            | UserChange::Retire { user }
            | UserChange::Remove { user } => user,
        }
    }
}

/// Why users cannot change so.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum UserError {
    /// There is one of this name.
    #[error("user {user} exists already")]
    Exists {
        /// The name.
        user: UserName,
    },
    /// There is no user of this name.
    #[error("the cluster has no user {user}")]
    Unknown {
        /// The name.
        user: UserName,
    },
    /// The cluster has as many users as it may.
    #[error("the cluster has {USERS_MAX} users, and no cluster has more")]
    TooMany,
    /// The user would have more rights than a user may.
    #[error("user {user} would have more than {USER_GRANTS_MAX} rights")]
    TooManyGrants {
        /// The name.
        user: UserName,
    },
    /// The secret is a user's already.
    #[error("this secret is another one's already")]
    SecretTaken,
    /// The user has two secrets, of which a program may use either.
    #[error("user {user} has two secrets already")]
    TwoSecrets {
        /// The name.
        user: UserName,
    },
    /// A client without a secret has none to change.
    #[error("user {ANYONE} is any client without a secret")]
    NoSecrets,
    /// The first user must be able to change users.
    #[error("the first user closes the cluster, and must have the right admin")]
    FirstNotAdmin {
        /// The name.
        user: UserName,
    },
    /// Nobody could change users any more.
    #[error("user {user} is the last one with the right admin")]
    LastAdmin {
        /// The name.
        user: UserName,
    },
}

impl Users {
    /// The users after a change.
    ///
    /// # Errors
    /// With the first reason why it cannot be.
    pub fn changed(&self, change: &UserChange) -> Result<Users, UserError> {
        let (mut users, name) = (self.clone(), change.user());
        let unknown = || UserError::Unknown { user: name.clone() };
        if let UserChange::Create { secret, .. } | UserChange::Rotate { secret, .. } = change
            && self.holder(|digest| digest == secret).is_some()
        {
            return Err(UserError::SecretTaken);
        }
        match change {
            UserChange::Create { secret, grants, redis_store, .. } => {
                users.create(name, *secret, grants.clone(), redis_store.clone())?;
            }
            UserChange::Grant { give, take, redis_store, .. } => {
                let user = users.0.get_mut(name).ok_or_else(unknown)?;
                user.grants.retain(|grant| !take.contains(grant));
                user.grants.extend(give.iter().cloned());
                if redis_store.is_some() {
                    user.redis_store.clone_from(redis_store);
                }
            }
            UserChange::Rotate { secret, at_once, .. } => {
                let user = users.0.get_mut(name).ok_or_else(unknown)?;
                if name.is_anyone() {
                    return Err(UserError::NoSecrets);
                }
                if user.secrets.len() > 1 && !at_once {
                    return Err(UserError::TwoSecrets { user: name.clone() });
                }
                user.secrets.truncate(usize::from(!at_once));
                user.secrets.insert(0, *secret);
            }
            UserChange::Retire { .. } => users.0.get_mut(name).ok_or_else(unknown)?.secrets.truncate(1),
            UserChange::Remove { .. } => {
                users.0.remove(name).ok_or_else(unknown)?;
            }
        }
        if users.0.get(name).is_some_and(|user| user.grants.len() > USER_GRANTS_MAX) {
            return Err(UserError::TooManyGrants { user: name.clone() });
        }
        match users.0.values().any(User::is_admin) {
            true => Ok(users),
            false if self.is_empty() => Err(UserError::FirstNotAdmin { user: name.clone() }),
            false => Err(UserError::LastAdmin { user: name.clone() }),
        }
    }

    fn create(
        &mut self,
        name: &UserName,
        secret: SecretDigest,
        grants: BTreeSet<Grant>,
        redis_store: Option<StoreName>,
    ) -> Result<(), UserError> {
        if self.0.contains_key(name) {
            return Err(UserError::Exists { user: name.clone() });
        }
        if self.len() >= USERS_MAX {
            return Err(UserError::TooMany);
        }
        let secrets = if name.is_anyone() { Vec::new() } else { vec![secret] };
        let user = User { secrets, grants, redis_store, unknown: Unknown::new() };
        self.0.insert(name.clone(), user);
        Ok(())
    }
}
