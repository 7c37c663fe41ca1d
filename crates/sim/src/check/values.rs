//! Invariant 5: nothing is ever returned that was not written, and no dot is used twice.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use model::{Actor, Dot, Value, VersionSet};

use super::{Attribution, StoreKey, Violation, name, sets};
use crate::history::{Action, History, OperationId, Outcome, Remains};

/// What is known of each dot so far.
struct DotsKnown<'a> {
    history: &'a History,
    known: Attribution,
    dots: BTreeMap<(StoreKey, Dot), Option<OperationId>>,
    writes: BTreeMap<OperationId, Dot>,
    actors: BTreeMap<Actor, StoreKey>,
    violations: BTreeSet<String>,
}

/// Checks every value that anybody saw.
pub fn check(history: &History, remains: &[Remains]) -> Vec<Violation> {
    let mut seen = DotsKnown {
        history,
        known: Attribution::new(history, remains),
        dots: BTreeMap::new(),
        writes: BTreeMap::new(),
        actors: BTreeMap::new(),
        violations: BTreeSet::new(),
    };
    for (id, operation) in history.all() {
        let place = (operation.store, operation.key.clone());
        match &operation.outcome {
            Outcome::Written { dot, .. } => seen.event(&place, *dot, Some(id)),
            Outcome::Got(set) => seen.answer(&place, set, id),
            Outcome::Shown(Some(value)) => seen.shown(&place, value, id),
            _ => {}
        }
    }
    for (place, set) in sets(history, remains) {
        seen.set(&place, set);
    }
    seen.tombstones();
    seen.violations.into_iter().map(|detail| Violation { invariant: 5, about: None, detail }).collect()
}

impl DotsKnown<'_> {
    /// An answer holds nothing that was asked for after it.
    fn answer(&mut self, place: &StoreKey, set: &VersionSet, get: OperationId) {
        for version in set.versions() {
            let Value::Present(value) = &version.value else { continue };
            let Some(put) = self.known.of_value(place, value) else { continue };
            if Some(self.history.operation(put).invoked) > self.history.operation(get).returned {
                let detail =
                    format!("{}: {get:?} returned the value of {put:?} before it was written", name(place));
                self.violations.insert(detail);
            }
        }
    }

    /// What a plain client was shown had been asked for before, and had not been refused.
    fn shown(&mut self, place: &StoreKey, value: &Bytes, get: OperationId) {
        let Some(put) = self.written(place, value) else { return };
        if Some(self.history.operation(put).invoked) > self.history.operation(get).returned {
            let detail =
                format!("{}: {get:?} was shown the value of {put:?} before it was written", name(place));
            self.violations.insert(detail);
        }
    }

    /// The put that a value is; to be found, it must have been asked for and not been refused.
    fn written(&mut self, place: &StoreKey, value: &Bytes) -> Option<OperationId> {
        let Some(put) = self.known.of_value(place, value) else {
            let text = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
            self.violations.insert(format!("{}: value {text:?} was never written", name(place)));
            return None;
        };
        if let Outcome::Failed(reason) = &self.history.operation(put).outcome {
            let detail =
                format!("{}: {put:?} is there, though it was answered as failed: {reason}", name(place));
            self.violations.insert(detail);
        }
        Some(put)
    }

    fn set(&mut self, place: &StoreKey, set: &VersionSet) {
        for version in set.versions() {
            let Value::Present(value) = &version.value else {
                if version.expires.is_some() {
                    // What is left of a value, not a deletion: see `expired`.
                    continue;
                }
                let delete = self.known.of_dot(place, version.dot);
                self.event(place, version.dot, delete);
                continue;
            };
            let put = self.written(place, value);
            // What only changed its expiry is a separate event: see `touched`.
            if put.is_some() && !self.known.is_touch(place, version.dot) {
                self.event(place, version.dot, put);
            }
        }
    }

    /// One event is one write, and one write one event.
    fn event(&mut self, place: &StoreKey, dot: Dot, write: Option<OperationId>) {
        let before = self.dots.entry((place.clone(), dot)).or_insert(write);
        if *before != write {
            let detail = format!("{}: dot {dot} is used for {before:?} and for {write:?}", name(place));
            self.violations.insert(detail);
        }
        let home = self.actors.entry(dot.actor).or_insert_with(|| place.clone());
        if home != place {
            let detail = format!("actor of {dot} stamps both {} and {}", name(home), name(place));
            self.violations.insert(detail);
        }
        let Some(write) = write else { return };
        let first = *self.writes.entry(write).or_insert(dot);
        if first != dot {
            let detail = format!("{}: {write:?} was stamped twice, as {first} and as {dot}", name(place));
            self.violations.insert(detail);
        }
    }

    /// Every tombstone is a delete that somebody asked for.
    fn tombstones(&mut self) {
        let mut unknown: BTreeMap<&StoreKey, usize> = BTreeMap::new();
        for ((place, _), write) in &self.dots {
            if write.is_none() {
                *unknown.entry(place).or_default() += 1;
            }
        }
        for (place, count) in unknown {
            let possible = self.history.operations.iter().filter(|operation| {
                (operation.store, &operation.key) == (place.0, &place.1)
                    && operation.action == Action::Delete
                    && matches!(
                        operation.outcome,
                        Outcome::Pending | Outcome::Indeterminate(_) | Outcome::Acknowledged
                    )
            });
            let possible = possible.count();
            if count > possible {
                let detail =
                    format!("{}: {count} tombstones, but only {possible} deletes may be them", name(place));
                self.violations.insert(detail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::Story;
    use super::check;

    #[test]
    fn values_that_were_written_are_fine() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (dot, _) = story.written(put, 1, 1);
        let get = story.get();
        story.got(get, &[(dot, "a")]);
        assert_eq!(check(&story.history, &[]), []);
    }

    #[test]
    fn a_value_that_nobody_wrote_is_caught() {
        let mut story = Story::default();
        let get = story.get();
        story.got(get, &[(Story::dot(1, 1), "forged")]);
        assert!(check(&story.history, &[])[0].detail.contains("never written"));
    }

    #[test]
    fn a_plain_client_is_shown_only_values_written_before() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let get = story.get();
        story.shown(get, Some("a"));
        story.acknowledged(put);
        let get = story.get();
        story.shown(get, None);
        assert_eq!(check(&story.history, &[]), []);
        let forged = story.get();
        story.shown(forged, Some("forged"));
        assert!(check(&story.history, &[])[0].detail.contains("never written"));
    }

    #[test]
    fn a_value_shown_although_refused_or_too_early_is_caught() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        story.failed(put);
        let get = story.get();
        story.shown(get, Some("a"));
        assert!(check(&story.history, &[])[0].detail.contains("answered as failed"));
        let mut story = Story::default();
        let get = story.get();
        story.shown(get, Some("a"));
        let put = story.put_blind("a");
        story.acknowledged(put);
        assert!(check(&story.history, &[])[0].detail.contains("before it was written"));
    }

    #[test]
    fn a_dot_shared_by_two_writes_is_caught() {
        let mut story = Story::default();
        for value in ["a", "b"] {
            let put = story.put_blind(value);
            story.written(put, 1, 1);
        }
        assert!(check(&story.history, &[])[0].detail.contains("is used for"));
    }

    #[test]
    fn a_failed_write_that_shows_up_is_caught() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        story.failed(put);
        let get = story.get();
        story.got(get, &[(Story::dot(1, 1), "a")]);
        assert!(check(&story.history, &[])[0].detail.contains("answered as failed"));
    }

    #[test]
    fn a_write_with_two_dots_is_caught() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        story.written(put, 1, 1);
        let get = story.get();
        story.got(get, &[(Story::dot(2, 1), "a")]);
        assert!(check(&story.history, &[])[0].detail.contains("stamped twice"));
    }
}
