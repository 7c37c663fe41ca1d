//! Whom the steps of a move wait for.

use serde::{Deserialize, Serialize};

use crate::generation::Generation;
use crate::node::NodeId;
use crate::ring::Step;
use crate::store::StoreName;

/// Whom a step waits for. A partition that waits names each store and each node that holds it up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum Waiting {
    /// A node that enters has yet to bring the partition in.
    Copy {
        /// The node.
        node: NodeId,
    },
    /// A node that enters has yet to compare with old replicas that refuse what is older than the present step.
    Compare {
        /// The store.
        store: StoreName,
        /// The node that enters.
        node: NodeId,
        /// The old replica whose place it takes: that one is enough.
        with: Option<NodeId>,
        /// Otherwise: old replicas that it has not merged with, and how many of them it must.
        others: Vec<NodeId>,
        /// How many of the others.
        missing: usize,
    },
    /// Old replicas have yet to adopt the document of the present step: those left could still answer older gets.
    Adopt {
        /// The store.
        store: StoreName,
        /// Old replicas that have not adopted it.
        nodes: Vec<NodeId>,
        /// How many of them must.
        missing: usize,
        /// The generation that they must adopt.
        generation: Generation,
    },
}

/// A step that cannot be taken while nodes are away that are away now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blocked {
    /// The step.
    pub step: Step,
    /// Whom it waits for.
    pub waiting: Waiting,
    /// Of how many partitions.
    pub partitions: usize,
}
