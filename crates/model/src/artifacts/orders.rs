//! Orders about read-only stores, as they come over the wire.
//!
//! Must never: pass over a field that this program does not know, since the order would be another one without it.

use serde::{Deserialize, Serialize};

use super::{ArtifactNumber, ManifestDigest};
use crate::store::StoreName;

/// What a user asks of a read-only store. Each is one change of the cluster document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ArtifactOrder {
    /// Create the store.
    Create {
        /// Its name.
        store: StoreName,
        /// N.
        replicas: u8,
        /// Artifacts that are kept beside the served one; 1 by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<u8>,
    },
    /// Keep this many artifacts beside the served one, from the next swap on.
    Keep {
        /// The store.
        store: StoreName,
        /// How many.
        kept: u8,
    },
    /// List an artifact, which nodes then fetch. One that is listed comes from this source from now on.
    Stage {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
        /// Digest of its manifest.
        manifest: ManifestDigest,
        /// Where nodes fetch it.
        source: String,
    },
    /// List an artifact, or name another source of a listed one, and serve it by itself when enough replicas of each slice
    /// hold it.
    Push {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
        /// Digest of its manifest.
        manifest: ManifestDigest,
        /// Where nodes fetch it.
        source: String,
        /// Replicas of each slice that must hold it. By default as many as its push asks for already; all of a new push.
        #[serde(default)]
        replicas: Option<u8>,
        /// After this many milliseconds it is aborted unless it is served. By default when its push says so already; never of
        /// a new push.
        #[serde(default)]
        abort_after_ms: Option<u64>,
    },
    /// Serve an artifact, when enough replicas of each slice hold it.
    Swap {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
        /// Replicas of each slice that must hold it; all by default.
        #[serde(default)]
        replicas: Option<u8>,
        /// Refuse it when it was served before: a push that goes on undoes no rollback.
        #[serde(default)]
        first: bool,
    },
    /// Serve the artifact from before the served one, when enough replicas of each slice hold it.
    Rollback {
        /// The store.
        store: StoreName,
        /// Replicas of each slice that must hold it; all by default.
        #[serde(default)]
        replicas: Option<u8>,
    },
    /// Forget an artifact that is not served.
    Delete {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
    },
    /// Forget an artifact that was never served.
    Abort {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
    },
}

impl ArtifactOrder {
    /// The store that it is about.
    pub fn store(&self) -> &StoreName {
        match self {
            ArtifactOrder::Create { store, .. }
            | ArtifactOrder::Keep { store, .. }
            | ArtifactOrder::Stage { store, .. }
            | ArtifactOrder::Push { store, .. }
            | ArtifactOrder::Swap { store, .. }
            | ArtifactOrder::Rollback { store, .. }
            | ArtifactOrder::Delete { store, .. }
            | ArtifactOrder::Abort { store, .. } => store,
        }
    }
}
