//! Carrying out a plan that gives partitions of a golden ring other owners.
//!
//! ```text
//!   whose they will be, and one cut ──▶ moves ──▶ parts that become one, one document each
//!            └───────── each is found in the ring: a successor goes on ─────────┘
//! ```
//!
//! An aborted plan ends where it can: partitions that have settled stay where they are. Those that have not go back to
//! their owners. A cut stays; the next node that joins gets the part.

use model::plan::{Handover, Move, Phase, PlanState, Reason, Reshape, Reshaped};
use model::{Cluster, PartitionId};

use super::{Conduct, back_again, moved};
use crate::headmaster::progress::Stand;
use crate::report::Facts;

/// What is due, in a document of at most `bytes_max` bytes.
pub(super) fn due(
    cluster: &Cluster,
    (handover, moves, joins): (&Handover, &[Move], &[(PartitionId, PartitionId)]),
    state: &PlanState,
    facts: &Facts,
    bytes_max: usize,
) -> Conduct {
    if state.phase == Phase::Paused {
        return Conduct::Wait(Vec::new());
    }
    let is_there = |id: PartitionId| cluster.ring.get(id).is_some();
    if joins.iter().any(|(_, other)| !is_there(*other)) {
        // All moves had settled by then. There is nothing to go back to.
        return joined(cluster, joins, state, bytes_max);
    }
    if state.phase == Phase::Aborting {
        let stands: Vec<Stand> = moves.iter().map(|one| Stand::of(cluster, one)).collect();
        let rests = !stands.iter().any(|stand| matches!(stand, Stand::Under(_) | Stand::Back));
        let is_done = handover.stands(&cluster.ring) == Reshaped::Done
            && stands.iter().all(|stand| *stand == Stand::Settled);
        if rests && !is_done {
            let has_settled = |id| {
                moves.iter().zip(&stands).any(|(one, stand)| one.partition == id && *stand == Stand::Settled)
            };
            return match handover.taken_back(cluster, has_settled) {
                Some(next) => Conduct::Publish(Box::new(next)),
                None => back_again(cluster, state),
            };
        }
    } else {
        match handover.stands(&cluster.ring) {
            Reshaped::Done => {}
            Reshaped::Due => {
                return match handover.apply(cluster, bytes_max) {
                    Ok(next) => Conduct::Publish(Box::new(next)),
                    Err(because) => Conduct::GiveUp(Reason::BoundsRefused { because }),
                };
            }
            Reshaped::Changed => return Conduct::GiveUp(Reason::BoundsChanged),
        }
    }
    match moved(cluster, (moves, None), state, facts, bytes_max) {
        Conduct::End(Phase::Done) => joined(cluster, joins, state, bytes_max),
        conduct => conduct,
    }
}

/// The next two partitions that become one; the plan's end where none are left.
fn joined(
    cluster: &Cluster,
    joins: &[(PartitionId, PartitionId)],
    state: &PlanState,
    bytes_max: usize,
) -> Conduct {
    let left = joins.iter().find(|(_, other)| cluster.ring.get(*other).is_some());
    let Some(&(partition, other)) = left else { return Conduct::End(Phase::Done) };
    match (Reshape::Join { partition, other }).apply(cluster, bytes_max) {
        Ok(next) => Conduct::Publish(Box::new(next)),
        Err(_) if state.phase == Phase::Aborting => back_again(cluster, state),
        Err(because) => Conduct::GiveUp(Reason::BoundsRefused { because }),
    }
}
