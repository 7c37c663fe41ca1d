//! A copy of the checkout with all mutants in it, and the programs of its tests.
//!
//! The compiler says which mutants do not fit: those are taken out, and it is asked again, three times or so.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;

use super::list::Mutant;
use super::switch::{self, Trace};
use super::{MutantsError, Options};

/// What the tests of a crate are played from.
pub(super) struct Build {
    /// The folder of the crate in the copy: its tests run there.
    pub(super) folder: PathBuf,
    /// The programs of its tests.
    pub(super) programs: Vec<PathBuf>,
    /// The simulator, when it is asked for.
    pub(super) simulator: Option<PathBuf>,
    /// The mutants that have a switch, in order.
    pub(super) switched: Vec<usize>,
}

#[derive(Deserialize)]
struct Line {
    reason: String,
    manifest_path: Option<PathBuf>,
    message: Option<Message>,
    executable: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    rendered: Option<String>,
    spans: Vec<Mark>,
}

/// Where an error is.
#[derive(Deserialize)]
struct Mark {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
    expansion: Option<Box<Expansion>>,
}

#[derive(Deserialize)]
struct Expansion {
    span: Mark,
}

impl Mark {
    /// Where a macro was called that led here.
    fn origin(&self) -> &Mark {
        self.expansion.as_ref().map_or(self, |expansion| expansion.span.origin())
    }
}

impl Build {
    /// Copies the checkout, puts the mutants in, and compiles until only those are left that fit.
    pub(super) fn make(
        root: &Path,
        options: &Options,
        mutants: &[Mutant],
        say: &dyn Fn(&str),
    ) -> Result<Build, MutantsError> {
        let package = options.package.as_str();
        let copy = root.join("target/mutants/tree");
        copy_checkout(root, &copy)?;
        let mut refused = BTreeSet::new();
        loop {
            let traces = write_switches(root, &copy, package, mutants, &refused)?;
            let output = cargo(&copy, &["check", "--quiet", "--message-format=json", "--package", package])?;
            if output.status.success() {
                let all: Vec<Trace> = traces.into_values().flatten().collect();
                let mut switched: Vec<usize> = switch::placed(&all).into_iter().collect();
                switched.sort_unstable();
                let programs = programs(&copy, package)?;
                let simulator = if options.seeds > 0 { Some(simulator(&copy)?) } else { None };
                let folder = copy.join("crates").join(package);
                return Ok(Build { folder, programs, simulator, switched });
            }
            let blamed = blamed(&output, &traces)?;
            say(&format!("{} do not compile and are left out", blamed.len()));
            refused.extend(blamed);
        }
    }
}

/// What git tracks or would track. A file that has not changed keeps its time, so that cargo need not build it again.
fn copy_checkout(root: &Path, copy: &Path) -> Result<(), MutantsError> {
    let tree = crate::tidy::Tree::read(root).map_err(|error| MutantsError::Program {
        command: "git ls-files".into(),
        reason: error.to_string(),
    })?;
    for path in tree.paths() {
        let from = root.join(path);
        let bytes = std::fs::read(&from).map_err(|reason| failed(&from, reason))?;
        write_if_new(&copy.join(path), &bytes)?;
    }
    Ok(())
}

fn failed(path: &Path, reason: std::io::Error) -> MutantsError {
    MutantsError::File { path: path.display().to_string(), reason }
}

fn write_if_new(path: &Path, bytes: &[u8]) -> Result<(), MutantsError> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|reason| failed(folder, reason))?;
    }
    std::fs::write(path, bytes).map_err(|reason| failed(path, reason))
}

/// Writes the files of the mutants with their switches, and the switch itself into the root of the crate.
fn write_switches(
    root: &Path,
    copy: &Path,
    package: &str,
    mutants: &[Mutant],
    refused: &BTreeSet<usize>,
) -> Result<BTreeMap<String, Vec<Trace>>, MutantsError> {
    let mut files: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let library = format!("crates/{package}/src/lib.rs");
    files.insert(&library, Vec::new());
    for (id, mutant) in mutants.iter().enumerate() {
        files.entry(&mutant.file).or_default().push(id);
    }
    let mut all = BTreeMap::new();
    for (file, ids) in files {
        let from = root.join(file);
        let text = std::fs::read_to_string(&from).map_err(|reason| failed(&from, reason))?;
        let wanted = ids.into_iter().filter(|id| !refused.contains(id));
        let (mut text, traces) = switch::switched(&text, mutants, wanted)
            .map_err(|error| MutantsError::Unreadable { what: file.to_owned(), reason: error.to_string() })?;
        if file == library {
            text.push_str(&switch::module(mutants.len()));
        }
        write_if_new(&copy.join(file), text.as_bytes())?;
        all.insert(file.to_owned(), traces);
    }
    Ok(all)
}

fn cargo(copy: &Path, arguments: &[&str]) -> Result<Output, MutantsError> {
    let target = copy.with_file_name("target");
    let mut command = Command::new("cargo");
    command.current_dir(copy).args(arguments).arg("--locked");
    command
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", "-Awarnings")
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.output().map_err(|error| MutantsError::Program {
        command: format!("cargo {}", arguments.join(" ")),
        reason: error.to_string(),
    })
}

fn lines(output: &Output) -> impl Iterator<Item = Line> {
    output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// The mutants that the compiler's errors are about.
fn blamed(output: &Output, traces: &BTreeMap<String, Vec<Trace>>) -> Result<BTreeSet<usize>, MutantsError> {
    let mut blamed = BTreeSet::new();
    let mut strange = String::new();
    for message in
        lines(output).filter(|line| line.reason == "compiler-message").filter_map(|line| line.message)
    {
        if message.level != "error" || message.spans.is_empty() {
            continue;
        }
        let marks: Vec<&Mark> = message.spans.iter().collect();
        let (primary, others): (Vec<&Mark>, Vec<&Mark>) = marks.into_iter().partition(|mark| mark.is_primary);
        let of = |marks: &[&Mark]| -> BTreeSet<usize> {
            marks.iter().flat_map(|mark| near(mark.origin(), traces)).collect()
        };
        let mut found = of(&primary);
        if found.is_empty() {
            found = of(&others);
        }
        if found.is_empty() {
            strange.push_str(message.rendered.as_deref().unwrap_or("an error without a text"));
        }
        blamed.extend(found);
    }
    if blamed.is_empty() {
        strange.push_str(&String::from_utf8_lossy(&output.stderr));
        return Err(MutantsError::Compile { reason: strange });
    }
    Ok(blamed)
}

/// The mutants whose text an error lies in; else all of the smallest switch around it; else of the smallest that it touches.
fn near(mark: &Mark, traces: &BTreeMap<String, Vec<Trace>>) -> BTreeSet<usize> {
    let Some(traces) = traces.get(&mark.file_name) else { return BTreeSet::new() };
    let error: Range<usize> = mark.byte_start..mark.byte_end;
    let around = |trace: &&Trace| trace.range.start <= error.start && error.end <= trace.range.end;
    let touching = |trace: &&Trace| trace.range.start < error.end && error.start < trace.range.end;
    let own: BTreeSet<usize> =
        traces.iter().filter(|trace| trace.own).filter(around).map(|trace| trace.id).collect();
    if !own.is_empty() {
        return own;
    }
    let smallest = |found: Vec<&Trace>| -> BTreeSet<usize> {
        let least = found.iter().map(|trace| trace.range.len()).min();
        found.iter().filter(|trace| Some(trace.range.len()) == least).map(|trace| trace.id).collect()
    };
    let whole = || traces.iter().filter(|trace| !trace.own);
    let found = smallest(whole().filter(around).collect());
    if found.is_empty() { smallest(whole().filter(touching).collect()) } else { found }
}

fn programs(copy: &Path, package: &str) -> Result<Vec<PathBuf>, MutantsError> {
    let output =
        cargo(copy, &["test", "--no-run", "--quiet", "--message-format=json", "--package", package])?;
    if !output.status.success() {
        let errors: HashMap<String, ()> =
            lines(&output).filter_map(|line| line.message?.rendered).map(|text| (text, ())).collect();
        let reason = errors.into_keys().collect::<Vec<_>>().join("\n");
        return Err(MutantsError::Compile {
            reason: format!("{reason}\n{}", String::from_utf8_lossy(&output.stderr)),
        });
    }
    let manifest = copy.join("crates").join(package).join("Cargo.toml");
    let ours = |line: &Line| {
        line.profile.as_ref().is_some_and(|profile| profile.test)
            && line.manifest_path.as_ref() == Some(&manifest)
    };
    Ok(lines(&output).filter(ours).filter_map(|line| line.executable).collect())
}

/// Builds the simulator with the mutants of the crate in it.
fn simulator(copy: &Path) -> Result<PathBuf, MutantsError> {
    let output = cargo(copy, &["build", "--quiet", "--profile", "proof", "--package", "sim"])?;
    if !output.status.success() {
        return Err(MutantsError::Compile { reason: String::from_utf8_lossy(&output.stderr).into_owned() });
    }
    Ok(copy.with_file_name("target").join("proof/sim"))
}
