//! Three nodes, N=3 R=2 W=2, 95 % reads, Zipfian: throughput, latency, and which process pays.
//!
//! First as fast as the cluster can (a closed loop), for throughput and CPU per operation. Then at a third of that
//! rate (an open loop), for latencies that a user would see: a saturated system's percentiles tell only how deep its
//! queues are. A third, not a half: operations that come one by one share no packets and no wake-ups, and each costs
//! client and nodes about half as much again as under saturation, so half of the rate is three quarters of the machine.
//!
//! Beside it, in turn, as many Redis servers: a primary with replicas, where every write waits until a second server
//! has it. That is what comes nearest there, and it promises less: see [`REDIS_NOTES`].

use std::sync::Arc;
use std::time::Duration;

use crate::compare::{Contestant, MeasureError, alternate};
use crate::driver::{DriveError, DriverOptions, Phase};
use crate::peers::{PeerOptions, Persistence, RedisOptions};
use crate::report::{RunReport, cpu, median};
use crate::target::native::NativeTarget;
use crate::target::resp::RespTarget;
use crate::workload::{Preset, WorkloadOptions};

use super::{ScenarioError, ScenarioReport, TontineArgs, components_note, medians_note, native_addresses};

/// How the cluster is started unless the command line says otherwise: `dev` has N=3, R=2, W=2.
pub const TONTINE_ARGUMENTS: &str = "dev --nodes 3 --data-dir {dir} --port-base {base}";
/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;
/// The open loop's rate, as a share of what the closed loop reached.
const OPEN_LOOP_SHARE: f64 = 1.0 / 3.0;
/// Requests of a healthy cluster never take this long.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Replicas that a write at Redis waits for: with the primary two copies, as with W=2.
const COPIES: u8 = 1;
/// What Redis does less than this cluster, for whoever compares.
pub const REDIS_NOTES: [&str; 2] = [
    "Redis: one primary with replicas, asynchronous, each logging with appendfsync everysec; each write is followed by \
     WAIT 1, so that two servers have it in memory when it is done.",
    "Redis does less for a read: its primary answers alone, from memory. A read here asks two of three nodes, each \
     reads its log, and it sees every write that was done, whichever node fails. When Redis's primary fails, nobody \
     writes until another is chosen, and what only the primary had is lost.",
];

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterScenario {
    /// The nodes.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Nodes.
    #[arg(long, default_value_t = 3)]
    pub nodes: usize,
    /// Runs of each kind, each in turn with one of Redis.
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
    /// Leave Redis out.
    #[arg(long)]
    pub no_redis: bool,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

impl ClusterScenario {
    /// Starts the servers, measures this store, stops them.
    ///
    /// # Errors
    /// When a server cannot be started or reached.
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
        let ours = started.through("tontine", Arc::new(target));
        let redis = if self.no_redis { None } else { Some(self.start_redis()?) };
        let workload = WorkloadOptions {
            field_length: self.value_length,
            ..WorkloadOptions::preset(Preset::B, self.records)
        };
        let load = DriverOptions { depth: LOAD_DEPTH, ..self.driver(None) };
        for contestant in std::iter::once(&ours).chain(&redis) {
            let loaded = contestant.load(&workload, &load)?;
            report.notes.push(format!(
                "{}: {} records loaded at {:.0}/s, {} of CPU of all its servers for each.",
                contestant.label,
                loaded.operations,
                loaded.throughput,
                cpu(loaded.server_cpu_us_per_operation, " µs")
            ));
        }
        if redis.is_some() {
            report.notes.extend(REDIS_NOTES.map(str::to_owned));
        }
        let reached = self.measure(&mut report, (&ours, redis.as_ref()), &workload, None)?;
        let rate = self.rate.unwrap_or((reached * OPEN_LOOP_SHARE).max(1.0));
        self.measure(&mut report, (&ours, redis.as_ref()), &workload, Some(rate))?;
        Ok(report)
    }

    /// One primary and as many replicas as make it as many servers as nodes, each logging; every write waits for one
    /// replica, so that two have it.
    fn start_redis(&self) -> Result<Contestant, MeasureError> {
        let options = RedisOptions {
            persistence: Persistence::EverySecond,
            replicas: self.nodes.saturating_sub(1),
            parent: self.tontine.scratch.clone(),
            ..RedisOptions::default()
        };
        let started = Contestant::start("redis", &PeerOptions::Redis(options))?;
        let address = started.peer.as_ref().expect("it was just started").resp[0].clone();
        let target = RespTarget { copies: COPIES, timeout: TIMEOUT, ..RespTarget::new(address) };
        Ok(Contestant { target: Arc::new(target), ..started })
    }

    /// Runs of this cluster, in turn with those of Redis if there is one; says what throughput this cluster reached.
    fn measure(
        &self,
        report: &mut ScenarioReport,
        (ours, redis): (&Contestant, Option<&Contestant>),
        workload: &WorkloadOptions,
        rate: Option<f64>,
    ) -> Result<f64, ScenarioError> {
        let how = rate.map_or("as fast as possible".to_owned(), |rate| format!("at {rate:.0} op/s"));
        let driver = self.driver(rate);
        let mine = ours.through(&format!("tontine, {how}"), ours.target.clone());
        let Some(redis) = redis else {
            let run = |seed| mine.measure(workload, &DriverOptions { seed, ..driver.clone() }, Phase::Run);
            let runs: Vec<RunReport> = (1..=self.runs as u64).map(run).collect::<Result<_, _>>()?;
            let reached = median(runs.iter().map(|run| run.throughput));
            report.repeat(runs);
            return Ok(reached);
        };
        let theirs = redis.through(&format!("redis, {how}"), redis.target.clone());
        let pairs = alternate(&mine, &theirs, workload, &driver, self.runs)?;
        let (a, b): (Vec<RunReport>, Vec<RunReport>) = pairs.iter().cloned().unzip();
        report.compare(format!("{}, {how}", workload.describe()), pairs);
        for runs in [&a, &b] {
            report.notes.extend(medians_note(runs));
            report.notes.extend(components_note(runs));
        }
        Ok(median(a.iter().map(|run| run.throughput)))
    }

    fn driver(&self, rate: Option<f64>) -> DriverOptions {
        DriverOptions {
            connections: self.connections,
            warm_up: self.warm_up,
            duration: Some(self.duration),
            rate,
            quiet: self.quiet,
            ..DriverOptions::default()
        }
    }
}
