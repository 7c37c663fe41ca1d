//! Why a node does not start.
//!
//! Must never: leave the reader without what to do next.

use coordination::documents::{AddressTaken, ReadError, RegisterError};
use model::{Epoch, NodeId};
use storage::StorageError;
use thiserror::Error;

use super::joining::is_passing;
use crate::identity::IdentityError;

impl StartError {
    /// Whether the same start may succeed later, without anybody's doing but that of the coordination service, the disk,
    /// or another process that ends.
    pub fn is_passing(&self) -> bool {
        match self {
            StartError::Identity(error) => matches!(error, IdentityError::InUse | IdentityError::Disk(_)),
            StartError::Register(RegisterError::Coordination(error)) => is_passing(error),
            // It may have been this node's own: a start that was killed between its registration and the first write of
            // its identity leaves an incarnation that its directory does not know.
            StartError::Register(RegisterError::AlreadyActive { .. }) => true,
            StartError::NoCluster { passes, .. } => *passes,
            StartError::Storage { .. }
            | StartError::Elsewhere(_)
            | StartError::PastUnknown { .. }
            | StartError::PastChanged { .. }
            | StartError::EpochUnknown { .. } => true,
            _ => false,
        }
    }
}

/// Why a node did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory is not this node's, in use, or damaged.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A store's records cannot be opened.
    #[error("cannot open store {store}: {error}")]
    Storage {
        /// The store, or `hints`.
        store: String,
        /// Why.
        error: StorageError,
    },
    /// Another living node has this id.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Another node has the address that this one claims.
    #[error(transparent)]
    AddressTaken(#[from] AddressTaken),
    /// There is no cluster document, neither in the coordination service nor as a local copy.
    #[error(
        "cannot find the cluster document: the coordination service has none ({detail}), and neither has the data \
             directory; create the cluster first"
    )]
    NoCluster {
        /// What the service said.
        detail: String,
        /// Whether it may say something else after a while: it could not be asked.
        passes: bool,
    },
    /// The cluster document is that of another cluster.
    #[error(
        "this node belongs to cluster {wanted:?}, but the coordination service holds cluster {found:?}; check the service's \
             address and the cluster's name"
    )]
    OtherCluster {
        /// The name there.
        found: String,
        /// The name here.
        wanted: String,
    },
    /// The documents are in another service.
    #[error(transparent)]
    Elsewhere(ReadError),
    /// The data directory holds nothing yet, and nobody says whether the node has lost its disk or never was before.
    #[error(
        "cannot tell whether {node} is new or has lost its disk: its data directory is empty, and the coordination \
             service did not answer ({detail}); start it again when the service answers"
    )]
    PastUnknown {
        /// Which node.
        node: NodeId,
        /// What the service said.
        detail: String,
    },
    /// What the coordination service said of the node's past was not the last word.
    #[error(
        "the coordination service first answered without the newest of what it knows of {node}: one of its servers lags \
             behind, or another process of {node} has just ended; start it again"
    )]
    PastChanged {
        /// Which node.
        node: NodeId,
    },
    /// The data directory holds nothing yet, and nobody says with which collection epoch it begins.
    #[error(
        "cannot tell the collection epoch of an empty data directory: the coordination service did not answer \
             ({detail}); start again when the service answers"
    )]
    EpochUnknown {
        /// What the service said.
        detail: String,
    },
    /// The data directory is a copy of earlier days: what it holds may have been deleted and forgotten since.
    #[error(
        "the data directory was restored from an older copy and may hold deleted values: it is at collection epoch \
             {found}, and the cluster has completed {completed}; start with an empty directory"
    )]
    RolledBack {
        /// What the directory remembers.
        found: Epoch,
        /// What all members have carried out.
        completed: Epoch,
    },
    /// The cluster document says that this node is gone.
    #[error(
        "{node} of cluster {cluster:?} was declared dead, and others take its place: it must not serve what it held; choose \
             an empty directory for a new node"
    )]
    Gone {
        /// This node.
        node: NodeId,
        /// The cluster.
        cluster: String,
    },
    /// The cluster document does not name this node.
    #[error("{node} is not a member of cluster {cluster:?}; add it to the cluster first")]
    NotMember {
        /// This node.
        node: NodeId,
        /// The cluster.
        cluster: String,
    },
}
