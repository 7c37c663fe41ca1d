//! Whether all nodes require a password of Redis clients, or none does.

use super::finding::{Code, Finding};
use crate::status::NodeStatus;

/// Whether a node requires a password of Redis clients; `None` while it does not say.
pub(super) fn requires_password(status: &NodeStatus) -> Option<bool> {
    status.status().map(|told| told.password_required)
}

/// The nodes that serve Redis clients without a password, where others require one.
pub(super) fn open_to_everybody(nodes: &[NodeStatus]) -> Vec<Finding> {
    let saying = |asks: bool| nodes.iter().filter(move |status| requires_password(status) == Some(asks));
    let closed: Vec<String> = saying(true).map(|status| status.node.id.to_string()).collect();
    if closed.is_empty() {
        return Vec::new();
    }
    let require = if closed.len() == 1 { "requires" } else { "require" };
    let closed = closed.join(", ");
    let finding = |status: &NodeStatus| {
        let id = status.node.id;
        Finding {
            code: Code::PasswordMissing,
            node: Some(status.node.id),
            store: None,
            what: format!(
                "{id} serves Redis clients without a password, while {closed} {require} one: anyone who can \
                 reach its Redis port can read and write every key"
            ),
            next: format!(
                "stop {id} and start it again with TONTINE_PASSWORD set to the cluster's password; if no node should \
                 require one, restart {closed} with --no-password"
            ),
        }
    };
    saying(false).map(finding).collect()
}
