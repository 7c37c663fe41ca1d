//! One node over RESP against a real Redis: GET and SET of 1 KiB, with and without pipelining.
//!
//! Everything is measured twice: by our own driver, the same code for both servers, and by the unmodified
//! `redis-benchmark`. The figure to watch is the server's CPU per operation.
//!
//! Many short pairs rather than a few long ones: what else the machine does drifts from second to second, and a pair
//! of neighbours shares it.

use std::io::Write;

use crate::compare::{Contestant, alternate};
use crate::driver::DriverOptions;
use crate::peers::{PeerOptions, RedisOptions};
use crate::report::Comparison;
use crate::workload::{InsertOrder, Preset, WorkloadOptions};

use super::redis_benchmark::RedisBenchmark;
use super::tools::{self, Side};
use super::{ScenarioError, ScenarioReport, TontineArgs};

/// How a node is started unless the command line says otherwise: with one worker, because Redis serves with one thread.
pub const TONTINE_ARGUMENTS: &str = "dev --nodes 1 --replicas 1 --engine memory --workers 1 --data-dir {dir} \
                                     --port-base {base}";
/// Pipelined requests are cheaper: as many more are sent, so that CPU time is measured as finely.
const PIPELINED_REQUESTS_FACTOR: u64 = 4;
/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct RespScenario {
    /// The node.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Alternating pairs of runs for each figure.
    #[arg(long, default_value_t = 7)]
    pub pairs: usize,
    /// Seconds of each run of our own driver.
    #[arg(long, default_value_t = 2.0)]
    pub duration: f64,
    /// Seconds of warm-up before each.
    #[arg(long, default_value_t = 0.5)]
    pub warm_up: f64,
    /// Requests of each unpipelined run of redis-benchmark (pipelined ones: four times as many); 0 leaves
    /// redis-benchmark out.
    #[arg(long, default_value_t = 100_000)]
    pub requests: u64,
    /// Connections.
    #[arg(long, default_value_t = 50)]
    pub connections: usize,
    /// Pipeline depths.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    pub depths: Vec<usize>,
    /// Records.
    #[arg(long, default_value_t = 100_000)]
    pub records: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    pub value_length: usize,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

impl RespScenario {
    /// Starts both servers, measures, stops them.
    ///
    /// # Errors
    /// When a server or `redis-benchmark` cannot be started, or a server cannot be reached.
    pub fn run(&self) -> Result<ScenarioReport, ScenarioError> {
        let mut report = ScenarioReport::new(
            "resp",
            "GET and SET over RESP, one node, memory engine: server CPU per operation against redis-server.",
        );
        let ours = PeerOptions::Tontine(self.tontine.options(TONTINE_ARGUMENTS, 1)?);
        let redis = RedisOptions { parent: self.tontine.scratch.clone(), ..RedisOptions::default() };
        let ours = Contestant::start("tontine", &ours)?;
        let theirs = Contestant::start("redis", &PeerOptions::Redis(redis))?;
        for contestant in [&ours, &theirs] {
            let load = DriverOptions { depth: LOAD_DEPTH, ..self.driver(LOAD_DEPTH) };
            contestant.load(&self.workload(Preset::Set), &load)?;
        }
        for &depth in &self.depths {
            for preset in [Preset::Get, Preset::Set] {
                let workload = self.workload(preset);
                let pairs = alternate(&ours, &theirs, &workload, &self.driver(depth), self.pairs)?;
                report.compare(self.title("bench", preset, depth), pairs);
            }
        }
        if self.requests > 0 {
            for &depth in &self.depths {
                for preset in [Preset::Get, Preset::Set] {
                    report.comparisons.push(self.redis_benchmark(&ours, &theirs, preset, depth)?);
                }
            }
        }
        Ok(report)
    }

    fn title(&self, by: &str, preset: Preset, depth: usize) -> String {
        let command = if preset == Preset::Get { "GET" } else { "SET" };
        format!(
            "{by}: {command}, {} connections, pipeline {depth}, {} bytes",
            self.connections, self.value_length
        )
    }

    fn redis_benchmark(
        &self,
        ours: &Contestant,
        theirs: &Contestant,
        preset: Preset,
        depth: usize,
    ) -> Result<Comparison, ScenarioError> {
        let factor = if depth > 1 { PIPELINED_REQUESTS_FACTOR } else { 1 };
        let run = |contestant: &Contestant| {
            let peer = contestant.peer.as_ref().expect("this scenario started its contestants");
            let benchmark = RedisBenchmark {
                address: &peer.resp[0],
                test: if preset == Preset::Get { "get" } else { "set" },
                connections: self.connections,
                depth,
                requests: self.requests * factor,
                records: self.records,
                value_length: self.value_length,
                authority: None,
                user: None,
            };
            if !self.quiet {
                let title = self.title("redis-benchmark", preset, depth);
                let _ = writeln!(std::io::stderr(), "{}: {title}", contestant.label);
            }
            Ok(benchmark.run(&contestant.watched)?)
        };
        let [a, b] = [&|| run(ours), &|| run(theirs)] as [&dyn Fn() -> _; 2];
        let (a, b) = (Side { label: &ours.label, run: a }, Side { label: &theirs.label, run: b });
        tools::alternate(&self.title("redis-benchmark", preset, depth), &a, &b, self.pairs)
    }

    /// Keys as `redis-benchmark` names them, so that its GETs find what was loaded here.
    fn workload(&self, preset: Preset) -> WorkloadOptions {
        WorkloadOptions {
            field_length: self.value_length,
            key_prefix: "key:".to_owned(),
            insert_order: InsertOrder::Ordered,
            zero_padding: 12,
            ..WorkloadOptions::preset(preset, self.records)
        }
    }

    fn driver(&self, depth: usize) -> DriverOptions {
        let quiet = self.quiet;
        DriverOptions {
            quiet,
            ..DriverOptions::closed(self.connections, depth, (self.warm_up, self.duration))
        }
    }
}
