//! A standby takes the places of a member that is dead, though nobody orders it.
//!
//! All that [`super::replacing`] asks must be so, and for long: one headmaster has held its office and read the
//! registrations all that time, and no sign of life came. Half of that time it only announces, and an operator may veto.
//!
//! Must never: replace a node that is away with a switch, the coordination service, or this headmaster itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::balance::{Away, HeldBack, Mode, Policy};
use model::node::LifeSign;
use model::order::OrderRefusal;
use model::plan::{Consent, Decision, Excess, Phase, PlanState, Predicted, Wish};
use model::{Cluster, Moment, NodeId, Role, Zone};

use super::balance::{AUTOPILOT, decided};
use super::plans::created;
use super::replacing::{SILENT_MIN, buried};
use super::{DecisionStep, Due, Headmaster, HeadmasterAction, Kept, Observation, unasked};
use crate::quorum::one_answer_suffices;

/// A headmaster that has not looked for this long does not know who was there meanwhile.
const UNSEEN_MAX: Duration = Duration::from_secs(15);
/// So often signs of life are looked for. Registrations and answers are seen with each observation.
const SIGNS_EVERY: Duration = Duration::from_secs(30);
/// Two nodes are not replaced within this time.
const BETWEEN_MS: u64 = 600_000;
/// What is told of a replacement takes this many bytes of its plan at most.
const DECISION_BYTES: usize = 4096;

/// Since when members are away, as this headmaster has seen without a break.
#[derive(Clone, Debug, Default)]
pub(super) struct Absences {
    since: BTreeMap<NodeId, Moment>,
    /// When it looked last.
    looked: Option<Moment>,
    /// When it looked for signs of life of a node last, and what spoke against replacing it then.
    signs: BTreeMap<NodeId, (Moment, Option<HeldBack>)>,
}

impl Absences {
    /// Takes in who is there.
    pub(super) fn watch(&mut self, seen: &Observation) {
        if self.looked.is_none_or(|last| seen.now.since(last) > UNSEEN_MAX) {
            self.since.clear();
        }
        self.looked = Some(seen.now);
        let is_there =
            |id: NodeId| seen.registered(id).is_some() || matches!(seen.said.get(&id), Some(Ok(_)));
        let away: BTreeSet<NodeId> =
            seen.cluster.nodes.iter().map(|node| node.id).filter(|id| !is_there(*id)).collect();
        self.since.retain(|node, _| away.contains(node));
        self.signs.retain(|node, _| away.contains(node));
        for node in away {
            self.since.entry(node).or_insert(seen.now);
        }
    }
}

/// Why a veto is needless, if it is.
pub(super) fn needless_veto(seen: &Observation, node: NodeId) -> Option<OrderRefusal> {
    let Some(entry) = seen.cluster.node(node) else { return Some(OrderRefusal::NodeUnknown { node }) };
    let is_there = seen.registered(node).is_some() || !holds(&seen.cluster, node);
    (is_there || entry.gone).then_some(OrderRefusal::VetoNeedless { node, is_gone: entry.gone })
}

impl Headmaster {
    /// Lets a standby take the places of a member that is dead, and says of all that are away what becomes of them.
    pub(super) fn stand_in(&mut self, seen: &Observation) -> Due<Option<DecisionStep>> {
        let policy = seen.policy.clone().unwrap_or_else(Policy::unknown);
        self.balancing.away.clear();
        if let Some(step) = forget_vetoes(seen, &policy) {
            return Ok(Some(step));
        }
        if policy.mode == Mode::Off {
            return Ok(None);
        }
        let mut away: Vec<(Moment, NodeId)> =
            self.absences.since.iter().map(|(node, since)| (*since, *node)).collect();
        away.retain(|(_, node)| holds(&seen.cluster, *node));
        away.sort_unstable();
        let mut first = None;
        let (mut told, mut step) = (Vec::new(), None);
        for (since, node) in away {
            let mut one = self.looked_at(seen, &policy, node, since);
            match first {
                // One at a time, and each standby is promised once.
                Some(other) if one.held.is_none() => one.held = Some(HeldBack::Later { node: other }),
                None if one.held.is_none() => {
                    step = self.replace_when_due(seen, &policy, &mut one)?;
                    first = one.held.is_none().then_some(node);
                }
                _ => {}
            }
            told.push(one);
        }
        self.balancing.away = told;
        Ok(step)
    }

    /// What becomes of the places of a member that is away, by the documents alone.
    fn looked_at(&self, seen: &Observation, policy: &Policy, node: NodeId, since: Moment) -> Away {
        let seconds = seen.now.since(since).as_secs();
        let after_s = u64::from(policy.settings.replace_after_s.max(60));
        let is_gone = seen.cluster.node(node).is_some_and(|entry| entry.gone);
        let by = standby(seen, node, is_gone);
        let held = match by {
            None => Some(HeldBack::NoStandby),
            Some(_) => held(seen, policy, node, is_gone),
        };
        Away { node, seconds, after_s, by, announced: is_gone || seconds * 2 >= after_s, held }
    }

    fn replace_when_due(
        &mut self,
        seen: &Observation,
        policy: &Policy,
        away: &mut Away,
    ) -> Due<Option<DecisionStep>> {
        let node = away.node;
        let Some(by) = away.by else { return Ok(None) };
        // What was judged before, by this headmaster or an earlier one, or by an operator's order, is carried out.
        let is_gone = seen.cluster.node(node).is_some_and(|entry| entry.gone);
        let under_way = seen.under_way();
        if let Some(planned) = under_way.filter(|planned| planned.plan.decision.is_none()) {
            away.held = Some(HeldBack::Plan { plan: planned.number });
            return Ok(None);
        }
        if !is_gone && !self.is_dead(seen, away)? {
            return Ok(None);
        }
        if decided(seen).is_some() {
            // It is carried out with the next turn, or dropped.
            return Ok(None);
        }
        if let Some(planned) = under_way {
            away.held = Some(HeldBack::Plan { plan: planned.number });
            return Ok(make_way(seen));
        }
        let Some(next) = buried(&seen.cluster, node, by) else { return Ok(None) };
        let (wish, consent) = (Wish::Replace { node, by }, Consent::default());
        let plan = match self.planned(&next, &wish, consent) {
            Ok(plan) => plan,
            Err(because) => {
                away.held = Some(HeldBack::Wish { because });
                return Ok(None);
            }
        };
        let entering = plan.change.entering(&next).into_iter().map(|(node, _)| node).collect();
        if let Some(OrderRefusal::NodeDeaf { node, .. }) = self.deaf(seen, &entering)? {
            away.held = Some(HeldBack::Deaf { node });
            return Ok(None);
        }
        if plan.is_empty() || policy.mode != Mode::On {
            return Ok(None);
        }
        let moves = plan.change.partitions();
        let mut document = plan.document(wish, consent);
        let (bytes, bytes_max) = (document.bytes() + DECISION_BYTES, self.document_bytes_max);
        if bytes > bytes_max {
            let because = model::plan::PlanRefusal::TooLarge { partitions: moves, bytes, bytes_max };
            away.held = Some(HeldBack::Wish { because });
            return Ok(None);
        }
        // The node is called gone only where the plan can follow.
        if next.nodes != seen.cluster.nodes {
            return Ok(Some(unasked(next)));
        }
        AUTOPILOT.clone_into(&mut document.by);
        self.complete(seen, &mut document)?;
        let bytes = document.estimate.map_or(0, |size| size.bytes);
        document.decision = Some(Box::new(Decision {
            policy: policy.settings.policy,
            node,
            exceeds: Excess::Dead,
            seen: Vec::new(),
            mean: 0,
            largest: 0,
            window_ms: away.seconds.max(away.after_s) * 1000,
            acts: document.change.partitions() as u64,
            cut: None,
            reorders: 0,
            thought_of: 0,
            lost: Vec::new(),
            predicted: Predicted { bytes, ..Predicted::default() },
        }));
        Ok(Some(DecisionStep::Do(vec![created(seen, document)])))
    }

    /// Whether its time is over and nothing speaks for its being alive. Signs of life begin the time anew.
    fn is_dead(&mut self, seen: &Observation, away: &mut Away) -> Due<bool> {
        let node = away.node;
        let is_due = away.seconds >= away.after_s;
        if let Some((last, held)) = self.absences.signs.get(&node)
            && seen.now.since(*last) < SIGNS_EVERY
            && (!is_due || held.is_some())
        {
            away.held.clone_from(held);
            return Ok(false);
        }
        let life = self.signs_of_life(seen, node)?.map(|(because, _)| because);
        let since = self.absences.since.get(&node).copied().unwrap_or(seen.now);
        let heard = match &life {
            Some(LifeSign::Registered | LifeSign::Listens | LifeSign::Heard { .. }) => seen.now,
            // It may have been heard between two looks, or by one that was silent itself.
            _ => since.max(heard_last(seen, node)),
        };
        if heard > since {
            self.absences.since.insert(node, heard);
            away.seconds = seen.now.since(heard).as_secs();
            away.announced = away.seconds * 2 >= away.after_s;
        }
        away.held = match life {
            Some(because) => Some(HeldBack::Alive { because }),
            None if is_due && !hear_each_other(seen) => Some(HeldBack::NoMajority),
            None => None,
        };
        self.absences.signs.insert(node, (seen.now, away.held.clone()));
        Ok(away.held.is_none() && away.seconds >= away.after_s)
    }
}

/// When any member heard of a node last, as far as they say.
fn heard_last(seen: &Observation, node: NodeId) -> Moment {
    let silences = seen.said.values().filter_map(|said| said.as_ref().ok()?.silent_for.get(&node));
    let heard = silences.filter(|silent| silent.heard_before).map(|silent| silent.lasts);
    let nanos = |lasts: Duration| u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX);
    heard
        .min()
        .map_or(Moment::default(), |lasts| Moment { nanos: seen.now.nanos.saturating_sub(nanos(lasts)) })
}

/// Whether a node is a replica of some partition, now or with the next step. Fallbacks hold nothing.
pub(super) fn holds(cluster: &Cluster, node: NodeId) -> bool {
    cluster.ring.partitions().iter().any(|one| {
        let coming = one.coming.iter().flat_map(|coming| cluster.replicas_in(&coming.nodes));
        cluster.replicas_in(&one.nodes).iter().chain(coming).any(|replica| *replica == node)
    })
}

/// A plan of the autopilot goes back, so that a dead node's places are taken; an operator's goes on.
fn make_way(seen: &Observation) -> Option<DecisionStep> {
    let planned = seen.under_way()?;
    let decision = planned.plan.decision.as_ref()?;
    let state = planned.state.as_ref().filter(|state| state.phase != Phase::Aborting)?;
    if decision.exceeds == Excess::Dead {
        return None;
    }
    let aborted_under = Some(seen.cluster.generation);
    let state = PlanState { phase: Phase::Aborting, aborted_under, ..state.clone() };
    Some(DecisionStep::Do(vec![HeadmasterAction::Note { plan: planned.number, state: Box::new(state) }]))
}

/// A node that is back may be away another time.
fn forget_vetoes(seen: &Observation, policy: &Policy) -> Option<DecisionStep> {
    let is_back = |node: &NodeId| seen.cluster.node(*node).is_none() || seen.registered(*node).is_some();
    let vetoed: BTreeSet<NodeId> = policy.vetoed.iter().copied().filter(|node| !is_back(node)).collect();
    (vetoed != policy.vetoed && seen.policy_unread.is_none()).then(|| {
        DecisionStep::Do(vec![HeadmasterAction::SetPolicy(Box::new(Policy { vetoed, ..policy.clone() }))])
    })
}

/// A node that holds nothing and may take the places of this one: of its zone if there is one. Where the dead node is
/// called gone already, its standby may serve already.
fn standby(seen: &Observation, node: NodeId, is_gone: bool) -> Option<NodeId> {
    let cluster = &seen.cluster;
    let zone = cluster.node(node).map(|entry| &entry.zone);
    let may = |role: Role| role == Role::Standby || (is_gone && role == Role::Serving);
    let free = cluster
        .nodes
        .iter()
        .filter(|one| may(one.role) && !holds(cluster, one.id) && seen.registered(one.id).is_some());
    free.min_by_key(|one| (Some(&one.zone) != zone, one.role != Role::Serving, one.id)).map(|one| one.id)
}

/// Why a node is not replaced, by the documents alone.
fn held(seen: &Observation, policy: &Policy, node: NodeId, is_gone: bool) -> Option<HeldBack> {
    if policy.mode != Mode::On {
        return Some(HeldBack::Observes);
    }
    if let Some(seconds) = replaced_lately(seen) {
        return Some(HeldBack::Recent { seconds });
    }
    // What was begun is ended, whatever the hour.
    if is_gone {
        return None;
    }
    if let Some(hours) = policy.settings.quiet.filter(|hours| hours.hold(seen.wall.0)) {
        return Some(HeldBack::Quiet { hours });
    }
    if policy.vetoed.contains(&node) {
        return Some(HeldBack::Vetoed);
    }
    if let Some(store) = seen.cluster.stores.iter().find(|store| one_answer_suffices(store)) {
        return Some(HeldBack::Store { store: store.name.clone() });
    }
    // Where each node is its own zone, a dead one is no dark hall.
    let mut zones: BTreeMap<&Zone, (u32, u32)> = BTreeMap::new();
    for one in seen.cluster.nodes.iter().filter(|one| !one.gone) {
        let (all, there) = zones.entry(&one.zone).or_default();
        (*all, *there) = (*all + 1, *there + u32::from(seen.registered(one.id).is_some()));
    }
    let dark = zones.into_iter().find(|(_, (all, there))| *all > 1 && *there == 0);
    dark.map(|(zone, _)| HeldBack::Zone { zone: zone.clone() })
}

/// How many seconds are missing until another node may be replaced, if one was lately.
fn replaced_lately(seen: &Observation) -> Option<u64> {
    let at = |kept: &Kept| match kept {
        Kept::Ended(ended) if ended.replaces => Some(ended.ended_ms),
        Kept::Open(planned) if matches!(planned.plan.wish, Wish::Replace { .. }) => {
            let state = planned.state.as_ref()?;
            state.ended_ms
        }
        _ => None,
    };
    let last = seen.plans.values().filter_map(at).max()?;
    let since = seen.wall.0.saturating_sub(last);
    (since < BETWEEN_MS).then(|| (BETWEEN_MS - since).div_ceil(1000))
}

/// Whether more than half of the members answer, and hear each other.
fn hear_each_other(seen: &Observation) -> bool {
    let members = || seen.cluster.nodes.iter().filter(|node| !node.gone).map(|node| node.id);
    let said = |node: NodeId| seen.said.get(&node).and_then(|said| said.as_ref().ok());
    let there: Vec<NodeId> =
        members().filter(|node| seen.registered(*node).is_some() && said(*node).is_some()).collect();
    let hears = |node: NodeId, other: NodeId| {
        let silent = said(node).and_then(|said| said.silent_for.get(&other));
        node == other || silent.is_some_and(|silent| silent.lasts < SILENT_MIN)
    };
    let all_hear = there.iter().all(|&node| there.iter().all(|&other| hears(node, other)));
    all_hear && there.len() * 2 > members().count()
}
