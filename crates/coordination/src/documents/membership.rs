//! Changes of the cluster document that need no plan: a node that is named, and a node at another address.
//!
//! Until there is a headmaster, who is to write all shared documents, a node itself writes its own address, by
//! compare-and-set, and `tontine cluster admit` names nodes. Neither touches the ring.
//!
//! Must never: change what another node says of itself, or give two nodes one address.

use model::{Cluster, Generation, Node, NodeId};
use thiserror::Error;

use super::{
    ActiveNode, PublishError, ReadError, active_node_path, active_path, check_known, parse_active,
    publish_cluster, read_cluster,
};
use crate::{CoordinationError, CoordinationService};

/// Why the cluster document was not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// There is no document to change.
    #[error("the coordination service holds no cluster; create it with `tontine cluster create`")]
    NoCluster,
    /// The document does not name the node.
    #[error("{node} is not a member of cluster {cluster:?}; name it with `tontine cluster admit {}`", .node.0)]
    NotMember {
        /// The node.
        node: NodeId,
        /// The cluster.
        cluster: String,
    },
    /// Another node has the address.
    #[error(transparent)]
    AddressTaken(#[from] AddressTaken),
    /// The new document could not be stored.
    #[error(transparent)]
    Publish(PublishError),
}

impl From<ReadError> for MembershipError {
    fn from(error: ReadError) -> MembershipError {
        MembershipError::Publish(error.into())
    }
}

impl MembershipError {
    /// Whether the service holds an older document than the node goes by.
    pub fn is_older(&self) -> bool {
        matches!(self, MembershipError::Publish(PublishError::Older { .. }))
    }

    /// Whether it cannot be done now because the documents are being moved.
    pub fn is_moving(&self) -> bool {
        let MembershipError::Publish(PublishError::Read(error)) = self else { return false };
        matches!(error, ReadError::Moving(_) | ReadError::Moved(_) | ReadError::Arriving(_))
    }

    /// What the service refused, if it is that.
    pub fn coordination(&self) -> Option<&CoordinationError> {
        match self {
            MembershipError::Publish(PublishError::Read(ReadError::Coordination(error))) => Some(error),
            _ => None,
        }
    }
}

/// Another node has an address that a node claims.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{node} cannot have the address {address}: {other} has it; give {node} an address of its own with --listen, --resp or \
     --advertise"
)]
pub struct AddressTaken {
    /// Who claims it.
    pub node: NodeId,
    /// The address.
    pub address: String,
    /// Who has it.
    pub other: NodeId,
}

/// Whether `node` could be one of `others` with the addresses that it says.
///
/// # Errors
/// When another node has one of them.
pub fn check_addresses<'a>(
    node: &Node,
    others: impl IntoIterator<Item = &'a Node>,
) -> Result<(), AddressTaken> {
    let own = [Some(&node.native), node.resp.as_ref()];
    for other in others.into_iter().filter(|other| other.id != node.id) {
        let theirs = [Some(&other.native), other.resp.as_ref()];
        if let Some(address) = own.into_iter().flatten().find(|address| theirs.contains(&Some(*address))) {
            return Err(AddressTaken { node: node.id, address: address.clone(), other: other.id });
        }
    }
    Ok(())
}

/// The nodes that registered before a node that is registered, as they say themselves. What a later version writes in a
/// form of its own is left out.
///
/// # Errors
/// What the service refuses.
pub async fn registered_before(
    service: &dyn CoordinationService,
    node: NodeId,
) -> Result<Vec<Node>, CoordinationError> {
    let own = service.get(&active_node_path(node)).await?.stat.created;
    let mut before = Vec::new();
    for name in service.children(&active_path()).await? {
        let Ok(path) = active_path().child(&name) else { continue };
        match service.get(&path).await {
            Ok(found) if found.stat.created < own => {
                before.extend(parse_active(&path, &found.data).map(|active| active.node));
            }
            Ok(_) | Err(CoordinationError::NoNode { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(before)
}

/// Makes the cluster document say where `node`, which is in it already and goes by `known`, if anything, can be reached.
/// Returns the document then.
///
/// # Errors
/// See [`MembershipError`]. After [`CoordinationError::Indeterminate`] call it again: what is done already is not done
/// twice.
pub async fn readdress(
    service: &dyn CoordinationService,
    node: &Node,
    known: Option<&Cluster>,
) -> Result<Cluster, MembershipError> {
    change(service, |cluster| {
        check_known(cluster, known).map_err(MembershipError::Publish)?;
        let not_member = || MembershipError::NotMember { node: node.id, cluster: cluster.name.clone() };
        let entry = cluster.nodes.iter().position(|known| known.id == node.id).ok_or_else(not_member)?;
        check_addresses(node, &cluster.nodes)?;
        let mut nodes = cluster.nodes.clone();
        nodes[entry].native.clone_from(&node.native);
        nodes[entry].resp.clone_from(&node.resp);
        Ok(nodes)
    })
    .await
}

/// Names nodes in the cluster document; those that it names already stay as they are. The ring stays as it is: a node
/// that is named holds no partition.
///
/// # Errors
/// See [`MembershipError`]. After [`CoordinationError::Indeterminate`] call it again.
pub async fn admit(
    service: &dyn CoordinationService,
    waiting: &[ActiveNode],
) -> Result<Cluster, MembershipError> {
    change(service, |cluster| {
        let mut nodes = cluster.nodes.clone();
        for active in waiting {
            if nodes.iter().all(|node| node.id != active.node.id) {
                check_addresses(&active.node, &nodes)?;
                nodes.push(active.node.clone());
            }
        }
        nodes.sort_by_key(|node| node.id);
        Ok(nodes)
    })
    .await
}

/// Stores a cluster document with other nodes, unless they are as they were.
async fn change(
    service: &dyn CoordinationService,
    nodes: impl Fn(&Cluster) -> Result<Vec<Node>, MembershipError>,
) -> Result<Cluster, MembershipError> {
    loop {
        let cluster = read_cluster(service).await?.ok_or(MembershipError::NoCluster)?;
        let nodes = nodes(&cluster)?;
        if nodes == cluster.nodes {
            return Ok(cluster);
        }
        let generation = Generation(cluster.generation.0 + 1);
        let are_others = nodes.len() != cluster.nodes.len();
        let nodes_changed = if are_others { generation } else { cluster.nodes_changed };
        let changed = Cluster { nodes, generation, nodes_changed, ..cluster };
        match publish_cluster(service, &changed).await {
            Ok(()) => return Ok(changed),
            // Somebody was faster: change what they stored.
            Err(PublishError::Superseded { .. }) => {}
            Err(error) => return Err(MembershipError::Publish(error)),
        }
    }
}
