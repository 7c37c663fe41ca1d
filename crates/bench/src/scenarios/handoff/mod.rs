//! One node dies under load, stays away for a minute, and comes back: how long until it holds what the others hold,
//! what the clients keep of their throughput meanwhile, and how many of their requests fail.
//!
//! ```text
//!   one run:  all nodes ── killed ── one node away ── started again ── hints flow ── drained ── all nodes again
//!             └ undisturbed ┘                         └── draining ──────────────┘ └ undisturbed ─────────────┘
//! ```
//!
//! The load never stops, so the share that clients keep compares seconds of one run. At the end every key is read from
//! the returned node alone and compared with another replica.
//! **Never** call replicas equal because no hint is left: hints may have been refused.

mod course;

use std::sync::Arc;

use crate::compare::{Contestant, MeasureError};
use crate::driver::{DriveError, DriverOptions};
use crate::peers::PeerOptions;
use crate::report::{RunReport, SecondReport};
use crate::target::native::NativeTarget;
use crate::workload::{Preset, WorkloadOptions};

use super::script::{Opened, PhaseFigures, TIMEOUT, WARM_UP, beside, within};
use super::{ScenarioError, ScenarioReport, TontineArgs, native_addresses};
use course::{Compared, Conductor, Timeline, VICTIM};

/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct HandoffScenario {
    /// The nodes.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Nodes, 4 to 16: with more nodes than replicas, fallbacks hold the hints.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(4..=16))]
    pub nodes: u64,
    /// Seconds for which the node is away.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=3600), value_name = "SECONDS")]
    pub away: u64,
    /// Seconds under load before the node dies.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(2..=3600), value_name = "SECONDS")]
    pub before: u64,
    /// Seconds under load after the node was started again. Those of a minute take a minute and a half.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(2..=3600), value_name = "SECONDS")]
    pub after: u64,
    /// Requests in flight.
    #[arg(long, default_value_t = 16)]
    pub connections: usize,
    /// Operations per second (an open loop); without it, as fast as possible.
    #[arg(long)]
    pub rate: Option<f64>,
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

impl HandoffScenario {
    /// Starts the cluster, kills a node, starts it again, and watches.
    ///
    /// # Errors
    /// When the cluster cannot be started or reached, or hints do not drain.
    pub fn run(&self, store: &str) -> Result<ScenarioReport, ScenarioError> {
        let mut report = ScenarioReport::new(
            "handoff",
            "50 % reads and 50 % updates, Zipfian; one node killed under load and started again: throughput while its \
             hints flow, time until it is equal, requests that failed.",
        );
        let nodes = usize::try_from(self.nodes).expect("at most 16");
        let arguments = format!("dev --nodes {nodes} --data-dir {{dir}} --port-base {{base}}");
        let options = self.tontine.options(&arguments, nodes)?;
        let started = Contestant::start("tontine", &PeerOptions::Tontine(options))?;
        let addresses = native_addresses(&started, nodes)?;
        let target = NativeTarget::new(addresses.clone(), store, TIMEOUT)
            .map_err(|error| MeasureError::Drive(DriveError::System(error)))?;
        let target = Arc::new(Opened::new(target));
        let workload = WorkloadOptions {
            field_length: self.value_length,
            ..WorkloadOptions::preset(Preset::A, self.records)
        };
        let process = &started.peer.as_ref().expect("it was started here").process;
        let conductor = Conductor::new(process, addresses)?;
        // The node that dies cannot be measured; the others can.
        let staying = started.watched.iter().filter(|watched| !conductor.is_victim(watched.pid));
        let staying =
            Contestant { watched: staying.cloned().collect(), ..started.through("load", target.clone()) };
        let load = DriverOptions { depth: LOAD_DEPTH, operations: None, ..self.driver() };
        staying.load(&workload, &load)?;
        let staying = Contestant { label: "one node away and back".to_owned(), ..staying };
        target.forget();

        let (run, course) = beside(&staying, (&workload, &self.driver()), |over| {
            conductor.conduct(self, &target, &staying.watched, over)
        })?;
        let compared = conductor.compare(store)?;
        report.unknown_outcomes_max = self.connections as u64;
        self.judge(&mut report, &run, &course, compared);
        report.runs.push(run);
        Ok(report)
    }

    fn driver(&self) -> DriverOptions {
        DriverOptions {
            connections: self.connections,
            rate: self.rate,
            warm_up: WARM_UP,
            duration: Some((self.before + self.away + self.after) as f64),
            quiet: self.quiet,
            ..DriverOptions::default()
        }
    }

    /// Puts what was seen into figures and words.
    fn judge(&self, report: &mut ScenarioReport, run: &RunReport, course: &Timeline, compared: Compared) {
        let phases = Phases::of(&run.series, course);
        let sum = |counts: &std::collections::BTreeMap<String, u64>| counts.values().sum::<u64>();
        let outcomes = &run.outcomes;
        let failed = sum(&outcomes.failed) + outcomes.missing + outcomes.corrupt;
        let unknown = sum(&outcomes.indeterminate);
        let share = phases.draining.throughput / phases.undisturbed.throughput;
        report.notes.push(format!(
            "{} hints were held when n{VICTIM} was started again after {:.1} s; {:.1} s later none was left. Of {} keys, \
             read from n{VICTIM} alone after the load, {} differed from another replica{}.",
            course.hints_held,
            course.back - course.killed,
            course.drained - course.back,
            compared.keys,
            compared.unequal,
            match compared.equal_after {
                Some(seconds) if compared.unequal > 0 => format!("; {seconds:.1} s later none did"),
                Some(_) => String::new(),
                None => ", and some still do".to_owned(),
            },
        ));
        report.notes.push(format!(
            "Operations per second, and the 99th percentile of latency in the median second: {} undisturbed, {} with one \
             node away, {} while hints flowed: {:.1} % of undisturbed.",
            phases.undisturbed,
            phases.away,
            phases.draining,
            100.0 * share,
        ));
        let parts = [phases.before, phases.away, phases.draining];
        let cpu: [f64; 3] = std::array::from_fn(|part| 1e6 * course.cores[part] / parts[part].throughput);
        report.notes.push(format!(
            "Processor time per operation, of all nodes and the client: {:.1} µs until the kill, {:.1} µs with one node \
             away, {:.1} µs while hints flowed: at full load, and whatever others do, {:.1} % of the throughput is kept.",
            cpu[0],
            cpu[1],
            cpu[2],
            100.0 * cpu[0] / cpu[2],
        ));
        report.notes.push(format!(
            "Of {} requests {failed} failed; {unknown} writes that were under way at the killed node have an unknown \
             outcome.",
            run.operations,
        ));
        let figures = [
            ("hints_held", course.hints_held as f64),
            ("away_s", course.back - course.killed),
            ("drained_s", course.drained - course.back),
            ("keys_compared", compared.keys as f64),
            ("keys_unequal", compared.unequal as f64),
            ("undisturbed_throughput", phases.undisturbed.throughput),
            ("undisturbed_p99_us", phases.undisturbed.p99_us),
            ("away_throughput", phases.away.throughput),
            ("away_p99_us", phases.away.p99_us),
            ("draining_throughput", phases.draining.throughput),
            ("draining_p99_us", phases.draining.p99_us),
            ("throughput_share_draining", share),
            ("undisturbed_cpu_us", cpu[0]),
            ("away_cpu_us", cpu[1]),
            ("draining_cpu_us", cpu[2]),
            ("cpu_share_draining", cpu[0] / cpu[2]),
            ("requests_failed", failed as f64),
            ("requests_unknown", unknown as f64),
        ];
        report.figures.extend(figures.map(|(name, figure)| (name.to_owned(), figure)));
    }
}

/// The parts of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Phases {
    /// Until the kill: part of `undisturbed`.
    before: PhaseFigures,
    undisturbed: PhaseFigures,
    away: PhaseFigures,
    draining: PhaseFigures,
}

impl Phases {
    /// Whole seconds only, but for draining, which may be short: there every second counts that it touches.
    fn of(series: &[SecondReport], course: &Timeline) -> Phases {
        // The last second is cut off by the end of the run.
        let series = &series[..series.len().saturating_sub(1)];
        let touches = |second: &SecondReport| {
            (second.second as f64) < course.drained && (second.second + 1) as f64 > course.back
        };
        let undisturbed = |second: &&SecondReport| {
            within(second, 0.0, course.killed) || within(second, course.drained, f64::INFINITY)
        };
        Phases {
            before: PhaseFigures::of(series.iter().filter(|second| within(second, 0.0, course.killed))),
            undisturbed: PhaseFigures::of(series.iter().filter(undisturbed)),
            away: PhaseFigures::of(series.iter().filter(|second| within(second, course.killed, course.back))),
            draining: PhaseFigures::of(series.iter().filter(|second| touches(second))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_belongs_to_one_phase_or_to_none() {
        let series: Vec<SecondReport> = (0..10)
            .map(|second| SecondReport {
                second,
                operations: 1 << second,
                errors: 0,
                p50_us: 1.0,
                p99_us: second as f64,
                max_us: 1.0,
            })
            .collect();
        let course = Timeline { killed: 2.5, back: 5.5, drained: 6.25, hints_held: 1, cores: [1.0; 3] };
        let phases = Phases::of(&series, &course);
        // 0, 1, 7 and 8; the killing happened in 2, and 9 is not whole.
        assert_eq!(phases.undisturbed.throughput, f64::from(1 + 2 + 128 + 256) / 4.0);
        assert_eq!(phases.before.throughput, f64::from(1 + 2) / 2.0);
        assert_eq!(phases.away, PhaseFigures { throughput: f64::from(8 + 16) / 2.0, p99_us: 3.5 });
        assert_eq!(phases.draining.throughput, f64::from(32 + 64) / 2.0);
    }
}
