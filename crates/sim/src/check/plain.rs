//! Invariant 1 for plain clients, which hear *done* and see one value or none: what was acknowledged is held at the
//! end, or something that replaced it is. What they see is judged with all other reads: [`super::reads`].

use model::{Moment, VersionSet};

use super::durable::{self, DurableEvent};
use super::forgotten::Forgetting;
use super::owing::Owing;
use super::{Attribution, Rules, StoreKey, Violation, name};
use crate::history::{Action, History, Operation, Outcome, Remains};

/// By now everything has expired that ever will.
const THE_END: Moment = Moment { nanos: u64::MAX };

/// Checks what plain clients were told against what is left.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let forgetting = Forgetting::new(history, &known, rules.reaped_after);
    let owing = Owing::new(history, &known, rules);
    let mut violations = Vec::new();
    for held in remains {
        kept(history, held, (&known, &forgetting, &owing), rules, &mut violations);
    }
    violations
}

/// Every acknowledged put, and every deletion whose event is known, is there at the end, or something is that replaced it.
fn kept(
    history: &History,
    held: &Remains,
    (known, forgetting, owing): (&Attribution, &Forgetting<'_>, &Owing<'_>),
    rules: Rules,
    violations: &mut Vec<Violation>,
) {
    let place: StoreKey = (held.store, held.key.clone());
    let merged = held.merged();
    for (id, put) in
        history.all().filter(|(_, put)| is_at(put, &place) && put.outcome == Outcome::Acknowledged)
    {
        let nameless = put.action == Action::Delete && known.event(id).is_none();
        if nameless || forgetting.is_taken(id, THE_END) {
            continue;
        }
        // Without a name for its event, all that is known is that the key cannot be empty.
        let holds = |set: &VersionSet| match known.event(id) {
            Some((dot, timestamp)) => durable::holds(place.0, set, DurableEvent { dot, timestamp }),
            None => !set.versions().is_empty(),
        };
        let copies = held.replicas.iter().filter(|(node, _)| holds(&held.of_replica(*node))).count();
        let copies_required = rules.copies_required(put, rules.hints_lost && owing.may_lean(id));
        if copies < copies_required || !holds(&merged) {
            let detail = format!(
                "{}: {id:?} was acknowledged, but {copies} replicas hold it or what replaced it, {copies_required} must",
                name(&place)
            );
            violations.push(Violation { invariant: 1, about: Some(id), detail });
        }
    }
}

fn is_at(operation: &Operation, place: &StoreKey) -> bool {
    (operation.store, &operation.key) == (place.0, &place.1)
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
    fn w_replicas_hold_an_acknowledged_put_or_a_later_one() {
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
    fn an_acknowledged_put_that_a_delete_may_have_covered_may_be_gone() {
        let mut story = Story::default();
        let put = story.put("a", Basis::Overwrite);
        story.acknowledged(put);
        let delete = story.delete(Basis::Overwrite);
        story.indeterminate(delete);
        assert_eq!(lost(&story, &[(1, Default::default())]), 1, "no round has forgotten anything");
        story.collected();
        assert_eq!(lost(&story, &[(1, Default::default())]), 0);
    }
}
