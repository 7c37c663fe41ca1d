//! The policy *rules*: bounds on means of what members measure, from samples that are fresh and cover the span.
//!
//! Growing needs the samples of a majority of the members that serve, shrinking of all. What is missing holds; it is never 0.
//! A removal is also judged by what would be after it, so that it does not make its own growth.

use std::collections::BTreeSet;

use model::WallMillis;
use model::elasticity::{
    Direction, Fleet, HeldChange, MachineState, Policy, Reading, Rule, RuleVerdict, Spread,
};

use super::sizing::{OPERATIONS, READS, UPDATES};
use super::{Observation, since};

/// A value that was measured at a member.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What the engine calls the member.
    pub member: String,
    /// What was measured.
    pub measure: String,
    /// The value, in the measure's unit. One that is no number is passed over.
    pub value: f64,
    /// When it was measured: now less its age. One of the future is passed over.
    pub at: WallMillis,
}

/// How much of a rule's span samples must cover, in permille. A sample covers the time from the one before it, but no more
/// than a fresh one may be old.
pub const COVERED_PERMILLE_MIN: u64 = 600;
/// Processor time, the measure of a rule that names none.
const PROCESSOR: &str = "processor";
/// What a value may reach of the bound that adds, after a removal, in permille.
const AFTER_REMOVAL_PERMILLE_MAX: f64 = 900.0;

/// How old samples are that are still of use, in milliseconds. A driver may forget older ones.
pub fn samples_kept(policy: &Policy) -> u64 {
    let spans = policy.add.iter().chain(&policy.remove).map(|rule| rule.over);
    (spans.fold(policy.objective.over, u64::max) + policy.sample_age_max) * 1000
}

/// The measures by which a size may be chosen. No other is of use, whatever is measured beside them.
pub fn measures_used(policy: &Policy) -> BTreeSet<String> {
    let rules = policy.add.iter().chain(&policy.remove).map(|rule| &rule.measure);
    let named = rules.chain([&policy.objective.measure]).cloned();
    named.chain([PROCESSOR, OPERATIONS, READS, UPDATES].map(str::to_owned)).collect()
}

/// What a counter gained in a second between two readings. None where it went back or time did, or where one of them is no
/// number: such a pair is no sample.
pub fn per_second(before: (f64, WallMillis), after: (f64, WallMillis)) -> Option<f64> {
    let (gained, millis) = (after.0 - before.0, after.1.0.checked_sub(before.1.0)?);
    (gained.is_finite() && gained >= 0.0 && millis > 0).then(|| gained * 1000.0 / millis as f64)
}

/// What the rules say.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Judged {
    pub verdict: RuleVerdict,
    /// The rules that hold.
    pub rules: Vec<Rule>,
    pub readings: Vec<Reading>,
    /// What lacks, where the verdict is that it is not known.
    pub held: Option<HeldChange>,
}

/// The means of one measure, of the members that serve.
pub(super) struct Means {
    pub readings: Vec<Reading>,
}

impl Means {
    fn known(&self) -> impl Iterator<Item = f64> + '_ {
        self.readings.iter().filter_map(|reading| reading.mean)
    }

    pub(super) fn count(&self) -> u32 {
        self.known().count() as u32
    }

    /// From when on the samples of this many members cover the time; none where fewer have any.
    fn covers(&self, now: WallMillis, members: u32) -> Option<WallMillis> {
        let mut covered: Vec<u64> = self.readings.iter().filter_map(|reading| reading.covered_ms).collect();
        covered.sort_unstable_by(|one, other| other.cmp(one));
        let least = covered.get((members as usize).saturating_sub(1))?;
        Some(WallMillis(now.0.saturating_sub(*least)))
    }

    pub(super) fn value(&self, of: Spread) -> Option<f64> {
        spread(of, self.known())
    }
}

/// The one value that is told of many: their mean, or the highest, which is the nearest to any bound that matters.
fn spread(of: Spread, values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    match of {
        _ if values.is_empty() => None,
        Spread::Any | Spread::All => values.iter().copied().reduce(f64::max),
        Spread::Mean => Some(values.iter().sum::<f64>() / values.len() as f64),
    }
}

/// Whether a rule holds of these values, each multiplied.
pub(super) fn holds(rule: &Rule, values: &[f64], factor: f64) -> bool {
    let one = |value: f64| match rule.is {
        Direction::Above => value * factor > rule.bound,
        Direction::AtMost => value * factor <= rule.bound,
    };
    match rule.of {
        _ if values.is_empty() => false,
        Spread::Any => values.iter().any(|value| one(*value)),
        Spread::All => values.iter().all(|value| one(*value)),
        Spread::Mean => one(values.iter().sum::<f64>() / values.len() as f64),
    }
}

/// The means of a rule's measure over its span, since the size changed last.
pub(super) fn means(seen: &Observation, fleet: &Fleet, rule: &Rule) -> Means {
    let begin = seen.now.0.saturating_sub(rule.over * 1000);
    let begin = WallMillis(fleet.settled.map_or(begin, |settled| settled.0.max(begin)));
    let members = fleet.in_state(MachineState::Serving).map(|machine| machine.member.clone());
    let reading = |member: Option<String>| reading(seen, rule, member.unwrap_or_default(), begin);
    Means { readings: members.map(reading).collect() }
}

/// The mean of a member's samples since `begin`, if the newest is fresh and they cover enough of the span; and how much.
/// A sample counts for the time since the one before it: looks are closer together while there is something to do.
fn reading(seen: &Observation, rule: &Rule, member: String, begin: WallMillis) -> Reading {
    let of_member = seen.samples.iter().filter(|sample| {
        sample.member == member
            && sample.measure == rule.measure
            && sample.value.is_finite()
            && (begin..=seen.now).contains(&sample.at)
    });
    let mut samples: Vec<(WallMillis, f64)> = of_member.map(|sample| (sample.at, sample.value)).collect();
    samples.sort_by_key(|(at, _)| *at);
    samples.dedup_by_key(|(at, _)| *at);
    let measure = rule.measure.clone();
    let Some((newest, _)) = samples.last() else {
        return Reading { member, measure, mean: None, age_ms: None, covered_ms: None };
    };
    let age = since(seen.now, *newest);
    let fresh_ms = seen.fleet.policy.sample_age_max * 1000;
    let before = std::iter::once(begin).chain(samples.iter().map(|(at, _)| *at));
    let gaps: Vec<u64> =
        samples.iter().zip(before).map(|((at, _), before)| since(*at, before).min(fresh_ms)).collect();
    let spanned = gaps.iter().sum::<u64>();
    let covered = spanned + age.min(fresh_ms);
    let weighted = samples.iter().zip(&gaps).map(|((_, value), gap)| value * *gap as f64).sum::<f64>();
    let all = || samples.iter().map(|(_, value)| value).sum::<f64>() / samples.len() as f64;
    let mean = if spanned > 0 { weighted / spanned as f64 } else { all() };
    let is_known = age <= fresh_ms && covered * 1000 >= rule.over * 1000 * COVERED_PERMILLE_MIN;
    Reading { member, measure, mean: is_known.then_some(mean), age_ms: Some(age), covered_ms: Some(covered) }
}

/// That so few members have what the span of a rule needs: since when there is any of it where the size changed lately, and
/// how much there is of each of these means.
pub(super) fn lacks(
    seen: &Observation,
    fleet: &Fleet,
    span_s: u64,
    means: &[&Means],
    (fresh, wanted): (u32, u32),
) -> HeldChange {
    let is_young = |settled: &WallMillis| since(seen.now, *settled) < span_s * 1000;
    let changed = fleet.settled.filter(is_young);
    let each = means.iter().map(|means| means.covers(seen.now, wanted).or(changed));
    let covers = each.collect::<Option<Vec<_>>>().and_then(|each| each.into_iter().max());
    let wants_s = (span_s * COVERED_PERMILLE_MIN).div_ceil(1000);
    HeldChange::Samples { fresh, wanted, since: changed, covers, wants_s }
}

/// What the rules want of a fleet.
pub(super) fn judge(seen: &Observation, fleet: &Fleet) -> Judged {
    let policy = &fleet.policy;
    let serving = fleet.serving();
    let mut judged =
        Judged { verdict: RuleVerdict::Stay, rules: Vec::new(), readings: Vec::new(), held: None };
    let lacks = |rule: &Rule, means: &Means, wanted| {
        Some(self::lacks(seen, fleet, rule.over, &[means], (means.count(), wanted)))
    };
    for rule in &policy.add {
        let means = means(seen, fleet, rule);
        let (fresh, majority) = (means.count(), serving / 2 + 1);
        if fresh < majority {
            judged.held = lacks(rule, &means, majority);
        } else if holds(rule, &means.known().collect::<Vec<_>>(), 1.0) {
            judged.rules.push(rule.clone());
        }
        keep(&mut judged.readings, means.readings);
    }
    if !judged.rules.is_empty() {
        return Judged { verdict: RuleVerdict::Add, held: None, ..judged };
    }
    let mut removes = !policy.remove.is_empty() && serving > 1;
    for rule in &policy.remove {
        let means = means(seen, fleet, rule);
        if means.count() < serving {
            judged.held = judged.held.or_else(|| lacks(rule, &means, serving));
            removes = false;
        } else {
            removes &= holds(rule, &means.known().collect::<Vec<_>>(), 1.0);
        }
        keep(&mut judged.readings, means.readings);
    }
    if judged.held.is_some() {
        return Judged { verdict: RuleVerdict::Unknown, ..judged };
    }
    if removes && stays_below(seen, fleet, serving) {
        return Judged { verdict: RuleVerdict::Remove, rules: policy.remove.clone(), ..judged };
    }
    judged
}

/// Whether no rule would add again once one member less serves, with a margin.
fn stays_below(seen: &Observation, fleet: &Fleet, serving: u32) -> bool {
    let factor = f64::from(serving) / f64::from(serving - 1) * 1000.0 / AFTER_REMOVAL_PERMILLE_MAX;
    fleet.policy.add.iter().filter(|rule| rule.is == Direction::Above).all(|rule| {
        let means = means(seen, fleet, rule);
        means.count() == serving && !holds(rule, &means.known().collect::<Vec<_>>(), factor)
    })
}

/// Adds readings of members and measures that are not there yet.
fn keep(readings: &mut Vec<Reading>, more: Vec<Reading>) {
    for reading in more {
        let is_there = |one: &Reading| one.member == reading.member && one.measure == reading.measure;
        if !readings.iter().any(is_there) {
            readings.push(reading);
        }
    }
}

/// What of all members' values counts for a rule now, where enough are known.
pub(super) fn value_now(seen: &Observation, fleet: &Fleet, rule: &Rule) -> Option<f64> {
    let means = means(seen, fleet, rule);
    if means.count() < fleet.serving() { None } else { means.value(rule.of) }
}

/// How much of a rule's span the samples covered of which a decision knows a mean, in seconds: of the member that had least.
pub fn covered_s(readings: &[Reading], rule: &Rule) -> Option<u64> {
    let of_measure =
        readings.iter().filter(|reading| reading.measure == rule.measure && reading.mean.is_some());
    Some(of_measure.filter_map(|reading| reading.covered_ms).min()? / 1000)
}

/// What of kept readings counts for a rule.
pub(super) fn value_of(readings: &[Reading], rule: &Rule) -> Option<f64> {
    let of_measure = readings.iter().filter(|reading| reading.measure == rule.measure);
    spread(rule.of, of_measure.filter_map(|reading| reading.mean))
}
