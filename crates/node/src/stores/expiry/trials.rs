//! The index of what expires, alone and beside the records that it stands for.

use std::sync::Arc;
use std::time::Duration;

use model::{
    Consistency, NodeId, PartitionId, Resolver, Ring, Store, StoreName, Token, Value, VersionSet, Zone,
};
use proptest::prelude::*;
use runtime::Clock;
use storage::MemoryEngine;
use wire::ErrorCode;
use wire::messages::Condition;

use super::*;
use crate::stores::trials::{Broken, Fails, Wall};
use crate::stores::{Stamper, WriteOrder};

const PARTITION: PartitionId = PartitionId(0);
const MARGIN_MS: u64 = 5000;

/// A replica with its own clock.
struct Replica {
    store: LocalStore,
    wall: Arc<Wall>,
}

impl Replica {
    fn new(id: u32, resolver: Resolver) -> Replica {
        // Two, so that a tree is kept.
        let one = Consistency { replicas: 2, reads_required: 1, writes_required: 1 };
        let definition = Store { resolver, ..Store::new(StoreName::new("s").unwrap(), one).unwrap() };
        let wall = Arc::new(Wall::default());
        let stamper = Arc::new(Stamper::new(NodeId(id), 1, 0, wall.clone()));
        let store = LocalStore::new(definition, Arc::new(MemoryEngine::new()), stamper)
            .keeping_expired(Duration::from_millis(MARGIN_MS));
        store.shape(&Ring::equal_slices(1, &[(NodeId(1), Zone("z".to_owned()))]));
        Replica { store, wall }
    }

    fn at(&self, millis: u64) {
        self.wall.set(millis);
    }

    fn write(&self, key: u8, value: Value, expires: Option<u64>, blind: bool) {
        let expires = expires.map(WallMillis);
        let context = blind.then(Default::default);
        let order = WriteOrder { context, condition: Condition::None, expires, value };
        // A store of last writes refuses what has not seen all.
        let _ = self.store.stamp(place(key), &[key], order);
    }

    fn record(&self, key: u8) -> VersionSet {
        self.store.get(place(key), &[key]).unwrap()
    }

    fn reap_all(&self) -> u64 {
        let now = self.wall.wall();
        let due = self.store.take_due(now, usize::MAX);
        due.into_iter().map(|due| self.store.reap(PARTITION, due, now).unwrap().values).sum()
    }

    fn sum(&self) -> Option<protocol::antientropy::merkle::Digest> {
        self.store.trees().look(PARTITION, |tree| tree.sum()).unwrap()
    }

    /// Whatever expires has an entry that is early enough.
    fn check_index(&self) {
        for key in 0..KEYS {
            let Some(expires) = self.record(key).expires_min() else { continue };
            let due = Due { token: place(key).token, fingerprint: storage::fingerprint(&[key]) };
            let stands = self.store.expiring.stands_for(due, expires);
            assert!(stands, "key {key}, which expires at {expires:?}, has no entry");
        }
    }
}

const KEYS: u8 = 3;

fn place(key: u8) -> KeyPlace {
    KeyPlace { partition: PARTITION, token: Token::of(&[key]) }
}

/// One step at one of two replicas.
#[derive(Clone, Debug)]
enum Step {
    Put { at: usize, key: u8, ttl: Option<u16>, blind: bool },
    Delete { at: usize, key: u8 },
    Send { from: usize, key: u8 },
    Pass { millis: u16 },
    Reap { at: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (at, key) = (0..2_usize, 0..KEYS);
    prop_oneof![
        4 => (at.clone(), key.clone(), prop::option::of(0..20_000_u16), any::<bool>())
            .prop_map(|(at, key, ttl, blind)| Step::Put { at, key, ttl, blind }),
        1 => (at.clone(), key.clone()).prop_map(|(at, key)| Step::Delete { at, key }),
        4 => (at.clone(), key).prop_map(|(from, key)| Step::Send { from, key }),
        2 => (0..9_000_u16).prop_map(|millis| Step::Pass { millis }),
        2 => at.prop_map(|at| Step::Reap { at }),
    ]
}

/// Plays steps at two replicas whose clocks differ by less than the margin.
fn play(resolver: Resolver, steps: &[Step]) -> [Replica; 2] {
    let replicas = [1, 2].map(|id| Replica::new(id, resolver));
    let mut now = 1_000_000;
    for step in steps {
        replicas[0].at(now);
        replicas[1].at(now + 3000);
        match *step {
            Step::Put { at, key, ttl, blind } => {
                let expires = ttl.map(|ttl| now + u64::from(ttl));
                replicas[at].write(key, Value::Present(vec![key; 10].into()), expires, blind);
            }
            Step::Delete { at, key } => replicas[at].write(key, Value::Tombstone, None, false),
            Step::Send { from, key } => {
                let set = replicas[from].record(key);
                replicas[1 - from].store.merge(place(key), &[key], &set).unwrap();
            }
            Step::Pass { millis } => now += u64::from(millis),
            Step::Reap { at } => {
                let (before, shown) = (replicas[at].sum(), shown(&replicas[at], now));
                replicas[at].reap_all();
                assert_eq!(replicas[at].sum(), before, "reaping changes no tree");
                assert_eq!(self::shown(&replicas[at], now), shown, "nor what any clock shows");
            }
        }
        replicas.iter().for_each(Replica::check_index);
    }
    replicas
}

/// Values that a clock shows.
fn shown(replica: &Replica, now: u64) -> Vec<usize> {
    (0..KEYS).map(|key| replica.record(key).live(WallMillis(now)).count()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn expired_values_are_always_found_and_replicas_end_alike(
        steps in prop::collection::vec(step(), 1..40),
        last_write in any::<bool>(),
    ) {
        let resolver = if last_write { Resolver::LastWriteWins } else { Resolver::Siblings };
        let replicas = play(resolver, &steps);
        for key in 0..KEYS {
            for from in [0, 1] {
                let set = replicas[from].record(key);
                replicas[1 - from].store.merge(place(key), &[key], &set).unwrap();
            }
        }
        prop_assert_eq!(replicas[0].sum(), replicas[1].sum(), "they compare as equal, reaped or not");
        for replica in &replicas {
            replica.at(2_000_000_000);
            replica.reap_all();
            prop_assert_eq!(replica.store.expiring_known(), 0);
        }
        for key in 0..KEYS {
            let record = replicas[0].record(key);
            prop_assert_eq!(record.expires_min(), None);
            prop_assert_eq!(&record, &replicas[1].record(key));
            let waits = replicas[0].store.tombstones_after(None, 10).iter().any(|(_, known)| known[..] == [key]);
            prop_assert!(waits || !record.is_deleted(), "what was reaped waits for a round");
        }
    }
}

#[test]
fn a_key_that_is_written_over_and_over_has_one_entry_and_lives_as_long_as_its_last_value() {
    let replica = Replica::new(1, Resolver::LastWriteWins);
    for round in 0..100 {
        replica.at(round * 1000);
        replica.write(1, Value::Present("session".into()), Some(round * 1000 + 30_000), false);
        replica.reap_all();
    }
    assert_eq!(replica.store.expiring_known(), 1);
    replica.at(99_000 + 30_000 + MARGIN_MS - 1000);
    assert_eq!((replica.reap_all(), replica.store.expiring_known()), (0, 1));
    replica.at(99_000 + 30_000 + MARGIN_MS);
    assert_eq!((replica.reap_all(), replica.store.expiring_known()), (1, 0));
    assert!(replica.record(1).is_deleted());
    assert_eq!(replica.store.reaped(), Reaped { values: 1, bytes: 7 });
}

#[test]
fn a_late_copy_of_an_expired_value_brings_no_bytes_back() {
    let (replica, other) =
        (Replica::new(1, Resolver::LastWriteWins), Replica::new(2, Resolver::LastWriteWins));
    replica.write(1, Value::Present("bytes".into()), Some(1000), false);
    let late = replica.record(1);
    for late_at in [&replica, &other] {
        late_at.at(1000 + MARGIN_MS);
        late_at.reap_all();
        late_at.store.merge(place(1), &[1], &late).unwrap();
        assert!(late_at.record(1).is_deleted() && late_at.record(1).versions()[0].is_reaped());
        assert_eq!(late_at.store.expiring_known(), 0);
    }
    // A round forgets it also where nobody has reaped it yet.
    let slow = Replica::new(3, Resolver::LastWriteWins);
    slow.at(1000);
    slow.store.merge(place(1), &[1], &late).unwrap();
    assert!(!slow.record(1).is_deleted());
    assert!(slow.store.forget(place(1), &Bytes::from(vec![1]), &other.record(1)).unwrap());
    assert!(slow.record(1).is_empty());
}

#[test]
fn a_walk_finds_values_from_before_the_process_started() {
    let before = Replica::new(1, Resolver::Siblings);
    for key in 0..KEYS {
        before.write(key, Value::Present("v".into()), (key > 0).then_some(1000), true);
    }
    let (definition, engine) = (before.store.definition().clone(), before.store.engine().clone());
    let stamper = Arc::new(Stamper::new(NodeId(1), 2, 0, before.wall.clone()));
    let after = LocalStore::new(definition, engine, stamper).keeping_expired(Duration::ZERO);
    assert_eq!(after.expiring_known(), 0);
    assert_eq!(after.note_tombstones(PARTITION, None, 100).unwrap(), None);
    assert_eq!(after.expiring_known(), 2);
    assert_eq!(after.take_due(WallMillis(999), 9), []);
    assert_eq!(after.take_due(WallMillis(1000), 9).len(), 2);
}

/// What an index has no room for is found by a walk when its time has come, and not before: a walk reads everything.
#[test]
fn a_walk_finds_values_without_room_in_the_index_once_they_expire() {
    let Replica { store, wall } = Replica::new(1, Resolver::LastWriteWins);
    let replica = Replica { store: store.remembering_expiring(Duration::from_millis(MARGIN_MS), 2), wall };
    for key in 0..KEYS {
        replica.write(key, Value::Present("v".into()), Some(10_000 * u64::from(key + 1)), false);
    }
    assert_eq!(replica.store.expiring_known(), 2);
    let overflowed = |at| replica.store.expiring_overflowed(WallMillis(at));
    replica.at(30_000 + MARGIN_MS - 1);
    assert!(!overflowed(30_000 + MARGIN_MS - 1), "nothing that is missing is due");
    assert_eq!(replica.reap_all(), 2);
    replica.at(30_000 + MARGIN_MS);
    assert_eq!(replica.reap_all(), 0, "nobody knows of the last one");
    assert!(overflowed(30_000 + MARGIN_MS), "it may be due");
    assert!(!overflowed(30_000 + MARGIN_MS), "one walk is enough");
    assert_eq!(replica.store.note_tombstones(PARTITION, None, 100).unwrap(), None);
    assert_eq!((replica.reap_all(), replica.store.expiring_known()), (1, 0));
}

#[test]
fn a_key_that_an_engine_failed_to_read_is_tried_again_a_minute_later() {
    let engine = Arc::new(Broken::default());
    let wall = Arc::new(Wall::default());
    let one = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
    let definition = Store::new(StoreName::new("s").unwrap(), one).unwrap();
    let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, wall.clone()));
    let store = LocalStore::new(definition, engine.clone(), stamper)
        .keeping_expired(Duration::from_millis(MARGIN_MS));
    let replica = Replica { store, wall };
    replica.write(1, Value::Present("v".into()), Some(1000), false);
    let refused_at = WallMillis(1000 + MARGIN_MS);
    let due = replica.store.take_due(refused_at, 9);
    assert_eq!(due.len(), 1);
    engine.fails(Fails::Finding);
    let refused = replica.store.reap(PARTITION, due[0], refused_at).unwrap_err();
    assert_eq!(refused.code, ErrorCode::StorageFailed);
    engine.fails(Fails::Nothing);
    replica.at(refused_at.0 + 59_999);
    assert_eq!(replica.reap_all(), 0);
    replica.at(refused_at.0 + 60_000);
    assert_eq!(replica.reap_all(), 1);
    assert!(replica.record(1).is_deleted());
}
