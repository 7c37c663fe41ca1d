//! A table is pushed to a read-only store while clients work on another store of the same nodes; then the next one
//! without load, beside a raw copy of as many bytes.
//!
//! ```text
//!   one run:  undisturbed ── pushed ── fetching ── served ── undisturbed        then, without load: the next table
//! ```
//!
//! Each table is built and pushed with the program's own commands. A push waits for the slowest node, and for the headmaster
//! to publish what is served then, so its time is more than that of the bytes alone.
//! **Never** push the same table twice: nodes keep what they have.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::compare::{Contestant, MeasureError};
use crate::driver::{DriveError, DriverOptions};
use crate::peers::PeerOptions;
use crate::report::RunReport;
use crate::target::native::NativeTarget;
use crate::workload::{Preset, WorkloadOptions};

use super::operator::{Operator, raw_copy};
use super::script::{Opened, PhaseFigures, Script, TIMEOUT, WARM_UP, beside, system, within};
use super::table::{TABLE, build_numbered, files_of};
use super::{ScenarioError, ScenarioReport, TontineArgs, native_addresses};

/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;
/// Nodes, of which each fetches a third of the table.
const NODES: usize = 3;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: a table of two gigabytes beside 20,000 requests a second
  tontine bench fetch --table-records 2000000 --rate 20000 --within 120")]
pub struct FetchScenario {
    /// The nodes.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Records of the table, of a kilobyte each.
    #[arg(long, default_value_t = 500_000, value_name = "COUNT")]
    pub table_records: u64,
    /// Bytes a second that each node may fetch.
    #[arg(long, default_value_t = 1 << 30, value_name = "BYTES")]
    pub ceiling: u64,
    /// Seconds under load before the push.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=3600), value_name = "SECONDS")]
    pub before: u64,
    /// Seconds under load from the beginning of the push; the table must be served by then.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=3600), value_name = "SECONDS")]
    pub within: u64,
    /// Requests in flight.
    #[arg(long, default_value_t = 16)]
    pub connections: usize,
    /// Operations per second (an open loop); without it, as fast as possible.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Records of the store that clients read and update, of a kilobyte each.
    #[arg(long, default_value_t = 200_000)]
    pub records: u64,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// One push.
#[derive(Clone, Copy, Debug)]
struct Pushed {
    /// Seconds since the measured part of the run began; 0 without load.
    from: f64,
    seconds: f64,
    bytes: f64,
}

impl Pushed {
    fn megabytes_per_second(self) -> f64 {
        self.bytes / 1e6 / self.seconds
    }
}

impl FetchScenario {
    /// Builds two tables, starts the cluster, pushes one under load and the other without, and watches.
    ///
    /// # Errors
    /// When a table cannot be built, the cluster cannot be started or reached, or a push does not end in time.
    pub fn run(&self, store: &str) -> Result<ScenarioReport, ScenarioError> {
        let question = format!(
            "95 % reads and 5 % updates, Zipfian, on three nodes, which fetch a table of {} records: throughput \
             meanwhile, time, requests that failed.",
            self.table_records
        );
        let mut report = ScenarioReport::new("fetch", &question);
        let parent = self.tontine.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let tables = tempfile::tempdir_in(parent).map_err(system)?;
        let arguments = format!(
            "dev --nodes {NODES} --data-dir {{dir}} --port-base {{base}} --fetch-ceiling {}",
            self.ceiling
        );
        let options = self.tontine.options(&arguments, NODES)?;
        let mut operator = Operator { program: options.program.clone(), connect: String::new() };
        let first = build_numbered(&operator, tables.path(), 1, self.table_records)?;
        let second = build_numbered(&operator, tables.path(), 2, self.table_records)?;
        let started = Contestant::start("tontine", &PeerOptions::Tontine(options))?;
        let addresses = native_addresses(&started, NODES)?;
        operator.connect = addresses.join(",");
        operator.run(&["store", "create", TABLE, "--read-only", "--consistency", "1,1,1"])?;
        let target = NativeTarget::new(addresses, store, TIMEOUT)
            .map_err(|error| MeasureError::Drive(DriveError::System(error)))?;
        let target = Arc::new(Opened::new(target));
        let workload =
            WorkloadOptions { field_length: 1024, ..WorkloadOptions::preset(Preset::B, self.records) };
        let load = DriverOptions { depth: LOAD_DEPTH, operations: None, ..self.driver() };
        let driven = started.through("a table is pushed", target.clone());
        driven.load(&workload, &load)?;
        target.forget();

        let (run, pushed) = beside(&driven, (&workload, &self.driver()), |over| {
            self.conduct(&operator, &first, &target, over)
        })?;
        let alone = push(&operator, &second)?;
        let raw = raw_copy(self.tontine.scratch.as_deref(), alone.bytes).map_err(system)?;
        judge(&mut report, &run, (pushed, alone), raw);
        report.runs.push(run);
        Ok(report)
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

    /// Pushes a table while the run is under way.
    fn conduct(
        &self,
        operator: &Operator,
        table: &str,
        opened: &Opened,
        over: &AtomicBool,
    ) -> Result<Pushed, ScenarioError> {
        let script = Script::begin(opened, over)?;
        script.wait_until_second(self.before)?;
        let from = script.seconds();
        let pushed = push(operator, table)?;
        // A push that ends after the load was not measured.
        script.wait_until(Instant::now())?;
        Ok(Pushed { from, ..pushed })
    }
}

fn push(operator: &Operator, table: &str) -> Result<Pushed, ScenarioError> {
    let (_, bytes) = files_of(table)?;
    let began = Instant::now();
    operator.run(&["artifact", "push", table])?;
    Ok(Pushed { from: 0.0, seconds: began.elapsed().as_secs_f64(), bytes })
}

/// Puts what was seen into figures and words.
fn judge(report: &mut ScenarioReport, run: &RunReport, (pushed, alone): (Pushed, Pushed), raw: f64) {
    // The last second is cut off by the end of the run.
    let series = &run.series[..run.series.len().saturating_sub(1)];
    let end = pushed.from + pushed.seconds;
    let at_rest =
        series.iter().filter(|second| within(second, 0.0, pushed.from) || within(second, end, f64::INFINITY));
    let undisturbed = PhaseFigures::of(at_rest);
    let fetching = series
        .iter()
        .filter(|second| (second.second as f64) < end && (second.second + 1) as f64 > pushed.from);
    let fetching = PhaseFigures::of(fetching);
    let outcomes = &run.outcomes;
    let failed = outcomes.failed.values().sum::<u64>() + outcomes.missing + outcomes.corrupt;
    report.notes.push(format!(
        "{:.0} MB were pushed in {:.1} s under load, {:.0} MB/s; the next table in {:.1} s without, {:.0} MB/s. A raw \
         copy of as many bytes, synced, took {raw:.1} s, {:.0} MB/s.",
        pushed.bytes / 1e6,
        pushed.seconds,
        pushed.megabytes_per_second(),
        alone.seconds,
        alone.megabytes_per_second(),
        alone.bytes / 1e6 / raw,
    ));
    report.notes.push(format!(
        "Operations per second, and the 99th percentile of latency in the median second: {undisturbed} undisturbed, \
         {fetching} while nodes fetched: {:.1} % of undisturbed, {:.2} times the p99. Of {} requests {failed} failed.",
        100.0 * fetching.throughput / undisturbed.throughput,
        fetching.p99_us / undisturbed.p99_us,
        run.operations,
    ));
    let figures = [
        ("began_s", pushed.from),
        ("ended_s", end),
        ("pushed_bytes", pushed.bytes),
        ("pushed_s", pushed.seconds),
        ("pushed_without_load_s", alone.seconds),
        ("raw_copy_s", raw),
        ("undisturbed_throughput", undisturbed.throughput),
        ("undisturbed_p99_us", undisturbed.p99_us),
        ("fetching_throughput", fetching.throughput),
        ("fetching_p99_us", fetching.p99_us),
        ("requests_failed", failed as f64),
    ];
    report.figures.extend(figures.map(|(name, figure)| (name.to_owned(), figure)));
}
