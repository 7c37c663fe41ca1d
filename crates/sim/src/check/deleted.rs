//! Invariant 3: a delete that was acknowledged stays deleted; and which writes a deletion may have taken along.
//!
//! A delete that named a context has replaced every version which that context covers: none of them may be there at
//! the end, nor be read afterwards where quorums meet. What a delete without a context replaced only its coordinator
//! knows, so it convicts nobody.
//!
//! A deletion may be forgotten together with everything that it covered (`protocol::collection`). Then no node holds
//! the deleted write any more, nor anything that replaced it, and a judge of what must be there has to let it go.

use model::{Moment, Value, Vector, VersionSet};

use super::{Rules, Violation, name, siblings};
use crate::history::{Action, Basis, History, Operation, Outcome, Remains};

/// Checks what is left, and what was read, against the deletes that named what they replace.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (id, delete) in history.all() {
        let (Action::Delete, Outcome::Written { sloppy, .. }, Some(replaced)) =
            (&delete.action, &delete.outcome, replaced_by(history, delete))
        else {
            continue;
        };
        let mut convict = |set: &VersionSet, place: &str| {
            if let Some(version) = alive(set, &replaced) {
                let key = name(&(delete.store, delete.key.clone()));
                let detail = format!("{key}: {version} was deleted by {id:?}, and is back {place}");
                violations.push(Violation { invariant: 3, detail });
            }
        };
        for held in remains.iter().filter(|held| same_key(held.store, &held.key, delete)) {
            convict(&held.merged(), "at the end");
        }
        if !rules.quorums_meet || *sloppy {
            continue;
        }
        for (get_id, get) in history.all() {
            if let Outcome::Got(set) = &get.outcome
                && same_key(get.store, &get.key, delete)
                && delete.returned < Some(get.invoked)
            {
                convict(set, &format!("in {get_id:?}"));
            }
        }
    }
    violations
}

/// Whether a deletion may have been forgotten by `at` together with this write: one of its key that may have happened
/// and did not end before the write was asked. A value that has expired by then is one, if only of itself. Where the last write wins, an earlier deletion counts as well if its timestamp is
/// greater (its node's clock was ahead, and the write's coordinator need not have known of it: seed 540) or unknown.
pub fn may_be_forgotten(history: &History, write: &Operation, at: Moment) -> bool {
    history.all().any(|(_, other)| {
        other.may_take_away(at)
            && same_key(other.store, &other.key, write)
            && !matches!(other.outcome, Outcome::Failed(_))
            && (other.returned.is_none_or(|returned| returned >= write.invoked)
                || (write.store != siblings::STORE && may_outrank(other, write)))
    })
}

/// Whether last-write-wins may prefer the deletion to the write.
fn may_outrank(delete: &Operation, write: &Operation) -> bool {
    match (&delete.outcome, &write.outcome) {
        (Outcome::Written { context: deleted, .. }, Outcome::Written { context: written, .. }) => {
            deleted.timestamp >= written.timestamp
        }
        _ => true,
    }
}

/// Whether any deletion of the key may have happened before `get` was answered.
pub fn may_be_deleted(history: &History, get: &Operation) -> bool {
    history.all().any(|(_, other)| {
        get.returned.is_none_or(|returned| other.may_take_away(returned))
            && same_key(other.store, &other.key, get)
            && !matches!(other.outcome, Outcome::Failed(_))
            && get.returned.is_none_or(|returned| other.invoked < returned)
    })
}

/// What the context of a delete covers, if it named one.
fn replaced_by(history: &History, delete: &Operation) -> Option<Vector> {
    let Basis::After(read) = delete.basis else { return None };
    match &history.operation(read).outcome {
        Outcome::Got(set) => Some(set.vector().clone()),
        Outcome::Written { context, .. } => Some(context.vector.clone()),
        _ => None,
    }
}

/// A value that is there although `replaced` covers it.
fn alive(set: &VersionSet, replaced: &Vector) -> Option<model::Dot> {
    let values = set.versions().iter().filter(|version| matches!(version.value, Value::Present(_)));
    values.map(|version| version.dot).find(|&dot| replaced.covers(dot))
}

fn same_key(store: &str, key: &[u8], operation: &Operation) -> bool {
    store == operation.store && key == operation.key
}

#[cfg(test)]
mod tests {
    use super::super::examples::{Story, rules};
    use super::super::{lost, reads};
    use super::check;
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
        let get = story.get();
        story.got(get, &[]);
        let remains = [Story::remains(&[(1, Default::default()), (2, Default::default())])];
        assert_eq!(check(&story.history, &remains, rules()), []);
        assert_eq!(lost::check(&story.history, &remains, rules()), []);
        assert_eq!(reads::check(&story.history, rules()), []);
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
    fn a_write_after_the_deletion_must_still_be_there() {
        let (mut story, _) = deleted();
        let put = story.put_blind("b");
        story.written(put, 2, 1);
        let remains = [Story::remains(&[(1, Default::default()), (2, Default::default())])];
        assert_eq!(lost::check(&story.history, &remains, rules()).len(), 1);
    }
}
