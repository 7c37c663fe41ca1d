//! Stores that a running cluster gets, by a new cluster document.
//!
//! Must never: report a store as created that another document has taken the place of.

use model::{Cluster, CreateStoreError, Store};
use thiserror::Error;

use super::{PublishError, ReadError, check_known, publish_cluster, read_cluster};
use crate::{CoordinationError, CoordinationService};

/// How often a change that the service did not confirm is looked at and tried again.
const ATTEMPTS: usize = 3;

/// Why a store was not created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoStoreError {
    /// There is no document to change.
    #[error("the coordination service holds no cluster; create it with `tontine cluster create`")]
    NoCluster,
    /// The cluster can have no such store.
    #[error(transparent)]
    Refused(#[from] CreateStoreError),
    /// The new document could not be stored, or may not have been.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

impl From<ReadError> for NoStoreError {
    fn from(error: ReadError) -> NoStoreError {
        NoStoreError::Publish(error.into())
    }
}

/// Publishes the cluster document with one store more, and returns it. Whoever asks goes by `known`, if anything.
///
/// # Errors
/// See [`NoStoreError`]; [`PublishError::Older`] by what is known. After [`CoordinationError::Indeterminate`] the store may exist, or may yet.
pub async fn create_store(
    service: &dyn CoordinationService,
    store: &Store,
    known: Option<&Cluster>,
) -> Result<Cluster, NoStoreError> {
    let mut unconfirmed = None;
    for _ in 0..ATTEMPTS {
        loop {
            let cluster = read_cluster(service).await?.ok_or(NoStoreError::NoCluster)?;
            if unconfirmed.is_some() && cluster.store(store.name.as_str()) == Some(store) {
                return Ok(cluster);
            }
            check_known(&cluster, known)?;
            let changed = cluster.with_store(store.clone())?;
            match publish_cluster(service, &changed).await {
                Ok(()) => return Ok(changed),
                // Somebody was faster: change what they stored.
                Err(PublishError::Superseded { .. }) => {}
                Err(PublishError::Read(ReadError::Coordination(
                    error @ CoordinationError::Indeterminate { .. },
                ))) => {
                    unconfirmed = Some(error);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let error = unconfirmed.expect("every attempt but an unconfirmed one returns");
    Err(PublishError::from(error).into())
}
