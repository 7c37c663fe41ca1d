//! Small scenes that say what the laws mean.

use bytes::Bytes;
use model::versions::Stamp;
use model::{Actor, Dot, NodeId, Resolver, Timestamp, Value, Vector, VersionSet, WallMillis};

fn actor(node: u32, birth: u64) -> Actor {
    Actor { node: NodeId(node), incarnation: 1, birth }
}

pub fn stamp(node: u32, birth: u64, timestamp: u64) -> Stamp {
    let value = Value::Present(Bytes::from(format!("{node}@{timestamp}")));
    Stamp { actor: actor(node, birth), timestamp: Timestamp(timestamp), expires: None, value }
}

fn values(set: &VersionSet) -> Vec<String> {
    set.live(WallMillis(0))
        .map(|v| String::from_utf8_lossy(v.live(WallMillis(0)).unwrap()).into_owned())
        .collect()
}

#[test]
fn two_puts_with_one_context_through_one_replica_become_siblings() {
    let mut set = VersionSet::default();
    set.put(stamp(1, 1, 1), None);
    let context = set.context();
    set.put(stamp(1, 1, 2), Some(&context.vector));
    set.put(stamp(1, 1, 3), Some(&context.vector));
    assert_eq!(values(&set), ["1@2", "1@3"]);
    let merged = set.context();
    set.put(stamp(2, 1, 4), Some(&merged.vector));
    assert_eq!(values(&set), ["2@4"]);
}

#[test]
fn a_put_without_context_replaces_what_its_coordinator_knows_and_nothing_else() {
    let (mut here, mut there) = (VersionSet::default(), VersionSet::default());
    here.put(stamp(1, 1, 1), None);
    there.put(stamp(2, 1, 2), None);
    here.put(stamp(1, 1, 3), None);
    assert_eq!(values(&here), ["1@3"]);
    here.merge(&there);
    assert_eq!(values(&here), ["1@3", "2@2"]);
    here.put(stamp(1, 1, 4), None);
    here.merge(&there);
    assert_eq!(values(&here), ["1@4"]);
}

#[test]
fn a_node_that_forgot_the_key_supersedes_nothing_that_it_forgot() {
    // The story of Riak's kv679: a delete is collected at one replica, which then starts to count anew; a peer that
    // still remembers the old count must not take the new write for an old one.
    let mut peer = VersionSet::default();
    (1..=3).for_each(|at| {
        peer.put(stamp(1, 1, at), None);
    });
    let mut forgetful = VersionSet::default();
    forgetful.put(stamp(1, 2, 10), None);
    peer.merge(&forgetful);
    assert_eq!(values(&peer), ["1@3", "1@10"], "concurrent, as far as anybody knows");
    peer.resolve(Resolver::LastWriteWins);
    assert_eq!(values(&peer), ["1@10"]);
}

#[test]
fn a_tombstone_can_win_and_hides_what_it_replaced_when_that_comes_late() {
    let mut set = VersionSet::default();
    set.put(stamp(1, 1, 1), None);
    let late = set.clone();
    let context = set.context();
    set.put(Stamp { value: Value::Tombstone, ..stamp(2, 1, 2) }, Some(&context.vector));
    set.merge(&late);
    assert!(set.winner().unwrap().live(WallMillis(0)).is_none());
    assert_eq!(values(&set), [] as [&str; 0]);
}

#[test]
fn an_expired_value_is_a_version_that_reads_as_absent() {
    let mut set = VersionSet::default();
    set.put(Stamp { expires: Some(WallMillis(100)), ..stamp(1, 1, 1) }, None);
    assert_eq!(set.live(WallMillis(99)).count(), 1);
    assert_eq!(set.live(WallMillis(100)).count(), 0);
    assert_eq!(set.versions().len(), 1);
}

#[test]
fn a_reaped_value_is_the_same_event_without_its_bytes() {
    let mut set = VersionSet::default();
    set.put(Stamp { expires: Some(WallMillis(100)), ..stamp(1, 1, 1) }, None);
    set.put(stamp(2, 1, 2), Some(&Vector::default()));
    let mut reaped = set.clone();
    assert_eq!((set.expires_min(), reaped.reap(WallMillis(99)).0), (Some(WallMillis(100)), 0));
    assert_eq!(reaped.reap(WallMillis(100)), (1, 3));
    assert!(reaped.versions()[0].is_reaped() && reaped.expires_min().is_none());
    assert!(!reaped.includes(&set) && set.includes(&reaped) && !reaped.is_deleted());
    assert_eq!(reaped.vector(), set.vector());
    // Deleting keeps no time.
    set.put(Stamp { value: Value::Tombstone, ..stamp(2, 1, 3) }, None);
    assert!(set.is_deleted() && !set.versions()[0].is_reaped());
}

#[test]
fn ties_of_timestamps_go_to_the_greater_dot() {
    let (mut one, mut two) = (VersionSet::default(), VersionSet::default());
    one.put(stamp(1, 1, 5), None);
    two.put(stamp(2, 1, 5), None);
    one.merge(&two);
    assert_eq!(one.winner().unwrap().dot, Dot { actor: actor(2, 1), count: 1 });
}

#[test]
fn parts_that_break_the_invariants_are_refused() {
    let mut set = VersionSet::default();
    set.put(stamp(1, 1, 1), None);
    let mut other = VersionSet::default();
    other.put(stamp(2, 1, 1), None);
    let (mine, theirs) = (set.versions()[0].clone(), other.versions()[0].clone());
    let both = Vector::from_entries([(actor(1, 1), 1), (actor(2, 1), 1)]);
    let from = |vector: &Vector, versions: &[&model::Version]| {
        VersionSet::from_parts(vector.clone(), versions.iter().map(|v| (*v).clone()).collect())
    };
    assert!(from(&both, &[&mine, &theirs]).is_some());
    assert!(from(&both, &[&theirs, &mine]).is_none(), "unsorted");
    assert!(from(&both, &[&mine, &mine]).is_none(), "twice");
    assert!(from(set.vector(), &[&mine, &theirs]).is_none(), "not covered");
    assert!(Vector::from_sorted([(actor(2, 1), 1), (actor(1, 1), 1)].as_slice().into()).is_none());
    assert!(Vector::from_sorted([(actor(1, 1), 0)].as_slice().into()).is_none());
}
