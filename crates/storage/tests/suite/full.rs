//! The log engine on a disk that fills up.

use std::time::Duration;

use model::PartitionId;
use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};
use runtime::{Disk, DiskError};
use storage::{Durability, Durable, LogEngine, LogOptions, StorageEngine, StorageError};

use crate::ledger::{End, Ledger};
use crate::setup::{DIRECTORY, get, small, write};
use crate::world::World;

fn open(
    disk: &SimulatedDisk,
    world: &World,
    options: LogOptions,
) -> Result<std::sync::Arc<LogEngine>, StorageError> {
    world.block_on(LogEngine::open(std::sync::Arc::new(disk.clone()), DIRECTORY, options, world.ports()))
}

/// Overwrites twelve keys until the disk is full, and says how many writes were refused.
fn fill(engine: &dyn StorageEngine, world: &World, ledger: &mut Ledger) -> usize {
    let mut refused = 0;
    for step in 0..60u32 {
        let (partition, key) = (step % 2, format!("key {}", step % 12));
        let value = format!("{:.<90}", format!("value {step}")).into_bytes();
        match write(engine, partition, key.as_bytes(), Some(value.clone())) {
            Ok(commit) => {
                ledger.wrote(partition, key.as_bytes(), Some(value));
                match world.block_on(engine.durable(commit.expect("a put has a position")).wait()) {
                    Ok(()) => ledger.acknowledge(),
                    Err(StorageError::Full) => refused += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            Err(StorageError::Full) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        if step % 8 == 7 {
            world.pass(Duration::from_millis(20));
        }
    }
    refused
}

#[test]
fn a_disk_that_is_full_at_any_byte_refuses_writes_and_loses_none_it_acknowledged() {
    let mut refusals = 0;
    for durability in [Durability::Always, Durability::Every { milliseconds: 10 }] {
        for capacity in (0..9000).step_by(61) {
            let disk = SimulatedDisk::new(capacity);
            disk.set_capacity(Some(capacity));
            let (world, mut ledger) = (World::default(), Ledger::default());
            let engine = match open(&disk, &world, small(durability)) {
                Ok(engine) => engine,
                Err(error) => {
                    assert_eq!(error, StorageError::Full, "capacity {capacity}");
                    continue;
                }
            };
            refusals += fill(&*engine, &world, &mut ledger);
            ledger.check(&*engine, End::Kill).unwrap_or_else(|e| panic!("full at {capacity}: {e}"));
            // Half of the runs end here and restart on the full disk; the others go on when there is room.
            if capacity % 2 == 0 {
                drop(engine);
                disk.kill();
                let world = World::default();
                let engine = open(&disk, &world, small(durability)).expect("a full disk can be opened");
                ledger.check(&*engine, End::Kill).unwrap_or_else(|e| panic!("reopened at {capacity}: {e}"));
            } else {
                disk.set_capacity(None);
                world.pass(Duration::from_secs(2));
                assert_eq!(fill(&*engine, &world, &mut ledger), 0, "there is room again: {capacity}");
                world.block_on(engine.close()).unwrap();
                let engine = open(&disk, &world, small(durability)).unwrap();
                ledger.check(&*engine, End::Kill).unwrap_or_else(|e| panic!("room again at {capacity}: {e}"));
            }
        }
    }
    assert!(refusals > 500, "the disk was full: {refusals} refusals");
}

#[test]
fn puts_are_refused_below_the_reserve_and_removals_are_not() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    disk.set_capacity(Some(1 << 20));
    let options = LogOptions { reserve_bytes: 64 << 10, ..small(Durability::Every { milliseconds: 10 }) };
    let engine = open(&disk, &world, options).unwrap();
    let mut written = 0;
    let refused = loop {
        match write(&*engine, 0, format!("k{written}").as_bytes(), Some(vec![1; 4000])) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 300);
    };
    assert_eq!(refused, StorageError::Full);
    assert_eq!(get(&*engine, 0, "k1"), Some(vec![1; 4000]), "reads go on");
    assert!(disk.available_bytes() >= 60 << 10, "the reserve is still there");
    for number in 0..written {
        let commit = write(&*engine, 0, format!("k{number}").as_bytes(), None).unwrap().unwrap();
        world.block_on(engine.durable(commit).wait()).unwrap();
    }
    // Compaction and a snapshot use the reserve to make room.
    world.pass(Duration::from_secs(10));
    assert!(write(&*engine, 0, b"k", Some(vec![1; 4000])).is_ok(), "{} bytes left", disk.available_bytes());
    engine.drop_partition(PartitionId(0)).unwrap();
}

/// A delete of the store is a put of a tombstone: on a full cluster nothing could be deleted.
#[test]
fn a_put_that_makes_room_uses_half_of_the_reserve_and_room_comes_back() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    disk.set_capacity(Some(1 << 20));
    let options = LogOptions {
        reserve_bytes: 64 << 10,
        segment_bytes: 32 << 10,
        ..small(Durability::Every { milliseconds: 10 })
    };
    let engine = open(&disk, &world, options).unwrap();
    let key = |number: u32| format!("k{number}");
    let put = |number: u32, bytes: usize| {
        let commit =
            write(&*engine, 0, key(number).as_bytes(), Some(vec![1; bytes]))?.expect("a put has a position");
        world.block_on(engine.durable(commit).wait())
    };
    let fill = || (0..300).find(|&number| put(number, 4000).is_err()).expect("the disk fills up");
    let written = fill();
    world.pass(Duration::from_secs(1));
    assert_eq!(put(0, 4000), Err(StorageError::Full), "it takes as much as it makes room for");
    assert_eq!(put(0, 2500), Err(StorageError::Full), "it takes more than half of that");
    assert_eq!(put(written + 1, 40), Err(StorageError::Full), "it makes no room");
    // Compaction gets no time here, so only the reserve can be used: half of it.
    let halved = (0..written).take_while(|&number| put(number, 1900).is_ok()).count();
    assert!((10..=17).contains(&halved), "{halved} were written with 32 KiB");
    assert!(disk.available_bytes() >= 30 << 10, "{} bytes are left", disk.available_bytes());
    world.pass(Duration::from_secs(10));
    for number in 0..written {
        put(number, 40).unwrap_or_else(|error| panic!("k{number} of {written}: {error}"));
        world.pass(Duration::from_millis(50));
    }
    world.pass(Duration::from_secs(10));
    for number in 0..written {
        assert_eq!(get(&*engine, 0, &key(number)), Some(vec![1; 40]));
    }
    assert!(fill() > written / 2, "writes go on");
}

#[test]
fn a_full_disk_answers_who_waits_for_a_sync() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world, small(Durability::Always)).unwrap();
    disk.set_capacity(Some(disk.used_bytes() + 100));
    let commit = write(&*engine, 0, b"k", Some(vec![1; 500])).unwrap();
    let Some(commit) = commit else { panic!("a put has a position") };
    assert_eq!(world.block_on(engine.durable(commit).wait()), Err(StorageError::Full));
    assert_eq!(get(&*engine, 0, "k"), Some(vec![1; 500]), "in doubt: visible, not acknowledged");
    disk.set_capacity(None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.block_on(engine.durable(commit).wait()), Ok(()), "written when there was room");
}

#[test]
fn a_failed_sync_stops_the_engine_for_good() {
    for operation in [DiskOperation::Sync, DiskOperation::SyncDirectory] {
        let (world, disk) = (World::default(), SimulatedDisk::new(0));
        let engine = open(&disk, &world, small(Durability::Always)).unwrap();
        disk.inject(Fault::next(operation, 1));
        let commits: Vec<_> =
            (0..3).map(|n| write(&*engine, n, b"k", Some(b"v".to_vec())).unwrap().unwrap()).collect();
        for commit in commits {
            let answer = world.block_on(engine.durable(commit).wait());
            assert!(matches!(answer, Err(StorageError::Fatal { .. })), "{answer:?}");
        }
        let later = write(&*engine, 0, b"k", Some(b"w".to_vec()));
        assert!(matches!(later, Err(StorageError::Fatal { .. })), "{later:?}");
        assert!(matches!(engine.drop_partition(PartitionId(0)), Err(StorageError::Fatal { .. })));
        let closed = world.block_on(engine.close());
        assert!(matches!(closed, Err(StorageError::Fatal { .. })), "{closed:?}");
    }
}

#[test]
fn a_sync_that_fails_in_the_background_stops_the_engine() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world, small(Durability::Every { milliseconds: 10 })).unwrap();
    disk.inject(Fault::next(DiskOperation::Sync, 1));
    let commit = write(&*engine, 0, b"k", Some(b"v".to_vec())).unwrap().unwrap();
    assert_eq!(world.block_on(engine.durable(commit).wait()), Ok(()), "in the file, as promised");
    world.pass(Duration::from_millis(50));
    let later = write(&*engine, 0, b"k", Some(b"w".to_vec()));
    assert!(matches!(later, Err(StorageError::Fatal { .. })), "{later:?}");
}

#[test]
fn a_failed_append_stops_the_engine_and_a_failed_read_does_not() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world, small(Durability::Every { milliseconds: 10 })).unwrap();
    let commit = write(&*engine, 0, b"k", Some(b"v".to_vec())).unwrap().unwrap();
    world.block_on(engine.durable(commit).wait()).unwrap();
    disk.inject(Fault::next(DiskOperation::Read, 1));
    let failed = engine.get(PartitionId(0), model::Token::of(b"k"), b"k");
    assert!(matches!(failed, Err(StorageError::Disk(DiskError::Failed { .. }))), "{failed:?}");
    assert_eq!(get(&*engine, 0, "k"), Some(b"v".to_vec()));
    disk.inject(Fault::next(DiskOperation::Append, 1));
    let commit = write(&*engine, 0, b"k", Some(b"w".to_vec())).unwrap().unwrap();
    let answer = world.block_on(engine.durable(commit).wait());
    assert!(matches!(answer, Err(StorageError::Fatal { .. })), "{answer:?}");
}

#[test]
fn many_writers_share_one_sync_and_a_slow_one_delays_nobody_twice() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let options = LogOptions { segment_bytes: 1 << 20, ..small(Durability::Always) };
    let engine = open(&disk, &world, options).unwrap();
    disk.set_sync_duration(std::sync::Arc::new(world.clone()), Duration::from_millis(5));
    let before = engine.stats().syncs;
    let waits: Vec<_> = (0..100)
        .map(|n| write(&*engine, n % 7, format!("k{n}").as_bytes(), Some(b"v".to_vec())).unwrap().unwrap())
        .map(|commit| engine.durable(commit).wait())
        .collect();
    let answers = world.block_on(futures_util::future::join_all(waits));
    assert!(answers.iter().all(Result::is_ok));
    assert!(engine.stats().syncs - before <= 2, "{} syncs for 100 writers", engine.stats().syncs - before);
}

/// It was refused like a failing disk, with the advice to replace the disk.
#[test]
fn a_record_that_is_too_long_is_refused_as_such_and_changes_nothing() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world, small(Durability::Always)).unwrap();
    write(&*engine, 0, b"k", Some(b"v".to_vec())).unwrap();
    let written = engine.position();
    // Nothing of it is touched, so the system lends no memory for it.
    let longest = (1 << 30) - 48;
    let refused = write(&*engine, 0, b"k", Some(vec![0; longest]));
    let (bytes, bytes_max) = (longest as u64 + 1, longest as u64);
    assert_eq!(refused, Err(StorageError::TooLong { bytes, bytes_max }));
    let refused = write(&*engine, 0, &[b'k'; 65_536], Some(b"v".to_vec()));
    assert_eq!(refused, Err(StorageError::TooLong { bytes: 65_536, bytes_max: 65_535 }));
    assert_eq!((engine.position(), get(&*engine, 0, "k")), (written, Some(b"v".to_vec())));
    assert_eq!(engine.room().map(|room| room.refused), Ok(0), "it is not for want of room");
    world.block_on(engine.close()).unwrap();
}

#[test]
fn what_waits_for_room_is_written_and_synced_without_anybody_asking_when_there_is_some() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world, small(Durability::Always)).unwrap();
    disk.set_capacity(Some(disk.used_bytes() + 100));
    let commit = write(&*engine, 0, b"k", Some(vec![1; 500])).unwrap().unwrap();
    world.pass(Duration::from_secs(1));
    assert_eq!(engine.room().map(|room| room.bytes), Ok(0), "it was refused");
    assert_eq!(engine.stats().syncs, 0);
    disk.set_capacity(None);
    world.pass(Duration::from_millis(200));
    assert!(matches!(engine.durable(commit), Durable::Already));
}

/// A write that got into the file beside a refused one is not refused with it.
#[test]
fn only_those_whose_bytes_are_not_in_the_file_are_told_that_the_disk_is_full() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let options = LogOptions { segment_bytes: 1 << 20, ..small(Durability::Always) };
    let engine = open(&disk, &world, options).unwrap();
    disk.set_sync_duration(std::sync::Arc::new(world.clone()), Duration::from_millis(5));
    write(&*engine, 9, b"dropped", Some(vec![1; 100])).unwrap();
    world.block_on(engine.sync()).unwrap();
    let put = |key: &[u8], bytes: usize| {
        let commit = write(&*engine, 0, key, Some(vec![1; bytes])).unwrap().unwrap();
        engine.durable(commit).wait()
    };
    // It is so large that it goes to the file at once, where it waits for a sync.
    let first = put(b"first", 300 << 10);
    disk.set_capacity(Some(disk.used_bytes() + 100));
    let second = put(b"second", 500);
    world.pass(Duration::from_millis(1));
    assert_eq!(
        engine.room().map(|room| room.bytes),
        Ok(0),
        "the second was refused, the first is being synced"
    );
    disk.set_capacity(None);
    engine.drop_partition(PartitionId(9)).unwrap();
    // The drop took the second along to the file, and ends where this one waits.
    let third = engine.durable(engine.position()).wait();
    let answers = world.block_on(futures_util::future::join3(first, second, third));
    assert_eq!(answers, (Ok(()), Ok(()), Ok(())));
}

/// A device slower than its writers must not let the unsynced bytes grow without bound.
#[test]
fn a_writer_waits_when_it_is_64_mib_ahead_of_the_last_sync_where_syncs_have_a_time() {
    for durability in [Durability::Every { milliseconds: 10 }, Durability::System] {
        let (world, disk) = (World::default(), SimulatedDisk::new(0));
        let options = LogOptions { segment_bytes: 1 << 30, snapshot_bytes: 1 << 30, ..small(durability) };
        let engine = open(&disk, &world, options).unwrap();
        let put = |bytes: usize| {
            let commit = write(&*engine, 0, b"k", Some(vec![1; bytes - 49])).unwrap().unwrap();
            (commit.0, engine.durable(commit))
        };
        let mut position = 0;
        for number in 0..64 {
            // The segment has a header.
            let (after, durable) = put(if number == 0 { (1 << 20) - 64 } else { 1 << 20 });
            assert!(matches!(durable, Durable::Already), "{durability:?}: {after} bytes");
            position = after;
        }
        assert_eq!(position, 64 << 20);
        let durable = put(64).1;
        if durability == Durability::System {
            assert!(matches!(durable, Durable::Already), "nobody waits for a sync that nobody promises");
        } else {
            let Durable::Waits(wait) = durable else { panic!("it is one record too far ahead") };
            assert_eq!((world.block_on(wait), engine.stats().syncs), (Ok(()), 1));
        }
    }
}
