//! What a request reads: versions, or one artifact that it names.
//!
//! The artifact is taken from the cluster document once, with the scope of a request, and goes with every message of it:
//! first waves, hedges, the rest of long answers. When replicas ask for a newer document, the request starts again as a
//! whole, with what that serves.
//!
//! Must never: put answers of two artifacts into one request.

use std::sync::Arc;

use bytes::Bytes;
use model::{ArtifactNumber, Cluster, Epoch, ManifestDigest, NodeId, Partition, ReadOnlyStore};
use smallvec::SmallVec;
use wire::ErrorCode;
use wire::messages::{
    ArtifactGet, ArtifactScan, Failure, ReplicaGet, Request, Role, Scan, ScanAfter, StoreRef, Terms,
};

use super::Scope;
use super::drive::Desk;

/// What a store holds, as far as one request is about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Versions, which replicas merge.
    Versions,
    /// This artifact of a read-only store.
    Artifact {
        /// Its number.
        number: ArtifactNumber,
        /// Digest of its manifest.
        manifest: ManifestDigest,
        /// Whether the caller wants this one, whatever the store serves.
        chosen: bool,
    },
    /// Nothing: a read-only store before its first swap.
    Nothing,
}

impl Contents {
    /// What a read-only store serves.
    pub fn served(store: &ReadOnlyStore) -> Contents {
        store.served().map_or(Contents::Nothing, |artifact| Contents::Artifact {
            number: artifact.number,
            manifest: artifact.manifest,
            chosen: false,
        })
    }

    /// The artifact of this number, whether it is served or not.
    ///
    /// # Errors
    /// `artifact-refused` when the store does not list it.
    pub fn chosen(store: &ReadOnlyStore, number: ArtifactNumber) -> Result<Contents, Failure> {
        let listed = store.artifact(number).ok_or_else(|| {
            let numbers: Vec<String> =
                store.artifacts.iter().map(|listed| listed.number.to_string()).collect();
            let lists = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
            let detail = format!("store {} lists no artifact {number}; it lists {lists}", store.name);
            Failure::new(ErrorCode::ArtifactRefused, detail)
        })?;
        Ok(Contents::Artifact { number, manifest: listed.manifest, chosen: true })
    }
}

impl Scope {
    /// A request of a read-only store that starts now.
    pub fn read_only(cluster: &Arc<Cluster>, store: &ReadOnlyStore) -> Scope {
        Scope {
            definition: Arc::new(store.as_store()),
            store: StoreRef::from(&store.name),
            contents: Contents::served(store),
            cluster: cluster.clone(),
            epoch: Epoch::default(),
        }
    }

    /// The same request under a newer document: of what the store serves by that, or of the artifact that was chosen.
    pub(super) fn under(&self, cluster: &Arc<Cluster>, store: &ReadOnlyStore) -> Result<Scope, Failure> {
        let scope = Scope::read_only(cluster, store);
        match self.contents {
            Contents::Artifact { number, chosen: true, .. } => {
                Ok(Scope { contents: Contents::chosen(store, number)?, ..scope })
            }
            _ => Ok(scope),
        }
    }

    /// Asks for a page of a partition of this scope's ring, behind a record. `None` when there is nothing to ask for: the store
    /// serves no artifact yet.
    pub fn scan_request(
        &self,
        partition: &Partition,
        after: Option<ScanAfter>,
        records_max: u32,
        bytes_max: u32,
    ) -> Option<Request> {
        let (store, generation) = (self.store.clone(), self.cluster.generation);
        match self.contents {
            Contents::Nothing => None,
            Contents::Versions => {
                let since = self.cluster.accepted_since(&self.definition, partition);
                let partition = partition.id;
                Some(Scan { since, store, generation, partition, after, records_max, bytes_max }.into())
            }
            Contents::Artifact { number, manifest, .. } => {
                let (first, last) = self.cluster.ring.bounds(partition.id).expect("it is of this ring");
                let scan = ArtifactScan {
                    store,
                    generation,
                    number,
                    manifest,
                    first,
                    last,
                    after,
                    records_max,
                    bytes_max,
                };
                Some(scan.into())
            }
        }
    }

    /// Whether the request reads an artifact, or the nothing before the first.
    pub(crate) fn is_read_only(&self) -> bool {
        self.contents != Contents::Versions
    }
}

impl<T> Desk<T> {
    /// The message that asks a node what it holds of keys, as what it is asked.
    pub(super) fn fetch_request(&self, role: Role, keys: SmallVec<[Bytes; 1]>) -> Request {
        let (store, generation) = (self.scope.store.clone(), self.scope.cluster.generation);
        match self.scope.contents {
            Contents::Artifact { number, manifest, .. } => {
                ArtifactGet { store, generation, number, manifest, keys }.into()
            }
            Contents::Versions | Contents::Nothing => {
                ReplicaGet { terms: Terms { since: self.since, role }, store, generation, keys }.into()
            }
        }
    }

    /// The same for one key of this node.
    pub(super) fn fetch_one(&self, node: NodeId, key: &Bytes) -> Request {
        let mut keys = SmallVec::new();
        keys.push(key.clone());
        self.fetch_request(self.scope.role(node, key), keys)
    }
}
