//! Two systems under the same load, pair by pair.
//!
//! Runs alternate (A B A B …), so that whatever else the machine does falls on both; a ratio is taken within
//! each pair, and the median over the pairs is reported beside the extremes.

use serde::{Deserialize, Serialize};

use super::{Percentiles, RunReport};
use crate::workload::OperationKind;

/// One figure of both systems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// What it is, with its unit.
    pub name: String,
    /// Whether less is better.
    pub less_is_better: bool,
    /// Median over A's runs.
    pub a: f64,
    /// Median over B's runs.
    pub b: f64,
    /// Median over the pairs of A's figure divided by B's.
    pub ratio: f64,
    /// The least ratio of any pair.
    pub ratio_min: f64,
    /// The greatest ratio of any pair.
    pub ratio_max: f64,
}

/// A against B.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What was compared.
    pub title: String,
    /// Name of the first system.
    pub a: String,
    /// Name of the second.
    pub b: String,
    /// How many pairs of runs.
    pub pairs: usize,
    /// The figures.
    pub metrics: Vec<Metric>,
    /// What must be known before believing them: errors, missing records, dead processes, overload.
    pub warnings: Vec<String>,
}

impl Comparison {
    /// Compares pairs of runs (A's, B's).
    ///
    /// # Panics
    /// Without any pair there is nothing to compare.
    pub fn of(title: impl Into<String>, pairs: &[(RunReport, RunReport)]) -> Self {
        let (first_a, first_b) = pairs.first().expect("a comparison needs a pair of runs");
        let metric = |name: String, less_is_better, figure: &dyn Fn(&RunReport) -> Option<f64>| {
            let figures: Option<Vec<(f64, f64)>> =
                pairs.iter().map(|(a, b)| Some((figure(a)?, figure(b)?))).collect();
            Metric::of(name, less_is_better, &figures?)
        };
        let mut metrics = vec![
            metric("throughput, op/s".to_owned(), false, &|run| Some(run.throughput)),
            metric("server CPU, µs/op".to_owned(), true, &|run| run.server_cpu_us_per_operation),
        ];
        let cpu = pairs
            .iter()
            .filter_map(|(a, b)| Some((a.server_cpu_us_per_operation?, b.server_cpu_us_per_operation?)));
        metrics.push(Metric::best("server CPU, best run, µs/op".to_owned(), &cpu.collect::<Vec<_>>()));
        for kind in OperationKind::ALL {
            let figure = |pick: fn(&Percentiles) -> f64| {
                move |run: &RunReport| run.kinds.get(&kind).map(|of| pick(&of.latency_us))
            };
            let name = kind.name();
            metrics.push(metric(format!("{name} p50, µs"), true, &figure(|latency| latency.p50)));
            metrics.push(metric(format!("{name} p99, µs"), true, &figure(|latency| latency.p99)));
            metrics.push(metric(format!("{name} p99.9, µs"), true, &figure(|latency| latency.p999)));
        }
        let memory =
            |run: &RunReport| Some(run.processes.iter().map(|used| used.rss_bytes as f64).sum::<f64>());
        metrics
            .push(metric("server memory, MiB".to_owned(), true, &|run| memory(run).map(|b| b / 1_048_576.0)));
        let runs = pairs.iter().flat_map(|(a, b)| [a, b]);
        Comparison {
            title: title.into(),
            a: first_a.label.clone(),
            b: first_b.label.clone(),
            pairs: pairs.len(),
            metrics: metrics.into_iter().flatten().collect(),
            warnings: runs.flat_map(warnings).collect(),
        }
    }
}

impl Metric {
    /// Medians and ratios of paired figures; `None` when there are none or they are all zero.
    pub fn of(name: String, less_is_better: bool, figures: &[(f64, f64)]) -> Option<Self> {
        if figures.is_empty() || figures.iter().any(|(a, b)| *a <= 0.0 || *b <= 0.0) {
            return None;
        }
        let ratios: Vec<f64> = figures.iter().map(|(a, b)| a / b).collect();
        Some(Metric {
            name,
            less_is_better,
            a: median(figures.iter().map(|(a, _)| *a)),
            b: median(figures.iter().map(|(_, b)| *b)),
            ratio: median(ratios.iter().copied()),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        })
    }
}

impl Metric {
    /// The least figure of either side over all pairs: noise only ever adds to a cost, so the best run is the one
    /// that the rest of the machine disturbed least. `None` as for [`Metric::of`].
    pub fn best(name: String, figures: &[(f64, f64)]) -> Option<Self> {
        let least = |side: fn(&(f64, f64)) -> f64| figures.iter().map(side).fold(f64::INFINITY, f64::min);
        let best = (least(|(a, _)| *a), least(|(_, b)| *b));
        if figures.is_empty() { None } else { Metric::of(name, true, &[best]) }
    }
}

/// The middle of the figures; of an even number, the mean of the two middle ones.
pub fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(middle)) {
        (_, None) => 0.0,
        (0, Some(upper)) => f64::midpoint(sorted[middle - 1], *upper),
        (_, Some(only)) => *only,
    }
}

/// Share of the machine that other work may take before a run's figures are doubtful. A quiet machine takes 0.01.
const OTHER_CORES_MAX: f64 = 0.15;

/// What makes a run's figures doubtful.
pub(crate) fn warnings(run: &RunReport) -> Vec<String> {
    let mut found = Vec::new();
    let mut say = |text: String| found.push(format!("{}: {text}", run.label));
    let outcomes = &run.outcomes;
    if outcomes.corrupt > 0 {
        say(format!("{} reads returned a value that was never written", outcomes.corrupt));
    }
    if outcomes.missing > 0 {
        say(format!("{} reads found no record", outcomes.missing));
    }
    for (reason, count) in &outcomes.failed {
        say(format!("{count} operations failed: {reason}"));
    }
    for (reason, count) in &outcomes.indeterminate {
        say(format!("{count} writes are in doubt: {reason}"));
    }
    if outcomes.unstarted > 0 {
        say(format!(
            "{} operations were due and never started: the rate was not reached, latencies are better than the truth",
            outcomes.unstarted
        ));
    }
    // Servers that nobody watched count as other work, and say nothing.
    let is_watched = !run.processes.is_empty();
    if is_watched && run.other_cores > OTHER_CORES_MAX * run.context.cores as f64 {
        say(format!(
            "other work on this machine took {:.2} of its {} cores: the figures are worse than on a quiet one",
            run.other_cores, run.context.cores
        ));
    }
    for process in run.processes.iter().filter(|process| !process.alive) {
        say(format!("process {} ({}) was not there all the time", process.name, process.pid));
    }
    if run.context.debug_build {
        say("the benchmark was built without optimisation".to_owned());
    }
    if run.elapsed_s < 1.0 {
        say(format!("only {:.2} s were measured; CPU time is accounted in steps of 10 ms", run.elapsed_s));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples;

    #[test]
    fn ratios_are_taken_within_pairs_and_their_median_counts() {
        let pairs = [
            (samples::run("ours", 20, 300), samples::run("theirs", 40, 300)),
            (samples::run("ours", 20, 300), samples::run("theirs", 20, 300)),
            (samples::run("ours", 40, 300), samples::run("theirs", 50, 300)),
        ];
        let comparison = Comparison::of("reads", &pairs);
        let cpu = comparison.metrics.iter().find(|metric| metric.name.starts_with("server CPU")).unwrap();
        assert!((cpu.ratio - 0.8).abs() < 1e-9);
        assert!((cpu.ratio_min - 0.5).abs() < 1e-9 && (cpu.ratio_max - 1.0).abs() < 1e-9);
        assert!((cpu.a - 10_000.0).abs() < 1e-6 && (cpu.b - 20_000.0).abs() < 1e-6);
        let best = comparison.metrics.iter().find(|metric| metric.name.contains("best run")).unwrap();
        assert!((best.a - 10_000.0).abs() < 1e-6 && (best.b - 10_000.0).abs() < 1e-6);
        assert!(comparison.metrics.iter().all(|metric| !metric.name.starts_with("update")));
        assert!(comparison.warnings.is_empty(), "{:?}", comparison.warnings);
    }

    #[test]
    fn medians_of_even_and_odd_numbers() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }

    #[test]
    fn doubtful_runs_are_named() {
        let mut run = samples::run("ours", 20, 300);
        run.outcomes.corrupt = 1;
        run.outcomes.unstarted = 7;
        run.processes[0].alive = false;
        let comparison = Comparison::of("reads", &[(run, samples::run("theirs", 1, 300))]);
        assert_eq!(comparison.warnings.len(), 3, "{:?}", comparison.warnings);
        assert!(comparison.warnings.iter().all(|warning| warning.starts_with("ours: ")));
    }
}
