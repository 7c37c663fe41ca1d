//! Invariant 1: an acknowledged write is never lost.
//!
//! At the end every acknowledged write is held, or something that replaced it is, by as many replicas as the
//! acknowledgement promised (a hint counts for the replica that it will be delivered to); by one, where the run's
//! faults may have taken copies away. A write that a deletion may have taken along is let go: see [`super::forgotten`].

use model::{Moment, VersionSet};

use super::durable::{self, DurableEvent};
use super::forgotten::Forgetting;
use super::owing::Owing;
use super::{Attribution, Rules, Violation, name};
use crate::history::{History, Outcome, Remains};

/// By now everything has expired that ever will.
const THE_END: Moment = Moment { nanos: u64::MAX };

/// Checks what the nodes hold against what clients were told.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let forgetting = Forgetting::new(history, &known, rules.reaped_after);
    let owing = Owing::new(history, &known, rules);
    let mut violations = Vec::new();
    for (id, operation) in history.all() {
        let Outcome::Written { dot, .. } = operation.outcome else { continue };
        let (_, timestamp) = known.event(id).expect("its answer names the event");
        let holds = |set: &VersionSet| durable::holds(operation.store, set, DurableEvent { dot, timestamp });
        if forgetting.is_taken(id, THE_END) {
            continue;
        }
        let Some(held) =
            remains.iter().find(|held| held.store == operation.store && held.key == operation.key)
        else {
            continue;
        };
        let place = (operation.store, operation.key.clone());
        let copies = held.replicas.iter().filter(|(node, _)| holds(&held.of_replica(*node))).count();
        let required = rules.copies_required(operation, rules.hints_lost && owing.may_lean(id));
        if copies < required {
            let detail = format!(
                "{}: {id:?} ({dot}) was acknowledged, but {copies} replicas hold it, {required} must",
                name(&place)
            );
            violations.push(Violation { invariant: 1, about: Some(id), detail });
        } else if required > 0 && !holds(&held.merged()) {
            let detail = format!("{}: {id:?} ({dot}) is lost as soon as the replicas merge", name(&place));
            violations.push(Violation { invariant: 1, about: Some(id), detail });
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::examples::{Story, rules};
    use super::{Rules, check};

    #[test]
    fn a_write_on_w_replicas_or_in_a_hint_for_one_is_not_lost() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (dot, _) = story.written(put, 1, 1);
        let held = Story::set(&[(dot, "a")], &[]);
        let mut remains = Story::remains(&[(1, held.clone()), (2, held.clone()), (3, Default::default())]);
        assert_eq!(check(&story.history, std::slice::from_ref(&remains), rules()), []);
        remains.replicas[1].1 = Default::default();
        remains.hints.push((model::NodeId(4), model::NodeId(3), held));
        assert_eq!(check(&story.history, &[remains], rules()), []);
    }

    #[test]
    fn a_write_that_too_few_hold_is_caught() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (dot, _) = story.written(put, 1, 1);
        let held = Story::set(&[(dot, "a")], &[]);
        let remains = Story::remains(&[(1, held), (2, Default::default()), (3, Default::default())]);
        assert_eq!(check(&story.history, std::slice::from_ref(&remains), rules()).len(), 1);
        let lenient = Rules { copies_kept: false, ..rules() };
        assert_eq!(check(&story.history, &[remains], lenient), [], "one copy is enough after losses");
    }

    #[test]
    fn an_older_value_under_a_later_vector_is_not_a_copy_where_the_last_write_wins() {
        let mut story = Story { store: "default", ..Story::default() };
        let (older, newer) = (story.put_blind("a"), story.put_blind("b"));
        let old = story.stamped(older, 1, 1);
        let new = story.stamped(newer, 2, 6);
        let stale = Story::set(&[(old, "a")], &[new]);
        let both = [(1, stale.clone()), (2, stale)];
        let remains = crate::history::Remains { store: "default", ..Story::remains(&both) };
        let wrong = check(&story.history, &[remains], rules());
        assert!(wrong[0].detail.contains(&format!("{newer:?} ({new}) was acknowledged, but 0")), "{wrong:?}");
    }

    /// Seed 15754 of 2026-11-28: a disk was lost with a hint on it, in a run in which nobody compares.
    #[test]
    fn a_write_whose_hint_was_lost_with_a_disk_needs_one_copy_where_nobody_compares() {
        for (hints_lost, sloppy, copies, fine) in
            [(true, true, 1, true), (true, true, 0, false), (true, false, 1, false), (false, true, 1, false)]
        {
            let mut story = Story::default();
            let put = story.put_blind("a");
            // Long enough for a fallback to have been asked.
            story.now.nanos += 100_000_000;
            let (dot, _) = story.written(put, 1, 1);
            let operation = &mut story.history.operations[put.0];
            operation.strict = false;
            if let crate::history::Outcome::Written { sloppy: told, .. } = &mut operation.outcome {
                *told = sloppy;
            }
            let held = [Story::set(&[(dot, "a")], &[]), Default::default()];
            let remains = Story::remains(&[(1, held[1 - copies].clone()), (2, Default::default())]);
            let rules = Rules { refilled: true, hints_lost, ..rules() };
            assert_eq!(
                check(&story.history, &[remains], rules).is_empty(),
                fine,
                "{hints_lost} {sloppy} {copies}"
            );
        }
    }

    #[test]
    fn a_write_that_a_merge_would_drop_is_caught() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (dot, _) = story.written(put, 1, 1);
        let held = Story::set(&[(dot, "a")], &[]);
        let empty = Story::set(&[], &[dot]);
        let remains = Story::remains(&[(1, held.clone()), (2, held), (3, empty)]);
        assert!(check(&story.history, &[remains], rules())[0].detail.contains("merge"));
    }
}
