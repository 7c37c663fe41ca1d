//! What a node answers to who starts a collection round: its tombstones in pages, and which of them it helps forget.

use std::ops::Range;

use bytes::Bytes;
use model::{Cluster, Consistency, Generation, Store, StoreName, Timestamp, Value, VersionSet};
use protocol::collection::RoundId;
use runtime::Clock;
use wire::error::ErrorCode;
use wire::messages::{
    CollectCandidated, CollectCandidates, CollectConfirm, CollectConfirmed, CollectPlace, Collectable,
    ReplicaMerge, Response, StoreRef,
};

use super::collecting::report;
use super::home::cluster;
use super::stage::WALL_BEGIN;
use super::{Home, Node, amid, deleted, merge, old, set, tombstone_at};

fn store_ref(name: &str) -> StoreRef {
    StoreRef::from(&StoreName::new(name).unwrap())
}

fn key(number: usize) -> Bytes {
    Bytes::from(format!("key-{number:06}"))
}

/// Two stores, of which the second in the document is the first by its name.
fn two_stores() -> Cluster {
    let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    let mut cluster = cluster();
    cluster.stores.push(Store::new(StoreName::new("a").unwrap(), consistency).unwrap());
    cluster
}

fn ask_page(home: &Home, node: &Node, ask: CollectCandidates) -> CollectCandidated {
    let answer = home.ask(node, ask);
    let Ok(Response::CollectCandidated(page)) = answer else { panic!("{answer:?}") };
    page
}

/// All pages with these limits, each by the names and keys in it.
fn pages(home: &Home, node: &Node, keys_max: u32, bytes_max: u32) -> Vec<Vec<CollectPlace>> {
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = ask_page(home, node, CollectCandidates { after, keys_max, bytes_max });
        pages.push(page.keys.into_iter().map(|(name, (key, _))| (name, key)).collect());
        assert!(pages.len() < 20, "it comes to no end: {pages:?}");
        after = page.next;
        if after.is_none() {
            return pages;
        }
    }
}

fn confirm(home: &Home, node: &Node, keys: Vec<Collectable>) -> Result<Vec<u32>, ErrorCode> {
    let answer = home.ask(node, CollectConfirm { round: RoundId(7), generation: Generation(1), keys });
    match answer {
        Ok(Response::CollectConfirmed(CollectConfirmed { left_out, .. })) => Ok(left_out),
        Ok(other) => panic!("{other:?}"),
        Err(failure) => Err(failure.code),
    }
}

fn tombstones(numbers: Range<usize>, set: &VersionSet) -> Vec<Collectable> {
    numbers.map(|number| (store_ref("s"), (key(number), set.clone()))).collect()
}

#[test]
fn each_tombstone_is_offered_once_in_pages_limited_by_keys_and_bytes() {
    let home = Home::of(&two_stores());
    let node = home.start();
    for (name, number) in [("s", 0), ("s", 1), ("s", 2), ("a", 3), ("a", 4), ("a", 5)] {
        let merge = merge(&key(number), &deleted(), 0, None);
        home.call(&node, ReplicaMerge { store: store_ref(name), ..merge }).unwrap();
    }
    let whole = pages(&home, &node, 100, u32::MAX);
    assert_eq!(whole.len(), 1);
    let names: Vec<&str> = whole[0].iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "a", "a", "s", "s", "s"]);
    let bytes = key(0).len() + wire::versions::record_bytes(None, &deleted());
    for (keys_max, bytes_max, of_a_page) in [(2, usize::MAX, 2), (100, 1, 1), (100, 2 * bytes, 2)] {
        let some = pages(&home, &node, keys_max, u32::try_from(bytes_max).unwrap_or(u32::MAX));
        assert!(some.iter().all(|page| page.len() == of_a_page), "{keys_max} {bytes_max}: {some:?}");
        assert_eq!(some.concat(), whole[0], "{keys_max} {bytes_max}");
    }
}

/// Whoever looks for those that still wait among many that do not is not held up by all of them at once.
#[test]
fn an_answer_looks_at_8192_keys_and_the_next_one_continues_after_them() {
    let home = Home::new();
    let node = home.start();
    let written = set(&deleted(), 9, Timestamp(20), Value::Present("again".into()));
    for number in 0..8200 {
        for content in [&deleted(), &written] {
            home.call(&node, merge(&key(number), content, 0, None)).unwrap();
        }
    }
    let ask = |after| CollectCandidates { after, keys_max: 10, bytes_max: u32::MAX };
    let first = ask_page(&home, &node, ask(None));
    assert!(first.keys.is_empty() && first.next.is_some(), "{first:?}");
    assert_eq!(report(&node).tombstones, 8, "those that it looked at are no tombstones");
    let second = ask_page(&home, &node, ask(first.next));
    assert!(second.keys.is_empty() && second.next.is_none(), "{second:?}");
    assert_eq!(report(&node).tombstones, 0);
}

#[test]
fn a_tombstone_a_minute_ahead_is_forgotten_and_one_further_ahead_is_left_out() {
    let home = Home::new();
    let node = home.start();
    let passed = (&home.stage as &dyn Clock).wall().0 - WALL_BEGIN;
    let ahead = |millis: u64| tombstone_at(amid(passed + 60_000 + millis));
    let keys = [ahead(1), deleted(), ahead(0), ahead(60_000)];
    let keys = keys.into_iter().enumerate().map(|(at, set)| (store_ref("s"), (key(at), set))).collect();
    assert_eq!(confirm(&home, &node, keys), Ok(vec![0, 3]));
}

#[test]
fn a_round_has_1024_keys_at_most_and_each_of_them_a_tombstone() {
    let home = Home::new();
    let node = home.start();
    assert_eq!(confirm(&home, &node, tombstones(0..1024, &deleted())), Ok(vec![]));
    assert_eq!(confirm(&home, &node, tombstones(0..1025, &deleted())), Err(ErrorCode::TooManyKeys));
    assert_eq!(confirm(&home, &node, tombstones(0..2000, &deleted())), Err(ErrorCode::TooManyKeys));
    assert_eq!(confirm(&home, &node, tombstones(0..1, &old())), Err(ErrorCode::Malformed));
}
