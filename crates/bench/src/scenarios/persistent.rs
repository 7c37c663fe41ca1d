//! One node with the persistent engine, a million records of 1 KiB, 95 % reads: what does a request cost?
//!
//! The question is asked through the native client first. Then the same node is reached over RESP, in turn with a
//! Redis that logs what it is told: the same client code, the same promise of losing at most about a second.

use std::sync::Arc;
use std::time::Duration;

use crate::compare::{Contestant, MeasureError, alternate};
use crate::driver::{DriveError, DriverOptions, Phase};
use crate::peers::{PeerOptions, Persistence, RedisOptions};
use crate::report::{RunReport, cpu};
use crate::target::native::NativeTarget;
use crate::workload::{Preset, WorkloadOptions};

use super::{ScenarioError, ScenarioReport, TontineArgs, native_addresses};

/// How a node is started unless the command line says otherwise.
pub const TONTINE_ARGUMENTS: &str =
    "dev --nodes 1 --replicas 1 --engine log --data-dir {dir} --port-base {base}";
/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;
/// Requests of a healthy node never take this long.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct PersistentScenario {
    /// The node.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Runs through the native client, and alternating pairs against Redis.
    #[arg(long, default_value_t = 3)]
    pub pairs: usize,
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
    #[arg(long, default_value_t = 1_000_000)]
    pub records: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    pub value_length: usize,
    /// Leave Redis out.
    #[arg(long)]
    pub no_redis: bool,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

impl PersistentScenario {
    /// Starts the servers, measures this store, stops them.
    ///
    /// # Errors
    /// When a server cannot be started or reached.
    pub fn run(&self, store: &str) -> Result<ScenarioReport, ScenarioError> {
        let mut report = ScenarioReport::new(
            "persistent",
            "95 % reads and 5 % updates on one node with the persistent engine: server CPU per operation.",
        );
        let over_resp =
            Contestant::start("tontine", &PeerOptions::Tontine(self.tontine.options(TONTINE_ARGUMENTS, 1)?))?;
        let addresses = native_addresses(&over_resp, 1)?;
        let target = NativeTarget::new(addresses, store, TIMEOUT)
            .map_err(|error| MeasureError::Drive(DriveError::System(error)))?;
        let native = over_resp.through("tontine, native", Arc::new(target));
        let workload = WorkloadOptions {
            field_length: self.value_length,
            ..WorkloadOptions::preset(Preset::B, self.records)
        };
        let loaded = native.load(&workload, &self.driver(LOAD_DEPTH))?;
        report.notes.push(loaded_note(&over_resp, &loaded));
        let run = |seed| native.measure(&workload, &DriverOptions { seed, ..self.driver(1) }, Phase::Run);
        report.repeat((1..=self.pairs as u64).map(run).collect::<Result<_, _>>()?);
        if !self.no_redis {
            let redis = RedisOptions {
                persistence: Persistence::EverySecond,
                parent: self.tontine.scratch.clone(),
                ..RedisOptions::default()
            };
            let redis = Contestant::start("redis, logging", &PeerOptions::Redis(redis))?;
            let loaded = redis.load(&workload, &self.driver(LOAD_DEPTH))?;
            report.notes.push(loaded_note(&redis, &loaded));
            report.notes.push(
                "Redis logs with appendfsync everysec: a power cut may cost it about a second of writes."
                    .to_owned(),
            );
            let pairs = alternate(&over_resp, &redis, &workload, &self.driver(1), self.pairs)?;
            report.compare(workload.describe() + ", over RESP", pairs);
        }
        Ok(report)
    }

    fn driver(&self, depth: usize) -> DriverOptions {
        let quiet = self.quiet;
        DriverOptions {
            quiet,
            ..DriverOptions::closed(self.connections, depth, (self.warm_up, self.duration))
        }
    }
}

fn loaded_note(contestant: &Contestant, loaded: &RunReport) -> String {
    let on_disk = contestant.peer.as_ref().map_or(0, |peer| peer.process.bytes_on_disk());
    format!(
        "{}: {} records loaded at {:.0}/s and {} of server CPU each; {:.0} MiB on disk afterwards.",
        loaded.label,
        loaded.operations,
        loaded.throughput,
        cpu(loaded.server_cpu_us_per_operation, " µs"),
        on_disk as f64 / 1_048_576.0
    )
}
