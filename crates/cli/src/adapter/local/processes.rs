//! Which processes are a machine's: those that hold its lock, and those whose environment names it.
//!
//! A process that closes what it inherited is found by its environment, one that clears its environment by the lock.
//!
//! Must never: signal a process by an id that may have been given to another one meanwhile. A process is held by its
//! descriptor before it is looked at, so the signal goes to the one that was looked at, or to none.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What tells a machine's processes from all others.
pub(super) struct Mark {
    lock: PathBuf,
    variables: [Vec<u8>; 2],
}

impl Mark {
    /// Of the machine with this lock, token and directory of data.
    pub(super) fn new(lock: PathBuf, token: &str, data: &Path) -> Mark {
        let variable = |name: &str, value: &[u8]| [name.as_bytes(), b"=", value].concat();
        let variables = [
            variable("MACHINE_TOKEN", token.as_bytes()),
            variable("MACHINE_DATA", data.as_os_str().as_bytes()),
        ];
        Mark { lock, variables }
    }

    /// The machine's processes, without this one.
    fn found(&self) -> Vec<OwnedFd> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let own = i32::try_from(std::process::id()).ok();
        let held = ids.filter(|id| Some(*id) != own).filter_map(|id| {
            let held = pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()?;
            (is_alive(id) && self.is_of(id)).then_some(held)
        });
        held.collect()
    }

    fn is_of(&self, id: i32) -> bool {
        self.names(id) || self.holds(id)
    }

    /// Whether the environment with which a process began names the machine.
    fn names(&self, id: i32) -> bool {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        self.variables.iter().all(|wanted| environment.split(|byte| *byte == 0).any(|one| one == *wanted))
    }

    /// Whether a process has the machine's lock open.
    fn holds(&self, id: i32) -> bool {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{id}/fd")) else { return false };
        descriptors
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|target| target == self.lock)
    }

    /// Sends all of them a signal; how many there are.
    pub(super) fn signal(&self, signal: Signal) -> usize {
        let found = self.found();
        for process in &found {
            // One that has ended meanwhile needs none.
            let _ = pidfd_send_signal(process, signal);
        }
        found.len()
    }

    /// Whether there is any.
    pub(super) fn any(&self) -> bool {
        !self.found().is_empty()
    }
}

/// Whether a process runs: one that has ended and that nobody has waited for yet does not.
fn is_alive(id: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{id}/stat")) else { return false };
    // The name before it may hold any character.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}
