//! The log under crashes: several services over one simulated directory, of which any may end at any operation, power
//! cuts, and operations that fail.
//!
//! A seed is a hundred and some turns. Turns exclude each other by the directory's lock, so one after another, cut
//! short anywhere, is all that services can do to each other. Judged is what every turn finds: each answered write, all
//! that was ever read, and nothing that was answered as not done. After a mere crash the directory opens; where valid
//! records lie behind damage it does not.
//!
//! `TONTINE_COORDINATION_SEEDS=20000 cargo test --profile proof -p coordination many_crashes -- --ignored` plays many.

mod planted;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};
use runtime::{BoxFuture, Disk, DiskError, File, FileStat};

use super::directory::{Guard, Locks};
use super::log::{HEADER, LOG_NAME, LogPlace};
use super::record::{self, Parsed};
use super::shared::{DirectoryView, Pending};
use super::{OpenError, worker};
use crate::tree::Tree;
use crate::{CoordinationError, CreateMode, DocumentPath, DocumentVersion, Expected, SessionId};

/// Seeds in every run of the tests.
const SEEDS: u64 = 400;

/// Services that are open at once, at most.
const SERVICES_MAX: usize = 3;

/// A small generator (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// How long a process still lives.
#[derive(Default)]
struct Fate {
    /// It ends at the change of the disk after this many.
    left: Option<usize>,
    dead: bool,
    /// Of an append that it ends in, this many bytes arrive.
    arriving: usize,
}

/// The disk as one process has it: with the process ends all that it does.
#[derive(Clone)]
struct ProcessDisk {
    disk: Arc<dyn Disk>,
    fate: Arc<Mutex<Fate>>,
}

struct ProcessFile {
    file: Arc<dyn File>,
    fate: Arc<Mutex<Fate>>,
}

fn ended() -> DiskError {
    DiskError::Failed { path: "simulated disk".to_owned(), reason: "the process has ended".to_owned() }
}

impl Fate {
    fn look(&self) -> Result<(), DiskError> {
        if self.dead { Err(ended()) } else { Ok(()) }
    }

    fn change(&mut self) -> Result<(), DiskError> {
        match &mut self.left {
            Some(0) => self.dead = true,
            Some(left) => *left -= 1,
            None => {}
        }
        self.look()
    }
}

impl ProcessDisk {
    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(ProcessFile { file, fate: self.fate.clone() })
    }
}

impl Disk for ProcessDisk {
    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        self.fate.lock().change()?;
        self.disk.create(path).map(|file| self.wrap(file))
    }
    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        self.fate.lock().look()?;
        self.disk.open(path).map(|file| self.wrap(file))
    }
    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        self.fate.lock().look()?;
        self.disk.stat(path)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.fate.lock().change()?;
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.fate.lock().change()?;
        self.disk.remove(path)
    }
    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(directory)
    }
    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        match self.fate.lock().change() {
            Ok(()) => self.disk.sync_directory(directory),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        self.disk.lock(path)
    }
    fn available_bytes(&self) -> u64 {
        self.disk.available_bytes()
    }
    fn total_bytes(&self) -> Option<u64> {
        self.disk.total_bytes()
    }
}

impl File for ProcessFile {
    fn append(&self, bytes: &[u8]) -> Result<u64, DiskError> {
        let mut fate = self.fate.lock();
        fate.look()?;
        fate.change().or_else(|error| {
            self.file.append(&bytes[..fate.arriving.min(bytes.len())])?;
            Err(error)
        })?;
        self.file.append(bytes)
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.fate.lock().look()?;
        self.file.read_at(offset, buffer)
    }
    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        match self.fate.lock().change() {
            Ok(()) => self.file.sync(),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
    fn truncate(&self, length: u64) -> Result<(), DiskError> {
        self.fate.lock().change()?;
        self.file.truncate(length)
    }
    fn length(&self) -> u64 {
        self.file.length()
    }

    fn map(&self) -> Result<Arc<dyn runtime::Mapping>, DiskError> {
        self.file.map()
    }
}

/// The sessions whose processes live. Turns come one after another, so nobody ever waits for the lock.
#[derive(Clone, Default)]
struct Living(Arc<Mutex<BTreeSet<u64>>>);

impl Living {
    fn now(&self) -> BTreeSet<u64> {
        self.0.lock().clone()
    }
}

struct Life {
    living: Living,
    session: u64,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.living.0.lock().remove(&self.session);
    }
}

impl Locks for Living {
    fn hold(&self) -> io::Result<Guard> {
        Ok(Box::new(()))
    }
    fn begin_session(&self, session: SessionId) -> io::Result<Guard> {
        assert!(self.0.lock().insert(session.0), "an id that lives is not given again");
        Ok(Box::new(Life { living: self.clone(), session: session.0 }))
    }
    fn session_lives(&self, session: SessionId) -> bool {
        self.0.lock().contains(&session.0)
    }
    fn forget_session(&self, _session: SessionId) {}
}

/// Data, version and owner of each document.
type Documents = BTreeMap<String, (Bytes, DocumentVersion, Option<SessionId>)>;

fn documents(tree: &Tree) -> Documents {
    let all = tree.entries().map(|(path, entry)| (path.to_string(), entry));
    all.map(|(path, entry)| (path, (entry.data.clone(), entry.version, entry.owner))).collect()
}

struct Service {
    shared: DirectoryView,
    fate: Arc<Mutex<Fate>>,
}

/// One seed.
struct Run {
    dice: Dice,
    seed: u64,
    bare: SimulatedDisk,
    disk: Arc<dyn Disk>,
    living: Living,
    services: Vec<Service>,
    /// What may be there; what is read is all that may be there from then on.
    possible: Vec<Documents>,
    /// A process has ended in its turn: somebody looks at what it left, and then the power may go.
    left_behind: LeftBehind,
    story: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftBehind {
    Nothing,
    Unread,
    Read,
}

/// What a turn met and left, if it got so far.
type Seen = Option<(Documents, Documents)>;

impl Run {
    fn new(seed: u64, plant: fn(SimulatedDisk) -> Arc<dyn Disk>) -> Run {
        let bare = SimulatedDisk::new(seed);
        Run {
            dice: Dice(seed),
            seed,
            disk: plant(bare.clone()),
            bare,
            living: Living::default(),
            services: Vec::new(),
            possible: vec![documents(&Tree::new())],
            left_behind: LeftBehind::Nothing,
            story: Vec::new(),
        }
    }

    fn play(&mut self) -> Result<(), String> {
        for _ in 0..self.dice.below(150) + 30 {
            self.step()?;
        }
        self.damage()
    }

    fn step(&mut self) -> Result<(), String> {
        match std::mem::replace(&mut self.left_behind, LeftBehind::Nothing) {
            LeftBehind::Unread => {
                self.left_behind = LeftBehind::Read;
                return match self.services.len() {
                    0 => self.open(false),
                    count => self.turn(count - 1, false, false),
                };
            }
            LeftBehind::Read if self.dice.one_in(2) => {
                self.story.push("the power is cut".to_owned());
                self.cut_power();
                return Ok(());
            }
            _ => {}
        }
        if self.services.is_empty() || (self.services.len() < SERVICES_MAX && self.dice.one_in(8)) {
            return self.open(true);
        }
        let which = self.dice.below(self.services.len());
        match self.dice.below(24) {
            0 => {
                self.story.push("all processes end, and the power is cut".to_owned());
                self.cut_power();
                Ok(())
            }
            1 => {
                self.story.push(format!("service {which} ends"));
                drop(self.services.remove(which));
                Ok(())
            }
            2..=9 => self.turn(which, false, true),
            _ => self.turn(which, true, true),
        }
    }

    /// Arms what may go wrong in one turn; says whether anything was armed.
    fn arm(&mut self, fate: &Mutex<Fate>) -> bool {
        use DiskOperation::{Append, Create, Open, Read, Remove, Rename, Sync, SyncDirectory, Truncate};
        match self.dice.below(12) {
            0 => {
                let operations = self.dice.below(6) as u64;
                self.story.push(format!("the power goes after {operations} operations"));
                self.bare.power_off_after(Some(operations));
            }
            1..=2 => {
                let (left, arriving) = (self.dice.below(6), self.dice.below(900));
                self.story.push(format!("the process ends after {left} operations"));
                *fate.lock() = Fate { left: Some(left), dead: false, arriving };
            }
            3 => {
                let all =
                    [Sync, Append, Sync, Append, SyncDirectory, Rename, Create, Remove, Truncate, Read, Open];
                let operation = all[self.dice.below(all.len())];
                let length = self.bare.contents(LOG_NAME).map_or(0, |bytes| bytes.len() as u64);
                if operation == Sync && self.bare.synced_bytes(LOG_NAME) < length {
                    // What a failed sync leaves in the page cache passes for synced afterwards: a known limit.
                    return false;
                }
                let fault = Fault { skip: self.dice.below(3) as u64, ..Fault::next(operation, 1) };
                self.story.push(format!("{operation:?} fails after {}", fault.skip));
                self.bare.inject(fault);
                if operation == Append {
                    // What has arrived cannot always be cut off.
                    self.bare.inject(Fault::next(Truncate, self.dice.below(2) as u64));
                }
            }
            _ => return false,
        }
        true
    }

    /// Sees who is still there.
    fn disarm(&mut self) {
        self.bare.clear_faults();
        if self.power_is_off() {
            self.cut_power();
        } else {
            self.bare.power_off_after(None);
        }
        let before = self.services.len();
        self.services.retain(|service| !service.fate.lock().dead);
        if self.services.len() < before {
            self.left_behind = LeftBehind::Unread;
        }
        self.services.iter().for_each(|service| service.fate.lock().left = None);
    }

    fn power_is_off(&self) -> bool {
        matches!(self.bare.list(""), Err(DiskError::Failed { reason, .. }) if reason.contains("power"))
    }

    fn cut_power(&mut self) {
        self.services.clear();
        self.bare.crash(self.dice.next());
    }

    fn open(&mut self, disturbed: bool) -> Result<(), String> {
        let fate: Arc<Mutex<Fate>> = Arc::default();
        let armed = disturbed && self.arm(&fate);
        let disk = ProcessDisk { disk: self.disk.clone(), fate: fate.clone() };
        let place = LogPlace { disk: Arc::new(disk), path: PathBuf::from("simulated") };
        let opened = DirectoryView::open_place(&place, Arc::new(self.living.clone()));
        self.story.push(format!("a service opens: {:?}", opened.as_ref().map(|shared| shared.session)));
        match opened {
            Ok(shared) => {
                let found = documents(&shared.tree);
                self.services.push(Service { shared, fate });
                self.found(&found, &self.living.now())?;
            }
            Err(OpenError::Failed { .. }) if armed => {
                if fate.lock().dead {
                    self.left_behind = LeftBehind::Unread;
                }
            }
            Err(error) => return Err(format!("it does not open: {error}")),
        }
        self.disarm();
        Ok(())
    }

    /// Somebody reads, or is about to write upon what it read.
    fn found(&mut self, found: &Documents, living: &BTreeSet<u64>) -> Result<(), String> {
        let lives = |owner: &Option<SessionId>| owner.is_none_or(|session| living.contains(&session.0));
        if let Some((path, _)) = found.iter().find(|(_, (_, _, owner))| !lives(owner)) {
            return Err(format!("{path} is there, but its owner is not"));
        }
        let left = |documents: &Documents| -> Documents {
            let all = documents.iter().filter(|(_, (_, _, owner))| lives(owner));
            all.map(|(path, document)| (path.clone(), document.clone())).collect()
        };
        if self.possible.iter().any(|possible| left(possible) == *found) {
            self.possible = vec![found.clone()];
            return Ok(());
        }
        let names = |documents: &Documents| -> Vec<String> {
            documents
                .iter()
                .map(|(path, (data, version, _))| format!("{path} {} {}", version.0, data.len()))
                .collect()
        };
        let possible: Vec<Vec<String>> = self.possible.iter().map(names).collect();
        Err(format!("found {:?}, where only one of {possible:?} may be", names(found)))
    }

    fn turn(&mut self, which: usize, writes: bool, disturbed: bool) -> Result<(), String> {
        let fate = self.services[which].fate.clone();
        let armed = disturbed && self.arm(&fate);
        let changes: Vec<Planned> = if writes { self.plan() } else { Vec::new() };
        let living = self.living.now();
        let mut seen: Seen = None;
        let outcome = self.services[which].shared.take_turn(writes, |shared, pending| {
            let before = documents(&shared.tree);
            changes.into_iter().for_each(|planned| planned.carry_out(shared, pending));
            seen = Some((before, documents(&shared.tree)));
        });
        let dead = fate.lock().dead || self.power_is_off();
        self.story.push(format!("service {which} {}: {outcome:?}", if writes { "writes" } else { "reads" }));
        if let Some((before, after)) = seen {
            self.found(&before, &living)?;
            match &outcome {
                Ok(()) => self.possible = vec![after],
                Err(_) if dead => self.possible.push(after),
                Err(CoordinationError::Unavailable { .. }) => {}
                Err(_) => self.possible.push(after),
            }
        }
        if let Err(error) = outcome
            && !armed
        {
            return Err(format!("nothing was wrong, and still: {error}"));
        }
        self.disarm();
        Ok(())
    }

    fn plan(&mut self) -> Vec<Planned> {
        if self.dice.one_in(30) {
            return vec![Planned::Close];
        }
        (0..self.dice.below(3) + 1)
            .map(|_| {
                let path = DocumentPath::new(&format!("/{}", self.dice.below(6))).unwrap();
                let length = if self.dice.one_in(4) { self.dice.below(1500) } else { 20 };
                let data = match self.dice.one_in(10) {
                    // A copy of a part of the log, records and all.
                    true => self.bare.contents(LOG_NAME).unwrap_or_default().split_off(HEADER),
                    false => vec![self.dice.next() as u8; length],
                };
                match self.dice.below(8) {
                    0 => Planned::Delete { path },
                    1 => Planned::Create { path, data: data.into(), mode: CreateMode::Ephemeral },
                    2..=3 => Planned::Create { path, data: data.into(), mode: CreateMode::Persistent },
                    _ => Planned::Set { path, data: data.into() },
                }
            })
            .collect()
    }

    /// Bits flip where valid records follow: the directory is refused and left as it is.
    fn damage(&mut self) -> Result<(), String> {
        self.services.clear();
        self.open_undisturbed()?;
        self.services.clear();
        let bytes = self.bare.contents(LOG_NAME).expect("it was opened");
        let mut last = HEADER;
        let mut offset = HEADER;
        while let Parsed::Record(_, length) = record::parse(&bytes[offset..]) {
            (last, offset) = (offset, offset + length);
        }
        let at = self.dice.below(last) as u64;
        assert!(self.bare.flip_bit(LOG_NAME, at, (self.dice.next() & 7) as u8));
        let damaged = self.bare.contents(LOG_NAME);
        match self.open_undisturbed() {
            Ok(()) => Err(format!("bit flipped at {at} of {}, and it opens", bytes.len())),
            Err(_) if self.bare.contents(LOG_NAME) != damaged => Err("a refused log was changed".to_owned()),
            Err(_) => Ok(()),
        }
    }

    fn open_undisturbed(&mut self) -> Result<(), String> {
        let place = LogPlace { disk: self.disk.clone(), path: PathBuf::from("simulated") };
        let shared = DirectoryView::open_place(&place, Arc::new(self.living.clone()));
        let shared = shared.map_err(|error| format!("it does not open: {error}"))?;
        let found = documents(&shared.tree);
        self.found(&found, &self.living.now())
    }
}

/// A change that a turn tries.
enum Planned {
    Create { path: DocumentPath, data: Bytes, mode: CreateMode },
    Set { path: DocumentPath, data: Bytes },
    Delete { path: DocumentPath },
    Close,
}

impl Planned {
    fn carry_out(self, shared: &mut DirectoryView, pending: &mut Pending) {
        let session = shared.session;
        let planned = match self {
            Planned::Create { path, data, mode } => shared.tree.plan_create(session, &path, data, mode),
            Planned::Set { path, data } => shared.tree.plan_set(session, &path, data, Expected::Any),
            Planned::Delete { path } => shared.tree.plan_delete(session, &path, Expected::Any),
            Planned::Close => return worker::end_session(shared, pending),
        };
        // Refused, where the document is there already or not there, or the session has ended.
        if let Ok(change) = planned {
            shared.apply(change, pending);
        }
    }
}

/// Plays a seed on a disk that `plant` makes; says what was wrong.
fn violation(seed: u64, plant: fn(SimulatedDisk) -> Arc<dyn Disk>) -> Option<String> {
    let mut run = Run::new(seed, plant);
    let played = catch_unwind(AssertUnwindSafe(|| run.play())).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", message.unwrap_or("without a message")))
    });
    let story = &run.story[run.story.len().saturating_sub(12)..];
    played.err().map(|wrong| format!("seed {}: {wrong}\n{}", run.seed, story.join("\n")))
}

fn check(seeds: u64) {
    let wrong: Vec<String> = (1..=seeds).filter_map(|seed| violation(seed, |disk| Arc::new(disk))).collect();
    if let Some(first) = wrong.first() {
        let all: Vec<&str> = wrong.iter().filter_map(|wrong| wrong.lines().next()).collect();
        panic!("{} of {seeds} seeds\n{}\n{first}", wrong.len(), all.join("\n"));
    }
}

#[test]
fn no_crash_costs_what_was_answered_or_read_and_none_keeps_the_directory_closed() {
    check(SEEDS);
}

#[test]
#[ignore = "plays as many seeds as TONTINE_COORDINATION_SEEDS says"]
fn many_crashes() {
    check(std::env::var("TONTINE_COORDINATION_SEEDS").map_or(5000, |seeds| seeds.parse().unwrap()));
}
