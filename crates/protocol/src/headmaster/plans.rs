//! Orders about plans: one is created, applied, aborted, paused, resumed.

use std::collections::{BTreeMap, BTreeSet};

use model::cluster::Accepted;
use model::order::{Done, Given, OrderOutcome, OrderRefusal, Stale};
use model::plan::{
    self, Blocked, Consent, JoinCut, Phase, PlanChange, PlanDocument, PlanState, Planned, Progress, Reshape,
    Size, Wish,
};
use model::{Cluster, NodeId, PartitionId};

use super::orders::{done, refused};
use super::{Ask, DecisionStep, Due, Headmaster, HeadmasterAction, Kept, Observation, answered};
use crate::rebalance::planner::{self, Plan};
use crate::rebalance::{lengths, lint, steps};

/// So many steps are told that are blocked.
const BLOCKED_SHOWN: usize = 8;

/// The plan that fulfils a wish, if the cluster document has room for what it makes of the ring.
///
/// # Errors
/// When the wish cannot be fulfilled, or names what is not there.
pub fn planned(
    cluster: &Cluster,
    wish: &Wish,
    consent: Consent,
    bytes_max: usize,
) -> Result<Plan, plan::PlanRefusal> {
    let plan = planner::plan(cluster, wish, consent)?;
    match &plan.change {
        PlanChange::Reshape { moves, reshape } if moves.is_empty() => {
            _ = reshape.apply(cluster, bytes_max)?
        }
        PlanChange::Golden { handover, .. } => _ = handover.apply(cluster, bytes_max)?,
        _ => {}
    }
    Ok(plan)
}

impl Headmaster {
    pub(super) fn planned(
        &self,
        cluster: &Cluster,
        wish: &Wish,
        consent: Consent,
    ) -> Result<Plan, plan::PlanRefusal> {
        planned(cluster, wish, consent, self.cluster_bytes_max())
    }

    /// Creates a plan.
    pub(super) fn create(
        &mut self,
        seen: &Observation,
        given: &Given,
        wish: &Wish,
        consent: Consent,
    ) -> Due<DecisionStep> {
        if let Some(number) = created_by(seen, given.number) {
            return Ok(of_plan(seen, given, number, Done::PlanCreated));
        }
        let measured = match wish {
            Wish::Join { node, cut: JoinCut::Hottest } => match self.hottest(seen) {
                Ok((partition, at)) => Wish::Join { node: *node, cut: JoinCut::At { partition, at } },
                Err(refusal) => return Ok(unmeasured(given, refusal)),
            },
            wish => wish.clone(),
        };
        match self.planned(&seen.cluster, &measured, consent) {
            Ok(plan) if plan.is_empty() => Ok(done(seen, given, Done::NothingToMove)),
            Ok(plan) => self.save(seen, given, plan, (&measured, consent)),
            Err(refusal) => Ok(refused(given, OrderRefusal::Wish(refusal))),
        }
    }

    /// Keeps a plan, with what is told of it.
    pub(super) fn save(
        &mut self,
        seen: &Observation,
        given: &Given,
        plan: Plan,
        (wish, consent): (&Wish, Consent),
    ) -> Due<DecisionStep> {
        let mut document = plan.document(wish.clone(), consent);
        document.order = given.number;
        document.by.clone_from(&given.document.by);
        self.complete(seen, &mut document)?;
        if document.bytes() > self.document_bytes_max {
            return Ok(refused(given, OrderRefusal::PlanTooLarge { moves: document.change.moves().len() }));
        }
        Ok(DecisionStep::Do(vec![created(seen, document)]))
    }

    /// Adds what is told of a plan.
    pub(super) fn complete(&mut self, seen: &Observation, document: &mut PlanDocument) -> Due<()> {
        document.created_ms = seen.wall.0;
        document.estimate = self.estimate(seen, document)?;
        document.units = units(&seen.cluster, document);
        document.pace = pace_before(seen, document);
        document.blocked = blocked(seen, document);
        Ok(())
    }

    /// About how much a plan brings in: of what a node itself holds, as large a part as buckets of the node. What an
    /// aborted plan left over at a node, or it has given away and not dropped yet, is not its own.
    fn estimate(&mut self, seen: &Observation, plan: &PlanDocument) -> Due<Option<Size>> {
        if plan.change.numbers().is_some() {
            // Nodes say how much they hold of all stores together.
            return Ok(None);
        }
        let nodes: BTreeSet<NodeId> = plan.places.keys().copied().collect();
        self.asked(seen, Ask { nodes, sizes: true, ..Ask::default() })?;
        let cluster = &plan.change.before_moves(&seen.cluster);
        let mut held: BTreeMap<NodeId, u64> = BTreeMap::new();
        for partition in cluster.ring.partitions() {
            for node in cluster.replicas_in(&partition.nodes) {
                *held.entry(*node).or_default() += buckets(cluster, partition.id);
            }
        }
        let mean = |node: &NodeId| {
            let said = seen.said.get(node)?.as_ref().ok()?;
            let (held, size) = (*held.get(node)? as f64, said.size?);
            let own = 1.0 - said.leftovers.min(size.records) as f64 / size.records.max(1) as f64;
            Some((size.records as f64 * own / held, size.bytes as f64 * own / held))
        };
        let (mut records, mut bytes) = (0.0, 0.0);
        for one in plan.change.moves() {
            let holders = one.from.iter().filter_map(mean);
            let (count, sum) = holders
                .fold((0, (0.0, 0.0)), |(count, sum), mean| (count + 1, (sum.0 + mean.0, sum.1 + mean.1)));
            if count == 0 && !one.entering.is_empty() {
                return Ok(None);
            }
            let copies = one.entering.len() as u64 * buckets(cluster, one.partition);
            let copies = copies as f64 / f64::from(count.max(1));
            records += sum.0 * copies;
            bytes += sum.1 * copies;
        }
        Ok(Some(Size { records: records as u64, bytes: bytes as u64 }))
    }

    /// Begins to carry a plan out.
    pub(super) fn apply(&mut self, seen: &Observation, given: &Given, number: u64) -> Due<DecisionStep> {
        let planned = match seen.plans.get(&number) {
            Some(Kept::Open(planned)) => planned,
            Some(Kept::Ended(ended)) if ended.ended_by == given.number => {
                return Ok(of_plan(seen, given, number, nothing_left()));
            }
            kept => return Ok(refused(given, not_open(number, kept))),
        };
        if let Some(state) = &planned.state {
            return Ok(match state.order == given.number {
                true => of_plan(seen, given, number, begun(&planned.plan.change)),
                false => refused(given, OrderRefusal::PlanIs { plan: number, phase: Some(state.phase) }),
            });
        }
        if let Some(other) = seen.under_way() {
            return Ok(refused(given, OrderRefusal::OtherPlan { other: other.number }));
        }
        if let Some(refusal) = self.unfit(seen, planned)? {
            return Ok(refused(given, refusal));
        }
        let (phase, plan) = (Phase::Applying, number);
        let state = Box::new(PlanState {
            progress: Progress { waiting: planned.plan.change.partitions(), ..Progress::default() },
            seconds_left: lengths::takes(&planned.plan).map(|takes| takes.as_secs()),
            ..first_state(seen, given.number, phase)
        });
        let answer = OrderOutcome::Done {
            done: begun(&planned.plan.change),
            plan: Some(plan),
            generation: seen.cluster.generation,
        };
        // A drain goes on, and is answered when the document says so.
        let mut actions = vec![HeadmasterAction::Note { plan, state }];
        if !matches!(given.document.order, model::order::Order::Drain { .. }) {
            actions.push(HeadmasterAction::Answer { order: given.number, answer });
        }
        Ok(DecisionStep::Do(actions))
    }

    /// Why the plan is not what the cluster needs any more, or cannot be carried out by its nodes.
    pub(super) fn unfit(&mut self, seen: &Observation, planned: &Planned) -> Due<Option<OrderRefusal>> {
        let (number, plan) = (planned.number, &planned.plan);
        let because = match self.planned(&seen.cluster, &plan.wish, plan.consent) {
            Ok(again) if again.change == plan.change => None,
            Ok(_) => Some(match &plan.change {
                PlanChange::Numbers(_) => Stale::OtherNumbers,
                PlanChange::Reshape { .. } | PlanChange::Golden { .. } => Stale::OtherBounds,
                PlanChange::Moves { .. } => Stale::OtherMoves,
            }),
            Err(refusal) => Some(Stale::Refused(refusal)),
        };
        if let Some(because) = because {
            let (then, now) = (plan.generation, seen.cluster.generation);
            return Ok(Some(OrderRefusal::PlanStale { plan: number, then, now, because }));
        }
        let findings = lint::errors(&seen.cluster, &plan.change, &plan.places);
        if !findings.is_empty() {
            return Ok(Some(OrderRefusal::PlanUnsound { findings }));
        }
        if let (PlanChange::Numbers(_), Some(node)) = (&plan.change, too_old(seen, model::cluster::FORM)) {
            return Ok(Some(OrderRefusal::NodeTooOld { node }));
        }
        let entering = plan.change.entering(&seen.cluster).into_iter().map(|(node, _)| node).collect();
        self.deaf(seen, &entering)
    }

    /// Ends a plan.
    pub(super) fn abort(&mut self, seen: &Observation, given: &Given, number: u64) -> DecisionStep {
        let planned = match seen.plans.get(&number) {
            Some(Kept::Open(planned)) => planned,
            Some(Kept::Ended(ended)) if ended.ended_by == given.number => {
                return of_plan(seen, given, number, Done::PlanAborted);
            }
            kept => return refused(given, not_open(number, kept)),
        };
        let (state, what) = match &planned.state {
            None => {
                let state = first_state(seen, given.number, Phase::Aborted);
                (PlanState { ended_ms: Some(seen.wall.0), ..state }, Done::PlanAborted)
            }
            Some(state) if state.phase == Phase::Aborting && state.order == given.number => {
                return of_plan(seen, given, number, Done::PlanAborting);
            }
            // One whose outcome is looked for is open, and has ended.
            Some(state) if state.phase == Phase::Aborting || state.phase.has_ended() => {
                return refused(given, OrderRefusal::PlanIs { plan: number, phase: Some(state.phase) });
            }
            Some(state) => {
                let (phase, order) = (Phase::Aborting, given.number);
                let aborted_under = Some(seen.cluster.generation);
                (PlanState { phase, order, aborted_under, ..state.clone() }, Done::PlanAborting)
            }
        };
        noted(seen, given, (number, state), what)
    }
}

/// There are no figures yet, or never: the former passes by itself.
fn unmeasured(given: &Given, refusal: plan::PlanRefusal) -> DecisionStep {
    let again_after_ms = match &refusal {
        plan::PlanRefusal::NoFigures { seconds, .. } => seconds.map(|seconds| seconds * 1000),
        _ => None,
    };
    answered(given, OrderOutcome::Refused { refusal: OrderRefusal::Wish(refusal), again_after_ms })
}

/// The plan is created, with the number behind the last one.
pub(super) fn created(seen: &Observation, plan: PlanDocument) -> HeadmasterAction {
    let number = seen.plans.last_key_value().map_or(1, |(last, _)| last + 1);
    HeadmasterAction::CreatePlan { number, plan: Box::new(plan) }
}

/// A plan's partitions take no steps from now on, or take steps again.
pub(super) fn turned(seen: &Observation, given: &Given, number: u64, from: Phase, to: Phase) -> DecisionStep {
    let what = if to == Phase::Paused { Done::PlanPaused } else { Done::PlanResumed };
    let planned = match seen.plans.get(&number) {
        Some(Kept::Open(planned)) => planned,
        kept => return refused(given, not_open(number, kept)),
    };
    match &planned.state {
        Some(state) if state.phase == to && state.order == given.number => of_plan(seen, given, number, what),
        Some(state) if state.phase == from => {
            let was_paused = state.was_paused || to == Phase::Paused;
            let (order, seconds_left) = (given.number, None);
            let state = PlanState { phase: to, order, was_paused, seconds_left, ..state.clone() };
            noted(seen, given, (number, state), what)
        }
        state => {
            let phase = state.as_ref().map(|state| state.phase);
            refused(given, OrderRefusal::PlanIs { plan: number, phase })
        }
    }
}

/// A plan's state is written, and then the answer.
fn noted(seen: &Observation, given: &Given, (plan, state): (u64, PlanState), what: Done) -> DecisionStep {
    let answer = OrderOutcome::Done { done: what, plan: Some(plan), generation: seen.cluster.generation };
    let state = Box::new(state);
    DecisionStep::Do(vec![
        HeadmasterAction::Note { plan, state },
        HeadmasterAction::Answer { order: given.number, answer },
    ])
}

fn of_plan(seen: &Observation, given: &Given, plan: u64, done: Done) -> DecisionStep {
    answered(given, OrderOutcome::Done { done, plan: Some(plan), generation: seen.cluster.generation })
}

/// Why an order about a plan that is not open is refused.
fn not_open(plan: u64, kept: Option<&Kept>) -> OrderRefusal {
    match kept {
        None | Some(Kept::Open(_)) => OrderRefusal::PlanUnknown { plan },
        Some(Kept::Ended(ended)) => OrderRefusal::PlanIs { plan, phase: Some(ended.phase) },
        Some(Kept::Unread { detail }) => OrderRefusal::PlanNotUnderstood { plan, detail: detail.clone() },
    }
}

pub(super) fn first_state(seen: &Observation, order: u64, phase: Phase) -> PlanState {
    PlanState {
        phase,
        order,
        reason: None,
        aborted_under: None,
        begun_ms: seen.wall.0,
        ended_ms: None,
        progress: Progress::default(),
        bytes_per_second: None,
        seconds_left: None,
        was_paused: false,
        waiting: Vec::new(),
        came_of: None,
    }
}

/// The plan that this order created. A successor looks for it.
pub(super) fn created_by(seen: &Observation, order: u64) -> Option<u64> {
    let (number, last) = seen.plans.last_key_value()?;
    let by = match last {
        Kept::Open(planned) => planned.plan.order,
        Kept::Ended(ended) => ended.created_by,
        // What is not understood was created by a later version.
        Kept::Unread { .. } => return None,
    };
    (by == order).then_some(*number)
}

/// A node that would not understand a document of this form.
pub(super) fn too_old(seen: &Observation, form: u32) -> Option<NodeId> {
    let old = seen.registered.iter().find(|active| active.reads_form < form)?;
    Some(old.node.id)
}

/// What a plan does, in short.
pub(super) fn begun(change: &PlanChange) -> Done {
    let (cuts, joins) = match change {
        PlanChange::Reshape { reshape: Reshape::Cut { cuts }, .. } => (cuts.len(), false),
        PlanChange::Reshape { reshape: Reshape::Join { .. }, .. } => (0, true),
        PlanChange::Golden { handover, joins, .. } => {
            (usize::from(handover.cut.is_some()), !joins.is_empty())
        }
        PlanChange::Moves { .. } | PlanChange::Numbers(_) => (0, false),
    };
    let numbers = change.numbers().map(|numbers| (numbers.store.clone(), numbers.to));
    Done::PlanBegun { moves: change.moves().len(), cuts, joins, numbers }
}

/// What is told of a plan that has begun and ended since.
fn nothing_left() -> Done {
    Done::PlanBegun { moves: 0, cuts: 0, joins: false, numbers: None }
}

/// How fast the last plan was carried out that tells how long this one takes.
fn pace_before(seen: &Observation, plan: &PlanDocument) -> Option<plan::PlanPace> {
    let cost = lengths::cost(plan)?;
    seen.plans.values().rev().find_map(|kept| match kept {
        Kept::Ended(ended) => ended.pace.filter(|(its, _)| lengths::tells(*its, cost)).map(|(_, pace)| pace),
        _ => None,
    })
}

/// How many buckets of stores a plan brings in somewhere.
fn units(cluster: &Cluster, plan: &PlanDocument) -> u64 {
    let cluster = &plan.change.before_moves(cluster);
    let copies = plan.change.entering(cluster).into_iter();
    let buckets: u64 = copies.map(|(_, partition)| buckets(cluster, partition)).sum();
    buckets * cluster.stores.len() as u64
}

/// How many buckets a partition has.
fn buckets(cluster: &Cluster, partition: PartitionId) -> u64 {
    let (bounds, tokens) = (cluster.ring.bounds(partition), cluster.bucket_tokens());
    bounds.zip(tokens).map_or(1, |((first, last), tokens)| (last.0 - first.0) / tokens + 1)
}

/// Steps that cannot be taken while nodes are away that are away now.
fn blocked(seen: &Observation, plan: &PlanDocument) -> Vec<Blocked> {
    let cluster = &seen.cluster;
    let nodes = cluster.nodes.iter().map(|node| node.id);
    let away: Vec<NodeId> = nodes.filter(|&node| seen.registered(node).is_none()).collect();
    if away.is_empty() {
        return Vec::new();
    }
    let mut counts = BTreeMap::new();
    if let PlanChange::Numbers(numbers) = &plan.change {
        let Consent { fewer_zones, weaker } = plan.consent;
        let accepted = Accepted { fewer_zones, weaker };
        let begun = steps::begin_numbers(cluster, numbers.store.as_str(), numbers.to, accepted);
        let blocked = begun.iter().flat_map(|begun| steps::numbers_blocked_by(begun, &away));
        for (step, _, waiting) in blocked {
            *counts.entry((step, waiting)).or_default() += 1;
        }
    }
    let cluster = &plan.change.before_moves(cluster);
    for one in plan.change.moves() {
        let Some(partition) = cluster.ring.get(one.partition) else { continue };
        for (step, waiting) in steps::blocked_by(cluster, partition, &one.to, &away) {
            *counts.entry((step, waiting)).or_default() += 1;
        }
    }
    let blocked = |((step, waiting), partitions)| Blocked { step, waiting, partitions };
    counts.into_iter().take(BLOCKED_SHOWN).map(blocked).collect()
}
