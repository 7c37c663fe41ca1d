//! The autopilot: what the headmaster does about loads without being asked.
//!
//! What should move is found by [`crate::rebalance::balancer`]. Here it becomes a plan, which is created and then carried
//! out like any other: a headmaster that ends between the two has a successor that finds the plan. What it remembers (the
//! loads that it saw) only delays it: a successor looks for a while before it decides.
//!
//! An operator's order comes first: a plan of the autopilot goes back, and then the order is carried out.
//!
//! Must never: decide by what was seen before the ring changed last.

use std::collections::BTreeMap;
use std::time::Duration;

use model::balance::{Away, Mode, Policy, PolicyChange, Says, Turned, Verdict};
use model::order::{Done, Given, Order, OrderRefusal};
use model::plan::{self, Came, CameOf, Consent, Excess, Move, Phase, PlanDocument, PlanState, Planned, Wish};
use model::{Cluster, Moment, Node, NodeId, PartitionId, Role};

use self::outcome::came_of;
use super::orders::{done, refused};
use super::plans::{created, first_state};
use super::standby::holds;
use super::{Again, Ask, DecisionStep, Due, Headmaster, HeadmasterAction, Kept, Observation};
use crate::rebalance::balancer::{
    self, BalanceFinding, BalanceOutcome, SAMPLE_EVERY, SETTLING, Samples, SearchHistory, Share,
};
use crate::rebalance::lengths;

mod outcome;

/// What the autopilot says is written at most so often.
const TOLD_PAUSE: Duration = Duration::from_secs(30);
/// So often it is written though it says the same: its figures grow old.
const TOLD_AGAIN: Duration = Duration::from_secs(300);
/// This long after a plan has settled, its outcome is judged.
const OUTCOME_AFTER_MS: u64 = 60_000;
/// By loads over this long at least: within seconds noise looks like an outcome.
const OUTCOME_SEEN_MS: u64 = 50_000;
/// After this long nobody can say any more what came of it.
const OUTCOME_UNTIL_MS: u64 = 600_000;
/// What was decided this long ago, and not begun, was decided by loads of another time.
const DECIDED_UNTIL_MS: u64 = 120_000;
/// So many acts in a row that came out worse end acting.
const WORSE_MAX: usize = 3;
/// For this long a plan that was created and not applied keeps the autopilot from changing what it was computed from.
const PLAN_LOOKED_AT_MS: u64 = 600_000;

/// This long after it got something, a new node gets more, up to its share.
const JOINING_MS: u64 = 1_800_000;
/// This long after it got the first part, it is no longer new.
const JOINED_MS: u64 = 6 * 3_600_000;

/// What the autopilot remembers.
#[derive(Clone, Debug, Default)]
pub(super) struct Balancing {
    samples: Samples,
    /// When nodes were asked last.
    sampled: Option<Moment>,
    /// Whether it looks at all.
    looks: bool,
    /// The ring, nodes and stores of the last observation, in short.
    ring: Option<u64>,
    /// What was told last, and when.
    told: Option<(Moment, Verdict)>,
    /// Members that are away, as they are told.
    pub(super) away: Vec<Away>,
}

impl Balancing {
    /// How long a headmaster may rest.
    pub(super) fn pause(&self, idle: Duration) -> Duration {
        if self.looks { idle.min(SAMPLE_EVERY) } else { idle }
    }

    /// Whether the next observation shall ask for loads.
    pub(super) fn wants_loads(&self, now: Moment, again: Again) -> bool {
        let due = self.sampled.is_none_or(|last| now.since(last) + SAMPLE_EVERY / 4 >= SAMPLE_EVERY);
        self.looks && (due || matches!(again, Again::WhenWoken(_)))
    }

    /// Takes in what this observation was told of loads.
    fn hear(&mut self, seen: &Observation) {
        self.samples.keep(&seen.cluster);
        if !seen.asked.loads {
            return;
        }
        self.sampled = Some(seen.now);
        for (node, said) in &seen.said {
            match said {
                Ok(said) => {
                    if let Some(load) = &said.load {
                        self.samples.hear(*node, seen.now, said.incarnation, Ok(load));
                    }
                }
                Err(detail) => self.samples.hear(*node, seen.now, 0, Err(detail)),
            }
        }
    }
}

/// All members are asked for their work.
pub(super) fn loads_of(cluster: &Cluster) -> Ask {
    Ask { nodes: cluster.nodes.iter().map(|node| node.id).collect(), loads: true, ..Ask::default() }
}

/// The partitions that a plan gave other lists, and whether copies came somewhere.
pub(super) fn touched(planned: &Planned) -> Vec<(PartitionId, bool)> {
    if planned.state.as_ref().is_some_and(came_to_nothing) {
        return Vec::new();
    }
    let moves = planned.plan.change.moves().iter();
    moves.map(|one| (one.partition, !one.entering.is_empty())).collect()
}

/// Whether a plan was dropped before anything of it was done.
fn came_to_nothing(state: &PlanState) -> bool {
    state.phase == Phase::Aborted && state.progress.settled == 0
}

/// The copies that a plan of the autopilot took from nodes. A plan names lists, and how many places nodes have: a node that lost some, and
/// is listed later in a partition that was copied, or not at all, is taken for one that left it.
pub(super) fn left(planned: &Planned) -> Vec<(PartitionId, NodeId)> {
    if planned.plan.decision.is_none() {
        return Vec::new();
    }
    let loses = |node: &NodeId| planned.plan.places.get(node).is_some_and(|(before, after)| before > after);
    let moves = planned.plan.change.moves().iter().filter(|one| !one.entering.is_empty());
    let of = |one: &Move| {
        let place = |node: &NodeId| one.to.iter().position(|listed| listed == node);
        let listed = one.from.iter().enumerate();
        let later = listed.filter(|(before, node)| place(node).is_none_or(|after| after > *before));
        let gone: Vec<_> =
            later.filter(|(_, node)| loses(node)).map(|(_, node)| (one.partition, *node)).collect();
        gone
    };
    moves.flat_map(of).collect()
}

/// Changes what the autopilot may do.
pub(super) fn changed(seen: &Observation, given: &Given, change: &PolicyChange) -> DecisionStep {
    let policy = seen.policy.clone().unwrap_or_else(Policy::unknown);
    let mut next = policy.clone();
    match change {
        PolicyChange::Mode { mode } if *mode != policy.mode => {
            next.mode = *mode;
            next.because = Turned::Ordered { order: given.number, by: given.document.by.clone() };
        }
        PolicyChange::Mode { .. } => {}
        PolicyChange::Set { settings } => match next.settings.with(settings) {
            Ok(settings) => next.settings = settings,
            Err(because) => return refused(given, OrderRefusal::Setting { because }),
        },
        PolicyChange::Veto { node } => match super::standby::needless_veto(seen, *node) {
            Some(refusal) => return refused(given, refusal),
            None => _ = next.vetoed.insert(*node),
        },
    }
    if seen.policy.is_some() && seen.policy_unread.is_none() && next == policy {
        return done(seen, given, Done::PolicyStands { policy: Box::new(policy) });
    }
    next.changed_ms = seen.wall.0;
    DecisionStep::Do(vec![HeadmasterAction::SetPolicy(Box::new(next))])
}

/// Whether there is a plan of this number that can be applied.
fn is_open(seen: &Observation, plan: u64) -> bool {
    matches!(seen.plans.get(&plan), Some(Kept::Open(planned)) if planned.state.is_none())
}

/// Whether an order wants the ring for itself.
fn wants_ring(order: &Order) -> bool {
    matches!(
        order,
        Order::Create { .. }
            | Order::Apply { .. }
            | Order::Drain { .. }
            | Order::Renumber { .. }
            | Order::Replace { .. }
            | Order::Remove { .. }
    )
}

impl Headmaster {
    /// What the autopilot has begun goes back before an order is seen to that needs the ring; the order waits for that.
    pub(super) fn makes_room(&mut self, seen: &Observation, given: &Given) -> Option<DecisionStep> {
        let planned = seen.under_way().filter(|planned| planned.plan.decision.is_some())?;
        let is_vain = matches!(given.document.order, Order::Apply { plan } if !is_open(seen, plan));
        if is_vain || !wants_ring(&given.document.order) {
            return None;
        }
        self.is_busy();
        let state = planned.state.as_ref()?;
        if state.phase == Phase::Aborting {
            // It is carried back, and the order waits.
            return Some(DecisionStep::Wait(Vec::new()));
        }
        let aborted_under = Some(seen.cluster.generation);
        let state = PlanState { phase: Phase::Aborting, order: given.number, aborted_under, ..state.clone() };
        Some(DecisionStep::Do(vec![HeadmasterAction::Note { plan: planned.number, state: Box::new(state) }]))
    }

    /// Does what loads want, and says what it thinks of them.
    pub(super) fn balance(&mut self, seen: &Observation) -> Due<Option<DecisionStep>> {
        let policy = seen.policy.clone().unwrap_or_else(Policy::unknown);
        self.balancing.looks = policy.mode != Mode::Off;
        self.watch_ring(seen);
        if policy.mode == Mode::Off {
            self.balancing.told = None;
            return Ok(None);
        }
        self.balancing.hear(seen);
        if let Some(step) = self.look_back(seen).or_else(|| misjudged(seen, &policy)) {
            return Ok(Some(step));
        }
        if let Some(planned) = decided(seen) {
            return self.carry_out(seen, &policy, planned).map(Some);
        }
        if let Some(planned) = seen.under_way() {
            return Ok(self.tell(seen, &policy, Says::PlanUnderWay { plan: planned.number }, None));
        }
        if let Some(plan) = looked_at(seen) {
            return Ok(self.tell(seen, &policy, Says::PlanWaits { plan }, None));
        }
        let history = history(seen);
        if let Some(finding) = self.joining(seen, &history, &policy) {
            return self.conclude(seen, &policy, finding);
        }
        let (samples, settings) = (&mut self.balancing.samples, &policy.settings);
        let finding = match balancer::look(&seen.cluster, samples, &history, settings, seen.now) {
            Ok(Some(finding)) => finding,
            Ok(None) => return Ok(None),
            Err(says) => return Ok(self.tell(seen, &policy, says, None)),
        };
        self.conclude(seen, &policy, finding)
    }

    /// The partition with most load, and where that halves.
    pub(super) fn hottest(&self, seen: &Observation) -> Result<(PartitionId, u64), plan::PlanRefusal> {
        let is_off = seen.policy.as_ref().is_none_or(|policy| policy.mode == Mode::Off);
        let unmeasured = |seconds| plan::PlanRefusal::NoFigures { is_off, seconds };
        if is_off {
            return Err(unmeasured(None));
        }
        let windows = self.balancing.samples.loads(&seen.cluster, seen.now).map_err(|says| match says {
            Says::Gathers { seconds } => unmeasured(Some(seconds)),
            _ => unmeasured(None),
        })?;
        let loads = windows.last().ok_or_else(|| unmeasured(None))?;
        balancer::hottest(&seen.cluster, loads)
    }

    /// What a new node should get now, if one is there that holds less than its share.
    fn joining(
        &self,
        seen: &Observation,
        history: &SearchHistory,
        policy: &Policy,
    ) -> Option<BalanceFinding> {
        let cluster = &seen.cluster;
        if cluster.ring.is_golden() {
            // It gets a partition when an operator says so.
            return None;
        }
        let serves = |node: &&Node| node.role == Role::Serving && seen.registered(node.id).is_some();
        let fresh = cluster.nodes.iter().filter(serves).filter(|node| !holds(cluster, node.id));
        let fresh = fresh.map(|node| (node.id, (Share::First, seen.wall.0)));
        let begun = joined_lately(seen).into_iter();
        let begun = begun.filter(|(node, _)| cluster.node(*node).as_ref().is_some_and(serves));
        let joiners = fresh.chain(begun.map(|(node, first)| (node, (Share::Whole, first))));
        let joiners: BTreeMap<NodeId, (Share, u64)> = joiners.collect();
        if joiners.is_empty() {
            return None;
        }
        let windows = self.balancing.samples.loads(cluster, seen.now).ok()?;
        // The longest window knows best, and what is missing is no matter of seconds.
        let loads = windows.last()?;
        joiners.into_iter().find_map(|(node, (share, first))| {
            // What moved before it came cannot have left it. From one that was emptied it may have taken some.
            let history = history.since(first).and_copied(left_by(seen, node));
            let finding = balancer::join(cluster, loads, &history, &policy.settings, (node, share))?;
            let BalanceOutcome::Act { placed, .. } = &finding.outcome else { return None };
            let wish = Wish::Balance { placed: placed.clone() };
            self.planned(cluster, &wish, Consent::default()).is_ok().then_some(finding)
        })
    }

    /// Acts on what was found, if it may, and says so.
    fn conclude(
        &mut self,
        seen: &Observation,
        policy: &Policy,
        mut finding: BalanceFinding,
    ) -> Due<Option<DecisionStep>> {
        let nothing = BalanceOutcome::Nothing(Says::Balanced);
        let (wish, decision) = match std::mem::replace(&mut finding.outcome, nothing) {
            BalanceOutcome::Nothing(says) => return Ok(self.tell(seen, policy, says, Some(finding))),
            BalanceOutcome::Act { placed, decision } => (Wish::Balance { placed }, decision),
            BalanceOutcome::Cut { decision } => match &decision.cut {
                Some(cut) => (Wish::Split { partition: cut.partition, at: Some(cut.at) }, decision),
                None => return Ok(None),
            },
        };
        if policy.mode == Mode::Observe {
            return Ok(self.tell(seen, policy, Says::Would { decision }, Some(finding)));
        }
        if let Some(hours) = policy.settings.quiet.filter(|hours| hours.hold(seen.wall.0)) {
            return Ok(self.tell(seen, policy, Says::Quiet { hours, decision }, Some(finding)));
        }
        let Ok(plan) = self.planned(&seen.cluster, &wish, Consent::default()) else {
            let says = Says::NothingHelps { node: decision.node, dearest: None };
            return Ok(self.tell(seen, policy, says, Some(finding)));
        };
        let mut document = plan.document(wish, Consent::default());
        document.decision = Some(decision);
        AUTOPILOT.clone_into(&mut document.by);
        self.complete(seen, &mut document)?;
        if document.bytes() > self.document_bytes_max {
            return Ok(self.tell(seen, policy, too_large(&document), Some(finding)));
        }
        // It would be dropped before it begins, and made again.
        let planned = Planned { number: 0, plan: document, state: None };
        if self.unfit(seen, &planned)?.is_some() {
            return Ok(self.tell(seen, policy, too_large(&planned.plan), Some(finding)));
        }
        let document = planned.plan;
        Ok(Some(DecisionStep::Do(vec![created(seen, document)])))
    }

    /// Carries out what was decided, if it is still right; otherwise it is dropped, and decided anew.
    fn carry_out(&mut self, seen: &Observation, policy: &Policy, planned: &Planned) -> Due<DecisionStep> {
        let is_old = seen.wall.0.saturating_sub(planned.plan.created_ms) > DECIDED_UNTIL_MS;
        let is_unwanted = policy.mode != Mode::On || seen.under_way().is_some() || is_old;
        let note = |state| HeadmasterAction::Note { plan: planned.number, state: Box::new(state) };
        if is_unwanted || self.unfit(seen, planned)?.is_some() {
            let state = first_state(seen, 0, Phase::Aborted);
            return Ok(DecisionStep::Do(vec![note(PlanState { ended_ms: Some(seen.wall.0), ..state })]));
        }
        let mut state = first_state(seen, 0, Phase::Applying);
        state.progress.waiting = planned.plan.change.partitions();
        state.seconds_left = lengths::takes(&planned.plan).map(|takes| takes.as_secs());
        let mut actions = vec![note(state)];
        if let Some(DecisionStep::Wait(told)) =
            self.tell(seen, policy, Says::Acts { plan: planned.number }, None)
        {
            actions.extend(told);
        }
        Ok(DecisionStep::Do(actions))
    }

    /// What was seen under another ring does not count.
    fn watch_ring(&mut self, seen: &Observation) {
        let ring = fingerprint(&seen.cluster);
        if self.balancing.ring != Some(ring) {
            // A headmaster that begins does not know when the ring changed last.
            self.balancing.samples.forget_before(seen.now.after(SETTLING));
            self.balancing.ring = Some(ring);
        }
    }

    /// Writes what came of a decision, once that can be said.
    fn look_back(&self, seen: &Observation) -> Option<DecisionStep> {
        let (planned, state, decision) = seen.plans.values().find_map(|kept| match kept {
            Kept::Open(planned) if planned.awaits_outcome() => {
                Some((planned, planned.state.as_ref()?, planned.plan.decision.as_ref()?))
            }
            _ => None,
        })?;
        let since = seen.wall.0.saturating_sub(state.ended_ms.unwrap_or(state.begun_ms));
        if since < OUTCOME_AFTER_MS {
            return None;
        }
        let loads = self.balancing.samples.loads(&seen.cluster, seen.now).ok();
        let loads = loads.filter(|_| since <= OUTCOME_UNTIL_MS);
        let seen_long = loads.iter().flatten().rfind(|loads| loads.window_ms >= OUTCOME_SEEN_MS);
        // What came since was the work of more than one.
        let is_alone = seen.plans.range(planned.number + 1..).all(|(_, kept)| !was_applied(kept));
        let outcome = match seen_long {
            Some(loads) if is_alone => came_of(decision, loads, seen.wall.0),
            None if is_alone && since <= OUTCOME_UNTIL_MS => return None,
            _ => CameOf { at_ms: seen.wall.0, came: Came::Unknown, largest: 0, largest_over_mean: 0 },
        };
        let state = PlanState { came_of: Some(outcome), ..state.clone() };
        Some(DecisionStep::Do(vec![HeadmasterAction::Note { plan: planned.number, state: Box::new(state) }]))
    }

    /// Writes what it thinks, when that is something else than before; not too often.
    fn tell(
        &mut self,
        seen: &Observation,
        policy: &Policy,
        says: Says,
        finding: Option<BalanceFinding>,
    ) -> Option<DecisionStep> {
        let verdict = Verdict {
            at_ms: seen.wall.0,
            mode: policy.mode,
            policy_unread: seen.policy_unread.clone(),
            says,
            mean: finding.as_ref().map_or(0, |finding| finding.mean),
            thought_of: finding.as_ref().map_or(0, |finding| finding.thought_of),
            seen: finding.as_ref().map_or_else(Vec::new, |finding| finding.seen.clone()),
            lost: finding.map_or_else(Vec::new, |finding| finding.lost),
            away: self.balancing.away.clone(),
        };
        let pause = self.balancing.told.as_ref().map_or(Duration::ZERO, |(at, last)| {
            let is_new = last.mode != verdict.mode
                || last.policy_unread != verdict.policy_unread
                || last.away.len() != verdict.away.len()
                || last.away.iter().zip(&verdict.away).any(|(before, now)| !before.is_like(now));
            let due = match (is_new, last.says.is_like(&verdict.says), &verdict.says) {
                (true, ..) | (_, false, Says::Acts { .. }) => Duration::ZERO,
                (_, false, _) => TOLD_PAUSE,
                (_, true, _) => TOLD_AGAIN,
            };
            due.saturating_sub(seen.now.since(*at))
        });
        if pause > Duration::ZERO {
            return None;
        }
        self.balancing.told = Some((seen.now, verdict.clone()));
        Some(DecisionStep::Wait(vec![HeadmasterAction::Tell(Box::new(verdict))]))
    }
}

/// Who gives the orders that nobody gave.
pub(super) const AUTOPILOT: &str = "autopilot";

fn too_large(document: &PlanDocument) -> Says {
    let node = document.decision.as_ref().map_or(NodeId(0), |decision| decision.node);
    Says::NothingHelps { node, dearest: None }
}

/// The plan that the autopilot created, and that nobody has begun to carry out.
pub(super) fn decided(seen: &Observation) -> Option<&Planned> {
    seen.plans.values().find_map(|kept| match kept {
        Kept::Open(planned) if planned.plan.decision.is_some() && planned.state.is_none() => Some(&**planned),
        _ => None,
    })
}

/// A plan that somebody created lately, and looks at before it is applied.
fn looked_at(seen: &Observation) -> Option<u64> {
    seen.plans.values().find_map(|kept| match kept {
        Kept::Open(planned) if planned.plan.decision.is_none() && planned.state.is_none() => {
            let age = seen.wall.0.saturating_sub(planned.plan.created_ms);
            (age < PLAN_LOOKED_AT_MS).then_some(planned.number)
        }
        _ => None,
    })
}

/// The node that got its share by a plan of the autopilot, because it was new.
pub(super) fn joined(planned: &Planned) -> Option<NodeId> {
    let decision = planned.plan.decision.as_ref()?;
    (decision.exceeds == Excess::Joins).then_some(decision.node)
}

/// Nodes that got a part of their share so lately that they get the rest, and when they got the first part.
fn joined_lately(seen: &Observation) -> BTreeMap<NodeId, u64> {
    let joined = |kept: &Kept| match kept {
        Kept::Ended(ended) if ended.phase == Phase::Done => Some((ended.joined?, ended.ended_ms)),
        Kept::Open(planned) => {
            let state = planned.state.as_ref().filter(|state| state.phase == Phase::Done)?;
            Some((joined(planned)?, state.ended_ms.unwrap_or(state.begun_ms)))
        }
        _ => None,
    };
    let mut times: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
    for (node, at) in seen.plans.values().filter_map(joined) {
        let (first, last) = times.entry(node).or_insert((at, at));
        if at.saturating_sub(*last) >= JOINING_MS {
            // It had its share then, and was emptied since.
            *first = at;
        }
        *last = at;
    }
    let is_over = |(first, last): (u64, u64)| {
        let since = |ms: u64| seen.wall.0.saturating_sub(ms);
        since(last) >= JOINING_MS || since(first) >= JOINED_MS
    };
    times.retain(|node, times| !is_over(*times) && holds(&seen.cluster, *node));
    times.into_iter().map(|(node, (first, _))| (node, first)).collect()
}

/// When partitions were moved or reordered last, by the plans that are kept.
fn history(seen: &Observation) -> SearchHistory {
    let mut history = SearchHistory { now_ms: seen.wall.0, ..SearchHistory::default() };
    let mut take = |ended_ms: u64, touched: &[(PartitionId, bool)]| {
        for &(partition, copied) in touched {
            let last = if copied { &mut history.copied } else { &mut history.reordered };
            let at = last.entry(partition).or_default();
            *at = ended_ms.max(*at);
        }
    };
    for kept in seen.plans.values() {
        match kept {
            Kept::Ended(ended) => take(ended.ended_ms, &ended.touched),
            Kept::Open(planned) => {
                if let Some(state) = planned.state.as_ref().filter(|state| !came_to_nothing(state)) {
                    take(state.ended_ms.unwrap_or(seen.wall.0), &touched(planned));
                }
            }
            Kept::Unread { .. } => {}
        }
    }
    history
}

/// When the autopilot took copies of partitions from this node last, by the plans that are kept.
fn left_by(seen: &Observation, node: NodeId) -> BTreeMap<PartitionId, u64> {
    let mut times = BTreeMap::new();
    let mut take = |ended_ms: u64, left: &[(PartitionId, NodeId)]| {
        for (partition, _) in left.iter().filter(|(_, from)| *from == node) {
            let at = times.entry(*partition).or_default();
            *at = ended_ms.max(*at);
        }
    };
    for kept in seen.plans.values() {
        match kept {
            Kept::Ended(ended) => take(ended.ended_ms, &ended.left),
            Kept::Open(planned) => {
                if let Some(state) = &planned.state {
                    take(state.ended_ms.unwrap_or(seen.wall.0), &left(planned));
                }
            }
            Kept::Unread { .. } => {}
        }
    }
    times
}

/// Whether somebody began to carry a plan out.
fn was_applied(kept: &Kept) -> bool {
    match kept {
        Kept::Open(planned) => planned.state.is_some(),
        Kept::Ended(ended) => ended.phase != Phase::Aborted || ended.came.is_some(),
        Kept::Unread { .. } => true,
    }
}

/// After some acts in a row that came out worse than before nothing is done any more: what it believes of loads is wrong.
fn misjudged(seen: &Observation, policy: &Policy) -> Option<DecisionStep> {
    if policy.mode != Mode::On {
        return None;
    }
    let came = seen.plans.iter().rev().filter_map(|(number, kept)| match kept {
        Kept::Ended(ended) if ended.ended_ms >= policy.changed_ms => Some((*number, ended.came?)),
        _ => None,
    });
    let known = came.filter(|(_, came)| *came != Came::Unknown);
    let worse: Vec<u64> = known
        .take(WORSE_MAX)
        .take_while(|(_, came)| *came == Came::Worse)
        .map(|(number, _)| number)
        .collect();
    if worse.len() < WORSE_MAX {
        return None;
    }
    let because = Turned::Misjudged { plans: worse };
    let policy = Policy { mode: Mode::Observe, because, changed_ms: seen.wall.0, ..policy.clone() };
    Some(DecisionStep::Do(vec![HeadmasterAction::SetPolicy(Box::new(policy))]))
}

/// What loads depend on: who holds what, by which numbers, and who is there.
fn fingerprint(cluster: &Cluster) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    for partition in cluster.ring.partitions() {
        (partition.id, partition.start, &partition.nodes).hash(&mut hasher);
        partition.coming.as_ref().map(|coming| &coming.nodes).hash(&mut hasher);
    }
    for node in &cluster.nodes {
        (node.id, node.weight.get(), node.role == Role::Serving, node.role == Role::Leaving)
            .hash(&mut hasher);
    }
    for store in &cluster.stores {
        store.name.as_str().hash(&mut hasher);
        store.consistency.replicas.hash(&mut hasher);
    }
    hasher.finish()
}
