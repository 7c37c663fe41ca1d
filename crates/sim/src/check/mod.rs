//! The judges: pure functions from what happened to what must not have happened.
//!
//! [`conditions`] is 4 for writes that have one, [`durable`] (while the run goes on) and [`lost`] (at its end) are invariant 1, [`drained`] is 2 as far as hints go, [`deleted`] and [`expired`] are 3, [`siblings`] is 4, [`values`] is 5, [`reads`] is 7, and
//! [`plain`] is 1 and 7 for what clients hear that see no versions.
//! Each knows only the history, what the nodes hold at the end, and the promises that this run's settings and faults
//! leave standing ([`Rules`]).
//!
//! Must never: look at how the cluster works inside; a judge that shares the defendant's code shares its bugs.

pub mod conditions;
pub mod deleted;
pub mod drained;
pub mod durable;
pub mod expired;
pub(crate) mod forgotten;
pub mod lost;
pub mod plain;
pub mod reads;
pub mod siblings;
pub mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use model::{Dot, Timestamp, Value, VersionSet};

use crate::history::{Action, History, OperationId, Outcome, Remains};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant in the design; 0: the run itself went wrong.
    pub invariant: u8,
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
    /// W: copies that an acknowledged write has.
    pub writes_required: usize,
    /// Whether no fault took copies away: then all W are there at the end, otherwise one must be.
    pub copies_kept: bool,
    /// Whether read and write quorums meet, none is sloppy, and no copy was taken away.
    pub quorums_meet: bool,
    /// Whether the stores promise reads that never go backwards, and no fault took away what was shown.
    pub reads_monotonic: bool,
    /// No node reaps a value sooner than so long after it may read as absent: what it waits, less what clocks differ.
    pub reaped_after: Duration,
}

/// All invariants; and how many reads were judged.
pub fn all(history: &History, remains: &[Remains], rules: Rules) -> (Vec<Violation>, reads::Pairs) {
    let mut violations = values::check(history, remains);
    violations.extend(lost::check(history, remains, rules));
    violations.extend(conditions::check(history));
    violations.extend(deleted::check(history, remains, rules));
    violations.extend(expired::check(history, remains));
    violations.extend(siblings::check(history, remains));
    let (missed, pairs) = reads::check(history, remains, rules);
    violations.extend(missed);
    violations.extend(plain::check(history, remains, rules));
    (violations, pairs)
}

/// A key of a store.
pub(crate) type StoreKey = (&'static str, Bytes);

/// Which operation an event or a value is.
#[derive(Debug, Default)]
pub(crate) struct Attribution {
    values: BTreeMap<StoreKey, BTreeMap<Bytes, OperationId>>,
    dots: BTreeMap<StoreKey, BTreeMap<Dot, OperationId>>,
    events: BTreeMap<OperationId, (Dot, Timestamp)>,
}

impl Attribution {
    /// From everything that was written, acknowledged or seen.
    pub(crate) fn new(history: &History, remains: &[Remains]) -> Attribution {
        let mut known = Attribution::default();
        for (id, operation) in history.all() {
            let place = (operation.store, operation.key.clone());
            if let Action::Put(value) = &operation.action {
                known.values.entry(place.clone()).or_default().insert(value.clone(), id);
                if let Some(&(dot, timestamp)) = history.witnessed.get(value) {
                    known.learn(&place, dot, timestamp, id);
                }
            }
            if let Outcome::Written { dot, context, .. } = &operation.outcome {
                known.learn(&place, *dot, context.timestamp, id);
            }
        }
        for (place, set) in sets(history, remains) {
            for version in set.versions() {
                let Value::Present(value) = &version.value else { continue };
                if let Some(id) = known.of_value(&place, value) {
                    known.learn(&place, version.dot, version.timestamp, id);
                }
            }
        }
        known
    }

    fn learn(&mut self, place: &StoreKey, dot: Dot, timestamp: Timestamp, write: OperationId) {
        self.dots.entry(place.clone()).or_default().entry(dot).or_insert(write);
        self.events.entry(write).or_insert((dot, timestamp));
    }

    /// The put that wrote this value.
    pub(crate) fn of_value(&self, place: &StoreKey, value: &Bytes) -> Option<OperationId> {
        self.values.get(place)?.get(value).copied()
    }

    /// The write that this event is, if it is known.
    pub(crate) fn of_dot(&self, place: &StoreKey, dot: Dot) -> Option<OperationId> {
        self.dots.get(place)?.get(&dot).copied()
    }

    /// The event that this write is, if it is known, with its timestamp. Where siblings are kept, the timestamp may be
    /// that of what the write has seen.
    pub(crate) fn event(&self, write: OperationId) -> Option<(Dot, Timestamp)> {
        self.events.get(&write).copied()
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
