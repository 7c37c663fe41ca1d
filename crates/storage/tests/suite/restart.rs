//! What a restart makes of each way in which files can be left: torn ends, damage of what was synced, copies beside
//! their sources, two keys that look alike.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use model::{PartitionId, Token};
use runtime::Disk;
use runtime::disk::simulated::{DiskOperation, SimulatedDisk};
use storage::{
    Change, Durability, LogEngine, LogOptions, Remains, RepairableEngine, StorageEngine, StorageError,
};

use crate::setup::{DIRECTORY, get, write};
use crate::watched::{Call, WatchedDisk};
use crate::world::World;

const FIRST: &str = "0000000001.log";
const ZERO: PartitionId = PartitionId(0);
const CORRUPT: StorageError = StorageError::Corrupt { partition: ZERO };

fn options(segment_bytes: u64) -> LogOptions {
    LogOptions {
        durability: Durability::Every { milliseconds: 10 },
        segment_bytes,
        reserve_bytes: 0,
        snapshot_bytes: 1 << 30,
    }
}

fn open(disk: &SimulatedDisk, options: LogOptions) -> (World, Arc<LogEngine>) {
    let world = World::default();
    let opening = LogEngine::open(Arc::new(disk.clone()), DIRECTORY, options, world.ports());
    let engine = world.block_on(opening).unwrap();
    (world, engine)
}

fn path(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

fn lose_index(disk: &SimulatedDisk) {
    disk.remove(&path("index")).unwrap();
}

/// Where the record of this key and value starts in a file.
fn record_of(disk: &SimulatedDisk, name: &str, key_and_value: &str) -> u64 {
    let contents = disk.contents(&path(name)).unwrap();
    let wanted = key_and_value.as_bytes();
    contents.windows(wanted.len()).rposition(|window| window == wanted).unwrap() as u64 - 48
}

/// Found, left and unplaced.
fn damage(engine: &LogEngine) -> (u64, u64, u64) {
    let damage = engine.damage();
    (damage.found, damage.left, damage.unplaced)
}

fn read(engine: &LogEngine, key: &str) -> Result<Option<Vec<u8>>, StorageError> {
    let found = engine.get(ZERO, Token::of(key.as_bytes()), key.as_bytes());
    found.map(|record| record.map(|record| record.to_vec()))
}

#[test]
fn a_torn_end_is_cut_off_and_no_later_start_takes_it_for_damage() {
    for (index, torn) in [(true, 7), (false, 7), (true, 49), (false, 49), (true, 200), (false, 200)] {
        let disk = SimulatedDisk::new(0);
        let (world, engine) = open(&disk, options(4096));
        write(&*engine, 0, b"k", Some(b"value".to_vec())).unwrap();
        world.block_on(engine.close()).unwrap();
        if !index {
            lose_index(&disk);
        }
        let sound = disk.contents(&path(FIRST)).unwrap();
        disk.plant(&path(FIRST), &[&sound[..], &vec![0x5a; torn]].concat());
        let (world, engine) = open(&disk, options(4096));
        assert_eq!(damage(&engine), (0, 0, 0), "index {index}, {torn} bytes");
        assert!(disk.contents(&path(FIRST)).unwrap() == sound, "index {index}, {torn} bytes are gone");
        write(&*engine, 0, b"more", Some(b"value".to_vec())).unwrap();
        world.block_on(engine.close()).unwrap();
        // Marks now say that the segment was synced to its end.
        lose_index(&disk);
        let (_world, engine) = open(&disk, options(4096));
        assert_eq!((damage(&engine), engine.stats().records), ((0, 0, 0), 2), "index {index}, {torn} bytes");
    }
}

#[test]
fn damage_at_the_end_of_a_segment_that_a_later_one_says_was_synced_is_not_taken_for_a_torn_end() {
    let disk = SimulatedDisk::new(0);
    let (world, engine) = open(&disk, options(1024));
    for values in [vec![("k", "older".to_owned())], vec![("big", "b".repeat(900)), ("k", "newer".to_owned())]]
    {
        for (key, value) in values {
            write(&*engine, 0, key.as_bytes(), Some(value.into())).unwrap();
        }
        world.block_on(engine.sync()).unwrap();
    }
    write(&*engine, 0, b"next", Some(b"segment".to_vec())).unwrap();
    world.block_on(engine.sync()).unwrap();
    drop((world, engine));
    disk.kill();
    assert!(disk.contents(&path("0000000002.log")).is_some() && disk.contents(&path("index")).is_none());
    let at = record_of(&disk, FIRST, "knewer");
    for (byte, unplaced) in [(at + 50, 0), (at + 20, 1)] {
        let disk = disk.after_kill(DIRECTORY);
        assert!(disk.flip_bit(&path(FIRST), byte, 1));
        let before = disk.contents(&path(FIRST));
        let (_world, engine) = open(&disk, options(1024));
        assert_eq!(damage(&engine), (1, 1, unplaced));
        assert!(disk.contents(&path(FIRST)) == before, "nothing of it is cut off");
        if unplaced == 0 {
            assert_eq!(read(&engine, "k"), Err(CORRUPT), "and not the older one");
        }
        assert_eq!(read(&engine, "next"), Ok(Some(b"segment".to_vec())));
    }
}

/// An engine that has written an index of 100 keys by itself; `beside` comes when that had begun, and nothing was
/// synced since.
fn with_index_and(beside: &'static [(&'static str, &'static str)]) -> (World, SimulatedDisk, Arc<LogEngine>) {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine: Arc<Mutex<Option<Arc<LogEngine>>>> = Arc::default();
    let (writer, written) = (engine.clone(), AtomicBool::new(false));
    let onlooker = move |call: Call<'_>| {
        let index = call.operation == DiskOperation::Append && call.path.ends_with("/index.tmp");
        if index && !written.swap(true, Ordering::Relaxed) {
            let engine = writer.lock().unwrap().clone().unwrap();
            for (key, value) in beside {
                write(&*engine, 0, key.as_bytes(), Some(value.as_bytes().to_vec())).unwrap();
            }
        }
    };
    let watched = WatchedDisk { disk: Arc::new(disk.clone()), onlooker: Arc::new(onlooker) };
    let options = LogOptions { durability: Durability::System, snapshot_bytes: 8 << 10, ..options(64 << 10) };
    let opened =
        world.block_on(LogEngine::open(Arc::new(watched), DIRECTORY, options, world.ports())).unwrap();
    *engine.lock().unwrap() = Some(opened.clone());
    for number in 0..100 {
        write(&*opened, 0, format!("key {number:03}").as_bytes(), Some(b"first".repeat(8))).unwrap();
    }
    world.pass(Duration::from_secs(1));
    assert!(disk.contents(&path("index")).is_some());
    *engine.lock().unwrap() = None;
    (world, disk, opened)
}

#[test]
fn damage_of_what_an_index_says_was_synced_is_told_though_no_mark_says_so() {
    let (_world, disk, engine) = with_index_and(&[("key 007", "second")]);
    drop(engine);
    disk.kill();
    let at = record_of(&disk, FIRST, "key 007second");
    for byte in [at + 57, at + 20] {
        let disk = disk.after_kill(DIRECTORY);
        assert!(disk.flip_bit(&path(FIRST), byte, 1));
        let before = disk.contents(&path(FIRST));
        let (_world, engine) = open(&disk, options(64 << 10));
        assert_eq!(damage(&engine), (1, 1, 0), "the index points at it");
        assert!(disk.contents(&path(FIRST)) == before, "nothing of it is cut off");
        assert_eq!(read(&engine, "key 007"), Err(CORRUPT), "and not the older one");
    }
}

#[test]
fn what_follows_an_index_in_the_log_overrides_it() {
    let (world, disk, engine) = with_index_and(&[("key 000", "beside"), ("new 1", "beside")]);
    let put = |key: &str, value: Option<&str>| {
        write(&*engine, 0, key.as_bytes(), value.map(|value| value.as_bytes().to_vec())).unwrap();
    };
    put("key 001", Some("second"));
    put("key 001", Some("third"));
    put("new 2", Some("second"));
    put("key 002", None);
    put("key 003", None);
    put("key 003", Some("again"));
    world.block_on(engine.sync()).unwrap();
    drop(engine);
    disk.kill();
    for lost in [false, true] {
        let disk = disk.after_kill(DIRECTORY);
        if lost {
            lose_index(&disk);
        }
        let (_world, engine) = open(&disk, options(64 << 10));
        assert_eq!((engine.stats().records, damage(&engine)), (101, (0, 0, 0)), "index lost: {lost}");
        for (key, value) in [
            ("key 000", Some("beside")),
            ("new 1", Some("beside")),
            ("key 001", Some("third")),
            ("new 2", Some("second")),
            ("key 002", None),
            ("key 003", Some("again")),
        ] {
            assert_eq!(get(&*engine, 0, key), value.map(|value| value.as_bytes().to_vec()), "{key}");
        }
        assert_eq!(get(&*engine, 0, "key 099"), Some(b"first".repeat(8)));
    }
}

/// Its key cannot be compared any more: it counts as the one that its entry is of.
#[test]
fn a_record_whose_key_is_damaged_gives_way_to_what_follows_of_its_key() {
    let (world, disk, engine) = with_index_and(&[]);
    write(&*engine, 0, b"key 007", None).unwrap();
    write(&*engine, 0, b"key 008", Some(b"second".to_vec())).unwrap();
    world.block_on(engine.sync()).unwrap();
    drop(engine);
    disk.kill();
    for key in ["key 007", "key 008"] {
        let at = record_of(&disk, FIRST, &format!("{key}first"));
        assert!(disk.flip_bit(&path(FIRST), at + 48 + 6, 3));
    }
    let (_world, engine) = open(&disk, options(64 << 10));
    assert_eq!((engine.stats().records, damage(&engine)), (99, (0, 0, 0)));
    assert_eq!(
        (read(&engine, "key 007"), read(&engine, "key 008")),
        (Ok(None), Ok(Some(b"second".to_vec())))
    );
}

#[test]
fn an_index_that_was_written_when_a_segment_had_just_been_closed_is_believed() {
    let disk = SimulatedDisk::new(0);
    let (world, engine) = open(&disk, LogOptions { snapshot_bytes: 512, ..options(1024) });
    write(&*engine, 0, b"k", Some(vec![1; 1000])).unwrap();
    world.pass(Duration::from_secs(1));
    drop(engine);
    disk.kill();
    assert_eq!(disk.list(DIRECTORY).unwrap(), [FIRST, "FORMAT", "LOCK", "index"]);
    assert!(disk.flip_bit(&path(FIRST), 64 + 10, 0));
    let (_world, engine) = open(&disk, options(1024));
    assert_eq!((engine.stats().records, damage(&engine)), (1, (0, 0, 0)), "only the index was read");
}

/// What a restart finds behind the index may never have been synced, and for a copy there is no room.
#[test]
fn what_a_restart_finds_is_synced_before_it_is_acknowledged_on_a_full_disk_too() {
    let (world, disk, engine) = with_index_and(&[]);
    let commit = write(&*engine, 0, b"key 007", Some(b"second".to_vec())).unwrap().unwrap();
    world.block_on(engine.durable(commit).wait()).unwrap();
    drop(engine);
    disk.kill();
    disk.set_capacity(Some(disk.used_bytes() + 10));
    let (world, engine) = open(&disk, LogOptions { durability: Durability::Always, ..options(64 << 10) });
    assert_eq!(read(&engine, "key 007"), Ok(Some(b"second".to_vec())));
    world.block_on(engine.durable(engine.position()).wait()).unwrap();
    let left = disk.after_power_cut(DIRECTORY);
    let (_world, engine) = open(&left, options(64 << 10));
    assert_eq!(read(&engine, "key 007"), Ok(Some(b"second".to_vec())));
}

/// Pairs of keys with one fingerprint: of the same length, and the second one longer.
fn pairs() -> [(String, String); 2] {
    let mut met: BTreeMap<u32, String> = BTreeMap::new();
    let (mut same, mut longer) = (None, None);
    for number in 0.. {
        for key in [format!("{number:06}"), format!("longer {number:06}")] {
            let Some(other) = met.insert(storage::fingerprint(key.as_bytes()), key.clone()) else { continue };
            match other.len().cmp(&key.len()) {
                std::cmp::Ordering::Equal => same = Some((other, key)),
                std::cmp::Ordering::Less => longer = Some((other, key)),
                std::cmp::Ordering::Greater => longer = Some((key, other)),
            }
        }
        if let (Some(same), Some(longer)) = (&same, &longer) {
            return [same.clone(), longer.clone()];
        }
    }
    unreachable!("two of that many keys have the same 32 bits")
}

#[test]
fn two_keys_with_one_token_and_one_fingerprint_are_told_apart_by_every_start() {
    const TOKEN: Token = Token(7);
    let [same, longer] = pairs();
    for (one, two) in [same, longer.clone(), (longer.1, longer.0)] {
        let disk = SimulatedDisk::new(0);
        let put = |engine: &LogEngine, key: &str, value: Option<&str>| {
            let change = &mut |_: Option<&Bytes>| match value {
                Some(value) => Change::Put(Bytes::copy_from_slice(value.as_bytes())),
                None => Change::Remove,
            };
            engine.update(ZERO, TOKEN, key.as_bytes(), change).unwrap();
        };
        let check = |engine: &LogEngine, first: Option<&str>, second: Option<&str>| {
            for (key, value) in [(&one, first), (&two, second)] {
                let found = engine.get(ZERO, TOKEN, key.as_bytes()).unwrap();
                assert_eq!(found.as_deref(), value.map(str::as_bytes), "{key:?} of {one:?} and {two:?}");
            }
            let records = u64::from(first.is_some()) + u64::from(second.is_some());
            assert_eq!(engine.stats().records, records);
        };
        let end = |world: &World, engine: Arc<LogEngine>, clean: bool| {
            world.block_on(if clean { engine.close() } else { engine.sync() }).unwrap();
            drop(engine);
            disk.kill();
        };
        let (world, engine) = open(&disk, options(4096));
        put(&engine, &one, Some("first of one"));
        put(&engine, &two, Some("first of two"));
        end(&world, engine, false);
        let (world, engine) = open(&disk, options(4096));
        check(&engine, Some("first of one"), Some("first of two"));
        put(&engine, &one, Some("second of one"));
        check(&engine, Some("second of one"), Some("first of two"));
        end(&world, engine, false);
        // From the whole log.
        let (world, engine) = open(&disk, options(4096));
        check(&engine, Some("second of one"), Some("first of two"));
        end(&world, engine, true);
        // From the index and what follows it.
        let (world, engine) = open(&disk, options(4096));
        put(&engine, &two, Some("second of two"));
        put(&engine, &one, Some("third of one"));
        end(&world, engine, false);
        let (world, engine) = open(&disk, options(4096));
        check(&engine, Some("third of one"), Some("second of two"));
        put(&engine, &one, None);
        end(&world, engine, false);
        let (_world, engine) = open(&disk, options(4096));
        check(&engine, None, Some("second of two"));
        drop(engine);
        disk.kill();
        lose_index(&disk);
        let (_world, engine) = open(&disk, options(4096));
        check(&engine, None, Some("second of two"));
    }
}

/// A record and its copy, both still there, as when the process ends before an index does without the source.
fn with_copy() -> (SimulatedDisk, String) {
    let disk = SimulatedDisk::new(0);
    let (world, engine) = open(&disk, options(1024));
    write(&*engine, 0, b"cold", Some(b"value".repeat(50))).unwrap();
    write(&*engine, 0, b"warm", Some(vec![1; 700])).unwrap();
    world.block_on(engine.sync()).unwrap();
    write(&*engine, 0, b"warm", Some(vec![2; 700])).unwrap();
    world.pass(Duration::from_secs(1));
    drop(engine);
    disk.kill();
    let names = disk.list(DIRECTORY).unwrap();
    let copy = names.iter().find(|name| name.ends_with(".compacted")).expect("it was copied").clone();
    assert!(names.iter().any(|name| name == FIRST) && !names.iter().any(|name| name == "index"), "{names:?}");
    (disk, copy)
}

#[test]
fn of_a_record_and_its_copy_the_one_that_holds_is_found() {
    let (disk, copy) = with_copy();
    for (damaged, whole) in [(FIRST, true), (&*copy, true), ("neither", true), ("both", false)] {
        let disk = disk.after_kill(DIRECTORY);
        for name in [FIRST, &*copy] {
            if damaged == name || damaged == "both" {
                let at = record_of(&disk, name, "coldvalue");
                assert!(disk.flip_bit(&path(name), at + 100, 0));
            }
        }
        let (world, engine) = open(&disk, options(1024));
        let expected = if whole { Ok(Some(b"value".repeat(50))) } else { Err(CORRUPT) };
        assert_eq!(read(&engine, "cold"), expected, "damaged: {damaged}");
        assert_eq!(damage(&engine).0, u64::from(!whole), "damaged: {damaged}");
        assert_eq!(read(&engine, "warm"), Ok(Some(vec![2; 700])));
        world.block_on(engine.close()).unwrap();
    }
}

#[test]
fn a_segment_that_the_index_does_without_is_removed_by_the_next_start() {
    let (disk, copy) = with_copy();
    let source = disk.contents(&path(FIRST)).unwrap();
    let (world, engine) = open(&disk, options(1024));
    world.block_on(engine.close()).unwrap();
    if disk.contents(&path(FIRST)).is_some() {
        let (world, engine) = open(&disk, options(1024));
        write(&*engine, 0, b"warm", Some(vec![3; 10])).unwrap();
        world.pass(Duration::from_secs(1));
        world.block_on(engine.close()).unwrap();
    }
    assert!(disk.contents(&path(FIRST)).is_none(), "an index without it is durable");
    disk.plant(&path(FIRST), &source);
    let (_world, engine) = open(&disk, options(1024));
    assert!(disk.contents(&path(FIRST)).is_none(), "as when the process had ended before it was removed");
    assert_eq!(read(&engine, "cold"), Ok(Some(b"value".repeat(50))), "{copy}");
}

#[test]
fn a_damaged_header_of_a_segment_is_told_and_costs_no_record_and_a_torn_one_is_nothing() {
    let disk = SimulatedDisk::new(0);
    let (world, engine) = open(&disk, options(4096));
    write(&*engine, 0, b"k", Some(b"value".to_vec())).unwrap();
    world.block_on(engine.close()).unwrap();
    for index in [true, false] {
        let disk = disk.after_kill(DIRECTORY);
        if !index {
            lose_index(&disk);
        }
        assert!(disk.flip_bit(&path(FIRST), 30, 3));
        let (_world, engine) = open(&disk, options(4096));
        assert_eq!((damage(&engine), read(&engine, "k")), ((1, 1, 1), Ok(Some(b"value".to_vec()))));
    }
    for bytes in [1, 63] {
        let disk = disk.after_kill(DIRECTORY);
        disk.plant(&path("0000000009.log"), &vec![b'T'; bytes]);
        let (world, engine) = open(&disk, options(4096));
        assert_eq!((damage(&engine), read(&engine, "k")), ((0, 0, 0), Ok(Some(b"value".to_vec()))));
        world.block_on(engine.close()).unwrap();
        let (_world, engine) = open(&disk, options(4096));
        assert_eq!(damage(&engine), (0, 0, 0), "nothing was ever promised of it");
    }
}

#[test]
fn a_segment_that_has_lost_its_last_removal_or_changed_its_kind_is_told() {
    let disk = SimulatedDisk::new(0);
    let (world, engine) = open(&disk, options(1024));
    write(&*engine, 0, b"gone", Some(b"value".to_vec())).unwrap();
    write(&*engine, 0, b"big", Some(vec![1; 900])).unwrap();
    write(&*engine, 0, b"gone", None).unwrap();
    world.block_on(engine.sync()).unwrap();
    write(&*engine, 0, b"next", Some(b"segment".to_vec())).unwrap();
    world.block_on(engine.close()).unwrap();
    let bytes = disk.contents(&path(FIRST)).unwrap();
    assert!(!bytes.windows(7).any(|window| window == b"segment"), "the removal is its last record");
    let shorter = disk.after_kill(DIRECTORY);
    shorter.plant(&path(FIRST), &bytes[..bytes.len() - 8]);
    assert!(matches!(LogEngine::remains(&shorter, DIRECTORY), Ok(Remains::Part(_))));
    let (_world, engine) = open(&shorter, options(1024));
    assert!(engine.damage().left > 0, "what is missing may have replaced anything");
    assert_eq!(read(&engine, "big"), Ok(Some(vec![1; 900])));

    assert!(matches!(LogEngine::remains(&disk, DIRECTORY), Ok(Remains::Whole(_))));
    disk.remove(&path(FIRST)).unwrap();
    disk.plant(&path("0000000001.compacted"), &bytes);
    assert!(matches!(LogEngine::remains(&disk, DIRECTORY), Ok(Remains::Part(_))));
    let (_world, engine) = open(&disk, options(1024));
    assert!(engine.damage().left > 0, "it is another file");
}

#[test]
fn what_may_not_be_synced_is_written_anew_and_read_from_there() {
    let disk = SimulatedDisk::new(0);
    let (world, engine) = open(&disk, options(4096));
    let commit = write(&*engine, 0, b"k", Some(b"value".to_vec())).unwrap().unwrap();
    world.block_on(engine.durable(commit).wait()).unwrap();
    drop(engine);
    disk.kill();
    let (_world, engine) = open(&disk, options(4096));
    let at = record_of(&disk, FIRST, "kvalue");
    assert_eq!(disk.synced_bytes(&path(FIRST)), at + 56, "the new file is synced");
    assert!(disk.flip_bit(&path(FIRST), at + 50, 0));
    assert_eq!(read(&engine, "k"), Err(CORRUPT));
}
