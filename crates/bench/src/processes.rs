//! What the processes under test cost: CPU time and memory, read from `/proc`, and the machine they ran on.
//!
//! CPU per operation is the figure that survives a noisy machine. The kernel accounts it exactly and shows it
//! in ticks of 10 ms, so a run should last seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A process to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Its number.
    pub pid: u32,
    /// What reports call it.
    pub name: String,
}

impl Watched {
    /// One process.
    pub fn new(pid: u32, name: impl Into<String>) -> Self {
        Watched { pid, name: name.into() }
    }

    /// This very process: the benchmark's client.
    pub fn client() -> Self {
        Watched::new(std::process::id(), "client")
    }

    /// A process and all its descendants that live now, named `name`, `name/1`, `name/2`, … by age.
    pub fn tree(pid: u32, name: &str) -> Vec<Self> {
        let mut found = vec![pid];
        let parents = parents();
        let mut next = 0;
        while let Some(&parent) = found.get(next) {
            found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
            next += 1;
        }
        let named = found.into_iter().enumerate();
        named
            .map(|(number, pid)| match number {
                0 => Watched::new(pid, name),
                _ => Watched::new(pid, format!("{name}/{number}")),
            })
            .collect()
    }
}

/// Every process with its parent, ascending.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut parents: Vec<(u32, u32)> =
        pids.filter_map(|pid| Some((pid, stat_fields(pid)?.get(1)?.parse().ok()?))).collect();
    parents.sort_unstable();
    parents
}

/// The fields of `/proc/<pid>/stat` after the command name, which itself may hold anything.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    Some(after_name.split_whitespace().map(str::to_owned).collect())
}

/// When a live process started, in ticks since boot: with its number, the identity of a process.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let fields = stat_fields(pid)?;
    let zombie = fields.first().is_some_and(|state| state == "Z");
    if zombie { None } else { fields.get(19)?.parse().ok() }
}

/// What a process has used up to one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// CPU time in user mode, children that have ended included (a Redis rewrites its log in one).
    pub user: Duration,
    /// CPU time in the kernel, likewise.
    pub system: Duration,
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
    /// The most resident memory ever, in bytes.
    pub rss_peak_bytes: u64,
    /// Threads.
    pub threads: u64,
}

impl Sample {
    /// Reads a process's sample; `None` when it is gone.
    pub fn take(pid: u32) -> Option<Self> {
        let fields = stat_fields(pid)?;
        let ticks = |index: usize| -> Option<Duration> {
            let count: u64 = fields.get(index)?.parse().ok()?;
            Some(Duration::from_nanos(count * 1_000_000_000 / rustix::param::clock_ticks_per_second()))
        };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let kilobytes = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next());
            number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
        };
        Some(Sample {
            user: ticks(11)? + ticks(13)?,
            system: ticks(12)? + ticks(14)?,
            rss_bytes: kilobytes("VmRSS") * 1024,
            rss_peak_bytes: kilobytes("VmHWM") * 1024,
            threads: kilobytes("Threads"),
        })
    }

    /// All CPU time.
    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }
}

/// All watched processes and the machine, at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    samples: Vec<(Watched, Option<Sample>)>,
    machine_busy: Duration,
}

impl Snapshot {
    /// Samples every process now.
    pub fn take(watched: &[Watched]) -> Self {
        let samples = watched.iter().map(|process| (process.clone(), Sample::take(process.pid)));
        Snapshot { samples: samples.collect(), machine_busy: machine_busy() }
    }

    /// What was used from this snapshot to a later one of the same processes.
    pub fn until(&self, later: &Snapshot) -> Usage {
        let pairs = self.samples.iter().zip(&later.samples);
        let processes: Vec<ProcessUsage> = pairs
            .map(|((process, before), (_, after))| ProcessUsage::between(process, *before, *after))
            .collect();
        let watched: Duration = processes.iter().map(|process| process.user + process.system).sum();
        let busy = later.machine_busy.saturating_sub(self.machine_busy);
        Usage { processes, others: busy.saturating_sub(watched) }
    }
}

/// What one process used during the measured part of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Which process.
    pub process: Watched,
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Resident memory at the end, in bytes.
    pub rss_bytes: u64,
    /// The most resident memory since the process started, in bytes.
    pub rss_peak_bytes: u64,
    /// Threads at the end.
    pub threads: u64,
    /// Whether it was there at both ends; if not, the figures are worthless.
    pub alive: bool,
}

impl ProcessUsage {
    fn between(process: &Watched, before: Option<Sample>, after: Option<Sample>) -> Self {
        let alive = before.is_some() && after.is_some();
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        ProcessUsage {
            process: process.clone(),
            user: after.user.saturating_sub(before.user),
            system: after.system.saturating_sub(before.system),
            rss_bytes: after.rss_bytes,
            rss_peak_bytes: after.rss_peak_bytes,
            threads: after.threads,
            alive,
        }
    }
}

/// What all watched processes used, and everybody else on the machine.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The watched ones, in the order they were given.
    pub processes: Vec<ProcessUsage>,
    /// CPU time of everything else on the machine: the noise under which the run took place.
    pub others: Duration,
}

/// A thread of this process, whose time is read.
#[derive(Clone, Debug)]
pub struct ThreadTimes(PathBuf);

impl ThreadTimes {
    /// The thread that asks; `None` where the system does not tell.
    pub fn own() -> Option<Self> {
        let file = Path::new("/proc").join(fs::read_link("/proc/thread-self").ok()?).join("schedstat");
        file.exists().then_some(ThreadTimes(file))
    }

    /// How long it has run, and how long it was ready to run and waited for a processor.
    pub fn read(&self) -> (Duration, Duration) {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let mut fields =
            text.split_whitespace().map(|field| Duration::from_nanos(field.parse().unwrap_or(0)));
        (fields.next().unwrap_or_default(), fields.next().unwrap_or_default())
    }
}

/// CPU time of all threads that a process has now, to the nanosecond; `None` where the system does not tell.
pub fn threads_ran(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let times = threads.map(|thread| ThreadTimes(thread.path().join("schedstat")).read().0);
    Some(times.sum()).filter(|sum: &Duration| !sum.is_zero())
}

/// CPU time that all processors together have been busy since boot.
pub(crate) fn machine_busy() -> Duration {
    let Ok(stat) = fs::read_to_string("/proc/stat") else { return Duration::ZERO };
    let Some(line) = stat.lines().next() else { return Duration::ZERO };
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, (idle, iowait), irq, softirq; guests are counted in user already.
    let busy: u64 =
        ticks.iter().enumerate().filter(|(index, _)| matches!(index, 0..=2 | 5 | 6)).map(|(_, t)| t).sum();
    Duration::from_nanos(busy * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Where and when a run took place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Context {
    /// Processors that this process may use.
    pub cores: usize,
    /// The processor's name.
    pub processor: String,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Load average of the last minute when the run began.
    pub load_average: f64,
    /// Seconds since 1970 when the run began.
    pub started_at: u64,
    /// Version of this benchmark, and of Tontine.
    pub version: String,
    /// Whether the benchmark was built without optimisation: then its figures mean nothing.
    pub debug_build: bool,
}

impl Context {
    /// The context right now.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| -> Option<String> {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kilobytes: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Context {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
            memory_bytes: kilobytes * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_average: read("/proc/loadavg").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
            started_at: since.as_secs(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            debug_build: cfg!(debug_assertions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_sample_that_grows_with_work() {
        let before = Snapshot::take(&[Watched::client()]);
        let mut word = 1u64;
        while Sample::take(std::process::id()).unwrap().cpu()
            < before.samples[0].1.unwrap().cpu() + Duration::from_millis(20)
        {
            for _ in 0..100_000 {
                word = crate::generators::rng::mix(std::hint::black_box(word));
            }
        }
        let usage = before.until(&Snapshot::take(&[Watched::client()]));
        let used = &usage.processes[0];
        assert!(used.alive);
        assert!(used.user + used.system >= Duration::from_millis(20));
        assert!(used.rss_bytes > 0 && used.rss_peak_bytes >= used.rss_bytes && used.threads >= 1);
    }

    #[test]
    fn a_thread_and_a_process_are_timed_to_the_nanosecond() {
        let thread = ThreadTimes::own().unwrap();
        let before = thread.read().0;
        let mut word = 1u64;
        while thread.read().0 == before {
            word = crate::generators::rng::mix(std::hint::black_box(word));
        }
        // Its own process: here, threads of other tests end between two looks, and take their time with them.
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        // One that has just begun has had no time yet, which nobody tells from none at all.
        let mut began = threads_ran(child.id());
        while began.is_none() || threads_ran(child.id()) == began {
            std::thread::sleep(Duration::from_millis(1));
            began = began.or_else(|| threads_ran(child.id()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(threads_ran(u32::MAX), None);
    }

    #[test]
    fn a_process_that_is_gone_is_said_to_be() {
        let nobody = Watched::new(u32::MAX, "nobody");
        let usage = Snapshot::take(std::slice::from_ref(&nobody))
            .until(&Snapshot::take(std::slice::from_ref(&nobody)));
        assert!(!usage.processes[0].alive);
    }

    #[test]
    fn a_tree_holds_the_children() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let tree = Watched::tree(std::process::id(), "me");
        assert_eq!(tree[0], Watched::new(std::process::id(), "me"));
        assert!(tree.iter().any(|process| process.pid == child.id() && process.name.starts_with("me/")));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_context_knows_this_machine() {
        let context = Context::here();
        assert!(context.cores >= 1 && context.memory_bytes > 0);
        assert!(!context.kernel.is_empty());
    }
}
