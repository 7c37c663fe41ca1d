//! Where the log engine's limits lie: exactly at each, and one beyond. And what comes in between two of its steps.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use model::{PartitionId, Token};
use runtime::Disk;
use runtime::disk::simulated::{DiskOperation, SimulatedDisk};
use storage::{Change, Durability, LogEngine, LogOptions, StorageEngine, StorageError};

use crate::setup::{DIRECTORY, get, write};
use crate::watched::{Call, WatchedDisk};
use crate::world::World;

const HEADER: usize = 64;
const MARK: usize = 48;

fn open(disk: impl Disk + 'static, world: &World, segment_bytes: u64) -> Arc<LogEngine> {
    let durability = Durability::Every { milliseconds: 10 };
    let options = LogOptions { durability, segment_bytes, reserve_bytes: 0, snapshot_bytes: 1 << 30 };
    world.block_on(LogEngine::open(Arc::new(disk), DIRECTORY, options, world.ports())).unwrap()
}

/// Puts a record that takes this many bytes of its segment.
fn put(engine: &LogEngine, key: &str, space: usize) {
    write(engine, 0, key.as_bytes(), Some(vec![7; space - 48 - key.len()])).unwrap();
}

fn length(disk: &SimulatedDisk, segment: u32) -> Option<usize> {
    disk.contents(&format!("{DIRECTORY}/{segment:010}.log")).map(|contents| contents.len())
}

#[test]
fn a_segment_is_closed_when_it_has_as_many_bytes_as_the_setting_says() {
    for (space, closed) in [(1024 - HEADER - 8, false), (1024 - HEADER, true)] {
        let (world, disk) = (World::default(), SimulatedDisk::new(0));
        let engine = open(disk.clone(), &world, 1024);
        put(&engine, "k", space);
        world.block_on(engine.sync()).unwrap();
        put(&engine, "more", 64);
        world.block_on(engine.sync()).unwrap();
        let next = closed.then_some(HEADER + MARK + 64);
        let first = HEADER + space + if closed { 0 } else { MARK + 64 };
        assert_eq!((length(&disk, 1), length(&disk, 2)), (Some(first), next));
    }
}

/// Writers that are faster than the committer: a segment grows to twice its size, and by one record.
#[test]
fn a_segment_that_nobody_closes_overshoots_twice_its_size_by_one_record_and_no_more() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(disk.clone(), &world, 1024);
    put(&engine, "one", 1024 - HEADER);
    put(&engine, "two", 1024);
    put(&engine, "three", 512);
    put(&engine, "four", 64);
    assert_eq!(length(&disk, 1), Some(2048 + 512), "it was closed for the last one");
    world.block_on(engine.sync()).unwrap();
    assert_eq!(length(&disk, 2), Some(HEADER + 64));
}

#[test]
fn no_more_than_256_kib_wait_in_memory() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(disk.clone(), &world, 1 << 30);
    let before = engine.stats().memory_bytes;
    put(&engine, "one", (256 << 10) - HEADER);
    assert_eq!(length(&disk, 1), None, "the committer will come");
    assert!(engine.stats().memory_bytes >= before + (256 << 10), "what waits is told");
    put(&engine, "two", 64);
    assert_eq!(length(&disk, 1), Some((256 << 10) + 64));
    let after = engine.stats().memory_bytes;
    assert!(
        (before + 2 * 25..before + (64 << 10)).contains(&after),
        "two entries, and nothing waits: {after}"
    );
}

/// A key so long that its removal takes this many bytes.
fn long_key(number: usize, space: usize) -> String {
    format!("{number:0width$}", width = space - 48)
}

#[test]
fn while_the_disk_is_full_removals_wait_in_memory_until_four_mib_do() {
    const SPACE: usize = 64 << 10;
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(disk.clone(), &world, 1 << 30);
    // The mark of the sync comes before the first.
    let keys: Vec<String> =
        (0..70).map(|number| long_key(number, if number == 0 { SPACE - MARK } else { SPACE })).collect();
    for key in &keys {
        write(&*engine, 0, key.as_bytes(), Some(b"v".to_vec())).unwrap();
    }
    world.block_on(engine.sync()).unwrap();
    disk.set_capacity(Some(disk.used_bytes()));
    let remove = |key: &str| write(&*engine, 0, key.as_bytes(), None);
    let first = remove(&keys[0]).unwrap().unwrap();
    assert_eq!(world.block_on(engine.durable(first).wait()), Err(StorageError::Full));
    let removed = 1 + keys[1..].iter().take_while(|key| remove(key).is_ok()).count();
    assert_eq!(removed, 65, "four MiB waited, and one more was taken");
    assert_eq!(remove(&keys[65]), Err(StorageError::Full));
    assert_eq!(engine.drop_partition(PartitionId(0)), Err(StorageError::Full));
    assert_eq!((get(&*engine, 0, &keys[64]), get(&*engine, 0, &keys[65])), (None, Some(b"v".to_vec())));
    disk.set_capacity(None);
    world.pass(Duration::from_secs(1));
    assert!(remove(&keys[65]).is_ok());
    world.block_on(engine.sync()).unwrap();
    drop(engine);
    disk.kill();
    let engine = open(disk, &World::default(), 1 << 30);
    assert_eq!(engine.stats().records, 4);
}

#[test]
fn a_key_of_65535_bytes_is_taken_and_found_again() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(disk.clone(), &world, 1 << 20);
    let key = long_key(1, 65_535 + 48);
    write(&*engine, 0, key.as_bytes(), Some(b"v".to_vec())).unwrap();
    world.block_on(engine.close()).unwrap();
    for lost in [false, true] {
        let disk = disk.after_kill(DIRECTORY);
        if lost {
            disk.remove(&format!("{DIRECTORY}/index")).unwrap();
        }
        assert_eq!(get(&*open(disk, &World::default(), 1 << 20), 0, &key), Some(b"v".to_vec()));
    }
}

/// The file is written without the lock that writers need: what they append meanwhile is of the same segment.
#[test]
fn what_is_appended_while_a_segment_is_being_closed_is_in_it() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine: Arc<Mutex<Option<Arc<LogEngine>>>> = Arc::default();
    let (beside, written) = (engine.clone(), AtomicU32::new(0));
    let onlooker = move |call: Call<'_>| {
        if call.begins && call.operation == DiskOperation::Append && call.path.ends_with("0000000001.log") {
            let number = written.fetch_add(1, Ordering::Relaxed);
            if number < 2 {
                let engine = beside.lock().unwrap().clone().unwrap();
                put(&engine, &format!("beside {number}"), 64);
            }
        }
    };
    let watched = WatchedDisk { disk: Arc::new(disk.clone()), onlooker: Arc::new(onlooker) };
    let opened = open(watched, &world, 1024);
    *engine.lock().unwrap() = Some(opened.clone());
    put(&opened, "k", 1024);
    world.block_on(opened.sync()).unwrap();
    assert_eq!((length(&disk, 1), length(&disk, 2)), (Some(HEADER + 1024 + 2 * 64), None));
    *engine.lock().unwrap() = None;
    drop(opened);
    disk.kill();
    let engine = open(disk, &World::default(), 1024);
    for key in ["k", "beside 0", "beside 1"] {
        assert!(get(&*engine, 0, key).is_some(), "{key}");
    }
}

#[test]
fn a_write_that_was_begun_before_a_close_and_ends_after_it_is_refused() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(disk.clone(), &world, 1024);
    put(&engine, "k", 64);
    // The close waits for its first sync.
    disk.set_sync_duration(Arc::new(world.clone()), Duration::from_millis(5));
    let mut closing = engine.close();
    let change = &mut |_: Option<&Bytes>| {
        assert!(closing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        Change::Put(Bytes::from("late"))
    };
    let late = engine.update(PartitionId(0), Token::of(b"late"), b"late", change);
    assert_eq!(late, Err(StorageError::Closed));
    world.block_on(closing).unwrap();
    disk.set_sync_delay(None);
    let engine = open(disk, &World::default(), 1024);
    assert_eq!((get(&*engine, 0, "late"), engine.stats().records), (None, 1));
}

#[test]
fn an_engine_stops_when_somebody_else_writes_to_its_segment() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(disk.clone(), &world, 1024);
    put(&engine, "k", 64);
    world.block_on(engine.sync()).unwrap();
    disk.open(&format!("{DIRECTORY}/0000000001.log")).unwrap().append(b"somebody").unwrap();
    put(&engine, "more", 64);
    let synced = world.block_on(engine.sync());
    assert!(matches!(synced, Err(StorageError::Fatal { .. })), "{synced:?}");
    assert!(matches!(write(&*engine, 0, b"k", None), Err(StorageError::Fatal { .. })));
}
