//! Feeds by three placements: the paper's one active node (θ = 100,000), by hash, and in windows of 64. ZStore's experiments
//! 1 to 5 (paper 003, 7.1), and what the paper did not measure: what θ does, many groups, and what a token costs.
//!
//! ```text
//!   for N=1, and N=3 R=2:  for each placement:  its own cluster of processes ── loaded ── each request measured
//! ```
//!
//! Singles, requests of several keys and all placements are asked by one client of one thread, as in the paper.
//! **Never** compare throughput of more processes than the machine has processors: compare processor time, messages and
//! nodes.

mod drive;
mod experiments;
mod groups;
mod rows;
mod site;
mod theta;
mod token;

use crate::scenarios::balance::interrupt::Interrupt;

use self::experiments::Sizes;
use super::{ScenarioError, ScenarioReport, TontineArgs};

/// Which experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FeedsExperiment {
    /// Small pairs, singly and up to 20,000 at a time, three nodes (the paper's 1).
    Items,
    /// Ten pairs of 1 KiB to 1 MiB, singly and together (2).
    Values,
    /// Pairs of 1 KiB, singly and up to 20,000 at a time (3).
    Kilobyte,
    /// One node, four and sixteen (4).
    Nodes,
    /// Ten keys with gaps of 1 to 50,000 between them, four nodes (5).
    Gaps,
    /// Theta from 1 to 100,000 on four bounded nodes: the greatest rate, delays at one rate, and the busiest node.
    Theta,
    /// A thousand Zipfian groups on four nodes: appends, and reads of the twenty newest.
    Groups,
    /// What a token costs, in nanoseconds; no node is started.
    Token,
}

/// A placement that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    name: &'static str,
    /// Sequence numbers of a window; none by hash.
    theta: Option<u64>,
}

/// All of them. The paper's is that of its experiments: one active node.
const LINES: [Line; 3] = [
    Line { name: "paper", theta: Some(100_000) },
    Line { name: "hash", theta: None },
    Line { name: "windows", theta: Some(64) },
];

/// N, R and W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QuorumNumbers {
    name: &'static str,
    consistency: &'static str,
    replicas: usize,
}

/// Both.
const NUMBERS: [QuorumNumbers; 2] = [
    QuorumNumbers { name: "N=1", consistency: "1,1,1", replicas: 1 },
    QuorumNumbers { name: "N=3 R=2", consistency: "3,2,2", replicas: 3 },
];

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine bench feeds --experiment items --quick     a look, in less than three minutes
  tontine bench feeds --experiment items             as many keys and seconds as figures need
  tontine bench feeds --experiment theta             makes control groups, which root may, and removes them
  tontine bench feeds --experiment token             in this process

Exits with 1 if an entry was not there that had been written, or, but for `theta`, a request failed.")]
pub struct FeedsScenario {
    /// The nodes.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Which experiment.
    #[arg(long, value_enum, value_name = "EXPERIMENT")]
    pub experiment: FeedsExperiment,
    /// Fewer keys, sizes and seconds: to see that it runs, not for figures.
    #[arg(long)]
    pub quick: bool,
    /// Seconds of each measurement; by default 5, or 0.5 with --quick.
    #[arg(long, short = 'd', value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// Requests under way.
    #[arg(long, short = 'c', default_value_t = 8, value_name = "COUNT")]
    pub connections: usize,
    /// Entries that are loaded, instead of the experiment's own number.
    #[arg(long, value_name = "COUNT")]
    pub keys: Option<u64>,
    /// Processors of each node in `theta`; 0 bounds none. All four together must do less than one client can ask of them.
    #[arg(long, default_value_t = 0.06, value_name = "PROCESSORS")]
    pub cap: f64,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

impl FeedsScenario {
    /// Starts clusters one after another, measures, and stops them.
    ///
    /// # Errors
    /// When nodes cannot be started, bounded or asked.
    pub fn run(&self) -> Result<ScenarioReport, ScenarioError> {
        let question = "which placement is right for a feed: one active node, by hash, or windows?";
        let mut report = ScenarioReport::new("feeds", question);
        if self.experiment == FeedsExperiment::Token {
            token::run(&mut report);
            return Ok(report);
        }
        let interrupt = Interrupt::listen()?;
        let rows = match self.experiment {
            FeedsExperiment::Items => self.items(&interrupt, Sizes::small(self.quick))?,
            FeedsExperiment::Kilobyte => self.items(&interrupt, Sizes::kilobyte(self.quick))?,
            FeedsExperiment::Values => self.values(&interrupt)?,
            FeedsExperiment::Nodes => self.nodes(&interrupt)?,
            FeedsExperiment::Gaps => self.gaps(&interrupt)?,
            FeedsExperiment::Theta => self.theta(&interrupt)?,
            FeedsExperiment::Groups => self.groups(&interrupt)?,
            FeedsExperiment::Token => unreachable!("it has no nodes"),
        };
        // More than nodes carry is what `theta` asks of some placements.
        rows::tell(&mut report, &rows, self.experiment != FeedsExperiment::Theta);
        let processors = report.context.cores;
        report.notes.push(format!(
            "This machine has {processors} processors for all nodes and the client: keys a second show no growth with nodes here. \
             Compare processor time for each key, messages and nodes asked."
        ));
        if self.quick {
            report.notes.push("--quick: too short for figures.".to_owned());
        }
        Ok(report)
    }

    /// Seconds of a measurement.
    fn seconds(&self) -> f64 {
        self.duration.unwrap_or(if self.quick { 0.5 } else { 5.0 })
    }

    fn say(&self, what: &str) {
        if !self.quiet {
            use std::io::Write;
            // A closed stderr is no reason to stop measuring.
            let _ = writeln!(std::io::stderr(), "feeds: {what}");
        }
    }
}
