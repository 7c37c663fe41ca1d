//! The steps of a store whose numbers change: N, R and W, while it is used.
//!
//! All partitions take each step together, because the store's entry says it. No list changes: the old replicas of a
//! partition are the first N of its list, the new ones its first N of the next numbers. The conditions are those of a partition that
//! moves, by the old numbers, with one more: those that stay must merge, too. An old quorum may have consisted of W
//! replicas of which fewer than the new W stay.

use model::Consistency;
use model::cluster::{Accepted, NumbersError};
use model::store::NumbersToCome;

use super::*;

/// The document by which the numbers of a store begin to change to these.
///
/// # Errors
/// With the first reason why they may not.
pub fn begin_numbers(
    cluster: &Cluster,
    name: &str,
    to: Consistency,
    accepted: Accepted,
) -> Result<Cluster, NumbersError> {
    let store = cluster.check_numbers(name, to, accepted)?;
    let coming = NumbersToCome { step: Step::Copying, consistency: to, unknown: Unknown::new() };
    Ok(restored(cluster, Store { coming: Some(coming), ..store.clone() }))
}

/// The document by which the store that changes goes back to the numbers that it came from; `None` when none changes.
///
/// From *copying* and *joint* the next numbers are dropped; from *reading-new* the two trade places, as the lists of a
/// partition do.
pub fn back_with_numbers(cluster: &Cluster) -> Option<Cluster> {
    let store = cluster.changing()?;
    let coming = store.coming.as_ref()?;
    let since = Generation(cluster.generation.0 + 1);
    let back = match coming.step {
        Step::Copying => Store { coming: None, ..store.clone() },
        Step::Joint => Store { coming: None, since, ..store.clone() },
        Step::ReadingNew => {
            let from = NumbersToCome { consistency: store.consistency, ..coming.clone() };
            Store { consistency: coming.consistency, coming: Some(from), since, ..store.clone() }
        }
    };
    Some(restored(cluster, back))
}

/// The steps of the change that `begun` begins which cannot be taken while these nodes are away, each with a partition
/// and whom it waits for: what a plan says before it is applied.
pub fn numbers_blocked_by(begun: &Cluster, away: &[NodeId]) -> Vec<(Step, PartitionId, Waiting)> {
    let mut blocked = Vec::new();
    let Some(store) = begun.changing() else { return blocked };
    for step in [Step::Copying, Step::Joint, Step::ReadingNew] {
        let coming = store.coming.clone().map(|coming| NumbersToCome { step, ..coming });
        let at = restored(begun, Store { coming, since: begun.generation, ..store.clone() });
        for partition in at.ring.partitions() {
            let facts = everybody_but(&at, partition, away);
            let waiting = waiting(&at, partition, step, &facts.and_gone(&at));
            blocked.extend(waiting.into_iter().map(|waiting| (step, partition.id, waiting)));
        }
    }
    blocked
}

/// The document that may follow one in which this store changes.
pub(super) fn next(cluster: &Cluster, store: &Store, facts: &Facts) -> StepOutcome {
    let Some(step) = store.step() else { return StepOutcome { next: None, waiting: Vec::new() } };
    let waiting = |partition: &Partition| {
        let waiting = waiting(cluster, partition, step, facts);
        (!waiting.is_empty()).then_some((partition.id, waiting))
    };
    let waiting: Vec<_> = cluster.ring.partitions().iter().filter_map(waiting).collect();
    let next = waiting.is_empty().then(|| restored(cluster, stepped(store, cluster.generation)));
    StepOutcome { next, waiting }
}

/// The store at its next step, after this generation.
pub(super) fn stepped(store: &Store, generation: Generation) -> Store {
    let since = Generation(generation.0 + 1);
    let Some(coming) = store.coming.clone() else { return store.clone() };
    let at = |step| Some(NumbersToCome { step, ..coming.clone() });
    match coming.step {
        Step::Copying => Store { coming: at(Step::Joint), since, ..store.clone() },
        Step::Joint => Store { coming: at(Step::ReadingNew), since, ..store.clone() },
        Step::ReadingNew => Store { coming: None, consistency: coming.consistency, since, ..store.clone() },
    }
}

/// The next document: the cluster with another entry of one store.
pub(super) fn restored(cluster: &Cluster, store: Store) -> Cluster {
    let mut next = Cluster { generation: Generation(cluster.generation.0 + 1), ..cluster.clone() };
    next.stores
        .iter_mut()
        .filter(|known| known.name == store.name)
        .for_each(|known| known.clone_from(&store));
    next
}
