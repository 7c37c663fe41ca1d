//! Bits flip, files are cut, mixed up or strange.

use std::sync::Arc;

use model::{PartitionId, Token};
use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};
use runtime::{Disk, DiskError};
use storage::{
    Durability, LogEngine, LogOptions, Met, Remains, RepairableEngine, ScanLimit, StorageEngine, StorageError,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::setup::{DIRECTORY, counted, get, write};
use crate::world::World;

const KEYS: u32 = 5;

fn try_open(disk: &SimulatedDisk) -> Result<(World, Arc<LogEngine>), StorageError> {
    let world = World::default();
    let options = LogOptions {
        durability: Durability::Every { milliseconds: 10 },
        segment_bytes: 4096,
        reserve_bytes: 0,
        snapshot_bytes: 1 << 20,
    };
    let opening = LogEngine::open(Arc::new(disk.clone()), DIRECTORY, options, world.ports());
    world.block_on(opening).map(|engine| (world.clone(), engine))
}

fn value(key: u32, version: u32) -> Vec<u8> {
    format!("{key} version {version} {}", "x".repeat(20)).into_bytes()
}

/// Five keys in two versions each, cleanly closed, in one segment.
fn prepared() -> SimulatedDisk {
    let disk = SimulatedDisk::new(0);
    let (world, engine) = try_open(&disk).unwrap();
    for version in 0..2 {
        for key in 0..KEYS {
            write(&*engine, 0, format!("key {key}").as_bytes(), Some(value(key, version))).unwrap();
        }
    }
    world.block_on(engine.close()).unwrap();
    disk
}

fn path(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

/// The same files on another disk.
fn copy(disk: &SimulatedDisk) -> SimulatedDisk {
    let other = SimulatedDisk::new(0);
    for name in disk.list(DIRECTORY).unwrap() {
        other.plant(&path(&name), &disk.contents(&path(&name)).unwrap());
    }
    other
}

const SEGMENT: &str = "0000000001.log";

#[test]
fn a_flipped_bit_in_a_segment_never_shows_an_older_or_a_strange_value() {
    let prepared = prepared();
    let length = prepared.contents(&path(SEGMENT)).unwrap().len() as u64;
    assert!(length > 900);
    let (mut corrupt, mut unharmed) = (0, 0);
    for offset in 0..length {
        let disk = copy(&prepared);
        assert!(disk.flip_bit(&path(SEGMENT), offset, (offset % 8) as u8));
        let (_world, engine) = try_open(&disk).unwrap();
        let mut found = 0;
        for key in 0..KEYS {
            let name = format!("key {key}");
            match engine.get(PartitionId(0), Token::of(name.as_bytes()), name.as_bytes()) {
                Ok(record) => assert_eq!(record.as_deref(), Some(&*value(key, 1)), "byte {offset}"),
                Err(error) => {
                    assert_eq!(error, StorageError::Corrupt { partition: PartitionId(0) });
                    found += 1;
                }
            }
        }
        assert!(found <= 1, "one bit harms one record");
        assert!(engine.damage().found >= found);
        if found == 1 { corrupt += 1 } else { unharmed += 1 }
    }
    assert!(corrupt > 350 && unharmed > 350, "{corrupt} {unharmed}");
}

#[test]
fn a_flipped_bit_is_counted_and_hides_no_other_record_when_the_index_is_lost_too() {
    let prepared = prepared();
    prepared.remove(&path("index")).unwrap();
    let length = prepared.contents(&path(SEGMENT)).unwrap().len() as u64;
    for offset in 0..length {
        let disk = copy(&prepared);
        assert!(disk.flip_bit(&path(SEGMENT), offset, (offset % 8) as u8));
        let (_world, engine) = try_open(&disk).unwrap();
        let mut harmed = 0;
        for key in 0..KEYS {
            let name = format!("key {key}");
            match engine.get(PartitionId(0), Token::of(name.as_bytes()), name.as_bytes()) {
                Ok(Some(record)) if *record == *value(key, 1) => {}
                Ok(Some(record)) => {
                    assert_eq!(*record, *value(key, 0), "byte {offset}");
                    harmed += 1;
                }
                Ok(None) => panic!("byte {offset} hides both versions of {name}"),
                Err(_) => harmed += 1,
            }
        }
        assert!(harmed <= 1, "byte {offset} harms {harmed} keys");
        assert!(engine.damage().found >= harmed, "byte {offset}: harm is counted");
    }
}

/// What the pages of a partition say that they leave out.
fn damaged_by_pages(engine: &dyn StorageEngine, records_max: usize) -> Vec<Token> {
    let limit = ScanLimit { records_max, bytes_max: 1 << 20 };
    let (mut damaged, mut after) = (Vec::new(), None);
    loop {
        let page = engine.scan(PartitionId(0), after.as_ref(), limit).unwrap();
        damaged.extend(page.damaged);
        after = page.next;
        if after.is_none() {
            return damaged;
        }
    }
}

#[test]
fn a_damaged_value_is_reported_and_not_replaced_by_the_version_before_after_a_rebuild() {
    let disk = prepared();
    disk.remove(&path("index")).unwrap();
    let contents = disk.contents(&path(SEGMENT)).unwrap();
    let wanted = value(2, 1);
    let at = contents.windows(wanted.len()).position(|window| window == wanted).unwrap();
    assert!(disk.flip_bit(&path(SEGMENT), at as u64 + 3, 0));
    let (_world, engine) = try_open(&disk).unwrap();
    let found = engine.get(PartitionId(0), Token::of(b"key 2"), b"key 2");
    assert_eq!(found, Err(StorageError::Corrupt { partition: PartitionId(0) }));
    let whole = crate::setup::scan_all(&*engine, 0, crate::setup::WHOLE).unwrap();
    assert_eq!(whole.len(), KEYS as usize - 1, "a scan goes on over it");
    let told: Vec<Token> = [1, 100].map(|records_max| damaged_by_pages(&*engine, records_max)).concat();
    assert_eq!(told, [Token::of(b"key 2"); 2], "each walk of pages tells of it once");
    let (mut sound, mut corrupt) = (0, Vec::new());
    let walked = engine.walk(PartitionId(0), Token(0)..=Token(u64::MAX), &mut |token, met| {
        match met {
            Met::Record { .. } => sound += 1,
            Met::Corrupt => corrupt.push(token),
        }
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!((walked, sound, corrupt), (Ok(()), KEYS as usize - 1, vec![Token::of(b"key 2")]));
}

#[test]
fn a_damaged_or_torn_snapshot_costs_time_and_nothing_else() {
    let prepared = prepared();
    let contents = prepared.contents(&path("index")).unwrap();
    let check = |disk: &SimulatedDisk| {
        let (_world, engine) = try_open(disk).unwrap();
        assert_eq!(counted(&*engine), [(PartitionId(0), u64::from(KEYS))]);
        for key in 0..KEYS {
            assert_eq!(get(&*engine, 0, &format!("key {key}")), Some(value(key, 1)));
        }
    };
    for offset in 0..contents.len() {
        let disk = copy(&prepared);
        assert!(disk.flip_bit(&path("index"), offset as u64, (offset % 8) as u8));
        check(&disk);
        let disk = copy(&prepared);
        disk.plant(&path("index"), &contents[..offset]);
        check(&disk);
    }
}

#[test]
fn a_snapshot_from_the_future_is_not_believed() {
    let past = prepared();
    let future = copy(&past);
    let (world, engine) = try_open(&future).unwrap();
    for key in 0..KEYS {
        write(&*engine, 0, format!("key {key}").as_bytes(), Some(value(key, 2))).unwrap();
    }
    world.block_on(engine.close()).unwrap();
    past.plant(&path("index"), &future.contents(&path("index")).unwrap());
    let (_world, engine) = try_open(&past).unwrap();
    for key in 0..KEYS {
        assert_eq!(get(&*engine, 0, &format!("key {key}")), Some(value(key, 1)));
    }
    assert!(engine.damage().found > 0, "a segment that it names is missing");
}

#[test]
fn data_of_a_newer_program_is_refused() {
    let newer = Some(StorageError::NewerFormat { found: 2, supported: 1 });
    let disk = prepared();
    let text = String::from_utf8(disk.contents(&path("FORMAT")).unwrap()).unwrap();
    disk.plant(&path("FORMAT"), text.replace("format 1", "format 2").as_bytes());
    assert_eq!(try_open(&disk).err(), newer);

    let disk = prepared();
    let mut contents = disk.contents(&path(SEGMENT)).unwrap();
    contents[8] = 2;
    let check = xxh3_64(&contents[..56]);
    contents[56..64].copy_from_slice(&check.to_le_bytes());
    disk.plant(&path(SEGMENT), &contents);
    assert_eq!(try_open(&disk).err(), newer);
}

#[test]
fn a_directory_of_something_else_is_refused_and_left_alone() {
    let disk = SimulatedDisk::new(0);
    disk.plant(&path("letters.txt"), b"dear reader");
    assert!(matches!(try_open(&disk).err(), Some(StorageError::Foreign { .. })));
    assert_eq!(disk.contents(&path("letters.txt")), Some(b"dear reader".to_vec()));

    let disk = prepared();
    disk.plant(&path("FORMAT"), b"another engine\n");
    assert!(matches!(try_open(&disk).err(), Some(StorageError::Foreign { .. })));

    let disk = prepared();
    for bit in 0..8 * disk.contents(&path("FORMAT")).unwrap().len() {
        let disk = copy(&disk);
        disk.flip_bit(&path("FORMAT"), bit as u64 / 8, bit as u8 % 8);
        if let Ok((_world, engine)) = try_open(&disk) {
            // A flip that only changes how the same is written.
            assert_eq!(get(&*engine, 0, "key 1"), Some(value(1, 1)));
        }
    }

    let (disk, other) = (prepared(), SimulatedDisk::new(0));
    other.plant("elsewhere/x", b"");
    let world = World::default();
    world.pass(std::time::Duration::from_secs(5));
    let opening = LogEngine::open(Arc::new(other.clone()), DIRECTORY, LogOptions::default(), world.ports());
    let engine = world.block_on(opening).unwrap();
    write(&*engine, 0, b"k", Some(b"v".to_vec())).unwrap();
    world.block_on(engine.close()).unwrap();
    disk.plant(&path("0000000007.log"), &other.contents(&path(SEGMENT)).unwrap());
    assert!(matches!(try_open(&disk).err(), Some(StorageError::Foreign { .. })), "another engine's segment");
}

#[test]
fn a_directory_is_open_once() {
    let disk = prepared();
    let (world, engine) = try_open(&disk).unwrap();
    let locked = StorageError::Disk(DiskError::Locked { path: path("LOCK") });
    assert_eq!(try_open(&disk).err(), Some(locked));
    world.block_on(engine.close()).unwrap();
    assert!(try_open(&disk).is_ok());
}

/// Once, forgetting one damaged record read all others of its partition, while everything else waited.
#[test]
fn only_damaged_records_that_were_met_are_forgotten_and_no_others_are_read() {
    let disk = prepared();
    let contents = disk.contents(&path(SEGMENT)).unwrap();
    for key in [1, 3] {
        let value = value(key, 1);
        let at = contents.windows(value.len()).position(|window| window == value).unwrap();
        assert!(disk.flip_bit(&path(SEGMENT), at as u64 + 4, 3));
    }
    let (_world, engine) = try_open(&disk).unwrap();
    let partition = PartitionId(0);
    let read = |key: u32| {
        engine.get(partition, Token::of(format!("key {key}").as_bytes()), format!("key {key}").as_bytes())
    };
    assert_eq!(engine.discard_damaged(partition), Ok(0), "nobody has met any");
    assert_eq!(read(3), Err(StorageError::Corrupt { partition }));
    // Two reads for the one that was met: what it is, and whose.
    disk.inject(Fault { skip: 2, ..Fault::next(DiskOperation::Read, 100) });
    assert_eq!(engine.discard_damaged(partition), Ok(1));
    disk.clear_faults();
    assert_eq!((read(3), read(1)), (Ok(None), Err(StorageError::Corrupt { partition })));
    assert_eq!(engine.discard_damaged(partition), Ok(1));
    assert_eq!(counted(&*engine), [(partition, u64::from(KEYS) - 2)]);
}

/// It counted as left until the next start, also when comparing had brought back what was there.
#[test]
fn damage_that_no_entry_points_at_is_left_until_somebody_has_compared_everything() {
    let disk = prepared();
    disk.remove(&path("index")).unwrap();
    let contents = disk.contents(&path(SEGMENT)).unwrap();
    let wanted = value(1, 1);
    let at = contents.windows(wanted.len()).position(|window| window == wanted).unwrap() as u64;
    // One whose header and key are gone, and one whose value is.
    (1..50).for_each(|back| assert!(disk.flip_bit(&path(SEGMENT), at - back, 1)));
    let wanted = value(2, 1);
    let at = contents.windows(wanted.len()).position(|window| window == wanted).unwrap() as u64;
    assert!(disk.flip_bit(&path(SEGMENT), at + 3, 0));
    let (_world, engine) = try_open(&disk).unwrap();
    let left = || (engine.damage().left, engine.damage().unplaced);
    assert_eq!(left(), (2, 1));
    engine.settle_unplaced();
    engine.settle_unplaced();
    assert_eq!(left(), (1, 0), "what can be told whose it is stays until it is replaced");
    assert_eq!(engine.discard_corrupt(PartitionId(0), Token::of(b"key 2"), b"key 2"), Ok(true));
    assert_eq!((left(), engine.damage().found), ((0, 0), 2));
}

/// The log goes on holding what was replaced, and each start that read it told of it again.
#[test]
fn damage_that_was_replaced_is_not_counted_by_the_next_start() {
    let disk = prepared();
    disk.remove(&path("index")).unwrap();
    let contents = disk.contents(&path(SEGMENT)).unwrap();
    // One that had been replaced before it was damaged, one that is replaced after, and one that is not.
    for (key, version) in [(0, 0), (1, 1), (2, 1)] {
        let wanted = value(key, version);
        let at = contents.windows(wanted.len()).position(|window| window == wanted).unwrap();
        assert!(disk.flip_bit(&path(SEGMENT), at as u64 + 3, 0));
    }
    let partition = PartitionId(0);
    let (world, engine) = try_open(&disk).unwrap();
    assert_eq!(engine.damage().found, 2);
    assert_eq!(engine.discard_corrupt(partition, Token::of(b"key 1"), b"key 1"), Ok(true));
    write(&*engine, 0, b"key 1", Some(value(1, 2))).unwrap();
    assert_eq!(engine.damage().left, 1);
    world.block_on(engine.sync()).unwrap();
    // As after a crash: the whole log is read again.
    let (_world, engine) = try_open(&copy(&disk)).unwrap();
    assert_eq!((engine.damage().found, engine.damage().left), (1, 1));
    assert_eq!(get(&*engine, 0, "key 1"), Some(value(1, 2)));
    let found = engine.get(partition, Token::of(b"key 2"), b"key 2");
    assert_eq!(found, Err(StorageError::Corrupt { partition }));
}

/// Older values took the place of those that were cut off, and as many keys were there as before.
#[test]
fn a_segment_that_is_shorter_than_the_index_says_is_missed() {
    let disk = prepared();
    let Remains::Whole(number) = LogEngine::remains(&disk, DIRECTORY).unwrap() else { panic!("it is whole") };
    let bytes = disk.contents(&path(SEGMENT)).unwrap();
    for cut in [1, 60, 200] {
        disk.plant(&path(SEGMENT), &bytes[..bytes.len() - cut]);
        assert_eq!(LogEngine::remains(&disk, DIRECTORY).unwrap(), Remains::Part(number), "{cut} bytes less");
    }
    disk.plant(&path(SEGMENT), &bytes);
    assert_eq!(LogEngine::remains(&disk, DIRECTORY).unwrap(), Remains::Whole(number));
}

/// Once, nobody noticed but the log of the process: older values took the place of those in the missing file.
#[test]
fn a_segment_that_the_index_names_is_missed() {
    let disk = SimulatedDisk::new(0);
    let remains = || LogEngine::remains(&disk, DIRECTORY).unwrap();
    assert_eq!(remains(), Remains::Nothing);
    let (world, engine) = try_open(&disk).unwrap();
    for key in 0..400 {
        write(&*engine, key % 3, format!("key {key}").as_bytes(), Some(value(key, 0))).unwrap();
    }
    world.block_on(engine.close()).unwrap();
    let Remains::Whole(number) = remains() else { panic!("{:?}", remains()) };
    let segments: Vec<String> =
        disk.list(DIRECTORY).unwrap().into_iter().filter(|name| name.ends_with(".log")).collect();
    assert!(segments.len() > 3, "{segments:?}");
    for name in segments {
        let bytes = disk.contents(&path(&name)).unwrap();
        disk.remove(&path(&name)).unwrap();
        assert_eq!(remains(), Remains::Part(number), "without {name}");
        disk.plant(&path(&name), &bytes);
    }
    assert_eq!(remains(), Remains::Whole(number));
    for bit in 0..64 {
        disk.flip_bit(&path("index"), bit * 7, 3);
        assert_eq!(remains(), Remains::Whole(number), "an index that cannot be used says nothing");
        disk.flip_bit(&path("index"), bit * 7, 3);
    }
}
