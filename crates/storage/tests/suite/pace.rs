//! When compaction works, on what, and in which steps: its limits are documented, and nobody else waits long for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::{PartitionId, Token, WallMillis};
use runtime::disk::simulated::{DiskOperation, SimulatedDisk};
use runtime::{BoxFuture, Clock, Disk, Moment};
use storage::{
    Durability, EnginePorts, LogEngine, LogOptions, RepairableEngine, StorageEngine, StorageError,
};

use crate::setup::{DIRECTORY, get, write};
use crate::watched::{Call, WatchedDisk};
use crate::world::World;

const STEP: u64 = 256 << 10;
const HEADER: u64 = 64;

/// A world whose clock goes on while somebody works, and a disk that tells of what is done to it.
#[derive(Clone, Default)]
struct Watched {
    world: World,
    worked: Arc<AtomicU64>,
    calls: Arc<Mutex<Vec<Told>>>,
}

#[derive(Clone)]
struct Told {
    operation: DiskOperation,
    name: String,
    length: u64,
    at: Duration,
}

impl Clock for Watched {
    fn now(&self) -> Moment {
        Moment { nanos: self.world.now().nanos + self.worked.load(Ordering::Relaxed) }
    }

    fn wall(&self) -> WallMillis {
        self.world.wall()
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        let nanos = deadline.nanos.saturating_sub(self.worked.load(Ordering::Relaxed));
        self.world.sleep_until(Moment { nanos })
    }
}

/// True for the file that compaction writes.
fn is_output(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|name| name.ends_with(char::is_numeric))
}

impl Watched {
    /// Opens an engine to whom each write of copies takes two milliseconds.
    fn open(&self, disk: &SimulatedDisk, options: LogOptions) -> Arc<LogEngine> {
        let told = self.clone();
        let onlooker = move |call: Call<'_>| {
            if !call.begins {
                return;
            }
            let name = call.path.rsplit('/').next().unwrap().to_owned();
            if call.operation == DiskOperation::Append && is_output(&name) {
                told.worked.fetch_add(2_000_000, Ordering::Relaxed);
            }
            let at = Duration::from_nanos(told.world.now().nanos);
            let call = Told { operation: call.operation, name, length: call.length, at };
            told.calls.lock().unwrap().push(call);
        };
        let disk = WatchedDisk { disk: Arc::new(disk.clone()), onlooker: Arc::new(onlooker) };
        let ports = EnginePorts { clock: Arc::new(self.clone()), ..self.world.ports() };
        self.world.block_on(LogEngine::open(Arc::new(disk), DIRECTORY, options, ports)).unwrap()
    }

    /// What was done to files whose names are wanted.
    fn told(&self, operation: DiskOperation, wanted: impl Fn(&str) -> bool) -> Vec<Told> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.operation == operation && wanted(&call.name)).cloned().collect()
    }
}

fn options(segment_bytes: u64) -> LogOptions {
    let durability = Durability::Every { milliseconds: 10 };
    LogOptions { durability, segment_bytes, reserve_bytes: 0, snapshot_bytes: 1 << 40 }
}

/// Puts a record that takes this many bytes of its segment.
fn put(engine: &LogEngine, key: &str, space: usize) {
    write(engine, 0, key.as_bytes(), Some(vec![7; space - 48 - key.len()])).unwrap();
}

/// Fills the first segment with records of 128 KiB, of which all but the first are then dead.
fn half_dead(engine: &LogEngine, world: &World, live: u32, dead: u32) {
    (0..live).for_each(|number| put(engine, &format!("cold {number}"), 128 << 10));
    (0..dead).for_each(|number| put(engine, &format!("warm {number}"), 128 << 10));
    world.block_on(engine.sync()).unwrap();
    (0..dead).for_each(|number| put(engine, &format!("warm {number}"), 64));
    world.block_on(engine.sync()).unwrap();
}

fn gaps(calls: &[Told]) -> Vec<Duration> {
    calls.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

#[test]
fn copies_are_written_in_steps_with_rests_thrice_as_long_until_dead_bytes_exceed_their_share() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let engine = watched.open(&disk, options(2 << 20));
    half_dead(&engine, &watched.world, 8, 9);
    watched.world.pass(Duration::from_secs(1));
    let copies = watched.told(DiskOperation::Append, is_output);
    let lengths: Vec<u64> = copies.iter().map(|call| call.length).collect();
    assert_eq!(lengths, [1, 2, 3, 4].map(|steps| HEADER + steps * STEP));
    // After the first step 11 of 19 records are dead, after the second 13 of 21: more than three in five.
    let (rest, urgent) = (Duration::from_millis(6), Duration::from_micros(100));
    assert_eq!(gaps(&copies), [rest, urgent, urgent]);
    (0..8).for_each(|number| assert!(get(&*engine, 0, &format!("cold {number}")).is_some()));
    watched.world.block_on(engine.close()).unwrap();
}

#[test]
fn a_step_ends_after_four_mib_were_read_though_nothing_in_them_is_needed() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let engine = watched.open(&disk, options(12 << 20));
    half_dead(&engine, &watched.world, 0, 96);
    watched.world.pass(Duration::from_secs(1));
    let reads = watched.told(DiskOperation::Read, |name| name == "0000000001.log");
    let (none, rest) = (Duration::ZERO, Duration::from_micros(100));
    // A mebibyte with each read: the fifth is beyond the limit.
    let expected = [none, none, none, none, rest, none, none, none, none, rest, none];
    assert_eq!(gaps(&reads[reads.len() - 12..]), expected);
    watched.world.block_on(engine.close()).unwrap();
}

#[test]
fn copies_are_synced_whenever_eight_mib_are_not() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let engine = watched.open(&disk, options(21 << 20));
    half_dead(&engine, &watched.world, 80, 90);
    watched.world.pass(Duration::from_secs(10));
    let syncs = watched.told(DiskOperation::Sync, is_output);
    let lengths: Vec<u64> = syncs.iter().map(|call| call.length).collect();
    assert_eq!(lengths, [8 << 20, 10 << 20].map(|bytes| HEADER + bytes));
    assert_eq!(engine.stats().compacted_bytes, HEADER + (10 << 20));
    watched.world.block_on(engine.close()).unwrap();
}

/// Two halves that make exactly one whole are rewritten together; a third is left for the next time.
#[test]
fn segments_are_rewritten_together_as_long_as_what_lives_in_them_fits_one() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let engine = watched.open(&disk, options(1024));
    for number in 0..4 {
        put(&engine, &format!("cold {number}"), 512 - HEADER as usize);
        put(&engine, "warm", 600);
        watched.world.block_on(engine.sync()).unwrap();
    }
    put(&engine, "warm", 600);
    watched.world.pass(Duration::from_secs(1));
    let names = disk.list(DIRECTORY).unwrap();
    let outputs: Vec<u64> = names
        .iter()
        .filter(|name| name.ends_with(".compacted"))
        .map(|name| disk.contents(&format!("{DIRECTORY}/{name}")).unwrap().len() as u64)
        .collect();
    assert_eq!(outputs, [1024 - HEADER; 2], "{names:?}");
    (0..4).for_each(|number| assert!(get(&*engine, 0, &format!("cold {number}")).is_some()));
    watched.world.block_on(engine.close()).unwrap();
}

/// Lets room be short from now on, and says so to the engine as a writer does.
fn let_room_be_short(engine: &LogEngine, disk: &SimulatedDisk) {
    disk.set_capacity(Some(disk.used_bytes() + (200 << 10)));
    assert_eq!(engine.room().map(|room| room.bytes), Ok(0));
    assert_eq!(write(engine, 0, b"refused", Some(vec![1; 10])), Err(StorageError::Full));
}

#[test]
fn an_active_segment_is_closed_early_when_half_of_it_and_enough_is_dead_and_not_before() {
    // Bytes that live, that are dead, and that markers take; and whether it is closed: from 16 KiB on.
    for (live, dead, removals, closed) in
        [(0, 9, 0, false), (40, 20, 0, false), (5, 20, 0, true), (0, 0, 200, true), (0, 0, 120, false)]
    {
        let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
        let engine = watched.open(&disk, LogOptions { reserve_bytes: 1 << 20, ..options(1 << 20) });
        (0..live).for_each(|number| put(&engine, &format!("cold {number}"), 1000));
        (0..dead).for_each(|_| put(&engine, "warm", 1000));
        put(&engine, "warm", 64);
        for number in 0..removals {
            let key = format!("key {number:03}");
            put(&engine, &key, 72);
            write(&*engine, 0, key.as_bytes(), None).unwrap();
        }
        watched.world.pass(Duration::from_secs(1));
        let_room_be_short(&engine, &disk);
        watched.world.pass(Duration::from_secs(10));
        let names = disk.list(DIRECTORY).unwrap();
        let there = names.iter().any(|name| name == "0000000001.log");
        assert_eq!(there, !closed, "{live} {dead} {removals}: {names:?}");
        assert!(get(&*engine, 0, "warm").is_some());
        (0..live).for_each(|number| assert!(get(&*engine, 0, &format!("cold {number}")).is_some()));
        // One sync of each segment that has news.
        let mut news: BTreeMap<String, bool> = BTreeMap::new();
        for call in watched.calls.lock().unwrap().iter().filter(|call| call.name.ends_with(".log")) {
            match call.operation {
                DiskOperation::Append => *news.entry(call.name.clone()).or_default() = true,
                DiskOperation::Sync => {
                    let had_news = news.insert(call.name.clone(), false);
                    assert_eq!(had_news, Some(true), "{} was synced once more", call.name);
                }
                _ => {}
            }
        }
        disk.set_capacity(None);
        watched.world.block_on(engine.close()).unwrap();
    }
}

const VICTIMS: u64 = 160;
const COLD_BYTES: u64 = 20 * 600;

/// Twenty segments of which each holds one record that stays and eight that will be removed, too few to rewrite it.
fn with_victims(engine: &LogEngine, world: &World) {
    for segment in 0..20 {
        put(engine, &format!("cold {segment}"), 600);
        (0..8).for_each(|number| put(engine, &format!("key {:03}", segment * 8 + number), 56));
        world.block_on(engine.sync()).unwrap();
    }
}

/// Removes one key and gives compaction its time.
fn remove(engine: &LogEngine, world: &World, number: u64) {
    write(engine, 0, format!("key {number:03}").as_bytes(), None).unwrap();
    world.pass(Duration::from_secs(1));
}

/// This many removals take more than a quarter of the live bytes and two segments.
fn too_many(removed: u64) -> bool {
    let live = COLD_BYTES + (VICTIMS - removed) * 56;
    removed * 56 > live / 4 + 2 * 1024
}

#[test]
fn the_oldest_segments_are_rewritten_when_removals_that_wait_for_them_take_their_share_and_not_before() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let mut engine = watched.open(&disk, options(1024));
    with_victims(&engine, &watched.world);
    let mut removed = 0;
    while !too_many(removed) {
        assert_eq!(engine.stats().compacted_bytes, 0, "{removed} removals are no reason yet");
        remove(&engine, &watched.world, removed);
        removed += 1;
        if removed == 50 {
            // What an earlier life has removed waits as before.
            watched.world.block_on(engine.close()).unwrap();
            engine = watched.open(&disk, options(1024));
        }
    }
    assert!(engine.stats().compacted_bytes > 0, "{removed} removals are too many");
    assert!(disk.contents(&format!("{DIRECTORY}/0000000001.log")).is_none(), "the oldest goes first");
    watched.world.block_on(engine.close()).unwrap();
    disk.remove(&format!("{DIRECTORY}/index")).unwrap();
    let engine = Watched::default().open(&disk, options(1024));
    assert_eq!(engine.stats().records, 20 + VICTIMS - removed, "nothing that was removed is back");
}

/// What cannot be read cannot be moved: its segment stays until the record is forgotten, and nothing else waits for it.
#[test]
fn an_oldest_segment_that_is_damaged_holds_up_removals_and_nothing_else() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let engine = watched.open(&disk, options(1024));
    with_victims(&engine, &watched.world);
    let oldest = format!("{DIRECTORY}/0000000001.log");
    assert!(disk.flip_bit(&oldest, HEADER + 48 + 100, 4), "in the value of its first record");
    for number in 0..VICTIMS {
        remove(&engine, &watched.world, number);
    }
    assert!(disk.contents(&oldest).is_some());
    let partition = PartitionId(0);
    let damaged = || engine.get(partition, Token::of(b"cold 0"), b"cold 0");
    assert_eq!(damaged(), Err(StorageError::Corrupt { partition }));
    (1..20).for_each(|number| assert!(get(&*engine, 0, &format!("cold {number}")).is_some()));
    assert_eq!(engine.discard_damaged(partition), Ok(1));
    for number in 0..20 {
        put(&engine, "warm", 600 + 8 * number);
        watched.world.pass(Duration::from_secs(1));
    }
    assert!(disk.contents(&oldest).is_none(), "nothing in it is needed");
    assert_eq!(damaged(), Ok(None));
    watched.world.block_on(engine.close()).unwrap();
}

#[test]
fn a_removal_that_nothing_older_needs_goes_with_its_segment() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let engine = watched.open(&disk, options(1024));
    for segment in ["0000000001.log", "0000000002.log"] {
        for key in ["one", "two", "three"] {
            put(&engine, key, 620);
            write(&*engine, 0, key.as_bytes(), None).unwrap();
        }
        watched.world.block_on(engine.sync()).unwrap();
        assert!(disk.contents(&format!("{DIRECTORY}/{segment}")).is_some());
        watched.world.pass(Duration::from_secs(1));
        assert_eq!(engine.stats().compacted_bytes, 0, "nothing of it was copied");
        assert!(disk.contents(&format!("{DIRECTORY}/{segment}")).is_none());
    }
    watched.world.block_on(engine.close()).unwrap();
}

/// How often an index was written so far.
fn indexes(watched: &Watched) -> usize {
    watched.told(DiskOperation::Rename, |name| name == "index.tmp").len()
}

#[test]
fn emptied_segments_are_deleted_when_they_take_two_segments_and_half_of_the_index() {
    for keys in [0, 500] {
        let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
        let engine = watched.open(&disk, LogOptions { snapshot_bytes: 1, ..options(1024) });
        (0..keys).for_each(|number| put(&engine, &format!("cold {number}"), 64));
        watched.world.pass(Duration::from_secs(1));
        watched.world.block_on(engine.close()).unwrap();
        let index = disk.contents(&format!("{DIRECTORY}/index")).unwrap().len() as u64;
        let engine = watched.open(&disk, options(1024));
        let (before, mut emptied) = (indexes(&watched), 0);
        let least = (2 * 1024).max(index / 2);
        for number in 0..20 {
            put(&engine, "warm", 1024);
            watched.world.block_on(engine.sync()).unwrap();
            watched.world.pass(Duration::from_secs(1));
            // The second and all later ones have a mark of the sync before; each empties the one before it.
            emptied += [0, HEADER + 1024, HEADER + 48 + 1024][number.min(2)];
            assert_eq!(indexes(&watched) > before, emptied >= least, "{keys} keys: {emptied} of {least}");
            if emptied >= least {
                break;
            }
        }
        assert!(emptied >= least);
        watched.world.block_on(engine.close()).unwrap();
    }
}

#[test]
fn an_index_is_written_when_four_times_its_size_was_logged_and_not_before() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let engine = watched.open(&disk, LogOptions { snapshot_bytes: 2000, ..options(1 << 20) });
    let (mut position, mut least, mut times) = (0, 2000, 0);
    for number in 0..2000 {
        put(&engine, &format!("key {number}"), 64);
        watched.world.pass(Duration::from_millis(100));
        let due = engine.position().0 - position >= least;
        assert_eq!(indexes(&watched) > times, due, "{number}: {least} bytes since {position}");
        if due {
            let index = disk.contents(&format!("{DIRECTORY}/index")).unwrap().len() as u64;
            (position, least, times) = (engine.position().0, (4 * index).max(2000), times + 1);
        }
    }
    assert!(times > 3 && least > 10_000, "{times}, {least}");
    watched.world.block_on(engine.close()).unwrap();
}

#[test]
fn an_index_is_written_in_blocks_of_8192_entries_with_a_rest_after_every_four() {
    let (watched, disk) = (Watched::default(), SimulatedDisk::new(0));
    let options = LogOptions { snapshot_bytes: 1, ..options(64 << 20) };
    let engine = watched.open(&disk, options);
    let put =
        |partition, number: u32| write(&*engine, partition, &number.to_le_bytes(), Some(vec![])).unwrap();
    for (partition, number) in (0..20_000).map(|number| (0, number)).chain((1..12).map(|number| (number, 0)))
    {
        put(partition, number);
    }
    watched.world.pass(Duration::from_secs(1));
    let appends = watched.told(DiskOperation::Append, |name| name == "index.tmp");
    let lengths: Vec<u64> = appends.windows(2).map(|pair| pair[1].length - pair[0].length).collect();
    // After the head: three blocks of the large partition, one of each other, segments, the end.
    let (head, full) = (64, 24 + 8192 * 24);
    assert_eq!(appends[0].length, head);
    assert_eq!(lengths[..3], [full, full, 24 + (20_000 - 2 * 8192) * 24]);
    assert_eq!(lengths[3..], [[48; 11].as_slice(), &[24 + 32, 24 + 8]].concat());
    let (none, rest) = (Duration::ZERO, Duration::from_micros(100));
    let rests =
        [none, none, none, none, rest, none, none, none, rest, none, none, none, rest, none, none, none];
    assert_eq!(gaps(&appends), rests);
    drop(engine);
    disk.kill();
    let engine = Watched::default().open(&disk, options);
    assert_eq!(engine.stats().records, 20_011);
    for number in (0..20_000_u32).step_by(37) {
        let key = number.to_le_bytes();
        assert_eq!(engine.get(PartitionId(0), Token::of(&key), &key).unwrap().as_deref(), Some(&[][..]));
    }
}
