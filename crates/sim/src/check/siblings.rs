//! Invariant 4: siblings are exactly the concurrent writes.
//!
//! True causality is rebuilt from the contexts that clients got and gave back, without looking at a vector: a write
//! has *seen* the versions that its context was handed out with, and all that those had seen. Then in every answer
//! - no version was seen by another version (a phantom sibling), and
//! - every event that the answer claims to cover is there or was seen by something that is (a missing sibling).
//!
//! Only stores that keep siblings, and only keys whose every write names its context, can be judged so.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use model::{Dot, Moment, Value, VersionSet};
use wire::messages::Condition;

use super::{Attribution, StoreKey, Violation, name, sets};
use crate::history::{Action, Basis, History, Operation, OperationId, Outcome, Remains};

/// The store that keeps siblings in every simulation.
pub const STORE: &str = "siblings";

type Writes = BTreeSet<OperationId>;

/// Checks every answer, and what the nodes hold.
pub fn check(history: &History, remains: &[Remains]) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let unjudged = unjudged(history);
    let mut causality = Causality { history, known: &known, seen: BTreeMap::new() };
    for (id, operation) in history.all() {
        if operation.store == STORE && operation.is_write() {
            let seen = causality.basis(operation);
            causality.seen.insert(id, seen);
        }
    }
    let mut violations = BTreeSet::new();
    for (place, set) in sets(history, remains) {
        if place.0 == STORE && !unjudged.contains(&place) {
            violations.extend(causality.judge(&place, set));
        }
    }
    for held in remains {
        let place = (held.store, held.key.clone());
        if place.0 == STORE && !unjudged.contains(&place) {
            violations.extend(causality.judge(&place, &held.merged()));
        }
    }
    violations.into_iter().map(|detail| Violation { invariant: 4, about: None, detail }).collect()
}

/// Keys with a write whose basis or event nobody knows.
fn unjudged(history: &History) -> BTreeSet<StoreKey> {
    let mut places = BTreeSet::new();
    for operation in history.operations.iter().filter(|operation| operation.is_write()) {
        let unanswered = matches!(operation.outcome, Outcome::Pending | Outcome::Indeterminate(_));
        // What expires may be met without its value, which would have named it.
        let nameless = (operation.action == Action::Delete || operation.expires.is_some()) && unanswered;
        if nameless || operation.basis == Basis::Overwrite {
            places.insert((operation.store, operation.key.clone()));
        }
    }
    places
}

struct Causality<'a> {
    history: &'a History,
    known: &'a Attribution,
    /// What each write had seen; closed under "had seen".
    seen: BTreeMap<OperationId, Writes>,
}

impl Causality<'_> {
    fn basis(&self, operation: &Operation) -> Writes {
        let Basis::After(source) = operation.basis else { return Writes::new() };
        let source_operation = self.history.operation(source);
        let place = (operation.store, operation.key.clone());
        match &source_operation.outcome {
            Outcome::Got(set) => {
                let writes = self.writes(&place, set);
                writes.into_iter().flat_map(|write| self.with_seen(write)).collect()
            }
            // A write's own answer: with everything it replaced if it was alone, otherwise what it was given.
            Outcome::Written { dot, context, .. } if context.vector.covers(*dot) => self.with_seen(source),
            _ => self.seen.get(&source).cloned().unwrap_or_default(),
        }
    }

    fn with_seen(&self, write: OperationId) -> Writes {
        let mut writes = self.seen.get(&write).cloned().unwrap_or_default();
        writes.insert(write);
        writes
    }

    fn writes(&self, place: &StoreKey, set: &VersionSet) -> Writes {
        let of = |version: &model::Version| match &version.value {
            Value::Present(value) => self.known.of_value(place, value),
            Value::Tombstone => self.known.of_dot(place, version.dot),
        };
        set.versions().iter().filter_map(of).collect()
    }

    /// What is gone because a write *if absent* replaced it that is there, or that something there had seen. Such a
    /// write has seen what R replicas knew to be deleted or expired, whatever its context says.
    fn gone(&self, place: &StoreKey, set: &VersionSet, there: &Writes) -> Vec<OperationId> {
        let nothing = Writes::new();
        let seen = |later: &OperationId| self.seen.get(later).unwrap_or(&nothing);
        let all = there.iter().flat_map(|later| seen(later).iter().chain([later]));
        let made = all.map(|&id| self.history.operation(id));
        let made = made.filter(|write| write.condition == Condition::IfAbsent);
        // One of unknown outcome may have been made at any time.
        let until = |write: &Operation| match write.outcome {
            Outcome::Indeterminate(_) => Some(Moment { nanos: u64::MAX }),
            _ => write.returned,
        };
        let Some(until) = made.filter_map(until).max() else { return Vec::new() };
        let ends = |write: &Operation| write.action == Action::Delete || write.expires.is_some();
        let is_gone = |&(dot, id): &(Dot, OperationId)| {
            let write = self.history.operation(id);
            let accounted = || there.contains(&id) || there.iter().any(|later| seen(later).contains(&id));
            ends(write) && write.invoked <= until && set.vector().covers(dot) && !accounted()
        };
        self.known.dots_of(place).filter(is_gone).map(|(_, id)| id).collect()
    }

    fn judge(&self, place: &StoreKey, set: &VersionSet) -> Vec<String> {
        let mut violations = Vec::new();
        let there = self.writes(place, set);
        let nothing = Writes::new();
        let seen = |write: &OperationId| self.seen.get(write).unwrap_or(&nothing);
        for write in &there {
            if let Some(later) = there.iter().find(|later| seen(later).contains(write)) {
                violations.push(format!(
                    "{}: phantom sibling: {write:?} beside {later:?}, which replaced it",
                    name(place)
                ));
            }
        }
        let gone = LazyCell::new(|| self.gone(place, set, &there));
        for (dot, write) in self.known.dots_of(place) {
            let replaced = |later: &OperationId| *later == write || seen(later).contains(&write);
            let accounted = there.iter().any(replaced);
            // Asked only of what is missing.
            let accounted = accounted || (set.vector().covers(dot) && gone.iter().any(replaced));
            if set.vector().covers(dot) && !accounted {
                violations.push(format!(
                    "{}: missing sibling: {write:?} ({dot}) is covered, but only {there:?} are there",
                    name(place)
                ));
            }
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::Story;
    use wire::messages::Condition;

    use super::check;
    use crate::history::Basis;

    #[test]
    fn two_blind_writes_are_siblings_and_their_merge_replaces_both() {
        let mut story = Story::default();
        let (a, b) = (story.put_blind("a"), story.put_blind("b"));
        let ((dot_a, _), (dot_b, _)) = (story.written(a, 1, 1), story.written(b, 1, 2));
        let get = story.get();
        story.got(get, &[(dot_a, "a"), (dot_b, "b")]);
        let merge = story.put("c", Basis::After(get));
        let (dot_c, _) = story.written(merge, 2, 1);
        let last = story.get();
        story.got_covering(last, &[(dot_c, "c")], &[dot_a, dot_b]);
        assert_eq!(check(&story.history, &[]), []);
    }

    #[test]
    fn a_write_if_absent_has_seen_what_was_deleted_before_it() {
        for (condition, wrong) in [(Condition::IfAbsent, 0), (Condition::None, 2)] {
            let mut story = Story::default();
            let put = story.put_blind("a");
            let (first, _) = story.written(put, 1, 1);
            let get = story.get();
            story.got(get, &[(first, "a")]);
            let delete = story.delete(Basis::After(get));
            let (deleted, _) = story.written(delete, 1, 2);
            let made = story.put_blind("b");
            story.history.operations[made.0].condition = condition;
            let (dot, _) = story.written(made, 2, 1);
            let last = story.get();
            story.got_covering(last, &[(dot, "b")], &[first, deleted]);
            assert_eq!(check(&story.history, &[]).len(), wrong, "{condition:?}");
        }
    }

    #[test]
    fn a_sibling_that_was_replaced_is_caught() {
        let mut story = Story::default();
        let a = story.put_blind("a");
        let (dot_a, _) = story.written(a, 1, 1);
        let get = story.get();
        story.got(get, &[(dot_a, "a")]);
        let b = story.put("b", Basis::After(get));
        let (dot_b, _) = story.written(b, 2, 1);
        let last = story.get();
        story.got(last, &[(dot_a, "a"), (dot_b, "b")]);
        assert!(check(&story.history, &[])[0].detail.contains("phantom"));
    }

    #[test]
    fn a_concurrent_write_that_vanished_is_caught() {
        let mut story = Story::default();
        let (a, b) = (story.put_blind("a"), story.put_blind("b"));
        let ((dot_a, _), (dot_b, _)) = (story.written(a, 1, 1), story.written(b, 1, 2));
        let get = story.get();
        story.got_covering(get, &[(dot_b, "b")], &[dot_a]);
        assert!(check(&story.history, &[])[0].detail.contains("missing"));
    }

    #[test]
    fn a_write_that_the_answer_does_not_claim_to_know_is_not_missing() {
        let mut story = Story::default();
        let (a, b) = (story.put_blind("a"), story.put_blind("b"));
        let ((dot_a, _), _) = (story.written(a, 1, 1), story.written(b, 2, 1));
        let get = story.get();
        story.got(get, &[(dot_a, "a")]);
        assert_eq!(check(&story.history, &[]), []);
    }
}
