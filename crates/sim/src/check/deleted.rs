//! Invariant 3: a delete that was acknowledged stays deleted.
//!
//! A delete has replaced every version which its context covers, or, if it named none, which its answer says that its
//! coordinator knew: none of them may be there at the end, nor be read afterwards where quorums meet. A Redis DEL
//! tells neither, but it reads a quorum first: where quorums meet it has replaced all that was acknowledged before it.
//! Where it may have found no quorum to read from, it has deleted what its coordinator knew.

use std::collections::BTreeMap;

use bytes::Bytes;
use model::{Dot, Moment, Value, Vector};

use super::forgotten::replaced_by;
use super::owing::Owing;
use super::{Attribution, Rules, StoreKey, Violation, name};
use crate::history::{Action, History, OperationId, Outcome, Remains};

/// Checks what is left, and what was read, against what each delete has replaced.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let owing = Owing::new(history, &known, rules);
    let mut violations = Vec::new();
    for (place, operations) in history.by_key() {
        let puts = sightings(history, &known, remains, &place, &operations);
        for &id in &operations {
            let delete = history.operation(id);
            let Some(gone) = Gone::by(history, &owing, id) else { continue };
            // A delete that asked for fewer acknowledgements than its store may have lost all its copies.
            let is_kept = rules.copies_required(delete, true) > 0;
            let back = |(put, shown): (&OperationId, &Sightings)| {
                if *put == id || !gone.includes(history, *put, shown, (rules, &owing)) {
                    return None;
                }
                let sees = |get: &&OperationId| {
                    let leans = owing.may_lean(**get) || owing.may_lean(id);
                    let get = history.operation(**get);
                    let answered = get.returned.expect("it has shown something");
                    !leans && rules.between(history, delete.invoked, answered).meet(get, delete)
                };
                let got = shown.after(history, delete.returned).iter().find(sees);
                let seen = match got {
                    Some(get) => format!("in {get:?}"),
                    None if is_kept && shown.at_the_end => "at the end".to_owned(),
                    None => return None,
                };
                Some((id, format!("{}: {put:?} was deleted by {id:?}, and is back {seen}", name(&place))))
            };
            violations.extend(puts.iter().filter_map(back));
        }
    }
    let violation = |(id, detail)| Violation { invariant: 3, about: Some(id), detail };
    violations.into_iter().map(violation).collect()
}

/// Where a put was seen. By put, because thousands of deletes of a key meet thousands of gets.
#[derive(Default)]
struct Sightings {
    /// All events that its value is; empty when none is known.
    events: Vec<Dot>,
    /// Gets that have shown it, the earliest first.
    gets: Vec<OperationId>,
    at_the_end: bool,
}

impl Sightings {
    /// The gets that were asked later than this.
    fn after(&self, history: &History, moment: Option<Moment>) -> &[OperationId] {
        &self.gets[self.gets.partition_point(|&get| moment >= Some(history.operation(get).invoked))..]
    }
}

/// Where each put of a key was seen.
fn sightings(
    history: &History,
    known: &Attribution,
    remains: &[Remains],
    place: &StoreKey,
    operations: &[OperationId],
) -> BTreeMap<OperationId, Sightings> {
    let mut puts: BTreeMap<OperationId, Sightings> = BTreeMap::new();
    let mut gets = operations.to_vec();
    gets.sort_by_key(|&get| history.operation(get).invoked);
    for get in gets {
        let shown: Vec<&Bytes> = match &history.operation(get).outcome {
            Outcome::Got(set) => values(set.versions()).collect(),
            Outcome::Shown(shown) => shown.iter().collect(),
            _ => continue,
        };
        for put in shown.into_iter().filter_map(|value| known.of_value(place, value)) {
            puts.entry(put).or_default().gets.push(get);
        }
    }
    for held in remains.iter().filter(|held| is_of(held, place)) {
        for put in values(held.merged().versions()).filter_map(|value| known.of_value(place, value)) {
            puts.entry(put).or_default().at_the_end = true;
        }
    }
    for (&put, shown) in &mut puts {
        let Some((dot, _)) = known.event(put) else { continue };
        shown.events = match &history.operation(put).action {
            Action::Put(value) => known.events_of(place, value).into_iter().map(|(dot, _)| dot).collect(),
            _ => vec![dot],
        };
    }
    puts
}

/// What an acknowledged delete has replaced.
enum Gone {
    /// What this covers.
    Covered(Vector),
    /// What was acknowledged before the delete was asked.
    Before {
        /// When it was asked.
        asked: Moment,
        /// When it was acknowledged.
        told: Moment,
    },
}

impl Gone {
    fn by(history: &History, owing: &Owing<'_>, id: OperationId) -> Option<Gone> {
        let delete = history.operation(id);
        match (&delete.action, &delete.outcome) {
            (Action::Delete, Outcome::Written { .. }) => replaced_by(history, delete).map(Gone::Covered),
            (Action::Delete, Outcome::Acknowledged) if !owing.may_be_unread(id) => {
                Some(Gone::Before { asked: delete.invoked, told: delete.returned? })
            }
            _ => None,
        }
    }

    fn includes(
        &self,
        history: &History,
        id: OperationId,
        shown: &Sightings,
        (rules, owing): (Rules, &Owing<'_>),
    ) -> bool {
        match self {
            Gone::Covered(vector) => {
                !shown.events.is_empty() && shown.events.iter().all(|&dot| vector.covers(dot))
            }
            Gone::Before { asked, told } => {
                let put = history.operation(id);
                let acknowledged = matches!(put.outcome, Outcome::Acknowledged | Outcome::Written { .. });
                let rules = rules.between(history, put.invoked, *told);
                let seen = rules.meets(rules.reads_required, put);
                acknowledged && seen && put.returned < Some(*asked) && !owing.may_lean(id)
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
    fn a_deletion_forgotten_together_with_all_it_covered_is_fine() {
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
    fn a_deleted_value_that_comes_back_is_caught_on_disk_and_in_a_get() {
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
    fn a_value_that_a_blind_delete_claims_to_have_replaced_is_caught_if_it_comes_back() {
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
    fn a_value_acknowledged_before_a_plain_delete_is_not_shown_after_it() {
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
