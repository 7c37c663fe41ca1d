//! One store over an engine that a test breaks, by a clock that it sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use model::{
    Actor, Consistency, Dot, Moment, NodeId, PartitionId, Ring, Store, StoreName, Timestamp, Token, Value,
    Vector, Version, VersionSet, WallMillis, Zone,
};
use parking_lot::Mutex;
use runtime::{BoxFuture, Clock};
use storage::{
    Change, Commit, DamageStats, MemoryEngine, RepairableEngine, ScanCursor, ScanLimit, StorageEngine,
    StorageError,
};
use wire::ErrorCode;
use wire::messages::{Condition, Merged};

use super::{Census, KeyPlace, LocalStore, Stamper, WriteOrder};

/// Wall time that a test sets; nobody sleeps by it.
#[derive(Default)]
pub(super) struct Wall(AtomicU64);

impl Wall {
    pub(super) fn set(&self, millis: u64) {
        self.0.store(millis, Ordering::Relaxed);
    }
}

impl Clock for Wall {
    fn now(&self) -> Moment {
        Moment { nanos: self.0.load(Ordering::Relaxed) * 1_000_000 }
    }
    fn wall(&self) -> WallMillis {
        WallMillis(self.0.load(Ordering::Relaxed))
    }
    fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What an engine fails at.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum Fails {
    #[default]
    Nothing,
    /// To find what an index knows of.
    Finding,
    /// To do what was decided, so that nobody knows whether it is done.
    Applying,
    /// To begin the next update, and no other.
    Next,
}

/// An engine whose writes wait for a device that fails, and whose records can be damaged.
#[derive(Default)]
pub(super) struct Broken {
    engine: MemoryEngine,
    fails: Mutex<Fails>,
    damaged: Mutex<BTreeSet<Bytes>>,
}

impl Broken {
    pub(super) fn fails(&self, at: Fails) {
        *self.fails.lock() = at;
    }

    fn failed() -> StorageError {
        StorageError::Fatal { reason: "as planned".to_owned() }
    }
}

impl StorageEngine for Broken {
    storage::forward_engine!(engine: get, durable, sync, position, scan, walk, partitions, drop_partition, stats, close);

    fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        if self.damaged.lock().contains(key) {
            return Err(StorageError::Corrupt { partition });
        }
        let fails = *self.fails.lock();
        match fails {
            Fails::Next => {
                self.fails(Fails::Nothing);
                Err(Broken::failed())
            }
            Fails::Applying => {
                change(self.engine.get(partition, token, key)?.as_ref());
                Err(Broken::failed())
            }
            Fails::Nothing | Fails::Finding => self.engine.update(partition, token, key, change),
        }
    }

    fn acknowledges_at_once(&self) -> bool {
        false
    }

    fn repairable(&self) -> Option<&dyn RepairableEngine> {
        Some(self)
    }

    fn find(
        &self,
        partition: PartitionId,
        token: Token,
        fingerprint: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        if *self.fails.lock() == Fails::Finding {
            return Err(Broken::failed());
        }
        self.engine.find(partition, token, fingerprint)
    }
}

impl RepairableEngine for Broken {
    fn discard_corrupt(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
    ) -> Result<bool, StorageError> {
        let was_damaged = self.damaged.lock().remove(key);
        if was_damaged {
            self.engine.update(partition, token, key, &mut |_| Change::Remove)?;
        }
        Ok(was_damaged)
    }

    fn discard_damaged(&self, _: PartitionId) -> Result<u64, StorageError> {
        Ok(0)
    }

    fn settle_unplaced(&self) {}

    fn damage(&self) -> DamageStats {
        DamageStats::default()
    }
}

const KEY: &[u8] = b"k";
const NOON: WallMillis = WallMillis(1_000_000);

/// Of two replicas, so that trees are kept.
fn store(engine: Arc<dyn StorageEngine>) -> LocalStore {
    let two = Consistency { replicas: 2, reads_required: 1, writes_required: 1 };
    let definition = Store::new(StoreName::new("s").unwrap(), two).unwrap();
    let wall = Wall::default();
    wall.set(NOON.0);
    LocalStore::new(definition, engine, Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(wall))))
}

fn ring() -> Ring {
    Ring::equal_slices(1, &[(NodeId(1), Zone("z".to_owned()))])
}

fn place_in(partition: u32, key: &[u8]) -> KeyPlace {
    KeyPlace { partition: PartitionId(partition), token: Token::of(key) }
}

fn place(key: &[u8]) -> KeyPlace {
    place_in(0, key)
}

fn order(value: Value) -> WriteOrder {
    WriteOrder { context: None, condition: Condition::None, expires: None, value }
}

fn text(value: &str) -> Value {
    Value::Present(Bytes::copy_from_slice(value.as_bytes()))
}

/// What another node wrote: events of its only actor, of which `last` is the newest and all that is left.
fn of_another(last: u64, value: Value, expires: Option<WallMillis>) -> VersionSet {
    let actor = Actor { node: NodeId(2), incarnation: 1, birth: 1 };
    let timestamp = Timestamp(0).next(WallMillis(last));
    let version = Version { dot: Dot { actor, count: last }, timestamp, expires, value };
    VersionSet::from_parts(Vector::from_entries([(actor, last)]), [version].into_iter().collect()).unwrap()
}

#[test]
fn trees_are_reused_after_a_clean_stop() {
    let engine = Arc::new(MemoryEngine::new());
    let before = store(engine.clone());
    before.shape(&ring());
    before.stamp(place(KEY), KEY, order(text("v"))).unwrap();
    let sum = before.tree_sum(PartitionId(0));
    assert!(sum.is_some());
    let trees: BTreeMap<_, _> = before.trees().counted().into_iter().collect();
    let after = store(engine.clone()).remembering(trees);
    after.shape(&ring());
    assert_eq!(after.tree_sum(PartitionId(0)), sum, "nothing has to be counted");
    let forgetful = store(engine);
    forgetful.shape(&ring());
    assert_eq!(forgetful.tree_sum(PartitionId(0)), None, "without them everything has");
}

#[test]
fn a_tree_is_doubtful_only_if_its_engine_failed_to_apply_a_change() {
    let engine = Arc::new(Broken::default());
    let store = store(engine.clone());
    store.shape(&ring());
    store.stamp(place(KEY), KEY, order(text("v"))).unwrap();
    let sum = store.tree_sum(PartitionId(0));
    assert!(sum.is_some());
    engine.fails(Fails::Applying);
    let absent = WriteOrder { condition: Condition::IfAbsent, ..order(text("w")) };
    assert_eq!(store.stamp(place(KEY), KEY, absent).unwrap_err().code, ErrorCode::StorageFailed);
    assert_eq!(store.tree_sum(PartitionId(0)), sum, "nothing was to be changed");
    store.stamp(place(KEY), KEY, order(text("w"))).unwrap_err();
    assert_eq!(store.tree_sum(PartitionId(0)), None, "nobody knows what the record is");
}

/// A damaged record is told of until there is a good one to take its place.
#[test]
fn a_damaged_record_is_replaced_by_a_copy_and_not_by_nothing() {
    let engine = Arc::new(Broken::default());
    let store = store(engine.clone());
    store.shape(&ring());
    store.merge(place(KEY), KEY, &of_another(1, text("v"), None)).unwrap();
    engine.damaged.lock().insert(Bytes::from_static(KEY));
    let refused = store.merge(place(KEY), KEY, &VersionSet::default()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Corrupt);
    assert!(engine.damaged.lock().contains(KEY), "it is still there, and still damaged");
    let copy = of_another(1, text("v"), None);
    assert_eq!(store.merge(place(KEY), KEY, &copy).unwrap().0, Merged::Changed);
    assert_eq!(store.get(place(KEY), KEY).unwrap(), copy);
    assert_eq!(store.trees().repaired(), 1);
    engine.fails(Fails::Next);
    let newer = of_another(2, text("w"), None);
    let refused = store.merge(place(KEY), KEY, &newer).unwrap_err();
    assert_eq!(refused.code, ErrorCode::StorageFailed, "only damage is mended");
    assert_eq!((store.get(place(KEY), KEY).unwrap(), store.trees().repaired()), (copy, 1));
}

#[test]
fn the_engine_decides_whether_a_write_is_waited_for() {
    assert!(store(Arc::new(MemoryEngine::new())).acknowledges_at_once());
    assert!(!store(Arc::new(Broken::default())).acknowledges_at_once());
}

#[test]
fn a_walk_finds_dropped_tombstones_once_there_is_room_for_them() {
    let store = store(Arc::new(MemoryEngine::new())).remembering_tombstones(2);
    assert!(!store.tombstones_overflowed());
    let keys = [&b"a"[..], b"b", b"c"];
    for key in keys {
        store.stamp(place(key), key, order(Value::Tombstone)).unwrap();
    }
    assert!(!store.tombstones_overflowed(), "there is no room");
    let known = store.tombstones_after(None, 9);
    store.tombstone_gone(&known[0]);
    assert!(store.tombstones_overflowed());
    assert!(!store.tombstones_overflowed(), "one walk is enough");
    let place = (PartitionId(0), Some(ScanCursor { token: known[1].0, key: known[1].1.clone() }));
    store.tombstones_unwalked(place.clone());
    assert_eq!(store.tombstones_resume(), Some(place));
    assert_eq!(store.tombstones_resume(), None);
}

/// No later stamp may be smaller than one that was forgotten, and what others still show must not be forgotten.
#[test]
fn a_tombstone_may_be_forgotten_once_its_stamp_and_its_time_are_past() {
    let store = store(Arc::new(MemoryEngine::new()));
    let tombstone = of_another(1000, Value::Tombstone, None);
    let reaped = of_another(1000, Value::Tombstone, Some(WallMillis(2000)));
    let value = of_another(1000, text("v"), None);
    for (set, at, forgettable) in [
        (&tombstone, 999, Some(None)),
        (&tombstone, 1000, Some(Some(tombstone.clone()))),
        (&reaped, 999, Some(None)),
        (&reaped, 1999, Some(None)),
        (&reaped, 2000, Some(Some(reaped.clone()))),
        (&value, 2000, None),
    ] {
        let key = format!("{set:?}").into_bytes();
        store.merge(place(&key), &key, set).unwrap();
        assert_eq!(store.tombstone(place(&key), &key, WallMillis(at)), forgettable, "{set:?} at {at}");
    }
    assert_eq!(store.tombstone(place(KEY), KEY, NOON), None, "it was never written");
}

#[test]
fn forgetting_removes_an_older_tombstone_but_no_live_value_or_newer_tombstone() {
    let forgotten = of_another(5, Value::Tombstone, None);
    for (set, removed) in [
        (of_another(5, Value::Tombstone, None), true),
        (of_another(4, Value::Tombstone, None), true),
        (of_another(5, text("expired"), Some(WallMillis(1))), true),
        (of_another(4, text("v"), None), false),
        (of_another(6, Value::Tombstone, None), false),
        (of_another(6, text("v"), None), false),
    ] {
        // A margin without end: what has expired stays as it is.
        let store = store(Arc::new(MemoryEngine::new())).keeping_expired(std::time::Duration::MAX);
        store.merge(place(KEY), KEY, &set).unwrap();
        let forget = store.forget(place(KEY), &Bytes::from_static(KEY), &forgotten);
        assert_eq!(forget, Ok(removed), "{set:?}");
        assert_eq!(store.get(place(KEY), KEY).unwrap().is_empty(), removed, "{set:?}");
    }
}

#[test]
fn a_census_counts_live_and_expiring_keys_in_the_given_partitions() {
    let store = store(Arc::new(MemoryEngine::new()));
    let write = |partition, key: &str, value, expires: Option<u64>| {
        let order = WriteOrder { expires: expires.map(|left| WallMillis(NOON.0 + left)), ..order(value) };
        store.stamp(place_in(partition, key.as_bytes()), key.as_bytes(), order).unwrap();
    };
    write(0, "stays", text("v"), None);
    write(0, "goes soon", text("v"), Some(10_000));
    write(1, "goes later", text("v"), Some(20_000));
    write(1, "has gone", text("v"), Some(0));
    write(1, "is deleted", Value::Tombstone, None);
    write(2, "is not asked for", text("v"), None);
    let census = store.census(|partition| partition.0 < 2, NOON).unwrap();
    let counted = Census { keys: 3, expiring: 2, left_ms_mean: 15_000, share: 1.0, keys_everywhere: None };
    assert_eq!(census, counted);
    assert_eq!(store.census(|_| false, NOON).unwrap(), Census { share: 1.0, ..Census::default() });
}

/// It would read a whole store otherwise, for a number that is shown.
#[test]
fn a_census_stops_after_four_mebibytes_and_extrapolates() {
    let store = store(Arc::new(MemoryEngine::new()));
    let large = Value::Present(vec![7; 1 << 20].into());
    for number in 0..4 {
        let (live, gone) = (format!("live{number}"), format!("gone{number}"));
        store.stamp(place_in(0, live.as_bytes()), live.as_bytes(), order(large.clone())).unwrap();
        store.stamp(place_in(1, gone.as_bytes()), gone.as_bytes(), order(Value::Tombstone)).unwrap();
    }
    assert_eq!(store.census(|_| true, NOON).unwrap().keys, 8, "all that was seen was live");
    assert_eq!(store.census(|partition| partition.0 == 1, NOON).unwrap().keys, 0);
}

#[test]
fn a_page_says_how_many_bytes_of_keys_and_records_it_holds() {
    let engine = Arc::new(MemoryEngine::new());
    let store = store(engine.clone());
    let mut bytes = 0;
    for key in [&b"short"[..], b"rather longer", b"the longest of all"] {
        store.stamp(place(key), key, order(text("v"))).unwrap();
        let record = engine.get(PartitionId(0), Token::of(key), key).unwrap().unwrap();
        bytes += key.len() + record.len();
    }
    let limit = ScanLimit { records_max: 3, bytes_max: usize::MAX };
    let page = store.scan_complete(PartitionId(0), None, limit).unwrap();
    assert_eq!((page.records.len(), page.bytes), (3, bytes));
}
