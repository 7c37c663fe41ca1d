//! EXPIRE, PERSIST and their kin write a value once more, with another expiry and under its own event.
//!
//! - Each such event is one command that may have been carried out (invariant 5).
//! - It is stamped right after what it has seen, so any write that did not see it wins (invariant 7): between it and the
//!   value's event before it lies no other event of the key. Fifteen in a row have room there.
//!
//! That an acknowledged one is kept and seen is judged with all other writes; so is what may be gone after an EXPIRE
//! ([`super::forgotten`]).

use model::{Dot, Timestamp};

use super::{Attribution, StoreKey, Violation, name};
use crate::history::{Action, History, Operation, Outcome, Remains, Touch};

/// Checks each event that changed an expiry.
pub fn check(history: &History, remains: &[Remains]) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let mut violations = Vec::new();
    for (place, operations) in history.by_key() {
        let touches = known.touches(&place);
        for ends in [true, false] {
            let seen = touches.iter().filter(|touch| touch.ends == ends).count();
            let may_be = |operation: &&Operation| {
                operation.action == Action::Touch { ends } && !matches!(operation.outcome, Outcome::Failed(_))
            };
            let asked = operations.iter().map(|&id| history.operation(id)).filter(may_be).count();
            if seen > asked {
                let what = if ends { "made to expire" } else { "made to live for ever" };
                let detail = format!(
                    "{}: values were {what} {seen} times, and {asked} commands may have",
                    name(&place)
                );
                violations.push(Violation { invariant: 5, about: None, detail });
            }
        }
        for touch in touches {
            violations.extend(outranked(&known, &place, touch));
        }
    }
    violations
}

/// Events of one value between which and the next write nothing else may lie, the write's own among them.
const ROOM: usize = 16;

/// An event that the touched value had not seen, and wins against all the same.
fn outranked(known: &Attribution, place: &StoreKey, touch: &Touch) -> Option<Violation> {
    let rank = |(dot, timestamp): (Dot, Timestamp)| (timestamp, dot);
    // Of two puts with one timestamp, what changes the loser's expiry may win for it: `next.md` says so.
    let own = (touch.timestamp, touch.dot);
    let of_value = known.events_of(place, &touch.value);
    if of_value.iter().filter(|(_, timestamp)| *timestamp <= touch.timestamp).count() > ROOM {
        return None;
    }
    let base = of_value.iter().map(|&event| rank(event)).filter(|&other| other < own).max()?;
    // So may a change of its expiry against one of the other's.
    let put = known.of_value(place, &touch.value).and_then(|put| known.event(put))?;
    let origin = |(dot, timestamp): (Dot, Timestamp)| {
        let touched = known.touches(place).iter().find(|other| other.dot == dot);
        let put = touched.and_then(|other| known.event(known.of_value(place, &other.value)?));
        put.map_or(timestamp, |(_, timestamp)| timestamp)
    };
    let others = known.dots_of(place).filter_map(|(_, write)| Some((write, known.event(write)?)));
    let beaten = others
        .filter(|(_, event)| !of_value.contains(event))
        .find(|&(_, event)| base.0 < event.1 && put.1 < origin(event) && rank(event) < own)?;
    let (write, (dot, timestamp)) = beaten;
    let detail = format!(
        "{}: {} at {} changed only an expiry of {} at {}, and outranks {write:?} ({dot} at {}), which it had not seen",
        name(place),
        touch.dot,
        touch.timestamp.0,
        base.1,
        base.0.0,
        timestamp.0,
    );
    Some(Violation { invariant: 7, about: None, detail })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::examples::Story;
    use super::*;

    /// A put of "a" as event 1 of node 1 at timestamp 10, and a PERSIST of it as event 1 of node 2, at this timestamp.
    fn persisted(timestamp: u64) -> Story {
        let mut story = Story { store: "default", ..Story::default() };
        let put = story.put_blind("a");
        story.stamped(put, 1, 10);
        let persist = story.touch(false);
        story.acknowledged(persist);
        story.history.witnessed.touches.push(Touch {
            store: "default".to_owned(),
            key: Bytes::from("k"),
            value: Bytes::from("a"),
            dot: Story::dot(2, 1),
            timestamp: Timestamp(timestamp),
            ends: false,
            at: story.history.operation(persist).invoked,
        });
        story
    }

    #[test]
    fn an_event_of_a_touched_value_needs_a_command() {
        let mut story = persisted(11);
        assert_eq!(check(&story.history, &[]), []);
        story.history.operations[1].outcome = Outcome::Failed("no".to_owned());
        assert!(check(&story.history, &[])[0].detail.contains("live for ever 1 times"));
    }

    /// Seed 15745 of 2026-11-28: both puts have one timestamp, and so have the changes of their expiries.
    #[test]
    fn either_of_two_puts_with_one_timestamp_may_win_with_its_later_expiry() {
        for (other, fine) in [(10, true), (11, false)] {
            let mut story = persisted(12);
            let put = story.put_blind("b");
            story.stamped(put, 3, other);
            let persist = story.touch(false);
            story.acknowledged(persist);
            story.history.witnessed.touches.push(Touch {
                value: Bytes::from("b"),
                dot: Story::dot(1, 2),
                timestamp: Timestamp(12),
                at: story.history.operation(persist).invoked,
                ..story.history.witnessed.touches[0].clone()
            });
            assert_eq!(check(&story.history, &[]).is_empty(), fine, "a put at {other}");
        }
    }

    #[test]
    fn a_change_of_an_expiry_loses_to_a_put_it_had_not_seen() {
        for (touched, other, fine) in [(11, 12, true), (11, 10, true), (12, 11, false), (20, 15, false)] {
            let mut story = persisted(touched);
            let put = story.put_blind("b");
            // By its dot it is before the put of "a" where both have one timestamp.
            story.stamped(put, 0, other);
            assert_eq!(check(&story.history, &[]).is_empty(), fine, "{touched} {other}");
        }
    }

    #[test]
    fn a_persisted_value_may_not_be_gone_but_one_set_to_expire_may() {
        use super::super::examples::rules;
        use super::super::reads;
        for (ends, count) in [(false, 2), (true, 0)] {
            let mut story = persisted(11);
            story.history.operations[1].action = Action::Touch { ends };
            story.history.witnessed.touches[0].ends = ends;
            let get = story.get();
            story.shown(get, None);
            assert_eq!(reads::check(&story.history, &[], rules()).0.len(), count, "ends: {ends}");
        }
    }
}
