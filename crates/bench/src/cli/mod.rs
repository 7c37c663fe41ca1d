//! The command line of benchmarks: `tontine bench load|run|compare|resp|pipeline|persistent|cluster|handoff|moves|balance|doors|elastic|feeds|fetch|swap`. The binary is `cli`'s.
//!
//! [`run`] blocks, and starts client threads with their own runtimes: call it outside of any async runtime.

mod address;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::compare::{Contestant, MeasureError, alternate};
use crate::driver::{DriveError, DriverOptions, Phase};
use crate::peers::{PeerOptions, Persistence, RedisOptions};
use crate::processes::Watched;
use crate::reach::Reach;
use crate::report::{
    Comparison, RunReport, comparison_markdown, comparison_text, context_markdown, run_text, runs_markdown,
};
use crate::scenarios::balance::BalanceScenario;
use crate::scenarios::cluster::ClusterScenario;
use crate::scenarios::doors::DoorsScenario;
use crate::scenarios::elastic::ElasticScenario;
use crate::scenarios::feeds::FeedsScenario;
use crate::scenarios::fetch::FetchScenario;
use crate::scenarios::handoff::HandoffScenario;
use crate::scenarios::moves::MovesScenario;
use crate::scenarios::persistent::PersistentScenario;
use crate::scenarios::pipeline::PipelineScenario;
use crate::scenarios::ports::PortsScenario;
use crate::scenarios::resp::RespScenario;
use crate::scenarios::source::SourceScenario;
use crate::scenarios::swap::SwapScenario;
use crate::scenarios::{ScenarioError, ScenarioReport, TontineArgs};
use crate::target::Target;
use crate::target::native::NativeTarget;
use crate::target::resp::RespTarget;
use crate::workload::WorkloadOptions;

pub use address::{Address, BadAddress, System};

/// The store that a connection to a node's Redis port begins in.
const DEFAULT_STORE: &str = "default";

/// What to do.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Load the records of a workload.
    Load(RunArgs),
    /// Run a workload on records that were loaded before.
    Run(RunArgs),
    /// Compare two systems: run one workload on each, in turn.
    Compare(CompareArgs),
    /// Compare one node over RESP with Redis: GET and SET, with and without pipelining.
    Resp(ScenarioArgs<RespScenario>),
    /// Compare three nodes over RESP, N=3 R=2 W=2, with Redis and a replica: GET and SET by pipeline depth.
    Pipeline(ScenarioArgs<PipelineScenario>),
    /// Measure one node with the persistent engine and a million records, with the native client.
    Persistent(ScenarioArgs<PersistentScenario>),
    /// Measure three nodes, N=3 R=2 W=2, with the native client.
    Cluster(ScenarioArgs<ClusterScenario>),
    /// Kill one of four nodes under load and restart it: what clients notice, and how long it takes to catch up.
    Handoff(ScenarioArgs<HandoffScenario>),
    /// Move a share of the keys from one of four nodes to another under load: what clients notice, and how long it takes.
    Moves(ScenarioArgs<MovesScenario>),
    /// Bound nodes to unequal shares of the machine, load them, and let partitions move by hand or by the autopilot.
    Balance(ScenarioArgs<BalanceScenario>),
    /// Compare a read-only store with one in memory, both of one node: GET and MGET over RESP.
    Doors(ScenarioArgs<DoorsScenario>),
    /// Compare HTTP with the Redis port and nginx, TLS with plain connections, and users with none, by one node.
    Ports(ScenarioArgs<PortsScenario>),
    /// Load a running cluster by a schedule, and say whether requests fail while it grows and shrinks.
    Elastic(ScenarioArgs<ElasticScenario>),
    /// Read and append feeds by the paper's placement, by hash and in windows: experiments of ZStore, and what theta does.
    Feeds(ScenarioArgs<FeedsScenario>),
    /// Push a table to a read-only store under load and without, and say how fast it comes and what clients notice.
    Fetch(ScenarioArgs<FetchScenario>),
    /// Swap artifacts of different sizes on one node, and start it again: how long each takes.
    Swap(ScenarioArgs<SwapScenario>),
    /// Have a node fetch tables from a web server, S3 or HDFS, beside raw reading and writing of the same bytes.
    Source(ScenarioArgs<SourceScenario>),
}

/// Where results go beside the terminal.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OutputArgs {
    /// Also write the whole report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Also write tables in Markdown to this file.
    #[arg(long, value_name = "FILE")]
    pub markdown_file: Option<PathBuf>,
}

/// A scenario and where its results go.
#[derive(Clone, Debug, clap::Args)]
pub struct ScenarioArgs<S: clap::Args> {
    /// The scenario.
    #[command(flatten)]
    pub scenario: S,
    /// Results.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One target, one workload.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples, on the cluster of `tontine dev`:
  tontine bench load --records 100000                      first, records to work on
  tontine bench run --workload a --records 100000 -d 10    as fast as possible, for 10 seconds
  tontine bench run --records 100000 --rate 5000           5000 operations a second, whether or not it keeps up
  tontine bench run --records 100000 -t resp://127.0.0.1:7501 -P 16    through the Redis door, pipelined

Exits with 1 if an operation failed, found nothing, or was not started in time.")]
pub struct RunArgs {
    /// System to measure: `resp://HOST:PORT` of Redis or of a node's Redis port, or `native://HOST:PORT[,HOST:PORT…]` of
    /// a Tontine cluster. By default, the cluster that --connect names.
    #[arg(long, short = 't', value_name = "ADDRESS")]
    pub target: Option<Address>,
    /// Process id of a server on this machine, to measure the CPU and memory of it and its children; repeat it for
    /// each server (`tontine status -o json` shows those of the nodes). By default, servers are not measured.
    #[arg(long = "server-pid", value_name = "PID")]
    pub server_pids: Vec<u32>,
    /// Name of the run in reports.
    #[arg(long, default_value = "run")]
    pub label: String,
    /// How the target is reached.
    #[command(flatten)]
    pub access: AccessArgs,
    /// What to run.
    #[command(flatten)]
    pub workload: WorkloadOptions,
    /// How.
    #[command(flatten)]
    pub driver: DriverOptions,
    /// Results.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How a target is reached.
#[derive(Clone, Debug, clap::Args)]
pub struct AccessArgs {
    /// Seconds after which an operation counts as timed out.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub timeout: f64,
    /// RESP: also keep all keys in one sorted set, and answer scans from it (Redis only).
    #[arg(long)]
    pub scan_index: bool,
}

impl AccessArgs {
    fn target(&self, address: &Address, store: &str) -> Result<Arc<dyn Target>, MeasureError> {
        let timeout = Duration::from_secs_f64(self.timeout.clamp(0.001, 1e6));
        Ok(match address {
            Address::Resp(address) => Arc::new(RespTarget {
                scan_index: self.scan_index,
                timeout,
                // A Redis has no stores, and a connection begins in this one.
                store: (store != DEFAULT_STORE).then(|| store.to_owned()),
                ..RespTarget::new(address.clone())
            }),
            Address::Native(addresses) => {
                let target = NativeTarget::new(addresses.clone(), store, timeout);
                Arc::new(target.map_err(DriveError::System)?)
            }
        })
    }
}

/// One workload, two systems.
#[derive(Clone, Debug, clap::Args)]
pub struct CompareArgs {
    /// The first system: `tontine` or `redis` to start one, or an address.
    #[arg(long, default_value = "tontine")]
    pub a: System,
    /// The second system.
    #[arg(long, default_value = "redis")]
    pub b: System,
    /// Alternating pairs of runs.
    #[arg(long, default_value_t = 3)]
    pub pairs: usize,
    /// What the started Redis keeps on disk.
    #[arg(long, value_enum, default_value = "none")]
    pub redis_persistence: Persistence,
    /// How a Tontine is started.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// How targets are reached.
    #[command(flatten)]
    pub access: AccessArgs,
    /// What to run.
    #[command(flatten)]
    pub workload: WorkloadOptions,
    /// How.
    #[command(flatten)]
    pub driver: DriverOptions,
    /// Results.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The measurement failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A scenario failed.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A result file could not be written.
    #[error("cannot write {path}: {source}")]
    NotWritten {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchReport {
    /// Of `load` and `run`.
    Run(Box<RunReport>),
    /// Of `compare`.
    Comparison {
        /// The figures side by side.
        comparison: Comparison,
        /// Every single run.
        runs: Vec<RunReport>,
    },
    /// Of a scenario.
    Scenario(ScenarioReport),
}

impl BenchReport {
    /// For a terminal.
    pub fn text(&self) -> String {
        match self {
            BenchReport::Run(run) => run_text(run),
            BenchReport::Comparison { comparison, runs } => {
                let mut parts: Vec<String> = runs.iter().map(run_text).collect();
                parts.push(comparison_text(comparison));
                parts.join("\n")
            }
            BenchReport::Scenario(scenario) => scenario.text(),
        }
    }

    /// For scripts.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data becomes JSON")
    }

    /// For `docs/benchmarks`.
    pub fn markdown(&self) -> String {
        match self {
            BenchReport::Run(run) => {
                [context_markdown(&run.context), runs_markdown(std::slice::from_ref(run))].join("\n")
            }
            BenchReport::Comparison { comparison, runs } => {
                let context = runs.first().map(|run| context_markdown(&run.context)).unwrap_or_default();
                [context, comparison_markdown(comparison), runs_markdown(runs)].join("\n")
            }
            BenchReport::Scenario(scenario) => scenario.markdown(),
        }
    }

    /// Whether every operation went well: no error, nothing missing, nothing corrupt.
    pub fn clean(&self) -> bool {
        match self {
            BenchReport::Run(run) => run.outcomes.clean(),
            BenchReport::Comparison { runs, .. } => runs.iter().all(|run| run.outcomes.clean()),
            BenchReport::Scenario(scenario) => scenario.clean(),
        }
    }

    fn write(&self, output: &OutputArgs) -> Result<(), BenchError> {
        let write = |path: &PathBuf, content: String| {
            fs::write(path, content)
                .map_err(|source| BenchError::NotWritten { path: path.display().to_string(), source })
        };
        if let Some(path) = &output.json_file {
            write(path, self.json() + "\n")?;
        }
        if let Some(path) = &output.markdown_file {
            write(path, self.markdown())?;
        }
        Ok(())
    }
}

/// Carries out a command. Progress goes to stderr; printing the report is the caller's part.
///
/// # Errors
/// When servers cannot be started or reached, options make no sense, or a result file cannot be written.
/// Errors of single operations are in the report: see [`BenchReport::clean`].
pub fn run(command: &BenchCommand, reach: &Reach) -> Result<BenchReport, BenchError> {
    match command {
        BenchCommand::Load(arguments) => one(arguments, reach, Phase::Load),
        BenchCommand::Run(arguments) => one(arguments, reach, Phase::Run),
        BenchCommand::Compare(arguments) => two(arguments, &reach.store),
        BenchCommand::Resp(arguments) => scenario(arguments.scenario.run(), &arguments.output),
        BenchCommand::Balance(arguments) => scenario(arguments.scenario.run(), &arguments.output),
        BenchCommand::Doors(arguments) => scenario(arguments.scenario.run(), &arguments.output),
        BenchCommand::Ports(arguments) => scenario(arguments.scenario.run(), &arguments.output),
        BenchCommand::Swap(arguments) => scenario(arguments.scenario.run(), &arguments.output),
        BenchCommand::Pipeline(arguments) => scenario(arguments.scenario.run(), &arguments.output),
        BenchCommand::Persistent(arguments) => {
            scenario(arguments.scenario.run(&reach.store), &arguments.output)
        }
        BenchCommand::Cluster(arguments) => scenario(arguments.scenario.run(&reach.store), &arguments.output),
        BenchCommand::Handoff(arguments) => scenario(arguments.scenario.run(&reach.store), &arguments.output),
        BenchCommand::Fetch(arguments) => scenario(arguments.scenario.run(&reach.store), &arguments.output),
        BenchCommand::Feeds(arguments) => scenario(arguments.scenario.run(), &arguments.output),
        BenchCommand::Elastic(arguments) => scenario(arguments.scenario.run(reach), &arguments.output),
        BenchCommand::Source(arguments) => scenario(arguments.scenario.run(), &arguments.output),
        BenchCommand::Moves(arguments) => scenario(arguments.scenario.run(&reach.store), &arguments.output),
    }
}

fn scenario(
    report: Result<ScenarioReport, ScenarioError>,
    output: &OutputArgs,
) -> Result<BenchReport, BenchError> {
    let report = BenchReport::Scenario(report?);
    report.write(output)?;
    Ok(report)
}

fn one(arguments: &RunArgs, reach: &Reach, phase: Phase) -> Result<BenchReport, BenchError> {
    let watched = match &arguments.server_pids[..] {
        [only] => Watched::tree(*only, "server"),
        many => {
            many.iter().zip(1..).flat_map(|(pid, n)| Watched::tree(*pid, &format!("server {n}"))).collect()
        }
    };
    let address = arguments.target.clone().unwrap_or_else(|| Address::Native(reach.connect.clone()));
    let target = arguments.access.target(&address, &reach.store)?;
    let contestant = Contestant::running(&arguments.label, target, watched);
    let run = contestant.measure(&arguments.workload, &arguments.driver, phase)?;
    let report = BenchReport::Run(Box::new(run));
    report.write(&arguments.output)?;
    Ok(report)
}

fn two(arguments: &CompareArgs, store: &str) -> Result<BenchReport, BenchError> {
    let side = |system, side| contestant(arguments, store, system, side);
    let [a, b] = [side(&arguments.a, "a")?, side(&arguments.b, "b")?];
    for contestant in [&a, &b] {
        contestant.load(&arguments.workload, &arguments.driver)?;
    }
    let pairs = alternate(&a, &b, &arguments.workload, &arguments.driver, arguments.pairs.max(1))?;
    let comparison = Comparison::of(arguments.workload.describe(), &pairs);
    let runs = pairs.into_iter().flat_map(|(a, b)| [a, b]).collect();
    let report = BenchReport::Comparison { comparison, runs };
    report.write(&arguments.output)?;
    Ok(report)
}

fn contestant(
    arguments: &CompareArgs,
    store: &str,
    system: &System,
    side: &str,
) -> Result<Contestant, BenchError> {
    let options = match system {
        System::At(address) => {
            let label = format!("{side} ({address})");
            return Ok(Contestant::running(&label, arguments.access.target(address, store)?, Vec::new()));
        }
        System::Redis => PeerOptions::Redis(RedisOptions {
            persistence: arguments.redis_persistence,
            parent: arguments.tontine.scratch.clone(),
            ..RedisOptions::default()
        }),
        System::Tontine => {
            let default = crate::scenarios::resp::TONTINE_ARGUMENTS;
            PeerOptions::Tontine(arguments.tontine.options(default, 1)?)
        }
    };
    let name = if *system == System::Redis { "redis" } else { "tontine" };
    let same = arguments.a == arguments.b;
    let label = if same { format!("{name} {side}") } else { name.to_owned() };
    let started = Contestant::start(&label, &options)?;
    let resp = Address::Resp(started.peer.as_ref().map(|peer| peer.resp[0].clone()).unwrap_or_default());
    Ok(Contestant { target: arguments.access.target(&resp, store)?, ..started })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: BenchCommand,
    }

    #[test]
    fn the_command_line_is_consistent() {
        <Line as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_run_is_read_from_its_flags() {
        let line = Line::parse_from([
            "bench",
            "run",
            "-t",
            "resp://h:1",
            "--workload",
            "a",
            "-c",
            "50",
            "-P",
            "16",
            "--rate",
            "1e3",
        ]);
        let BenchCommand::Run(arguments) = line.command else { panic!("run was asked for") };
        assert_eq!(arguments.target, Some(Address::Resp("h:1".to_owned())));
        assert_eq!((arguments.driver.connections, arguments.driver.depth), (50, 16));
        assert_eq!(arguments.driver.rate, Some(1_000.0));
        assert_eq!(
            arguments.workload.describe(),
            "50 % read + 50 % update, zipfian, 100000 records of 1024 bytes"
        );
    }
}
