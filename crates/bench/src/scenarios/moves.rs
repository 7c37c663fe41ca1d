//! A share of the keys moves from one of four nodes to another under load: what clients keep of their throughput, how
//! long it takes, and what it costs; then the same moves back without load, beside a raw copy of as many bytes.
//!
//! ```text
//!   one run:  undisturbed ── plan applied ── moving ── settled ── undisturbed        then, without load: moved back
//! ```
//!
//! With `--joins` the fourth node holds nothing at first (it is on standby), and takes its share of everything: once
//! without load, and after it has given that back, once under load.
//!
//! The load never stops, so the share that clients keep compares seconds of one run. The plan is created and applied
//! with the program's own commands, as an operator does.
//! **Never** call a move fast that was fast because nobody used the cluster, nor free because it was slow: both times
//! stand in the report.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use model::{NodeId, PartitionId, PreferenceList};
use serde_json::Value as Json;

use crate::compare::{Contestant, MeasureError};
use crate::driver::{DriveError, DriverOptions};
use crate::peers::PeerOptions;
use crate::processes::Sample;
use crate::report::RunReport;
use crate::target::native::NativeTarget;
use crate::workload::{Preset, WorkloadOptions};

use super::operator::{Operator, raw_copy};
use super::script::{Opened, PhaseFigures, Script, TIMEOUT, WARM_UP, ask, beside, system, within};
use super::{ScenarioError, ScenarioReport, TontineArgs, native_addresses};

/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;
/// Nodes, of which three hold each key.
const NODES: usize = 4;
/// The node that gives up places, and the one that takes them.
const FROM: NodeId = NodeId(1);
const TO: NodeId = NodeId(4);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: what a quarter of all keys costs that moves
  tontine bench moves --share 25 --within 180

Example: a fourth node joins three that hold five million records
  tontine bench moves --joins --records 5000000 --value-length 200 --within 400")]
pub struct MovesScenario {
    /// The nodes.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Of a hundred keys, this many change one of their three nodes; 25 at most.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=25), value_name = "PERCENT")]
    pub share: u64,
    /// The fourth node holds nothing at first, and takes its share of all keys.
    #[arg(long, conflicts_with = "share")]
    pub joins: bool,
    /// Seconds under load before the move.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=3600), value_name = "SECONDS")]
    pub before: u64,
    /// Seconds under load from the beginning of the move; it must have ended by then.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=3600), value_name = "SECONDS")]
    pub within: u64,
    /// Requests in flight.
    #[arg(long, default_value_t = 16)]
    pub connections: usize,
    /// Operations per second (an open loop); without it, as fast as possible.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Records.
    #[arg(long, default_value_t = 200_000)]
    pub records: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    pub value_length: usize,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// When what happened, in seconds since the measured part of the run began.
#[derive(Clone, Copy, Debug)]
struct Timeline {
    applied: f64,
    settled: f64,
    /// Processors that nodes and client used together: before, and while it moved.
    cores: [f64; 2],
    copied: Copied,
}

/// What a plan brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Copied {
    records: f64,
    bytes: f64,
    seconds: f64,
}

impl Copied {
    /// By what `plan apply` says of a plan that is done.
    fn of(plan: &Json) -> Option<Copied> {
        let state = &plan["state"];
        let copied = &state["progress"]["copied"];
        let millis = state["ended_ms"].as_f64()? - state["begun_ms"].as_f64()?;
        let done = state["phase"] == "done";
        done.then_some(Copied {
            records: copied["records"].as_f64()?,
            bytes: copied["bytes"].as_f64()?,
            seconds: millis / 1e3,
        })
    }

    fn megabytes_per_second(self) -> f64 {
        self.bytes / 1e6 / self.seconds
    }
}

impl Operator {
    /// Creates a plan that moves these partitions, and says its number.
    fn plan_move(
        &self,
        partitions: &[PartitionId],
        from: NodeId,
        to: NodeId,
    ) -> Result<String, ScenarioError> {
        let ids: Vec<String> = partitions.iter().map(ToString::to_string).collect();
        let (from, to) = (from.to_string(), to.to_string());
        let mut words = vec!["plan", "create", "move", "--from", &from, "--to", &to];
        words.extend(ids.iter().map(String::as_str));
        let created = self.run(&words)?;
        Ok(created["plan"].to_string())
    }

    /// Creates a plan by which a node gives up all that it holds, or takes its share again, and says its number.
    fn plan_share(&self, node: NodeId, takes: bool) -> Result<String, ScenarioError> {
        let verb = if takes { "recommission" } else { "standby" };
        self.run(&["node", verb, &node.to_string()])?;
        let created = self.run(&["plan", "create", "spread"])?;
        Ok(created["plan"].to_string())
    }

    /// Applies a plan, and waits until it is done.
    fn apply(&self, plan: &str) -> Result<Copied, ScenarioError> {
        let applied = self.run(&["plan", "apply", plan])?;
        Copied::of(&applied).ok_or(ScenarioError::Stuck { what: "the plan did not come to its end" })
    }
}

impl MovesScenario {
    /// Starts the cluster, moves partitions under load, moves them back without, and watches.
    ///
    /// # Errors
    /// When the cluster cannot be started or reached, or a plan does not end in time.
    pub fn run(&self, store: &str) -> Result<ScenarioReport, ScenarioError> {
        let question = format!(
            "95 % reads and 5 % updates, Zipfian, on four nodes; {}: throughput meanwhile, time, processor time, requests \
             that failed.",
            self.what()
        );
        let mut report = ScenarioReport::new("moves", &question);
        let arguments = format!("dev --nodes {NODES} --data-dir {{dir}} --port-base {{base}}");
        let options = self.tontine.options(&arguments, NODES)?;
        let program = options.program.clone();
        let started = Contestant::start("tontine", &PeerOptions::Tontine(options))?;
        let addresses = native_addresses(&started, NODES)?;
        let operator = Operator { program, connect: addresses.join(",") };
        let target = NativeTarget::new(addresses.clone(), store, TIMEOUT)
            .map_err(|error| MeasureError::Drive(DriveError::System(error)))?;
        let target = Arc::new(Opened::new(target));
        let workload = WorkloadOptions {
            field_length: self.value_length,
            ..WorkloadOptions::preset(Preset::B, self.records)
        };
        let load = DriverOptions { depth: LOAD_DEPTH, operations: None, ..self.driver() };
        let driven = started.through("records move", target.clone());
        if self.joins {
            operator.apply(&operator.plan_share(TO, false)?)?;
        }
        driven.load(&workload, &load)?;
        let mut alone = Copied::default();
        if self.joins {
            alone = operator.apply(&operator.plan_share(TO, true)?)?;
            operator.apply(&operator.plan_share(TO, false)?)?;
        }
        target.forget();
        let partitions = self.partitions(&addresses, store)?;

        let (run, course) = beside(&driven, (&workload, &self.driver()), |over| {
            self.conduct(&operator, &partitions, (&driven, &target), over)
        })?;
        if !self.joins {
            alone = operator.apply(&operator.plan_move(&partitions, TO, FROM)?)?;
        }
        let raw = raw_copy(self.tontine.scratch.as_deref(), alone.bytes).map_err(system)?;
        self.judge(&mut report, &run, &course, (alone, raw));
        report.runs.push(run);
        Ok(report)
    }

    /// What happens beside the load.
    fn what(&self) -> String {
        match self.joins {
            true => "a fourth node takes its share of the keys".to_owned(),
            false => format!("{} % of the keys change one of their three nodes", self.share),
        }
    }

    fn driver(&self) -> DriverOptions {
        DriverOptions {
            connections: self.connections,
            rate: self.rate,
            warm_up: WARM_UP,
            duration: Some((self.before + self.within) as f64),
            quiet: self.quiet,
            ..DriverOptions::default()
        }
    }

    /// As many partitions as the share asks for, of those that can go from the one node to the other.
    fn partitions(&self, addresses: &[String], store: &str) -> Result<Vec<PartitionId>, ScenarioError> {
        ask(addresses, async |client| {
            let cluster = client.cluster();
            client.store(store)?;
            let definition = cluster.store(store).expect("the store was found");
            let all = cluster.ring.partitions();
            let wanted = (all.len() as u64 * self.share).div_ceil(100) as usize;
            let fits = |partition: &&model::Partition| {
                let list = PreferenceList::of(definition, partition);
                list.is_replica(FROM) && !list.is_replica(TO)
            };
            Ok(all.iter().filter(fits).take(wanted).map(|partition| partition.id).collect())
        })
    }

    /// Moves the partitions while the run is under way.
    fn conduct(
        &self,
        operator: &Operator,
        partitions: &[PartitionId],
        (driven, opened): (&Contestant, &Opened),
        over: &AtomicBool,
    ) -> Result<Timeline, ScenarioError> {
        let script = Script::begin(opened, over)?;
        let used = || {
            let pids = driven.watched.iter().map(|watched| watched.pid).chain([std::process::id()]);
            pids.filter_map(Sample::take).map(|sample| sample.cpu().as_secs_f64()).sum::<f64>()
        };
        let (began, at_first) = (script.seconds(), used());
        script.wait_until_second(self.before)?;
        let plan = match self.joins {
            true => operator.plan_share(TO, true)?,
            false => operator.plan_move(partitions, FROM, TO)?,
        };
        let (applied, at_begin) = (script.seconds(), used());
        let copied = operator.apply(&plan)?;
        let (settled, at_end) = (script.seconds(), used());
        // A move that ends after the load was not measured.
        script.wait_until(Instant::now())?;
        let cores = [(at_begin - at_first) / (applied - began), (at_end - at_begin) / (settled - applied)];
        Ok(Timeline { applied, settled, cores, copied })
    }

    /// Puts what was seen into figures and words.
    fn judge(
        &self,
        report: &mut ScenarioReport,
        run: &RunReport,
        course: &Timeline,
        (alone, raw): (Copied, f64),
    ) {
        // The last second is cut off by the end of the run.
        let series = &run.series[..run.series.len().saturating_sub(1)];
        let before = PhaseFigures::of(series.iter().filter(|second| within(second, 0.0, course.applied)));
        let at_rest = series.iter().filter(|second| {
            within(second, 0.0, course.applied) || within(second, course.settled, f64::INFINITY)
        });
        let undisturbed = PhaseFigures::of(at_rest);
        let moving = series.iter().filter(|second| {
            (second.second as f64) < course.settled && (second.second + 1) as f64 > course.applied
        });
        let worst = moving.clone().map(|second| second.operations as f64).fold(f64::INFINITY, f64::min)
            / undisturbed.throughput;
        let moving = PhaseFigures::of(moving);
        let outcomes = &run.outcomes;
        let failed = outcomes.failed.values().sum::<u64>() + outcomes.missing + outcomes.corrupt;
        let share = moving.throughput / undisturbed.throughput;
        let cpu = [1e6 * course.cores[0] / before.throughput, 1e6 * course.cores[1] / moving.throughput];
        report.notes.push(format!(
            "Under load, {} in {:.1} s: {:.0} records, {:.1} MB, {:.1} MB/s. Without load it took {:.1} s: {:.1} MB/s; a \
             raw copy of as many bytes, synced, {raw:.1} s.",
            self.what(),
            course.copied.seconds,
            course.copied.records,
            course.copied.bytes / 1e6,
            course.copied.megabytes_per_second(),
            alone.seconds,
            alone.megabytes_per_second(),
        ));
        report.notes.push(format!(
            "Operations per second, and the 99th percentile of latency in the median second: {undisturbed} undisturbed, \
             {moving} while it moved: {:.1} % of undisturbed, {:.1} % in the worst second, {:.2} times the p99.",
            100.0 * share,
            100.0 * worst,
            moving.p99_us / undisturbed.p99_us,
        ));
        report.notes.push(format!(
            "Processor time per operation, of all nodes and the client: {:.1} µs before, {:.1} µs while it moved: at full \
             load, and whatever others do, {:.1} % of the throughput is kept. Of {} requests {failed} failed.",
            cpu[0],
            cpu[1],
            100.0 * cpu[0] / cpu[1],
            run.operations,
        ));
        let figures = [
            ("began_s", course.applied),
            ("ended_s", course.settled),
            ("moved_s", course.copied.seconds),
            ("moved_bytes", course.copied.bytes),
            ("moved_records", course.copied.records),
            ("moved_without_load_s", alone.seconds),
            ("moved_without_load_bytes", alone.bytes),
            ("raw_copy_s", raw),
            ("undisturbed_throughput", undisturbed.throughput),
            ("undisturbed_p99_us", undisturbed.p99_us),
            ("moving_throughput", moving.throughput),
            ("moving_p99_us", moving.p99_us),
            ("throughput_share", share),
            ("throughput_share_worst_second", worst),
            ("before_cpu_us", cpu[0]),
            ("moving_cpu_us", cpu[1]),
            ("requests_failed", failed as f64),
        ];
        report.figures.extend(figures.map(|(name, figure)| (name.to_owned(), figure)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plan_brought_in_is_read_from_its_end_alone() {
        let text = r#"{"state": {"phase": "done", "begun_ms": 1000, "ended_ms": 3000,
            "progress": {"copied": {"records": 5, "bytes": 4000000}}}}"#;
        let mut plan: Json = serde_json::from_str(text).unwrap();
        let copied = Copied::of(&plan).unwrap();
        assert_eq!(copied, Copied { records: 5.0, bytes: 4e6, seconds: 2.0 });
        assert_eq!(copied.megabytes_per_second(), 2.0);
        plan["state"]["phase"] = "aborted".into();
        assert_eq!(Copied::of(&plan), None);
    }
}
