//! Invariant 7: with R + W > N and strict quorums a get sees every write that was acknowledged before it was asked,
//! whoever wrote it; so a client reads its own writes, and what was acknowledged never disappears from its sight.
//!
//! Of a write that is under way, or whose outcome is unknown, one get may see a trace and the next one none: read
//! repair comes after the answer. [`backwards`] counts how often; it judges nothing. Where stores promise monotonic
//! reads this must not be: every get knows all that any get knew which was answered before it was asked.

use std::collections::BTreeMap;

use model::{Dot, VersionSet};

use super::{Rules, StoreKey, Violation, deleted, name};
use crate::history::{History, Operation, OperationId, Outcome};

/// Checks every get against the writes acknowledged before it.
pub fn check(history: &History, rules: Rules) -> Vec<Violation> {
    let mut violations = Vec::new();
    if rules.reads_monotonic {
        monotonic(history, &mut violations);
    }
    if !rules.quorums_meet {
        return violations;
    }
    for (id, get) in history.all() {
        let Outcome::Got(set) = &get.outcome else { continue };
        let place = (get.store, get.key.clone());
        for (write, dot) in acknowledged_before(history, get) {
            let forgotten = |returned| deleted::may_be_forgotten(history, history.operation(write), returned);
            if !sees(set, dot) && !get.returned.is_some_and(forgotten) {
                let detail =
                    format!("{}: {id:?} misses {write:?} ({dot}), acknowledged before", name(&place));
                violations.push(Violation { invariant: 7, detail });
            }
        }
    }
    violations
}

/// Checks every get against all gets answered before it, whoever asked.
fn monotonic(history: &History, violations: &mut Vec<Violation>) {
    let mut gets: BTreeMap<StoreKey, Vec<(OperationId, &Operation, &VersionSet)>> = BTreeMap::new();
    for (id, get) in history.all() {
        if let Outcome::Got(set) = &get.outcome {
            gets.entry((get.store, get.key.clone())).or_default().push((id, get, set));
        }
    }
    for (place, gets) in &gets {
        for (id, get, set) in gets {
            if deleted::may_be_deleted(history, get) {
                continue;
            }
            let before = |(_, earlier, known): &&(OperationId, &Operation, &VersionSet)| {
                earlier.returned < Some(get.invoked) && !set.vector().descends(known.vector())
            };
            if let Some((earlier, ..)) = gets.iter().find(before) {
                let detail = format!("{}: {id:?} knows less than {earlier:?} before it", name(place));
                violations.push(Violation { invariant: 7, detail });
            }
        }
    }
}

/// Gets that know less than the get of the same client and key before them.
pub fn backwards(history: &History) -> Vec<(OperationId, OperationId)> {
    let gets = history.all().filter_map(|(id, get)| match &get.outcome {
        Outcome::Got(set) => Some((id, get, set)),
        _ => None,
    });
    gets.filter_map(|(id, get, set)| {
        let (before, earlier) = previous(history, id, get)?;
        (!set.vector().descends(earlier.vector())).then_some((before, id))
    })
    .collect()
}

fn acknowledged_before<'a>(
    history: &'a History,
    get: &'a Operation,
) -> impl Iterator<Item = (OperationId, Dot)> + 'a {
    history.all().filter_map(move |(id, write)| match &write.outcome {
        Outcome::Written { dot, sloppy: false, .. }
            if (write.store, &write.key) == (get.store, &get.key) && write.returned < Some(get.invoked) =>
        {
            Some((id, *dot))
        }
        _ => None,
    })
}

/// The last answer that the same client got for the same key before it asked.
fn previous<'a>(
    history: &'a History,
    id: OperationId,
    get: &Operation,
) -> Option<(OperationId, &'a VersionSet)> {
    let earlier = history.all().take(id.0).filter(|(_, operation)| {
        operation.client == get.client
            && (operation.store, &operation.key) == (get.store, &get.key)
            && operation.returned.is_some_and(|returned| returned < get.invoked)
    });
    earlier
        .filter_map(|(id, operation)| match &operation.outcome {
            Outcome::Got(set) => Some((id, set)),
            _ => None,
        })
        .last()
}

fn sees(set: &VersionSet, dot: Dot) -> bool {
    set.vector().covers(dot) && !set.versions().is_empty()
}

#[cfg(test)]
mod tests {
    use super::super::Rules;
    use super::super::examples::{Story, rules};
    use super::{backwards, check};

    #[test]
    fn a_get_that_sees_what_was_acknowledged_is_fine() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (dot, _) = story.written(put, 1, 1);
        let get = story.get();
        story.got(get, &[(dot, "a")]);
        assert_eq!(check(&story.history, rules()), []);
    }

    #[test]
    fn a_get_beside_the_write_may_miss_it() {
        let mut story = Story::default();
        let (put, get) = (story.put_blind("a"), story.get());
        story.got(get, &[]);
        story.written(put, 1, 1);
        assert_eq!(check(&story.history, rules()), []);
    }

    #[test]
    fn a_get_that_misses_an_acknowledged_write_is_caught() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        story.written(put, 1, 1);
        let get = story.get();
        story.got(get, &[]);
        assert!(check(&story.history, rules())[0].detail.contains("misses"));
    }

    #[test]
    fn reads_that_go_backwards_over_an_unacknowledged_write_are_counted() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let first = story.get();
        story.got(first, &[(Story::dot(1, 1), "a")]);
        let second = story.get();
        story.got(second, &[]);
        story.indeterminate(put);
        assert_eq!(backwards(&story.history), [(first, second)]);
        assert_eq!(check(&story.history, rules()), [], "but nothing was promised");
        let rules = Rules { reads_monotonic: true, ..rules() };
        assert!(check(&story.history, rules)[0].detail.contains("knows less"));
    }

    #[test]
    fn gets_at_the_same_time_may_know_what_they_like_also_where_reads_are_monotonic() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (first, second) = (story.get(), story.get());
        story.got(first, &[(Story::dot(1, 1), "a")]);
        story.got(second, &[]);
        story.indeterminate(put);
        assert_eq!(check(&story.history, Rules { reads_monotonic: true, ..rules() }), []);
    }
}
