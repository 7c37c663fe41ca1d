//! The log engine loses power, or its process ends, at every operation of a script that rotates, compacts, drops,
//! snapshots, closes and reopens.

use std::sync::Arc;
use std::time::Duration;

use model::PartitionId;
use runtime::Disk;
use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};
use storage::{Durability, Durable, LogEngine, LogOptions, Remains, StorageEngine, StorageError};

use crate::ledger::{End, Ledger};
use crate::setup::{DIRECTORY, get, small, write};
use crate::world::World;

/// How a script is run: planted bugs come in here.
#[derive(Clone, Copy)]
pub(crate) struct Harness {
    pub(crate) durability: Durability,
    pub(crate) end: End,
    pub(crate) disk: fn(SimulatedDisk) -> Arc<dyn Disk>,
    pub(crate) engine: fn(Arc<LogEngine>) -> Arc<dyn StorageEngine>,
    pub(crate) steps: u64,
    /// Ends at every such operation.
    pub(crate) stride: u64,
    pub(crate) seeds: u64,
    /// The disk is so small that writes are refused, segments are long, and no life but the first writes: room comes
    /// back only from a segment that is closed early.
    pub(crate) short_of_room: bool,
}

/// Bytes of such a disk, and what writers may not take of it: too few for what the script writes, enough for what it
/// keeps.
const SMALL_DISK_BYTES: u64 = 14 << 10;
const SMALL_RESERVE_BYTES: u64 = 5 << 10;

impl Harness {
    pub(crate) fn new(durability: Durability, end: End) -> Harness {
        Harness {
            durability,
            end,
            disk: |disk| Arc::new(disk),
            engine: |engine| engine,
            steps: 120,
            stride: 1,
            seeds: 1,
            short_of_room: false,
        }
    }

    pub(crate) fn options(&self) -> LogOptions {
        match self.short_of_room {
            false => small(self.durability),
            true => LogOptions {
                segment_bytes: 64 << 10,
                reserve_bytes: SMALL_RESERVE_BYTES,
                snapshot_bytes: 256 << 20,
                ..small(self.durability)
            },
        }
    }

    pub(crate) async fn open(
        &self,
        disk: &SimulatedDisk,
        world: &World,
    ) -> Result<Arc<dyn StorageEngine>, StorageError> {
        let disk = (self.disk)(disk.clone());
        LogEngine::open(disk, DIRECTORY, self.options(), world.ports()).await.map(self.engine)
    }

    /// Ends the script at each of its operations in turn and checks what is left.
    pub(crate) fn run(&self) -> Result<(), String> {
        let disk = SimulatedDisk::new(0);
        let mut ledger = Ledger::default();
        let outcome = self.script(&disk, &mut ledger);
        assert_eq!(outcome, Ok(()), "without an end the script succeeds");
        let operations = disk.operations();
        assert!(operations > 100, "the script does something: {operations} operations");
        for at in (0..operations).step_by(self.stride as usize) {
            for seed in 0..self.seeds {
                self.end_at(at, seed)
                    .map_err(|error| format!("end at operation {at}, seed {seed}: {error}"))?;
            }
        }
        Ok(())
    }

    fn end_at(&self, at: u64, seed: u64) -> Result<(), String> {
        let disk = SimulatedDisk::new(seed);
        disk.power_off_after(Some(at));
        let mut ledger = Ledger::default();
        let _ = self.script(&disk, &mut ledger);
        self.end_life(&disk, at * 31 + seed)?;
        // Opening may be cut short, too.
        for again in 0..3 {
            disk.power_off_after(Some(again * 3 + at % 3));
            let world = World::default();
            let _ = world.block_on(self.open(&disk, &world));
            self.end_life(&disk, at + seed + again)?;
        }
        disk.set_capacity(None);
        let world = World::default();
        let engine = world.block_on(self.open(&disk, &world)).map_err(|error| format!("reopen: {error}"))?;
        ledger.check(&*engine, self.end)?;
        // What was found must last, and take new writes.
        let (partition, key) = (2, b"afterwards");
        ledger.wrote(partition, key, Some(b"new".to_vec()));
        let commit = write(&*engine, partition, key, Some(b"new".to_vec())).map_err(|e| e.to_string())?;
        let durable = engine.durable(commit.expect("a put has a position"));
        world.block_on(durable.wait()).map_err(|error| error.to_string())?;
        world.block_on(engine.close()).map_err(|error| format!("close: {error}"))?;
        disk.crash(seed);
        if at.is_multiple_of(2) {
            // Without the snapshot the segments alone must say the same.
            disk.remove(&format!("{DIRECTORY}/index")).map_err(|error| error.to_string())?;
        }
        let world = World::default();
        let engine = world.block_on(self.open(&disk, &world)).map_err(|error| format!("third: {error}"))?;
        ledger.check(&*engine, self.end).map_err(|error| format!("after a clean stop: {error}"))
    }

    fn end_life(&self, disk: &SimulatedDisk, seed: u64) -> Result<(), String> {
        match self.end {
            End::PowerCut => disk.crash(seed),
            End::Kill => disk.kill(),
        }
        match LogEngine::remains(disk, DIRECTORY) {
            Ok(Remains::Nothing | Remains::Whole(_)) => Ok(()),
            other => Err(format!("nothing was lost but what nobody had synced, and there is {other:?}")),
        }
    }

    /// Writes, removes, drops, waits, closes and reopens, the same every time; ends at the first refusal.
    fn script(&self, disk: &SimulatedDisk, ledger: &mut Ledger) -> Result<(), StorageError> {
        let world = World::default();
        if self.short_of_room {
            disk.set_capacity(Some(SMALL_DISK_BYTES));
        }
        let mut engine = world.block_on(self.open(disk, &world))?;
        let mut dice = 12345u64;
        for step in 0..self.steps {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let roll = (dice >> 33) as u32;
            let (partition, key) = (roll % 3, format!("key {}", (roll / 3) % 12));
            match (roll / 36) % 100 {
                0..=2 => {
                    ledger.dropped(partition);
                    engine.drop_partition(PartitionId(partition))?;
                }
                3..=14 => self.change(&world, &*engine, ledger, partition, &key, None)?,
                15..=24 => {
                    world.pass(Duration::from_millis(25));
                    // A life that goes on has synced by now.
                    engine.get(PartitionId(0), model::Token(0), b"")?;
                    if matches!(self.durability, Durability::Every { .. }) {
                        ledger.promise();
                    }
                }
                25..=26 if !self.short_of_room => {
                    world.block_on(engine.close())?;
                    ledger.promise();
                    engine = world.block_on(self.open(disk, &world))?;
                }
                _ => {
                    let length = 20 + (roll / 3600) as usize % 150;
                    let value = format!("{:.<length$}", format!("value {step}")).into_bytes();
                    self.change(&world, &*engine, ledger, partition, &key, Some(value))?;
                }
            }
        }
        world.block_on(engine.close())?;
        ledger.promise();
        Ok(())
    }

    fn change(
        &self,
        world: &World,
        engine: &dyn StorageEngine,
        ledger: &mut Ledger,
        partition: u32,
        key: &str,
        value: Option<Vec<u8>>,
    ) -> Result<(), StorageError> {
        ledger.wrote(partition, key.as_bytes(), value.clone());
        let commit = match write(engine, partition, key.as_bytes(), value) {
            Err(StorageError::Full) if self.short_of_room => {
                ledger.refused(partition, key.as_bytes());
                // Room comes back by itself.
                world.pass(Duration::from_millis(100));
                return Ok(());
            }
            commit => commit?,
        };
        if let Some(commit) = commit {
            world.block_on(engine.durable(commit).wait())?;
            match self.durability {
                Durability::Always => ledger.promise(),
                _ => ledger.acknowledge(),
            }
        }
        Ok(())
    }
}

fn check(durability: Durability, end: End, stride: u64) {
    if let Err(violation) = (Harness { stride, ..Harness::new(durability, end) }).run() {
        panic!("{durability:?}, {end:?}: {violation}");
    }
}

#[test]
fn a_power_cut_at_any_operation_costs_nothing_when_every_write_is_synced() {
    check(Durability::Always, End::PowerCut, 1);
}

#[test]
fn a_power_cut_at_any_operation_costs_only_unsynced_writes_when_syncs_are_grouped_in_time() {
    check(Durability::Every { milliseconds: 10 }, End::PowerCut, 1);
}

#[test]
fn a_power_cut_at_any_operation_leaves_only_what_was_written_when_syncs_are_left_to_the_system() {
    check(Durability::System, End::PowerCut, 3);
}

#[test]
fn the_end_of_the_process_at_any_operation_costs_no_acknowledged_write() {
    for durability in [Durability::Always, Durability::Every { milliseconds: 10 }, Durability::System] {
        check(durability, End::Kill, 5);
    }
}

/// Once, a client that repeated a put after a restart was told that it was durable: the record was found in place, but
/// the life before had never synced it.
#[test]
fn what_a_restart_found_is_acknowledged_only_after_a_sync() {
    let (harness, disk) = (Harness::new(Durability::Always, End::Kill), SimulatedDisk::new(0));
    let world = World::default();
    let engine = world.block_on(harness.open(&disk, &world)).unwrap();
    world.block_on(engine.close()).unwrap();
    let engine = world.block_on(harness.open(&disk, &world)).unwrap();
    disk.inject(Fault::next(DiskOperation::Sync, 1));
    let commit = write(&*engine, 0, b"k", Some(b"v".to_vec())).unwrap().unwrap();
    assert!(world.block_on(engine.durable(commit).wait()).is_err());
    disk.kill();
    let world = World::default();
    let engine = world.block_on(harness.open(&disk, &world)).unwrap();
    assert_eq!(get(&*engine, 0, "k"), Some(b"v".to_vec()));
    let Durable::Waits(wait) = engine.durable(engine.position()) else { panic!("it is not synced yet") };
    let syncs = disk.operations();
    world.block_on(wait).unwrap();
    assert!(disk.operations() > syncs);
}

/// Once, a first start that was killed before it had synced the names of its directories cost all that a second one
/// acknowledged: that one found the directory in place, and never synced its name.
#[test]
fn what_a_second_start_promises_survives_a_power_cut_wherever_the_first_ended() {
    for (at, seed) in (0..12).flat_map(|at| (0..8).map(move |seed| (at, seed))) {
        let (harness, disk) = (Harness::new(Durability::Always, End::PowerCut), SimulatedDisk::new(seed));
        disk.power_off_after(Some(at));
        let world = World::default();
        drop(world.block_on(harness.open(&disk, &world)));
        disk.kill();
        let world = World::default();
        let engine = world.block_on(harness.open(&disk, &world)).unwrap();
        let commit = write(&*engine, 0, b"k", Some(b"v".to_vec())).unwrap().unwrap();
        world.block_on(engine.durable(commit).wait()).unwrap();
        disk.crash(seed);
        let world = World::default();
        let engine = world.block_on(harness.open(&disk, &world)).unwrap();
        assert_eq!(get(&*engine, 0, "k"), Some(b"v".to_vec()), "ended at operation {at}, seed {seed}");
    }
}

/// Once, the next process built on what the page cache showed of a write whose sync had failed. Its snapshot pointed
/// there, no later sync brought the bytes to the disk, and a power cut took the version before it, which was promised.
#[test]
fn a_write_whose_sync_failed_takes_nothing_along_that_was_acknowledged_before() {
    let (harness, disk) = (Harness::new(Durability::Always, End::PowerCut), SimulatedDisk::new(0));
    let world = World::default();
    let engine = world.block_on(harness.open(&disk, &world)).unwrap();
    let put = |world: &World, engine: &dyn StorageEngine, key: &str, value: &str| {
        let commit = write(engine, 0, key.as_bytes(), Some(value.as_bytes().to_vec())).unwrap().unwrap();
        world.block_on(engine.durable(commit).wait())
    };
    put(&world, &*engine, "k", "promised").unwrap();
    disk.inject(Fault::next(DiskOperation::Sync, 1));
    assert!(put(&world, &*engine, "k", "in doubt").is_err());
    disk.kill();
    let world = World::default();
    let engine = world.block_on(harness.open(&disk, &world)).unwrap();
    put(&world, &*engine, "other", "value").unwrap();
    world.block_on(engine.close()).unwrap();
    let left = disk.after_power_cut(DIRECTORY);
    let world = World::default();
    let engine = world.block_on(harness.open(&left, &world)).unwrap();
    let found = get(&*engine, 0, "k");
    assert!(found == Some(b"promised".to_vec()) || found == Some(b"in doubt".to_vec()), "{found:?}");
}

#[test]
fn the_script_rotates_compacts_and_snapshots() {
    let harness = Harness::new(Durability::Every { milliseconds: 10 }, End::Kill);
    let disk = SimulatedDisk::new(0);
    harness.script(&disk, &mut Ledger::default()).unwrap();
    let names = disk.list(DIRECTORY).unwrap();
    assert!(names.iter().any(|name| name.ends_with(".compacted")), "{names:?}");
    assert!(names.contains(&"index".to_owned()), "{names:?}");
    let segments = names.iter().filter(|name| name.ends_with(".log")).count() as u64;
    let newest = names.iter().filter_map(|name| name.get(..10)?.parse::<u64>().ok()).max().unwrap();
    assert!(newest > segments + 10, "segments come and go: {names:?}");
}

#[test]
fn the_end_at_any_operation_costs_no_promise_while_segments_are_closed_early_for_their_room() {
    for (durability, end, stride) in [
        (Durability::Always, End::PowerCut, 2),
        (Durability::Every { milliseconds: 10 }, End::PowerCut, 3),
        (Durability::System, End::Kill, 3),
    ] {
        let harness = Harness { stride, steps: 240, short_of_room: true, ..Harness::new(durability, end) };
        let disk = SimulatedDisk::new(0);
        harness.script(&disk, &mut Ledger::default()).unwrap();
        let newest = disk.list(DIRECTORY).unwrap();
        let newest = newest.iter().filter_map(|name| name.get(..10)?.parse::<u64>().ok()).max().unwrap();
        assert!(newest >= 5, "no segment is full, and still segments come and go: {newest}");
        harness.run().unwrap_or_else(|violation| panic!("{durability:?}, {end:?}: {violation}"));
    }
}
