//! What a restart costs, and who keeps the engine's tasks alive.

use std::sync::Arc;
use std::time::Duration;

use runtime::disk::os::OsDisk;
use runtime::disk::simulated::{Fault, Operation, SimulatedDisk};
use storage::{Durability, EnginePorts, LogEngine, LogOptions, StorageEngine};

use crate::setup::{DIRECTORY, block_on, get, write};
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
        disk.inject(Fault { skip: allowed, ..Fault::next(Operation::Read, 1) });
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
