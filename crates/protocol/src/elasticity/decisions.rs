//! What is decided about the size, from rules and bounds; what is kept of it, and what came of it.
//!
//! A decision is kept when its verdict, its target or what holds it changes, not in each turn.
//! Removals that proved wrong make the next one rest longer: load in step with the cooldown must not move machines for ever.

use std::mem::discriminant;

use model::WallMillis;
use model::elasticity::adapter::MemberState;
use model::elasticity::{
    DECISIONS_MAX, Decision, Fleet, HeldChange, Machine, MachineState, Mode, Reading, Reason, RuleVerdict,
    Sizing, Spread,
};

use super::rules::{self, Judged};
use super::sizing::{self, Sized};
use super::{Work, converge, guards, since};

/// Readings that a decision keeps at most: first what is not known, then the highest.
pub const READINGS_MAX: usize = 16;
/// The newest decisions keep their readings; older ones do not, so that the document stays small.
const READINGS_KEPT: usize = 50;
/// A growth within this time after a removal says that the removal was wrong, in milliseconds.
const FLIP_MS: u64 = 3_600_000;
/// How long a wrong removal is remembered, in milliseconds.
const FLIPS_KEPT_MS: u64 = 24 * 3_600_000;
/// Each wrong removal makes the next one rest four times as long, up to the third.
const FLIPS_MAX: u32 = 3;
/// For how long what came of a growth waits until the new size was measured.
const JUDGED_WITHIN_MS: u64 = 600_000;

/// What is decided.
struct Drawn {
    verdict: RuleVerdict,
    target: u32,
    reasons: Vec<Reason>,
    held: Option<HeldChange>,
    readings: Vec<Reading>,
    expected: Option<f64>,
}

/// The decision or order that set the target last, with what holds it up, and
/// what came of it. Verdicts that changed nothing come after it.
pub fn setting(fleet: &Fleet) -> Option<&Decision> {
    fleet.decisions.iter().rfind(|decision| decision.set)
}

/// Decides by bounds and rules, and sets the target where nothing holds that.
pub(super) fn decide(work: &mut Work<'_>) {
    let policy = &work.next.policy;
    let current = work.next.target.unwrap_or_else(|| work.next.will_serve());
    let by_bounds = match current {
        _ if current < policy.min => Some((RuleVerdict::Add, policy.min)),
        _ if current > policy.max => Some((RuleVerdict::Remove, policy.max)),
        _ => None,
    };
    let by_load = policy.sizing() != Sizing::Rules;
    let drawn = match by_bounds {
        Some((verdict, target)) => {
            let held = unmanaged(work).or_else(|| obstacle(work, verdict, target, true));
            Drawn {
                verdict,
                target,
                reasons: vec![Reason::Bounds],
                held,
                readings: Vec::new(),
                expected: None,
            }
        }
        None if work.next.serving() == 0 => return,
        None if by_load => self::by_load(work, current),
        None => by_rules(work, rules::judge(work.seen, &work.next), current),
    };
    let is_carried = drawn.held.is_none() && matches!(drawn.verdict, RuleVerdict::Add | RuleVerdict::Remove);
    let is_new = work.next.decisions.last().is_none_or(|last| {
        let held = |held: &Option<HeldChange>| held.as_ref().map(discriminant);
        (last.verdict, last.target, held(&last.held)) != (drawn.verdict, drawn.target, held(&drawn.held))
    });
    if is_carried {
        work.next.target = Some(drawn.target);
    }
    if !is_new {
        note_samples(&mut work.next, &drawn.held);
    }
    // While a change is under way, the decision that made it says why.
    if is_carried || (is_new && drawn.held != Some(HeldChange::UnderWay)) {
        record(work, drawn, is_carried);
    }
}

/// Notes anew how many members have samples and from when on these count: a measure came, the size changed, or another
/// controller began to look. What moves a little in each turn is not noted.
fn note_samples(fleet: &mut Fleet, held: &Option<HeldChange>) {
    let age_max = fleet.policy.sample_age_max * 1000;
    let of = |held: &Option<HeldChange>| match held {
        Some(HeldChange::Samples { fresh, wanted, since, covers, .. }) => {
            Some(((*since, *fresh, *wanted), *covers))
        }
        _ => None,
    };
    let Some(last) = fleet.decisions.last_mut() else { return };
    let (Some((counts, covers)), Some(now)) = (of(&last.held), of(held)) else { return };
    let is_later = match (covers, now.1) {
        (Some(before), Some(now)) => now.0 > before.0 + age_max,
        (before, now) => before != now,
    };
    if counts != now.0 || is_later {
        last.held.clone_from(held);
    }
}

fn by_load(work: &Work<'_>, current: u32) -> Drawn {
    let Sized { verdict, target, reasons, held, readings, expected } =
        sizing::judge(work.seen, &work.next, current);
    let held = held.or_else(|| obstacle(work, verdict, target, false));
    Drawn { verdict, target, reasons, held, readings, expected }
}

fn by_rules(work: &Work<'_>, judged: Judged, current: u32) -> Drawn {
    let n = f64::from(work.next.serving());
    let (target, after) = match judged.verdict {
        RuleVerdict::Add => (current + 1, n + 1.0),
        RuleVerdict::Remove => (current.saturating_sub(1), n - 1.0),
        RuleVerdict::Stay | RuleVerdict::Unknown => (current, n),
    };
    let held = judged.held.or_else(|| obstacle(work, judged.verdict, target, false));
    let mean = |rule| {
        let mean = model::elasticity::Rule { of: Spread::Mean, ..Clone::clone(rule) };
        rules::value_of(&judged.readings, &mean)
    };
    let changes = matches!(judged.verdict, RuleVerdict::Add | RuleVerdict::Remove);
    let rule = judged.rules.first().filter(|_| changes && after > 0.0);
    let expected = rule.and_then(mean).map(|mean| mean * n / after);
    let reasons = judged.rules.iter().map(|rule| Reason::Rule { rule: rule.clone() }).collect();
    Drawn { verdict: judged.verdict, target, reasons, held, readings: judged.readings, expected }
}

/// Members that are of no machine of the fleet, also those that are down for now: whoever founds a fleet adopts them one
/// after another, and bounds wait for that.
fn unmanaged(work: &Work<'_>) -> Option<HeldChange> {
    let members = work.seen.members.as_ref().ok()?;
    let is_managed =
        |id: &String| work.next.machines.iter().any(|machine| machine.member.as_ref() == Some(id));
    let is_member = |state| !matches!(state, MemberState::Waiting | MemberState::Drained);
    let stranger = members.iter().find(|member| is_member(member.state) && !is_managed(&member.id))?;
    let how = if stranger.state == MemberState::Serving { "serves" } else { "is a member" };
    let detail = format!(
        "{} {how} and is no machine of the fleet; adopt it once it serves, or remove it",
        stranger.id
    );
    Some(HeldChange::Engine { detail })
}

/// What prevents a verdict, if anything does.
fn obstacle(work: &Work<'_>, verdict: RuleVerdict, target: u32, by_bounds: bool) -> Option<HeldChange> {
    let fleet = &work.next;
    let held = match verdict {
        RuleVerdict::Stay | RuleVerdict::Unknown => return None,
        _ if fleet.paused.is_some() => Err(HeldChange::Paused),
        RuleVerdict::Add => may_add(work, target, by_bounds),
        RuleVerdict::Remove => may_remove(work, target),
    };
    held.err().or_else(|| (fleet.policy.mode != Mode::Auto).then_some(HeldChange::Mode))
}

fn may_add(work: &Work<'_>, target: u32, by_bounds: bool) -> Result<(), HeldChange> {
    let fleet = &work.next;
    guards::heard(work.seen)?;
    let is_coming = fleet.machines.iter().any(Machine::is_coming);
    if is_coming || fleet.target.is_some_and(|target| target > fleet.will_serve()) {
        return Err(HeldChange::UnderWay);
    }
    if target > fleet.policy.max {
        return Err(HeldChange::Most { max: fleet.policy.max });
    }
    if fleet.machines.iter().any(|machine| converge::can_come_back(work.seen, machine)) {
        return Ok(());
    }
    if !by_bounds {
        rests(work, fleet.policy.cooldowns.grow)?;
    }
    match target.saturating_sub(fleet.will_serve() + fleet.standing_by()) {
        0 => Ok(()),
        bought => guards::may_buy(work.seen, fleet, bought).map(|_| ()),
    }
}

fn may_remove(work: &Work<'_>, target: u32) -> Result<(), HeldChange> {
    let fleet = &work.next;
    guards::heard(work.seen)?;
    let is_coming = fleet.machines.iter().any(Machine::is_coming);
    if is_coming || fleet.machines.iter().any(leaves) || fleet.target.is_some_and(|it| it != fleet.serving())
    {
        return Err(HeldChange::UnderWay);
    }
    if target < fleet.policy.min {
        return Err(HeldChange::Fewest { min: fleet.policy.min });
    }
    let flips = flips(fleet, work.seen.now).min(FLIPS_MAX);
    rests(work, fleet.policy.cooldowns.shrink.saturating_mul(4_u64.pow(flips)))?;
    sizing::may_be_left(work.seen, fleet, target)?;
    match fleet.in_state(MachineState::Serving).next() {
        Some(machine) => guards::may_drain(work, machine),
        None => Ok(()),
    }
}

fn leaves(machine: &Machine) -> bool {
    matches!(machine.state, MachineState::Draining | MachineState::Empty)
}

fn rests(work: &Work<'_>, seconds: u64) -> Result<(), HeldChange> {
    let Some(settled) = work.next.settled else { return Ok(()) };
    let left = seconds.saturating_mul(1000).saturating_sub(since(work.seen.now, settled));
    if left == 0 { Ok(()) } else { Err(HeldChange::Rests { seconds: left.div_ceil(1000) }) }
}

/// How often, within a day, rules or the load removed a member and soon wanted it back.
fn flips(fleet: &Fleet, now: WallMillis) -> u32 {
    let by_itself = |reason: &Reason| matches!(reason, Reason::Rule { .. } | Reason::Load { .. });
    let carried = fleet.decisions.iter().filter(|one| one.ended.is_some());
    let carried: Vec<&Decision> = carried.filter(|one| one.reasons.iter().any(by_itself)).collect();
    let pairs = carried.windows(2).filter(|pair| {
        (pair[0].verdict, pair[1].verdict) == (RuleVerdict::Remove, RuleVerdict::Add)
            && since(pair[1].at, pair[0].at) <= FLIP_MS
            && since(now, pair[1].at) <= FLIPS_KEPT_MS
    });
    pairs.count() as u32
}

/// Keeps what an order or a failure brought about; the target is set already.
pub(super) fn record_order(work: &mut Work<'_>, verdict: RuleVerdict, reasons: Vec<Reason>) {
    let target = work.next.target.unwrap_or_else(|| work.next.will_serve());
    let sets = reasons.iter().any(|reason| matches!(reason, Reason::Ordered { .. }));
    record(work, Drawn { verdict, target, reasons, held: None, readings: Vec::new(), expected: None }, sets);
}

fn record(work: &mut Work<'_>, drawn: Drawn, set: bool) {
    let fleet = &mut work.next;
    let mut readings = drawn.readings;
    let height = |reading: &Reading| reading.mean.unwrap_or(f64::INFINITY);
    readings.sort_by(|one, other| height(other).total_cmp(&height(one)));
    readings.truncate(READINGS_MAX);
    fleet.decisions.push(Decision {
        number: fleet.next_decision,
        at: work.seen.now,
        members: fleet.serving(),
        verdict: drawn.verdict,
        target: drawn.target,
        reasons: drawn.reasons,
        set,
        held: drawn.held,
        from_standby: 0,
        readings,
        expected: drawn.expected,
        came: None,
        ended: None,
    });
    fleet.next_decision += 1;
    let newest = fleet.decisions.len().saturating_sub(READINGS_KEPT);
    fleet.decisions[..newest].iter_mut().for_each(|decision| decision.readings.clear());
    while fleet.decisions.len() > DECISIONS_MAX {
        // What was carried out is kept longer than what was not.
        let idle = fleet.decisions.iter().take(DECISIONS_MAX / 2).position(|one| one.ended.is_none());
        fleet.decisions.remove(idle.unwrap_or(0));
    }
}

/// The decision that is being carried out: the last that set the target that holds.
pub(super) fn open(fleet: &mut Fleet) -> Option<&mut Decision> {
    let target = fleet.target?;
    let changes =
        |one: &&mut Decision| one.set && matches!(one.verdict, RuleVerdict::Add | RuleVerdict::Remove);
    let last = fleet.decisions.iter_mut().rev().find(changes);
    last.filter(|decision| decision.target == target && decision.ended.is_none())
}

/// Notes what keeps the decision under way from being carried out, or that nothing does.
pub(super) fn hold_up(work: &mut Work<'_>, held: Option<HeldChange>) {
    let Some(decision) = open(&mut work.next) else { return };
    if decision.held.as_ref().map(discriminant) != held.as_ref().map(discriminant) {
        decision.held = held;
    }
}

/// Notes that the target is reached, and later what came of it.
pub(super) fn close(work: &mut Work<'_>) {
    let now = work.seen.now;
    let fleet = &mut work.next;
    guards::forget_charges(fleet, now);
    let rests = fleet.machines.iter().all(|one| !one.is_coming() && one.state != MachineState::Draining);
    if rests && fleet.target == Some(fleet.serving()) {
        if let Some(decision) = open(fleet) {
            (decision.ended, decision.held) = (Some(now), None);
            let (verdict, at) = (decision.verdict, decision.at);
            if verdict == RuleVerdict::Add {
                sizing::note_growth(fleet, at, now);
            }
        }
        came(work);
    }
}

fn came(work: &mut Work<'_>) {
    let Some(place) = work.next.decisions.iter().rposition(|decision| decision.ended.is_some()) else {
        return;
    };
    let decision = &work.next.decisions[place];
    if decision.expected.is_none() || decision.came.is_some() || decision.ended == Some(work.seen.now) {
        return;
    }
    let rule = decision.reasons.iter().find_map(|reason| match reason {
        Reason::Rule { rule } => Some(model::elasticity::Rule { of: Spread::Mean, ..rule.clone() }),
        Reason::Load { .. } => Some(sizing::rule(&work.next.policy.objective)),
        _ => None,
    });
    let value = rule.and_then(|rule| rules::value_now(work.seen, &work.next, &rule));
    let (verdict, before) = (decision.verdict, decision.members);
    let by_load = decision.reasons.iter().any(|reason| matches!(reason, Reason::Load { .. }));
    let is_young = decision.ended.is_some_and(|ended| since(work.seen.now, ended) < JUDGED_WITHIN_MS);
    if verdict == RuleVerdict::Add && by_load && is_young && !work.next.capacity.knows(work.next.serving()) {
        // Whether it gained can be judged once the new size was measured.
        return;
    }
    if value.is_some() {
        work.next.decisions[place].came = value;
        if verdict == RuleVerdict::Add {
            sizing::note_gain(work.seen, &mut work.next, before);
        }
    }
}
