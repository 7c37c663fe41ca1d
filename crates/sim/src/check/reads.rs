//! Invariant 7: with R + W > N and strict quorums a get sees every write that was acknowledged before it was asked,
//! whoever wrote it; so a client reads its own writes, and what was acknowledged never disappears from its sight.
//!
//! Each pair of a get and a write acknowledged before it is judged by what the get demands of it ([`Demand`]), or
//! excused for a stated reason ([`Excuse`]). The demand is made out without a look at the answer, and [`Pairs`] counts
//! how many pairs were excused, so that the judge cannot grow lenient unseen.
//!
//! Of a write that is under way, or whose outcome is unknown, one get may see a trace and the next one none: read
//! repair comes after the answer. [`backwards`] counts how often; it judges nothing. Where stores promise monotonic
//! reads this must not be: every get knows all that any get knew which was answered before it was asked.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use bytes::Bytes;
use model::{Moment, Vector, VersionSet};

use super::durable::{self, DurableEvent};
use super::forgotten::{Forgetting, replaced_by};
use super::owing::Owing;
use super::{Attribution, Rules, StoreKey, Violation, name, siblings};
use crate::history::{Action, History, Operation, OperationId, Outcome, Remains};

/// Largest part of the pairs, in a thousand, that may be excused where quorums meet: 315 were, before the judge knew of
/// collection rounds.
pub const EXCUSED_PER_MILLE_MAX: u64 = 100;
/// Largest part of a seed's pairs, in a thousand and on average of the seeds, that may be promised nothing: 333 were, of
/// seeds 1 to 200 and a hundred others.
pub const UNPROMISED_PER_MILLE_MAX: u64 = 400;

/// Pairs of a get and a write that was acknowledged before it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Where their quorums meet, and no fault that takes copies for good struck between the two: all of them.
    pub all: u64,
    /// Of those, excused because a deletion may have taken the write along, or hide it.
    pub deleted: u64,
    /// Of those, excused because nobody saw the event or the value, so nothing orders the two.
    pub nameless: u64,
    /// Those to which nothing is promised: quorums that need not meet, and faults that took copies for good.
    pub unpromised: u64,
    /// Those that fallbacks may have kept apart: of the get or of the write, where the simulator knows a reason.
    pub leaning: u64,
}

impl Pairs {
    /// Pairs that nobody judged although quorums meet, in a thousand.
    pub fn excused_per_mille(&self) -> u64 {
        ((self.deleted + self.nameless) * 1000).checked_div(self.all).unwrap_or(0)
    }

    /// Pairs to which nothing is promised, in a thousand of all.
    pub fn unpromised_per_mille(&self) -> u64 {
        let nothing = self.unpromised + self.leaning;
        (nothing * 1000).checked_div(self.all + nothing).unwrap_or(0)
    }

    /// Whether too many were excused for the judge to be one.
    pub fn is_lenient(&self) -> bool {
        self.excused_per_mille() > EXCUSED_PER_MILLE_MAX
    }
}

impl AddAssign for Pairs {
    fn add_assign(&mut self, other: Pairs) {
        self.all += other.all;
        self.deleted += other.deleted;
        self.nameless += other.nameless;
        self.unpromised += other.unpromised;
        self.leaning += other.leaning;
    }
}

/// What an answer must be for the sake of one write.
enum Demand {
    /// It holds the event, or what replaced it.
    Holds(DurableEvent),
    /// It is not empty.
    Something,
    /// It is not a value that the write had replaced, nor one that the write outranks.
    NothingOlder(DurableEvent),
    /// Nothing of what the deletion replaced; [`super::deleted`] sees to it.
    Undone,
}

/// Why a pair is not judged.
enum Excuse {
    Deleted,
    Nameless,
}

/// Checks every get against the writes acknowledged before it, and counts the pairs.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> (Vec<Violation>, Pairs) {
    let known = Attribution::new(history, remains);
    let forgetting = Forgetting::new(history, &known, rules.reaped_after);
    let (mut violations, mut pairs) = (Vec::new(), Pairs::default());
    if rules.reads_monotonic {
        monotonic(history, &forgetting, rules, &mut violations);
    }
    let owing = Owing::new(history, &known, rules);
    let judge = Judge { history, known: &known, forgetting, owing, rules };
    for (place, operations) in history.by_key() {
        let mut writes: Vec<OperationId> =
            operations.iter().copied().filter(|&id| is_acknowledged(history.operation(id))).collect();
        writes.sort_by_key(|&id| history.operation(id).returned);
        for &get in &operations {
            let Some(answer) = judge.answer(&place, get) else { continue };
            let asked = Some(answer.operation.invoked);
            let before = writes.partition_point(|&write| history.operation(write).returned < asked);
            for &write in &writes[..before] {
                if !judge.meets(&answer, history.operation(write)) {
                    pairs.unpromised += 1;
                    continue;
                }
                if judge.owing.may_lean(get) || judge.owing.may_lean(write) {
                    pairs.leaning += 1;
                    continue;
                }
                let demand = judge.demand(&answer, write);
                pairs.all += 1;
                match demand {
                    Err(Excuse::Deleted) => pairs.deleted += 1,
                    Err(Excuse::Nameless) => pairs.nameless += 1,
                    Ok(demand) => {
                        let missed = judge.missed(&place, &answer, write, demand);
                        violations.extend(missed.map(|missed| Violation {
                            invariant: 7,
                            about: Some(write),
                            detail: format!("{}: {get:?} {missed}", name(&place)),
                        }));
                    }
                }
            }
        }
    }
    (violations, pairs)
}

struct Judge<'a> {
    history: &'a History,
    known: &'a Attribution,
    forgetting: Forgetting<'a>,
    owing: Owing<'a>,
    rules: Rules,
}

/// What one get was answered: thousands of writes are judged by it.
struct Answer<'a> {
    operation: &'a Operation,
    at: Moment,
    /// The put whose value a plain client was shown, and the latest event that this value is.
    shown: Option<(OperationId, Option<DurableEvent>)>,
}

impl<'a> Judge<'a> {
    /// What the operation was answered, if it is a get that was.
    fn answer(&self, place: &StoreKey, get: OperationId) -> Option<Answer<'a>> {
        let operation = self.history.operation(get);
        let shown = match &operation.outcome {
            Outcome::Got(_) | Outcome::Shown(None) => None,
            Outcome::Shown(Some(value)) => self.known.of_value(place, value).map(|put| {
                let events = self.known.events_of(place, value).into_iter();
                let latest = events.max_by_key(|&(dot, timestamp)| (timestamp, dot));
                (put, latest.map(|(dot, timestamp)| DurableEvent { dot, timestamp }))
            }),
            _ => return None,
        };
        Some(Answer { operation, at: operation.returned.expect("it was answered"), shown })
    }

    /// Whether the answer owes anything to the write's acknowledgement. Where faults take copies for good, it does as
    /// long as none struck between the two.
    fn meets(&self, answer: &Answer<'_>, write: &Operation) -> bool {
        let rules = self.rules.between(self.history, write.invoked, answer.at);
        rules.meet(answer.operation, write)
    }

    /// What the get's answer owes to the write.
    fn demand(&self, answer: &Answer<'_>, write: OperationId) -> Result<Demand, Excuse> {
        let written = self.history.operation(write);
        let event = self.known.event(write).map(|(dot, timestamp)| DurableEvent { dot, timestamp });
        let is_forgotten = || self.forgetting.is_taken(write, answer.at);
        let deletes = written.action == Action::Delete;
        let plain = written.outcome == Outcome::Acknowledged;
        let undoes = || deletes && (plain || replaces(self.history, written).is_some());
        match (&answer.operation.outcome, event) {
            (Outcome::Got(_), Some(event)) if !is_forgotten() => Ok(Demand::Holds(event)),
            (Outcome::Shown(Some(_)), Some(_)) if deletes && (plain || written.store != siblings::STORE) => {
                Ok(self.demand_of_shown(answer, write, event).unwrap_or(Demand::Undone))
            }
            _ if undoes() => Ok(Demand::Undone),
            _ if deletes => Err(Excuse::Deleted),
            (Outcome::Got(_), Some(_)) => Err(Excuse::Deleted),
            (Outcome::Got(_), None) if is_forgotten() => Err(Excuse::Deleted),
            (Outcome::Got(_), None) => Ok(Demand::Something),
            (Outcome::Shown(None), _) if self.forgetting.may_be_hidden(write, answer.at) => {
                Err(Excuse::Deleted)
            }
            (Outcome::Shown(None), _) => Ok(Demand::Something),
            (Outcome::Shown(Some(_)), _) => self.demand_of_shown(answer, write, event),
            _ => unreachable!("only answered gets are judged"),
        }
    }

    fn demand_of_shown(
        &self,
        answer: &Answer<'_>,
        write: OperationId,
        event: Option<DurableEvent>,
    ) -> Result<Demand, Excuse> {
        let (shown, _) = answer.shown.ok_or(Excuse::Nameless)?;
        if shown == write {
            return Ok(Demand::Something);
        }
        let event = event.ok_or(Excuse::Nameless)?;
        self.known.event(shown).ok_or(Excuse::Nameless)?;
        match self.forgetting.is_taken(write, answer.at) {
            true => Err(Excuse::Deleted),
            false => Ok(Demand::NothingOlder(event)),
        }
    }

    /// How the answer falls short of the demand.
    fn missed(
        &self,
        place: &StoreKey,
        answer: &Answer<'_>,
        write: OperationId,
        demand: Demand,
    ) -> Option<String> {
        match (demand, &answer.operation.outcome) {
            (Demand::Holds(event), Outcome::Got(set)) if !durable::holds(place.0, set, event) => {
                Some(format!("misses {write:?} ({}), acknowledged before", event.dot))
            }
            (Demand::Something, Outcome::Got(set)) if set.versions().is_empty() => {
                Some(format!("found nothing, though {write:?} was acknowledged before"))
            }
            (Demand::Something, Outcome::Shown(None)) => {
                Some(format!("was shown nothing, though {write:?} was acknowledged before"))
            }
            (Demand::NothingOlder(by), Outcome::Shown(Some(value))) => {
                self.older(place, value, answer, write, by)
            }
            _ => None,
        }
    }

    /// Whether the value had been replaced by the write, or loses against it where the last write wins.
    fn older(
        &self,
        place: &StoreKey,
        value: &Bytes,
        answer: &Answer<'_>,
        write: OperationId,
        by: DurableEvent,
    ) -> Option<String> {
        let (shown, latest) = answer.shown?;
        let latest = latest?;
        let replaced = match &self.history.operation(write).outcome {
            Outcome::Written { context, .. } => {
                let events = self.known.events_of(place, value);
                events.iter().all(|&(dot, _)| by.dot != dot && context.vector.covers(dot))
            }
            _ => false,
        };
        if replaced {
            return Some(format!(
                "was shown the value of {shown:?} ({}), which {write:?} had replaced before",
                latest.dot
            ));
        }
        let is_older = (latest.timestamp, latest.dot) < (by.timestamp, by.dot);
        (place.0 != siblings::STORE && is_older).then(|| {
            format!(
                "was shown the value of {shown:?} ({}), though the later {write:?} ({}) was acknowledged before",
                latest.dot, by.dot
            )
        })
    }
}

/// Whether a client was told that the write is done.
fn is_acknowledged(write: &Operation) -> bool {
    write.is_write() && matches!(write.outcome, Outcome::Acknowledged | Outcome::Written { .. })
}

/// What the deletion is known to have replaced.
fn replaces(history: &History, delete: &Operation) -> Option<Vector> {
    replaced_by(history, delete).filter(|vector| !vector.is_empty())
}

/// Checks every get against all gets answered before it, whoever asked.
fn monotonic(history: &History, forgetting: &Forgetting<'_>, rules: Rules, violations: &mut Vec<Violation>) {
    let mut gets: BTreeMap<StoreKey, Vec<(OperationId, &Operation, &VersionSet)>> = BTreeMap::new();
    for (id, get) in history.all() {
        // A walk writes nothing back, so it gives the promise up for itself; so does who asks for fewer than R.
        let given_up = get.walked || usize::from(get.required) < rules.reads_required;
        if let (Outcome::Got(set), false) = (&get.outcome, given_up) {
            gets.entry((get.store, get.key.clone())).or_default().push((id, get, set));
        }
    }
    for (place, gets) in &gets {
        for (id, get, set) in gets {
            if get.returned.is_some_and(|at| forgetting.is_touched(*id, at)) {
                continue;
            }
            let before = |(_, earlier, known): &&(OperationId, &Operation, &VersionSet)| {
                earlier.returned < Some(get.invoked) && !set.vector().descends(known.vector())
            };
            if let Some((earlier, ..)) = gets.iter().find(before) {
                let detail = format!("{}: {id:?} knows less than {earlier:?} before it", name(place));
                violations.push(Violation { invariant: 7, about: None, detail });
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

#[cfg(test)]
mod tests {
    use super::super::Rules;
    use super::super::examples::{Story, rules};
    use super::{Pairs, backwards, check};
    use crate::history::Basis;

    fn wrong(story: &Story, rules: Rules) -> Vec<super::Violation> {
        check(&story.history, &[], rules).0
    }

    #[test]
    fn a_judge_that_excuses_more_than_a_tenth_of_the_pairs_is_lenient() {
        let pairs = |all, deleted, nameless| Pairs { all, deleted, nameless, unpromised: 7, leaning: 3 };
        assert!(!Pairs::default().is_lenient());
        let nothing = Pairs { all: 1000, unpromised: 400, leaning: 100, ..Pairs::default() };
        assert_eq!(nothing.unpromised_per_mille(), 333);
        assert!(!pairs(1000, 60, 40).is_lenient());
        assert!(pairs(1000, 60, 41).is_lenient());
    }

    #[test]
    fn a_get_that_sees_what_was_acknowledged_is_fine() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (dot, _) = story.written(put, 1, 1);
        let get = story.get();
        story.got(get, &[(dot, "a")]);
        assert_eq!(wrong(&story, rules()), []);
    }

    #[test]
    fn a_get_concurrent_with_a_write_may_miss_it() {
        let mut story = Story::default();
        let (put, get) = (story.put_blind("a"), story.get());
        story.got(get, &[]);
        story.written(put, 1, 1);
        assert_eq!(wrong(&story, rules()), []);
    }

    #[test]
    fn a_get_that_misses_an_acknowledged_write_is_caught() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        story.written(put, 1, 1);
        let get = story.get();
        story.got(get, &[]);
        assert!(wrong(&story, rules())[0].detail.contains("misses"));
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
        assert_eq!(wrong(&story, rules()), [], "but nothing was promised");
        let rules = Rules { reads_monotonic: true, ..rules() };
        assert!(wrong(&story, rules)[0].detail.contains("knows less"));
    }

    #[test]
    fn concurrent_gets_may_differ_even_where_reads_are_monotonic() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (first, second) = (story.get(), story.get());
        story.got(first, &[(Story::dot(1, 1), "a")]);
        story.got(second, &[]);
        story.indeterminate(put);
        assert_eq!(wrong(&story, Rules { reads_monotonic: true, ..rules() }), []);
    }

    #[test]
    fn a_key_that_is_shown_empty_after_an_acknowledged_put_is_caught() {
        let mut story = Story::default();
        let put = story.put("a", Basis::Overwrite);
        let early = story.get();
        story.shown(early, None);
        story.acknowledged(put);
        assert_eq!(wrong(&story, rules()), [], "it was not acknowledged yet");
        let late = story.get();
        story.shown(late, None);
        assert!(wrong(&story, rules())[0].detail.contains("was shown nothing"));
        let apart = Rules { replicas: 4, ..rules() };
        assert_eq!(wrong(&story, apart), []);
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
        assert_eq!(wrong(&story, rules()), [], "it was asked before");
        let late = story.get();
        story.shown(late, Some("b"));
        assert_eq!(wrong(&story, rules()), []);
        let back = story.get();
        story.shown(back, Some("a"));
        assert!(wrong(&story, rules())[0].detail.contains("had replaced before"));
    }

    #[test]
    fn after_lost_copies_a_get_must_see_only_writes_acknowledged_later() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        story.written(put, 1, 1);
        let early = story.get();
        story.got(early, &[]);
        story.struck();
        let late = story.get();
        story.got(late, &[]);
        let lossy = Rules { copies_kept: false, ..rules() };
        let (wrong, pairs) = check(&story.history, &[], lossy);
        assert_eq!(
            (wrong.len(), pairs.all, pairs.unpromised),
            (1, 1, 1),
            "the fault came after the first get"
        );
        assert!(wrong[0].detail.contains(&format!("{early:?} misses")), "{wrong:?}");
        assert_eq!(check(&story.history, &[], rules()).0.len(), 2, "where nothing is lost, both owe it");
    }

    #[test]
    fn a_redis_del_with_one_possible_event_is_judged_like_a_write() {
        for (others, missed) in [(0, 1), (1, 0)] {
            let mut story = Story { store: "default", ..Story::default() };
            let put = story.put_blind("a");
            story.stamped(put, 1, 1);
            let delete = story.delete(Basis::Overwrite);
            story.deletions(others + 1);
            story.acknowledged(delete);
            let get = story.get();
            story.got(get, &[(Story::dot(1, 1), "a")]);
            let found = wrong(&story, rules());
            assert_eq!(found.len(), missed, "with {others} other deletions under way: {found:?}");
            assert!(found.iter().all(|wrong| wrong.detail.contains(&format!("misses {delete:?}"))));
        }
    }

    #[test]
    fn a_get_of_an_older_value_that_claims_to_have_seen_the_later_one_is_caught() {
        let mut story = Story { store: "default", ..Story::default() };
        let (older, newer) = (story.put_blind("a"), story.put_blind("b"));
        let old = story.stamped(older, 1, 1);
        let new = story.stamped(newer, 2, 6);
        let get = story.get();
        story.got_covering(get, &[(old, "a")], &[new]);
        assert!(wrong(&story, rules())[0].detail.contains(&format!("misses {newer:?}")));
    }

    #[test]
    fn a_deletion_after_the_get_or_without_a_round_excuses_nothing() {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let (dot, _) = story.written(put, 1, 1);
        let read = story.get();
        story.got(read, &[(dot, "a")]);
        let early = story.get();
        story.got(early, &[]);
        let delete = story.delete(Basis::After(read));
        story.written(delete, 2, 1);
        story.collected();
        assert_eq!(wrong(&story, rules()).len(), 1, "the delete came after the get");
        let late = story.get();
        story.got(late, &[]);
        assert_eq!(wrong(&story, rules()).len(), 1, "a round has forgotten both");
        let removals = std::mem::take(&mut story.history.witnessed.removals);
        assert_eq!(
            wrong(&story, rules()).len(),
            3,
            "no node removed anything, so the round forgot another key"
        );
        story.history.witnessed.removals = removals;
        story.history.epochs.clear();
        assert_eq!(wrong(&story, rules()).len(), 3, "without a round, nothing is forgotten");
    }

    #[test]
    fn a_deletion_excuses_only_what_its_context_covers() {
        let mut story = Story::default();
        let put = story.put_blind("b");
        let (seen, _) = story.written(put, 2, 1);
        let read = story.get();
        story.got(read, &[(seen, "b")]);
        let unseen = story.put_blind("a");
        story.written(unseen, 1, 1);
        let delete = story.delete(Basis::After(read));
        story.written(delete, 2, 2);
        story.collected();
        let late = story.get();
        story.got(late, &[]);
        let (wrong, pairs) = check(&story.history, &[], rules());
        assert!(wrong.len() == 1 && wrong[0].detail.contains(&format!("misses {unseen:?}")), "{wrong:?}");
        assert_eq!((pairs.all, pairs.deleted), (4, 1));
    }

    #[test]
    fn where_the_last_write_wins_no_value_is_shown_after_a_later_acknowledged_one() {
        for (store, count) in [("default", 1), (super::siblings::STORE, 0)] {
            let mut story = Story { store, ..Story::default() };
            let (older, newer) = (story.put_blind("a"), story.put_blind("b"));
            story.stamped(older, 1, 5);
            story.stamped(newer, 2, 6);
            let get = story.get();
            story.shown(get, Some("b"));
            assert_eq!(wrong(&story, rules()), []);
            let get = story.get();
            story.shown(get, Some("a"));
            assert_eq!(wrong(&story, rules()).len(), count, "{store}");
        }
    }
}
