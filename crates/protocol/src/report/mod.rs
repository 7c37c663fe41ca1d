//! What a node says of itself: one report, of the parts that were asked for.
//!
//! ```text
//!   node ── Report as JSON ──▶ headmaster: facts, sizes, artifacts, silences
//!                          └─▶ commands: `status`, `doctor`, `node list`, `repair status`, `artifact list`
//! ```
//!
//! Its form is that of its JSON, which travels between nodes and which `-o json` shows. A reader skips fields that it does
//! not know, so a later version may add some; a field that is added needs `#[serde(default)]`.
//!
//! **Architecture Invariant:** a report is made when it is asked for and at no other time: no request pays for it. Nothing
//! here is kept up to date.

mod artifacts;
mod chores;
mod demand;
mod facts;
mod load;
mod nodes;
mod rebalance;
mod repair;
mod status;

use std::ops::BitOr;

use model::{Generation, NodeId, StoreName, WallMillis};
use serde::{Deserialize, Serialize};

use crate::artifacts::PushReport;

pub use artifacts::{
    ArtifactProgress, ArtifactScrub, ArtifactState, ArtifactTrouble, ArtifactsReport, Fetching,
};
pub use chores::{ChoreError, ChoreReport, ChoreState};
pub use demand::{KeyCounts, StoreDemand};
pub use facts::{Entered, Facts, NodeFacts};
pub use load::{HotKey, LoadReport, Middle, PARTITIONS_TOLD, PartitionLoad, WorkDone};
pub use nodes::{NodeLoad, NodeSeen};
pub use rebalance::{Leftover, PartitionEntered, RebalanceReport};
pub use repair::{
    Compared, Comparing, Comparison, PartitionTree, RefillReport, RepairPart, RepairReport, Scrub, ScrubRun,
    Scrubbed, StoreRefill, StoreTrees,
};
pub use status::{CollectionReport, HintsHeld, HintsState, Installation, Status, StoreStatus, TlsStatus};

/// What one node says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The node.
    pub node: NodeId,
    /// The incarnation under which it says all of this: in another one it may have lost what it held.
    pub incarnation: u64,
    /// When it said so, by its clock.
    pub at_ms: WallMillis,
    /// The generation of the cluster document that it follows.
    pub generation: Generation,
    /// Its process, its disk and its stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// How far it is with partitions that move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves: Option<RebalanceReport>,
    /// What it believes about all nodes, itself included, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeSeen>>,
    /// How it compares and verifies its records, and how far it is with those that it lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<RepairReport>,
    /// How far it is with artifacts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<ArtifactsReport>,
    /// What work it has done, for which partitions, and with what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadReport>,
    /// The keys with most work lately of each partition, those first that have most: some of each partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<HotKey>>,
}

/// Which parts of a report are wanted: some walk over all stores, or grow with the cluster. A node leaves out those that it
/// does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts(pub u16);

impl Parts {
    /// [`Report::status`].
    pub const STATUS: Parts = Parts(1);
    /// [`Report::moves`].
    pub const MOVES: Parts = Parts(1 << 1);
    /// [`Report::nodes`].
    pub const NODES: Parts = Parts(1 << 2);
    /// [`Report::repair`].
    pub const REPAIR: Parts = Parts(1 << 3);
    /// [`Report::artifacts`].
    pub const ARTIFACTS: Parts = Parts(1 << 4);
    /// [`Report::load`].
    pub const LOAD: Parts = Parts(1 << 5);
    /// [`Report::keys`].
    pub const KEYS: Parts = Parts(1 << 6);

    /// Whether all of `parts` are among these.
    pub fn has(self, parts: Parts) -> bool {
        self.0 & parts.0 == parts.0
    }
}

impl BitOr for Parts {
    type Output = Parts;
    fn bitor(self, other: Parts) -> Parts {
        Parts(self.0 | other.0)
    }
}

impl Report {
    /// Without any part.
    pub fn new(node: NodeId, incarnation: u64, at_ms: WallMillis, generation: Generation) -> Report {
        Report {
            node,
            incarnation,
            at_ms,
            generation,
            status: None,
            moves: None,
            nodes: None,
            repair: None,
            artifacts: None,
            load: None,
            keys: None,
        }
    }

    /// What a step may depend on, where it says how far it is with moves. The node's present incarnation is the one that
    /// it says; a caller that knows better, because the node is registered under another one, says that instead.
    pub fn facts(&self) -> Option<NodeFacts> {
        self.moves.as_ref().map(|moves| moves.facts(self.incarnation))
    }

    /// The artifacts of which it holds all that it needs, with their stores.
    pub fn staged(&self) -> Vec<(StoreName, PushReport)> {
        let listed = self.artifacts.iter().flat_map(|artifacts| &artifacts.listed);
        let staged = listed.filter(|artifact| artifact.state == ArtifactState::Staged).map(|artifact| {
            let ArtifactProgress { number, manifest, whole_under: generation, .. } = *artifact;
            (artifact.store.clone(), PushReport { node: self.node, generation, number, manifest })
        });
        staged.collect()
    }

    /// What it believes about another node.
    pub fn seen(&self, node: NodeId) -> Option<&NodeSeen> {
        self.nodes.as_ref()?.iter().find(|seen| seen.node == node)
    }

    /// How far it is with what it lost, where it says so and has lost something.
    pub fn refill(&self) -> Option<&RefillReport> {
        self.repair.as_ref()?.refill.as_ref()
    }
}
