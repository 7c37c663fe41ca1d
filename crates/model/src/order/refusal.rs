//! Why an order is refused.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::UserError;
use crate::artifacts::ArtifactNumber;
use crate::balance::SettingError;
use crate::cluster::{ArtifactsError, CreateStoreError};
use crate::generation::Generation;
use crate::node::{LifeSign, NodeId};
use crate::plan::{self, Phase};
use crate::store::StoreName;

/// Why an order is refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum OrderRefusal {
    /// There is no plan of this number.
    PlanUnknown {
        /// As asked for.
        plan: u64,
    },
    /// The headmaster does not understand the plan: a later version created it.
    PlanNotUnderstood {
        /// Its number.
        plan: u64,
        /// What is not understood.
        detail: String,
    },
    /// What has become of the plan allows it no more, or not yet.
    PlanIs {
        /// Its number.
        plan: u64,
        /// What has become of it; `None` when it was only created.
        phase: Option<Phase>,
    },
    /// Another plan is being carried out, and one plan is at a time.
    OtherPlan {
        /// The other one.
        other: u64,
    },
    /// The plan is not what the cluster needs any more.
    PlanStale {
        /// Its number.
        plan: u64,
        /// The generation that it was computed from.
        then: Generation,
        /// The present one.
        now: Generation,
        /// What is otherwise.
        because: Stale,
    },
    /// A setting of the autopilot cannot be so.
    Setting {
        /// Why not.
        because: SettingError,
    },
    /// No standby will take the places of this node, so there is nothing to veto.
    VetoNeedless {
        /// The node.
        node: NodeId,
        /// Whether its places are being taken already; otherwise it is there.
        is_gone: bool,
    },
    /// The plan does not hold together: its linter found this.
    PlanUnsound {
        /// What the linter found, by code.
        findings: Vec<String>,
    },
    /// The plan has more moves than a document holds.
    PlanTooLarge {
        /// How many.
        moves: usize,
    },
    /// The wish cannot be fulfilled.
    Wish(plan::PlanRefusal),
    /// A node runs a version that does not understand the document that the order would make.
    NodeTooOld {
        /// The node.
        node: NodeId,
    },
    /// A node to which data would move does not say how far it is with moves.
    NodeDeaf {
        /// The node.
        node: NodeId,
        /// Why it was not heard.
        detail: String,
    },
    /// The cluster has no such node.
    NodeUnknown {
        /// As asked for.
        node: NodeId,
    },
    /// The node is a member that is leaving.
    NodeIsLeaving {
        /// The node.
        node: NodeId,
    },
    /// The node is not registered: it does not run, or waits nowhere.
    NodeNotRegistered {
        /// The node.
        node: NodeId,
    },
    /// The node was a member and has left: what it holds is old.
    NodeWasMember {
        /// The node.
        node: NodeId,
    },
    /// Another node has an address that the node claims.
    AddressTaken {
        /// The node.
        node: NodeId,
        /// The address.
        address: String,
        /// Who has it.
        other: NodeId,
    },
    /// The cluster has no other node.
    OnlyNode {
        /// The node.
        node: NodeId,
    },
    /// The node holds something.
    NodeHolds {
        /// The node.
        node: NodeId,
        /// What.
        holds: Holds,
        /// Whether it leaves by itself when it holds nothing.
        is_leaving: bool,
        /// Whether it is registered.
        is_registered: bool,
        /// Another member that is away, and may lack what it holds.
        away: Option<NodeId>,
    },
    /// A plan that is carried out gives the node partitions.
    PlanGives {
        /// The node.
        node: NodeId,
        /// The plan.
        plan: u64,
    },
    /// A plan that is carried out takes all its data from the node.
    PlanEmpties {
        /// The node.
        node: NodeId,
        /// The plan.
        plan: u64,
    },
    /// The node does not look dead.
    NotDead {
        /// The node.
        node: NodeId,
        /// The one that would take its places.
        by: NodeId,
        /// What speaks against it.
        because: LifeSign,
    },
    /// A node cannot take its own places.
    OwnPlaces {
        /// The node.
        node: NodeId,
    },
    /// A node follows a newer cluster document than the coordination service holds: that was restored from an older copy.
    Restored {
        /// The node.
        node: NodeId,
        /// The generation by which it goes.
        generation: Generation,
    },
    /// The cluster document that would follow contradicts itself.
    Invalid {
        /// The first thing that does not hold.
        detail: String,
    },
    /// The cluster can have no such store.
    Store(CreateStoreError),
    /// The read-only store refuses it.
    Artifact(ArtifactsError),
    /// Too few replicas hold the artifact that would be served.
    NotStaged {
        /// The store.
        store: StoreName,
        /// The artifact.
        number: ArtifactNumber,
        /// Slices of which too few replicas hold it.
        slices: usize,
        /// Slices in all.
        slices_total: usize,
        /// Their replicas that do not answer.
        silent: Vec<NodeId>,
        /// Their replicas that lack it.
        lacking: Vec<NodeId>,
        /// This many replicas of each slice hold it, if at least one does.
        held_by: Option<u8>,
    },
    /// Users cannot change so.
    User(UserError),
    /// A cluster with users calls each node with TLS, and this one is called without.
    NodeWithoutTls {
        /// The node.
        node: NodeId,
    },
    /// A node runs a version that would serve anyone, users or not.
    NodeServesAnyone {
        /// The node.
        node: NodeId,
    },
}

impl OrderRefusal {
    /// Its code: the innermost one, for a refusal that has another one as its fact, with the word for what that is about.
    pub fn code(&self) -> String {
        let about = match self {
            OrderRefusal::Store(_) => "store-",
            OrderRefusal::Artifact(_) => "artifact-",
            OrderRefusal::User(_) => "user-",
            OrderRefusal::Wish(plan::PlanRefusal::Numbers(_)) => "numbers-",
            _ => "",
        };
        format!("{about}{}", self.innermost())
    }

    fn innermost(&self) -> String {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        loop {
            match value.get("facts") {
                Some(facts) if facts.get("code").is_some_and(Value::is_string) => value = facts.clone(),
                _ => return value["code"].as_str().unwrap_or_default().to_owned(),
            }
        }
    }
}

/// Why a plan is not what the cluster needs any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum Stale {
    /// Other moves would do it now.
    OtherMoves,
    /// It would cut or join elsewhere.
    OtherBounds,
    /// The store has other numbers.
    OtherNumbers,
    /// The wish cannot be fulfilled any more.
    Refused(plan::PlanRefusal),
}

/// What a node holds that keeps it in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum Holds {
    /// It is a replica of partitions.
    Places {
        /// How many.
        partitions: usize,
    },
    /// It is a fallback, or enters partitions.
    Listed,
    /// It does not say what it holds.
    Silent,
    /// It does not follow the newest document yet, so what it says does not count.
    NotAdopted {
        /// The newest.
        generation: Generation,
    },
    /// Hints for other nodes.
    Hints {
        /// How many.
        hints: u64,
    },
    /// Records that other nodes may lack.
    Records {
        /// How many.
        records: u64,
    },
}
