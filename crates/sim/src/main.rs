//! Runs seeds: `sim run --seed N [--verbose] [--bounds] [--numbers] [--golden] [--plant NAME]`, `sim check --seeds A..=B [--random M] [--twice N]`.
//!
//! Exit code 0: every seed passed; 1: a promise was broken, or too few reads were judged; 2: the command line is wrong.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use coordination::memory::MemoryFaults;
use model::plan::Rule;
use parking_lot::Mutex;
use sim::balance::{TABLE, Weather, broken, row};
use sim::catalogue;
use sim::check::absent::Absences;
use sim::check::reads::{EXCUSED_PER_MILLE_MAX, Pairs, UNPROMISED_PER_MILLE_MAX};
use sim::check::sloppy::SloppyTold;
use sim::elastic;
use sim::plant::Plant;
use sim::played::Played;
use sim::run::{Report, play};
use sim::swarm::Setup;

const USAGE: &str = "usage: sim run --seed N [--plant NAME] [--bounds] [--numbers] [--golden] [--autopilot] [--verbose]
       sim plant all [--page]
       sim balance --seeds A..=B [--policy P] [--threads T] [--constant] [--verbose]
       sim elastic --seeds A..=B [--threads T] [--verbose]
       sim check --seeds A..=B [--random M] [--twice N] [--threads T] [--service failing] [--pushes] [--numbers] [--golden]
                 [--autopilot]

run      plays one seed and says what happened
balance  plays a day of shifting load, 24 hours, for each seed; with --constant one whose load stays as it is;
         P is even, thresholds, greedy or no-reordering
elastic  plays a day of load on a fleet that grows and shrinks, for each seed; --seeds N is 1..=N
plant    plays each planted bug until a seed convicts it, and prints the page of them
check    plays the seeds A to B and M further ones, N of them twice, comparing the traces;
         with --service failing only those in which single calls of the coordination service fail,
         with --pushes only those in which tables are pushed to a read-only store
         with --golden each of them on a golden ring, which headmasters grow and shrink by an operator's orders,
         with --autopilot each of them with the autopilot on, over played processors
";

/// Seeds without which the part of reads that was excused says nothing.
const SEEDS_FOR_EXCUSES_MIN: usize = 100;
/// The invariants are numbered up to this one.
const INVARIANT_LAST: u8 = 12;
/// Longest list of broken promises of one invariant that is printed for one seed.
const VIOLATIONS_SHOWN_MAX: usize = 4;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = arguments.first().map(String::as_str);
    let parsed = match command {
        Some("run") => run(&arguments[1..]),
        Some("check") => check(&arguments[1..]),
        Some("plant") => plants(&arguments[1..]),
        Some("balance") => balance(&arguments[1..]),
        Some("elastic") => elastic(&arguments[1..]),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(other) => Err(format!("there is no command {other:?}")),
        None => Err("no command".to_owned()),
    };
    parsed.unwrap_or_else(|reason| {
        eprintln!("sim: {reason}\n{USAGE}");
        ExitCode::from(2)
    })
}

/// Options without a value.
const FLAGS: [&str; 7] =
    ["--verbose", "--bounds", "--numbers", "--golden", "--pushes", "--constant", "--autopilot"];

/// Options as pairs; [`FLAGS`] alone.
struct Options<'a>(&'a [String]);

impl<'a> Options<'a> {
    fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.0.iter().position(|argument| argument == name) {
            None => Ok(None),
            Some(position) => match self.0.get(position + 1) {
                Some(value) => Ok(Some(value)),
                None => Err(format!("{name} needs a value")),
            },
        }
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let text = self.text(name)?;
        text.map(|text| text.parse().map_err(|_| format!("{name} needs a number, got {text:?}"))).transpose()
    }

    fn only(&self, known: &[&str]) -> Result<(), String> {
        let mut arguments = self.0.iter();
        while let Some(argument) = arguments.next() {
            if !known.contains(&argument.as_str()) {
                return Err(format!("unknown option {argument:?}"));
            }
            if !FLAGS.contains(&argument.as_str()) {
                arguments.next();
            }
        }
        Ok(())
    }
}

fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let options = Options(arguments);
    let known = ["--seed", "--plant", "--verbose", "--bounds", "--numbers", "--golden", "--autopilot"];
    options.only(&known)?;
    let seed = options.number("--seed")?.ok_or("run needs --seed")?;
    let setup = match options.text("--plant")? {
        None if arguments.iter().any(|argument| argument == "--bounds") => Setup::of_seed(seed).with_bounds(),
        None if has_numbers(arguments) => Setup::of_seed(seed).with_numbers(),
        None if has_golden(arguments) => Setup::of_seed(seed).with_golden(),
        None if has_autopilot(arguments) => Setup::of_seed(seed).with_autopilot(),
        None => Setup::of_seed(seed),
        Some(name) => Setup::planted(
            seed,
            Plant::named(name)
                .ok_or_else(|| format!("unknown plant {name:?}; docs/design/plants.md has their names"))?,
        ),
    };
    let started = Instant::now();
    let report = play(setup);
    if arguments.iter().any(|argument| argument == "--verbose") {
        tell(&report);
    }
    println!("{}", summary(&report, started.elapsed().as_secs_f64()));
    Ok(verdict(&report))
}

fn tell(report: &Report) {
    println!("{:#?}", report.setup);
    let mut lines: Vec<(u64, String)> = Vec::new();
    for (id, operation) in report.history.all() {
        let at = operation.invoked.nanos as f64 / 1e9;
        let returned = operation.returned.map_or(f64::NAN, |moment| moment.nanos as f64 / 1e9);
        let line = format!(
            "{at:10.6} c{} {}/{} {id:?} {}, {:?} -> {returned:.6} {}",
            operation.client,
            operation.store,
            String::from_utf8_lossy(&operation.key),
            operation.action,
            operation.basis,
            operation.outcome
        );
        lines.push((operation.invoked.nanos, line));
    }
    for line in &report.log {
        let seconds: f64 = line.split_whitespace().next().and_then(|time| time.parse().ok()).unwrap_or(0.0);
        lines.push(((seconds * 1e9) as u64, format!("{line}  <<<")));
    }
    lines.sort();
    for (_, line) in lines {
        println!("{line}");
    }
}

fn summary(report: &Report, seconds: f64) -> String {
    let (done, failed, unknown) = report.outcomes();
    let away: String = report.setup.without.iter().map(|net| format!(", without {net:?}")).collect();
    let storms =
        if report.setup.storms > 0 { format!(", {} storms", report.setup.storms) } else { String::new() };
    format!(
        "seed {}{away}{storms}: {done} done, {failed} failed, {unknown} of unknown outcome, {} frames, {:.1} virtual s in {seconds:.2} s, \
         {} gets went back, {} of {} reads of acknowledged writes excused, {} of {} answers called absent what hints held, \
         {} answers were sloppy, {} reads waited for the disk, {}, trace {:016x}, {} violations",
        report.setup.seed,
        report.frames,
        report.lasted.as_secs_f64(),
        sim::check::reads::backwards(&report.history).len(),
        report.pairs.deleted + report.pairs.nameless,
        report.pairs.all,
        report.absences.hinted,
        report.absences.all,
        report.sloppy.all,
        report.refused_reads,
        report.played,
        report.trace,
        report.violations.len()
    )
}

fn verdict(report: &Report) -> ExitCode {
    for invariant in 0..=INVARIANT_LAST {
        let broken = report.violations.iter().filter(|violation| violation.invariant == invariant);
        broken.take(VIOLATIONS_SHOWN_MAX).for_each(|violation| println!("  {violation}"));
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plants(arguments: &[String]) -> Result<ExitCode, String> {
    if arguments.first().map(String::as_str) != Some("all") {
        return Err("plant knows \"all\" only".to_owned());
    }
    let prints = arguments.iter().any(|argument| argument == "--page");
    let rest: Vec<String> = arguments[1..].iter().filter(|&argument| argument != "--page").cloned().collect();
    let options = Options(&rest);
    options.only(&[])?;
    let (mut seeds, mut survivors) = (Vec::new(), 0);
    for plant in Plant::ALL {
        match catalogue::convicting_seed(plant) {
            Some(seed) => {
                eprintln!("{plant:?}: convicted by seed {seed}");
                seeds.push((plant, seed));
            }
            None => {
                survivors += 1;
                eprintln!("{plant:?} survives seeds 1 to {}", catalogue::SEEDS_MAX);
            }
        }
    }
    eprintln!("{} convicted, {survivors} survived", seeds.len());
    if survivors > 0 {
        return Ok(ExitCode::FAILURE);
    }
    if prints {
        print!("{}", catalogue::page(&seeds)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn check(arguments: &[String]) -> Result<ExitCode, String> {
    let options = Options(arguments);
    let known = ["--seeds", "--random", "--twice", "--threads", "--service", "--pushes", "--numbers"];
    options.only(&[&known[..], &["--golden", "--autopilot"]].concat())?;
    let range = options.text("--seeds")?.unwrap_or("1..=100");
    let mut seeds = seeds_of(range)?;
    let twice = options.number("--twice")?.unwrap_or(0) as usize;
    let threads = options.number("--threads")?.unwrap_or(2).max(1);
    seeds.extend(random_seeds(options.number("--random")?.unwrap_or(0)));
    match options.text("--service")? {
        None => {}
        // Of the seeds only those whose coordination service fails at single calls.
        Some("failing") => seeds.retain(|&seed| Setup::of_seed(seed).service != MemoryFaults::default()),
        Some(other) => return Err(format!("--service knows \"failing\" only, got {other:?}")),
    }
    if arguments.iter().any(|argument| argument == "--pushes") {
        seeds.retain(|&seed| Setup::of_seed(seed).pushes());
    }
    if seeds.is_empty() {
        return Err(format!("no seed of {range} is to be played"));
    }
    let chosen = [has_numbers(arguments), has_golden(arguments), has_autopilot(arguments)];
    let setup = |seed| match chosen {
        [true, ..] => Setup::of_seed(seed).with_numbers(),
        [_, true, _] => Setup::of_seed(seed).with_golden(),
        [.., true] => Setup::of_seed(seed).with_autopilot(),
        _ => Setup::of_seed(seed),
    };
    let flags = match chosen {
        [true, ..] => " --numbers",
        [_, true, _] => " --golden",
        [.., true] => " --autopilot",
        _ => "",
    };
    Ok(check_seeds(&seeds, (twice, threads), setup, flags))
}

fn balance(arguments: &[String]) -> Result<ExitCode, String> {
    let options = Options(arguments);
    options.only(&["--seeds", "--policy", "--threads", "--constant", "--verbose"])?;
    let policy = options.text("--policy")?.unwrap_or(Rule::Even.word());
    let words = || Rule::ALL.map(Rule::word).join(", ");
    let rule =
        Rule::named(policy).ok_or_else(|| format!("--policy is one of {}, got {policy:?}", words()))?;
    let range = options.text("--seeds")?.unwrap_or("1..=20");
    let seeds = seeds_of(range)?;
    let threads = options.number("--threads")?.unwrap_or(2) as usize;
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    Ok(play_days(&seeds, (threads, rule), has("--constant"), has("--verbose")))
}

/// Plays the seeds and prints what came of them.
fn play_days(seeds: &[u64], (threads, rule): (usize, Rule), is_constant: bool, verbose: bool) -> ExitCode {
    let weather = |seed| match is_constant {
        true => Weather { shifts: None, succession: None, rule, ..Weather::of_seed(seed) },
        false => Weather { rule, ..Weather::of_seed(seed) },
    };
    let began = Instant::now();
    let days = play_all(seeds, threads, |seed| sim::balance::play(seed, weather(seed)));
    let mut failed = 0;
    for (seed, day) in seeds.iter().zip(&days) {
        // Only the autopilot's own rule promises anything.
        let broken = broken(day, is_constant).filter(|_| rule == Rule::Even);
        if verbose || broken.is_some() {
            let imbalance: Vec<String> =
                day.imbalance.iter().map(|(before, after)| format!("{before:.2}>{after:.2}")).collect();
            println!(
                "seed {seed}: plans {:?}, {} reorders, {} copies, {} returns, {} flips, imbalance {}, last plan at {} s, {}",
                day.plans,
                day.reorders,
                day.copies,
                day.returns,
                day.flips,
                imbalance.join(" "),
                day.last_plan_s,
                day.mode.word(),
            );
            if verbose {
                day.told.iter().for_each(|line| println!("  {line}"));
            }
        }
        if let Some(broken) = broken {
            failed += 1;
            println!("seed {seed} FAILED: {broken}; again: sim balance --seeds {seed}..={seed} --verbose");
        }
    }
    println!("{TABLE}\n{}", row(rule, &days));
    println!("{} days, {failed} failed, {:.1} s", days.len(), began.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays a day for each seed, on this many threads, in the order of the seeds.
fn play_all<D: Send>(seeds: &[u64], threads: usize, play: impl Fn(u64) -> D + Sync) -> Vec<D> {
    let (next, days) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&seed) = seeds.get(at) else { break };
                    let day = play(seed);
                    days.lock().insert(at, day);
                }
            });
        }
    });
    days.into_inner().into_values().collect()
}

fn elastic(arguments: &[String]) -> Result<ExitCode, String> {
    let options = Options(arguments);
    options.only(&["--seeds", "--threads", "--verbose"])?;
    let range = options.text("--seeds")?.unwrap_or("100");
    let range = if range.contains("..=") { range.to_owned() } else { format!("1..={range}") };
    let seeds = seeds_of(&range)?;
    let threads = options.number("--threads")?.unwrap_or(2) as usize;
    let verbose = arguments.iter().any(|argument| argument == "--verbose");
    let began = Instant::now();
    let days = play_all(&seeds, threads, |seed| elastic::play(seed, elastic::Weather::of_seed(seed)));
    let mut failed = 0;
    for (seed, day) in seeds.iter().zip(&days) {
        if verbose {
            println!("seed {seed}: {:?}\n{day:#?}", elastic::Weather::of_seed(*seed));
        }
        if let Some(broken) = day.broken.first() {
            failed += 1;
            println!("seed {seed} FAILED: {broken}; again: sim elastic --seeds {seed}..={seed} --verbose");
        }
    }
    let sum = |of: fn(&elastic::Day) -> u64| days.iter().map(of).sum::<u64>();
    println!(
        "{} days, {failed} failed, {} moves, {} flips, {} machines failed, {} drains taken back, {} late acts, {:.1} s",
        days.len(),
        sum(|day| day.moves.len() as u64),
        sum(|day| day.flips() as u64),
        sum(|day| day.failures),
        sum(|day| day.cancelled),
        sum(|day| day.late_acts),
        began.elapsed().as_secs_f64()
    );
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn seeds_of(range: &str) -> Result<Vec<u64>, String> {
    let bounds = range.split_once("..=").ok_or(format!("--seeds needs A..=B, got {range:?}"))?;
    let bound = |text: &str| text.parse::<u64>().map_err(|_| format!("--seeds needs A..=B, got {range:?}"));
    Ok((bound(bounds.0)?..=bound(bounds.1)?).collect())
}

/// Whether the numbers of stores change in each run.
fn has_numbers(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--numbers")
}

/// Whether each run has a golden ring.
fn has_golden(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--golden")
}

/// Whether the autopilot is on in each run.
fn has_autopilot(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--autopilot")
}

/// Seeds that nobody has seen; they are printed when they fail, so they can be played again.
fn random_seeds(count: u64) -> Vec<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let start = now.map_or(1, |since| since.as_nanos() as u64);
    let mut dice = sim::dice::Dice::new(start);
    (0..count).map(|_| dice.roll() >> 24).collect()
}

fn check_seeds(
    seeds: &[u64],
    (twice, threads): (usize, u64),
    setup: impl Fn(u64) -> Setup + Sync,
    flags: &str,
) -> ExitCode {
    let (next, failed, cold) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let (spent_us, pairs) = (AtomicU64::new(0), Mutex::new(SeedPairs::default()));
    let played = Mutex::new(Played::default());
    let out = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let position = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&seed) = seeds.get(position) else { return };
                    let started = Instant::now();
                    let report = play(setup(seed));
                    spent_us.fetch_add(started.elapsed().as_micros() as u64, Ordering::Relaxed);
                    pairs.lock().add(seed, &report);
                    *played.lock() += report.played.clone();
                    cold.fetch_add(usize::from(report.refused_reads > 0), Ordering::Relaxed);
                    let again = (position < twice).then(|| play(setup(seed)).trace);
                    let differs = again.is_some_and(|trace| trace != report.trace);
                    if report.violations.is_empty() && !differs {
                        continue;
                    }
                    failed.fetch_add(1, Ordering::Relaxed);
                    let _whole = out.lock();
                    println!("{}", summary(&report, started.elapsed().as_secs_f64()));
                    if differs {
                        println!("  played twice, it went two ways: {:016x} and {again:016x?}", report.trace);
                    }
                    verdict(&report);
                    println!(
                        "  replay: cargo run --profile proof -p sim -- run --seed {seed}{flags} --verbose"
                    );
                }
            });
        }
    });
    let failed = failed.into_inner();
    let each = spent_us.into_inner() as f64 / 1e6 / seeds.len().max(1) as f64;
    println!("{each:.3} s of a thread per seed; in {} of them reads waited for the disk", cold.into_inner());
    println!("{}", played.into_inner());
    let lenient = pairs.into_inner().tell(seeds.len());
    println!("{} passed, {failed} failed", seeds.len() - failed);
    if failed == 0 && !lenient { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Pairs of reads and writes, of all seeds and of each: a long run has a thousand times the pairs of a short one.
#[derive(Default)]
struct SeedPairs {
    all: Pairs,
    /// Seeds that judge reads.
    judging: u64,
    /// The sum of their excused parts, in a thousand.
    per_mille: u64,
    /// The most that one excused, and which.
    most: (u64, u64),
    /// Seeds with reads of acknowledged writes, and the sum of what part of these is promised nothing, in a thousand.
    unpromised: (u64, u64),
    /// Answers that depended on absence.
    absences: Absences,
    /// Answers that said that a fallback stood in.
    sloppy: SloppyTold,
}

impl SeedPairs {
    fn add(&mut self, seed: u64, report: &Report) {
        let pairs = &report.pairs;
        self.all += *pairs;
        self.absences += report.absences;
        self.sloppy += report.sloppy;
        if pairs.all + pairs.unpromised + pairs.leaning > 0 {
            self.unpromised.0 += 1;
            self.unpromised.1 += pairs.unpromised_per_mille();
        }
        if pairs.all > 0 {
            self.judging += 1;
            self.per_mille += pairs.excused_per_mille();
            self.most = self.most.max((pairs.excused_per_mille(), seed));
        }
    }

    /// Says how many reads were judged; whether too many were excused for the judge to be one.
    fn tell(&self, seeds: usize) -> bool {
        let pairs = &self.all;
        let percent = |per_mille: u64| per_mille as f64 / 10.0;
        let mean = self.per_mille / self.judging.max(1);
        println!(
            "reads of acknowledged writes: {} judged, {} excused ({:.1}%: {} may have been deleted, {} cannot be \
             ordered); {:.1}% of all are promised nothing: {} by their numbers or for lost copies, {} because a fallback \
             may have stood in",
            pairs.all - pairs.deleted - pairs.nameless,
            pairs.deleted + pairs.nameless,
            percent(pairs.excused_per_mille()),
            pairs.deleted,
            pairs.nameless,
            percent(pairs.unpromised_per_mille()),
            pairs.unpromised,
            pairs.leaning,
        );
        println!(
            "{} answers depended on absence, and {} of them are excused because only hints held something; {} answers \
             said that a fallback stood in, {} of them for no known reason",
            self.absences.all, self.absences.hinted, self.sloppy.all, self.sloppy.unexplained
        );
        let unpromised = self.unpromised.1 / self.unpromised.0.max(1);
        println!(
            "a seed excuses {:.1}% on average, seed {} the most, {:.1}%; it promises nothing for {:.1}% on average",
            percent(mean),
            self.most.1,
            percent(self.most.0),
            percent(unpromised)
        );
        let many = seeds >= SEEDS_FOR_EXCUSES_MIN;
        // Few seeds have most pairs, so what part of all pairs is promised nothing is a matter of which are drawn.
        let is_lenient = pairs.is_lenient() || mean > EXCUSED_PER_MILLE_MAX;
        let lenient = many && (is_lenient || unpromised > UNPROMISED_PER_MILLE_MAX);
        if lenient {
            println!(
                "the judge of reads is too lenient: it may excuse {:.1}% of them, of all pairs and on average of the \
                 seeds, and on average of the seeds {:.1}% may be promised nothing. Tighten check::forgotten, or draw \
                 fewer runs in which it must excuse.",
                percent(EXCUSED_PER_MILLE_MAX),
                percent(UNPROMISED_PER_MILLE_MAX)
            );
        }
        lenient
    }
}
