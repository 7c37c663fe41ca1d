//! Control groups that bound the processor time of nodes, version 1 or 2, whichever the machine has.
//!
//! ```text
//!   version 1   /sys/fs/cgroup/cpu/tontine-bench-PID-N/cpu.cfs_period_us, cpu.cfs_quota_us
//!   version 2   /sys/fs/cgroup/tontine-bench-PID-N/cpu.max
//! ```
//!
//! A group lasts as long as its [`Group`]: dropped, it is removed. What a killed benchmark left behind is removed by the
//! next one.
//! **Never** bound a process that this benchmark did not start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// What groups of benchmarks begin with.
const PREFIX: &str = "tontine-bench-";
/// A quota is granted anew so often. A slow machine is slow all the time, so this is short.
const PERIOD_US: u64 = 5_000;
/// The least quota that the kernel takes.
const QUOTA_US_MIN: u64 = 1_000;
/// Groups that this process has made.
static MADE: AtomicUsize = AtomicUsize::new(1);
/// How long a group may keep a process that has just ended.
const EMPTY_TIME_MAX: Duration = Duration::from_secs(5);

/// Why a node cannot be bounded.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// Nothing bounds processors here.
    #[error(
        "this machine has no control groups that bound processor time: there is neither {ROOT}/cpu nor `cpu` in \
         {ROOT}/cgroup.controllers; mount one of them"
    )]
    Unavailable,
    /// The system refuses it.
    #[error(
        "cannot bound a node by {path}: {source}; run this as a user that may make control groups, such as root"
    )]
    Refused {
        /// What was to be made or written.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

impl Version {
    /// By what the machine shows.
    fn of(read: impl Fn(&str) -> Option<String>) -> Option<Version> {
        if read(&format!("{ROOT}/cpu/cgroup.procs")).is_some() {
            return Some(Version::First);
        }
        let controllers = read(&format!("{ROOT}/cgroup.controllers"))?;
        controllers.split_whitespace().any(|name| name == "cpu").then_some(Version::Second)
    }

    /// Where its groups are made.
    fn directory(self) -> PathBuf {
        match self {
            Version::First => Path::new(ROOT).join("cpu"),
            Version::Second => PathBuf::from(ROOT),
        }
    }

    /// What is written to a group's files, in this order.
    fn files(self, bound: Bound) -> Vec<(&'static str, String)> {
        let Bound { quota_us, period_us } = bound;
        match self {
            Version::First => {
                vec![("cpu.cfs_period_us", period_us.to_string()), ("cpu.cfs_quota_us", quota_us.to_string())]
            }
            Version::Second => vec![("cpu.max", format!("{quota_us} {period_us}"))],
        }
    }
}

/// So much processor time in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    quota_us: u64,
    period_us: u64,
}

impl Bound {
    /// The bound that allows this many processors. A small one needs a longer period, because quotas have a least.
    fn of(processors: f64) -> Bound {
        let period_us = PERIOD_US.max((QUOTA_US_MIN as f64 / processors).ceil() as u64);
        Bound { quota_us: ((processors * period_us as f64).round() as u64).max(QUOTA_US_MIN), period_us }
    }
}

/// A control group. Dropped, it is removed; its processes must have ended by then.
#[derive(Debug)]
pub(super) struct Group {
    directory: PathBuf,
}

impl Group {
    /// Makes a group of this benchmark that allows this many processors.
    ///
    /// # Errors
    /// When the machine has no such groups, or refuses one.
    pub(super) fn make(processors: f64) -> Result<Group, GroupError> {
        let version = Version::of(|path| fs::read_to_string(path).ok()).ok_or(GroupError::Unavailable)?;
        let parent = version.directory();
        sweep(&parent);
        if version == Version::Second {
            write(&parent.join("cgroup.subtree_control"), "+cpu")?;
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&directory)
            .map_err(|source| GroupError::Refused { path: directory.display().to_string(), source })?;
        let group = Group { directory };
        for (file, text) in version.files(Bound::of(processors)) {
            write(&group.directory.join(file), &text)?;
        }
        Ok(group)
    }

    /// Bounds a process.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(super) fn add(&self, pid: u32) -> Result<(), GroupError> {
        write(&self.directory.join("cgroup.procs"), &pid.to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let until = Instant::now() + EMPTY_TIME_MAX;
        while fs::remove_dir(&self.directory).is_err() && self.directory.exists() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), GroupError> {
    fs::write(path, text).map_err(|source| GroupError::Refused { path: path.display().to_string(), source })
}

/// Removes the groups of benchmarks that have ended. A group that still has a process refuses that.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let left =
            owner(&name.to_string_lossy()).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if left {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that made a group, by its name.
fn owner(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<usize>().ok()?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_its_share_of_a_short_period_and_never_below_the_kernels_least() {
        assert_eq!(Bound::of(0.256), Bound { quota_us: 1_280, period_us: 5_000 });
        assert_eq!(Bound::of(1.5), Bound { quota_us: 7_500, period_us: 5_000 });
        assert_eq!(Bound::of(0.1), Bound { quota_us: 1_000, period_us: 10_000 });
    }

    #[test]
    fn the_version_is_the_one_that_the_machine_shows() {
        let shows = |path: &'static str, text: &'static str| {
            Version::of(move |asked| (asked == path).then(|| text.to_owned()))
        };
        assert_eq!(shows("/sys/fs/cgroup/cpu/cgroup.procs", ""), Some(Version::First));
        assert_eq!(shows("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io\n"), Some(Version::Second));
        assert_eq!(shows("/sys/fs/cgroup/cgroup.controllers", "cpuset io\n"), None);
        assert_eq!(shows("/proc/self/status", ""), None);
    }

    #[test]
    fn each_version_is_told_the_bound_in_its_own_files() {
        let bound = Bound { quota_us: 1_280, period_us: 5_000 };
        let first = Version::First.files(bound);
        assert_eq!(
            first,
            [("cpu.cfs_period_us", "5000".to_owned()), ("cpu.cfs_quota_us", "1280".to_owned())],
            "the period first: a quota may not exceed what the old one allows"
        );
        assert_eq!(Version::Second.files(bound), [("cpu.max", "1280 5000".to_owned())]);
    }

    #[test]
    fn only_groups_of_benchmarks_have_an_owner() {
        assert_eq!(owner("tontine-bench-417-2"), Some(417));
        assert_eq!(owner("tontine-bench-417"), None);
        assert_eq!(owner("tontine-bench-x-1"), None);
        assert_eq!(owner("system.slice"), None);
    }
}
