//! Room comes back, and nothing else changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::{PartitionId, Token};
use runtime::Disk;
use runtime::disk::os::OsDisk;
use runtime::disk::simulated::{DiskOperation, SimulatedDisk};
use storage::{
    Durability, EnginePorts, LogEngine, LogOptions, RepairableEngine, StorageEngine, StorageError,
};

use crate::setup::{DIRECTORY, Stops, block_on, counted, get, small, write};
use crate::watched::{Call, WatchedDisk};
use crate::world::World;

const GROUPED: Durability = Durability::Every { milliseconds: 10 };

fn open(disk: &SimulatedDisk, world: &World) -> Arc<LogEngine> {
    let disk = Arc::new(disk.clone());
    world.block_on(LogEngine::open(disk, DIRECTORY, small(GROUPED), world.ports())).unwrap()
}

/// Writes down what a rebuild from all segments finds, without the snapshot.
fn forget_snapshot(disk: &SimulatedDisk) {
    disk.remove(&format!("{DIRECTORY}/index")).unwrap();
}

#[test]
fn overwriting_for_ever_takes_bounded_space() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world);
    let mut most = 0;
    for step in 0..9_000u32 {
        let number = step.wrapping_mul(2654435769) >> 22;
        write(&*engine, number % 4, format!("key {number}").as_bytes(), Some(vec![1; 100])).unwrap();
        if step % 20 == 0 {
            world.pass(Duration::from_millis(20));
        }
        if step > 3000 {
            most = most.max(engine.stats().disk_bytes);
        }
    }
    let live = engine.stats().records * 160;
    assert!(most < 2 * live + 16 * 1024, "{most} bytes for {live} live ones");
    assert!(engine.stats().compacted_bytes > 0);
}

/// Only closed segments gave room back: on a small disk all that was dead lay in the active one, and writes were refused
/// until somebody restarted the node.
#[test]
fn a_small_active_segment_that_is_mostly_dead_gives_its_room_back_when_room_is_short() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    disk.set_capacity(Some(8 << 20));
    let options = LogOptions { durability: GROUPED, reserve_bytes: 2 << 20, ..LogOptions::default() };
    let opening = LogEngine::open(Arc::new(disk.clone()), DIRECTORY, options, world.ports());
    let engine = world.block_on(opening).unwrap();
    let put =
        |step: u8| write(&*engine, 0, format!("key {}", step % 8).as_bytes(), Some(vec![step; 100_000]));
    let mut steps = 0..u8::MAX;
    let refused = steps.find(|&step| put(step).is_err()).expect("the disk fills up");
    let room = engine.room().unwrap();
    assert!(room.wanted > 100_000 && room.bytes < room.wanted && room.refused == 1, "{room:?}");
    assert!(refused > 50, "it was {refused} times overwritten");
    world.pass(Duration::from_secs(2));
    let room = engine.room().unwrap();
    assert!(room.wanted == 0 && room.bytes > 4 << 20, "{room:?}, {} bytes are used", disk.used_bytes());
    put(refused).unwrap();
    for step in refused - 7..=refused {
        assert_eq!(get(&*engine, 0, &format!("key {}", step % 8)), Some(vec![step; 100_000]));
    }
    world.block_on(engine.close()).unwrap();
}

#[test]
fn putting_and_removing_for_ever_takes_bounded_space_though_one_old_record_stays() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world);
    write(&*engine, 0, b"old", Some(vec![1; 900])).unwrap();
    let mut most = 0;
    for step in 0..4000u32 {
        let key = format!("key {step}");
        write(&*engine, 0, key.as_bytes(), Some(vec![2; 60])).unwrap();
        write(&*engine, 0, key.as_bytes(), None).unwrap();
        if step % 20 == 0 {
            world.pass(Duration::from_millis(20));
        }
        most = most.max(engine.stats().disk_bytes);
    }
    assert!(most < 32 * 1024, "{most} bytes");
    assert_eq!(get(&*engine, 0, "old"), Some(vec![1; 900]));
    world.block_on(engine.close()).unwrap();
    forget_snapshot(&disk);
    let engine = open(&disk, &world);
    assert_eq!(counted(&*engine), [(PartitionId(0), 1)], "nothing that was removed is back");
}

#[test]
fn removed_keys_stay_removed_whatever_was_compacted_when_the_index_is_lost() {
    for seed in 0..30u64 {
        let (world, disk) = (World::default(), SimulatedDisk::new(0));
        let mut engine = open(&disk, &world);
        let mut expected: BTreeMap<(u32, String), Vec<u8>> = BTreeMap::new();
        let mut dice = seed;
        for step in 0..400u32 {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let roll = (dice >> 33) as u32;
            let (partition, key) = (roll % 2, format!("key {}", (roll / 2) % 25));
            match (roll / 50) % 20 {
                0..=5 => {
                    write(&*engine, partition, key.as_bytes(), None).unwrap();
                    expected.remove(&(partition, key));
                }
                6 if step % 3 == 0 => {
                    engine.drop_partition(PartitionId(partition)).unwrap();
                    expected.retain(|(of, _), _| *of != partition);
                }
                7 => world.pass(Duration::from_millis(50)),
                8 if step % 5 == 0 => {
                    world.block_on(engine.close()).unwrap();
                    if seed % 2 == 0 {
                        forget_snapshot(&disk);
                    }
                    engine = open(&disk, &world);
                }
                _ => {
                    let value = format!("{:.<80}", format!("value {step}")).into_bytes();
                    write(&*engine, partition, key.as_bytes(), Some(value.clone())).unwrap();
                    expected.insert((partition, key), value);
                }
            }
        }
        world.block_on(engine.close()).unwrap();
        forget_snapshot(&disk);
        let engine = open(&disk, &world);
        assert_eq!(engine.stats().records, expected.len() as u64, "seed {seed}");
        for ((partition, key), value) in expected {
            assert_eq!(get(&*engine, partition, &key), Some(value), "seed {seed}, {key} of {partition}");
        }
        assert_eq!(engine.damage().found, 0);
    }
}

/// A record is removed while its copy is on the way to its file, and all older files go: the copy's file is then as old
/// as the removal says, and the removal must stay as long as that file does.
#[test]
fn a_removal_beside_its_copy_is_kept_as_long_as_the_copy() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine: Arc<Mutex<Option<Arc<LogEngine>>>> = Arc::default();
    let (beside, removed) = (engine.clone(), AtomicBool::new(false));
    let onlooker = move |call: Call<'_>| {
        let copies = call.path.strip_suffix(".tmp").is_some_and(|name| name.ends_with(char::is_numeric));
        if copies && call.operation == DiskOperation::Append && !removed.swap(true, Ordering::Relaxed) {
            let engine = beside.lock().unwrap().clone().unwrap();
            assert!(write(&*engine, 0, b"removed", None).unwrap().is_some(), "it was there");
        }
    };
    let watched = WatchedDisk { disk: Arc::new(disk.clone()), onlooker: Arc::new(onlooker) };
    let opening = LogEngine::open(Arc::new(watched), DIRECTORY, small(GROUPED), world.ports());
    let opened = world.block_on(opening).unwrap();
    *engine.lock().unwrap() = Some(opened.clone());
    let put = |key: &str, byte: u8| write(&*opened, 0, key.as_bytes(), Some(vec![byte; 60])).unwrap();
    for key in ["cold 1", "cold 2", "cold 3", "removed"] {
        put(key, 1);
    }
    for step in 0..200u8 {
        put(&format!("warm {}", step % 5), step);
        world.pass(Duration::from_millis(20));
    }
    let names = disk.list(DIRECTORY).unwrap();
    let oldest = names.iter().find(|name| name.ends_with(".log") || name.ends_with(".compacted")).unwrap();
    let holds = |name: &String| disk.contents(&format!("{DIRECTORY}/{name}")).unwrap();
    let copy = holds(oldest).windows(7).any(|window| window == b"removed");
    assert!(oldest.ends_with(".compacted") && copy, "the copy is in the oldest file: {names:?}");
    let newest: u32 = names.iter().filter_map(|name| name.get(..10)?.parse().ok()).max().unwrap();
    assert!(newest > 20, "the file that the removal was written to is long gone: {names:?}");
    world.block_on(opened.close()).unwrap();
    *engine.lock().unwrap() = None;
    forget_snapshot(&disk);
    let engine = open(&disk, &world);
    assert_eq!(get(&*engine, 0, "removed"), None);
    assert_eq!(get(&*engine, 0, "cold 2"), Some(vec![1; 60]));
}

#[test]
fn a_dropped_partition_gives_its_space_back() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world);
    for number in 0..400u32 {
        write(&*engine, u32::from(number % 4 == 0), format!("key {number}").as_bytes(), Some(vec![3; 100]))
            .unwrap();
    }
    world.pass(Duration::from_secs(1));
    let before = engine.stats().disk_bytes;
    engine.drop_partition(PartitionId(0)).unwrap();
    for number in 0..10u32 {
        write(&*engine, 1, format!("more {number}").as_bytes(), Some(vec![3; 100])).unwrap();
    }
    world.pass(Duration::from_secs(1));
    let after = engine.stats().disk_bytes;
    assert!(after < before / 2, "{before} bytes before, {after} after");
    assert_eq!(counted(&*engine), [(PartitionId(1), 110)]);
}

#[test]
fn a_corrupt_record_is_not_copied_and_not_forgotten() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world);
    for number in 0..8u32 {
        write(&*engine, 0, format!("key {number}").as_bytes(), Some(vec![0xab; 100])).unwrap();
    }
    world.pass(Duration::from_millis(50));
    let path = format!("{DIRECTORY}/0000000001.log");
    let contents = disk.contents(&path).unwrap();
    let at = contents.windows(5).position(|window| window == b"key 2").unwrap();
    assert!(disk.flip_bit(&path, at as u64 + 50, 3));
    for number in 0..200u32 {
        let key = format!("key {}", if number % 8 == 2 { 0 } else { number % 8 });
        write(&*engine, 0, key.as_bytes(), Some(vec![0xcd; 100])).unwrap();
        world.pass(Duration::from_millis(20));
    }
    let corrupt = Err(StorageError::Corrupt { partition: PartitionId(0) });
    let read = || engine.get(PartitionId(0), Token::of(b"key 2"), b"key 2");
    assert_eq!(read(), corrupt);
    assert_eq!((engine.damage().found, engine.damage().left), (1, 1));
    assert!(disk.contents(&path).is_some(), "the damaged segment is kept");
    let update = write(&*engine, 0, b"key 2", Some(b"good".to_vec()));
    assert_eq!(update, Err(StorageError::Corrupt { partition: PartitionId(0) }));
    assert_eq!(engine.discard_corrupt(PartitionId(0), Token::of(b"key 2"), b"key 2"), Ok(true));
    assert_eq!(engine.discard_corrupt(PartitionId(0), Token::of(b"key 2"), b"key 2"), Ok(false));
    assert_eq!(read(), Ok(None));
    assert_eq!((engine.damage().found, engine.damage().left), (1, 0));
    write(&*engine, 0, b"key 2", Some(b"good".to_vec())).unwrap();
    for number in 0..100u32 {
        write(&*engine, 0, format!("key {}", number % 8).as_bytes(), Some(b"last".repeat(20))).unwrap();
        world.pass(Duration::from_millis(20));
    }
    assert!(disk.contents(&path).is_none(), "the repaired segment goes");
    world.block_on(engine.close()).unwrap();
    let engine = open(&disk, &world);
    assert_eq!(get(&*engine, 0, "key 2"), Some(b"last".repeat(20)));
}

#[test]
fn readers_and_writers_go_on_while_segments_are_rewritten() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(runtime::clock::os::OsClock::new());
    let tasks = Arc::new(runtime::tasks::os::OsTasks::start().unwrap());
    let ports = EnginePorts { clock, tasks };
    let options = LogOptions {
        durability: Durability::Every { milliseconds: 1 },
        segment_bytes: 32 << 10,
        reserve_bytes: 0,
        snapshot_bytes: 256 << 10,
    };
    let reopen = || {
        let disk = Arc::new(OsDisk::open(directory.path()).unwrap());
        block_on(LogEngine::open(disk, DIRECTORY, options, ports.clone())).unwrap()
    };
    let engine = reopen();
    let done = AtomicBool::new(false);
    let value = |key: u32, round: u32| format!("{key} {round} ").into_bytes().repeat(20);
    // Keys in no order, so that segments die in part; until some were rewritten, and some more. Where syncs take seconds
    // (a disk that somebody else fills), compaction comes late: writers go slowly then, and do not end before it.
    let write_half = |half: u32| {
        let (mut last, mut dice) = (BTreeMap::new(), u64::from(half) + 1);
        for round in 0..25_000 {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = ((dice >> 33) % 100) as u32 * 2 + half;
            let name = format!("key {key}");
            let commit = write(&*engine, key % 3, name.as_bytes(), Some(value(key, round)));
            block_on(engine.durable(commit.unwrap().unwrap()).wait()).unwrap();
            last.insert(key, round);
            if round > 3000 && engine.stats().compacted_bytes > 200_000 {
                break;
            }
            if round > 10_000 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        last
    };
    let mut expected = BTreeMap::new();
    std::thread::scope(|scope| {
        let _stops = Stops(&done);
        let writers = [0, 1].map(|half| scope.spawn(move || write_half(half)));
        scope.spawn(|| {
            let mut rounds = BTreeMap::new();
            while !done.load(Ordering::Relaxed) {
                for key in 0..200u32 {
                    let Some(found) = get(&*engine, key % 3, &format!("key {key}")) else { continue };
                    let text = String::from_utf8(found).unwrap();
                    let mut words = text.split(' ');
                    assert_eq!(words.next().unwrap(), key.to_string());
                    let round: u32 = words.next().unwrap().parse().unwrap();
                    let before = rounds.insert(key, round).unwrap_or(0);
                    assert!(round >= before, "key {key} went back from {before} to {round}");
                }
            }
        });
        writers.into_iter().for_each(|writer| expected.extend(writer.join().unwrap()));
        done.store(true, Ordering::Relaxed);
    });
    assert!(engine.stats().compacted_bytes > 0, "segments were rewritten meanwhile");
    block_on(engine.close()).unwrap();
    drop(engine);
    let engine = reopen();
    for (key, round) in expected {
        assert_eq!(get(&*engine, key % 3, &format!("key {key}")), Some(value(key, round)));
    }
}
