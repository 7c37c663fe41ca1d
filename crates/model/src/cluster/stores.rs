//! A store that a running cluster gets: what it may look like, and the document that has it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Cluster;
use crate::artifacts::{ArtifactError, ReadOnlyStore};
use crate::generation::Generation;
use crate::limits::{SIBLINGS_MAX, STORES_MAX, VALUE_BYTES_MAX};
use crate::placement::PlacementError;
use crate::store::{Store, StoreError, StoreName};

/// Why a store cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum CreateStoreError {
    /// There is one of this name.
    #[error("store {} exists already", .store.as_str())]
    Exists {
        /// The name.
        store: StoreName,
    },
    /// The cluster has [`STORES_MAX`] stores.
    #[error(
        "the cluster has {STORES_MAX} stores, and no cluster has more; use prefixes of keys in one store instead"
    )]
    TooMany,
    /// Some partition lists fewer nodes than the store wants replicas.
    #[error(
        "the store wants {replicas} replicas of each key, and a partition of the ring lists {listed} nodes"
    )]
    Replicas {
        /// N.
        replicas: u8,
        /// Nodes of the shortest list.
        listed: usize,
    },
    /// The largest value is 0, or above what any store allows.
    #[error("the largest value is 1 to {VALUE_BYTES_MAX} bytes, got {bytes}")]
    Value {
        /// As given.
        bytes: usize,
    },
    /// No sibling is allowed, or more than any store allows.
    #[error("the most concurrent versions of a key are 1 to {SIBLINGS_MAX}, got {versions}")]
    Siblings {
        /// As given.
        versions: usize,
    },
    /// Its N, R and W do not fit each other.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its keys cannot lie so.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// Why the artifacts of a store cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum ArtifactsError {
    /// There is no read-only store of this name.
    #[error("the cluster has no read-only store {store:?}")]
    NoStore {
        /// The name as given.
        store: String,
    },
    /// The store refuses it.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
}

impl Cluster {
    /// The next document: the cluster with one store more. No partition changes, so requests that were formed under
    /// older documents are accepted as before.
    ///
    /// # Errors
    /// With the first reason why there can be no such store.
    pub fn with_store(&self, store: Store) -> Result<Cluster, CreateStoreError> {
        store.consistency.validate()?;
        store.placement.check(self.buckets)?;
        self.check_place(&store.name, store.consistency.replicas)?;
        if !(1..=VALUE_BYTES_MAX).contains(&store.value_bytes_max) {
            return Err(CreateStoreError::Value { bytes: store.value_bytes_max });
        }
        if !(1..=SIBLINGS_MAX).contains(&store.siblings_max) {
            return Err(CreateStoreError::Siblings { versions: store.siblings_max });
        }
        let mut cluster = Cluster { generation: Generation(self.generation.0 + 1), ..self.clone() };
        cluster.stores.push(store);
        cluster.stores.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(cluster)
    }

    /// The next document: the cluster with one read-only store more, which keeps one artifact beside the served one.
    ///
    /// # Errors
    /// With the first reason why there can be no such store.
    pub fn with_read_only(&self, name: StoreName, replicas: u8) -> Result<Cluster, CreateStoreError> {
        if replicas == 0 {
            return Err(StoreError::Consistency { replicas, reads: 1, writes: 1 }.into());
        }
        self.check_place(&name, replicas)?;
        let mut cluster = Cluster { generation: Generation(self.generation.0 + 1), ..self.clone() };
        cluster.read_only.push(ReadOnlyStore::new(name, replicas));
        cluster.read_only.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(cluster)
    }

    /// The next document: the cluster with another state of one read-only store.
    ///
    /// # Errors
    /// [`ArtifactsError::NoStore`], or what `change` says.
    pub fn with_artifacts(
        &self,
        name: &str,
        change: impl FnOnce(&ReadOnlyStore) -> Result<ReadOnlyStore, ArtifactError>,
    ) -> Result<Cluster, ArtifactsError> {
        let at = self.read_only.iter().position(|store| store.name.as_str() == name);
        let at = at.ok_or_else(|| ArtifactsError::NoStore { store: name.to_owned() })?;
        let mut cluster = Cluster { generation: Generation(self.generation.0 + 1), ..self.clone() };
        cluster.read_only[at] = change(&self.read_only[at])?;
        Ok(cluster)
    }

    /// Checks that there is room for one more store, of either kind.
    fn check_place(&self, name: &StoreName, replicas: u8) -> Result<(), CreateStoreError> {
        if self.store_names().any(|known| known == name) {
            return Err(CreateStoreError::Exists { store: name.clone() });
        }
        if self.store_names().count() >= STORES_MAX {
            return Err(CreateStoreError::TooMany);
        }
        let lists = self.ring.partitions().iter().flat_map(|partition| {
            let coming = partition.coming.as_ref().map(|coming| coming.nodes.len());
            [Some(partition.nodes.len()), coming]
        });
        let listed = lists.flatten().min().unwrap_or(0);
        if usize::from(replicas) > listed {
            return Err(CreateStoreError::Replicas { replicas, listed });
        }
        Ok(())
    }
}
