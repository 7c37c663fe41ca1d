//! Conditions of writes mean what they say (invariant 4 where siblings are kept, and 11).
//!
//! A condition is judged from what R replicas hold (11). So where quorums meet, whoever stamps:
//! - a write *if absent* is not made where another was acknowledged before it was asked, and nothing may hide that one;
//! - a write *if present* is not refused there.
//!
//! Two writers at the same time may both be let through, by two replicas. But what one replica says must fit together,
//! and must have a reason (4):
//! - a write is refused because the key exists, or made because it does, only where somebody may have written it before;
//! - of two writes that one actor stamped *if absent*, the later needs something that may have taken the key away;
//! - where siblings are kept, a write that was made *if current* has seen all that its actor had stamped before.

use wire::messages::Condition;

use super::forgotten::Forgetting;
use super::owing::Owing;
use super::{Attribution, Rules, Violation, name};
use crate::history::{Action, Basis, History, NOT_MET, Operation, OperationId, Outcome, Remains};

/// What a refusal says when the key has a value.
const EXISTS: &str = "the key already exists";
/// What a refusal says when the key has none.
const DOES_NOT_EXIST: &str = "the key does not exist";

/// Checks the outcome of each write with a condition.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> Vec<Violation> {
    let mut violations = by_stampers(history);
    if history.operations.iter().any(|operation| operation.condition != Condition::None) {
        violations.extend(by_anybody(history, remains, rules));
    }
    violations
}

/// Checks writes whose condition was decided as if the key were absent, though a write of it was acknowledged before.
fn by_anybody(history: &History, remains: &[Remains], rules: Rules) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let forgetting = Forgetting::new(history, &known, rules.reaped_after);
    let owing = Owing::new(history, &known, rules);
    let mut violations = Vec::new();
    for (place, operations) in history.by_key() {
        for &id in &operations {
            let operation = history.operation(id);
            let (Some(what), Some(returned)) = (calls_absent(operation), operation.returned) else {
                continue;
            };
            let is_there = |&&put: &&OperationId| {
                let written = history.operation(put);
                let acknowledged = matches!(written.outcome, Outcome::Written { .. } | Outcome::Acknowledged);
                matches!(written.action, Action::Put(_))
                    && acknowledged
                    && written.returned < Some(operation.invoked)
                    && rules.between(history, written.invoked, returned).meets(rules.reads_required, written)
                    && !forgetting.may_be_hidden(put, returned)
                    && !owing.may_lean(put)
            };
            if let Some(put) = operations.iter().find(is_there) {
                let detail =
                    format!("{}: {id:?} {what}, though {put:?} was acknowledged before", name(&place));
                violations.push(Violation { invariant: 11, about: Some(*put), detail });
            }
        }
    }
    violations
}

/// What became of a write because its key was taken for absent.
fn calls_absent(operation: &Operation) -> Option<&'static str> {
    match (operation.condition, &operation.outcome) {
        (Condition::IfAbsent, Outcome::Written { .. } | Outcome::Acknowledged) => {
            Some("was made because the key is absent")
        }
        (Condition::IfPresent, Outcome::Failed(reason))
            if reason == NOT_MET || reason.contains(DOES_NOT_EXIST) =>
        {
            Some("was refused because the key is absent")
        }
        _ => None,
    }
}

/// Checks what single stampers say.
fn by_stampers(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (place, operations) in history.by_key() {
        for &id in &operations {
            let fault = match history.operation(id).condition {
                Condition::IfAbsent => {
                    refused_without_a_value(history, &operations, id).or(made_twice(history, &operations, id))
                }
                Condition::IfPresent => made_without_a_value(history, &operations, id),
                Condition::IfCurrent if place.0 == super::siblings::STORE => made_unseen(history, id),
                _ => None,
            };
            let detail = fault.map(|fault| format!("{}: {id:?} {fault}", name(&place)));
            violations.extend(detail.map(|detail| Violation { invariant: 4, about: None, detail }));
        }
    }
    violations
}

fn refused_without_a_value(history: &History, operations: &[OperationId], id: OperationId) -> Option<String> {
    let exists = |reason: &str| reason == NOT_MET || reason.contains(EXISTS);
    let refused = matches!(&history.operation(id).outcome, Outcome::Failed(reason) if exists(reason));
    (refused && !may_exist(history, operations, id))
        .then(|| "was refused because the key exists, though nobody had written it".to_owned())
}

fn made_without_a_value(history: &History, operations: &[OperationId], id: OperationId) -> Option<String> {
    let made = matches!(history.operation(id).outcome, Outcome::Written { .. } | Outcome::Acknowledged);
    (made && !may_exist(history, operations, id))
        .then(|| "was made because the key exists, though nobody had written it".to_owned())
}

/// Whether another put may have been made before this operation was answered.
fn may_exist(history: &History, operations: &[OperationId], id: OperationId) -> bool {
    let asked_before = |other: &Operation| Some(other.invoked) < history.operation(id).returned;
    operations
        .iter()
        .filter(|&&other| other != id)
        .map(|&other| history.operation(other))
        .any(|other| matches!(other.action, Action::Put(_)) && asked_before(other) && may_be_made(other))
}

fn may_be_made(operation: &Operation) -> bool {
    !matches!(operation.outcome, Outcome::Failed(_))
}

/// An earlier write of the same actor that was made if absent, of a key that nothing may have emptied since.
fn made_twice(history: &History, operations: &[OperationId], id: OperationId) -> Option<String> {
    let (later, Outcome::Written { dot, .. }) = (history.operation(id), &history.operation(id).outcome)
    else {
        return None;
    };
    let is_earlier = |other: &Operation| match &other.outcome {
        Outcome::Written { dot: before, .. } => before.actor == dot.actor && before.count < dot.count,
        _ => false,
    };
    let all = || operations.iter().map(|&other| (other, history.operation(other)));
    let puts = |(_, other): &(OperationId, &Operation)| matches!(other.action, Action::Put(_));
    let (earlier, _) =
        all().filter(puts).find(|(_, other)| other.condition == Condition::IfAbsent && is_earlier(other))?;
    let empties = |other: &Operation| {
        (other.action == Action::Delete || other.expires.is_some())
            && Some(other.invoked) < later.returned
            && may_be_made(other)
    };
    let emptied = all().any(|(_, other)| empties(other));
    (!emptied).then(|| {
        format!("was made because the key is absent, though {earlier:?} had written it at that node")
    })
}

/// An event of the same actor before this write, which the context does not cover.
fn made_unseen(history: &History, id: OperationId) -> Option<String> {
    let write = history.operation(id);
    let (Outcome::Written { dot, .. }, Basis::After(read)) = (&write.outcome, write.basis) else {
        return None;
    };
    let covered = match &history.operation(read).outcome {
        Outcome::Got(set) => set.vector().count(dot.actor),
        Outcome::Written { context, .. } => context.vector.count(dot.actor),
        _ => return None,
    };
    (covered + 1 < dot.count).then(|| {
        format!("({dot}) was made because its context is current, though that covers only {covered} of its actor's events")
    })
}

#[cfg(test)]
mod tests {
    use super::super::examples::Story;
    use super::*;

    fn conditional(story: &mut Story, value: &'static str, condition: Condition) -> OperationId {
        let id = story.put(value, Basis::Blind);
        story.history.operations[id.0].condition = condition;
        id
    }

    fn refuse(story: &mut Story, id: OperationId) {
        story.failed(id);
        story.history.operations[id.0].outcome = Outcome::Failed(format!("condition failed: {EXISTS}"));
    }

    #[test]
    fn a_refusal_because_the_key_exists_needs_an_earlier_write() {
        for (written, fine) in [(true, true), (false, false)] {
            let mut story = Story::default();
            if written {
                let put = story.put_blind("a");
                story.indeterminate(put);
            }
            let refused = conditional(&mut story, "b", Condition::IfAbsent);
            refuse(&mut story, refused);
            let late = story.put_blind("c");
            story.written(late, 1, 1);
            assert_eq!(by_stampers(&story.history).is_empty(), fine);
        }
    }

    #[test]
    fn a_write_because_the_key_exists_needs_an_earlier_write_too() {
        for (written, fine) in [(true, true), (false, false)] {
            let mut story = Story::default();
            let put = story.put_blind("a");
            if written {
                story.indeterminate(put)
            } else {
                story.failed(put)
            }
            let made = conditional(&mut story, "b", Condition::IfPresent);
            story.written(made, 1, 1);
            assert_eq!(by_stampers(&story.history).is_empty(), fine);
        }
    }

    #[test]
    fn a_write_if_absent_after_an_acknowledged_write_is_caught() {
        use super::super::examples::rules;
        for (before, deleted, node, wrong) in [(true, false, 2, 1), (false, false, 2, 0), (true, true, 2, 0)]
        {
            let mut story = Story::default();
            let put = story.put_blind("a");
            if before {
                story.written(put, 1, 1);
            }
            if deleted {
                let delete = story.delete(Basis::Overwrite);
                story.indeterminate(delete);
            }
            let made = conditional(&mut story, "b", Condition::IfAbsent);
            if !before {
                story.written(put, 1, 1);
            }
            story.written(made, node, 1);
            let refused = conditional(&mut story, "c", Condition::IfPresent);
            story.failed(refused);
            let count = check(&story.history, &[], rules()).len();
            assert_eq!(count, wrong, "put before: {before}, deleted: {deleted}");
            story.history.operations[refused.0].outcome = Outcome::Failed(NOT_MET.to_owned());
            let count = check(&story.history, &[], rules()).len();
            assert_eq!(count, wrong + usize::from(!deleted), "it was there by then");
            let apart = Rules { replicas: 4, ..rules() };
            assert_eq!(check(&story.history, &[], apart), [], "quorums need not meet");
        }
    }

    #[test]
    fn one_actor_creates_an_absent_key_only_once_unless_it_was_deleted() {
        for (deleted, second, fine) in [(false, 1, false), (true, 1, true), (false, 2, true)] {
            let mut story = Story::default();
            let first = conditional(&mut story, "a", Condition::IfAbsent);
            story.written(first, 1, 1);
            if deleted {
                let delete = story.delete(Basis::Overwrite);
                story.indeterminate(delete);
            }
            let later = conditional(&mut story, "b", Condition::IfAbsent);
            story.written(later, second, 3);
            assert_eq!(by_stampers(&story.history).is_empty(), fine, "deleted: {deleted}, by node {second}");
        }
    }

    #[test]
    fn a_write_if_current_has_seen_the_earlier_stamps_of_its_actor() {
        for (count, fine) in [(2, true), (3, false)] {
            let mut story = Story::default();
            let put = story.put_blind("a");
            let (dot, _) = story.written(put, 1, 1);
            let get = story.get();
            story.got(get, &[(dot, "a")]);
            let made = story.put("b", Basis::After(get));
            story.history.operations[made.0].condition = Condition::IfCurrent;
            story.written(made, 1, count);
            assert_eq!(by_stampers(&story.history).is_empty(), fine, "event {count}");
        }
    }
}
