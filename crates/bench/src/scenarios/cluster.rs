//! Three nodes, N=3 R=2 W=2, 95 % reads, Zipfian: throughput, latency, and which process pays.
//!
//! First as fast as the cluster can (a closed loop), for throughput and CPU per operation. Then at a third of that
//! rate (an open loop), for latencies that a user would see: a saturated system's percentiles tell only how deep its
//! queues are. A third, not a half: operations that come one by one share no packets and no wake-ups, and each costs
//! client and nodes about half as much again as under saturation, so half of the rate is three quarters of the machine.

use std::sync::Arc;
use std::time::Duration;

use crate::compare::{Contestant, MeasureError};
use crate::driver::{DriveError, DriverOptions, Phase};
use crate::peers::PeerOptions;
use crate::report::{RunReport, cpu, median};
use crate::target::native::NativeTarget;
use crate::workload::{Preset, WorkloadOptions};

use super::{ScenarioError, ScenarioReport, TontineArgs, native_addresses};

/// How the cluster is started unless the command line says otherwise: `dev` has N=3, R=2, W=2.
pub const TONTINE_ARGUMENTS: &str = "dev --nodes 3 --data-dir {dir} --port-base {base} --separate-processes";
/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;
/// The open loop's rate, as a share of what the closed loop reached.
const OPEN_LOOP_SHARE: f64 = 1.0 / 3.0;
/// Requests of a healthy cluster never take this long.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterScenario {
    /// The nodes.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Nodes.
    #[arg(long, default_value_t = 3)]
    pub nodes: usize,
    /// Runs of each kind.
    #[arg(long, default_value_t = 3)]
    pub runs: usize,
    /// Seconds of each run.
    #[arg(long, default_value_t = 15.0)]
    pub duration: f64,
    /// Seconds of warm-up before each.
    #[arg(long, default_value_t = 3.0)]
    pub warm_up: f64,
    /// Requests in flight.
    #[arg(long, default_value_t = 50)]
    pub connections: usize,
    /// Records.
    #[arg(long, default_value_t = 200_000)]
    pub records: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    pub value_length: usize,
    /// Operations per second of the open loop, instead of a third of what the closed loop reached.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

impl ClusterScenario {
    /// Starts the cluster, measures this store, stops it.
    ///
    /// # Errors
    /// When the cluster cannot be started or reached.
    pub fn run(&self, store: &str) -> Result<ScenarioReport, ScenarioError> {
        let mut report = ScenarioReport::new(
            "cluster",
            "95 % reads and 5 % updates, Zipfian, on a replicated cluster: throughput, latency, CPU by process.",
        );
        let options = self.tontine.options(TONTINE_ARGUMENTS, self.nodes)?;
        let started = Contestant::start("tontine", &PeerOptions::Tontine(options))?;
        let addresses = native_addresses(&started, self.nodes)?;
        let target = NativeTarget::new(addresses, store, TIMEOUT)
            .map_err(|error| MeasureError::Drive(DriveError::System(error)))?;
        let target = Arc::new(target);
        let saturated = started.through("as fast as possible", target.clone());
        let workload = WorkloadOptions {
            field_length: self.value_length,
            ..WorkloadOptions::preset(Preset::B, self.records)
        };
        let load = DriverOptions { depth: LOAD_DEPTH, ..self.driver(1) };
        let loaded = saturated.load(&workload, &load)?;
        report.notes.push(format!(
            "{} records loaded at {:.0}/s, {} of CPU of all nodes for each.",
            loaded.operations,
            loaded.throughput,
            cpu(loaded.server_cpu_us_per_operation, " µs")
        ));
        let run = |seed| saturated.measure(&workload, &self.driver(seed), Phase::Run);
        let runs: Vec<RunReport> = (1..=self.runs as u64).map(run).collect::<Result<_, _>>()?;
        let reached = median(runs.iter().map(|run| run.throughput));
        report.repeat(runs);
        let rate = self.rate.unwrap_or((reached * OPEN_LOOP_SHARE).max(1.0));
        let paced = started.through(&format!("at {rate:.0} op/s"), target);
        let run = |seed| {
            let driver = DriverOptions { rate: Some(rate), ..self.driver(seed) };
            paced.measure(&workload, &driver, Phase::Run)
        };
        report.repeat((1..=self.runs as u64).map(run).collect::<Result<_, _>>()?);
        Ok(report)
    }

    fn driver(&self, seed: u64) -> DriverOptions {
        DriverOptions {
            connections: self.connections,
            warm_up: self.warm_up,
            duration: Some(self.duration),
            seed,
            quiet: self.quiet,
            ..DriverOptions::default()
        }
    }
}
