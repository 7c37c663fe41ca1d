//! The directory of a machine, and all directories of machines.
//!
//! ```text
//!   machine.json   what it is; without this one of ours, a directory is a stranger's
//!   boot.sh, log   what it runs, and what that says
//!   data/          MACHINE_DATA
//!   lock, probe    one file under two names: its processes hold the lock by the first, adapters look by the second
//!   started        its first process began: it never begins again
//!   ending         since when it is being ended
//!   group          its control group, if it has one
//! ```
//!
//! A machine is *pending* until it has started, *running* while any of its processes does, then *ended*.
//!
//! Must never: remove what has a process yet, or make a machine but by renaming a complete directory.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::elasticity::adapter::{Instance, InstanceState};
use model::elasticity::first_words;
use model::unquoted;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::addresses::Addresses;
use super::processes::Mark;
use super::types::Type;
use super::{groups, launching};
use crate::adapter::rpc::RpcFailure;

/// Who makes machines here.
const MADE_BY: &str = "tontine adapter local";
/// How long the processes of a machine may take to end when they are asked to, in milliseconds.
const END_TIME_MAX_MS: u64 = 5_000;
/// How long another adapter may take to make a machine.
const LOCK_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Longest name of a fleet or token, in bytes.
const NAME_BYTES_MAX: usize = 100;
/// So much of a log is looked at for its last line, in bytes.
const LOG_TAIL_BYTES: u64 = 4_096;
/// Longest last line that is told, in characters.
const LAST_WORDS_MAX: usize = 300;

const MACHINE: &str = "machine.json";
const STARTED: &str = "started";
const ENDING: &str = "ending";
const GROUP: &str = "group";
/// In a fleet's directory: tokens that have had their machines.
const ENDED: &str = ".ended";
/// Begins the name of a directory that is no machine yet.
const NEW: &str = ".new-";
/// Begins the name of one that is none any more.
const GONE: &str = ".gone-";

/// What a machine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LocalMachine {
    made_by: String,
    fleet: String,
    pub(super) token: String,
    pub(super) address: String,
    #[serde(rename = "type")]
    kind: String,
    pub(super) processors_milli: Option<u64>,
}

impl LocalMachine {
    /// One of this fleet and token, without an address yet.
    pub(super) fn new((fleet, token): (String, String), kind: &Type) -> LocalMachine {
        let (kind, processors_milli) = (kind.name.clone(), kind.processors_milli);
        LocalMachine {
            made_by: MADE_BY.to_owned(),
            fleet,
            token,
            address: String::new(),
            kind,
            processors_milli,
        }
    }
}

/// Refuses what could lead elsewhere.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), RpcFailure> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_letter) && !name.starts_with('.')
    {
        true => Ok(()),
        false => Err(RpcFailure::params(format!(
            "{what} {name:?} must be 1 to {NAME_BYTES_MAX} letters, digits and -_. that begin with no dot"
        ))),
    }
}

/// All machines of this host.
#[derive(Clone, Debug)]
pub(super) struct Places {
    root: PathBuf,
    addresses: Addresses,
}

impl Places {
    /// In a directory that is there, by its real path.
    pub(super) fn new(root: PathBuf, addresses: Addresses) -> Places {
        Places { root, addresses }
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Where the machine of a token is, if there is one.
    pub(super) fn place(&self, fleet: &str, token: &str) -> Result<Place, RpcFailure> {
        check_name("fleet", fleet)?;
        check_name("token", token)?;
        Ok(Place { fleet: self.root.join(fleet), names: (fleet.to_owned(), token.to_owned()) })
    }

    /// Every machine of every fleet.
    pub(super) fn all(&self) -> Vec<Place> {
        let mut all = Vec::new();
        for fleet in names(&self.root).unwrap_or_default() {
            for token in names(&self.root.join(&fleet)).unwrap_or_default() {
                all.extend(
                    self.place(&fleet, &token).ok().filter(|place| matches!(place.owned(), Ok(Some(_)))),
                );
            }
        }
        all
    }

    /// The machines of a fleet, by token.
    pub(super) fn list(&self, fleet: &str) -> Result<Vec<Instance>, RpcFailure> {
        check_name("fleet", fleet)?;
        let mut instances = Vec::new();
        for token in names(&self.root.join(fleet)).map_err(RpcFailure::io("cannot list machines"))? {
            let place = self.place(fleet, &token)?;
            // What is no machine of ours is nobody's concern here.
            if let Ok(Some(machine)) = place.owned() {
                instances.push(place.instance(machine));
            }
        }
        Ok(instances)
    }

    /// Makes a machine that does not run yet; does nothing where the token has one.
    pub(super) fn make(
        &self,
        place: &Place,
        mut machine: LocalMachine,
        script: &str,
    ) -> Result<(), RpcFailure> {
        let failed = |error| RpcFailure::io(format!("cannot make the machine {}", place.token()))(error);
        let held = self.lock().map_err(failed)?;
        if place.owned()?.is_some() {
            return Ok(());
        }
        if place.fleet.join(ENDED).join(place.token()).exists() {
            return Err(RpcFailure::refused(format!(
                "the machine of token {} was ended, and a token works once; ask with another one",
                place.token()
            )));
        }
        machine.address = self.free_address()?;
        std::fs::create_dir_all(&place.fleet).map_err(failed)?;
        clear(&place.fleet, NEW);
        place.build(&machine, script).map_err(failed)?;
        drop(held);
        Ok(())
    }

    /// What only one adapter at a time may hold.
    fn lock(&self) -> io::Result<File> {
        let path = self.root.join(".lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIME_MAX => {
                    std::thread::sleep(LOCK_PAUSE)
                }
                Err(TryLockError::WouldBlock) => {
                    let why = format!(
                        "another adapter holds {} for long; if it is suspended, end it",
                        path.display()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// An address that no machine has.
    fn free_address(&self) -> Result<String, RpcFailure> {
        let mut taken = BTreeSet::new();
        for fleet in names(&self.root).map_err(RpcFailure::io("cannot list machines"))? {
            let listed = names(&self.root.join(&fleet)).unwrap_or_default();
            let places = listed.iter().filter_map(|token| self.place(&fleet, token).ok());
            taken.extend(places.filter_map(|place| Some(place.owned().ok()??.address)));
        }
        let free = self.addresses.all().map(|address| address.to_string());
        let free = free.into_iter().find(|address| !taken.contains(address));
        free.ok_or_else(|| {
            RpcFailure::passing(format!(
                "all {} addresses of {} are taken; end machines, or give more with --addresses",
                self.addresses.count(),
                self.addresses
            ))
        })
    }

    /// Goes on with machines that are being ended. What cannot be done now is tried the next time.
    pub(super) fn tend(&self) {
        launching::reap();
        for fleet in names(&self.root).unwrap_or_default() {
            for token in names(&self.root.join(&fleet)).unwrap_or_default() {
                let Ok(place) = self.place(&fleet, &token) else { continue };
                if let (Some(since_ms), Ok(Some(_))) = (place.ending(), place.owned())
                    && let Err(error) = place.end(since_ms)
                {
                    say!("cannot end the machine {token} yet: {error}");
                }
            }
            clear(&self.root.join(&fleet), GONE);
        }
    }
}

/// Where one machine is, or might be.
#[derive(Clone, Debug)]
pub(super) struct Place {
    fleet: PathBuf,
    /// Of fleet and token.
    names: (String, String),
}

impl Place {
    /// In this directory, as its first process is told.
    pub(super) fn at(directory: &Path) -> Option<Place> {
        let token = directory.file_name()?.to_str()?.to_owned();
        let fleet = directory.parent()?;
        let name = fleet.file_name()?.to_str()?.to_owned();
        Some(Place { fleet: fleet.to_owned(), names: (name, token) })
    }

    pub(super) fn token(&self) -> &str {
        &self.names.1
    }

    pub(super) fn fleet_name(&self) -> &str {
        &self.names.0
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.fleet.join(self.token())
    }

    pub(super) fn data(&self) -> PathBuf {
        self.directory().join("data")
    }

    pub(super) fn script(&self) -> PathBuf {
        self.directory().join("boot.sh")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory().join("log")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.directory().join("lock")
    }

    /// The machine; `None` where nothing is.
    ///
    /// # Errors
    /// Where something is that is no machine of this adapter.
    pub(super) fn owned(&self) -> Result<Option<LocalMachine>, RpcFailure> {
        let directory = self.directory();
        let stranger = |why: &str| {
            RpcFailure::refused(format!(
                "{} is no machine of this adapter, and is left alone: {why}",
                directory.display()
            ))
        };
        match std::fs::symlink_metadata(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(RpcFailure::io(format!("cannot look at {}", directory.display()))(error));
            }
            Ok(found) if !found.is_dir() => return Err(stranger("it is no directory")),
            Ok(_) => {}
        }
        let text = match std::fs::read(directory.join(MACHINE)) {
            // It may have gone between the two looks.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.exists() => return Ok(None),
            text => text.map_err(|error| stranger(&format!("{MACHINE}: {error}")))?,
        };
        let machine: LocalMachine = serde_json::from_slice(&text)
            .map_err(|error| stranger(&format!("{MACHINE}: {}", unquoted::json(&error))))?;
        let is_ours = machine.made_by == MADE_BY
            && (machine.fleet.as_str(), machine.token.as_str()) == (&self.names.0, &self.names.1);
        if is_ours { Ok(Some(machine)) } else { Err(stranger("its machine.json is of another one")) }
    }

    /// Writes everything beside, and renames it into place.
    fn build(&self, machine: &LocalMachine, script: &str) -> io::Result<()> {
        let new = self.fleet.join(format!("{NEW}{}", self.token()));
        std::fs::create_dir(&new)?;
        std::fs::create_dir(new.join("data"))?;
        std::fs::write(new.join("boot.sh"), script)?;
        File::create(new.join("lock"))?;
        std::fs::hard_link(new.join("lock"), new.join("probe"))?;
        let mut file = File::create(new.join(MACHINE))?;
        file.write_all(serde_json::to_string(machine)?.as_bytes())?;
        file.sync_all()?;
        File::open(&new)?.sync_all()?;
        std::fs::rename(&new, self.directory())?;
        File::open(&self.fleet)?.sync_all()
    }

    /// Whether its first process has begun.
    pub(super) fn has_started(&self) -> bool {
        self.directory().join(STARTED).exists()
    }

    /// Notes that its first process begins. Called with its lock held.
    pub(super) fn note_start(&self) -> io::Result<()> {
        let process = format!("{}\n", std::process::id());
        std::fs::write(self.directory().join(STARTED), process)
    }

    /// Lets its first process begin once more. Nobody calls this while any of its processes runs.
    pub(super) fn forget_start(&self) -> io::Result<()> {
        match std::fs::remove_file(self.directory().join(STARTED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends all of its processes a signal.
    pub(super) fn signal(&self, signal: Signal) {
        self.mark().signal(signal);
    }

    /// Since when it is being ended, in milliseconds since 1970, if it is.
    pub(super) fn ending(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.directory().join(ENDING)).ok()?;
        // One that was not written to its end began at no known time.
        Some(text.trim().parse().unwrap_or(0))
    }

    /// Notes its control group.
    pub(super) fn note_group(&self, group: &Path) -> io::Result<()> {
        std::fs::write(self.directory().join(GROUP), group.display().to_string())
    }

    fn mark(&self) -> Mark {
        Mark::new(self.lock(), self.token(), &self.data())
    }

    /// Its lock by the name under which adapters look. A process that has this open is none of the machine's.
    fn probe(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.directory().join("probe"))
    }

    /// Whether any of its processes does.
    pub(super) fn runs(&self) -> bool {
        // Adapters that look at once must not see each other.
        let is_free = self.probe().is_ok_and(|probe| probe.try_lock_shared().is_ok());
        !is_free || self.mark().any()
    }

    fn instance(&self, machine: LocalMachine) -> Instance {
        let state = match (self.ending(), self.has_started()) {
            (Some(_), _) => InstanceState::Ending,
            (None, false) => InstanceState::Pending,
            (None, true) if self.runs() => InstanceState::Running,
            (None, true) => InstanceState::Ended,
        };
        let detail = (state == InstanceState::Ended).then(|| last_words(&self.log()));
        Instance {
            id: machine.token.clone(),
            token: Some(machine.token),
            address: Some(machine.address),
            state,
            kind: Some(machine.kind),
            detail,
        }
    }

    /// Begins to end it; does nothing where there is none, or where that has begun.
    pub(super) fn terminate(&self) -> Result<(), RpcFailure> {
        if self.owned()?.is_none() {
            return Ok(());
        }
        let failed = |error| RpcFailure::io(format!("cannot end the machine {}", self.token()))(error);
        let noted = OpenOptions::new().write(true).create_new(true).open(self.directory().join(ENDING));
        match noted {
            Ok(mut file) => file.write_all(now_ms().to_string().as_bytes()).map_err(failed)?,
            // Another call may have ended it meanwhile.
            Err(error) if [io::ErrorKind::AlreadyExists, io::ErrorKind::NotFound].contains(&error.kind()) => {
                return Ok(());
            }
            Err(error) => return Err(failed(error)),
        }
        self.mark().signal(Signal::TERM);
        Ok(())
    }

    /// Goes on with ending it.
    fn end(&self, since_ms: u64) -> io::Result<()> {
        let probe = self.probe()?;
        let held = match probe.try_lock() {
            Ok(()) => Some(probe),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        let Some(held) = held.filter(|_| !self.mark().any()) else {
            if now_ms().saturating_sub(since_ms) >= END_TIME_MAX_MS {
                self.mark().signal(Signal::KILL);
            }
            return Ok(());
        };
        if let Ok(group) = std::fs::read_to_string(self.directory().join(GROUP)) {
            groups::remove(Path::new(&group));
        }
        let ended = self.fleet.join(ENDED);
        std::fs::create_dir_all(&ended)?;
        File::create(ended.join(self.token()))?;
        // Whoever waits for the lock finds that it is being ended, or nothing.
        std::fs::rename(self.directory(), self.fleet.join(format!("{GONE}{}", self.token())))?;
        drop(held);
        Ok(())
    }
}

/// Names in a directory that begin with no dot, in order; none where there is no directory.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Ok(Vec::new());
        }
        entries => entries?,
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| check_name("name", name).is_ok()).collect();
    names.sort();
    Ok(names)
}

/// Removes directories of ours that are no machines. What cannot be removed now is tried the next time.
fn clear(fleet: &Path, prefix: &str) {
    for entry in std::fs::read_dir(fleet).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// What a log said last.
fn last_words(log: &Path) -> String {
    let tail = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        Ok(tail)
    };
    let tail = tail().unwrap_or_default();
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    match line {
        Some(line) => {
            let last = first_words(line, LAST_WORDS_MAX);
            format!("its processes ended by themselves; the log ends with: {last}")
        }
        None => format!("its processes ended by themselves, and the log {} is empty", log.display()),
    }
}

fn now_ms() -> u64 {
    crate::clocks::now_ms().unsigned_abs()
}
