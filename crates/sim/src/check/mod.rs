//! The judges: pure functions from what happened to what must not have happened.
//!
//! [`conditions`] is 4 for writes that have one, [`durable`] (while the run goes on) and [`lost`] (at its end) are invariant 1, [`drained`] is 2 as far as hints go, [`deleted`] and [`expired`] are 3, [`touched`] is 3 and 7 for what changes when a value expires, [`lifetimes`] is 5 for what commands say of that, [`siblings`] is 4, [`values`] is 5, [`moved`] and [`numbers`] are 6, [`reads`] and [`sloppy`] are 7, [`returns`] is 9, [`absent`] is 11, [`replaced`] is 12, and
//! [`plain`] is 1 and 7 for what clients hear that see no versions, [`artifacts`] is 10, of stories and of runs that push some.
//! Each knows only the history, what the nodes hold at the end, and the promises that this run's settings and faults
//! leave standing ([`Rules`]).
//!
//! Must never: look at how the cluster works inside; a judge that shares the defendant's code shares its bugs.

pub mod absent;
pub mod artifacts;
pub mod conditions;
pub mod deleted;
pub mod drained;
pub mod durable;
pub mod expired;
pub(crate) mod forgotten;
pub mod lifetimes;
pub mod lost;
pub mod numbers;
pub(crate) mod owing;
pub mod plain;
pub mod reads;
pub mod rebalance;
pub mod replaced;
pub mod returns;
pub mod siblings;
pub mod sloppy;
pub mod touched;
pub mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use model::{Dot, Moment, Timestamp, Value, VersionSet};

use crate::history::{Action, History, Operation, OperationId, Outcome, Remains, Touch};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant in the design; 0: the run itself went wrong.
    pub invariant: u8,
    /// The write that it is about, if it is about one: a run then tells who stored it and where its copies are.
    pub about: Option<OperationId>,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.detail)
    }
}

/// What the settings and faults of a run leave standing.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// N.
    pub replicas: usize,
    /// The stores' R.
    pub reads_required: usize,
    /// The stores' W.
    pub writes_required: usize,
    /// Whether no fault took copies away for good: then all W are there at the end, otherwise one must be.
    pub copies_kept: bool,
    /// Whether faults took copies that nodes noticed and brought in again, from as many replicas as one of W is among.
    pub refilled: bool,
    /// Whether a lost disk may take a hint along that nothing replaces, since no nodes compare what they hold.
    pub hints_lost: bool,
    /// Whether the stores promise reads that never go backwards, and no fault took away what was shown.
    pub reads_monotonic: bool,
    /// Whether stores change their numbers: then R is what the documents say.
    pub numbers_change: bool,
    /// No node reaps a value sooner than this long after it may read as absent: what it waits, less what clocks differ.
    pub reaped_after: Duration,
}

impl Rules {
    /// Whether the get's answer owes anything to the write's acknowledgement, if replicas alone gave both: their quorums
    /// meet.
    pub fn meet(&self, get: &Operation, write: &Operation) -> bool {
        self.meets(usize::from(get.required), write)
    }

    /// Whether a request that asks this many replicas meets one of those that acknowledged the write, if replicas alone
    /// did.
    pub fn meets(&self, asked: usize, write: &Operation) -> bool {
        let written = usize::from(write.required);
        let brought_back = !self.refilled || written >= self.writes_required;
        self.copies_kept && brought_back && asked + written > self.replicas
    }

    /// The rules for what lies between two moments: where faults take copies for good, copies are kept as long as none
    /// strikes.
    pub fn between(&self, history: &History, from: Moment, to: Moment) -> Rules {
        Rules { copies_kept: self.copies_kept || !history.was_struck(from, to), ..*self }
    }

    /// Copies that an acknowledged write must have at the end. Faults are drawn for the stores' W: a request that asks
    /// for fewer may lose them all. `leans`: whether a fallback may have stood in for a replica.
    pub fn copies_required(&self, write: &Operation, leans: bool) -> usize {
        let written = usize::from(write.required);
        let spared = written >= self.writes_required;
        match (self.copies_kept, self.refilled) {
            (true, false) => written,
            (true, true) if spared && self.hints_lost && leans => 1,
            (true, true) if spared => written,
            (false, _) if spared => 1,
            _ => 0,
        }
    }
}

/// How many things were judged: reads, and commands that say something of expiries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged {
    /// Pairs of a get and an earlier write.
    pub pairs: reads::Pairs,
    /// Commands with a condition on an expiry, or that keep one.
    pub lifetimes: usize,
    /// Answers that depend on absence.
    pub absences: absent::Absences,
    /// Answers that say that a fallback stood in.
    pub sloppy: sloppy::SloppyTold,
}

/// All invariants; and how much was judged.
pub fn all(history: &History, remains: &[Remains], rules: Rules) -> (Vec<Violation>, Judged) {
    let mut violations = values::check(history, remains);
    violations.extend(lost::check(history, remains, rules));
    violations.extend(conditions::check(history, remains, rules));
    violations.extend(deleted::check(history, remains, rules));
    violations.extend(expired::check(history, remains));
    violations.extend(touched::check(history, remains));
    violations.extend(siblings::check(history, remains));
    let (missed, pairs) = reads::check(history, remains, rules);
    violations.extend(missed);
    violations.extend(plain::check(history, remains, rules));
    let (broken, lifetimes) = lifetimes::check(history, remains, rules);
    violations.extend(broken);
    let (claimed, absences) = absent::check(history, rules);
    violations.extend(claimed);
    let (told, sloppy) = sloppy::check(history, remains, rules);
    violations.extend(told);
    (violations, Judged { pairs, lifetimes, absences, sloppy })
}

/// A key of a store.
pub(crate) type StoreKey = (&'static str, Bytes);

/// Which operation an event or a value is.
#[derive(Debug, Default)]
pub(crate) struct Attribution {
    values: BTreeMap<StoreKey, BTreeMap<Bytes, OperationId>>,
    dots: BTreeMap<StoreKey, BTreeMap<Dot, OperationId>>,
    /// By the number of the write.
    events: Vec<Option<(Dot, Timestamp)>>,
    touches: BTreeMap<StoreKey, Vec<Touch>>,
}

impl Attribution {
    /// From everything that was written, acknowledged or seen.
    pub(crate) fn new(history: &History, remains: &[Remains]) -> Attribution {
        let events = vec![None; history.operations.len()];
        let mut known = Attribution { events, ..Attribution::default() };
        for (id, operation) in history.all() {
            let place = (operation.store, operation.key.clone());
            if matches!(operation.action, Action::Touch { .. }) && !known.touches.contains_key(&place) {
                let here = |touch: &&Touch| (touch.store.as_str(), &touch.key) == (place.0, &place.1);
                let touches = history.witnessed.touches.iter().filter(here).cloned().collect();
                known.touches.insert(place.clone(), touches);
            }
            if let Action::Put(value) = &operation.action {
                known.values.entry(place.clone()).or_default().insert(value.clone(), id);
                if let Some(&(dot, timestamp)) = history.witnessed.values.get(value) {
                    known.learn(&place, dot, timestamp, id);
                }
            }
            if let (Outcome::Acknowledged, Some((dot, timestamp))) =
                (&operation.outcome, operation.witnessed(&history.witnessed))
            {
                known.learn(&place, dot, timestamp, id);
            }
            if let Outcome::Written { dot, context, .. } = &operation.outcome {
                known.learn(&place, *dot, context.timestamp, id);
            }
        }
        for (place, set) in sets(history, remains) {
            for version in set.versions() {
                let Value::Present(value) = &version.value else { continue };
                if known.is_touch(&place, version.dot) {
                    continue;
                }
                if let Some(id) = known.of_value(&place, value) {
                    known.learn(&place, version.dot, version.timestamp, id);
                }
            }
        }
        known
    }

    fn learn(&mut self, place: &StoreKey, dot: Dot, timestamp: Timestamp, write: OperationId) {
        self.dots.entry(place.clone()).or_default().entry(dot).or_insert(write);
        self.events[write.0].get_or_insert((dot, timestamp));
    }

    /// The put that wrote this value.
    pub(crate) fn of_value(&self, place: &StoreKey, value: &Bytes) -> Option<OperationId> {
        self.values.get(place)?.get(value).copied()
    }

    /// What changed the expiry of values of this key.
    pub(crate) fn touches(&self, place: &StoreKey) -> &[Touch] {
        self.touches.get(place).map_or(&[], Vec::as_slice)
    }

    /// Whether the event changed the expiry of a value.
    pub(crate) fn is_touch(&self, place: &StoreKey, dot: Dot) -> bool {
        self.touches(place).iter().any(|touch| touch.dot == dot)
    }

    /// All events that a value is: that of its put, and of what changed its expiry.
    pub(crate) fn events_of(&self, place: &StoreKey, value: &Bytes) -> Vec<(Dot, Timestamp)> {
        let put = self.of_value(place, value).and_then(|put| self.event(put));
        let touched = self.touches(place).iter().filter(|touch| touch.value == *value);
        put.into_iter().chain(touched.map(|touch| (touch.dot, touch.timestamp))).collect()
    }

    /// The write that this event is, if it is known.
    pub(crate) fn of_dot(&self, place: &StoreKey, dot: Dot) -> Option<OperationId> {
        self.dots.get(place)?.get(&dot).copied()
    }

    /// The event that this write is, if it is known, with its timestamp. Where siblings are kept, the timestamp may be
    /// that of what the write has seen.
    pub(crate) fn event(&self, write: OperationId) -> Option<(Dot, Timestamp)> {
        self.events[write.0]
    }

    /// All known events of one key.
    pub(crate) fn dots_of<'a>(&'a self, place: &StoreKey) -> impl Iterator<Item = (Dot, OperationId)> + 'a {
        self.dots.get(place).into_iter().flatten().map(|(dot, id)| (*dot, *id))
    }
}

/// Every set that anybody saw: answers of gets, and what the nodes hold at the end.
pub(crate) fn sets<'a>(
    history: &'a History,
    remains: &'a [Remains],
) -> impl Iterator<Item = (StoreKey, &'a VersionSet)> {
    let answered = history.operations.iter().filter_map(|operation| match &operation.outcome {
        Outcome::Got(set) => Some(((operation.store, operation.key.clone()), set)),
        _ => None,
    });
    let held = remains.iter().flat_map(|remains| {
        let place = (remains.store, remains.key.clone());
        let hints = remains.hints.iter().map(|(_, _, set)| set);
        remains.replicas.iter().map(|(_, set)| set).chain(hints).map(move |set| (place.clone(), set))
    });
    answered.chain(held)
}

/// A key for people.
pub(crate) fn name(place: &StoreKey) -> String {
    format!("{}/{}", place.0, String::from_utf8_lossy(&place.1))
}

#[cfg(test)]
pub(crate) mod examples;

#[cfg(test)]
mod tests {
    use super::examples::{Story, rules};
    use super::*;

    /// Whether a get that asked this many owes anything to a write that asked that many, of N=3 and the stores' R=2,
    /// W=2.
    fn meet(rules: Rules, asked: u8, written: u8) -> bool {
        let mut story = Story::default();
        let put = story.put_blind("a");
        story.written(put, 1, 1);
        let get = story.get();
        let operations = &mut story.history.operations;
        (operations[get.0].required, operations[put.0].required) = (asked, written);
        rules.meet(&operations[get.0], &operations[put.0])
    }

    #[test]
    fn a_get_must_see_a_write_if_their_numbers_promise_it() {
        for (asked, written) in [(1, 3), (2, 2), (3, 1), (3, 3)] {
            assert!(meet(rules(), asked, written), "{asked} {written}");
            assert!(!meet(Rules { copies_kept: false, ..rules() }, asked, written));
        }
        for (asked, written) in [(1, 1), (1, 2), (2, 1)] {
            assert!(!meet(rules(), asked, written), "{asked} {written}");
        }
    }

    #[test]
    fn a_write_that_asked_for_fewer_copies_may_be_missing_after_lost_disks() {
        let refilled = Rules { refilled: true, ..rules() };
        assert!(meet(refilled, 2, 2));
        assert!(!meet(refilled, 3, 1));
        let mut story = Story::default();
        let put = story.put_blind("a");
        for (written, rules, copies) in [
            (1, rules(), 1),
            (3, rules(), 3),
            (1, refilled, 0),
            (3, refilled, 3),
            (3, Rules { copies_kept: false, ..rules() }, 1),
            (1, Rules { copies_kept: false, ..rules() }, 0),
        ] {
            story.history.operations[put.0].required = written;
            assert_eq!(
                rules.copies_required(story.history.operation(put), false),
                copies,
                "{written} {rules:?}"
            );
        }
    }
}
