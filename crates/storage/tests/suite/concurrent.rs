//! Many writers, syncs that take their time, and an end at any moment: in a sync, in a snapshot, between copying a
//! record and pointing the index at the copy. Then the index is lost.
//!
//! One thread plays all: which task runs next, and what others do while the engine is inside a call of the disk, is
//! drawn from the seed. A seed is several lives of one directory, of which each ends in its own way; what is found
//! after each must be what was promised before it, and must then last.
//!
//! `TONTINE_STORAGE_SEEDS=20000 cargo test --profile proof -p storage --test suite many_seeds -- --ignored` plays many.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};
use runtime::{Clock, Disk};
use storage::{Durability, LogEngine, LogOptions, Remains, StorageEngine, StorageError};

use crate::crowd::{Crowd, Cut, Plan, Seams};
use crate::ledger::{End, Ledger};
use crate::setup::DIRECTORY;
use crate::watched::WatchedDisk;
use crate::world::{Dice, World};

/// Seeds of each durability in every run of the suite.
const SEEDS: u64 = 150;

/// How seeds are played: planted bugs come in here.
#[derive(Clone, Copy)]
pub(crate) struct Concurrent {
    pub(crate) durability: Durability,
    pub(crate) disk: fn(SimulatedDisk) -> Arc<dyn Disk>,
    pub(crate) engine: fn(Arc<LogEngine>) -> Arc<dyn StorageEngine>,
}

/// What the lives of a seed have most of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Focus {
    Anything,
    /// Removals beside compaction; the index is always lost.
    Removals,
    /// The end comes in snapshots and behind them.
    Snapshots,
}

/// One seed, over all lives.
struct Run<'a> {
    how: &'a Concurrent,
    dice: Dice,
    focus: Focus,
    disk: SimulatedDisk,
    ledger: Arc<Mutex<Ledger>>,
    seams: Arc<Mutex<Seams>>,
    values: Arc<AtomicU64>,
    /// What happened between the lives, for whoever reads a violation.
    story: Vec<String>,
}

impl Concurrent {
    pub(crate) fn new(durability: Durability) -> Concurrent {
        Concurrent { durability, disk: |disk| Arc::new(disk), engine: |engine| engine }
    }

    /// Plays one seed; says what was wrong. An assertion that fails in the engine is wrong, too.
    pub(crate) fn play(&self, seed: u64) -> Result<Seams, String> {
        let mut run = Run {
            how: self,
            dice: Dice::new(seed),
            focus: [Focus::Anything, Focus::Anything, Focus::Removals, Focus::Snapshots][seed as usize % 4],
            disk: SimulatedDisk::new(seed),
            ledger: Arc::default(),
            seams: Arc::default(),
            values: Arc::default(),
            story: Vec::new(),
        };
        let played = catch_unwind(AssertUnwindSafe(|| run.play())).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("a panic: {}", message.unwrap_or("without a message")))
        });
        match played {
            Ok(()) => Ok(*run.seams.lock().unwrap()),
            Err(wrong) => Err(format!("seed {seed}: {wrong}\n{}", run.story.join("\n"))),
        }
    }

    /// The first of so many seeds that finds something, and what.
    pub(crate) fn first_violation(&self, seeds: u64) -> Option<String> {
        (1..=seeds).find_map(|seed| self.play(seed).err())
    }
}

impl Run<'_> {
    fn play(&mut self) -> Result<(), String> {
        let lives = self.dice.below(4) + 2;
        for life in 0..lives {
            self.life(life + 1 == lives)?;
        }
        // What is there now is there without the index, too.
        self.open_undisturbed()?;
        self.lose_index();
        self.open_undisturbed()
    }

    /// Opens, plays the writers, ends.
    fn life(&mut self, last: bool) -> Result<(), String> {
        let (plan, seed) = (self.plan(), self.dice.next() >> 1);
        let shared = (self.ledger.clone(), self.seams.clone(), self.values.clone());
        let crowd = Crowd::new(self.disk.clone(), shared, plan, seed);
        self.story.push(format!("{plan:?}"));
        let faulty = self.dice.one_in(4);
        if faulty {
            let fault = self.fault();
            self.story.push(format!("{fault:?}"));
            self.disk.inject(fault);
        }
        let small = self.dice.one_in(6);
        if small {
            let bytes = self.disk.used_bytes() + self.dice.below(24 << 10);
            self.story.push(format!("the disk holds {bytes} bytes"));
            self.disk.set_capacity(Some(bytes));
        }
        self.slow_syncs(&crowd.world);
        let played = self.live(&crowd, last);
        *crowd.engine.lock().unwrap() = None;
        crowd.world.end();
        self.disk.clear_faults();
        self.disk.set_sync_delay(None);
        self.disk.set_capacity(None);
        crowd.violation()?;
        let played = played?;
        self.story.push(format!("it ended with {played:?}"));
        match played {
            Err(refused) if plan.cut.is_none() && !faulty && !small => {
                Err(format!("nothing was wrong, and still: {refused}"))
            }
            _ => self.end(),
        }
    }

    fn live(&mut self, crowd: &Arc<Crowd>, last: bool) -> Result<Result<(), StorageError>, String> {
        let onlooker = crowd.clone();
        let disk = Arc::new(WatchedDisk {
            disk: (self.how.disk)(self.disk.clone()),
            onlooker: Arc::new(move |call| onlooker.watch(call)),
        });
        let world = &crowd.world;
        let engine =
            match world.block_on(LogEngine::open(disk, DIRECTORY, options(&crowd.plan), world.ports())) {
                Ok(engine) => engine,
                Err(error) => return Ok(Err(error)),
            };
        let engine = (self.how.engine)(engine);
        match self.ledger.lock().unwrap().settle(&*engine) {
            // The power may go while it is looked at.
            Err(wrong) if !wrong.contains("power is off") && !wrong.contains("injected") => {
                return Err(wrong);
            }
            Err(_) => return Ok(Ok(())),
            Ok(()) => {}
        }
        *crowd.engine.lock().unwrap() = Some(engine.clone());
        let writers: Vec<_> = (0..crowd.plan.writers)
            .map(|_| {
                let (answer, answers) = tokio::sync::oneshot::channel();
                let writer = crowd.clone().writer(engine.clone());
                runtime::Tasks::spawn(world, Box::pin(async move { drop(answer.send(writer.await)) }));
                answers
            })
            .collect();
        let mut outcome = Ok(());
        for writer in writers {
            let refused = world.block_on(writer).expect("every writer ends");
            outcome = outcome.and(refused);
        }
        if outcome.is_ok() && self.dice.one_in(if last { 2 } else { 4 }) {
            outcome = world.block_on(engine.close());
            if outcome.is_ok() {
                self.ledger.lock().unwrap().told(storage::Commit(u64::MAX), true);
            }
        }
        self.seams.lock().unwrap().compacted_bytes += engine.stats().compacted_bytes;
        Ok(outcome)
    }

    fn plan(&mut self) -> Plan {
        let dice = &mut self.dice;
        let plan = Plan {
            durability: self.how.durability,
            segment_bytes: dice.one_of(&[1024, 1024, 2048, 8192]),
            writers: dice.below(8) + 1,
            steps: dice.below(30) + 5,
            partitions: dice.below(3) + 1,
            keys: dice.one_of(&[2, 6, 20]),
            turns: dice.one_of(&[0, 1, 3, 6]),
            removals: dice.one_of(&[0, 1, 4]),
            cut: (!dice.one_in(5)).then(|| cut(dice, &CUTS)),
        };
        match self.focus {
            Focus::Anything => plan,
            // Nearly everything goes, and goes while it is copied.
            Focus::Removals => Plan {
                segment_bytes: 1024,
                writers: dice.below(3) + 1,
                steps: 60,
                partitions: 1,
                keys: 10,
                turns: 6,
                removals: 4,
                cut: plan.cut.filter(|_| dice.one_in(2)),
                ..plan
            },
            Focus::Snapshots => {
                Plan { segment_bytes: 1024, turns: 6, cut: Some(cut(dice, &SNAPSHOT_CUTS)), ..plan }
            }
        }
    }

    /// One operation fails, and once only.
    fn fault(&mut self) -> Fault {
        use DiskOperation::{Append, Create, Read, Remove, Rename, Sync, SyncDirectory, Truncate};
        let dice = &mut self.dice;
        let operation =
            dice.one_of(&[Sync, Sync, Sync, SyncDirectory, Append, Rename, Create, Remove, Truncate, Read]);
        let path_part = dice.one_of(&["", "", ".log", ".tmp", "index"]).to_owned();
        let path_part = if operation == SyncDirectory { String::new() } else { path_part };
        Fault { path_part, skip: dice.below(20), ..Fault::next(operation, 1) }
    }

    /// Syncs take their time, each its own.
    fn slow_syncs(&mut self, world: &World) {
        let most = self.dice.one_of(&[0, 1_000, 10_000, 50_000, 3_000_000]);
        let dice = Mutex::new(Dice::new(self.dice.next()));
        let world = world.clone();
        self.disk.set_sync_delay(Some(Arc::new(move |_| {
            let time = Duration::from_micros(dice.lock().unwrap().below(most + 1));
            let until = world.now().after(time);
            world.sleep_until(until)
        })));
    }

    /// The process ends, or the power is cut; sometimes the index is lost on the way.
    fn end(&mut self) -> Result<(), String> {
        let end = if self.dice.one_in(3) { End::Kill } else { End::PowerCut };
        match end {
            End::PowerCut => self.disk.crash(self.dice.next()),
            End::Kill => self.disk.kill(),
        }
        self.story.push(format!("{end:?}"));
        self.ledger.lock().unwrap().ended(end);
        match LogEngine::remains(&self.disk, DIRECTORY) {
            Ok(Remains::Nothing | Remains::Whole(_)) => {}
            other => {
                return Err(format!("nothing was lost but what nobody had synced, and there is {other:?}"));
            }
        }
        if self.focus == Focus::Removals || self.dice.one_in(3) {
            self.lose_index();
        }
        Ok(())
    }

    fn lose_index(&mut self) {
        let path = format!("{DIRECTORY}/index");
        if self.dice.one_in(3) {
            self.story.push(format!("a bit of the index flips at {:?}", self.disk.flip_random_bit(&path)));
        } else if self.disk.remove(&path).is_ok() {
            World::default().block_on(self.disk.sync_directory(DIRECTORY)).expect("nothing disturbs it");
            self.story.push("the index is lost".to_owned());
        }
    }

    fn open_undisturbed(&mut self) -> Result<(), String> {
        let world = World::default();
        let options = options(&self.plan());
        let opening = LogEngine::open(Arc::new(self.disk.clone()), DIRECTORY, options, world.ports());
        let engine = world.block_on(opening).map_err(|error| format!("does not open: {error}"))?;
        self.ledger.lock().unwrap().settle(&*engine)?;
        self.disk.kill();
        self.ledger.lock().unwrap().ended(End::Kill);
        Ok(())
    }
}

fn options(plan: &Plan) -> LogOptions {
    LogOptions {
        durability: plan.durability,
        segment_bytes: plan.segment_bytes,
        reserve_bytes: 0,
        snapshot_bytes: 2 * plan.segment_bytes,
    }
}

/// An operation, a part of its path, and how often it may pass before.
type CutChoice = (Option<DiskOperation>, &'static str, u64);

/// Somewhere, or where it hurts.
const CUTS: [CutChoice; 12] = [
    (None, "", 400),
    (None, "", 60),
    (Some(DiskOperation::Sync), ".log", 40),
    (Some(DiskOperation::Append), ".log", 60),
    (Some(DiskOperation::Append), "0.tmp", 3),
    (Some(DiskOperation::Append), ".tmp", 20),
    (Some(DiskOperation::Sync), ".tmp", 10),
    (Some(DiskOperation::Rename), ".tmp", 10),
    (Some(DiskOperation::Append), "index", 10),
    (Some(DiskOperation::Remove), ".log", 10),
    (Some(DiskOperation::Remove), ".compacted", 4),
    (Some(DiskOperation::SyncDirectory), "", 30),
];

const SNAPSHOT_CUTS: [CutChoice; 3] = [
    (Some(DiskOperation::Sync), "index", 6),
    (Some(DiskOperation::Rename), "index", 6),
    (Some(DiskOperation::Remove), "0.", 6),
];

fn cut(dice: &mut Dice, choices: &[CutChoice]) -> Cut {
    let (operation, path_part, often) = dice.one_of(choices);
    Cut { operation, path_part, skip: dice.below(often), then: dice.below(4) }
}

fn check(durability: Durability, seeds: u64) -> Seams {
    let (mut seams, mut wrong) = (Seams::default(), Vec::new());
    for seed in 1..=seeds {
        match Concurrent::new(durability).play(seed) {
            Ok(played) => seams.add(&played),
            Err(violation) => wrong.push(violation),
        }
    }
    if let Some(first) = wrong.first() {
        let all: Vec<&str> = wrong.iter().filter_map(|wrong| wrong.lines().next()).collect();
        panic!("{durability:?}: {} of {seeds} seeds\n{}\n{first}", wrong.len(), all.join("\n"));
    }
    seams
}

const ALL: [Durability; 3] = [Durability::Always, Durability::Every { milliseconds: 10 }, Durability::System];

#[test]
fn many_writers_lose_nothing_that_was_promised_wherever_it_ends() {
    let seams = check(Durability::Always, SEEDS);
    println!("{seams:?}");
    assert!(seams.waiting_max > 8, "more wait than one sync began with: {seams:?}");
    assert!(seams.ends_in_syncs > SEEDS / 4, "{seams:?}");
    assert!(seams.changes_beside_syncs > SEEDS, "{seams:?}");
    assert!(seams.changes_beside_copies > SEEDS, "{seams:?}");
    assert!(seams.removals_beside_copies > SEEDS / 4, "{seams:?}");
    assert!(seams.changes_beside_snapshots > SEEDS, "{seams:?}");
    assert!(seams.compacted_bytes > SEEDS * 1024, "{seams:?}");
}

#[test]
fn many_writers_lose_at_most_what_is_not_synced_when_syncs_are_grouped_or_left_to_the_system() {
    for durability in &ALL[1..] {
        check(*durability, SEEDS);
    }
}

#[test]
#[ignore = "plays the seed that TONTINE_STORAGE_SEED says"]
fn one_seed() {
    let seed =
        std::env::var("TONTINE_STORAGE_SEED").expect("TONTINE_STORAGE_SEED is a number").parse().unwrap();
    for durability in ALL {
        println!("{durability:?}: {:?}", Concurrent::new(durability).play(seed));
    }
}

#[test]
#[ignore = "plays as many seeds as TONTINE_STORAGE_SEEDS says"]
fn many_seeds() {
    let seeds = std::env::var("TONTINE_STORAGE_SEEDS").map_or(2000, |seeds| seeds.parse().unwrap());
    for durability in ALL {
        println!("{durability:?}: {:?}", check(durability, seeds));
    }
}
