//! How far a node is with the artifacts of read-only stores.

use model::{ArtifactNumber, Generation, ManifestDigest, StoreName};
use serde::{Deserialize, Serialize};

/// How far a node is with artifacts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactsReport {
    /// Each artifact that the cluster document lists.
    pub listed: Vec<ArtifactProgress>,
    /// What it fetches and gives.
    pub fetching: Fetching,
    /// How far it is with reading all files.
    pub scrub: ArtifactScrub,
}

/// How far a node is with one artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactProgress {
    /// The store that lists it.
    pub store: StoreName,
    /// Its number.
    pub number: ArtifactNumber,
    /// The digest of its manifest.
    pub manifest: ManifestDigest,
    /// The artifact that it was built upon, where the node has its manifest.
    pub parent: Option<ArtifactNumber>,
    /// For how long the node has served it, if it began since it started.
    pub serving_ms: Option<u64>,
    /// What is done with it.
    pub state: ArtifactState,
    /// The generation of the document by which it is whole at the node; 0 before.
    pub whole_under: Generation,
    /// Bytes of files that are there, of those that the node owns.
    pub bytes: u64,
    /// Bytes of files that the node owns.
    pub bytes_total: u64,
    /// Bytes that were fetched since the node started. What was there before, and is gone on after, does not count.
    pub bytes_fetched: u64,
    /// Bytes of these that came as deltas.
    pub bytes_fetched_as_deltas: u64,
    /// Chunks that are there.
    pub chunks: u64,
    /// Chunks that the node owns.
    pub chunks_total: u64,
    /// What went wrong.
    pub error: Option<String>,
    /// What kind of trouble that is.
    pub trouble: Option<ArtifactTrouble>,
}

/// What a node does with an artifact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArtifactState {
    /// It is its turn soon.
    #[default]
    Waiting,
    /// It is on its way.
    Fetching,
    /// All that the node owns of it is there and read.
    Staged,
    /// Something went wrong; it is tried again.
    Failed,
}

impl ArtifactState {
    /// Its name for programs and people.
    pub fn name(self) -> &'static str {
        match self {
            ArtifactState::Waiting => "waiting",
            ArtifactState::Fetching => "fetching",
            ArtifactState::Staged => "staged",
            ArtifactState::Failed => "failed",
        }
    }
}

/// What is in the way of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArtifactTrouble {
    /// Neither the source nor a replica gives it.
    Source,
    /// What the source gives is not what was pushed.
    Corrupt,
    /// The node's disk has too little room.
    Room,
    /// Artifacts would take more of the node's disk than its operator allows.
    Quota,
    /// The node itself.
    Node,
}

/// What a node fetches of artifacts, and gives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// Bytes a second that come.
    pub rate_bytes_per_second: u64,
    /// Bytes a second that may come now.
    pub pace_bytes_per_second: u64,
    /// Bytes a second that may come at most.
    pub ceiling_bytes_per_second: u64,
    /// Bytes that came from sources, since the node started.
    pub bytes_from_source: u64,
    /// Bytes that came from other nodes, since the node started.
    pub bytes_from_replicas: u64,
    /// Bytes that were given to other nodes, since the node started.
    pub bytes_given: u64,
    /// For how long fetching was held back, since the node started.
    pub held_ms: u64,
    /// Chunks found corrupt since the node started.
    pub chunks_corrupt: u64,
    /// Those of them that have not come again.
    pub chunks_corrupt_now: u64,
}

/// How far a node is with reading all files of artifacts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactScrub {
    /// Passes over all files, since the node started.
    pub passes: u64,
    /// Since the last one ended.
    pub seconds_ago: Option<u64>,
    /// Files that it has.
    pub files: u64,
    /// Those that this pass has read.
    pub files_done: u64,
    /// Bytes that were read, since the node started.
    pub bytes: u64,
    /// Files that were damaged, since the node started.
    pub damaged: u64,
    /// Whether an operator ordered this pass.
    pub ordered: bool,
}
