//! What plain commands say of expiries (invariant 5): an EXPIRE with a condition changes only an expiry for which it
//! holds, and what SET writes with KEEPTTL has the expiry of the value before it.
//!
//! Which event a command had seen is not known, only some that it may have seen: one of them must bear it out.

use model::{Dot, Timestamp, WallMillis};

use super::owing::Owing;
use super::{Attribution, Rules, StoreKey, Violation, name};
use crate::history::{History, Lifetime, OperationId, Outcome, Remains, ValueLife};

/// A value that lives longer has not expired by any clock of a run.
const CLOCKS_DIFFER_MS: u64 = 700_000;

/// An event in the order of its key.
type Event = (Timestamp, Dot);

/// Checks each acknowledged command that says something; and how many of them could be judged.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> (Vec<Violation>, usize) {
    let (mut violations, mut judged) = (Vec::new(), 0);
    if history.lifetimes.is_empty() {
        return (violations, judged);
    }
    let known = Attribution::new(history, remains);
    let owing = Owing::new(history, &known, rules);
    for (&id, &lifetime) in &history.lifetimes {
        if history.operation(id).outcome != Outcome::Acknowledged {
            continue;
        }
        let verdict = match lifetime {
            Lifetime::Kept => kept(history, &known, id, (rules, &owing)),
            condition => held(history, &known, id, condition),
        };
        judged += usize::from(verdict.is_some());
        violations.extend(verdict.and_then(Result::err).map(|detail| Violation {
            invariant: 5,
            about: None,
            detail,
        }));
    }
    (violations, judged)
}

/// Whether a condition held of any expiry that the value had; `None` where the change has no name.
fn held(
    history: &History,
    known: &Attribution,
    id: OperationId,
    condition: Lifetime,
) -> Option<Result<(), String>> {
    let touch = history.operation(id);
    let place: StoreKey = (touch.store, touch.key.clone());
    let (dot, timestamp) = touch.witnessed(&history.witnessed)?;
    let value = &known.touches(&place).iter().find(|seen| seen.dot == dot)?.value;
    let lives = history.witnessed.lives.get(&(touch.store.to_owned(), touch.key.clone()))?;
    let Some(&ValueLife::Until(new)) = lives.get(&(timestamp, dot)) else { return None };
    let before: Vec<ValueLife> = known
        .events_of(&place, value)
        .into_iter()
        .map(|(dot, timestamp)| (timestamp, dot))
        .filter(|&event| event < (timestamp, dot))
        .filter_map(|event| lives.get(&event).copied())
        .collect();
    if before.is_empty() {
        return None;
    }
    let bears_out = |&life: &ValueLife| match (condition, life) {
        (Lifetime::IfNone | Lifetime::IfSooner, ValueLife::Ever) => true,
        (Lifetime::IfSome, ValueLife::Until(_)) => true,
        (Lifetime::IfLater, ValueLife::Until(old)) => new > old,
        (Lifetime::IfSooner, ValueLife::Until(old)) => new < old,
        _ => false,
    };
    Some(match before.iter().any(bears_out) {
        true => Ok(()),
        false => Err(format!(
            "{}: {id:?} at {dot} made a value live until {}, {condition:?}, but before that it lived {before:?}",
            name(&place),
            new.0
        )),
    })
}

/// Whether a value has the expiry of one that was there before it.
fn kept(
    history: &History,
    known: &Attribution,
    id: OperationId,
    (rules, owing): (Rules, &Owing<'_>),
) -> Option<Result<(), String>> {
    let put = history.operation(id);
    let place: StoreKey = (put.store, put.key.clone());
    let lives = history.witnessed.lives.get(&(put.store.to_owned(), put.key.clone()))?;
    let (dot, timestamp) = known.event(id)?;
    let own: Event = (timestamp, dot);
    let told = |why: String| Err(format!("{}: {id:?} at {dot} {why}", name(&place)));
    match lives.get(&own)? {
        ValueLife::Gone => None,
        ValueLife::Until(until) if lives.range(..own).any(|(_, life)| *life == ValueLife::Until(*until)) => {
            Some(Ok(()))
        }
        ValueLife::Until(until) => {
            Some(told(format!("keeps an expiry that no value of the key had: {}", until.0)))
        }
        ValueLife::Ever => {
            // What it has seen is this or something later.
            let seen = history
                .all()
                .filter(|(_, write)| (write.store, &write.key) == (place.0, &place.1))
                .filter(|(_, write)| write.is_write() && write.returned.is_some_and(|at| at < put.invoked))
                .filter(|(write_id, write)| {
                    let leans = (!put.strict && owing.may_be_unread(id)) || owing.may_lean(*write_id);
                    !leans && rules.meets(rules.reads_required, write)
                })
                .filter(|(_, write)| matches!(write.outcome, Outcome::Acknowledged | Outcome::Written { .. }))
                .filter_map(|(write, _)| known.event(write))
                .map(|(dot, timestamp)| (timestamp, dot))
                .filter(|&event| event < own)
                .max()?;
            let mut since = lives.range(seen..own);
            let lasts = |(event, life): (&Event, &ValueLife)| match life {
                ValueLife::Until(until) => lasts(event.0, *until),
                _ => false,
            };
            match since.all(lasts) && lives.contains_key(&seen) {
                true => Some(told("lives for ever, though all that it may have kept expires".to_owned())),
                false => Some(Ok(())),
            }
        }
    }
}

/// Whether what was stamped then lives long enough that nobody takes it for expired.
fn lasts(stamped: Timestamp, until: WallMillis) -> bool {
    until.0 > stamped.wall().0 + CLOCKS_DIFFER_MS
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::Moment;

    use super::super::examples::{Story, rules};
    use super::*;
    use crate::history::Touch;

    fn broken(story: &Story) -> (usize, usize) {
        let (violations, judged) = check(&story.history, &[], rules());
        (violations.len(), judged)
    }

    fn lives(story: &mut Story, node: u32, timestamp: u64, life: ValueLife) {
        let place = ("default".to_owned(), Bytes::from("k"));
        let event = (Timestamp(timestamp), Story::dot(node, 1));
        story.history.witnessed.lives.entry(place).or_default().insert(event, life);
    }

    /// A put of "a", which lives so, and an acknowledged change of its expiry to 1000 under a condition.
    fn changed(before: ValueLife, condition: Lifetime) -> Story {
        let mut story = Story { store: "default", ..Story::default() };
        let put = story.put_blind("a");
        story.stamped(put, 1, 10);
        lives(&mut story, 1, 10, before);
        let change = story.touch(true);
        story.acknowledged(change);
        story.history.lifetimes.insert(change, condition);
        story.history.witnessed.touches.push(Touch {
            store: "default".to_owned(),
            key: Bytes::from("k"),
            value: Bytes::from("a"),
            dot: Story::dot(2, 1),
            timestamp: Timestamp(11),
            ends: true,
            at: story.history.operation(change).invoked,
        });
        lives(&mut story, 2, 11, ValueLife::Until(WallMillis(1000)));
        story
    }

    #[test]
    fn an_expiry_changes_only_where_the_condition_holds() {
        let (sooner, later) = (ValueLife::Until(WallMillis(500)), ValueLife::Until(WallMillis(2000)));
        for (condition, before, fine) in [
            (Lifetime::IfNone, ValueLife::Ever, true),
            (Lifetime::IfNone, sooner, false),
            (Lifetime::IfSome, sooner, true),
            (Lifetime::IfSome, ValueLife::Ever, false),
            (Lifetime::IfLater, sooner, true),
            (Lifetime::IfLater, later, false),
            (Lifetime::IfLater, ValueLife::Ever, false),
            (Lifetime::IfSooner, later, true),
            (Lifetime::IfSooner, ValueLife::Ever, true),
            (Lifetime::IfSooner, sooner, false),
        ] {
            let mut story = changed(before, condition);
            assert_eq!(broken(&story), (usize::from(!fine), 1), "{condition:?} {before:?}");
            story.history.operations[1].outcome = Outcome::Failed("no".to_owned());
            assert_eq!(broken(&story), (0, 0), "what was refused has changed nothing");
        }
    }

    /// A put of "a", which lives so, and then one of "b" that keeps its expiry and lives so.
    fn kept(before: ValueLife, after: ValueLife) -> Story {
        let mut story = Story { store: "default", ..Story::default() };
        let put = story.put_blind("a");
        story.stamped(put, 1, 10);
        lives(&mut story, 1, 10, before);
        let keeps = story.put_blind("b");
        story.history.witnessed.values.insert(Bytes::from("b"), (Story::dot(2, 1), Timestamp(20)));
        story.acknowledged(keeps);
        story.history.lifetimes.insert(keeps, Lifetime::Kept);
        lives(&mut story, 2, 20, after);
        story
    }

    #[test]
    fn a_write_that_keeps_the_expiry_has_that_of_an_earlier_value() {
        let (long, short) = (ValueLife::Until(WallMillis(1_000_000)), ValueLife::Until(WallMillis(900)));
        for (before, after, fine) in [
            (long, long, true),
            (long, short, false),
            (long, ValueLife::Ever, false),
            (short, ValueLife::Ever, true),
            (ValueLife::Ever, ValueLife::Ever, true),
            (ValueLife::Gone, ValueLife::Ever, true),
            (ValueLife::Ever, long, false),
        ] {
            assert_eq!(broken(&kept(before, after)), (usize::from(!fine), 1), "{before:?} {after:?}");
        }
        let mut story = kept(long, ValueLife::Ever);
        lives(&mut story, 3, 15, ValueLife::Gone);
        assert_eq!(broken(&story), (0, 1), "it may have seen the deletion");
        let mut story = kept(long, ValueLife::Ever);
        story.history.operations[1].strict = false;
        assert_eq!(broken(&story), (1, 1), "nothing kept it from its replicas");
        story.history.operations[1].returned = Some(Moment { nanos: 1_000_000_000 });
        assert_eq!(broken(&story), (0, 0), "its quorum need not meet that of the put");
    }
}
