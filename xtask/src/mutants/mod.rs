//! Plays all mutants of a part of the sources, in minutes.
//!
//! `cargo mutants` says which mutants there are. It builds the crate for each of them, which takes ten seconds and more.
//! Here all are compiled into one build, each behind a switch (*mutant schemata*: Untch, Offutt and Harrold, 1993).
//! One run of each test tells which switches it reaches; a mutant is played with those tests only, the quickest first.
//!
//! What cannot stand behind a switch is left out and counted: constants, and what does not compile.
//! It must never write into the checkout: it works on a copy below `target/mutants`.

mod build;
mod list;
mod play;
mod switch;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use build::Build;
use list::Mutant;
use play::{Player, Verdict};

/// What to play, and with what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The crate, a folder of `crates/`.
    pub package: String,
    /// Patterns of the files to change, as `cargo mutants` takes them; all of the crate when there is none.
    pub files: Vec<String>,
    /// Tests whose names contain one of these are not played.
    pub skipped: Vec<String>,
    /// Tests that take longer than this are not played.
    pub test_time_max: Duration,
    /// A mutant is played with tests that take so long together, the quickest first, and with no others.
    pub mutant_time_max: Duration,
    /// Those that no test noticed are played in so many simulated clusters, seeds 1 and up; 0 for none.
    pub seeds: u64,
    /// How many mutants are played at once.
    pub threads: usize,
}

/// Why mutants could not be played.
#[derive(Debug)]
pub enum MutantsError {
    /// A program that is needed could not be run, or failed.
    Program {
        /// Its command.
        command: String,
        /// What it said, and what to do.
        reason: String,
    },
    /// A file could not be read or written.
    File {
        /// Which.
        path: String,
        /// What the operating system said.
        reason: std::io::Error,
    },
    /// What a program printed is not what was expected of it.
    Unreadable {
        /// Which program's, and where.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such crate.
    NoCrate {
        /// What was named.
        package: String,
        /// Those there are.
        crates: Vec<String>,
    },
    /// No mutant is in these files.
    Nothing {
        /// The crate.
        package: String,
        /// The patterns that were given.
        files: Vec<String>,
    },
    /// The crate does not compile, and no mutant is the cause.
    Compile {
        /// What the compiler said.
        reason: String,
    },
}

impl fmt::Display for MutantsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MutantsError::Program { command, reason } => write!(f, "{command} failed: {}", reason.trim()),
            MutantsError::File { path, reason } => write!(f, "{path}: {reason}"),
            MutantsError::Unreadable { what, reason } => write!(f, "{what} cannot be understood: {reason}"),
            MutantsError::NoCrate { package, crates } => {
                write!(f, "there is no crate `{package}` in crates/; there are {}", crates.join(", "))
            }
            MutantsError::Nothing { package, files } => write!(
                f,
                "crate `{package}` has no mutant in {}; patterns are paths from the root, such as 'crates/{package}/src/**'",
                if files.is_empty() { "any file".to_owned() } else { files.join(", ") }
            ),
            MutantsError::Compile { reason } => {
                write!(f, "the crate does not compile, with no mutant to blame:\n{reason}")
            }
        }
    }
}

impl std::error::Error for MutantsError {}

/// What came of all mutants.
#[derive(Debug)]
pub struct Report {
    /// How many `cargo mutants` names.
    pub listed: usize,
    /// How many could not stand behind a switch.
    pub left_out: usize,
    /// How many made a test fail, or run for too long.
    pub noticed: usize,
    /// How many of them only the simulated clusters noticed.
    pub simulated: usize,
    /// Those that no test noticed: the name, and whether a test reaches the place at all.
    pub survivors: Vec<(String, bool)>,
    /// Tests that fail with no mutant on, and count for nothing.
    pub broken_tests: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, reached) in &self.survivors {
            writeln!(f, "{name}{}", if *reached { "" } else { " (no test comes here)" })?;
        }
        for test in &self.broken_tests {
            writeln!(f, "not played, since it fails with no mutant on: {test}")?;
        }
        let Report { listed, left_out, noticed, simulated, survivors, .. } = self;
        let survived = survivors.len();
        let unreached = survivors.iter().filter(|(_, reached)| !reached).count();
        write!(
            f,
            "mutants: {listed} listed, {left_out} left out (constants, and what does not compile), {noticed} noticed \
             ({simulated} by simulation alone), {survived} survived, of which no test reaches {unreached}"
        )
    }
}

/// Plays the mutants of the checkout at `root`, and tells of its progress on standard error.
///
/// # Errors
/// When `cargo mutants` is not installed, the crate does not compile, or a file cannot be read or written.
pub fn run(root: &Path, options: &Options) -> Result<Report, MutantsError> {
    let begun = Instant::now();
    let say = |what: &str| eprintln!("{:>5} s  {what}", begun.elapsed().as_secs());
    let crates = crates_of(root)?;
    if !crates.contains(&options.package) {
        return Err(MutantsError::NoCrate { package: options.package.clone(), crates });
    }
    let mutants: Vec<Mutant> = list::list(root, &options.package, &options.files)?;
    say(&format!("{} mutants; compiling all of them into one build", mutants.len()));
    let build = Build::make(root, options, &mutants, &say)?;
    let player = Player::new(&build, options)?;
    if options.seeds > 0 && !player.passes_seeds(None) {
        return Err(MutantsError::Program {
            command: format!("sim check --seeds 1..={}", options.seeds),
            reason: "a seed fails with no mutant on".to_owned(),
        });
    }
    say("running each test once, to learn which mutants it reaches");
    let reach = player.reach();
    say(&format!("playing {} mutants with {} tests", build.switched.len(), reach.tests()));
    let verdicts = player.play_all(&build.switched, &reach, &say);
    let mut survivors = Vec::new();
    let mut simulated = 0;
    for (&id, verdict) in build.switched.iter().zip(&verdicts) {
        match verdict {
            Verdict::Noticed => {}
            Verdict::Simulated => simulated += 1,
            Verdict::Survived => survivors.push((mutants[id].name.clone(), true)),
            Verdict::Unreached => survivors.push((mutants[id].name.clone(), false)),
        }
    }
    let switched = build.switched.len();
    Ok(Report {
        listed: mutants.len(),
        left_out: mutants.len() - switched,
        noticed: switched - survivors.len(),
        simulated,
        survivors,
        broken_tests: reach.broken,
    })
}

/// The folders of `crates/`, in order.
fn crates_of(root: &Path) -> Result<Vec<String>, MutantsError> {
    let folder = root.join("crates");
    let unreadable = |reason| MutantsError::File { path: folder.display().to_string(), reason };
    let entries = std::fs::read_dir(&folder).map_err(unreadable)?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}
