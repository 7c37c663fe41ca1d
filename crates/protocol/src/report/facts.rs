//! What nodes have said of themselves, and what is known of them: what a next step may depend on.
//!
//! A fact names the incarnation of the node that stated it. A node that loses its disk takes another incarnation, and
//! what it had said before is void.
//!
//! Must never: say what follows from a fact. `protocol::rebalance::steps` does.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use model::{Cluster, Generation, NodeId, PartitionId, StoreName};

/// Everything that is known of nodes, at some moment. What is known too late only delays a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// By node. One that is not here has said nothing.
    pub nodes: BTreeMap<NodeId, NodeFacts>,
}

/// What is known of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its present incarnation, as it is registered; `None` when it is not registered, and the last one is not known.
    pub incarnation: Option<u64>,
    /// The incarnation and the generation under which it has adopted a document: that is durable at the node, and
    /// nothing that was admitted under an older one is still being carried out.
    pub adopted: Option<(u64, Generation)>,
    /// It will never answer again: an operator said so, and it answers nobody. The document says it, too.
    pub gone: bool,
    /// How far it has come with partitions that it enters.
    pub entered: BTreeMap<PartitionId, Entered>,
}

/// How far a node has come with a partition that it enters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entered {
    /// Its incarnation.
    pub incarnation: u64,
    /// It has adopted the document of this generation, and what follows was done since.
    pub generation: Generation,
    /// Whether it has brought in all that its sources held, for each store of which it becomes a replica.
    pub whole: bool,
    /// By store: the old replicas that it has compared and merged with, each of which said in its answers that it is
    /// whole itself, and that it was at [`Entered::generation`] or later.
    pub merged: BTreeMap<StoreName, BTreeSet<NodeId>>,
}

impl Facts {
    /// With what a document says of nodes that are gone.
    pub(crate) fn and_gone<'a>(&'a self, cluster: &Cluster) -> Cow<'a, Facts> {
        let mut facts = Cow::Borrowed(self);
        for node in cluster.nodes.iter().filter(|node| node.gone) {
            facts.to_mut().nodes.entry(node.id).or_default().gone = true;
        }
        facts
    }

    /// Whether the node refuses requests that were formed before this generation, and always will.
    pub(crate) fn refuses_before(&self, node: NodeId, generation: Generation) -> bool {
        let Some(known) = self.nodes.get(&node) else { return false };
        known
            .adopted
            .is_some_and(|(incarnation, adopted)| known.is_present(incarnation) && adopted >= generation)
    }

    /// Whether the node is gone for good.
    pub(crate) fn is_gone(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|known| known.gone)
    }

    /// What the node has said of a partition that it enters, at this generation or later.
    pub(crate) fn entered(
        &self,
        node: NodeId,
        partition: PartitionId,
        since: Generation,
    ) -> Option<&Entered> {
        let known = self.nodes.get(&node)?;
        let entered = known.entered.get(&partition)?;
        (known.is_present(entered.incarnation) && entered.generation >= since).then_some(entered)
    }
}

impl NodeFacts {
    /// Whether what was said in this incarnation still holds.
    fn is_present(&self, incarnation: u64) -> bool {
        self.incarnation.is_none_or(|present| present == incarnation)
    }
}
