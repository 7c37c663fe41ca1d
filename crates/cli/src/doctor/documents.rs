//! What the coordination service holds, as far as this command can read it.

use model::order::Office;

use super::finding::{Code, Finding};
use super::goes_by;
use crate::output::program;
use crate::status::NodeStatus;

/// That the documents are gone, or cannot be read by the nodes.
pub(super) fn unread(office: Option<&Office>) -> Option<Finding> {
    let office = office?;
    let address = &office.service;
    let (code, what, next) = match (&office.unread, office.generation) {
        (None, Some(_)) => return None,
        (None, None) => (
            Code::CoordinationEmpty,
            format!(
                "{address} holds no cluster: its documents are lost; the nodes that run serve by their own copies, and a node \
                 that is restarted does not start"
            ),
            "bring the newest export back: ",
        ),
        (Some(reason), _) => (
            Code::CoordinationAway,
            format!(
                "the nodes cannot read the documents at {address}: {reason}; requests are served without them, and plans, \
                 orders and new nodes must wait"
            ),
            "bring the service back, or mend the way to it, and look: ",
        ),
    };
    let command = if code == Code::CoordinationEmpty { "import FILE" } else { "show" };
    let service = crate::holder::shell(std::slice::from_ref(address));
    let next = format!("{next}{} coordination {command} --coordination {service}", program());
    Some(Finding { code, node: None, store: None, what, next })
}

/// That the coordination service has gone back: the headmaster publishes nothing until it has not.
pub(super) fn older(nodes: &[NodeStatus], stored: u64) -> Option<Finding> {
    let newest =
        nodes.iter().filter_map(|status| Some((goes_by(status)?.0, status))).max_by_key(|(own, _)| *own);
    let (own, status) = newest.filter(|(own, _)| *own > stored)?;
    Some(Finding {
        code: Code::DocumentsOlder,
        node: Some(status.node.id),
        store: None,
        what: format!(
            "the coordination service holds generation {stored} of the cluster document, and {} follows {own}: the service was \
             restored from an older copy, and no plan or order is carried out",
            status.node.id
        ),
        next: "import the newest export into an empty place and start the nodes with that one: tontine coordination import FILE --coordination ADDRESS"
            .to_owned(),
    })
}
