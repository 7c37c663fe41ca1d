//! The named benchmarks: each is one command that starts its servers, measures, and stops them.
//!
//! | name | question |
//! |---|---|
//! | [`resp`] | does a Tontine node cost no more CPU per request than Redis, with and without pipelining? |
//! | [`pipeline`] | what does a pipelined request to three replicas cost beside one that is sent alone? |
//! | [`persistent`] | what does a request cost on the persistent engine with a million records? |
//! | [`cluster`] | what do three replicas cost, and which process pays? |
//! | [`handoff`] | how soon is a node equal that was away under load, and what do clients notice? |
//! | [`doors`] | what does a request to a read-only store cost beside one to a store in memory? |
//! | [`ports`] | what does a request cost by HTTP, with TLS, and as a user? |
//! | [`fetch`] | how fast do nodes fetch a table that is pushed, and what do clients notice meanwhile? |
//! | [`swap`] | how long does a swap take, and a node's start, by the size of what it serves? |
//! | [`source`] | how fast does a node fetch from a web server, S3 or HDFS, beside raw reading and writing? |
//! | [`balance`] | what does a cluster of unequal nodes carry, moved by hand or by the autopilot, beside its nodes alone? |
//! | [`elastic`] | do requests fail while a cluster grows and shrinks with a load that rises and falls? |
//! | [`feeds`] | which placement is right for a feed: one active node, by hash, or windows? |
//! | [`moves`] | what do clients notice while keys move, or a node joins, and how long does it take? |

pub mod balance;
pub mod cluster;
pub mod doors;
mod drawing;
pub mod elastic;
pub mod feeds;
pub mod fetch;
pub mod handoff;
pub mod moves;
mod operator;
pub mod persistent;
pub mod pipeline;
pub mod ports;
pub mod redis_benchmark;
pub mod resp;
mod script;
pub mod source;
pub mod swap;
mod table;
pub mod tools;
pub mod wrk;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::compare::{Contestant, MeasureError};
use crate::peers::TontineOptions;
use crate::processes::Context;
use crate::report::{
    Comparison, FORMAT, Outcomes, Percentiles, ProcessReport, RunReport, comparison_markdown,
    comparison_text, context_markdown, median, run_text, runs_markdown,
};

use redis_benchmark::RedisBenchmarkError;

/// Why a scenario did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// A server or the driver failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// `redis-benchmark` failed.
    #[error(transparent)]
    RedisBenchmark(#[from] RedisBenchmarkError),
    /// `wrk` failed.
    #[error(transparent)]
    Wrk(#[from] wrk::WrkError),
    /// A server beside the nodes could not be started.
    #[error(transparent)]
    Peer(#[from] crate::peers::PeerError),
    /// This program's own path is unknown, and none was given.
    #[error("cannot find the program to start as a node: {0}; give one with --tontine")]
    NoProgram(std::io::Error),
    /// The started nodes did not tell where they speak the native protocol.
    #[error("the nodes printed {found} native addresses, expected {expected}")]
    NoNativeAddress {
        /// As many as were found.
        found: usize,
        /// As many as there should be.
        expected: usize,
    },
    /// Something that was waited for did not come.
    #[error("the scenario cannot go on: {what}")]
    Stuck {
        /// What.
        what: &'static str,
    },
    /// The nodes did not answer a question about themselves.
    #[error("the nodes do not answer: {0}")]
    NotAsked(String),
    /// A node's processor time cannot be bounded.
    #[error(transparent)]
    Group(#[from] balance::GroupError),
    /// It was told to stop.
    #[error("the scenario was told to stop; what it started has ended")]
    Interrupted,
    /// A command of the program that a scenario needs failed.
    #[error("`{command}` failed: {reason}")]
    Command {
        /// The command.
        command: String,
        /// What it said.
        reason: String,
    },
}

/// How a Tontine is started for a scenario.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TontineArgs {
    /// Program to start as a node; this very one by default.
    #[arg(long)]
    pub tontine: Option<PathBuf>,
    /// Its arguments instead of the scenario's own. `{dir}` is replaced by a scratch directory, `{resp}`,
    /// `{native}` and `{http}` by free ports.
    #[arg(long, allow_hyphen_values = true)]
    pub tontine_args: Option<String>,
    /// Where scratch directories are made: the disk to measure.
    #[arg(long)]
    pub scratch: Option<PathBuf>,
}

impl TontineArgs {
    /// The options for `nodes` nodes, with the scenario's own arguments unless others were given.
    ///
    /// # Errors
    /// When the program is not given and cannot be found out.
    pub fn options(&self, arguments: &str, nodes: usize) -> Result<TontineOptions, ScenarioError> {
        let program = match &self.tontine {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(ScenarioError::NoProgram)?,
        };
        let arguments = self.tontine_args.clone().unwrap_or_else(|| arguments.to_owned());
        Ok(TontineOptions { program, arguments, nodes, parent: self.scratch.clone() })
    }
}

/// Where the started nodes speak the native protocol.
fn native_addresses(started: &Contestant, expected: usize) -> Result<Vec<String>, ScenarioError> {
    let found = started.peer.as_ref().map(|peer| peer.native.clone()).unwrap_or_default();
    if found.len() < expected {
        return Err(ScenarioError::NoNativeAddress { found: found.len(), expected });
    }
    Ok(found)
}

/// The medians of repeated runs, in words; `None` without runs.
fn medians_note(runs: &[RunReport]) -> Option<String> {
    let label = &runs.first()?.label;
    let over = |figure: &dyn Fn(&RunReport) -> f64| median(runs.iter().map(figure));
    let cpu_of = |run: &RunReport| run.server_cpu_us_per_operation.unwrap_or(f64::NAN);
    let cpu_best = runs.iter().map(cpu_of).fold(f64::INFINITY, f64::min);
    let mut note = format!(
        "{label}, median of {} run(s): {:.0} op/s, {:.2} µs of server CPU per operation (best run {cpu_best:.2})",
        runs.len(),
        over(&|run| run.throughput),
        over(&cpu_of),
    );
    for kind in runs[0].kinds.keys() {
        let at = |pick: fn(&Percentiles) -> f64| {
            over(&|run| run.kinds.get(kind).map_or(0.0, |of| pick(&of.latency_us)))
        };
        note += &format!(
            "; {} p50 {:.0}, p99 {:.0}, p99.9 {:.0} µs",
            kind.name(),
            at(|latency| latency.p50),
            at(|latency| latency.p99),
            at(|latency| latency.p999)
        );
    }
    Some(note + ".")
}

/// The CPU time of each process in the median of repeated runs, in words; `None` without runs.
fn components_note(runs: &[RunReport]) -> Option<String> {
    let first = runs.first()?;
    let of = |process: &ProcessReport| {
        let name = &process.name;
        let costs = runs.iter().flat_map(|run| run.processes.iter().chain([&run.client]));
        let cost = median(costs.filter(|one| one.name == *name).map(|one| one.cpu_us_per_operation));
        format!("{name} {cost:.2}")
    };
    let parts: Vec<String> = first.processes.iter().chain([&first.client]).map(of).collect();
    Some(format!("{}, CPU µs per operation by process: {}.", first.label, parts.join(", ")))
}

/// What a scenario found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioReport {
    /// The version of this format, shared with runs.
    pub format: u32,
    /// The scenario's name.
    pub name: String,
    /// What it asks.
    pub question: String,
    /// Where it was run.
    pub context: Context,
    /// Systems side by side.
    pub comparisons: Vec<Comparison>,
    /// Runs that stand for themselves.
    pub runs: Vec<RunReport>,
    /// The runs behind the comparisons.
    pub compared_runs: Vec<RunReport>,
    /// What else was found out.
    pub notes: Vec<String>,
    /// Figures of the scenario's own, each with its unit in its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
    /// Writes of unknown outcome that are to be expected: those under way at nodes that the scenario kills.
    #[serde(default)]
    pub unknown_outcomes_max: u64,
}

impl ScenarioReport {
    fn new(name: &str, question: &str) -> Self {
        ScenarioReport {
            format: FORMAT,
            name: name.to_owned(),
            question: question.to_owned(),
            context: Context::here(),
            comparisons: Vec::new(),
            runs: Vec::new(),
            compared_runs: Vec::new(),
            notes: Vec::new(),
            figures: BTreeMap::new(),
            unknown_outcomes_max: 0,
        }
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut parts = vec![format!("{}: {}\n", self.name, self.question)];
        parts.extend(self.comparisons.iter().map(comparison_text));
        parts.extend(self.runs.iter().map(run_text));
        parts.extend(self.notes.iter().map(|note| format!("{note}\n")));
        parts.join("\n")
    }

    /// Whether every operation of every run went well, but for what was to be expected.
    pub fn clean(&self) -> bool {
        let runs = || self.runs.iter().chain(&self.compared_runs);
        let unknown: u64 = runs().flat_map(|run| run.outcomes.indeterminate.values()).sum();
        let known = |run: &RunReport| Outcomes { indeterminate: BTreeMap::new(), ..run.outcomes.clone() };
        let none_failed = self.figures.get("requests_failed").is_none_or(|failed| *failed == 0.0);
        none_failed && unknown <= self.unknown_outcomes_max && runs().all(|run| known(run).clean())
    }

    /// Keeps the pairs behind a comparison.
    fn compare(&mut self, title: String, pairs: Vec<(RunReport, RunReport)>) {
        self.comparisons.push(Comparison::of(title, &pairs));
        self.compared_runs.extend(pairs.into_iter().flat_map(|(a, b)| [a, b]));
    }

    /// Keeps repeated runs of one system, and notes their medians.
    fn repeat(&mut self, runs: Vec<RunReport>) {
        self.notes.extend(medians_note(&runs));
        self.runs.extend(runs);
    }

    /// For `docs/benchmarks`.
    pub fn markdown(&self) -> String {
        let mut parts = vec![format!("## {}\n", self.name), format!("{}\n", self.question)];
        parts.push(context_markdown(&self.context));
        parts.extend(self.comparisons.iter().map(comparison_markdown));
        if !self.runs.is_empty() {
            parts.push(runs_markdown(&self.runs));
        }
        parts.extend(self.notes.iter().map(|note| format!("{note}\n")));
        parts.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples;

    #[test]
    fn repeated_runs_are_summed_up_by_their_medians() {
        let mut report = ScenarioReport::new("test", "what?");
        report.repeat(vec![
            samples::run("ours", 20, 300),
            samples::run("ours", 40, 500),
            samples::run("ours", 30, 400),
        ]);
        assert_eq!(
            report.notes,
            [
                "ours, median of 3 run(s): 2 op/s, 15000.00 µs of server CPU per operation (best run 10000.00); \
              read p50 100, p99 400, p99.9 400 µs."
            ]
        );
        let pair = (samples::run("a", 1, 300), samples::run("b", 1, 300));
        report.compare("both".to_owned(), vec![pair]);
        assert_eq!((report.runs.len(), report.compared_runs.len(), report.comparisons.len()), (3, 2, 1));
        assert!(report.clean());
        report.compared_runs[1].outcomes.corrupt = 1;
        assert!(!report.clean(), "a wrong answer in a compared run counts");
        report.compared_runs[1].outcomes.corrupt = 0;
        report.runs[0].outcomes.indeterminate.insert("outcome unknown".to_owned(), 3);
        assert!(!report.clean(), "doubt counts");
        report.unknown_outcomes_max = 3;
        assert!(report.clean(), "but where it was to be expected");
        let markdown = report.markdown();
        assert!(markdown.contains("## test") && markdown.contains("**both**"), "{markdown}");
    }
}
