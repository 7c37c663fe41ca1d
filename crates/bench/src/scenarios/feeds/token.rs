//! What it costs to find a key's token: by hash, and in windows.

use std::hint::black_box;
use std::time::Instant;

use model::{KeyPattern, Placement, Windows};

use super::super::ScenarioReport;
use super::LINES;

/// Keys whose tokens are found: more than a cache of the first level has.
const KEYS: u64 = 4_096;
/// How often all of them.
const TIMES: u64 = 50;
/// Runs, of which the fastest counts: the rest is noise.
const RUNS: usize = 9;
/// Buckets of a cluster.
const BUCKETS: u32 = 4_096;

/// Measures each placement, and tells nanoseconds.
pub(super) fn run(report: &mut ScenarioReport) {
    let keys: Vec<Vec<u8>> =
        (0..KEYS).map(|number| format!("feed:g{}:{}", number % 1_000, number * 977).into_bytes()).collect();
    for line in LINES {
        let windows = |theta| {
            let key = KeyPattern::new("feed:{group}:{sequence}").expect("it is a pattern");
            Placement::Windows(Windows { theta, key, buckets: BUCKETS, unknown: model::Unknown::new() })
        };
        let placement = line.theta.map_or(Placement::Hash, windows);
        let ns = fastest(&placement, &keys);
        report.figures.insert(format!("{}/token_ns", line.name), ns);
        let theta = line.theta.map_or(String::new(), |theta| format!(" (theta {theta})"));
        report.notes.push(format!("{}{theta}: {ns:.1} ns a token", line.name));
    }
    report.notes.push(format!("{KEYS} keys such as feed:g417:407409, the fastest of {RUNS} runs."));
}

fn fastest(placement: &Placement, keys: &[Vec<u8>]) -> f64 {
    let run = || {
        let began = Instant::now();
        for _ in 0..TIMES {
            for key in keys {
                black_box(black_box(placement).token(black_box(key)));
            }
        }
        began.elapsed().as_nanos() as f64 / (TIMES * KEYS) as f64
    };
    (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_placement_has_a_figure() {
        let mut report = ScenarioReport::new("feeds", "what?");
        run(&mut report);
        for line in LINES {
            let ns = report.figures[&format!("{}/token_ns", line.name)];
            assert!(ns > 0.0 && ns < 1e6, "{ns}");
        }
    }
}
