//! What a restart costs, and who keeps the engine's tasks alive.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use runtime::disk::os::OsDisk;
use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};
use runtime::{BoxFuture, DiskError};
use storage::{
    Durability, EnginePorts, LogEngine, LogOptions, MemoryEngine, RepairableEngine, StorageEngine,
    StorageError,
};

use crate::setup::{DIRECTORY, block_on, get, small, write};
use crate::world::World;

/// Once, an engine did not keep the executor that it was given, and its committer ended with the last handle of the
/// caller: writers that waited for a sync waited for ever.
#[test]
fn an_engine_keeps_its_committer_running() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(OsDisk::open(directory.path()).unwrap());
    let ports = EnginePorts {
        clock: Arc::new(runtime::clock::os::OsClock::new()),
        tasks: Arc::new(runtime::tasks::os::OsTasks::start().unwrap()),
    };
    let options = LogOptions { durability: Durability::Always, reserve_bytes: 0, ..LogOptions::default() };
    let engine = block_on(LogEngine::open(disk, DIRECTORY, options, ports)).unwrap();
    for number in 0..20u32 {
        let commit = write(&*engine, 0, format!("k{number}").as_bytes(), Some(vec![1; 100])).unwrap();
        block_on(engine.durable(commit.unwrap()).wait()).unwrap();
    }
}

/// Fills an engine, ends it, and counts the bytes of reads that opening it again takes.
fn reads_to_open(clean: bool, written: u32) -> u64 {
    let disk = SimulatedDisk::new(0);
    let options = LogOptions {
        durability: Durability::Every { milliseconds: 10 },
        segment_bytes: 64 << 10,
        reserve_bytes: 0,
        snapshot_bytes: 256 << 10,
    };
    let open = |world: &World| {
        world.block_on(LogEngine::open(Arc::new(disk.clone()), DIRECTORY, options, world.ports()))
    };
    let world = World::default();
    let engine = open(&world).unwrap();
    for number in 0..written {
        write(&*engine, number % 8, format!("k{number}").as_bytes(), Some(vec![1; 1000])).unwrap();
        world.pass(Duration::from_millis(1));
    }
    if clean {
        world.block_on(engine.close()).unwrap();
    }
    world.pass(Duration::from_millis(100));
    drop(engine);
    disk.kill();
    // Allows ever more reads until opening succeeds.
    let mut allowed = 0;
    loop {
        disk.clear_faults();
        disk.inject(Fault { skip: allowed, ..Fault::next(DiskOperation::Read, 1) });
        let world = World::default();
        if let Ok(engine) = open(&world) {
            disk.clear_faults();
            assert_eq!(get(&*engine, 0, "k0"), Some(vec![1; 1000]));
            assert_eq!(engine.stats().records, u64::from(written));
            return allowed;
        }
        disk.kill();
        allowed += 1;
    }
}

#[test]
fn a_restart_reads_the_end_of_the_log_and_not_all_of_it() {
    let (small, large) = (reads_to_open(true, 500), reads_to_open(true, 1000));
    // A header of each segment, and the snapshot.
    assert!(large - small <= 500 * 1100 / (64 << 10) + 2, "{small} reads, then {large}");
    let killed = reads_to_open(false, 1000);
    assert!(
        killed - large <= (256 + 64) / 64 + 2,
        "{large} reads after a clean stop, {killed} after SIGKILL"
    );
}

#[test]
fn a_close_needs_no_clock_of_its_caller() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(OsDisk::open(directory.path()).unwrap());
    let ports = EnginePorts {
        clock: Arc::new(runtime::clock::os::OsClock::new()),
        tasks: Arc::new(runtime::tasks::os::OsTasks::start().unwrap()),
    };
    let engine = block_on(LogEngine::open(disk, DIRECTORY, LogOptions::default(), ports)).unwrap();
    for number in 0..100u32 {
        write(&*engine, number, b"k", Some(vec![1; 10])).unwrap();
    }
    // This thread has no timers; resting between the partitions of the last snapshot would panic.
    block_on(engine.close()).unwrap();
}

fn open(disk: &SimulatedDisk, world: &World) -> Result<Arc<LogEngine>, StorageError> {
    let options = small(Durability::Every { milliseconds: 10 });
    world.block_on(LogEngine::open(Arc::new(disk.clone()), DIRECTORY, options, world.ports()))
}

#[test]
fn an_engine_that_is_dropped_without_a_close_frees_its_directory_and_loses_nothing_acknowledged() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world).unwrap();
    let commit = write(&*engine, 0, b"k", Some(b"v".to_vec())).unwrap().unwrap();
    world.block_on(engine.durable(commit).wait()).unwrap();
    let locked = open(&disk, &world).err();
    assert!(matches!(locked, Some(StorageError::Disk(DiskError::Locked { .. }))), "{locked:?}");
    drop(engine);
    world.pass(Duration::from_millis(100));
    let engine = open(&disk, &world).unwrap();
    assert_eq!(get(&*engine, 0, "k"), Some(b"v".to_vec()));
}

/// What a restart reads is one number for all lives: a clean stop leaves an index of everything.
/// Once, the next sync took a segment's name for synced when the caller of the one before went away between the sync of the
/// segment and that of its name. So a power cut took the segment, with records that were durable.
#[test]
fn a_sync_whose_caller_goes_away_leaves_no_segment_whose_name_a_power_cut_takes() {
    for seed in 0..16 {
        let (disk, world) = (SimulatedDisk::new(seed), World::default());
        let options = LogOptions { durability: Durability::System, ..LogOptions::default() };
        let open =
            || world.block_on(LogEngine::open(Arc::new(disk.clone()), DIRECTORY, options, world.ports()));
        let engine = open().unwrap();
        write(&*engine, 0, b"k", Some(vec![1; 100])).unwrap();
        disk.set_sync_delay(Some(Arc::new(|path: &str| -> BoxFuture<'static, ()> {
            if path == DIRECTORY { Box::pin(std::future::pending()) } else { Box::pin(async {}) }
        })));
        assert!(engine.sync().now_or_never().is_none(), "it waits for the name");
        disk.set_sync_delay(None);
        assert_eq!(engine.sync().now_or_never(), Some(Ok(())));
        drop(engine);
        disk.crash(seed);
        assert_eq!(get(&*open().unwrap(), 0, "k"), Some(vec![1; 100]), "seed {seed}");
    }
}

#[test]
fn a_close_writes_the_index_when_it_says_anything_new_and_only_then() {
    let disk = SimulatedDisk::new(0);
    let index = || disk.contents(&format!("{DIRECTORY}/index"));
    let life = |value: Option<&[u8]>| {
        let world = World::default();
        let engine = open(&disk, &world).unwrap();
        if let Some(value) = value {
            write(&*engine, 0, b"k", Some(value.to_vec())).unwrap();
        }
        world.block_on(engine.close()).unwrap();
    };
    life(None);
    let empty = index().expect("a new engine has an index, too");
    life(None);
    // One that is written anew names the segment that its life would have begun with.
    assert_eq!(index(), Some(empty.clone()), "nothing is new");
    life(Some(b"v"));
    let one = index().unwrap();
    assert!(one.len() > empty.len(), "it names the key and its segment");
    life(None);
    assert_eq!(index(), Some(one.clone()), "nothing is new");
    life(Some(b"w"));
    assert_ne!(index().unwrap(), one);
    assert_eq!(get(&*open(&disk, &World::default()).unwrap(), 0, "k"), Some(b"w".to_vec()));
}

#[test]
fn an_engine_without_writes_does_nothing_however_long_it_is_open() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world).unwrap();
    write(&*engine, 0, b"k", Some(b"v".to_vec())).unwrap();
    world.pass(Duration::from_secs(1));
    let before = (world.polls(), disk.operations());
    world.pass(Duration::from_secs(3600));
    assert_eq!((world.polls(), disk.operations()), before);
    world.block_on(engine.close()).unwrap();
}

#[test]
fn the_log_engine_says_what_callers_must_know_of_it() {
    let engine: Arc<dyn StorageEngine> = open(&SimulatedDisk::new(0), &World::default()).unwrap();
    let repairable = engine.repairable().map(RepairableEngine::damage);
    assert_eq!(repairable.map(|damage| (damage.found, damage.left, damage.unplaced)), Some((0, 0, 0)));
    assert!(!engine.acknowledges_at_once(), "a write is in the file only when somebody waits for it");
    assert!(MemoryEngine::new().repairable().is_none(), "memory is not damaged");
}

#[test]
fn writes_are_synced_together_when_the_first_of_them_has_waited_as_long_as_the_setting_says() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world).unwrap();
    let put = |key: &str| write(&*engine, 0, key.as_bytes(), Some(b"v".to_vec())).unwrap();
    for (round, key) in ["a", "b", "c"].into_iter().enumerate() {
        let before = round as u64;
        put(key);
        world.pass(Duration::from_millis(6));
        put("k");
        world.pass(Duration::from_nanos(3_999_999));
        assert_eq!(engine.stats().syncs, before, "10 ms are not over");
        world.pass(Duration::from_nanos(1));
        assert_eq!(engine.stats().syncs, before + 1, "one sync for both");
        world.pass(Duration::from_millis(100));
        assert_eq!(engine.stats().syncs, before + 1, "nothing is left to sync");
        let left = disk.after_power_cut(DIRECTORY);
        assert_eq!(get(&*open(&left, &World::default()).unwrap(), 0, key), Some(b"v".to_vec()));
    }
}
