//! Puts, merges and limits on one record.

use model::{
    Actor, Context, Dot, NodeId, Resolver, Timestamp, Value, Vector, Version, VersionSet, WallMillis,
};
use node::stores::{LocalStore, WriteOrder};
use runtime::Clock;
use runtime::clock::os::OsClock;
use wire::ErrorCode;
use wire::messages::{Condition, Merged};
use wire::versions::{Record, decode_record};

use crate::support::{order, place, store, values};

const KEY: &[u8] = b"cart:7";

#[test]
fn puts_that_saw_the_same_are_siblings_until_a_put_that_saw_both() {
    let store = store(1, Resolver::Siblings);
    let nothing = Context::default();
    store.stamp(place(KEY), KEY, order("milk", Some(&nothing))).unwrap();
    store.stamp(place(KEY), KEY, order("eggs", Some(&nothing))).unwrap();
    let both = store.get(place(KEY), KEY).unwrap();
    assert_eq!(values(&both), ["eggs", "milk"]);
    store.stamp(place(KEY), KEY, order("milk, eggs", Some(&both.context()))).unwrap();
    assert_eq!(values(&store.get(place(KEY), KEY).unwrap()), ["milk, eggs"]);
}

/// A put that became a sibling once answered the vector of the whole set. The writer's next put, with that context,
/// dropped the other sibling, which the writer had never seen.
#[test]
fn a_writer_that_became_a_sibling_does_not_drop_the_other_with_its_next_put() {
    let store = store(1, Resolver::Siblings);
    let nothing = Context::default();
    store.stamp(place(KEY), KEY, order("milk", Some(&nothing))).unwrap();
    let eggs = store.stamp(place(KEY), KEY, order("eggs", Some(&nothing))).unwrap();
    store.stamp(place(KEY), KEY, order("more eggs", Some(&eggs.context))).unwrap();
    assert!(values(&store.get(place(KEY), KEY).unwrap()).contains(&"milk".to_owned()));
}

#[test]
fn a_put_without_a_context_replaces_what_is_known_here() {
    let store = store(1, Resolver::Siblings);
    for value in ["a", "b"] {
        store.stamp(place(KEY), KEY, order(value, Some(&Context::default()))).unwrap();
    }
    let alone = store.stamp(place(KEY), KEY, order("c", None)).unwrap();
    assert_eq!(values(&alone.set), ["c"]);
    assert_eq!(alone.context, alone.set.context());
}

#[test]
fn overwriting_leaves_the_record_that_a_put_without_a_context_leaves() {
    for resolver in [Resolver::Siblings, Resolver::LastWriteWins] {
        let (put, overwritten) = (store(1, resolver), store(1, resolver));
        let elsewhere = store(2, resolver);
        // All but the timestamps.
        let record = |store: &LocalStore| {
            let record = store.engine().get(place(KEY).partition, place(KEY).token, KEY).unwrap().unwrap();
            let Record { own, set } = decode_record(&record).unwrap();
            let versions = set.versions().iter().map(|v| (v.dot, v.expires, v.value.clone()));
            (own, set.vector().clone(), versions.collect::<Vec<_>>())
        };
        let both = |value: &str| {
            put.stamp(place(KEY), KEY, order(value, None)).unwrap();
            overwritten.overwrite(place(KEY), KEY, value.as_bytes()).unwrap();
            assert_eq!(record(&put), record(&overwritten), "{value}");
            let shown = overwritten.get(place(KEY), KEY).unwrap();
            assert_eq!(values(&shown), [value]);
        };
        both("the first");
        both("the next");
        // What another node wrote meanwhile, of which no actor is this node's own.
        let foreign = elsewhere.stamp(place(KEY), KEY, order("foreign", None)).unwrap();
        for store in [&put, &overwritten] {
            store.merge(place(KEY), KEY, &foreign.set).unwrap();
        }
        both("over the foreign one");
        both("once more");
        for store in [&put, &overwritten] {
            let delete = WriteOrder { value: Value::Tombstone, ..order("", None) };
            store.stamp(place(KEY), KEY, delete).unwrap();
        }
        both("over a deletion");
        let large = vec![0; overwritten.definition().value_bytes_max + 1];
        let refused = overwritten.overwrite(place(KEY), KEY, &large).unwrap_err();
        assert_eq!(refused.code, ErrorCode::ValueTooLarge);
        assert_eq!(record(&put), record(&overwritten), "nothing was stored");
    }
}

#[test]
fn a_put_that_last_write_wins_would_have_to_drop_is_obsolete() {
    let store = store(1, Resolver::LastWriteWins);
    let first = store.stamp(place(KEY), KEY, order("a", None)).unwrap();
    store.stamp(place(KEY), KEY, order("b", Some(&first.context))).unwrap();
    let refused = store.stamp(place(KEY), KEY, order("c", Some(&first.context))).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Obsolete);
    assert_eq!(values(&store.get(place(KEY), KEY).unwrap()), ["b"]);
}

#[test]
fn conditions_are_checked_against_the_stored_record() {
    let store = store(1, Resolver::LastWriteWins);
    let with = |condition| WriteOrder { condition, ..order("x", None) };
    let code =
        |condition| store.stamp(place(KEY), KEY, with(condition)).map_err(|failure| failure.code).err();
    assert_eq!(code(Condition::IfPresent), Some(ErrorCode::ConditionFailed));
    assert_eq!(code(Condition::IfAbsent), None);
    assert_eq!(code(Condition::IfAbsent), Some(ErrorCode::ConditionFailed));
    assert_eq!(code(Condition::IfPresent), None);
    let delete = WriteOrder { value: Value::Tombstone, ..order("", None) };
    store.stamp(place(KEY), KEY, delete).unwrap();
    assert_eq!(code(Condition::IfAbsent), None, "a deleted key is absent");
}

#[test]
fn limits_refuse_and_change_nothing() {
    let mut definition = crate::support::definition(Resolver::Siblings);
    (definition.value_bytes_max, definition.siblings_max) = (4, 2);
    let store = store(1, Resolver::Siblings).redefined(definition);
    let put = |value| store.stamp(place(KEY), KEY, order(value, Some(&Context::default())));
    assert_eq!(put("12345").unwrap_err().code, ErrorCode::ValueTooLarge);
    put("a").unwrap();
    put("b").unwrap();
    assert_eq!(put("c").unwrap_err().code, ErrorCode::TooManySiblings);
    assert_eq!(values(&store.get(place(KEY), KEY).unwrap()), ["a", "b"]);
}

#[test]
fn a_context_from_the_far_future_is_refused() {
    let store = store(1, Resolver::Siblings);
    let forged = Context { timestamp: model::Timestamp(u64::MAX), ..Context::default() };
    let refused = store.stamp(place(KEY), KEY, order("x", Some(&forged))).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Malformed);
    assert!(store.get(place(KEY), KEY).unwrap().is_empty());
}

#[test]
fn merging_is_idempotent_and_says_what_it_did() {
    let (here, there) = (store(1, Resolver::Siblings), store(2, Resolver::Siblings));
    let old = there.stamp(place(KEY), KEY, order("old", None)).unwrap().set;
    let new = there.stamp(place(KEY), KEY, order("new", None)).unwrap().set;
    let merge = |set| here.merge(place(KEY), KEY, set).unwrap().0;
    assert_eq!(merge(&old), Merged::Changed);
    assert_eq!(merge(&old), Merged::Known);
    assert_eq!(merge(&new), Merged::Changed);
    assert_eq!(merge(&old), Merged::Superseded);
    assert_eq!(values(&here.get(place(KEY), KEY).unwrap()), ["new"]);
}

#[test]
fn a_node_that_forgot_a_key_stamps_it_under_a_new_actor() {
    let first = store(1, Resolver::Siblings);
    let early = first.stamp(place(KEY), KEY, order("early", None)).unwrap();
    // The record vanishes (a tombstone was collected, a partition moved away) and comes back from elsewhere.
    first
        .engine()
        .update(model::PartitionId(0), model::Token::of(KEY), KEY, &mut |_| storage::Change::Remove)
        .unwrap();
    first.merge(place(KEY), KEY, &early.set).unwrap();
    let late = first.stamp(place(KEY), KEY, order("late", Some(&Context::default()))).unwrap();
    assert_ne!(late.dot.actor, early.dot.actor);
    assert_eq!(values(&late.set), ["early", "late"]);
}

#[test]
fn an_expired_value_reads_as_absent() {
    let store = store(1, Resolver::LastWriteWins);
    let expired = WriteOrder { expires: Some(WallMillis(1)), ..order("gone", None) };
    store.stamp(place(KEY), KEY, expired).unwrap();
    let shown = |store: &node::stores::LocalStore| {
        let mut shown = None;
        store.winner(place(KEY), KEY, &mut |value| shown = Some(value.to_vec())).unwrap();
        shown
    };
    assert_eq!(shown(&store), None);
    let fresh = WriteOrder { expires: Some(WallMillis(u64::MAX)), ..order("here", None) };
    store.stamp(place(KEY), KEY, fresh).unwrap();
    assert_eq!(shown(&store).as_deref(), Some(&b"here"[..]));
}

/// A context with the greatest count once brought the node down: the next count of its actor overflowed.
#[test]
fn a_context_with_absurd_counts_or_endless_actors_is_refused() {
    let store = store(1, Resolver::Siblings);
    let actor = store.stamp(place(KEY), KEY, order("a", None)).unwrap().dot.actor;
    let counts = model::Vector::from_entries([(actor, u64::MAX)]);
    let actors = model::Vector::from_entries((0..10_000).map(|birth| (model::Actor { birth, ..actor }, 1)));
    for vector in [counts, actors] {
        let forged = Context { vector, ..Context::default() };
        let refused = store.stamp(place(KEY), KEY, order("x", Some(&forged))).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Malformed);
    }
    assert_eq!(values(&store.get(place(KEY), KEY).unwrap()), ["a"]);
}

/// EXPIRE once wrote the old value again with the newest timestamp, and undid a SET that was acknowledged meanwhile
/// by replicas that the EXPIRE had not asked.
#[test]
fn a_touch_loses_to_a_put_that_it_did_not_see() {
    let (here, there) = (store(1, Resolver::LastWriteWins), store(2, Resolver::LastWriteWins));
    let old = here.stamp(place(KEY), KEY, order("old", None)).unwrap();
    there.merge(place(KEY), KEY, &old.set).unwrap();
    // A wall-clock millisecond passes, as it does between any two commands.
    std::thread::sleep(std::time::Duration::from_millis(2));
    let new = there.stamp(place(KEY), KEY, order("new", None)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2));
    let touch = WriteOrder { condition: Condition::Touch, ..order("old", Some(&old.context)) };
    let touched = here.stamp(place(KEY), KEY, touch.clone()).unwrap();
    there.merge(place(KEY), KEY, &touched.set).unwrap();
    here.merge(place(KEY), KEY, &new.set).unwrap();
    for store in [&here, &there] {
        assert_eq!(values(&store.get(place(KEY), KEY).unwrap()), ["new"]);
    }
    assert_eq!(here.stamp(place(KEY), KEY, touch).unwrap_err().code, ErrorCode::Obsolete);
}

/// Where the clock of the put's node was slow, both were stamped right after what they had seen: one timestamp, and
/// the EXPIRE won if its node's number was greater. The simulator found it (seed 3012).
#[test]
fn a_touch_loses_to_an_unseen_put_stamped_by_a_slow_clock() {
    for (toucher, putter) in [(1, 2), (2, 1)] {
        let stores = [toucher, putter].map(|node| store(node, Resolver::LastWriteWins));
        let [here, there] = &stores;
        let ahead = WallMillis(OsClock::new().wall().0 + 20 * 60 * 1000);
        let dot = Dot { actor: Actor { node: NodeId(3), incarnation: 1, birth: 1 }, count: 1 };
        let timestamp = Timestamp(0).next(ahead);
        let version = Version { dot, timestamp, expires: None, value: Value::Present("old".into()) };
        let vector = Vector::from_entries([(dot.actor, dot.count)]);
        let old = VersionSet::from_parts(vector, [version].into_iter().collect()).unwrap();
        for store in &stores {
            store.merge(place(KEY), KEY, &old).unwrap();
        }
        let new = there.stamp(place(KEY), KEY, order("new", None)).unwrap();
        let touch = WriteOrder { condition: Condition::Touch, ..order("old", Some(&old.context())) };
        let touched = here.stamp(place(KEY), KEY, touch).unwrap();
        there.merge(place(KEY), KEY, &touched.set).unwrap();
        here.merge(place(KEY), KEY, &new.set).unwrap();
        for store in &stores {
            assert_eq!(values(&store.get(place(KEY), KEY).unwrap()), ["new"], "touched by n{toucher}");
        }
    }
}

/// Siblings near the value limit once outgrew the frame in which replicas exchange them: every later put of the key
/// was stamped, and none could be replicated.
#[test]
fn siblings_that_would_outgrow_a_frame_are_refused() {
    let store = store(1, Resolver::Siblings);
    let large = "x".repeat(model::limits::VALUE_BYTES_MAX);
    let put = || store.stamp(place(KEY), KEY, order(&large, Some(&Context::default())));
    put().unwrap();
    assert_eq!(put().unwrap_err().code, ErrorCode::TooManySiblings);
    assert_eq!(store.get(place(KEY), KEY).unwrap().versions().len(), 1);
}
