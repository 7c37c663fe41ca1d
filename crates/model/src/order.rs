//! Orders: what somebody wants of the headmaster, and what came of it.
//!
//! An order is a document; the headmaster writes its answer beside it. An order for whose answer nobody waits any more is
//! carried out all the same. Answers are data: a code and facts. What a person reads is made where the person is.
//!
//! **Architecture Invariant:** whatever shall change in the cluster document of a running cluster is an order, or what
//! follows from one.

mod answer;
mod office;
mod refusal;

use serde::{Deserialize, Serialize};

use crate::access::UserChange;
use crate::artifacts::ArtifactOrder;
use crate::balance::PolicyChange;
use crate::node::{NodeId, Role, Weight};
use crate::plan::{Consent, Wish};
use crate::store::{Consistency, Store};

pub use answer::{Done, OrderOutcome};
pub use office::{Balancing, Holder, Office};
pub use refusal::{Holds, OrderRefusal, Stale};

/// What shall be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Order {
    /// Create a plan.
    Create {
        /// For what.
        wish: Wish,
        /// What it may do.
        consent: Consent,
    },
    /// Carry a plan out.
    Apply {
        /// Its number.
        plan: u64,
    },
    /// End a plan: what has not settled goes back.
    Abort {
        /// Its number.
        plan: u64,
    },
    /// Let no partition of a plan take a step.
    Pause {
        /// Its number.
        plan: u64,
    },
    /// Let them take steps again.
    Resume {
        /// Its number.
        plan: u64,
    },
    /// Name a node that is registered in the cluster document.
    Admit {
        /// The node.
        node: NodeId,
    },
    /// Take all data from a node, and the node out of the cluster when it holds nothing.
    Drain {
        /// The node.
        node: NodeId,
        /// What that may do.
        consent: Consent,
    },
    /// Let a node take the places of one that is dead for good.
    Replace {
        /// The one that is dead.
        node: NodeId,
        /// The one that takes its places.
        by: NodeId,
        /// What that may do.
        consent: Consent,
    },
    /// Give a store other numbers.
    Renumber {
        /// The store.
        store: String,
        /// The next N, R and W.
        numbers: Consistency,
        /// What that may do.
        consent: Consent,
    },
    /// Take a node that holds nothing out of the cluster.
    Remove {
        /// The node.
        node: NodeId,
    },
    /// Change how much of the data a node shall carry.
    Weigh {
        /// The node.
        node: NodeId,
        /// Its weight.
        weight: Weight,
    },
    /// Change what the cluster wants of a node.
    Cast {
        /// The node.
        node: NodeId,
        /// Its role.
        role: Role,
    },
    /// Say where a node can be reached from now on. The node itself orders it.
    Readdress {
        /// The node.
        node: NodeId,
        /// Where the native protocol listens.
        native: String,
        /// Where Redis clients connect, if anywhere.
        resp: Option<String>,
        /// Where HTTP clients connect, if anywhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        http: Option<String>,
        /// Whether it is called with TLS, never without.
        #[serde(default)]
        tls: bool,
    },
    /// Create a store that takes writes.
    CreateStore {
        /// As it shall be.
        store: Box<Store>,
    },
    /// Create a store that takes writes, and whose keys do not lie by their hash. A separate verb: a headmaster of before
    /// would pass over where they lie, and carry the other one out.
    CreatePlacedStore {
        /// As it shall be.
        store: Box<Store>,
    },
    /// Change what the autopilot may do.
    Balance {
        /// What.
        change: PolicyChange,
    },
    /// Change what read-only stores list and serve.
    Artifacts {
        /// How.
        order: ArtifactOrder,
    },
    /// Change who may use the cluster. The first user closes it.
    User {
        /// How.
        user: UserChange,
    },
}

impl Order {
    /// Creates a store, by the verb that no headmaster misunderstands.
    pub fn create_store(store: Store) -> Order {
        let (is_hash, store) = (store.placement.is_hash(), Box::new(store));
        if is_hash { Order::CreateStore { store } } else { Order::CreatePlacedStore { store } }
    }
}

/// An order as it is kept, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderDocument {
    /// What shall be done.
    pub order: Order,
    /// Who gave it, for people who look.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub given_ms: u64,
    /// What came of it; `None` until a headmaster has seen to it.
    pub answer: Option<OrderOutcome>,
}

/// An order with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Its number.
    pub number: u64,
    /// What it says.
    pub document: OrderDocument,
}
