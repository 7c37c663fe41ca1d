//! A running cluster under a load that rises and falls: what clients notice while it grows and shrinks.
//!
//! It starts no server and orders nothing: who makes the cluster larger, a controller or an operator, is what it watches.
//! Every read is compared, as in each run; one *absent* or wrong value makes the run count as failed.
//!
//! A run whose generator had no time left says nothing of the cluster: its idle time is told.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, ClientOptions};
use model::Cluster;
use runtime::Ports;

use crate::compare::Contestant;
use crate::driver::{DriverOptions, Phase, Rates};
use crate::reach::Reach;
use crate::report::{RunReport, SecondReport, median};
use crate::target::native::NativeTarget;
use crate::workload::WorkloadOptions;

use super::drawing::{LEFT, RIGHT, WIDTH, curve, grid, line, round_step, text, upwards};
use super::script::{Opened, Script, TIMEOUT, beside, system, within};
use super::{ScenarioError, ScenarioReport};

/// Rows of the table.
const ROWS: u64 = 24;
/// Operations under way in each session while records are loaded.
const LOAD_DEPTH: usize = 16;
/// Seconds of a row of the trace.
const TRACE_ROW_S: u64 = 5;
/// Share of a processor below which the generator was too busy to be believed.
const IDLE_MIN: f64 = 0.05;

/// How to load it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example, beside `tontine dev --elastic 3..6`:
  tontine bench elastic --schedule sinusoid:min=500,max=6000,period=300 --svg elastic.svg

Exits with 1 if a request failed, found nothing, or was not started in time.")]
pub struct ElasticScenario {
    /// Requests per second over time: sinusoid:min=500,max=3000,period=600, steps:500x60,2000x120 (a rate and its seconds) or
    /// bursts:base=500,peak=10000,every=600,for=60. Times are in seconds.
    #[arg(long, value_name = "SCHEDULE")]
    pub schedule: Rates,
    /// Seconds; by default once through the schedule.
    #[arg(long, short = 'd', value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// Sessions.
    #[arg(long, short = 'c', default_value_t = 64)]
    pub connections: usize,
    /// Take the records that are there, and load none.
    #[arg(long)]
    pub no_load: bool,
    /// Also draw the run into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Also write the load that was carried into this file, for `tontine elastic simulate`: seconds, requests in a second.
    #[arg(long, value_name = "CSV")]
    pub trace: Option<PathBuf>,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// What is asked.
    #[command(flatten)]
    pub workload: WorkloadOptions,
}

/// How large a cluster was, from a moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size {
    /// Seconds since the measured part began.
    at: f64,
    /// Members that hold something.
    holding: usize,
    /// All members.
    members: usize,
}

impl Size {
    fn of(cluster: &Cluster, at: f64) -> Size {
        let holds = |id| cluster.ring.partitions().iter().any(|partition| partition.nodes.contains(&id));
        let holding = cluster.nodes.iter().filter(|node| holds(node.id)).count();
        Size { at, holding, members: cluster.nodes.len() }
    }

    fn is_as(&self, other: &Size) -> bool {
        (self.holding, self.members) == (other.holding, other.members)
    }
}

impl ElasticScenario {
    /// Runs it on the cluster that `reach` names.
    ///
    /// # Errors
    /// When the cluster cannot be reached, options make no sense, or the drawing cannot be written.
    pub fn run(&self, reach: &Reach) -> Result<ScenarioReport, ScenarioError> {
        let question = "do requests fail while a cluster grows and shrinks with its load?";
        let mut report = ScenarioReport::new("elastic", question);
        let target = NativeTarget::new(reach.connect.clone(), &reach.store, TIMEOUT).map_err(system)?;
        let opened = Arc::new(Opened::new(target));
        let driven = Contestant::running("elastic", opened.clone(), Vec::new());
        let quiet = self.quiet;
        if !self.no_load {
            let load = DriverOptions { depth: LOAD_DEPTH, quiet, ..DriverOptions::default() };
            driven.measure(&self.workload, &load, Phase::Load)?;
            opened.forget();
        }
        let seconds = self.duration.or(self.schedule.once()).unwrap_or(600.0);
        let driver = DriverOptions {
            connections: self.connections,
            schedule: Some(self.schedule.clone()),
            duration: Some(seconds),
            warm_up: super::script::WARM_UP,
            quiet,
            ..DriverOptions::default()
        };
        let (run, sizes) = beside(&driven, (&self.workload, &driver), |over| watch(reach, &opened, over))?;
        let course = FleetCourse { run: &run, sizes: &sizes, rates: &self.schedule, seconds };
        report.notes = course.notes();
        report.figures.insert("requests_failed".to_owned(), course.failed() as f64);
        report.figures.insert("members_most".to_owned(), course.most() as f64);
        report.figures.insert("machine_minutes".to_owned(), course.machine_minutes());
        if let Some(path) = &self.svg {
            write("--svg", path, &course.svg())?;
        }
        if let Some(path) = &self.trace {
            write("--trace", path, &course.trace())?;
        }
        report.runs.push(run);
        Ok(report)
    }
}

fn write(option: &str, path: &Path, text: &str) -> Result<(), ScenarioError> {
    let failed = |error: std::io::Error| ScenarioError::Command {
        command: format!("{option} {}", path.display()),
        reason: error.to_string(),
    };
    std::fs::write(path, text).map_err(failed)
}

/// Looks each half second how large the cluster is, until the run is over.
fn watch(reach: &Reach, opened: &Opened, over: &AtomicBool) -> Result<Vec<Size>, ScenarioError> {
    let script = Script::begin(opened, over)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
    let ports = Ports::os().map_err(system)?;
    let options = ClientOptions { deadline: TIMEOUT, ..ClientOptions::default() };
    let asked = |error: client::ClientError| ScenarioError::NotAsked(error.to_string());
    let client = runtime.block_on(Client::connect(&reach.connect, ports, options)).map_err(asked)?;
    let mut sizes: Vec<Size> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        // A node that is overloaded may not answer now, and does at the next look.
        if let Ok(cluster) = runtime.block_on(client.refresh()) {
            let size = Size::of(&cluster, script.seconds());
            if !sizes.last().is_some_and(|last| last.is_as(&size)) {
                sizes.push(size);
            }
        }
        thread::sleep(Duration::from_millis(500).saturating_sub(began.elapsed()));
    }
    Ok(sizes)
}

/// What was seen.
struct FleetCourse<'a> {
    run: &'a RunReport,
    sizes: &'a [Size],
    rates: &'a Rates,
    seconds: f64,
}

impl FleetCourse<'_> {
    /// Requests that failed, are in doubt, found nothing, found something wrong, or were not started.
    fn failed(&self) -> u64 {
        let outcomes = &self.run.outcomes;
        let reasons = outcomes.failed.values().chain(outcomes.indeterminate.values()).sum::<u64>();
        reasons + outcomes.missing + outcomes.corrupt + outcomes.unstarted
    }

    /// The most members that held something.
    fn most(&self) -> usize {
        self.sizes.iter().map(|size| size.holding).max().unwrap_or(0)
    }

    /// Minutes for which members were of the cluster, from their joining until they had left, summed over them.
    fn machine_minutes(&self) -> f64 {
        let begins =
            self.sizes.iter().enumerate().map(|(place, size)| if place == 0 { 0.0 } else { size.at });
        let ends = self.sizes.iter().skip(1).map(|size| size.at).chain([self.seconds]);
        let part = |((size, begin), end): ((&Size, f64), f64)| size.members as f64 * (end - begin).max(0.0);
        self.sizes.iter().zip(begins).zip(ends).map(part).sum::<f64>() / 60.0
    }

    /// The requests of each few seconds that were done, as a trace.
    fn trace(&self) -> String {
        let mut trace = String::new();
        for from in (0..self.seconds.ceil() as u64).step_by(TRACE_ROW_S as usize) {
            let until = from + TRACE_ROW_S;
            let of_row = self.run.series.iter().filter(|one| (from..until).contains(&one.second));
            let (count, done) = of_row.fold((0, 0), |(count, done), one| (count + 1, done + one.operations));
            if let Some(mean) = done.checked_div(count) {
                trace += &format!("{from},{mean}\n");
            }
        }
        trace
    }

    fn size_at(&self, second: f64) -> Option<&Size> {
        self.sizes.iter().rev().find(|size| size.at <= second).or(self.sizes.first())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![self.table()];
        let sizes: Vec<String> = self
            .sizes
            .iter()
            .map(|size| format!("{} of {} at {:.0} s", size.holding, size.members, size.at))
            .collect();
        notes.push(format!("Members that hold data, of all: {}.", sizes.join(", ")));
        notes.push(format!("Machine-minutes, of all members: {:.1}.", self.machine_minutes()));
        let idle = (1.0 - self.run.client.cores).max(0.0);
        notes.push(format!("The generator was idle for {:.0} % of its processor.", 100.0 * idle));
        if idle < IDLE_MIN {
            notes.push(
                "It had no time left, so this run says nothing of the cluster: lower the rates.".to_owned(),
            );
        }
        notes.push(format!("failed requests: {} of {}", self.failed(), self.run.operations));
        notes
    }

    /// The run in parts of equal length.
    fn table(&self) -> String {
        let mut table = format!(
            "{:>8}  {:>8}  {:>8}  {:>8}  {:>7}\n",
            "seconds", "wanted/s", "done/s", "p99 ms", "members"
        );
        let part = (self.seconds / ROWS as f64).ceil().max(1.0);
        let mut from = 0.0;
        while from < self.seconds {
            let until = (from + part).min(self.seconds);
            let seconds = || self.run.series.iter().filter(|one: &&SecondReport| within(one, from, until));
            let count = seconds().count().max(1) as f64;
            let done = seconds().map(|one| one.operations).sum::<u64>() as f64 / count;
            let p99 = median(seconds().map(|one| one.p99_us)) / 1e3;
            let members = self.size_at(until).map_or(0, |size| size.holding);
            let wanted = self.rates.at((from + until) / 2.0);
            table += &format!("{from:>8.0}  {wanted:>8.0}  {done:>8.0}  {p99:>8.1}  {members:>7}\n");
            from = until;
        }
        table
    }

    /// Rates above, members in the middle, latencies below.
    fn svg(&self) -> String {
        let parts = [(44.0, 164.0), (204.0, 264.0), (304.0, 384.0)];
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"420\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"420\" fill=\"white\"/>\n"
        );
        let across = |at: f64| LEFT + (RIGHT - LEFT) * (at / self.seconds).clamp(0.0, 1.0);
        let title = format!("{}: {} of {} requests failed", self.rates, self.failed(), self.run.operations);
        text(&mut svg, LEFT, 18.0, "font-size=\"14\"", &title);
        let series = &self.run.series;
        let most = series.iter().map(|one| one.operations as f64).fold(1.0, f64::max);
        let top = |most: f64| {
            let step = round_step(most / 4.0);
            ((most / step).ceil().max(1.0) * step, step)
        };
        text(&mut svg, LEFT, 36.0, "", "requests per second; grey: wanted");
        let (rate_top, step) = top(most);
        grid(&mut svg, parts[0], (0.0, rate_top, step));
        let whole = 0..=self.seconds as u64;
        let wanted =
            whole.map(|at| (across(at as f64), upwards(parts[0], self.rates.at(at as f64) / rate_top)));
        curve(&mut svg, wanted, "stroke=\"#aaa\" stroke-width=\"2\"");
        let done = series.iter().map(|one| {
            (across(one.second as f64 + 0.5), upwards(parts[0], one.operations as f64 / rate_top))
        });
        curve(&mut svg, done, "stroke=\"#222\"");
        text(&mut svg, LEFT, 196.0, "", "members that hold data");
        let (size_top, step) = top(self.most() as f64);
        grid(&mut svg, parts[1], (0.0, size_top, step));
        let ends = self.sizes.iter().skip(1).map(|size| size.at).chain([self.seconds]);
        let steps = self.sizes.iter().zip(ends).flat_map(|(size, end)| {
            let height = upwards(parts[1], size.holding as f64 / size_top);
            [(across(size.at), height), (across(end), height)]
        });
        curve(&mut svg, steps, "stroke=\"#2471a3\" stroke-width=\"2\"");
        text(&mut svg, LEFT, 296.0, "", "milliseconds, 99th percentile of each second");
        let p99 = |one: &SecondReport| one.p99_us / 1e3;
        let (p99_top, step) = top(series.iter().map(p99).fold(1.0, f64::max));
        grid(&mut svg, parts[2], (0.0, p99_top, step));
        let slow =
            series.iter().map(|one| (across(one.second as f64 + 0.5), upwards(parts[2], p99(one) / p99_top)));
        curve(&mut svg, slow, "stroke=\"#c0392b\"");
        for size in self.sizes.iter().skip(1) {
            for (top, bottom) in parts {
                line(&mut svg, (across(size.at), across(size.at)), (top, bottom), "stroke=\"#ddd\"");
            }
        }
        let step = round_step(self.seconds / 6.0);
        let mut at = 0.0;
        while at <= self.seconds {
            text(&mut svg, across(at), 404.0, "text-anchor=\"middle\"", &format!("{at:.0} s"));
            at += step;
        }
        svg + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples;

    #[test]
    fn a_course_tells_sizes_idle_time_and_each_kind_of_failure() {
        let mut run = samples::run("elastic", 20, 300);
        run.outcomes.missing = 1;
        run.outcomes.failed.insert("no".to_owned(), 2);
        run.outcomes.indeterminate.insert("unknown".to_owned(), 3);
        run.outcomes.unstarted = 4;
        run.client.cores = 0.99;
        let size = |at, holding| Size { at, holding, members: 4 };
        let sizes = [size(0.0, 3), size(1.0, 4)];
        let rates = Rates::Constant(20.0);
        let course = FleetCourse { run: &run, sizes: &sizes, rates: &rates, seconds: 2.0 };
        let told = course.notes().join("\n");
        for part in ["failed requests: 10 of", "3 of 4 at 0 s, 4 of 4 at 1 s", "says nothing of the cluster"]
        {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(course.svg().matches("<polyline").count(), 4);
        let longer = FleetCourse { seconds: 61.0, ..course };
        assert_eq!(longer.machine_minutes(), 4.0 * 61.0 / 60.0);
        let trace = longer.trace();
        let per_second = run.series.iter().map(|one| one.operations).sum::<u64>() / run.series.len() as u64;
        assert!(run.series.len() <= 5 && trace == format!("0,{per_second}\n"), "{trace}");
    }
}
