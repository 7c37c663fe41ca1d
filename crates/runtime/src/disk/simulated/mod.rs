//! A disk in memory that behaves as badly as the contract allows, and the same way again for the same seed.
//!
//! It keeps for every file what a process sees and what is on the platter, and for every directory the changes that
//! no [`Disk::sync_directory`] has covered. [`SimulatedDisk::crash`] throws away or tears what is not covered;
//! [`SimulatedDisk::kill`] only ends the process. Faults ([`Fault`], a capacity, flipped bits, slow syncs) are
//! injected by the test or the simulation that owns it.
//!
//! Must never: keep its own time or randomness; both come from whoever drives it.

mod faults;
mod imagined;
mod mapped;
mod platter;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use self::faults::{DiskOperation, Fault};
use self::faults::{FaultVerdict, Faults};
use self::platter::{Inode, Platter};
use super::mapping::Mapping;
use super::{Disk, DiskError, File, FileStat, waiting};
use crate::{BoxFuture, Clock};

/// Completes when a sync of the file at the given path may be carried out.
pub type SyncDelay = Arc<dyn Fn(&str) -> BoxFuture<'static, ()> + Send + Sync>;

/// What [`Disk::available_bytes`] answers while no capacity is set.
const AVAILABLE_BYTES_UNLIMITED: u64 = 1 << 44;

/// A simulated disk; clones are the same disk.
#[derive(Clone)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

struct State {
    platter: Platter,
    faults: Faults,
    dice: DiskDice,
    /// Counts the ends of the process; handles of an earlier life are dead.
    life: u64,
    locks: Vec<(String, u64)>,
    lock_next: u64,
    capacity_bytes: Option<u64>,
    mappings_left: usize,
    sync_delay: Option<SyncDelay>,
    /// One in this many reads would wait for the device.
    cold_one_in: Option<usize>,
    /// Times that somebody would not wait.
    refused_reads: u64,
    /// Counts the changes of the files in each directory, and those that may concern all of them.
    changes: BTreeMap<String, u64>,
    changes_everywhere: u64,
}

/// A small generator (SplitMix64), so that the same seed always tears the same bytes.
pub(crate) struct DiskDice {
    state: u64,
}

impl DiskDice {
    pub(crate) fn new(seed: u64) -> DiskDice {
        DiskDice { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

impl SimulatedDisk {
    /// An empty disk of unlimited capacity; `seed` decides where injected faults cut and flip.
    pub fn new(seed: u64) -> SimulatedDisk {
        SimulatedDisk {
            state: Arc::new(Mutex::new(State {
                platter: Platter::default(),
                faults: Faults::default(),
                dice: DiskDice::new(seed),
                life: 0,
                locks: Vec::new(),
                lock_next: 0,
                capacity_bytes: None,
                mappings_left: usize::MAX,
                sync_delay: None,
                cold_one_in: None,
                refused_reads: 0,
                changes: BTreeMap::new(),
                changes_everywhere: 0,
            })),
        }
    }

    /// Cuts the power and boots again: unsynced bytes and unsynced names are lost, kept or torn as `seed` says,
    /// locks are free, open handles dead, and a pending [`SimulatedDisk::power_off_after`] is forgotten.
    pub fn crash(&self, seed: u64) {
        let mut state = self.state.lock();
        state.end_life();
        state.changes_everywhere += 1;
        state.platter.crash(&mut DiskDice::new(seed));
        state.faults.power_on();
    }

    /// Ends the process but not the machine: every write stays, locks are free, open handles dead.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        state.end_life();
        state.faults.power_on();
    }

    /// Puts an empty disk in its place; locks are free, open handles dead.
    pub fn wipe(&self) {
        let mut state = self.state.lock();
        state.end_life();
        state.changes_everywhere += 1;
        state.platter = Platter::default();
    }

    /// Lets one in so many reads find that its bytes are not in memory; all are, with `None`.
    pub fn set_cold(&self, one_in: Option<usize>) {
        self.state.lock().cold_one_in = one_in;
    }

    /// Times that a read was refused because its bytes were not in memory.
    pub fn refused_reads(&self) -> u64 {
        self.state.lock().refused_reads
    }

    /// Every file with what a process would read from it.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut state = self.state.lock();
        let (mut files, mut directories) = (Vec::new(), vec![String::new()]);
        while let Some(directory) = directories.pop() {
            for name in state.platter.list(&directory) {
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                match state.platter.named(&path) {
                    Some(inode) => files.push((path, inode.data.clone())),
                    None => directories.push(path),
                }
            }
        }
        files
    }

    /// The power goes off at the operation after the next `operations` that change something (that one may happen
    /// in part); everything fails from there until [`SimulatedDisk::crash`]. `None` takes it back.
    pub fn power_off_after(&self, operations: Option<u64>) {
        self.state.lock().faults.power_off_after(operations);
    }

    /// Operations so far that changed something, or tried to.
    pub fn operations(&self) -> u64 {
        self.state.lock().faults.operations
    }

    /// Appends fail with [`DiskError::Full`] when all files together would exceed this many bytes.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity_bytes = bytes;
    }

    /// What [`Disk::mappings_left`] answers from now on. Mapping itself is not limited.
    pub fn set_mappings_left(&self, files: usize) {
        self.state.lock().mappings_left = files;
    }

    /// Adds a fault to those that are armed.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.armed.push(fault);
    }

    /// Disarms all faults.
    pub fn clear_faults(&self) {
        self.state.lock().faults.armed.clear();
    }

    /// Every sync waits for the future that `delay` makes for its path before it is carried out.
    pub fn set_sync_delay(&self, delay: Option<SyncDelay>) {
        self.state.lock().sync_delay = delay;
    }

    /// Every sync takes this long by `clock`.
    pub fn set_sync_duration(&self, clock: Arc<dyn Clock>, duration: Duration) {
        self.set_sync_delay(Some(Arc::new(move |_path: &str| clock.sleep(duration))));
    }

    /// Flips one bit of a file, on the platter as in memory; false when the file does not reach that far.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) -> bool {
        let mut state = self.state.lock();
        state.changed(path);
        state.platter.named(path).is_some_and(|inode| inode.flip(offset, bit))
    }

    /// Flips a bit somewhere in a file and says at which offset; `None` when it is empty or does not exist.
    pub fn flip_random_bit(&self, path: &str) -> Option<u64> {
        let mut state = self.state.lock();
        let length = state.platter.named(path)?.data.len();
        let (offset, bit) = (state.dice.below(length) as u64, (state.dice.next() & 7) as u8);
        state.changed(path);
        state.platter.named(path)?.flip(offset, bit).then_some(offset)
    }

    /// How many of a file's first bytes are on the platter as a process sees them; 0 when it does not exist.
    pub fn synced_bytes(&self, path: &str) -> u64 {
        self.state.lock().platter.named(path).map_or(0, |inode| inode.common() as u64)
    }

    /// What a process would read from the file.
    pub fn contents(&self, path: &str) -> Option<Vec<u8>> {
        self.state.lock().platter.named(path).map(|inode| inode.data.clone())
    }

    /// Puts a durable file there, as if it had always been.
    pub fn plant(&self, path: &str, contents: &[u8]) {
        let mut state = self.state.lock();
        state.changed(path);
        state.platter.plant(path, contents);
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().platter.used_bytes()
    }

    fn sync_after_delay(
        &self,
        path: &str,
        carry_out: impl FnOnce(&mut State) -> Result<(), DiskError> + Send + 'static,
    ) -> BoxFuture<'static, Result<(), DiskError>> {
        let (delay, life) = {
            let state = self.state.lock();
            (state.sync_delay.as_ref().map(|delay| delay(path)), state.life)
        };
        let (shared, path) = (self.state.clone(), path.to_owned());
        Box::pin(async move {
            if let Some(delay) = delay {
                delay.await;
            }
            let mut state = shared.lock();
            state.alive(life, &path)?;
            carry_out(&mut state)
        })
    }
}

impl State {
    fn end_life(&mut self) {
        self.life += 1;
        self.locks.clear();
    }

    /// A file changed, as a process sees it or on the platter, or its name did.
    fn changed(&mut self, path: &str) {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        match self.changes.get_mut(directory) {
            Some(changes) => *changes += 1,
            None => drop(self.changes.insert(directory.to_owned(), 1)),
        }
    }

    fn alive(&self, life: u64, path: &str) -> Result<(), DiskError> {
        match life == self.life {
            true => Ok(()),
            false => Err(failed(path, "the process that opened it has ended")),
        }
    }

    /// Refuses a read that would wait, if the caller would not and the dice say that the bytes are not in memory.
    fn warm(&mut self) -> Result<(), DiskError> {
        if let Some(one_in) = self.cold_one_in
            && !waiting::may_wait()
            && (waiting::is_refused() || self.dice.below(one_in) == 0)
        {
            self.refused_reads += 1;
            return Err(waiting::refuse());
        }
        Ok(())
    }

    /// Counts an operation that changes something and asks the faults about it.
    fn judge(&mut self, operation: DiskOperation, path: &str) -> FaultVerdict {
        self.faults.judge(operation, path)
    }

    fn inode(&mut self, inode: u64, path: &str) -> Result<&mut Inode, DiskError> {
        self.platter.inode(inode).ok_or_else(|| failed(path, "the file is gone"))
    }
}

fn failed(path: &str, reason: &str) -> DiskError {
    DiskError::Failed { path: path.to_owned(), reason: reason.to_owned() }
}

impl Disk for SimulatedDisk {
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let mut state = self.state.lock();
        state.judge(DiskOperation::Create, path).pass()?;
        state.changed(path);
        let inode = state.platter.create(path).ok_or_else(|| DiskError::Exists { path: path.to_owned() })?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), path: path.to_owned(), inode, life: state.life }))
    }

    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let mut state = self.state.lock();
        state.judge(DiskOperation::Open, path).pass()?;
        let inode = state.platter.open(path).ok_or_else(|| DiskError::NotFound { path: path.to_owned() })?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), path: path.to_owned(), inode, life: state.life }))
    }

    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        let mut state = self.state.lock();
        state.judge(DiskOperation::Open, path).pass()?;
        let inode = state.platter.open(path).ok_or_else(|| DiskError::NotFound { path: path.to_owned() })?;
        let length = state.inode(inode, path)?.data.len() as u64;
        Ok(FileStat { identity: (0, inode), length })
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut state = self.state.lock();
        state.judge(DiskOperation::Rename, from).pass()?;
        state.changes_everywhere += 1;
        match state.platter.rename(from, to) {
            true => Ok(()),
            false => Err(DiskError::NotFound { path: from.to_owned() }),
        }
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        let mut state = self.state.lock();
        state.judge(DiskOperation::Remove, path).pass()?;
        state.changed(path);
        match state.platter.remove(path) {
            true => Ok(()),
            false => Err(DiskError::NotFound { path: path.to_owned() }),
        }
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        let mut state = self.state.lock();
        state.judge(DiskOperation::Open, directory).pass()?;
        Ok(state.platter.list(directory))
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        let name = directory.to_owned();
        let covered = self.state.lock().platter.changes();
        self.sync_after_delay(directory, move |state| {
            state.judge(DiskOperation::SyncDirectory, &name).pass()?;
            state.changes_everywhere += 1;
            state.platter.sync_directory(&name, covered);
            Ok(())
        })
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        let mut state = self.state.lock();
        state.judge(DiskOperation::Open, path).pass()?;
        if state.locks.iter().any(|(held, _)| held == path) {
            return Err(DiskError::Locked { path: path.to_owned() });
        }
        if state.platter.open(path).is_none() {
            state.platter.create(path);
        }
        let number = state.lock_next;
        state.lock_next += 1;
        state.locks.push((path.to_owned(), number));
        Ok(Box::new(LockGuard { disk: self.clone(), number }))
    }

    fn available_bytes(&self) -> u64 {
        let state = self.state.lock();
        match state.capacity_bytes {
            Some(capacity) => capacity.saturating_sub(state.platter.used_bytes()),
            None => AVAILABLE_BYTES_UNLIMITED,
        }
    }

    fn total_bytes(&self) -> Option<u64> {
        self.state.lock().capacity_bytes
    }

    fn mappings_left(&self) -> usize {
        self.state.lock().mappings_left
    }
}

struct LockGuard {
    disk: SimulatedDisk,
    number: u64,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.disk.state.lock().locks.retain(|(_, number)| *number != self.number);
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    path: String,
    inode: u64,
    life: u64,
}

impl File for SimulatedFile {
    fn append(&self, bytes: &[u8]) -> Result<u64, DiskError> {
        let mut state = self.disk.state.lock();
        state.alive(self.life, &self.path)?;
        let verdict = state.judge(DiskOperation::Append, &self.path);
        let room = state
            .capacity_bytes
            .map_or(bytes.len(), |capacity| capacity.saturating_sub(state.platter.used_bytes()) as usize);
        let (written, outcome) = match verdict {
            FaultVerdict::Happens if room < bytes.len() => (room, Err(DiskError::Full)),
            FaultVerdict::Happens => (bytes.len(), Ok(())),
            FaultVerdict::Never(error) => (0, Err(error)),
            FaultVerdict::InPart(error) => (state.dice.below(bytes.len().min(room) + 1), Err(error)),
        };
        state.changed(&self.path);
        let inode = state.inode(self.inode, &self.path)?;
        let start = inode.data.len() as u64;
        inode.data.extend_from_slice(&bytes[..written]);
        state.platter.grew(written as u64);
        outcome.map(|()| start)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let mut state = self.disk.state.lock();
        state.alive(self.life, &self.path)?;
        state.warm()?;
        state.judge(DiskOperation::Read, &self.path).pass()?;
        let data = &state.inode(self.inode, &self.path)?.data;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
        let count = buffer.len().min(data.len() - start);
        buffer[..count].copy_from_slice(&data[start..start + count]);
        Ok(count)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        let covered = self.length() as usize;
        let (inode, life, path) = (self.inode, self.life, self.path.clone());
        self.disk.sync_after_delay(&self.path, move |state| {
            state.alive(life, &path)?;
            let verdict = state.judge(DiskOperation::Sync, &path);
            state.changed(&path);
            let file = state.inode(inode, &path)?;
            match verdict {
                FaultVerdict::Happens => {
                    file.sync(covered);
                    Ok(())
                }
                FaultVerdict::Never(error) => Err(error),
                FaultVerdict::InPart(error) => {
                    file.lose(covered);
                    Err(error)
                }
            }
        })
    }

    fn truncate(&self, length: u64) -> Result<(), DiskError> {
        let mut state = self.disk.state.lock();
        state.alive(self.life, &self.path)?;
        state.judge(DiskOperation::Truncate, &self.path).pass()?;
        state.changed(&self.path);
        let inode = state.inode(self.inode, &self.path)?;
        let before = inode.data.len() as u64;
        inode.truncate(length as usize);
        state.platter.shrank(before.saturating_sub(length));
        Ok(())
    }

    fn length(&self) -> u64 {
        self.disk.state.lock().platter.inode(self.inode).map_or(0, |inode| inode.data.len() as u64)
    }

    fn map(&self) -> Result<Arc<dyn Mapping>, DiskError> {
        self.mapped()
    }
}
