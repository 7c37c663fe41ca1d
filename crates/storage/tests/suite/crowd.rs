//! Many writers on one engine: tasks that write, read and wait, and others that run while the engine is inside a call
//! of the disk. All that they do is drawn from a seed and written into the ledger.
//!
//! Must never: change anything while the engine holds a lock that the change needs. The engine holds none in a call of
//! the disk, but in those that `update`, `get` and `drop_partition` make themselves (nobody runs then), and but for the
//! lock of whoever writes to the log (then only what needs no room in a new segment).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use model::{PartitionId, Token};
use runtime::disk::simulated::{DiskOperation, SimulatedDisk};
use runtime::{Clock, Disk, Tasks};
use storage::{Change, Commit, Durability, StorageEngine, StorageError};

use crate::ledger::Ledger;
use crate::watched::Call;
use crate::world::{Dice, World};

/// Values are at most this long: two of them fit behind a segment's end.
const VALUE_BYTES_MAX: u64 = 400;

/// In this many calls of the disk others run: what they write makes work for the engine, which makes calls.
const TURNS_MAX: u64 = 150;

/// Where the power goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// At such an operation; `None` for any that changes something.
    pub(crate) operation: Option<DiskOperation>,
    /// Where the path contains this.
    pub(crate) path_part: &'static str,
    /// After this many of them.
    pub(crate) skip: u64,
    /// And this many operations of any kind. A sync begins, and ends with its operation.
    pub(crate) then: u64,
}

/// How one life of the engine is played.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) durability: Durability,
    pub(crate) segment_bytes: u64,
    pub(crate) writers: u64,
    /// Of each writer.
    pub(crate) steps: u64,
    pub(crate) partitions: u64,
    /// Of each partition.
    pub(crate) keys: u64,
    /// Of 8 calls of the disk, those in which others run.
    pub(crate) turns: u64,
    /// Of 8 changes, those that remove.
    pub(crate) removals: u64,
    pub(crate) cut: Option<Cut>,
}

/// How often something happened, over many seeds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seams {
    pub(crate) writes: u64,
    /// Changes made while copies were on their way to their file: after the index was asked, before it is changed.
    pub(crate) changes_beside_copies: u64,
    pub(crate) removals_beside_copies: u64,
    pub(crate) changes_beside_snapshots: u64,
    pub(crate) changes_beside_syncs: u64,
    /// Acknowledgements at one sync, at most.
    pub(crate) waiting_max: u64,
    pub(crate) compacted_bytes: u64,
    pub(crate) ends_in_syncs: u64,
}

impl Seams {
    fn wait(&mut self, waiting: u64) {
        self.waiting_max = self.waiting_max.max(waiting);
    }

    pub(crate) fn add(&mut self, other: &Seams) {
        self.writes += other.writes;
        self.changes_beside_copies += other.changes_beside_copies;
        self.removals_beside_copies += other.removals_beside_copies;
        self.changes_beside_snapshots += other.changes_beside_snapshots;
        self.changes_beside_syncs += other.changes_beside_syncs;
        self.compacted_bytes += other.compacted_bytes;
        self.ends_in_syncs += other.ends_in_syncs;
        self.wait(other.waiting_max);
    }
}

/// All who use one life of an engine.
pub(crate) struct Crowd {
    pub(crate) world: World,
    pub(crate) disk: SimulatedDisk,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) plan: Plan,
    pub(crate) seams: Arc<Mutex<Seams>>,
    pub(crate) engine: Mutex<Option<Arc<dyn StorageEngine>>>,
    dice: Mutex<Dice>,
    cut: Mutex<Option<Cut>>,
    /// The engine is inside a call of ours that holds locks over calls of the disk.
    busy: AtomicBool,
    /// When somebody last ran inside a call of the disk.
    last_turn: AtomicU64,
    turns: AtomicU64,
    waiting: AtomicU64,
    syncing: AtomicU64,
    values: Arc<AtomicU64>,
    violation: Mutex<Option<String>>,
}

/// A key that was drawn.
type Drawn = (u32, Vec<u8>);

impl Crowd {
    pub(crate) fn new(
        disk: SimulatedDisk,
        (ledger, seams, values): (Arc<Mutex<Ledger>>, Arc<Mutex<Seams>>, Arc<AtomicU64>),
        plan: Plan,
        seed: u64,
    ) -> Arc<Crowd> {
        Arc::new(Crowd {
            world: World::shuffled(seed),
            disk,
            ledger,
            plan,
            seams,
            engine: Mutex::new(None),
            dice: Mutex::new(Dice::new(seed + 1)),
            cut: Mutex::new(plan.cut),
            busy: AtomicBool::new(false),
            last_turn: AtomicU64::new(u64::MAX),
            turns: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            syncing: AtomicU64::new(0),
            values,
            violation: Mutex::new(None),
        })
    }

    /// The first thing that was wrong.
    pub(crate) fn violation(&self) -> Result<(), String> {
        self.violation.lock().unwrap().take().map_or(Ok(()), Err)
    }

    fn violated(&self, what: String) {
        self.violation.lock().unwrap().get_or_insert(what);
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Dice) -> T) -> T {
        draw(&mut self.dice.lock().unwrap())
    }

    /// The disk does something: the power may go, and others may run meanwhile.
    pub(crate) fn watch(self: &Arc<Self>, call: Call<'_>) {
        if matches!(call.operation, DiskOperation::Sync) {
            let _ = match call.begins {
                true => self.syncing.fetch_add(1, Ordering::Relaxed),
                false => self.syncing.fetch_sub(1, Ordering::Relaxed),
            };
        }
        if call.begins {
            self.cut_at(call);
        }
        let log = call.path.ends_with(".log");
        let locked = log && call.operation == DiskOperation::Append;
        let polls = self.world.polls();
        // The second call of one poll may be that of a rotation, which holds all locks of the log's end.
        let full = call.length > self.plan.segment_bytes || self.last_turn.load(Ordering::Relaxed) == polls;
        if self.busy.load(Ordering::Relaxed)
            || (log && matches!(call.operation, DiskOperation::Create | DiskOperation::Truncate))
            || (locked && full)
            || self.turns.load(Ordering::Relaxed) >= TURNS_MAX
            || self.draw(|dice| dice.below(8)) >= self.plan.turns
        {
            return;
        }
        if locked {
            self.last_turn.store(polls, Ordering::Relaxed);
        }
        self.turns.fetch_add(1, Ordering::Relaxed);
        let Some(engine) = self.engine.lock().unwrap().clone() else { return };
        for _ in 0..self.draw(|dice| dice.below(if locked { 2 } else { 4 })) + 1 {
            self.turn(&engine, call);
        }
    }

    fn cut_at(&self, call: Call<'_>) {
        let mut armed = self.cut.lock().unwrap();
        let Some(cut) = armed.as_mut() else { return };
        let fits = match cut.operation {
            Some(operation) => operation == call.operation,
            None => call.operation != DiskOperation::Read,
        };
        if !fits || !call.path.contains(cut.path_part) {
            return;
        }
        if cut.skip > 0 {
            cut.skip -= 1;
            return;
        }
        self.disk.power_off_after(Some(cut.then));
        let in_sync = self.syncing.load(Ordering::Relaxed) > 0;
        self.seams.lock().unwrap().ends_in_syncs += u64::from(in_sync);
        *armed = None;
    }

    /// Somebody runs while the disk is at work.
    fn turn(self: &Arc<Self>, engine: &Arc<dyn StorageEngine>, call: Call<'_>) {
        let (partition, key) = self.draw_key();
        if self.draw(|dice| dice.one_in(4)) {
            self.read(&**engine, partition, &key);
            return;
        }
        let removes = self.draw(|dice| dice.below(8)) < self.plan.removals;
        let Ok(Some(commit)) = self.change(&**engine, (partition, key), removes) else { return };
        let mut seams = self.seams.lock().unwrap();
        match call.operation {
            DiskOperation::Sync => seams.changes_beside_syncs += 1,
            _ if call.path.contains("index") => seams.changes_beside_snapshots += 1,
            _ if call.path.ends_with(".tmp") => {
                seams.changes_beside_copies += 1;
                seams.removals_beside_copies += u64::from(removes);
            }
            _ => {}
        }
        drop(seams);
        let (crowd, engine) = (self.clone(), engine.clone());
        self.world.spawn(Box::pin(async move {
            let _ = crowd.wait(&*engine, commit).await;
        }));
    }

    fn draw_key(&self) -> Drawn {
        let plan = &self.plan;
        self.draw(|dice| {
            let key = format!("key {}", dice.below(plan.keys));
            (dice.below(plan.partitions) as u32, key.into_bytes())
        })
    }

    /// Runs a call of the engine in which nobody else runs.
    fn alone<T>(&self, call: impl FnOnce() -> T) -> T {
        let before = self.busy.swap(true, Ordering::Relaxed);
        assert!(!before, "nobody runs inside such a call");
        let outcome = call();
        self.busy.store(false, Ordering::Relaxed);
        outcome
    }

    /// What is found must be what was written last.
    fn judge(&self, (partition, key): (u32, &[u8]), found: Option<&Bytes>) {
        let ledger = self.ledger.lock().unwrap();
        let newest = ledger.newest(partition, key).and_then(Option::as_ref);
        if newest.map(Vec::as_slice) != found.map(Bytes::as_ref) {
            let text = |bytes: Option<&[u8]>| {
                bytes.map(|b| String::from_utf8_lossy(&b[..b.len().min(40)]).into_owned())
            };
            let (found, newest) = (text(found.map(Bytes::as_ref)), text(newest.map(Vec::as_slice)));
            let key = String::from_utf8_lossy(key);
            self.violated(format!("{key} of {partition}: found {found:?} where {newest:?} was written last"));
        }
    }

    fn read(&self, engine: &dyn StorageEngine, partition: u32, key: &[u8]) {
        match self.alone(|| engine.get(PartitionId(partition), Token::of(key), key)) {
            Ok(found) => self.judge((partition, key), found.as_ref()),
            Err(error) => self.refused(&error),
        }
    }

    /// A call may fail where the disk does; but what is there is never damaged.
    fn refused(&self, error: &StorageError) {
        if matches!(error, StorageError::Corrupt { .. }) {
            self.violated(format!("nothing is damaged, and still: {error}"));
        }
    }

    /// Puts a value that nobody else puts, or removes the key.
    fn change(
        &self,
        engine: &dyn StorageEngine,
        (partition, key): Drawn,
        removes: bool,
    ) -> Result<Option<Commit>, StorageError> {
        let value = (!removes).then(|| {
            let number = self.values.fetch_add(1, Ordering::Relaxed);
            let name = format!("{partition} {} value {number} ", String::from_utf8_lossy(&key));
            let length =
                self.draw(|dice| if dice.one_in(3) { dice.below(VALUE_BYTES_MAX) } else { 40 }) as usize;
            format!("{name:.<length$}").into_bytes()
        });
        let mut decided = false;
        let commit = self.alone(|| {
            engine.update(PartitionId(partition), Token::of(&key), &key, &mut |before| {
                decided = true;
                self.judge((partition, &key), before);
                self.ledger.lock().unwrap().wrote(partition, &key, value.clone());
                value.clone().map_or(Change::Remove, |value| Change::Put(Bytes::from(value)))
            })
        });
        match &commit {
            Ok(Some(commit)) => {
                self.seams.lock().unwrap().writes += 1;
                self.ledger.lock().unwrap().logged(partition, &key, *commit);
            }
            Ok(None) => {}
            Err(StorageError::Full) if decided => self.ledger.lock().unwrap().refused(partition, &key),
            Err(error) => self.refused(error),
        }
        commit
    }

    /// Waits for what the setting promises, and holds the engine to it.
    async fn wait(&self, engine: &dyn StorageEngine, commit: Commit) -> Result<(), StorageError> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        self.seams.lock().unwrap().wait(waiting);
        let answer = engine.durable(commit).wait().await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        answer?;
        self.ledger.lock().unwrap().told(commit, self.plan.durability == Durability::Always);
        Ok(())
    }

    /// One of the writers; ends with its steps or at the first refusal.
    pub(crate) async fn writer(self: Arc<Self>, engine: Arc<dyn StorageEngine>) -> Result<(), StorageError> {
        for _ in 0..self.plan.steps {
            match self.step(&*engine).await {
                // Room may come back, and what waits for it is only in doubt.
                Err(StorageError::Full) => self.pause(100_000).await,
                outcome => outcome?,
            }
        }
        Ok(())
    }

    async fn pause(&self, micros: u64) {
        let until = self.world.now().after(Duration::from_micros(micros));
        self.world.sleep_until(until).await;
    }

    async fn step(&self, engine: &dyn StorageEngine) -> Result<(), StorageError> {
        match self.draw(|dice| dice.below(32)) {
            0..=3 => self.pause(self.draw(|dice| dice.below(30_000))).await,
            4 => {
                let position = engine.position();
                engine.sync().await?;
                self.ledger.lock().unwrap().told(position, true);
            }
            5 if self.draw(|dice| dice.one_in(3)) => self.drop_partition(engine)?,
            5..=8 => {
                let (partition, key) = self.draw_key();
                self.read(engine, partition, &key);
                self.wait(engine, engine.position()).await?;
            }
            _ => {
                let mut last = None;
                for _ in 0..self.draw(|dice| dice.below(4)) + 1 {
                    let removes = self.draw(|dice| dice.below(8)) < self.plan.removals;
                    last = self.change(engine, self.draw_key(), removes)?.or(last);
                }
                if let Some(commit) = last {
                    self.wait(engine, commit).await?;
                }
            }
        }
        Ok(())
    }

    fn drop_partition(&self, engine: &dyn StorageEngine) -> Result<(), StorageError> {
        let partition = self.draw(|dice| dice.below(self.plan.partitions)) as u32;
        self.ledger.lock().unwrap().dropped(partition);
        let dropped = self.alone(|| engine.drop_partition(PartitionId(partition)));
        let mut ledger = self.ledger.lock().unwrap();
        if dropped == Err(StorageError::Full) {
            ledger.refused_drop(partition);
        }
        dropped?;
        ledger.logged_drop(partition, engine.position());
        // It is in the file at once, unless that must wait for room.
        if self.disk.total_bytes().is_none() {
            ledger.told(engine.position(), false);
        }
        Ok(())
    }
}
