//! The size by load: as many members as carry what is measured, or what is expected.
//!
//! ```text
//!   samples ─▶ once a minute: load ─▶ history;  load, use, members ─▶ capacity
//!   load now, or the forecast ─▶ capacity ─▶ the fewest members that carry it, also with one lost
//! ```
//!
//! A forecast adds only. A member is removed where the highest load of the last quarter of an hour needs one less, and where
//! that costs less than it saves.
//!
//! Two growths without gain stop further ones, until a day has passed, another kind of load gains, or a person orders more.
//!
//! Must never: take members that say nothing for idle ones. For growing, the others stand for them; nothing shrinks then.

use model::WallMillis;
use model::elasticity::{
    Decision, Direction, Fleet, GAIN_MIN, HeldChange, MachineState, Money, Objective, Observed, Reading,
    Reason, Rule, RuleVerdict, Sizing, Spread,
};

use super::rules::{self, Means};
use super::why::LoadRoom;
use super::{Observation, Work, since};

/// Operations of all kinds, as engines measure them that do not tell reads from updates.
pub(super) const OPERATIONS: &str = "operations";
pub(super) const READS: &str = "reads";
pub(super) const UPDATES: &str = "updates";
/// How long a load must have been low before a member is removed, in milliseconds; longer where the cooldown is.
const LOW_MS: u64 = 900_000;
/// The span of the load that people are told, in milliseconds: a minute that has ended, and the one that goes on.
const LATELY_MS: u64 = 60_000;
/// How much more the members must carry that stay: a load at the bound of a size must not change it for ever.
const MARGIN: f64 = 1.05;
/// How long a machine takes to become useful, where none has yet, in milliseconds.
const LEAD_MS: u64 = 120_000;
/// How long a removal is taken to hold where nothing is known of yesterday, in milliseconds.
const HOLDS_MS: u64 = 3_600_000;
/// One decision makes a fleet at most this many times as large as what serves.
const GROWTH_MAX: u32 = 2;
/// Growths in a row without gain after which no more is added.
const FUTILE_MAX: u32 = 2;
/// How long that holds after the last of them, in milliseconds: what they lacked may have come since, so one more is tried.
const FUTILE_MS: u64 = 24 * 3_600_000;

/// What is measured of all members that serve.
struct Measured {
    reads: f64,
    updates: f64,
    used: f64,
    /// Members whose figures are known, of all that serve.
    fresh: u32,
    serving: u32,
    readings: Vec<Reading>,
}

/// What the load wants.
pub(super) struct Sized {
    pub verdict: RuleVerdict,
    pub target: u32,
    pub reasons: Vec<Reason>,
    pub held: Option<HeldChange>,
    pub readings: Vec<Reading>,
    pub expected: Option<f64>,
}

/// The rule by which what came of a decision is told: the mean of what the objective is about.
pub(super) fn rule(objective: &Objective) -> Rule {
    let Objective { measure, at_most, over, .. } = objective.clone();
    Rule { measure, of: Spread::Mean, is: Direction::AtMost, bound: at_most, over }
}

fn means_of(seen: &Observation, fleet: &Fleet, measure: &str) -> Means {
    rules::means(seen, fleet, &Rule { measure: measure.to_owned(), ..rule(&fleet.policy.objective) })
}

/// Reads and updates; all operations alone where nobody tells reads from updates.
fn load_means(seen: &Observation, fleet: &Fleet) -> (Means, Option<Means>) {
    let reads = means_of(seen, fleet, READS);
    match reads.count() {
        0 => (means_of(seen, fleet, OPERATIONS), None),
        _ => (reads, Some(means_of(seen, fleet, UPDATES))),
    }
}

/// Reads the samples of the span of the objective. None where nobody measures operations.
fn measure(seen: &Observation, fleet: &Fleet) -> Option<Measured> {
    let serving = fleet.serving();
    let used = means_of(seen, fleet, &fleet.policy.objective.measure);
    let (reads, updates) = load_means(seen, fleet);
    let fresh = used.count().min(reads.count());
    // Members whose figures are lacking are taken to do what the others do.
    let all = |means: &Means| means.value(Spread::Mean).map(|mean| mean * f64::from(serving));
    Some(Measured {
        reads: all(&reads)?,
        updates: updates.as_ref().and_then(all).unwrap_or(0.0),
        used: used.value(Spread::Mean)?,
        fresh,
        serving,
        readings: used.readings.into_iter().chain(reads.readings).collect(),
    })
}

/// That so few members have what the span of the objective needs.
fn lacks(seen: &Observation, fleet: &Fleet, fresh: u32, wanted: u32) -> HeldChange {
    let Objective { measure, over, .. } = &fleet.policy.objective;
    let (used, load) = (means_of(seen, fleet, measure), load_means(seen, fleet).0);
    rules::lacks(seen, fleet, *over, &[&used, &load], (fresh, wanted))
}

/// Whether all machines are as far as they shall be.
fn rests(fleet: &Fleet) -> bool {
    fleet.machines.iter().all(|one| one.standby || one.state == MachineState::Serving)
}

/// Learns once a minute, and of a new size as soon as all its members are measured: whether the growth to it gained is
/// judged in that turn. What a controller does not publish, its successor learns anew.
pub(super) fn learn(work: &mut Work<'_>) {
    let is_noted = work.next.history.has(work.seen.now);
    let is_learned = is_noted && work.next.capacity.knows(work.next.serving());
    if work.next.policy.sizing() == Sizing::Rules || is_learned {
        return;
    }
    let Some(measured) = measure(work.seen, &work.next) else { return };
    if measured.fresh * 2 <= measured.serving {
        return;
    }
    let Measured { reads, updates, used, serving, .. } = measured;
    if !is_noted {
        work.next.history.note(work.seen.now, reads + updates);
    }
    if measured.fresh == serving && rests(&work.next) {
        work.next.capacity.learn(Observed { members: serving, reads, updates, used });
    }
}

/// Notes how long a growth took.
pub(super) fn note_growth(fleet: &mut Fleet, at: WallMillis, now: WallMillis) {
    let took = since(now, at);
    fleet.lead_ms = if fleet.lead_ms == 0 { took } else { (fleet.lead_ms * 3 + took) / 4 };
}

/// Notes whether a growth from this many members gained, once both sizes were measured.
pub(super) fn note_gain(seen: &Observation, fleet: &mut Fleet, before: u32) {
    let Some(measured) = measure(seen, fleet) else { return };
    match fleet.capacity.gain(before, fleet.serving(), (measured.reads, measured.updates)) {
        Some(gain) if gain < GAIN_MIN => fleet.futile += 1,
        Some(_) => fleet.futile = 0,
        None => {}
    }
}

/// Whether one more growth would bring next to nothing: the last ones did, less than a day ago, and by what was learned since
/// the last of them would do so for the mix of today.
fn is_futile(seen: &Observation, fleet: &Fleet, mix: (f64, f64)) -> bool {
    let is_judged = |one: &&Decision| one.verdict == RuleVerdict::Add && one.came.is_some();
    let last = fleet.decisions.iter().rfind(is_judged);
    fleet.futile >= FUTILE_MAX
        && last.is_some_and(|last| {
            let gain = fleet.capacity.gain(last.members, last.target, mix);
            last.ended.is_some_and(|ended| since(seen.now, ended) < FUTILE_MS)
                && gain.is_none_or(|gain| gain < GAIN_MIN)
        })
}

/// Whether so many members carry what is measured now, within the objective, with one of them lost. Without a load that is
/// known, or where nothing was learned, nothing is refused.
pub(super) fn may_be_left(seen: &Observation, fleet: &Fleet, left: u32) -> Result<(), HeldChange> {
    let Some(measured) = measure(seen, fleet).filter(|one| one.fresh * 2 > one.serving) else {
        return Ok(());
    };
    // What members that leave still do comes to the others.
    let draining = fleet.in_state(MachineState::Draining).count();
    let factor = 1.0 + draining as f64 / f64::from(measured.serving);
    let load = (measured.reads * factor, measured.updates * factor);
    let (all, with_one_lost) = (load.0 + load.1, left.saturating_sub(1).max(1));
    match fleet.capacity.carries(with_one_lost, load, fleet.policy.objective.strained) {
        Some(carries) if carries < all => {
            Err(HeldChange::Carries { load: all as u64, carries: carries as u64, left })
        }
        _ => Ok(()),
    }
}

/// What the load wants of a fleet that is to have `current` members.
pub(super) fn judge(seen: &Observation, fleet: &Fleet, current: u32) -> Sized {
    let unknown = |held, readings| {
        let (verdict, reasons, held) = (RuleVerdict::Unknown, Vec::new(), Some(held));
        Sized { verdict, target: current, reasons, held, readings, expected: None }
    };
    let majority = fleet.serving() / 2 + 1;
    let lacks = |fresh| lacks(seen, fleet, fresh, majority);
    let Some(measured) = measure(seen, fleet) else { return unknown(lacks(0), Vec::new()) };
    if measured.fresh * 2 <= measured.serving {
        return unknown(lacks(measured.fresh), measured.readings);
    }
    let load = (measured.reads, measured.updates);
    let Some(carries) = fleet.capacity.carries(measured.serving, load, fleet.policy.objective.at_most) else {
        return unknown(HeldChange::Unlearned, measured.readings);
    };
    let all = load.0 + load.1;
    let mut reasons = vec![Reason::Load { load: all as u64, carries: carries as u64 }];
    let mut wanted = wanted(fleet, load, all).unwrap_or(current);
    if let Some((expected, within)) = to_come(seen.now, fleet)
        && expected > all
        && let Some(more) = self::wanted(fleet, load, expected)
        && more > wanted.max(current)
    {
        reasons.push(Reason::Forecast { load: expected as u64, within });
        wanted = more;
    }
    // What was learned may be wrong: no decision more than doubles what serves.
    let most = measured.serving.saturating_mul(GROWTH_MAX).max(current);
    let target = wanted.clamp(fleet.policy.min, fleet.policy.max).min(most);
    if target > current {
        let held = is_futile(seen, fleet, load).then_some(HeldChange::NoGain { growths: fleet.futile });
        let expected = Some(measured.used * f64::from(measured.serving) / f64::from(target));
        return Sized {
            verdict: RuleVerdict::Add,
            target,
            reasons,
            held,
            readings: measured.readings,
            expected,
        };
    }
    shrink(seen, fleet, current, measured, reasons)
}

/// The members that carry so much of this mix.
fn wanted(fleet: &Fleet, (reads, updates): (f64, f64), all: f64) -> Option<u32> {
    let Objective { at_most, strained, .. } = fleet.policy.objective;
    let factor = if reads + updates > 0.0 { all / (reads + updates) } else { 1.0 };
    fleet.capacity.wanted((reads * factor, updates * factor), at_most, strained, fleet.policy.max)
}

/// The expected load while a machine is made useful, and within how many seconds.
fn to_come(now: WallMillis, fleet: &Fleet) -> Option<(f64, u64)> {
    if fleet.policy.sizing() != Sizing::Forecast {
        return None;
    }
    let lead = lead(fleet);
    fleet.history.forecast(now, lead).map(|load| (load, lead / 1000))
}

/// How long the load must have been low before a member is removed, in milliseconds.
fn low_ms(fleet: &Fleet) -> u64 {
    LOW_MS.max(fleet.policy.cooldowns.shrink * 1000)
}

/// What those must carry that stay, with the margin: the highest load of that time, of now or to come. None where most of
/// that time was not measured.
fn to_be_carried(now: WallMillis, fleet: &Fleet, load: f64) -> Option<f64> {
    // What a forecast would add again is not removed.
    let to_come = to_come(now, fleet).map_or(0.0, |(load, _)| load);
    let highest = fleet.history.highest(now, low_ms(fleet))?;
    Some(highest.max(load).max(to_come) * MARGIN)
}

/// Why the load asked for no more than `members` at a time, or for no fewer: by what was measured until then, and by what is
/// known today of what members carry.
pub(super) fn room(fleet: &Fleet, at: WallMillis, members: u32, fewer: bool) -> LoadRoom {
    let Objective { at_most, strained, .. } = fleet.policy.objective;
    let load = fleet.history.highest(at, LATELY_MS);
    let needed = if fewer { to_be_carried(at, fleet, load.unwrap_or(0.0)) } else { load };
    let mix = fleet.capacity.mix(members);
    let members = if fewer { members.saturating_sub(1).max(1) } else { members };
    let carries = mix.and_then(|mix| fleet.capacity.carries_safely(members, mix, at_most, strained));
    LoadRoom {
        load: load.map(|load| load as u64),
        needed: needed.map(|needed| needed as u64),
        members,
        carries: carries.map(|carries| carries as u64),
        low_s: fewer.then(|| low_ms(fleet) / 1000),
    }
}

fn lead(fleet: &Fleet) -> u64 {
    if fleet.lead_ms == 0 { LEAD_MS } else { fleet.lead_ms }
}

fn shrink(
    seen: &Observation,
    fleet: &Fleet,
    current: u32,
    measured: Measured,
    reasons: Vec<Reason>,
) -> Sized {
    let Measured { reads, updates, used, fresh, serving, readings } = measured;
    let stay = |held, reasons, readings| Sized {
        verdict: RuleVerdict::Stay,
        target: current,
        reasons,
        held,
        readings,
        expected: None,
    };
    let to_be_carried = to_be_carried(seen.now, fleet, reads + updates);
    let needed = to_be_carried.and_then(|load| wanted(fleet, (reads, updates), load));
    match needed {
        Some(needed) if needed < current && current > fleet.policy.min => {}
        _ => return stay(None, reasons, readings),
    }
    let mut held = (fresh < serving).then(|| lacks(seen, fleet, fresh, serving));
    if held.is_none() {
        held = pays(seen, fleet, (reads, updates), current - 1).err();
    }
    let expected = Some(used * f64::from(serving) / f64::from(current - 1));
    Sized { verdict: RuleVerdict::Remove, target: current - 1, reasons, held, readings, expected }
}

/// Whether a removal saves more than it costs: its machine is paid for while it is drained, and the next one while it
/// becomes useful.
fn pays(seen: &Observation, fleet: &Fleet, mix: (f64, f64), left: u32) -> Result<(), HeldChange> {
    let price = fleet.machines.iter().map(|machine| machine.price_per_hour).max().unwrap_or_default();
    let carried = fleet.capacity.carries(left, mix, fleet.policy.objective.at_most);
    let holds = carried.and_then(|carried| fleet.history.until(seen.now, carried)).unwrap_or(HOLDS_MS);
    let (Money(cost), Money(saves)) = (price.for_millis(2 * lead(fleet)), price.for_millis(holds));
    match saves > cost || price == Money(0) {
        true => Ok(()),
        false => Err(HeldChange::Costs { cost, saves }),
    }
}
