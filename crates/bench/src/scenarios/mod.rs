//! The named benchmarks: each is one command that starts its servers, measures, and stops them.
//!
//! | name | question |
//! |---|---|
//! | [`resp`] | does a Tontine node cost no more CPU per request than Redis, with and without pipelining? |
//! | [`persistent`] | what does a request cost on the persistent engine with a million records? |
//! | [`cluster`] | what do three replicas cost, and which process pays? |

pub mod cluster;
pub mod persistent;
pub mod redis_benchmark;
pub mod resp;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::compare::{Contestant, MeasureError};
use crate::peers::TontineOptions;
use crate::processes::Context;
use crate::report::{
    Comparison, FORMAT, RunReport, comparison_markdown, comparison_text, context_markdown, run_text,
    runs_markdown,
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
    /// Every single run.
    pub runs: Vec<RunReport>,
    /// What else was found out.
    pub notes: Vec<String>,
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
            notes: Vec::new(),
        }
    }

    /// For a terminal: comparisons where there are any, else the runs.
    pub fn text(&self) -> String {
        let mut parts = vec![format!("{}: {}\n", self.name, self.question)];
        parts.extend(self.comparisons.iter().map(comparison_text));
        if self.comparisons.is_empty() {
            parts.extend(self.runs.iter().map(run_text));
        }
        parts.extend(self.notes.iter().map(|note| format!("{note}\n")));
        parts.join("\n")
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
