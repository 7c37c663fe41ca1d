//! Why plans fail, and whom they wait for.

use model::plan::{Blocked, PlanHeld, Reason, Waiting};

use super::{names, refusals};
use crate::text::count;

/// Whom a step waits for.
fn waiting(waiting: &Waiting) -> String {
    match waiting {
        Waiting::Copy { node } => format!("{node} is still copying the partition"),
        Waiting::Compare { store, node, with: Some(with), others, missing } => {
            format!("{node} must compare store {store} with {with}, or with {missing} of {}", names(others))
        }
        Waiting::Compare { store, node, with: None, others, missing } => {
            format!("{node} must compare store {store} with {missing} of {}", names(others))
        }
        Waiting::Adopt { store, nodes, missing, generation } => format!(
            "{missing} of {} must adopt generation {} before older gets of store {store} end",
            names(nodes),
            generation.0
        ),
    }
}

/// What holds a plan up.
pub(crate) fn held(held: &PlanHeld) -> String {
    match held {
        PlanHeld::Silent { node, detail } => format!("{node} does not answer: {detail}"),
        PlanHeld::Waits { waiting: of, partitions: 1 } => waiting(of),
        PlanHeld::Waits { waiting: of, partitions } => {
            format!("{} ({})", waiting(of), count(*partitions as u64, "partition"))
        }
    }
}

/// A step that cannot be taken while nodes are away.
pub(crate) fn blocked(blocked: &Blocked) -> String {
    let partitions = count(blocked.partitions as u64, "partition");
    format!("{}: {} ({partitions})", blocked.step, waiting(&blocked.waiting))
}

/// Why a plan could not go on.
pub(crate) fn reason(reason: &Reason) -> String {
    match reason {
        Reason::PartitionChanged { partition } => {
            format!("partition {partition} was changed by something else than this plan")
        }
        Reason::StoreChanged { store } => {
            format!("store {store} was changed by something else than this plan")
        }
        Reason::BoundsChanged => {
            "the bounds of partitions were changed by something else than this plan".to_owned()
        }
        Reason::NoRoom => {
            "the cluster document has no room for another move; merge partitions, or remove stores".to_owned()
        }
        Reason::BoundsRefused { because } => refusals::wish_refused(because),
        Reason::NumbersRefused { because } => refusals::numbers_refused(because),
        Reason::CannotBegin { detail } => detail.clone(),
    }
}
