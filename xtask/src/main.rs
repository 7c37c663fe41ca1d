//! `cargo run -p xtask -- tidy`: prints every offence. `cargo run -p xtask -- mutants`: prints every mutant that no test notices.
//!
//! Both end with 0 (none), 1 (some) or 2 (could not look).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use xtask::mutants;
use xtask::tidy::{self, Tree};

const USAGE: &str = "usage: cargo run -p xtask -- tidy [ROOT]
       cargo run -p xtask -- mutants PACKAGE [FILES...] [--skip WORD] [--seconds N] [--budget N] [--seeds N] [--threads N]

  tidy      holds the tree against ARCHITECTURE.md, docs/glossary.md, docs/design/dependencies.md and the style rules,
            and counts its lines of Rust
  ROOT      checkout to look at; the workspace that this program was built from by default

  mutants   changes one expression at a time, and prints each change that no test of the crate notices;
            tests of other crates are not played
  PACKAGE   a crate of crates/
  FILES     patterns of its files, such as 'crates/storage/src/log/**'; all of them by default
  --skip    leaves out tests whose names contain this; may be given again
  --seconds leaves out tests that take longer; 20 by default
  --budget  seconds of tests that each mutant is played with, the quickest first; 30 by default
  --seeds   plays those that no test notices in N simulated clusters, too; 0 by default
  --threads mutants that are played at once; one for each processor by default";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy(tidy::workspace_root()),
        ["tidy", root] => tidy(PathBuf::from(root)),
        ["help" | "--help" | "-h"] | ["mutants", "help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        ["mutants", rest @ ..] if !rest.is_empty() => match options(rest) {
            Ok(options) => mutants(&options),
            Err(reason) => {
                eprintln!("{reason}\n\n{USAGE}");
                ExitCode::from(2)
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn tidy(root: PathBuf) -> ExitCode {
    let tree = match Tree::read(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy cannot look at {}: {error}", root.display());
            return ExitCode::from(2);
        }
    };
    let offences = tidy::check(&tree);
    for offence in &offences {
        println!("{offence}\n");
    }
    println!("{}", tidy::lines::table(&tree));
    println!("tidy: {} files, {} rules, {} offences", tree.len(), tidy::RULES.len(), offences.len());
    if offences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn options(arguments: &[&str]) -> Result<mutants::Options, String> {
    let mut options = mutants::Options {
        package: String::new(),
        files: Vec::new(),
        skipped: Vec::new(),
        test_time_max: Duration::from_secs(20),
        mutant_time_max: Duration::from_secs(30),
        seeds: 0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut left = arguments.iter();
    while let Some(&argument) = left.next() {
        let mut value = || left.next().copied().ok_or(format!("{argument} needs a value"));
        let number = |text: &str| {
            text.parse::<u64>()
                .ok()
                .filter(|n| *n > 0)
                .ok_or(format!("{argument} {text}: not a number above 0"))
        };
        match argument {
            "--skip" => options.skipped.push(value()?.to_owned()),
            "--seconds" => options.test_time_max = Duration::from_secs(number(value()?)?),
            "--budget" => options.mutant_time_max = Duration::from_secs(number(value()?)?),
            "--seeds" => {
                let text = value()?;
                options.seeds = text.parse().map_err(|_| format!("--seeds {text}: not a number"))?;
            }
            "--threads" => options.threads = usize::try_from(number(value()?)?).unwrap_or(usize::MAX),
            unknown if unknown.starts_with('-') => return Err(format!("unknown option {unknown}")),
            package if options.package.is_empty() => options.package = package.to_owned(),
            files => options.files.push(files.to_owned()),
        }
    }
    if options.package.is_empty() {
        return Err("mutants needs the name of a crate".to_owned());
    }
    Ok(options)
}

fn mutants(options: &mutants::Options) -> ExitCode {
    match mutants::run(&tidy::workspace_root(), options) {
        Ok(report) => {
            println!("{report}");
            if report.survivors.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}
