//! Orders about users: who may use the cluster.
//!
//! Must never: close a cluster of which a node is called without TLS, or would serve anyone. Secrets would cross the
//! network readable, or mean nothing.

use model::access::UserChange;
use model::cluster::FORM_CLOSED;
use model::order::{Done, Given, OrderRefusal};
use model::{Cluster, Node, NodeId};

use super::orders::{done, publish, refused};
use super::plans::too_old;
use super::{DecisionStep, Observation};

/// Changes a user.
pub(super) fn change(seen: &Observation, given: &Given, change: &UserChange) -> DecisionStep {
    let next = match seen.cluster.with_users(change) {
        Ok(next) => next,
        Err(error) => return refused(given, OrderRefusal::User(error)),
    };
    if next.users == seen.cluster.users {
        return done(seen, given, Done::UserChanged { user: change.user().clone() });
    }
    if !seen.cluster.is_closed() {
        if let Some(node) = without_tls(seen.cluster.nodes.iter()) {
            return refused(given, OrderRefusal::NodeWithoutTls { node });
        }
        // Its program knows no users.
        if let Some(node) = too_old(seen, FORM_CLOSED) {
            return refused(given, OrderRefusal::NodeServesAnyone { node });
        }
    }
    publish(given, next)
}

/// Why this node can be no member of the cluster as it is, by how it is called.
pub(super) fn unsafe_beside(cluster: &Cluster, node: &Node) -> Option<OrderRefusal> {
    let is_unsafe = cluster.is_closed() && !node.tls;
    is_unsafe.then_some(OrderRefusal::NodeWithoutTls { node: node.id })
}

/// A node that is called without TLS, and is not given up.
fn without_tls<'a>(mut nodes: impl Iterator<Item = &'a Node>) -> Option<NodeId> {
    nodes.find(|node| !node.tls && !node.gone).map(|node| node.id)
}
