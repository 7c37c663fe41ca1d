//! `sim balance`: days of load for many seeds, and what they have in common.

use std::process::ExitCode;
use std::time::Instant;

use crate::balance::{Day, Weather, play_all};

/// Plays the seeds and prints what came of them.
pub fn balance(seeds: &[u64], threads: usize, is_constant: bool, verbose: bool) -> ExitCode {
    let weather = |seed| match is_constant {
        true => Weather { shifts: None, succession: None, ..Weather::of_seed(seed) },
        false => Weather::of_seed(seed),
    };
    let began = Instant::now();
    let days = play_all(seeds, threads, weather);
    let mut failed = 0;
    for (seed, day) in seeds.iter().zip(&days) {
        let broken = broken(day, is_constant);
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
    tell(&days);
    println!("{} days, {failed} failed, {:.1} s", days.len(), began.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plans of one shift, at most.
const PLANS_MAX: u64 = 3;
/// Plans of a day on which nothing changes, at most: the first ones, and what noise made of a small rest.
const PLANS_CONSTANT_MAX: u64 = 6;

/// What must not happen, if it did.
pub fn broken(day: &Day, is_constant: bool) -> Option<String> {
    if day.returns > 0 {
        return Some(format!("{} copies returned within an hour", day.returns));
    }
    if day.flips > 0 {
        return Some(format!("{} lists got back within ten minutes the order that they had", day.flips));
    }
    let most = if is_constant { PLANS_CONSTANT_MAX } else { PLANS_MAX };
    (day.most() > most).then(|| format!("{} plans in one shift, more than {most}", day.most()))
}

fn tell(days: &[Day]) {
    let sum = |of: fn(&Day) -> u64| days.iter().map(of).sum::<u64>();
    let shifts = days.iter().map(|day| day.plans.len() as u64).sum::<u64>().max(1);
    let mut ends: Vec<f64> =
        days.iter().flat_map(|day| day.imbalance.iter().map(|(_, after)| *after)).collect();
    let mut begins: Vec<f64> =
        days.iter().flat_map(|day| day.imbalance.iter().map(|(before, _)| *before)).collect();
    ends.sort_by(f64::total_cmp);
    begins.sort_by(f64::total_cmp);
    let at =
        |sorted: &[f64], permille: usize| sorted.get(sorted.len() * permille / 1000).copied().unwrap_or(1.0);
    println!(
        "{:.2} plans, {:.1} reorders and {:.2} copies a shift; {} returns, {} flips; largest over mean {:.2} (p90 {:.2}) when a \
         shift begins, {:.2} (p90 {:.2}) when it ends",
        sum(|day| day.plans.iter().sum()) as f64 / shifts as f64,
        sum(|day| day.reorders) as f64 / shifts as f64,
        sum(|day| day.copies) as f64 / shifts as f64,
        sum(|day| day.returns),
        sum(|day| day.flips),
        at(&begins, 500),
        at(&begins, 900),
        at(&ends, 500),
        at(&ends, 900),
    );
}
