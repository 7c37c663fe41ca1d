//! What nodes say of where they are: whether two claim one address, and who was there first.
//!
//! Must never: change the cluster document. A headmaster does.

use model::{Node, NodeId};
use thiserror::Error;

use super::{active_node_path, active_path, parse_active};
use crate::{CoordinationError, CoordinationService};

/// Another node has an address that a node claims.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{node} cannot have the address {address}: {other} has it")]
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
    match node.address_taken(others) {
        Some((address, other)) => Err(AddressTaken { node: node.id, address: address.to_owned(), other }),
        None => Ok(()),
    }
}

/// The nodes that registered before a node that is registered, as they say themselves. What a later version writes in
/// another form is left out.
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
