//! Runs tests with one mutant on, or with none to learn what they reach.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use std::os::unix::process::CommandExt;

use rustix::process::{Pid, Signal, kill_process_group};

use super::build::Build;
use super::{MutantsError, Options};

/// A test gets so many times the time that it took with no mutant on: beyond that, a mutant counts as noticed.
const PATIENCE: u32 = 8;

/// A test gets at least this long.
const PATIENCE_TIME_MIN: Duration = Duration::from_secs(10);

/// Most address space of a test, in KiB: a mutant may ask for memory without end.
const MEMORY_KIB_MAX: u64 = 5 << 20;

/// So many of the quickest tests run alone, and the rest in groups: most mutants are noticed by the first.
const ALONE_MAX: usize = 6;

/// Tests in such a group.
const GROUP_MAX: usize = 25;

/// A simulated cluster gets this long: a second is usual.
const SEED_TIME_MAX: Duration = Duration::from_secs(15);

/// How often a running test is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A test failed, or ran for too long.
    Noticed,
    /// No test noticed it, but a simulated cluster did.
    Simulated,
    /// All tests that reach it passed.
    Survived,
    /// No test reaches it.
    Unreached,
}

/// A test that passes with no mutant on.
struct Test {
    program: PathBuf,
    name: String,
    time: Duration,
}

/// Which tests reach which mutants.
pub(super) struct Reach {
    /// The quickest first.
    tests: Vec<Test>,
    by_mutant: BTreeMap<usize, Vec<usize>>,
    /// Tests that fail with no mutant on.
    pub(super) broken: Vec<String>,
}

impl Reach {
    /// How many tests there are to play with.
    pub(super) fn tests(&self) -> usize {
        self.tests.len()
    }
}

pub(super) struct Player<'a> {
    build: &'a Build,
    options: &'a Options,
    /// Tests may leave files there; it goes when this is dropped.
    scratch: tempfile::TempDir,
}

impl<'a> Player<'a> {
    pub(super) fn new(build: &'a Build, options: &'a Options) -> Result<Player<'a>, MutantsError> {
        let scratch = tempfile::tempdir()
            .map_err(|reason| MutantsError::File { path: "a temporary folder".into(), reason })?;
        Ok(Player { build, options, scratch })
    }

    /// Runs each test alone with no mutant on.
    pub(super) fn reach(&self) -> Reach {
        let names = Mutex::new(self.names());
        let found = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..self.options.threads {
                let log = self.scratch.path().join(format!("reached-{thread}"));
                let (names, found) = (&names, &found);
                scope.spawn(move || {
                    while let Some((program, name)) = pop(names) {
                        let _ = std::fs::remove_file(&log);
                        let begun = Instant::now();
                        let passed =
                            self.passes(&program, &[&name], self.options.test_time_max, Some(&log), None);
                        let reached = std::fs::read_to_string(&log).unwrap_or_default();
                        let test = Test { program, name, time: begun.elapsed() };
                        push(found, (test, passed, reached));
                    }
                });
            }
        });
        let mut found = found.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        found.sort_by_key(|(test, ..)| test.time);
        let mut reach = Reach { tests: Vec::new(), by_mutant: BTreeMap::new(), broken: Vec::new() };
        for (test, passed, reached) in found {
            if !passed {
                reach.broken.push(test.name);
                continue;
            }
            for id in reached.lines().filter_map(|line| line.parse().ok()) {
                reach.by_mutant.entry(id).or_default().push(reach.tests.len());
            }
            reach.tests.push(test);
        }
        reach
    }

    fn names(&self) -> VecDeque<(PathBuf, String)> {
        let mut names = VecDeque::new();
        for program in &self.build.programs {
            let output = Command::new(program)
                .current_dir(&self.build.folder)
                .args(["--list", "--format", "terse"])
                .output();
            let text =
                output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
            let wanted = tests.filter(|name| !self.options.skipped.iter().any(|word| name.contains(word)));
            names.extend(wanted.map(|name| (program.clone(), name.to_owned())));
        }
        names
    }

    /// Plays these mutants, and says what came of each.
    pub(super) fn play_all(
        &self,
        mutants: &[usize],
        reach: &Reach,
        say: &(dyn Fn(&str) + Sync),
    ) -> Vec<Verdict> {
        let verdicts: Vec<Mutex<Verdict>> = mutants.iter().map(|_| Mutex::new(Verdict::Unreached)).collect();
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads {
                scope.spawn(|| {
                    while let Some(&id) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let at = mutants.partition_point(|&mutant| mutant < id);
                        *verdicts[at].lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                            self.play(id, reach);
                        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                        if done.is_multiple_of(100) {
                            say(&format!("{done} of {} played", mutants.len()));
                        }
                    }
                });
            }
        });
        verdicts
            .into_iter()
            .map(|one| one.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
            .collect()
    }

    fn play(&self, id: usize, reach: &Reach) -> Verdict {
        let mut budget = self.options.mutant_time_max;
        let affordable = |test: &&Test| {
            let left = budget.checked_sub(test.time);
            budget = left.unwrap_or_default();
            left.is_some()
        };
        let reaching = reach.by_mutant.get(&id).into_iter().flatten().map(|&at| &reach.tests[at]);
        let tests: Vec<&Test> = reaching.take_while(affordable).collect();
        let (alone, rest) = tests.split_at(tests.len().min(ALONE_MAX));
        let mut groups: Vec<Vec<&Test>> = alone.iter().map(|&test| vec![test]).collect();
        for program in &self.build.programs {
            let of: Vec<&Test> = rest.iter().filter(|test| test.program == *program).copied().collect();
            groups.extend(of.chunks(GROUP_MAX).map(<[_]>::to_vec));
        }
        let noticed = groups.iter().any(|group| {
            let names: Vec<&str> = group.iter().map(|test| test.name.as_str()).collect();
            let usual: Duration = group.iter().map(|test| test.time).sum();
            !self.passes(&group[0].program, &names, (usual * PATIENCE).max(PATIENCE_TIME_MIN), None, Some(id))
        });
        match noticed {
            true => Verdict::Noticed,
            false if !self.passes_seeds(Some(id)) => Verdict::Simulated,
            false if reach.by_mutant.contains_key(&id) => Verdict::Survived,
            false => Verdict::Unreached,
        }
    }

    /// Whether simulated clusters pass; there may be none to play.
    pub(super) fn passes_seeds(&self, on: Option<usize>) -> bool {
        let Some(simulator) = &self.build.simulator else { return true };
        let seeds = self.options.seeds;
        let mut command = self.command(simulator, None, on);
        command.args(["check", "--threads", "1", "--seeds", &format!("1..={seeds}")]);
        let time = SEED_TIME_MAX.saturating_mul(u32::try_from(seeds).unwrap_or(u32::MAX));
        succeeds(command, time)
    }

    /// Whether tests pass within a time.
    fn passes(
        &self,
        program: &Path,
        tests: &[&str],
        time: Duration,
        log: Option<&Path>,
        on: Option<usize>,
    ) -> bool {
        let mut command = self.command(program, log, on);
        command.args(["--exact", "--quiet", "--test-threads=1"]).args(tests);
        succeeds(command, time)
    }

    /// A program with a mutant on, or none, that cannot take all memory.
    fn command(&self, program: &Path, log: Option<&Path>, on: Option<usize>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {MEMORY_KIB_MAX} && exec \"$0\" \"$@\"")]).arg(program);
        command.current_dir(&self.build.folder).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
            .env("TMPDIR", self.scratch.path())
            .env("PROPTEST_FAILURE_PERSISTENCE", "off")
            .env("RUST_BACKTRACE", "0");
        command.envs(log.map(|log| ("MUTANT_LOG", log)));
        command.envs(on.map(|on| ("MUTANT", on.to_string())));
        command
    }
}

/// Whether a program, in its own group, ends well within a time. Nothing of its group is left.
fn succeeds(mut command: Command, time: Duration) -> bool {
    let Ok(mut child) = command.spawn() else { return false };
    let begun = Instant::now();
    let succeeded = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if begun.elapsed() < time => std::thread::sleep(LOOK_INTERVAL),
            Ok(None) | Err(_) => break false,
        }
    };
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    succeeded
}

fn pop<T>(queue: &Mutex<VecDeque<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop_front()
}

fn push<T>(list: &Mutex<Vec<T>>, item: T) {
    list.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(item);
}
