//! Invariants 1 and 7 for plain clients, which hear *done* and see one value or none.
//!
//! What they can be promised is less than what a context makes sure of: a plain write overwrites what its coordinator
//! knows, so of two acknowledged writes either may win. But
//! - what was acknowledged is held at the end, or something that replaced it is;
//! - where quorums meet, a key that was written before and never deleted is not shown as empty, and
//! - a value is not shown again once a write that had seen it is acknowledged.

use model::{Dot, Moment, VersionSet};

use super::{Attribution, Rules, StoreKey, Violation, deleted, name};
use crate::history::{Action, History, Operation, OperationId, Outcome, Remains};

/// Nodes judge expiry by clocks of their own, so whatever expires at all may be absent at any time.
const THE_END: Moment = Moment { nanos: u64::MAX };

/// Checks what plain clients were told against what they saw, and against what is left.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let mut violations = Vec::new();
    for held in remains {
        kept(history, held, &known, rules, &mut violations);
    }
    if rules.quorums_meet {
        for (id, get) in history.all() {
            if let Outcome::Shown(value) = &get.outcome {
                let place = (get.store, get.key.clone());
                let wrong = match value {
                    None => emptied(history, get),
                    Some(value) => replaced(history, get, &known, known.of_value(&place, value)),
                };
                violations.extend(wrong.map(|wrong| Violation {
                    invariant: 7,
                    detail: format!("{}: {id:?} {wrong}", name(&place)),
                }));
            }
        }
    }
    violations
}

/// Every acknowledged put is there at the end, or something is that replaced it.
fn kept(
    history: &History,
    held: &Remains,
    known: &Attribution,
    rules: Rules,
    violations: &mut Vec<Violation>,
) {
    let place: StoreKey = (held.store, held.key.clone());
    let merged = held.merged();
    let copies_required = if rules.copies_kept { rules.writes_required } else { 1 };
    for (id, put) in
        history.all().filter(|(_, put)| is_at(put, &place) && put.outcome == Outcome::Acknowledged)
    {
        if put.action == Action::Delete || deleted::may_be_forgotten(history, put, THE_END) {
            continue;
        }
        // Without a name for its event, all that is known is that the key cannot be empty.
        let holds = |set: &VersionSet| match known.of_write(&place, id) {
            Some(dot) => covers(set, dot),
            None => !set.versions().is_empty(),
        };
        let copies = held.replicas.iter().filter(|(node, _)| holds(&held.of_replica(*node))).count();
        if copies < copies_required || !holds(&merged) {
            let detail = format!(
                "{}: {id:?} was acknowledged, but {copies} replicas hold it or what replaced it, {copies_required} must",
                name(&place)
            );
            violations.push(Violation { invariant: 1, detail });
        }
    }
}

/// A put that was acknowledged before the get, of a key that nobody may have deleted since.
fn emptied(history: &History, get: &Operation) -> Option<String> {
    let place = (get.store, get.key.clone());
    let is_missed = |put: &Operation| {
        matches!(put.action, Action::Put(_))
            && acknowledged_before(put, get)
            && !deleted::may_be_forgotten(history, put, THE_END)
    };
    let (put, _) = history.all().find(|(_, put)| is_at(put, &place) && is_missed(put))?;
    Some(format!("was shown nothing, though {put:?} was acknowledged before"))
}

/// A write that was acknowledged before the get, and that had seen what the get shows.
fn replaced(
    history: &History,
    get: &Operation,
    known: &Attribution,
    shown: Option<OperationId>,
) -> Option<String> {
    let place = (get.store, get.key.clone());
    let (shown, dot) = (shown?, known.of_write(&place, shown?)?);
    let replaces = |write: &Operation| match &write.outcome {
        Outcome::Written { dot: by, context, .. } => *by != dot && context.vector.covers(dot),
        _ => false,
    };
    let all = history.all().filter(|(_, write)| is_at(write, &place) && acknowledged_before(write, get));
    let (by, _) = { all }.find(|(_, write)| replaces(write))?;
    Some(format!("was shown the value of {shown:?} ({dot}), which {by:?} had replaced before"))
}

fn is_at(operation: &Operation, place: &StoreKey) -> bool {
    (operation.store, &operation.key) == (place.0, &place.1)
}

/// Acknowledged by a quorum that every later read meets.
fn acknowledged_before(write: &Operation, get: &Operation) -> bool {
    matches!(write.outcome, Outcome::Acknowledged | Outcome::Written { sloppy: false, .. })
        && write.returned < Some(get.invoked)
}

fn covers(set: &VersionSet, dot: Dot) -> bool {
    set.vector().covers(dot) && !set.versions().is_empty()
}

#[cfg(test)]
mod tests {
    use super::super::examples::{Story, rules};
    use super::{Rules, check};
    use crate::history::Basis;

    fn lost(story: &Story, replicas: &[(u32, model::VersionSet)]) -> usize {
        check(&story.history, &[Story::remains(replicas)], rules()).len()
    }

    #[test]
    fn an_acknowledged_put_is_held_by_w_replicas_or_something_later_is() {
        let mut story = Story::default();
        let put = story.put("a", Basis::Overwrite);
        story.acknowledged(put);
        let held = Story::set(&[(Story::dot(1, 1), "a")], &[]);
        let later = Story::set(&[(Story::dot(1, 2), "b")], &[Story::dot(1, 1)]);
        let nothing = model::VersionSet::default;
        assert_eq!(lost(&story, &[(1, held.clone()), (2, held.clone()), (3, nothing())]), 0);
        assert_eq!(lost(&story, &[(1, later.clone()), (2, later), (3, held.clone())]), 0);
        assert_eq!(lost(&story, &[(1, held.clone()), (2, nothing()), (3, nothing())]), 1);
        assert_eq!(lost(&story, &[(1, nothing()), (2, nothing()), (3, nothing())]), 1);
        let lenient = Rules { copies_kept: false, ..rules() };
        let one = Story::remains(&[(1, held), (2, nothing()), (3, nothing())]);
        assert_eq!(check(&story.history, &[one], lenient), []);
    }

    #[test]
    fn an_acknowledged_put_that_a_delete_may_have_taken_along_may_be_gone() {
        let mut story = Story::default();
        let put = story.put("a", Basis::Overwrite);
        story.acknowledged(put);
        let delete = story.delete(Basis::Overwrite);
        story.indeterminate(delete);
        let get = story.get();
        story.shown(get, None);
        assert_eq!(lost(&story, &[(1, Default::default())]), 0);
    }

    #[test]
    fn a_key_that_is_shown_empty_after_an_acknowledged_put_is_caught() {
        let mut story = Story::default();
        let put = story.put("a", Basis::Overwrite);
        let early = story.get();
        story.shown(early, None);
        story.acknowledged(put);
        assert_eq!(check(&story.history, &[], rules()), [], "it was not acknowledged yet");
        let late = story.get();
        story.shown(late, None);
        assert!(check(&story.history, &[], rules())[0].detail.contains("was shown nothing"));
        let apart = Rules { quorums_meet: false, ..rules() };
        assert_eq!(check(&story.history, &[], apart), []);
    }

    #[test]
    fn a_value_that_is_shown_after_a_write_that_had_seen_it_is_caught() {
        let mut story = Story::default();
        let first = story.put("a", Basis::Blind);
        let (dot, _) = story.written(first, 1, 1);
        let second = story.put("b", Basis::After(first));
        let early = story.get();
        story.written_over(second, 1, 2, &[dot]);
        story.shown(early, Some("a"));
        assert_eq!(check(&story.history, &[], rules()), [], "it was asked before");
        let late = story.get();
        story.shown(late, Some("b"));
        assert_eq!(check(&story.history, &[], rules()), []);
        let back = story.get();
        story.shown(back, Some("a"));
        assert!(check(&story.history, &[], rules())[0].detail.contains("had replaced before"));
    }
}
