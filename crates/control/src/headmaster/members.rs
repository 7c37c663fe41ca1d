//! Nodes that come and go.
//!
//! Where a node can be reached, it writes into the cluster document itself (`coordination::documents::readdress`): a
//! headmaster that went by registrations would write the old address again while the one of a killed process lasts.
//!
//! Must never: admit a node that was a member and has left. Its process may run and be registered for a while.

use coordination::documents::{MembershipError, admit, read_member};
use model::{Cluster, Generation, NodeId, Role};

use super::office::{Office, Scene, TurnError};
use super::reports::Report;

impl Office {
    /// Names the nodes that wait for it.
    pub(super) async fn admit_waiting(&mut self, scene: &Scene) -> Result<bool, TurnError> {
        if !self.options.admits {
            return Ok(false);
        }
        let mut waiting = Vec::new();
        for active in &scene.active {
            let id = active.node.id;
            if scene.cluster.node(id).is_none() && read_member(&*self.service, id).await?.is_none() {
                waiting.push(active.clone());
            }
        }
        if waiting.is_empty() {
            return Ok(false);
        }
        self.pace().await;
        match admit(&*self.service, &waiting).await {
            Ok(_) => {
                let nodes: Vec<String> = waiting.iter().map(|active| active.node.id.to_string()).collect();
                tracing::info!(nodes = nodes.join(", "), "nodes admitted");
                Ok(true)
            }
            Err(MembershipError::Publish(error)) => Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "nodes not admitted");
                Ok(false)
            }
        }
    }

    /// Takes nodes that leave out of the document when they hold nothing.
    pub(super) async fn release_leaving(&mut self, scene: &Scene) -> Result<bool, TurnError> {
        let cluster = &scene.cluster;
        let leaving = cluster.nodes.iter().filter(|node| node.role == Role::Leaving).map(|node| node.id);
        let leaving: Vec<NodeId> = leaving.filter(|&node| !is_listed(cluster, node)).collect();
        if leaving.is_empty() {
            return Ok(false);
        }
        self.busy = true;
        self.ask(scene, &leaving).await?;
        // One that is gone has nothing to say. Should it be there after all, it gives back what others lack.
        let is_gone =
            |node| cluster.node(node).is_some_and(|entry| entry.gone) && scene.active(node).is_none();
        let free = |node: &NodeId| is_gone(*node) || holds(cluster, *node, self.report(*node)).is_none();
        let Some(node) = leaving.into_iter().find(free) else { return Ok(false) };
        self.publish(&without(cluster, node)).await?;
        tracing::info!(%node, "node left the cluster");
        Ok(true)
    }
}

/// Whether a partition names a node, as a replica, a fallback, or one to come.
pub(super) fn is_listed(cluster: &Cluster, node: NodeId) -> bool {
    cluster.ring.partitions().iter().any(|partition| {
        let coming = partition.coming.iter().flat_map(|coming| &coming.nodes);
        partition.nodes.iter().chain(coming).any(|&listed| listed == node)
    })
}

/// Why a node may not leave yet, by what it said last.
pub(super) fn holds(cluster: &Cluster, node: NodeId, report: Option<&Report>) -> Option<String> {
    let replicas = cluster.replicas_max();
    let places = cluster.ring.partitions().iter();
    let places = places.filter(|partition| partition.nodes.iter().take(replicas).any(|&held| held == node));
    match places.count() {
        0 if is_listed(cluster, node) => {
            return Some(format!("{node} is still a fallback, or enters partitions"));
        }
        0 => {}
        places => return Some(format!("{node} is a replica of {places} partitions")),
    }
    let Some(report) = report else { return Some(format!("{node} does not say what it holds")) };
    // What it held before it knew that nothing is its own any more does not count.
    if report.facts.adopted.is_none_or(|(_, adopted)| adopted < cluster.generation) {
        return Some(format!("{node} has not adopted generation {} yet", cluster.generation.0));
    }
    match (report.leftovers, report.hints) {
        (0, 0) => None,
        (0, hints) => Some(format!("{node} holds {hints} hints for other nodes")),
        (records, _) => Some(format!("{node} holds {records} records that other nodes may lack")),
    }
}

/// The next document, without a node that no partition names.
pub(super) fn without(cluster: &Cluster, node: NodeId) -> Cluster {
    let generation = Generation(cluster.generation.0 + 1);
    let mut next = Cluster { generation, nodes_changed: Some(generation), ..cluster.clone() };
    next.nodes.retain(|known| known.id != node);
    next
}
