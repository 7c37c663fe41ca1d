//! Invariant 3: a delete that was acknowledged stays deleted.
//!
//! A delete has replaced every version which its context covers, or, if it named none, which its answer says that its
//! coordinator knew: none of them may be there at the end, nor be read afterwards where quorums meet. A Redis DEL
//! tells neither, but it reads a quorum first: where quorums meet it has replaced all that was acknowledged before it.

use bytes::Bytes;
use model::{Value, Vector};

use super::forgotten::replaced_by;
use super::{Attribution, Rules, StoreKey, Violation, name};
use crate::history::{Action, History, Operation, OperationId, Outcome, Remains};

/// Checks what is left, and what was read, against what each delete has replaced.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let mut violations = Vec::new();
    for (place, operations) in history.by_key() {
        for &id in &operations {
            let delete = history.operation(id);
            let Some(gone) = Gone::by(history, delete) else { continue };
            let mut convict = |value: &Bytes, seen: &str| {
                let Some(put) = known.of_value(&place, value) else { return };
                if put != id && gone.includes(history, &known, put, rules) {
                    let detail =
                        format!("{}: {put:?} was deleted by {id:?}, and is back {seen}", name(&place));
                    violations.push(Violation { invariant: 3, detail });
                }
            };
            // A delete that asked for fewer acknowledgements than its store may have lost all its copies.
            let left = if rules.copies_required(delete) > 0 { remains } else { &[] };
            for held in left.iter().filter(|held| is_of(held, &place)) {
                values(held.merged().versions()).for_each(|value| convict(value, "at the end"));
            }
            let sees = |get: &Operation| delete.returned < Some(get.invoked) && rules.meet(get, delete);
            for &get in operations.iter().filter(|&&get| sees(history.operation(get))) {
                let seen = format!("in {get:?}");
                match &history.operation(get).outcome {
                    Outcome::Got(set) => values(set.versions()).for_each(|value| convict(value, &seen)),
                    Outcome::Shown(Some(value)) => convict(value, &seen),
                    _ => {}
                }
            }
        }
    }
    violations
}

/// What an acknowledged delete has replaced.
enum Gone {
    /// What this covers.
    Covered(Vector),
    /// What was acknowledged before the delete was asked.
    Before(Option<model::Moment>),
}

impl Gone {
    fn by(history: &History, delete: &Operation) -> Option<Gone> {
        match (&delete.action, &delete.outcome) {
            (Action::Delete, Outcome::Written { .. }) => replaced_by(history, delete).map(Gone::Covered),
            (Action::Delete, Outcome::Acknowledged) => Some(Gone::Before(Some(delete.invoked))),
            _ => None,
        }
    }

    fn includes(&self, history: &History, known: &Attribution, put: OperationId, rules: Rules) -> bool {
        match self {
            Gone::Covered(vector) => known.event(put).is_some_and(|(dot, _)| {
                let place = (history.operation(put).store, history.operation(put).key.clone());
                let Action::Put(value) = &history.operation(put).action else { return vector.covers(dot) };
                known.events_of(&place, value).iter().all(|&(dot, _)| vector.covers(dot))
            }),
            Gone::Before(asked) => {
                let put = history.operation(put);
                let acknowledged = matches!(put.outcome, Outcome::Acknowledged | Outcome::Written { .. });
                let seen = rules.meets(rules.reads_required, !rules.sloppy, put);
                acknowledged && seen && put.returned < *asked
            }
        }
    }
}

fn values(versions: &[model::Version]) -> impl Iterator<Item = &Bytes> {
    versions.iter().filter_map(|version| match &version.value {
        Value::Present(value) => Some(value),
        Value::Tombstone => None,
    })
}

fn is_of(held: &Remains, place: &StoreKey) -> bool {
    (held.store, &held.key) == (place.0, &place.1)
}

#[cfg(test)]
mod tests {
    use super::super::examples::{Story, rules};
    use super::super::{lost, reads};
    use super::{Rules, check};
    use crate::history::Basis;

    fn deleted() -> (Story, model::Dot) {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (dot, _) = story.written(put, 1, 1);
        let get = story.get();
        story.got(get, &[(dot, "a")]);
        let delete = story.delete(Basis::After(get));
        story.written(delete, 1, 2);
        (story, dot)
    }

    #[test]
    fn a_forgotten_deletion_with_all_that_it_covered_is_fine() {
        let (mut story, _) = deleted();
        story.collected();
        let get = story.get();
        story.got(get, &[]);
        let remains = [Story::remains(&[(1, Default::default()), (2, Default::default())])];
        assert_eq!(check(&story.history, &remains, rules()), []);
        assert_eq!(lost::check(&story.history, &remains, rules()), []);
        let (wrong, pairs) = reads::check(&story.history, &remains, rules());
        assert_eq!(wrong, []);
        assert_eq!((pairs.all, pairs.deleted), (3, 1), "one put is excused, the delete is judged");
    }

    #[test]
    fn a_deleted_value_that_is_back_is_caught_where_it_lies_and_where_it_is_read() {
        let (mut story, dot) = deleted();
        let remains = [Story::remains(&[(1, Default::default()), (2, Story::set(&[(dot, "a")], &[]))])];
        assert_eq!(check(&story.history, &remains, rules())[0].invariant, 3);
        let get = story.get();
        story.got(get, &[(dot, "a")]);
        assert_eq!(check(&story.history, &[], rules()).len(), 1);
    }

    #[test]
    fn a_delete_with_a_single_acknowledgement_may_be_lost_with_a_disk() {
        let (mut story, dot) = deleted();
        let remains = [Story::remains(&[(1, Default::default()), (2, Story::set(&[(dot, "a")], &[]))])];
        let lost = Rules { refilled: true, ..rules() };
        assert_eq!(check(&story.history, &remains, lost).len(), 1, "its W copies cannot all be lost");
        let delete = story.history.operations.len() - 1;
        story.history.operations[delete].required = 1;
        assert_eq!(check(&story.history, &remains, lost), []);
        assert_eq!(check(&story.history, &remains, rules()).len(), 1, "no disk was lost");
    }

    #[test]
    fn a_value_that_a_delete_without_a_context_says_to_have_replaced_is_caught_when_it_is_back() {
        for (covered, count) in [(true, 1), (false, 0)] {
            let mut story = Story::default();
            let put = story.put_blind("a");
            let (dot, _) = story.written(put, 1, 1);
            let delete = story.delete(Basis::Overwrite);
            story.written_over(delete, 2, 1, if covered { std::slice::from_ref(&dot) } else { &[] });
            let get = story.get();
            story.got(get, &[(dot, "a")]);
            assert_eq!(
                check(&story.history, &[], rules()).len(),
                count,
                "its coordinator knew it: {covered}"
            );
        }
    }

    #[test]
    fn what_was_acknowledged_before_a_plain_delete_was_asked_is_not_shown_after_it() {
        for (before, count) in [(true, 1), (false, 0)] {
            let mut story = Story::default();
            let put = story.put("a", Basis::Overwrite);
            if before {
                story.acknowledged(put);
            }
            let delete = story.delete(Basis::Overwrite);
            if !before {
                story.acknowledged(put);
            }
            let beside = story.get();
            story.shown(beside, Some("a"));
            story.acknowledged(delete);
            let get = story.get();
            story.shown(get, Some("a"));
            assert_eq!(check(&story.history, &[], rules()).len(), count, "put before: {before}");
            let apart = Rules { replicas: 4, ..rules() };
            assert_eq!(check(&story.history, &[], apart), []);
        }
    }

    #[test]
    fn a_write_after_the_deletion_must_still_be_there() {
        let (mut story, _) = deleted();
        let put = story.put_blind("b");
        story.written(put, 2, 1);
        story.collected();
        let remains = [Story::remains(&[(1, Default::default()), (2, Default::default())])];
        assert_eq!(lost::check(&story.history, &remains, rules()).len(), 1);
    }
}
