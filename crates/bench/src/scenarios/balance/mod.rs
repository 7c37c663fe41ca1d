//! Nodes that are bounded to unequal shares of the machine: what each carries alone, what they carry together, and what
//! moving partitions makes of that, by hand or by the autopilot. The experiments 5.1 to 5.12 of the thesis that this work
//! goes back to, and one of its own with three replicas.
//!
//! ```text
//!   nodes 17 : 32 : 44 of 1.4 processors, by control groups          the rest: the generator, the headmaster
//!
//!   one run:  loaded ── bounded ── undisturbed (nothing may move) ── may move ── … ── the last 30 s: what came of it
//! ```
//!
//! The load is a closed loop over keys that are all alike: a node that is full holds up everything. Clients ask the node
//! that holds a key, as native ones do, and three replicas through the Redis ports of all nodes in turn.
//! **Never** believe a throughput here without the generator's idle time beside it.

pub(super) mod cluster;
mod draws;
mod generator;
mod groups;
mod hands;
pub(super) mod interrupt;
mod plot;
mod rows;
mod series;
mod watch;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::processes::Context;
use crate::report::{Percentiles, median};

use self::cluster::{Capped, Shape};
use self::generator::{CallOutcome, Generator, LoadShape};
use self::interrupt::Interrupt;
use self::rows::AloneRow;
use self::series::{Series, Summary, mean};
use self::watch::{Atlas, WatchStage, Watched, watch};
use super::script::{ask, system};
use super::{ScenarioError, ScenarioReport, TontineArgs};

pub use self::groups::GroupError;

/// The share of writes, as in the thesis.
const WRITES: f64 = 0.05;
/// How long there is load before anything is measured. A process that has just been loaded is slow at first.
const WARM_UP: Duration = Duration::from_secs(10);
/// How long the autopilot looks before it can decide, where it shall be ready when the load comes.
const GATHERS: Duration = Duration::from_secs(45);
/// Requests per second for three replicas unless told otherwise: the first node does most of them, and shall not be full.
const RATE_UNEQUAL: f64 = 70_000.0;
/// Records for three replicas unless told otherwise, and for the others.
const RECORDS: (u64, u64) = (2_000, 200_000);

/// Which experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Experiment {
    /// Each node alone, with a headmaster beside it and without (5.1 to 5.6).
    Alone,
    /// The two slower nodes, each with half of the partitions (5.7 to 5.9).
    Two,
    /// A third node joins the two under load (5.10 to 5.12).
    Third,
    /// Three nodes with N=3 R=2 W=2, at a fixed rate: only the order of lists can change.
    Unequal,
    /// What kinds of work cost a node, nodes not bounded.
    Weights,
}

/// Who moves partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Moves {
    /// The autopilot, by its own policy.
    Even,
    /// The autopilot, by the policy of the thesis.
    Thresholds,
    /// An operator, by the rule of the thesis: one partition from a node above 85 % to the calmest below.
    ByHand,
    /// Nobody.
    Off,
}

impl Moves {
    fn word(self) -> &'static str {
        match self {
            Moves::Even => "even",
            Moves::Thresholds => "thresholds",
            Moves::ByHand => "by hand",
            Moves::Off => "off",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
It makes control groups, which root may, and removes them.
Examples:
  tontine bench balance alone
  tontine bench balance two --policy by-hand --partitions 32
  tontine bench balance third --runs 3 --within 420 --to figures/     time series and drawings, too
  tontine bench balance unequal --runs 3
  tontine bench balance weights")]
pub struct BalanceScenario {
    /// The nodes.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Which experiment.
    #[arg(value_enum)]
    pub experiment: Experiment,
    /// Who moves partitions.
    #[arg(long, value_enum, default_value = "even")]
    pub policy: Moves,
    /// Partitions; 32 for three replicas, and 16 otherwise.
    #[arg(long)]
    pub partitions: Option<usize>,
    /// How nodes compare.
    #[arg(long, value_delimiter = ':', default_values_t = [17.0, 32.0, 44.0], value_name = "A:B:C")]
    pub shares: Vec<f64>,
    /// Processors that all nodes may use together.
    #[arg(long, default_value_t = 1.4)]
    pub processors: f64,
    /// How often it is repeated.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Seconds under load before anything may move.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3600), value_name = "SECONDS")]
    pub before: u64,
    /// Seconds under load from then on.
    #[arg(long, default_value_t = 240, value_parser = clap::value_parser!(u64).range(30..=7200), value_name = "SECONDS")]
    pub within: u64,
    /// Seconds for which each node is measured alone; 0 measures none.
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    pub alone: u64,
    /// Records; 2000 for three replicas, and 200000 otherwise.
    #[arg(long)]
    pub records: Option<u64>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    pub value_length: usize,
    /// Batches under way at once.
    #[arg(long, default_value_t = 96)]
    pub connections: usize,
    /// Requests of a batch.
    #[arg(long, default_value_t = 32)]
    pub depth: usize,
    /// A setting of the autopilot, before the load comes; repeat it for each.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// Requests per second for three replicas.
    #[arg(long, default_value_t = RATE_UNEQUAL)]
    pub rate: f64,
    /// Also write each run's time series, drawing, and what the program said, to this directory.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// What a node carries alone.
struct Alone {
    row: AloneRow,
    throughput: f64,
}

impl BalanceScenario {
    /// Starts clusters, bounds and loads them, watches, and ends them.
    ///
    /// # Errors
    /// When nodes cannot be started or bounded, an order is refused, or it is told to stop.
    pub fn run(&self) -> Result<ScenarioReport, ScenarioError> {
        let sound =
            self.shares.len() == 3 && self.shares.iter().chain([&self.processors]).all(|one| *one > 0.0);
        if !sound {
            let what = "--shares takes three numbers above 0, such as 17:32:44, and --processors one";
            return Err(ScenarioError::Stuck { what });
        }
        let interrupt = Interrupt::listen()?;
        if let Some(directory) = &self.to {
            fs::create_dir_all(directory).map_err(system)?;
        }
        match self.experiment {
            Experiment::Alone => self.each_alone(&interrupt),
            Experiment::Two | Experiment::Third => self.moving(&interrupt),
            Experiment::Unequal => self.unequal(&interrupt),
            Experiment::Weights => weights::measure(self, &interrupt),
        }
    }

    /// Processors of each node.
    fn caps(&self) -> Vec<f64> {
        let sum: f64 = self.shares.iter().sum();
        self.shares.iter().map(|share| share / sum * self.processors).collect()
    }

    fn is_third(&self) -> bool {
        self.experiment == Experiment::Third
    }

    fn partitions(&self) -> usize {
        self.partitions.unwrap_or(if self.experiment == Experiment::Unequal { 32 } else { 16 })
    }

    fn records(&self) -> u64 {
        let (three, one) = RECORDS;
        self.records.unwrap_or(if self.experiment == Experiment::Unequal { three } else { one })
    }

    fn load_of(&self, keys: Vec<Bytes>) -> LoadShape {
        LoadShape {
            keys,
            zipf: false,
            writes: WRITES,
            value_length: self.value_length,
            connections: self.connections,
            depth: self.depth,
            rate: None,
        }
    }

    fn each_alone(&self, interrupt: &Interrupt) -> Result<ScenarioReport, ScenarioError> {
        let question = "Each node alone, bounded: 95 % reads and 5 % writes, as fast as it answers.";
        let mut report = ScenarioReport::new("balance alone", question);
        let mut rows = vec![AloneRow::heading()];
        for (headmaster, word) in [(true, "with"), (false, "without")] {
            for (number, &cap) in (1..).zip(&self.caps()) {
                let alone = self.alone(cap, headmaster, self.alone.max(5), interrupt)?;
                report
                    .figures
                    .insert(format!("alone_{number}_{word}_headmaster_throughput"), alone.throughput);
                rows.push(alone.row.row(&format!("n{number} {word} headmaster")));
            }
        }
        report.notes.push(rows.join("\n"));
        Ok(report)
    }

    /// One node alone, for this many seconds.
    fn alone(
        &self,
        cap: f64,
        headmaster: bool,
        seconds: u64,
        interrupt: &Interrupt,
    ) -> Result<Alone, ScenarioError> {
        self.say(&format!("a node of {cap:.3} processors, alone"));
        let shape = Shape { nodes: 1, partitions: self.partitions(), consistency: "1,1,1", headmaster };
        let capped = Capped::start(&self.tontine, shape, interrupt)?;
        let keys = capped.load(self.records(), self.value_length, true)?;
        if headmaster {
            capped.operator.run(&["balance", "observe"])?;
        }
        capped.bound(&[cap])?;
        let (watched, seen) =
            self.under_load(&capped, self.load_of(keys), false, seconds, interrupt, |_| Ok(()))?;
        let each = |of: fn(&series::Second) -> f64| median(watched.seconds.iter().map(of));
        let throughput = mean(watched.seconds.iter().map(|one| one.throughput));
        let row = AloneRow {
            cap,
            throughput,
            latency_us: Percentiles::of(&seen.latency, 1e3),
            used: each(|one| one.nodes.first().map_or(f64::NAN, |node| node.used)),
            generator_idle: each(|one| one.generator_idle),
            machine_idle: each(|one| one.machine_idle),
            errors: watched.seconds.iter().map(|one| one.errors).sum(),
        };
        Ok(Alone { row, throughput })
    }

    /// What each carries that is its own cluster, all at the same time: so they share the machine as they do together.
    /// Each has as many records as it should have beside the others.
    fn alone_at_once(&self, caps: &[f64], interrupt: &Interrupt) -> Result<Vec<f64>, ScenarioError> {
        self.say("each node alone, all at once");
        let shape = Shape { nodes: 1, partitions: self.partitions(), consistency: "1,1,1", headmaster: true };
        let mut clusters = Vec::new();
        for &cap in caps {
            let capped = Capped::start(&self.tontine, shape, interrupt)?;
            let records = (self.records() as f64 * cap / caps.iter().sum::<f64>()) as u64;
            let keys = capped.load(records, self.value_length, true)?;
            capped.operator.run(&["balance", "observe"])?;
            capped.bound(&[cap])?;
            let cluster = ask(&capped.addresses, async |client| Ok(client.cluster()))?;
            let routes = Atlas::new(&keys, false).routes(&cluster);
            clusters.push((capped, self.load_of(keys), routes));
        }
        let start = |(capped, load, routes)| {
            let generator = Generator::start(load, routes).map_err(system)?;
            Ok((capped, generator))
        };
        let running =
            clusters.into_iter().map(start).collect::<Result<Vec<(Capped, Generator)>, ScenarioError>>()?;
        rest(WARM_UP, interrupt)?;
        let count = || running.iter().map(|(_, generator)| generator.counts().0).collect::<Vec<_>>();
        let (before, began) = (count(), Instant::now());
        rest(Duration::from_secs(self.alone), interrupt)?;
        let (after, took) = (count(), began.elapsed().as_secs_f64());
        Ok(before.into_iter().zip(after).map(|(before, after)| (after - before) as f64 / took).collect())
    }

    /// Two nodes, or a third one that joins them.
    fn moving(&self, interrupt: &Interrupt) -> Result<ScenarioReport, ScenarioError> {
        let (name, nodes) = if self.is_third() { ("balance third", 3) } else { ("balance two", 2) };
        let question = format!(
            "95 % reads and 5 % writes of {} records, N=1, {} partitions, moved: {}. What do {nodes} unequal nodes carry \
             together, beside what each carries alone?",
            self.records(),
            self.partitions(),
            self.policy.word()
        );
        let mut report = ScenarioReport::new(name, &question);
        let caps: Vec<f64> = self.caps().into_iter().take(nodes).collect();
        let alone = if self.alone > 0 { self.alone_at_once(&caps, interrupt)? } else { Vec::new() };
        let mut summaries = Vec::new();
        for run in 1..=self.runs {
            let series = self.trial(&caps, &alone, run, interrupt)?;
            summaries.push(series.summary());
            self.write(&series, run)?;
        }
        self.judge(&mut report, &caps, &alone, &summaries);
        Ok(report)
    }

    /// One run of two nodes, or of three.
    fn trial(
        &self,
        caps: &[f64],
        alone: &[f64],
        run: u32,
        interrupt: &Interrupt,
    ) -> Result<Series, ScenarioError> {
        let (third, before) = (self.is_third(), self.before as f64);
        let title = format!(
            "{} unequal nodes, {} partitions, moved: {}",
            if third { "A third node joins two" } else { "Two" },
            self.partitions(),
            self.policy.word()
        );
        self.say(&format!("run {run}: {title}"));
        let shape = Shape { nodes: 2, partitions: self.partitions(), consistency: "1,1,1", headmaster: true };
        let capped = Capped::start(&self.tontine, shape, interrupt)?;
        let keys = capped.load(self.records(), self.value_length, self.quiet)?;
        hands::prepare(&capped.operator, self.policy, &self.settings)?;
        capped.bound(&caps[..2])?;
        let context = Context::here();
        let seconds = self.before + self.within;
        let script = |stage: &WatchStage| {
            if !stage.wait_until(before) {
                return Ok(());
            }
            if third {
                capped.join(&self.tontine, caps[2])?;
            }
            hands::conduct(&capped.operator, self.policy, stage)?;
            // A process ends with the thread that started it, and the joined node shall stay.
            stage.wait_until(f64::INFINITY);
            Ok(())
        };
        let (watched, seen) =
            self.under_load(&capped, self.load_of(keys), false, seconds, interrupt, script)?;
        if let Some(error) = seen.first_error {
            self.say(&format!("requests failed, the first with: {error}"));
        }
        let Watched { seconds, plans, said, .. } = watched;
        let (caps, alone) = (caps.to_vec(), alone.to_vec());
        Ok(Series { title, context, caps, alone, acts_from: before, seconds, plans, said })
    }

    /// Three nodes that hold everything, at a fixed rate.
    fn unequal(&self, interrupt: &Interrupt) -> Result<ScenarioReport, ScenarioError> {
        let question = format!(
            "95 % reads and 5 % writes, Zipfian, of {} records, N=3 R=2 W=2, {} partitions, {} requests a second through all \
             nodes in turn: how soon does the autopilot see that nodes are unequal, and what does it make of it?",
            self.records(),
            self.partitions(),
            self.rate
        );
        let mut report = ScenarioReport::new("balance unequal", &question);
        let mut rows = vec![rows::unequal_heading()];
        for run in 1..=self.runs {
            self.say(&format!("run {run}: three unequal nodes, N=3"));
            let shape =
                Shape { nodes: 3, partitions: self.partitions(), consistency: "3,2,2", headmaster: true };
            let capped = Capped::start(&self.tontine, shape, interrupt)?;
            let keys = capped.load(self.records(), self.value_length, true)?;
            hands::prepare(&capped.operator, self.policy, &self.settings)?;
            if matches!(self.policy, Moves::Even | Moves::Thresholds) {
                capped.operator.run(&["balance", "on"])?;
            }
            let caps = self.caps();
            capped.bound(&caps)?;
            rest(GATHERS, interrupt)?;
            let load = LoadShape { zipf: true, rate: Some(self.rate), ..self.load_of(keys) };
            let context = Context::here();
            let (watched, _) = self.under_load(&capped, load, true, self.within, interrupt, |_| Ok(()))?;
            let Watched { seconds, plans, said, seen_over_mean } = watched;
            let title =
                format!("Three unequal nodes, N=3, {} partitions, {}", self.partitions(), self.policy.word());
            let series =
                Series { title, context, caps, alone: Vec::new(), acts_from: 0.0, seconds, plans, said };
            rows.push(rows::unequal_row(run, &series, seen_over_mean));
            report.figures.extend(rows::unequal_figures(run, &series, seen_over_mean));
            self.write(&series, run)?;
        }
        report.notes.push(rows.join("\n"));
        Ok(report)
    }

    /// Loads a cluster that is bounded, and watches for this many seconds while `hands` do something. At a fixed rate the load
    /// begins with the first second; otherwise it has warmed up.
    fn under_load(
        &self,
        capped: &Capped,
        load: LoadShape,
        in_turn: bool,
        seconds: u64,
        interrupt: &Interrupt,
        hands: impl FnOnce(&WatchStage) -> Result<(), ScenarioError> + Send,
    ) -> Result<(Watched, CallOutcome), ScenarioError> {
        let mut atlas = Atlas::new(&load.keys, in_turn);
        let cluster = ask(&capped.addresses, async |client| Ok(client.cluster()))?;
        let warm_up = if load.rate.is_some() { Duration::ZERO } else { WARM_UP };
        let generator = Generator::start(load, atlas.routes(&cluster)).map_err(system)?;
        rest(warm_up, interrupt)?;
        generator.forget();
        let watched = watch(capped, &generator, atlas, seconds, interrupt, hands)?;
        let seen = generator.stop().map_err(system)?;
        if let Some(error) = &seen.first_error {
            self.say(&format!("requests failed, the first with: {error}"));
        }
        match seen.latency.is_empty() {
            true => Err(ScenarioError::NotAsked(seen.first_error.unwrap_or_default())),
            false => Ok((watched, seen)),
        }
    }

    /// Puts what was seen into figures and rows.
    fn judge(&self, report: &mut ScenarioReport, caps: &[f64], alone: &[f64], summaries: &[Summary]) {
        let carry = if alone.is_empty() { caps } else { alone };
        let best = series::best_share(carry, self.partitions());
        let mut rows = vec![rows::moving_heading()];
        rows.extend((1..).zip(summaries).map(|(run, summary)| rows::moving_row(run, summary)));
        report.notes.push(rows.join("\n"));
        if !alone.is_empty() {
            let each: Vec<String> = alone.iter().map(|one| format!("{one:.0}")).collect();
            report.notes.push(format!(
                "Each as its own cluster, all at once, they carry {} requests a second, {:.0} together. Whole partitions, all alike, can be shared out so \
                 that they carry {:.1} % of that at best.",
                each.join(", "),
                alone.iter().sum::<f64>(),
                100.0 * best
            ));
        }
        report.figures.extend(rows::moving_figures(summaries, best));
        if let Some(share) = report.figures.get("share_of_alone") {
            report.notes.push(format!("Median of {} run(s): {:.1} %.", summaries.len(), 100.0 * share));
        }
    }

    /// Writes what is kept of a run.
    fn write(&self, series: &Series, run: u32) -> Result<(), ScenarioError> {
        let Some(directory) = &self.to else { return Ok(()) };
        let experiment = format!("{:?}", self.experiment).to_lowercase();
        let policy = self.policy.word().replace(' ', "-");
        let name = format!("balance-{experiment}-{}-{policy}-{run}", self.partitions());
        let write = |ending: &str, text: String| {
            fs::write(Path::new(directory).join(format!("{name}.{ending}")), text).map_err(system)
        };
        write("json", serde_json::to_string(series).expect("plain data becomes JSON") + "\n")?;
        write("svg", series.svg())?;
        let said =
            series.said.iter().map(|said| format!("{:.0} s $ {}\n{}\n", said.at, said.command, said.text));
        write("txt", said.collect::<Vec<_>>().join("\n"))
    }

    /// Says how far it is.
    fn say(&self, words: &str) {
        if !self.quiet {
            use std::io::Write;
            // A closed stderr is no reason to stop measuring.
            let _ = writeln!(std::io::stderr(), "balance: {words}");
        }
    }
}

/// Waits for some time, unless it is told to stop.
fn rest(time: Duration, interrupt: &Interrupt) -> Result<(), ScenarioError> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        interrupt.check()?;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        scenario: BalanceScenario,
    }

    #[test]
    fn nodes_share_the_processors_as_told() {
        let scenario = |words: &[&str]| Line::parse_from([&["balance"], words].concat()).scenario;
        let caps = scenario(&["two"]).caps();
        let rounded: Vec<f64> = caps.iter().map(|cap| (cap * 1e3).round() / 1e3).collect();
        assert_eq!(rounded, [0.256, 0.482, 0.662]);
        let halves = scenario(&["unequal", "--shares", "1:1", "--processors", "1"]);
        assert_eq!((halves.caps(), halves.partitions(), halves.records()), (vec![0.5, 0.5], 32, 2_000));
    }
}
