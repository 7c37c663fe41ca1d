//! Carrying out a plan: which document is due, by the plan, the ring and what nodes said.
//!
//! Must never: let a plan go on with a partition that another hand has moved.

mod golden;

use std::collections::{BTreeMap, BTreeSet};

use model::cluster::Accepted;
use model::plan::{
    Consent, Move, Phase, PlanChange, PlanHeld, PlanState, Planned, Reason, Renumber, Reshape, Reshaped,
};
use model::{Cluster, NodeId, PartitionId};

use super::course::Course;
use super::progress::Stand;
use super::{DecisionStep, Due, Headmaster, HeadmasterAction, Observation, next};
use crate::rebalance::steps::{self, StepOutcome, Waiting};
use crate::report::Facts;

/// Whom moves wait for: this many lines are told.
const WAITING_SHOWN: usize = 8;

/// What is due for a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conduct {
    /// This document.
    Publish(Box<Cluster>),
    /// Nothing: the plan has ended so.
    End(Phase),
    /// The plan cannot go on, and what moves goes back.
    GiveUp(Reason),
    /// Nothing, until nodes have done their part.
    Wait(Vec<PlanHeld>),
}

/// What is due for a plan that is under way, in a document of at most `bytes_max` bytes.
pub(super) fn due(
    cluster: &Cluster,
    planned: &Planned,
    state: &PlanState,
    facts: &Facts,
    bytes_max: usize,
) -> Conduct {
    if state.phase.has_ended() {
        return Conduct::End(state.phase);
    }
    match &planned.plan.change {
        PlanChange::Numbers(numbers) => renumbered(cluster, (numbers, planned.plan.consent), state, facts),
        // Bounds are changed last. There is nothing to go back to: another plan changes them again.
        PlanChange::Reshape { reshape, .. } if reshape.stands(&cluster.ring) == Reshaped::Done => {
            Conduct::End(Phase::Done)
        }
        PlanChange::Moves { moves } => moved(cluster, (moves, None), state, facts, bytes_max),
        PlanChange::Golden { handover, moves, joins } => {
            golden::due(cluster, (handover, moves, joins), state, facts, bytes_max)
        }
        PlanChange::Reshape { moves, reshape } => {
            moved(cluster, (moves, Some(reshape)), state, facts, bytes_max)
        }
    }
}

/// What is due for moves, and for what becomes of bounds behind them.
fn moved(
    cluster: &Cluster,
    (moves, last): (&[Move], Option<&Reshape>),
    state: &PlanState,
    facts: &Facts,
    bytes_max: usize,
) -> Conduct {
    let stands: Vec<Stand> = moves.iter().map(|one| Stand::of(cluster, one)).collect();
    let at = |stand: fn(&Stand) -> bool| {
        moves.iter().zip(&stands).filter(move |(_, at)| stand(at)).map(|(one, _)| one)
    };
    match state.phase {
        Phase::Paused => Conduct::Wait(Vec::new()),
        Phase::Applying => {
            if let Some(one) = at(|stand| matches!(stand, Stand::Changed | Stand::Back)).next() {
                return Conduct::GiveUp(Reason::PartitionChanged { partition: one.partition });
            }
            let lists: Vec<_> =
                at(|stand| *stand == Stand::Waiting).map(|one| (one.partition, one.to.clone())).collect();
            let under_way = stands.iter().any(|stand| matches!(stand, Stand::Under(_)));
            if !lists.is_empty() {
                match steps::begin_fitting(cluster, &lists, bytes_max) {
                    Ok((_, 0)) if under_way => {}
                    Ok((_, 0)) => return Conduct::GiveUp(Reason::NoRoom),
                    Ok((next, _)) => return Conduct::Publish(Box::new(next)),
                    Err(error) => {
                        return Conduct::GiveUp(Reason::CannotBegin { detail: error.to_string() });
                    }
                }
            }
            if lists.is_empty() && !under_way {
                return last
                    .map_or(Conduct::End(Phase::Done), |reshape| reshaped(cluster, reshape, bytes_max));
            }
            stepped(cluster, facts)
        }
        Phase::Aborting => {
            let ids: Vec<PartitionId> =
                at(|stand| matches!(stand, Stand::Under(_))).map(|one| one.partition).collect();
            match steps::back(cluster, &ids) {
                Some(next) => Conduct::Publish(Box::new(next)),
                None if stands.contains(&Stand::Back) => stepped(cluster, facts),
                None if last.is_none() && stands.iter().all(|stand| *stand == Stand::Settled) => {
                    Conduct::End(Phase::Done)
                }
                None => back_again(cluster, state),
            }
        }
        Phase::Done | Phase::Aborted | Phase::Failed => Conduct::End(state.phase),
    }
}

/// What is due for a plan by which a store gets other numbers.
fn renumbered(
    cluster: &Cluster,
    (numbers, consent): (&Renumber, Consent),
    state: &PlanState,
    facts: &Facts,
) -> Conduct {
    let name = numbers.store.as_str();
    let Consent { fewer_zones, weaker } = consent;
    match (state.phase, Stand::of_store(cluster, numbers)) {
        (Phase::Paused, _) => Conduct::Wait(Vec::new()),
        (Phase::Applying | Phase::Aborting, Stand::Settled) => Conduct::End(Phase::Done),
        (Phase::Applying, Stand::Changed | Stand::Back) => {
            Conduct::GiveUp(Reason::StoreChanged { store: numbers.store.clone() })
        }
        (Phase::Applying, Stand::Waiting) => {
            match steps::begin_numbers(cluster, name, numbers.to, Accepted { fewer_zones, weaker }) {
                Ok(next) => Conduct::Publish(Box::new(next)),
                Err(because) => Conduct::GiveUp(Reason::NumbersRefused { because }),
            }
        }
        (Phase::Applying, Stand::Under(_)) | (Phase::Aborting, Stand::Back) => stepped(cluster, facts),
        (Phase::Aborting, Stand::Under(_)) => match steps::back_with_numbers(cluster) {
            Some(next) => Conduct::Publish(Box::new(next)),
            None => Conduct::Wait(Vec::new()),
        },
        (Phase::Aborting, Stand::Waiting | Stand::Changed) => back_again(cluster, state),
        (Phase::Done | Phase::Aborted | Phase::Failed, _) => Conduct::End(state.phase),
    }
}

/// All that moved is back: the plan ends, once a document has been published since it began to go back. A headmaster that
/// has not heard of that could begin a move under the one of before, behind the plan's end.
fn back_again(cluster: &Cluster, state: &PlanState) -> Conduct {
    match (state.aborted_under, state.reason.is_some()) {
        (Some(under), _) if under >= cluster.generation => {
            Conduct::Publish(Box::new(Cluster { generation: next(cluster), ..cluster.clone() }))
        }
        (_, true) => Conduct::End(Phase::Failed),
        (_, false) => Conduct::End(Phase::Aborted),
    }
}

/// Bounds are changed, or the plan is given up.
fn reshaped(cluster: &Cluster, reshape: &Reshape, bytes_max: usize) -> Conduct {
    match (reshape.stands(&cluster.ring), reshape.apply(cluster, bytes_max)) {
        (Reshaped::Due, Ok(next)) => Conduct::Publish(Box::new(next)),
        (Reshaped::Due, Err(because)) => Conduct::GiveUp(Reason::BoundsRefused { because }),
        _ => Conduct::GiveUp(Reason::BoundsChanged),
    }
}

fn stepped(cluster: &Cluster, facts: &Facts) -> Conduct {
    let StepOutcome { next, waiting } = steps::next(cluster, facts);
    match next {
        Some(next) => Conduct::Publish(Box::new(next)),
        None => Conduct::Wait(held_up(&waiting)),
    }
}

/// For whom partitions wait: what most of them wait for first, and no more than people read.
pub fn held_up(waiting: &[(PartitionId, Vec<Waiting>)]) -> Vec<PlanHeld> {
    let mut counts: BTreeMap<&Waiting, usize> = BTreeMap::new();
    for waiting in waiting.iter().flat_map(|(_, waiting)| waiting) {
        *counts.entry(waiting).or_default() += 1;
    }
    let mut counts: Vec<(&Waiting, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let held =
        |(waiting, partitions): (&Waiting, usize)| PlanHeld::Waits { waiting: waiting.clone(), partitions };
    counts.into_iter().take(WAITING_SHOWN).map(held).collect()
}

/// The nodes whose word counts while partitions move.
fn involved(cluster: &Cluster) -> BTreeSet<NodeId> {
    let moving = cluster.ring.partitions().iter().filter(|partition| partition.coming.is_some());
    let listed = moving.flat_map(|partition| {
        let coming = partition.coming.iter().flat_map(|coming| &coming.nodes);
        partition.nodes.iter().chain(coming).copied()
    });
    let changing = cluster.changing().map_or(0, |store| store.replicas_max());
    let partitions = cluster.ring.partitions().iter();
    let changing = partitions.flat_map(|partition| partition.nodes.iter().copied().take(changing.into()));
    listed.chain(changing).collect()
}

impl Headmaster {
    /// Does what is due for the plan that is under way.
    pub(super) fn conduct(&mut self, seen: &Observation) -> Due<Option<DecisionStep>> {
        let Some(planned) = seen.under_way() else { return Ok(None) };
        let Some(state) = &planned.state else { return Ok(None) };
        self.is_busy();
        let (cluster, now) = (&seen.cluster, seen.now);
        let (facts, silent) = self.facts(seen, &involved(cluster))?;
        let bytes_max = self.cluster_bytes_max();
        let course = match &mut self.course {
            Some(course) if course.plan == planned.number => course,
            other => other.insert(Course::of(planned.number)),
        };
        let mut next =
            PlanState { progress: course.progress(cluster, planned, &self.known), ..state.clone() };
        next.bytes_per_second = course.rate(now, next.progress.copied.bytes);
        next.seconds_left = course.left(now, cluster, (planned, &next), &facts);
        let due = due(cluster, planned, state, &facts, bytes_max);
        let waits = matches!(due, Conduct::Wait(_));
        next.was_paused |= course.waited_long(now, waits && !silent.is_empty());
        let mut actions = Vec::new();
        match due {
            Conduct::Publish(cluster) => {
                next.progress = course.progress(&cluster, planned, &self.known);
                next.waiting.clear();
                actions.push(HeadmasterAction::Publish(cluster));
            }
            Conduct::End(phase) => {
                next.phase = phase;
                next.ended_ms = Some(seen.wall.0);
                next.waiting.clear();
                next.seconds_left = None;
                self.course = None;
            }
            Conduct::GiveUp(reason) => {
                next.phase = Phase::Aborting;
                next.reason = Some(reason);
                next.aborted_under = Some(cluster.generation);
            }
            Conduct::Wait(waiting) => {
                // Those that are away first: the rest may wait for them.
                let away = silent.into_iter().map(|(node, detail)| PlanHeld::Silent { node, detail });
                let away = away.take(if waiting.is_empty() { 0 } else { usize::MAX });
                next.waiting = away.chain(waiting).collect();
            }
        }
        if next != *state {
            actions.push(HeadmasterAction::Note { plan: planned.number, state: Box::new(next) });
        }
        Ok(Some(if waits { DecisionStep::Wait(actions) } else { DecisionStep::Do(actions) }))
    }
}
