//! Invariant 3 for values that expire: none is shown after its time, none is taken away before it, and in the end
//! nothing is left of them.
//!
//! Native clients have the true time, so they must not show a value a moment too late. Nodes do not; what they keep
//! longer is their business, what they forget earlier is not. When a value expires that a Redis client wrote, and
//! whether it still shows, is decided by clocks of nodes that are wrong: judged is only that it is gone in the end.

use model::{Moment, Value, VersionSet, WallMillis};

use super::{Attribution, StoreKey, Violation, name, sets};
use crate::history::{Action, History, Outcome, Remains};

/// What expires so much later than the end of a run has not expired by any of its clocks.
const OUTLIVES_MS: u64 = 320_000;

/// Checks what was shown, and what became of values that expire.
pub fn check(history: &History, remains: &[Remains]) -> Vec<Violation> {
    let known = Attribution::new(history, remains);
    let mut violations = Vec::new();
    for (id, get) in history.all() {
        let place = (get.store, get.key.clone());
        // Whose expiry was changed since is judged by `touched`.
        let untouched = get.shown.iter().filter(|value| known.events_of(&place, value).len() < 2);
        for put in untouched.filter_map(|value| known.of_value(&place, value)) {
            if history.operation(put).shown_until.is_some_and(|end| end <= get.invoked) {
                violations.push(format!("{}: {id:?} shows {put:?}, which had expired", name(&place)));
            }
        }
        if let (Outcome::Got(set), Some(returned)) = (&get.outcome, get.returned) {
            violations.extend(taken_early(history, &known, &place, set, returned));
        }
    }
    for (place, set) in sets(history, remains) {
        violations.extend(taken_early(history, &known, &place, set, Moment { nanos: u64::MAX }));
    }
    violations.into_iter().map(|detail| Violation { invariant: 3, about: None, detail }).collect()
}

/// Puts whose bytes are gone from a set that was seen by `at`, although their time was not over.
fn taken_early(
    history: &History,
    known: &Attribution,
    place: &StoreKey,
    set: &VersionSet,
    at: Moment,
) -> Vec<String> {
    let gone = set.versions().iter().filter(|version| version.value == Value::Tombstone);
    let puts = gone.filter_map(|version| known.of_dot(place, version.dot));
    let early = puts.filter(|&put| {
        let put = history.operation(put);
        matches!(put.action, Action::Put(_) | Action::Touch { .. })
            && put.expires.is_none_or(|expires| at < expires)
    });
    early.map(|put| format!("{}: the value of {put:?} was taken away before its time", name(place))).collect()
}

/// A key of which something is left at the end although all of it has expired or was deleted. `now`: what no clock has
/// reached yet lives.
pub fn left(remains: &[Remains], now: WallMillis) -> Option<Violation> {
    let left = remains.iter().find(|held| held.sets().any(|set| is_left(set, now)));
    left.map(|held| {
        let name = name(&(held.store, held.key.clone()));
        let detail = format!("{name}: nothing of it lives, something expired, and its record is still there");
        Violation { invariant: 3, about: None, detail }
    })
}

/// By the end of a run every value that expires has done so, but for those that outlive it by far.
fn is_left(set: &VersionSet, now: WallMillis) -> bool {
    let versions = set.versions();
    let outlives = |until: WallMillis| until.0 > now.0 + OUTLIVES_MS;
    let dead = |version: &model::Version| {
        version.value == Value::Tombstone || version.expires.is_some_and(|until| !outlives(until))
    };
    versions.iter().all(dead) && versions.iter().any(|version| version.expires.is_some())
}

#[cfg(test)]
mod tests {
    use model::{Version, WallMillis};

    use super::super::examples::Story;
    use super::*;

    const NOW: WallMillis = WallMillis(1_000_000);

    fn after(moment: Moment, nanos: u64) -> Moment {
        Moment { nanos: moment.nanos + nanos }
    }

    /// A put of "a" that expires this many microseconds after it was asked, and a get that shows it.
    fn told(expires_us: Option<u64>) -> (Story, model::Dot) {
        let mut story = Story::default();
        let put = story.put_blind("a");
        let asked = story.history.operation(put).invoked;
        let expires = expires_us.map(|micros| after(asked, micros * 1000));
        story.history.operations[put.0].expires = expires;
        story.history.operations[put.0].shown_until = expires;
        let (dot, _) = story.written(put, 1, 1);
        let get = story.get();
        story.got(get, &[(dot, "a")]);
        story.history.operations[get.0].shown = vec!["a".into()];
        (story, dot)
    }

    fn tombstone(dot: model::Dot, expires: Option<u64>) -> VersionSet {
        let set = Story::set(&[(dot, "a")], &[]);
        let version = Version {
            value: Value::Tombstone,
            expires: expires.map(WallMillis),
            ..set.versions()[0].clone()
        };
        VersionSet::from_parts(set.vector().clone(), [version].into_iter().collect()).expect("as before")
    }

    #[test]
    fn a_value_is_shown_until_its_time_and_no_longer() {
        assert_eq!(check(&told(None).0.history, &[]), []);
        assert_eq!(check(&told(Some(3)).0.history, &[]), [], "asked a microsecond before");
        assert!(check(&told(Some(2)).0.history, &[])[0].detail.contains("had expired"));
    }

    #[test]
    fn a_value_reaped_too_early_or_without_an_expiry_is_reported_missing() {
        for (expires, fine) in [(Some(2), true), (Some(1000), false), (None, false)] {
            let (mut story, dot) = told(expires);
            story.history.operations[1].shown.clear();
            let get = story.get();
            story.history.operations[get.0].outcome = Outcome::Got(tombstone(dot, Some(7)));
            story.history.operations[get.0].returned = Some(after(story.history.operation(get).invoked, 1));
            assert_eq!(check(&story.history, &[]).is_empty(), fine, "{expires:?}");
        }
    }

    #[test]
    fn remains_of_an_expired_value_are_found() {
        let (_, dot) = told(Some(2));
        let held = |set: VersionSet| [Story::remains(&[(1, VersionSet::default()), (2, set)])];
        assert_eq!(left(&held(VersionSet::default()), NOW), None);
        assert_eq!(left(&held(Story::set(&[(dot, "a")], &[])), NOW), None, "it lives");
        assert_eq!(left(&held(tombstone(dot, None)), NOW), None, "it was deleted");
        assert!(left(&held(tombstone(dot, Some(7))), NOW).is_some());
        let until = |millis: u64| {
            let set = Story::set(&[(dot, "a")], &[]);
            let version = Version { expires: Some(WallMillis(millis)), ..set.versions()[0].clone() };
            VersionSet::from_parts(set.vector().clone(), [version].into_iter().collect()).expect("as before")
        };
        assert!(left(&held(until(NOW.0 + 1000)), NOW).is_some());
        assert_eq!(left(&held(until(NOW.0 + 1_000_000)), NOW), None, "it outlives the run");
    }
}
