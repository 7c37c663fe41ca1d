//! Runs every target on its corpus and on mutations of it, for a bounded time, on any compiler.
//!
//! ```text
//! mutations [--seconds N] [--target NAME] [--seed S] [--only INPUT-NUMBER]
//! ```
//!
//! The seconds are for all targets together. Input number `i` of a target depends on the seed and on `i` alone, so a
//! finding is replayed by the command that is printed with it.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tontine_fuzz::mutate::{Dice, mutate};
use tontine_fuzz::{TARGETS, Target};

struct Options {
    seconds: f64,
    target: Option<String>,
    seed: u64,
    only: Option<u64>,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!(
                "{message}\nusage: mutations [--seconds N] [--target NAME] [--seed S] [--only INPUT-NUMBER]"
            );
            return ExitCode::from(2);
        }
    };
    let chosen: Vec<&Target> = TARGETS
        .iter()
        .filter(|target| options.target.as_deref().is_none_or(|name| name == target.name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("there is no such target; the targets are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let each = Duration::from_secs_f64(options.seconds / chosen.len() as f64);
    let mut sound = true;
    for target in chosen {
        sound &= run(target, each, &options);
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { seconds: 20.0, target: None, seed: 1, only: None };
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let wrong = |_| format!("{word} cannot be {value}");
        match word.as_str() {
            "--seconds" => {
                options.seconds = value
                    .parse()
                    .ok()
                    .filter(|seconds| (0.0..1e6).contains(seconds))
                    .ok_or_else(|| format!("{word} cannot be {value}"))?;
            }
            "--target" => options.target = Some(value),
            "--seed" => options.seed = value.parse().map_err(wrong)?,
            "--only" => options.only = Some(value.parse().map_err(wrong)?),
            _ => return Err(format!("there is no option {word}")),
        }
    }
    Ok(options)
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()))
        .map(|entry| entry.expect("a folder can be listed").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} holds no inputs to begin with", folder.display());
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus can be read")).collect()
}

/// Numbered inputs: first the corpus as it is, then its mutations.
fn input(number: u64, seeds: &[Vec<u8>], target: &Target, seed: u64) -> Vec<u8> {
    match usize::try_from(number).ok().and_then(|number| seeds.get(number)) {
        Some(given) => given.clone(),
        None => {
            let mut dice = Dice::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(number));
            mutate(&mut dice, seeds, target.input_bytes_max)
        }
    }
}

fn run(target: &Target, time: Duration, options: &Options) -> bool {
    let seeds = corpus(target);
    let began = Instant::now();
    let mut number = options.only.unwrap_or(0);
    loop {
        let input = input(number, &seeds, target, options.seed);
        let outcome = std::panic::catch_unwind(|| (target.check)(&input));
        if outcome.is_err() {
            eprintln!(
                "{}: input {number} of seed {} breaks it ({} bytes: {}); replay with\n  cargo run --profile proof \
                 --manifest-path fuzz/Cargo.toml -- --target {} --seed {} --only {number}",
                target.name,
                options.seed,
                input.len(),
                input.escape_ascii(),
                target.name,
                options.seed
            );
            return false;
        }
        number += 1;
        // The corpus itself is never cut short.
        if options.only.is_some() || (number >= seeds.len() as u64 && began.elapsed() >= time) {
            break;
        }
    }
    println!("{:<13} {:>4} of the corpus, {number:>9} inputs, nothing found", target.name, seeds.len());
    true
}
