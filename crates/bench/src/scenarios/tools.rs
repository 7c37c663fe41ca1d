//! Load generators of others, unmodified: what one run of them found, and how pairs of runs are compared.

use std::io;
use std::process::{Command, Output};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::processes::{Snapshot, Watched};
use crate::report::{Comparison, Metric};

use super::ScenarioError;

/// What a generator printed, and what the server used meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolRun {
    /// Requests per second.
    pub throughput: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// CPU of the server in microseconds for each request.
    pub server_cpu_us_per_operation: f64,
}

/// Runs a command to its end, and says what the watched processes used meanwhile.
pub(super) fn measured(command: &mut Command, watched: &[Watched]) -> io::Result<(Output, Duration)> {
    let before = Snapshot::take(watched);
    let output = command.output()?;
    let usage = before.until(&Snapshot::take(watched));
    Ok((output, usage.processes.iter().map(|used| used.user + used.system).sum()))
}

/// One side of a comparison.
pub(super) struct Side<'a> {
    /// What reports call it.
    pub(super) label: &'a str,
    /// One run.
    pub(super) run: &'a dyn Fn() -> Result<ToolRun, ScenarioError>,
}

/// Runs both, alternating.
pub(super) fn alternate(
    title: &str,
    a: &Side<'_>,
    b: &Side<'_>,
    pairs: usize,
) -> Result<Comparison, ScenarioError> {
    let pairs =
        (0..pairs).map(|_| Ok(((a.run)()?, (b.run)()?))).collect::<Result<Vec<_>, ScenarioError>>()?;
    Ok(Comparison {
        title: title.to_owned(),
        a: a.label.to_owned(),
        b: b.label.to_owned(),
        pairs: pairs.len(),
        metrics: metrics(&pairs),
        warnings: Vec::new(),
    })
}

/// The figures of paired runs, as a comparison's metrics.
pub(super) fn metrics(pairs: &[(ToolRun, ToolRun)]) -> Vec<Metric> {
    type Figure = fn(&ToolRun) -> f64;
    let figures: [(&str, bool, Figure); 4] = [
        ("throughput, op/s", false, |run| run.throughput),
        ("server CPU, µs/op", true, |run| run.server_cpu_us_per_operation),
        ("p50, µs", true, |run| run.p50_us),
        ("p99, µs", true, |run| run.p99_us),
    ];
    let metric = |(name, less_is_better, figure): (&str, bool, Figure)| {
        let paired: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (figure(a), figure(b))).collect();
        Metric::of(name.to_owned(), less_is_better, &paired)
    };
    let cpu = pairs.iter().map(|(a, b)| (a.server_cpu_us_per_operation, b.server_cpu_us_per_operation));
    let best = Metric::best("server CPU, best run, µs/op".to_owned(), &cpu.collect::<Vec<_>>());
    figures.into_iter().filter_map(metric).chain(best).collect()
}
