//! Three nodes over RESP, N=3 R=2 W=2: what a pipelined command costs beside one that is sent alone.
//!
//! The figure to watch is the CPU of all servers for each operation, at several depths. Beside the nodes runs a Redis
//! with one replica, on the same records, in alternating pairs: at the end of each batch its client sends `WAIT 1`, so
//! that two servers have every write of the batch when it is done.

use std::sync::Arc;

use crate::compare::{Contestant, MeasureError, alternate};
use crate::driver::DriverOptions;
use crate::peers::{PeerOptions, Persistence, RedisOptions};
use crate::report::median;
use crate::target::resp::{RespTarget, Wait};
use crate::workload::{Preset, WorkloadOptions};

use super::{ScenarioError, ScenarioReport, TontineArgs};

/// How the nodes are started unless the command line says otherwise: `dev` has N=3, R=2, W=2.
pub const TONTINE_ARGUMENTS: &str = super::cluster::TONTINE_ARGUMENTS;
/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;
/// What Redis does less, for readers who compare.
const REDIS_NOTE: &str = "Redis: one primary with one replica, each logging with appendfsync everysec. A batch of writes \
                          ends with one WAIT 1. Its primary answers reads alone; a read here asks two of three nodes.";

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct PipelineScenario {
    /// The nodes.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Nodes.
    #[arg(long, default_value_t = 3)]
    pub nodes: usize,
    /// Alternating pairs of runs for each figure.
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Seconds of each run.
    #[arg(long, default_value_t = 3.0)]
    pub duration: f64,
    /// Seconds of warm-up before each.
    #[arg(long, default_value_t = 0.5)]
    pub warm_up: f64,
    /// Connections.
    #[arg(long, default_value_t = 50)]
    pub connections: usize,
    /// Pipeline depths.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 100])]
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

impl PipelineScenario {
    /// Starts the servers, measures, stops them.
    ///
    /// # Errors
    /// When a server cannot be started or reached.
    pub fn run(&self) -> Result<ScenarioReport, ScenarioError> {
        let mut report = ScenarioReport::new(
            "pipeline",
            "GET and SET over RESP to one of three nodes, by pipeline depth: CPU of all servers per operation.",
        );
        let options = self.tontine.options(TONTINE_ARGUMENTS, self.nodes)?;
        let ours = Contestant::start("tontine", &PeerOptions::Tontine(options))?;
        let theirs = self.start_redis()?;
        for contestant in [&ours, &theirs] {
            contestant.load(&self.workload(Preset::Set), &self.driver(LOAD_DEPTH))?;
        }
        for preset in [Preset::Get, Preset::Set] {
            // Of each depth the median CPU of both.
            let mut costs = Vec::new();
            for &depth in &self.depths {
                let workload = self.workload(preset);
                let pairs = alternate(&ours, &theirs, &workload, &self.driver(depth), self.pairs)?;
                let cpu =
                    |run: &crate::report::RunReport| run.server_cpu_us_per_operation.unwrap_or(f64::NAN);
                let of_ours = median(pairs.iter().map(|(ours, _)| cpu(ours)));
                costs.push((depth, of_ours, median(pairs.iter().map(|(_, theirs)| cpu(theirs)))));
                report.compare(self.title(preset, depth), pairs);
            }
            report.notes.extend(summary(name(preset), &costs));
        }
        report.notes.push(REDIS_NOTE.to_owned());
        Ok(report)
    }

    fn start_redis(&self) -> Result<Contestant, MeasureError> {
        let options = RedisOptions {
            persistence: Persistence::EverySecond,
            replicas: 1,
            parent: self.tontine.scratch.clone(),
            ..RedisOptions::default()
        };
        let started = Contestant::start("redis", &PeerOptions::Redis(options))?;
        let address = started.peer.as_ref().expect("it was just started").resp[0].clone();
        let target = RespTarget { copies: 1, wait: Wait::OncePerBatch, ..RespTarget::new(address) };
        Ok(Contestant { target: Arc::new(target), ..started })
    }

    fn title(&self, preset: Preset, depth: usize) -> String {
        let (connections, bytes) = (self.connections, self.value_length);
        format!("{}, {connections} connections, pipeline {depth}, {bytes} bytes", name(preset))
    }

    fn workload(&self, preset: Preset) -> WorkloadOptions {
        WorkloadOptions { field_length: self.value_length, ..WorkloadOptions::preset(preset, self.records) }
    }

    fn driver(&self, depth: usize) -> DriverOptions {
        let quiet = self.quiet;
        DriverOptions {
            quiet,
            ..DriverOptions::closed(self.connections, depth, (self.warm_up, self.duration))
        }
    }
}

fn name(preset: Preset) -> &'static str {
    if preset == Preset::Get { "GET" } else { "SET" }
}

/// What depth does to the cost of one operation; `None` without figures.
fn summary(name: &str, costs: &[(usize, f64, f64)]) -> Option<String> {
    let &(_, ours_alone, theirs_alone) = costs.first()?;
    let each = costs.iter().map(|(depth, ours, theirs)| {
        format!(
            "pipeline {depth}: {ours:.1} µs ({:.2} of the first), redis {theirs:.1} µs ({:.2})",
            ours / ours_alone,
            theirs / theirs_alone
        )
    });
    Some(format!("{name}, CPU of all servers per operation. {}.", each.collect::<Vec<_>>().join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_compares_each_depth_with_the_first() {
        assert_eq!(
            summary("SET", &[(1, 40.0, 10.0), (16, 10.0, 5.0)]).as_deref(),
            Some(
                "SET, CPU of all servers per operation. pipeline 1: 40.0 µs (1.00 of the first), redis 10.0 µs (1.00); \
                 pipeline 16: 10.0 µs (0.25 of the first), redis 5.0 µs (0.50)."
            )
        );
        assert_eq!(summary("GET", &[]), None);
    }
}
