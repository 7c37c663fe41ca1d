//! What the users of a cluster document make of the cluster: closed, or anyone's.
//!
//! **Architecture Invariant:** each change of users gives one document, of the next generation.

use super::Cluster;
use crate::access::{ANYONE, Right, UserChange, UserError};
use crate::generation::Generation;

impl Cluster {
    /// The next document: the cluster after a change of its users.
    ///
    /// # Errors
    /// As [`Users::changed`].
    pub fn with_users(&self, change: &UserChange) -> Result<Cluster, UserError> {
        let users = self.users.changed(change)?;
        Ok(Cluster { generation: Generation(self.generation.0 + 1), users, ..self.clone() })
    }

    /// Whether nobody is served without a secret or a node's certificate.
    pub fn is_closed(&self) -> bool {
        !self.users.is_empty()
    }

    /// Whether clients without a secret may do everything, or write every key of every store: the cluster has no users, or
    /// the user [`ANYONE`] has these rights.
    pub fn is_anyones(&self) -> bool {
        let Some(anyone) = self.users.get(ANYONE) else { return !self.is_closed() };
        let writes = |store: &str| anyone.may(Right::Write, store, None);
        // No store has this name, so only a right about every store covers it.
        let writes_every = writes("*");
        let writes_each =
            !self.stores.is_empty() && self.stores.iter().all(|store| writes(store.name.as_str()));
        anyone.is_admin() || writes_every || writes_each
    }
}
