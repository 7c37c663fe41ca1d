//! Carrying out a plan: which document is due, by the plan, the ring and what nodes said.
//!
//! Must never: let a plan go on with a partition that another hand has moved.

use std::collections::BTreeSet;
use std::time::Duration;

use coordination::documents::ReadError;
use coordination::documents::numbered::{keep, plans_path};
use model::cluster::Accepted;
use model::{Cluster, NodeId, PartitionId, Step};
use protocol::rebalance::Facts;
use protocol::rebalance::planner::{Consent, Renumber, Reshape, Reshaped};
use protocol::rebalance::steps::{self, Outcome};

use super::office::{Office, Scene, TurnError};
use crate::plans::{
    self, BroughtIn, CLUSTER_BYTES_MAX, PLANS_KEPT, Phase, PlanState, Planned, Progress, Size, Stand,
};

/// A plan that waited so long for nodes that did not answer does not tell how long one like it takes.
const WAIT_SPOILS: Duration = Duration::from_secs(60);
/// Over how long it is averaged at what rate data comes, and the shortest time that tells.
const RATE_WINDOW: Duration = Duration::from_secs(10);
const RATE_TIME_MIN: Duration = Duration::from_secs(2);

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// This document.
    Publish(Box<Cluster>),
    /// Nothing: the plan has ended so.
    End(Phase),
    /// The plan cannot go on, and what moves goes back.
    GiveUp(String),
    /// Nothing, until nodes have done their part.
    Wait(Vec<String>),
}

/// What is due for a plan that is under way.
pub(super) fn due(cluster: &Cluster, planned: &Planned, state: &PlanState, facts: &Facts) -> Due {
    if let Some(numbers) = &planned.plan.numbers {
        return renumbered(cluster, (numbers, planned.plan.consent), state, facts);
    }
    let moves = &planned.plan.moves;
    if planned.plan.reshaped(cluster) == Some(Reshaped::Done) && !state.phase.has_ended() {
        // Bounds are changed last. There is nothing to go back to: another plan changes them again.
        return Due::End(Phase::Done);
    }
    let stands: Vec<Stand> = moves.iter().map(|one| Stand::of(cluster, one)).collect();
    let at = |stand: fn(&Stand) -> bool| {
        moves.iter().zip(&stands).filter(move |(_, at)| stand(at)).map(|(one, _)| one)
    };
    match state.phase {
        Phase::Paused => Due::Wait(Vec::new()),
        Phase::Applying => {
            if let Some(one) = at(|stand| matches!(stand, Stand::Changed | Stand::Back)).next() {
                return Due::GiveUp(format!(
                    "partition {} was changed by something else than this plan",
                    one.partition
                ));
            }
            let lists: Vec<_> =
                at(|stand| *stand == Stand::Waiting).map(|one| (one.partition, one.to.clone())).collect();
            let under_way = stands.iter().any(|stand| matches!(stand, Stand::Under(_)));
            if !lists.is_empty() {
                match steps::begin_fitting(cluster, &lists, CLUSTER_BYTES_MAX) {
                    Ok((_, 0)) if under_way => {}
                    Ok((_, 0)) => {
                        return Due::GiveUp(
                            "the cluster document has no room for another move; merge partitions, or remove stores"
                                .to_owned(),
                        );
                    }
                    Ok((next, _)) => return Due::Publish(Box::new(next)),
                    Err(error) => return Due::GiveUp(error.to_string()),
                }
            }
            if lists.is_empty() && !under_way {
                return planned
                    .plan
                    .reshape
                    .as_ref()
                    .map_or(Due::End(Phase::Done), |last| reshaped(cluster, last));
            }
            stepped(cluster, facts)
        }
        Phase::Aborting => {
            let ids: Vec<PartitionId> =
                at(|stand| matches!(stand, Stand::Under(_))).map(|one| one.partition).collect();
            match steps::back(cluster, &ids) {
                Some(next) => Due::Publish(Box::new(next)),
                None if stands.contains(&Stand::Back) => stepped(cluster, facts),
                None if stands.iter().all(|stand| *stand == Stand::Settled)
                    && planned.plan.reshape.is_none() =>
                {
                    Due::End(Phase::Done)
                }
                None if state.reason.is_some() => Due::End(Phase::Failed),
                None => Due::End(Phase::Aborted),
            }
        }
        Phase::Done | Phase::Aborted | Phase::Failed => Due::End(state.phase),
    }
}

/// What is due for a plan by which a store gets other numbers.
fn renumbered(
    cluster: &Cluster,
    (numbers, consent): (&Renumber, Consent),
    state: &PlanState,
    facts: &Facts,
) -> Due {
    let name = numbers.store.as_str();
    let Consent { fewer_zones, weaker } = consent;
    match (state.phase, Stand::of_store(cluster, numbers)) {
        (Phase::Paused, _) => Due::Wait(Vec::new()),
        (Phase::Applying | Phase::Aborting, Stand::Settled) => Due::End(Phase::Done),
        (Phase::Applying, Stand::Changed | Stand::Back) => {
            Due::GiveUp(format!("store {name} was changed by something else than this plan"))
        }
        (Phase::Applying, Stand::Waiting) => {
            match steps::begin_numbers(cluster, name, numbers.to, Accepted { fewer_zones, weaker }) {
                Ok(next) => Due::Publish(Box::new(next)),
                Err(error) => Due::GiveUp(error.to_string()),
            }
        }
        (Phase::Applying, Stand::Under(_)) | (Phase::Aborting, Stand::Back) => stepped(cluster, facts),
        (Phase::Aborting, Stand::Under(_)) => match steps::back_with_numbers(cluster) {
            Some(next) => Due::Publish(Box::new(next)),
            None => Due::Wait(Vec::new()),
        },
        (Phase::Aborting, Stand::Waiting | Stand::Changed) if state.reason.is_some() => {
            Due::End(Phase::Failed)
        }
        (Phase::Aborting, Stand::Waiting | Stand::Changed) => Due::End(Phase::Aborted),
        (Phase::Done | Phase::Aborted | Phase::Failed, _) => Due::End(state.phase),
    }
}

/// Bounds are changed, or the plan is given up.
fn reshaped(cluster: &Cluster, reshape: &Reshape) -> Due {
    match (reshape.stands(&cluster.ring), reshape.apply(cluster, CLUSTER_BYTES_MAX)) {
        (Reshaped::Due, Ok(next)) => Due::Publish(Box::new(next)),
        (Reshaped::Due, Err(refusal)) => Due::GiveUp(refusal.to_string()),
        _ => Due::GiveUp("the bounds of partitions were changed by something else than this plan".to_owned()),
    }
}

fn stepped(cluster: &Cluster, facts: &Facts) -> Due {
    let Outcome { next, waiting } = steps::next(cluster, facts);
    match next {
        Some(next) => Due::Publish(Box::new(next)),
        None => Due::Wait(plans::told(&waiting)),
    }
}

/// The nodes whose word counts while partitions move.
fn involved(cluster: &Cluster) -> Vec<NodeId> {
    let moving = cluster.ring.partitions().iter().filter(|partition| partition.coming.is_some());
    let listed = moving.flat_map(|partition| {
        let coming = partition.coming.iter().flat_map(|coming| &coming.nodes);
        partition.nodes.iter().chain(coming).copied()
    });
    let changing = cluster.changing().map_or(0, |store| store.replicas_max());
    let partitions = cluster.ring.partitions().iter();
    let changing = partitions.flat_map(|partition| partition.nodes.iter().copied().take(changing.into()));
    listed.chain(changing).collect::<BTreeSet<_>>().into_iter().collect()
}

/// How many of a plan's buckets of stores were brought in: of copies at *copying* those of stores that were merged, of
/// what is further all.
fn units(cluster: &Cluster, planned: &Planned, facts: &Facts) -> u64 {
    let plan = &planned.plan;
    let stores = cluster.stores.len() as u64;
    let of_copy = |node: &NodeId, id: PartitionId| {
        let entered = facts.nodes.get(node).and_then(|known| known.entered.get(&id));
        entered.map_or(0, |entered| (entered.merged.len() as u64).min(stores))
    };
    let here = plan.moves.iter().map(|one| match Stand::of(cluster, one) {
        Stand::Waiting | Stand::Changed | Stand::Back => 0,
        Stand::Under(Step::Copying) => one.entering.iter().map(|node| of_copy(node, one.partition)).sum(),
        Stand::Under(_) | Stand::Settled => stores * one.entering.len() as u64,
    });
    plan.units * here.sum::<u64>() / (stores * plan.copies() as u64).max(1)
}

impl Office {
    /// The plan that is under way, if any is. One that is not understood is passed over: a later version created it, and
    /// orders and other plans go on.
    pub(super) async fn under_way(&mut self) -> Result<Option<Planned>, TurnError> {
        for number in plans::all_numbers(&*self.service).await? {
            if self.ended.contains(&number) {
                continue;
            }
            match plans::read(&*self.service, number).await {
                Ok(Some(planned)) if planned.is_under_way() => return Ok(Some(planned)),
                Ok(Some(planned)) if planned.state.is_some() => {
                    self.ended.insert(number);
                }
                Ok(_) => {}
                Err(ReadError::Malformed { reason, .. }) => {
                    tracing::warn!(plan = number, reason, "plan not understood");
                    self.ended.insert(number);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Does what is due for the plan that is under way.
    pub(super) async fn conduct(&mut self, scene: &Scene) -> Result<bool, TurnError> {
        let Some(planned) = self.under_way().await? else { return Ok(false) };
        self.busy = true;
        let Some(state) = planned.state.clone() else { return Ok(false) };
        let (facts, silent) = self.ask(scene, &involved(&scene.cluster)).await?;
        let mut next =
            PlanState { progress: self.progress(&scene.cluster, &planned, &state), ..state.clone() };
        next.bytes_per_second = self.rate(next.progress.copied.bytes);
        next.seconds_left = self.left(&scene.cluster, &planned, &next, &facts);
        let due = due(&scene.cluster, &planned, &state, &facts);
        let waits = matches!(due, Due::Wait(_));
        next.was_paused |= self.waited_long(waits && !silent.is_empty());
        match due {
            Due::Publish(cluster) => {
                self.publish(&cluster).await?;
                next.progress = self.progress(&cluster, &planned, &state);
                next.waiting.clear();
            }
            Due::End(phase) => {
                next.phase = phase;
                next.ended_ms = Some(self.now_ms());
                next.waiting.clear();
                next.seconds_left = None;
                self.forget_course();
            }
            Due::GiveUp(reason) => {
                next.phase = Phase::Aborting;
                next.reason = Some(reason);
            }
            Due::Wait(waiting) => {
                // Those that are away first: the rest may wait for them.
                let away = silent.iter().map(|(node, reason)| format!("{node} does not answer: {reason}"));
                let away = away.take(if waiting.is_empty() { 0 } else { usize::MAX });
                next.waiting = away.chain(waiting).collect();
            }
        }
        if next != state {
            self.write_state(&planned, &next).await?;
        }
        if next.phase.has_ended() {
            keep(&*self.service, &plans_path(), PLANS_KEPT, |number| number != planned.number).await?;
        }
        Ok(!waits)
    }

    /// Bytes a second by the last moments, once some have passed.
    fn rate(&mut self, copied: u64) -> Option<u64> {
        let now = self.clock.now();
        if self.rates.back().is_some_and(|(_, before)| *before > copied) {
            self.rates.clear();
        }
        self.rates.push_back((now, copied));
        while self.rates.len() > 2 && now.since(self.rates[1].0) >= RATE_WINDOW {
            self.rates.pop_front();
        }
        let (begun, before) = self.rates[0];
        let passed = now.since(begun);
        (passed >= RATE_TIME_MIN).then(|| ((copied - before) as f64 / passed.as_secs_f64()) as u64)
    }

    /// About how long a plan takes yet, in seconds.
    fn left(
        &mut self,
        cluster: &Cluster,
        planned: &Planned,
        state: &PlanState,
        facts: &Facts,
    ) -> Option<u64> {
        if state.phase != Phase::Applying {
            self.begun = None;
            return None;
        }
        let here = BroughtIn { size: state.progress.copied, units: units(cluster, planned, facts) };
        let now = self.clock.now();
        let (since, first) = *self.begun.get_or_insert((now, here));
        let left = planned.plan.left(here, (first, now.since(since)));
        left.map(|left| left.as_secs())
    }

    /// Whether the plan has waited so long for nodes that do not answer that how long it takes tells nothing.
    fn waited_long(&mut self, waits: bool) -> bool {
        let now = self.clock.now();
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
        self.waits_since.is_some_and(|since| now.since(since) >= WAIT_SPOILS)
    }

    /// What was measured belongs to a plan that has ended, or that has not begun yet.
    pub(super) fn forget_course(&mut self) {
        self.copied.clear();
        self.copied_before = None;
        self.rates.clear();
        self.begun = None;
        self.waits_since = None;
    }

    /// How far a plan is, by the ring and by what nodes say.
    fn progress(&mut self, cluster: &Cluster, planned: &Planned, before: &PlanState) -> Progress {
        for (node, partition) in planned.plan.entering(cluster) {
            let copied = self.report(node).and_then(|report| report.copied.get(&partition)).copied();
            if let Some(copied) = copied {
                // A node that was started again counts anew.
                let known = self.copied.entry((node, partition)).or_default();
                (known.records, known.bytes) =
                    (known.records.max(copied.records), known.bytes.max(copied.bytes));
            }
        }
        let mut copied = Size::default();
        for size in self.copied.values() {
            copied.records += size.records;
            copied.bytes += size.bytes;
        }
        // A successor has not seen what was brought in for partitions that have settled, and goes on from what is known.
        let earlier = before.progress.copied;
        let base = *self.copied_before.get_or_insert(Size {
            records: earlier.records.saturating_sub(copied.records),
            bytes: earlier.bytes.saturating_sub(copied.bytes),
        });
        let copied = Size { records: base.records + copied.records, bytes: base.bytes + copied.bytes };
        Progress { copied, ..Progress::of(cluster, &planned.plan) }
    }
}
