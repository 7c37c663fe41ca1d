//! One node serves the same records from two stores: one that takes writes, in memory, and a read-only one. What does a GET,
//! or a key of an MGET, cost over RESP in the second, beside the first?
//!
//! The records are loaded into the first store, exported, built into an artifact and pushed, with the program's own
//! commands. So both stores answer the same bytes, and one process serves both.
//! **Never** watch the two stores in different processes: what a process costs beside its requests would not be alike.

use std::path::Path;
use std::sync::Arc;

use crate::compare::{Contestant, alternate};
use crate::driver::DriverOptions;
use crate::peers::PeerOptions;
use crate::target::resp::RespTarget;
use crate::workload::{Preset, WorkloadOptions};

use super::operator::Operator;
use super::script::system;
use super::table::TABLE;
use super::{ScenarioError, ScenarioReport, TontineArgs, native_addresses};

/// How the node is started unless the command line says otherwise.
const ARGUMENTS: &str = "dev --nodes 1 --replicas 1 --engine memory --workers 1 --data-dir {dir} --port-base {base} \
                        ";
/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;
/// The store that takes writes.
const ORDINARY: &str = "default";

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct DoorsScenario {
    /// The node.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Alternating pairs of runs for each figure.
    #[arg(long, default_value_t = 7)]
    pub pairs: usize,
    /// Seconds of each run.
    #[arg(long, default_value_t = 2.0)]
    pub duration: f64,
    /// Seconds of warm-up before each.
    #[arg(long, default_value_t = 0.5)]
    pub warm_up: f64,
    /// Connections.
    #[arg(long, default_value_t = 50)]
    pub connections: usize,
    /// Pipeline depths of GET; MGET is sent alone.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    pub depths: Vec<usize>,
    /// Keys of an MGET.
    #[arg(long, default_value_t = 32)]
    pub keys: usize,
    /// Records.
    #[arg(long, default_value_t = 1_000_000)]
    pub records: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    pub value_length: usize,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

impl DoorsScenario {
    /// Starts the node, fills both stores, measures, stops it.
    ///
    /// # Errors
    /// When the node cannot be started or reached, or the table cannot be built or pushed.
    pub fn run(&self) -> Result<ScenarioReport, ScenarioError> {
        let mut report = ScenarioReport::new(
            "doors",
            "GET and MGET over RESP, one node: server CPU of a read-only store against one in memory that takes writes.",
        );
        let options = self.tontine.options(ARGUMENTS, 1)?;
        let program = options.program.clone();
        let ordinary = Contestant::start("memory", &PeerOptions::Tontine(options))?;
        let load = DriverOptions { depth: LOAD_DEPTH, operations: None, ..self.driver(LOAD_DEPTH) };
        ordinary.load(&self.workload(Preset::Set), &load)?;
        let operator = Operator { program, connect: native_addresses(&ordinary, 1)?.join(",") };
        self.push(&operator)?;
        let address = ordinary.peer.as_ref().map(|peer| peer.resp_target().address).unwrap_or_default();
        let target = RespTarget { store: Some(TABLE.to_owned()), ..RespTarget::new(address) };
        let table = ordinary.through("read-only", Arc::new(target));
        for &depth in &self.depths {
            let pairs =
                alternate(&table, &ordinary, &self.workload(Preset::Get), &self.driver(depth), self.pairs)?;
            report.compare(self.title(&format!("GET, pipeline {depth}")), pairs);
        }
        let workload =
            WorkloadOptions { multi_get: Some(1.0), multi_get_keys: self.keys, ..self.workload(Preset::Get) };
        let pairs = alternate(&table, &ordinary, &workload, &self.driver(1), self.pairs)?;
        report.compare(self.title(&format!("MGET of {} keys", self.keys)), pairs);
        Ok(report)
    }

    /// Takes the records of one store, and makes the table of the other one of them.
    fn push(&self, operator: &Operator) -> Result<(), ScenarioError> {
        let parent = self.tontine.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::tempdir_in(parent).map_err(system)?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (records, artifact) = (text(&folder.path().join("all.tsv")), text(&folder.path().join("table")));
        operator.run(&["export", &records, "-s", ORDINARY, "--no-expires", "--no-header", "--escapes"])?;
        operator.run_alone(&[
            "artifact",
            "build",
            &records,
            "--key",
            "1",
            "--value",
            "2",
            "--escapes",
            "-s",
            TABLE,
            "--to",
            &artifact,
        ])?;
        operator.run(&["store", "create", TABLE, "--read-only", "--consistency", "1,1,1"])?;
        operator.run(&["artifact", "push", &artifact])?;
        Ok(())
    }

    fn title(&self, what: &str) -> String {
        format!("{what}, {} connections, {} bytes", self.connections, self.value_length)
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
