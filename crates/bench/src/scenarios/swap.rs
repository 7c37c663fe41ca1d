//! One node with one replica serves artifacts of different sizes: how long does a swap take, and how long the node's start?
//!
//! ```text
//!   for each size:  push 1, push 2 ── swap to 1 ── swap to 2 ── … ── stop ── start ── the first answer
//! ```
//!
//! A swap is timed from before the order's command starts to the first answer of the new artifact at the Redis door, which
//! is asked all the time. So it includes starting a process, judging and publishing. The second artifact differs from the
//! first in one record, so both share their files, and the disk need hold each size once at the source and once at the node.
//! **Never** start a node over what another size left: it would keep what is there.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::compare::Contestant;
use crate::peers::PeerOptions;
use crate::report::median;
use crate::target::resp::RespTarget;
use crate::target::{Outcome, Session, Target};
use crate::workload::Operation;

use super::operator::Operator;
use super::script::system;
use super::table::{TABLE, build};
use super::{ScenarioError, ScenarioReport, TontineArgs, native_addresses};

/// The key whose value is the artifact's number.
const NUMBER: &str = "number";
/// Bytes of a record, about.
const RECORD_BYTES: u64 = 1024;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Ten gigabytes need twenty on the disk:
  tontine bench swap --megabytes 1,100,1000,10000 --scratch /big/disk")]
pub struct SwapScenario {
    /// The node.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Sizes of the artifact.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1000], value_name = "MEGABYTES")]
    pub megabytes: Vec<u64>,
    /// Swaps of each size.
    #[arg(long, default_value_t = 20)]
    pub swaps: usize,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// What was seen of one size.
struct SizeSeen {
    swaps_ms: Vec<f64>,
    start_ms: f64,
}

impl SwapScenario {
    /// Measures each size on its own node, and the start of an empty one.
    ///
    /// # Errors
    /// When a node cannot be started or reached, or a table cannot be built, pushed or swapped.
    pub fn run(&self) -> Result<ScenarioReport, ScenarioError> {
        let mut report = ScenarioReport::new(
            "swap",
            "One node: from the order of a swap to the first answer of the new artifact, and the node's start, by the \
             artifact's size.",
        );
        let parent = self.tontine.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::tempdir_in(&parent).map_err(system)?;
        let (empty, _node) = self.start(&folder.path().join("empty"))?;
        drop(_node);
        report.notes.push(format!("A node without an artifact answers {empty:.0} ms after its start."));
        report.figures.insert("empty_start_ms".to_owned(), empty);
        for &megabytes in &self.megabytes {
            if !self.quiet {
                let _ = writeln!(std::io::stderr(), "swap: {megabytes} MB");
            }
            let place = folder.path().join(megabytes.to_string());
            let seen = self.size(&place, megabytes)?;
            std::fs::remove_dir_all(&place).map_err(system)?;
            let longest = seen.swaps_ms.iter().copied().fold(0.0, f64::max);
            let half = median(seen.swaps_ms.iter().copied());
            report.notes.push(format!(
                "{megabytes} MB: {} swaps, median {half:.0} ms, longest {longest:.0} ms; started again, the node \
                 answers from it after {:.0} ms.",
                self.swaps, seen.start_ms
            ));
            report.figures.extend([
                (format!("swap_median_ms_{megabytes}_mb"), half),
                (format!("swap_longest_ms_{megabytes}_mb"), longest),
                (format!("start_ms_{megabytes}_mb"), seen.start_ms),
            ]);
        }
        Ok(report)
    }

    fn size(&self, place: &Path, megabytes: u64) -> Result<SizeSeen, ScenarioError> {
        let source = place.join("source");
        std::fs::create_dir_all(&source).map_err(system)?;
        let data = place.join("data");
        let (_, node) = self.start(&data)?;
        let operator = self.operator(&node)?;
        let (first, second) = (text(&source.join("1")), text(&source.join("2")));
        let records = megabytes * 1_000_000 / RECORD_BYTES;
        build(&operator, &["--to", &first, "--number", "1"], |input| {
            (0..records).try_for_each(|record| writeln!(input, "key{record}\t{record:0>1000}"))?;
            writeln!(input, "{NUMBER}\t1")
        })?;
        let upon = ["--to", &second, "--number", "2", "--parent", &first, "--changes"];
        build(&operator, &upon, |input| writeln!(input, "{NUMBER}\t2"))?;
        operator.run(&["store", "create", TABLE, "--read-only", "--consistency", "1,1,1"])?;
        operator.run(&["artifact", "push", &first])?;
        operator.run(&["artifact", "push", &second])?;
        std::fs::remove_dir_all(&source).map_err(system)?;
        let mut door = Door::open(&node)?;
        let mut swaps_ms = Vec::with_capacity(self.swaps);
        for swap in 0..self.swaps {
            let number = if swap.is_multiple_of(2) { "1" } else { "2" };
            let began = Instant::now();
            let ordered = std::thread::scope(|scope| {
                let ordered = scope.spawn(|| operator.run(&["artifact", "swap", TABLE, number]));
                let answered = door.wait_for(number);
                let took = began.elapsed();
                ordered.join().expect("an order does not panic")?;
                answered.map(|()| took)
            });
            swaps_ms.push(ordered?.as_secs_f64() * 1e3);
        }
        drop((door, node));
        let began = Instant::now();
        let (_, again) = self.start(&data)?;
        Door::open(&again)?.wait_for(if self.swaps.is_multiple_of(2) { "2" } else { "1" })?;
        Ok(SizeSeen { swaps_ms, start_ms: began.elapsed().as_secs_f64() * 1e3 })
    }

    /// Starts a node over a directory; also the milliseconds until it answers.
    fn start(&self, data: &Path) -> Result<(f64, Contestant), ScenarioError> {
        let arguments = format!(
            "dev --nodes 1 --replicas 1 --port-base {{base}} --fetch-ceiling 1073741824 \
             --data-dir {}",
            data.display()
        );
        let options = self.tontine.options(&arguments, 1)?;
        let began = Instant::now();
        let node = Contestant::start("tontine", &PeerOptions::Tontine(options))?;
        Ok((began.elapsed().as_secs_f64() * 1e3, node))
    }

    fn operator(&self, node: &Contestant) -> Result<Operator, ScenarioError> {
        let program = self.tontine.options("", 1)?.program;
        Ok(Operator { program, connect: native_addresses(node, 1)?.join(",") })
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The Redis door of a node, asked for the artifact's number over one connection.
struct Door {
    runtime: tokio::runtime::Runtime,
    session: Box<dyn Session>,
}

impl Door {
    fn open(node: &Contestant) -> Result<Door, ScenarioError> {
        let address = node.peer.as_ref().map(|peer| peer.resp_target().address).unwrap_or_default();
        let target = RespTarget { store: Some(TABLE.to_owned()), ..RespTarget::new(address) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let opened =
            runtime.block_on(target.open(1)).map_err(|error| system(std::io::Error::other(error)))?;
        let session =
            opened.into_iter().next().ok_or(ScenarioError::Stuck { what: "no session was opened" })?;
        Ok(Door { runtime, session })
    }

    /// Asks until the answer comes from the artifact with this number.
    fn wait_for(&mut self, number: &str) -> Result<(), ScenarioError> {
        let asked = [Operation::Get { key: NUMBER.into() }];
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let mut answers = Vec::new();
            self.runtime.block_on(self.session.run(&asked, &mut answers));
            if let Some(Outcome::Value(Some(value))) = answers.first().map(|answer| &answer.outcome)
                && value[..] == *number.as_bytes()
            {
                return Ok(());
            }
        }
        Err(ScenarioError::Stuck { what: "the door does not answer from the artifact that was ordered" })
    }
}
