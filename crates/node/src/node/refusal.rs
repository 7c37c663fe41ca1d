//! Why a node does not start.
//!
//! Must never: leave the reader without what to do next.

use coordination::documents::RegisterError;
use model::{Epoch, NodeId};
use storage::StorageError;
use thiserror::Error;

use crate::identity::IdentityError;

/// Why a node did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory is not this node's, in use, or damaged.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A store's records cannot be opened.
    #[error("store {store} cannot be opened: {error}")]
    Storage {
        /// The store, or `hints`.
        store: String,
        /// Why.
        error: StorageError,
    },
    /// Another living node has this id.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// There is no cluster document, neither in the coordination service nor as a local copy.
    #[error(
        "the coordination service has no cluster document ({detail}) and the data directory has no copy of one; \
             create the cluster first"
    )]
    NoCluster {
        /// What the service said.
        detail: String,
    },
    /// The cluster document is that of another cluster.
    #[error("the coordination service holds cluster {found:?}, this node belongs to {wanted:?}")]
    OtherCluster {
        /// The name there.
        found: String,
        /// The name here.
        wanted: String,
    },
    /// The data directory holds nothing yet, and nobody says whether the node has lost its disk or never was before.
    #[error(
        "the data directory holds nothing yet, and the coordination service does not say whether node {node} was there \
             before ({detail}); start again when the service answers"
    )]
    PastUnknown {
        /// Which node.
        node: NodeId,
        /// What the service said.
        detail: String,
    },
    /// The data directory holds nothing yet, and nobody says with which collection epoch it begins.
    #[error(
        "the data directory holds nothing yet, and the coordination service does not say which collection epoch it \
             begins with ({detail}); start again when the service answers"
    )]
    EpochUnknown {
        /// What the service said.
        detail: String,
    },
    /// The data directory is a copy of earlier days: what it holds may have been deleted and forgotten since.
    #[error(
        "the data directory remembers collection epoch {found}, the cluster has completed {completed}: it was restored \
             from an older copy and may hold what was deleted since; start with an empty directory"
    )]
    RolledBack {
        /// What the directory remembers.
        found: Epoch,
        /// What all members have carried out.
        completed: Epoch,
    },
    /// The cluster document does not name this node.
    #[error("{node} is not a node of cluster {cluster:?}; add it to the cluster first")]
    NotMember {
        /// This node.
        node: NodeId,
        /// The cluster.
        cluster: String,
    },
}
