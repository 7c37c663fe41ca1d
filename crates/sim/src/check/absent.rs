//! Invariant 11: that a key is absent is said only where R of its replicas have looked, and held nothing that lives.
//!
//! Each answer that depends on absence is judged: *not found* of gets, nil, DEL and EXPIRE that count nothing, and
//! conditions that were decided because the key was absent. While it was under way, R distinct replicas, of one set by
//! which the request may have gone, must have read their own records and found nothing that lives there. A node that
//! lost something that lived with its disk, and does not have it back, has found nothing.
//!
//! A replica that still holds what another one of them knows to be deleted has said so, too: answers are merged.
//!
//! What lives by some clocks and has expired by others counts as expired. Walks are not judged: the clients of a run
//! choose the replicas of their walks themselves.
//!
//! What only hints hold may be called absent: R replicas have said so. [`Absences`] counts how often.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use model::{Moment, NodeId, Resolver, VersionSet};
use wire::messages::Condition;

use super::owing::shows_nothing;
use super::{Rules, Violation, name, siblings};
use crate::circumstances::ReplicaSet;
use crate::history::{
    Action, History, NOT_MET, NOTHING_TO_CHANGE, NOTHING_TO_DELETE, Operation, OperationId, Outcome,
};
use crate::looks::{Look, lives};

/// What a refusal says of a key that has no value.
const DOES_NOT_EXIST: &str = "the key does not exist";

/// How many answers depended on absence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absences {
    /// All of them.
    pub all: u64,
    /// Of those, excused: hints held something that lives throughout, and R replicas did not.
    pub hinted: u64,
}

impl AddAssign for Absences {
    fn add_assign(&mut self, other: Absences) {
        self.all += other.all;
        self.hinted += other.hinted;
    }
}

/// Checks each answer that depends on absence; and how many there were.
pub fn check(history: &History, rules: Rules) -> (Vec<Violation>, Absences) {
    let (mut violations, mut absences) = (Vec::new(), Absences::default());
    for (id, operation) in history.all() {
        let (Some(what), Some(returned)) = (claim(history, id, operation), operation.returned) else {
            continue;
        };
        let within = (operation.invoked, returned);
        let sets = history.circumstances.replica_sets(operation.place(), within.0, within.1);
        if sets.is_empty() {
            continue;
        }
        absences.all += 1;
        match shortfall(history, operation, &sets, rules, within) {
            None => {
                let seen = history.looks.of(operation.store, &operation.key);
                absences.hinted += u64::from(seen.is_some_and(|seen| seen.is_hinted(within.0, within.1)));
            }
            Some(why) => {
                let place = name(&(operation.store, operation.key.clone()));
                let detail = format!("{place}: {id:?} of c{} {what}, but {why}", operation.client);
                violations.push(Violation { invariant: 11, about: None, detail });
            }
        }
    }
    (violations, absences)
}

/// What an answer says that holds only if the key is absent.
fn claim(history: &History, id: OperationId, operation: &Operation) -> Option<&'static str> {
    let made = matches!(operation.outcome, Outcome::Written { .. } | Outcome::Acknowledged);
    let reason = match &operation.outcome {
        Outcome::Failed(reason) => reason.as_str(),
        _ => "",
    };
    match (&operation.action, operation.condition) {
        (Action::Get, _) if operation.walked => None,
        (Action::Get, _) => shows_nothing(operation).then_some("found nothing"),
        (Action::Delete, Condition::None) => (reason == NOTHING_TO_DELETE).then_some("had nothing to delete"),
        // With a condition, or told to let it live for ever, it says the same of a key that is there.
        (Action::Touch { ends: true }, _) if !history.lifetimes.contains_key(&id) => {
            (reason == NOTHING_TO_CHANGE).then_some("had nothing to change")
        }
        (_, Condition::IfAbsent) => made.then_some("was made because the key is absent"),
        (_, Condition::IfPresent) => (reason == NOT_MET || reason.contains(DOES_NOT_EXIST))
            .then_some("was refused because the key is absent"),
        _ => None,
    }
}

/// Why the replicas cannot have said so; `None` where as many as had to may have.
fn shortfall(
    history: &History,
    operation: &Operation,
    sets: &[ReplicaSet],
    rules: Rules,
    (from, to): (Moment, Moment),
) -> Option<String> {
    let looks =
        history.looks.of(operation.store, &operation.key).map_or(&[][..], |seen| seen.between(from, to));
    // Who stamps a write reads as it writes.
    let counts = operation.condition != Condition::None;
    let knows = |look: &&Look| !look.lost && (look.reads || counts);
    let of = |set: &ReplicaSet| -> Vec<&Look> {
        looks.iter().filter(knows).filter(|look| set.nodes.contains(&look.node)).collect()
    };
    let empty = |set: &ReplicaSet| -> BTreeSet<NodeId> {
        of(set).into_iter().filter(|look| !look.lives).map(|look| look.node).collect()
    };
    let required = |set: &ReplicaSet| match (rules.numbers_change, &operation.action) {
        (true, _) => set.reads_required,
        (false, Action::Get) => usize::from(operation.required),
        (false, _) => rules.reads_required,
    };
    // Most often they hold nothing; only then is it asked what one of them knows of the others.
    let is_enough = |set: &&ReplicaSet, nodes: &BTreeSet<NodeId>| nodes.len() >= required(set);
    if sets.iter().any(|set| is_enough(&set, &empty(set))) {
        return None;
    }
    let with_gone = |set: &ReplicaSet| {
        let mut nodes = empty(set);
        nodes.extend(Gone::of(history, operation, &of(set), to).hiding(&of(set), to));
        nodes
    };
    if sets.iter().any(|set| is_enough(&set, &with_gone(set))) {
        return None;
    }
    let set = sets.last().expect("there is one");
    let without = with_gone(set);
    let with: BTreeSet<NodeId> =
        of(set).into_iter().filter(|look| look.lives).map(|look| look.node).collect();
    let others: BTreeSet<NodeId> =
        looks.iter().map(|look| look.node).filter(|node| !set.nodes.contains(node)).collect();
    Some(format!(
        "of its replicas {:?} only {without:?} looked and held nothing that lives, {} must; {with:?} held something, and \
         {others:?} are no replicas",
        set.nodes,
        required(set),
    ))
}

/// What was known to be gone.
struct Gone {
    store: &'static str,
    known: VersionSet,
}

impl Gone {
    /// By these readings of replicas, and by hints.
    fn of(history: &History, operation: &Operation, looks: &[&Look], by: Moment) -> Gone {
        let mut gone = Gone { store: operation.store, known: VersionSet::default() };
        for set in looks.iter().filter(|look| !look.lives).filter_map(|look| look.held.as_deref()) {
            if !gone.known.includes(set) {
                gone.known.merge(set);
            }
        }
        let seen = history.looks.of(operation.store, &operation.key);
        seen.and_then(|seen| seen.dead_hints(by)).into_iter().for_each(|set| gone.known.merge(set));
        gone
    }

    /// The nodes of which nothing lives that they held, once that is known.
    fn hiding(&self, looks: &[&Look], now: Moment) -> BTreeSet<NodeId> {
        let mut hidden = BTreeSet::new();
        let mut last: BTreeMap<NodeId, &VersionSet> = BTreeMap::new();
        for look in looks.iter().filter(|look| look.lives) {
            let Some(held) = look.held.as_deref() else { continue };
            let again = last.insert(look.node, held).is_some_and(|before| std::ptr::eq(before, held));
            if !again && !hidden.contains(&look.node) && self.hides(held, now) {
                hidden.insert(look.node);
            }
        }
        hidden
    }

    fn hides(&self, held: &VersionSet, now: Moment) -> bool {
        let mut merged = held.clone();
        merged.merge(&self.known);
        if self.store != siblings::STORE {
            merged.resolve(Resolver::LastWriteWins);
        }
        !lives(&merged, now)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::examples::{Story, rules};
    use super::*;

    /// A get that three replicas and a fallback may have answered; who looked, and whether something lives there.
    fn judged(looks: &[(u32, bool)]) -> (usize, Absences) {
        let mut story = Story::with_replicas(&[1, 2, 3]);
        let get = story.get();
        look(&mut story, looks);
        story.got(get, &[]);
        let (found, absences) = check(&story.history, rules());
        (found.len(), absences)
    }

    fn look(story: &mut Story, looks: &[(u32, bool)]) {
        let (store, key, now) = (story.store, Bytes::from("k"), story.tick());
        let set = |_: &Bytes| Some(Story::set(&[(Story::dot(1, 1), "a")], &[]));
        for &(node, lives) in looks {
            let record = Bytes::from("any");
            let record = lives.then_some(&record);
            story.history.looks.of_mut(store, &key).look(NodeId(node), record, (true, now), set);
        }
    }

    #[test]
    fn a_key_is_absent_when_r_replicas_have_looked_and_hold_nothing() {
        assert_eq!(judged(&[(1, false), (2, false)]).0, 0);
        assert_eq!(judged(&[(1, false), (2, false), (3, true)]).0, 0, "the third may be asked or not");
        assert_eq!(judged(&[(1, false)]).0, 1);
        assert_eq!(judged(&[(1, false), (1, false)]).0, 1, "one node is one replica");
        assert_eq!(judged(&[(1, false), (4, false)]).0, 1, "a fallback that holds nothing has said nothing");
        assert_eq!(judged(&[(1, false), (2, true)]).0, 1);
        assert_eq!(judged(&[]).0, 1, "nobody looked");
    }

    #[test]
    fn absence_is_proved_by_an_empty_replica_and_one_that_holds_the_covering_deletion() {
        for (covered, wrong) in [(true, 0), (false, 1)] {
            let mut story = Story::with_replicas(&[1, 2, 3]);
            let get = story.get();
            look(&mut story, &[(1, true)]);
            let (store, key, now) = (story.store, Bytes::from("k"), story.tick());
            let dots = if covered { vec![Story::dot(1, 1)] } else { Vec::new() };
            let dead = |_: &Bytes| Some(Story::set(&[], &dots));
            let record = Bytes::from("any");
            story.history.looks.of_mut(store, &key).look(NodeId(2), Some(&record), (true, now), dead);
            story.got(get, &[]);
            assert_eq!(check(&story.history, rules()).0.len(), wrong, "the deletion covers it: {covered}");
        }
    }

    #[test]
    fn looks_before_a_get_or_after_its_answer_prove_nothing() {
        let mut story = Story::with_replicas(&[1, 2, 3]);
        look(&mut story, &[(1, false), (2, false)]);
        let get = story.get();
        story.got(get, &[]);
        look(&mut story, &[(1, false), (2, false)]);
        assert_eq!(check(&story.history, rules()).0.len(), 1);
    }

    #[test]
    fn a_value_that_only_a_hint_holds_is_excused_and_counted() {
        let set = Story::set(&[(Story::dot(1, 1), "a")], &[]);
        let mut story = Story::with_replicas(&[1, 2, 3]);
        let now = story.tick();
        let (store, key) = (story.store, Bytes::from("k"));
        story.history.looks.of_mut(store, &key).park(NodeId(4), NodeId(1), Some(&set), now);
        let get = story.get();
        look(&mut story, &[(1, false), (2, false)]);
        story.got(get, &[]);
        assert_eq!(check(&story.history, rules()), (Vec::new(), Absences { all: 1, hinted: 1 }));
    }

    #[test]
    fn each_answer_that_depends_on_absence_is_judged() {
        let claims = |action: Action, condition: Condition, outcome: Outcome| {
            let mut story = Story::with_replicas(&[1, 2, 3]);
            let id = story.put_blind("a");
            story.acknowledged(id);
            let operation = &mut story.history.operations[id.0];
            (operation.action, operation.condition, operation.outcome) = (action, condition, outcome);
            check(&story.history, rules()).1.all
        };
        let failed = |reason: &str| Outcome::Failed(reason.to_owned());
        let put = || Action::Put("a".into());
        assert_eq!(claims(Action::Get, Condition::None, Outcome::Shown(None)), 1);
        assert_eq!(claims(Action::Get, Condition::None, Outcome::Shown(Some("a".into()))), 0);
        assert_eq!(claims(Action::Delete, Condition::None, failed(NOTHING_TO_DELETE)), 1);
        assert_eq!(claims(Action::Delete, Condition::None, failed("no")), 0);
        assert_eq!(claims(Action::Touch { ends: true }, Condition::None, failed(NOTHING_TO_CHANGE)), 1);
        assert_eq!(claims(Action::Touch { ends: false }, Condition::None, failed(NOTHING_TO_CHANGE)), 0);
        assert_eq!(claims(put(), Condition::IfAbsent, Outcome::Acknowledged), 1);
        assert_eq!(claims(put(), Condition::IfAbsent, failed(NOT_MET)), 0);
        assert_eq!(claims(put(), Condition::IfPresent, failed(NOT_MET)), 1);
        assert_eq!(claims(put(), Condition::IfPresent, Outcome::Acknowledged), 0);
        assert_eq!(claims(put(), Condition::None, Outcome::Acknowledged), 0);
    }
}
