//! A cluster of processes, each node bounded by its own control group.
//!
//! The processes that start nodes, and the headmaster beside them, are not bounded: on their own machines they would
//! not be either.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::NodeId;
use parking_lot::Mutex;

use crate::compare::{Contestant, MeasureError};
use crate::driver::DriverOptions;
use crate::peers::{PeerOptions, ServerProcess, start_beside};
use crate::workload::{InsertOrder, Preset, Workload, WorkloadOptions};

use super::super::operator::Operator;
use super::super::{ScenarioError, TontineArgs, native_addresses};
use super::groups::Group;
use super::interrupt::Interrupt;

/// Loading is no part of the figures: a pipeline makes it short.
const LOAD_DEPTH: usize = 16;
/// How long a node that registers, or a line that a program prints, is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked for.
const POLL: Duration = Duration::from_millis(250);

/// What shall be started.
#[derive(Clone, Copy, Debug)]
pub(in crate::scenarios) struct Shape {
    /// Nodes at the beginning.
    pub(in crate::scenarios) nodes: usize,
    /// Partitions.
    pub(in crate::scenarios) partitions: usize,
    /// N, R and W.
    pub(in crate::scenarios) consistency: &'static str,
    /// Whether a headmaster runs beside them.
    pub(in crate::scenarios) headmaster: bool,
}

/// A node that is bounded.
#[derive(Clone, Copy, Debug)]
pub(in crate::scenarios) struct Bounded {
    /// Which.
    pub(in crate::scenarios) node: NodeId,
    /// Its process.
    pub(in crate::scenarios) pid: u32,
    /// Processors that it may use.
    pub(in crate::scenarios) cap: f64,
}

/// The cluster. Dropped, its processes end, and then their groups go: fields are dropped in this order.
pub(in crate::scenarios) struct Capped {
    joined: Mutex<Vec<ServerProcess>>,
    contestant: Contestant,
    groups: Mutex<Vec<Group>>,
    bounded: Mutex<Vec<Bounded>>,
    interrupt: Interrupt,
    /// Runs commands against it.
    pub(in crate::scenarios) operator: Operator,
    /// Native addresses of the first nodes.
    pub(in crate::scenarios) addresses: Vec<String>,
}

impl Capped {
    /// Starts nodes, which are not bounded yet.
    ///
    /// # Errors
    /// When they cannot be started.
    pub(in crate::scenarios) fn start(
        tontine: &TontineArgs,
        shape: Shape,
        interrupt: &Interrupt,
    ) -> Result<Capped, ScenarioError> {
        interrupt.check()?;
        let Shape { nodes, partitions, consistency, headmaster } = shape;
        let alone = if headmaster { "" } else { " --no-headmaster" };
        let arguments = format!(
            "dev --nodes {nodes} --partitions {partitions} --consistency {consistency} --engine memory --workers 1 \
             --data-dir {{dir}} --port-base {{base}}{alone}"
        );
        let options = tontine.options(&arguments, nodes)?;
        let program = options.program.clone();
        let contestant = Contestant::start("tontine", &PeerOptions::Tontine(options))?;
        let addresses = native_addresses(&contestant, nodes)?;
        let operator = Operator { program, connect: addresses.join(",") };
        Ok(Capped {
            joined: Mutex::default(),
            contestant,
            groups: Mutex::default(),
            bounded: Mutex::default(),
            interrupt: interrupt.clone(),
            operator,
            addresses,
        })
    }

    /// Loads all records, and says their keys.
    ///
    /// # Errors
    /// When a record cannot be written.
    pub(in crate::scenarios) fn load(
        &self,
        records: u64,
        value_length: usize,
        quiet: bool,
    ) -> Result<Vec<Bytes>, ScenarioError> {
        self.interrupt.check()?;
        let options = WorkloadOptions {
            field_length: value_length,
            key_prefix: "key:".to_owned(),
            insert_order: InsertOrder::Ordered,
            ..WorkloadOptions::preset(Preset::Set, records)
        };
        let driver = DriverOptions { depth: LOAD_DEPTH, quiet, ..DriverOptions::default() };
        let loaded = self.contestant.load(&options, &driver)?;
        if !loaded.outcomes.clean() {
            return Err(ScenarioError::Stuck { what: "not all records could be loaded" });
        }
        let workload = Workload::new(options, 0).map_err(MeasureError::from)?;
        Ok((0..records).map(|number| workload.key(number)).collect())
    }

    /// Bounds all nodes, in the order of their ids.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(in crate::scenarios) fn bound(&self, caps: &[f64]) -> Result<(), ScenarioError> {
        for ((number, &cap), pid) in (1..).zip(caps).zip(self.pids()?) {
            self.bound_one(NodeId(number), pid, cap)?;
        }
        Ok(())
    }

    /// The processes of the first nodes, in the order of their ids.
    ///
    /// # Errors
    /// When the program does not tell.
    pub(in crate::scenarios) fn pids(&self) -> Result<Vec<u32>, ScenarioError> {
        self.wait_for("a node's process was not told", || {
            let output = self.contestant.peer.as_ref().map(|peer| peer.process.output()).unwrap_or_default();
            let pids = pids_of(&output);
            (pids.len() >= self.addresses.len()).then_some(pids)
        })
    }

    fn bound_one(&self, node: NodeId, pid: u32, cap: f64) -> Result<(), ScenarioError> {
        let mut groups = self.groups.lock();
        let group = Group::make(cap)?;
        let added = group.add(pid);
        // Kept in any case, so that it goes after the process.
        groups.push(group);
        added?;
        self.bounded.lock().push(Bounded { node, pid, cap });
        Ok(())
    }

    /// The nodes that are bounded.
    pub(in crate::scenarios) fn bounded(&self) -> Vec<Bounded> {
        self.bounded.lock().clone()
    }

    /// Starts one more node, bounded from its start, and makes it a member.
    ///
    /// # Errors
    /// When it cannot be started, or does not register.
    pub(in crate::scenarios) fn join(&self, tontine: &TontineArgs, cap: f64) -> Result<(), ScenarioError> {
        let peer =
            self.contestant.peer.as_ref().ok_or(ScenarioError::Stuck { what: "no node was started" })?;
        let data = peer.process.directory().join("data");
        let node = NodeId(u32::try_from(self.addresses.len()).unwrap_or(0) + 1);
        let first: Option<SocketAddr> = self.addresses.first().and_then(|address| address.parse().ok());
        let first = first.ok_or(ScenarioError::Stuck { what: "the first node's address is none" })?;
        let port = first.port() + u16::try_from(self.addresses.len()).unwrap_or(0);
        let arguments = [
            "serve".to_owned(),
            format!("--coordination=dir:{}", data.join("coordination").display()),
            format!("--data-dir={}", data.join(format!("node-{}", node.0)).display()),
            format!("--listen={}:{port}", first.ip()),
            "--engine=memory".to_owned(),
            "--workers=1".to_owned(),
            "--no-headmaster".to_owned(),
        ];
        let parent = tontine.scratch.as_deref();
        let process = start_beside("tontine joining", &self.operator.program, arguments.to_vec(), parent);
        let process = process.map_err(MeasureError::from)?;
        let pid = process.pid();
        self.joined.lock().push(process);
        self.bound_one(node, pid, cap)?;
        let id = node.to_string();
        self.wait_for("the node that joins did not register", || {
            self.operator.run(&["node", "add", &id]).ok().map(|_| ())
        })
    }

    fn wait_for<T>(
        &self,
        what: &'static str,
        mut found: impl FnMut() -> Option<T>,
    ) -> Result<T, ScenarioError> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.interrupt.check()?;
            if let Some(found) = found() {
                return Ok(found);
            }
            if Instant::now() > until {
                return Err(ScenarioError::Stuck { what });
            }
            std::thread::sleep(POLL);
        }
    }
}

/// The processes of nodes, in their order, as `tontine dev` prints them.
fn pids_of(output: &str) -> Vec<u32> {
    let told = output.lines().filter_map(|line| {
        let (node, pid) = line.strip_prefix("node ")?.split_once(" is process ")?;
        Some((node.parse::<u32>().ok()?, pid.trim().parse::<u32>().ok()?))
    });
    let mut told: Vec<(u32, u32)> = told.collect();
    told.sort_unstable();
    told.into_iter().map(|(_, pid)| pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processes_of_nodes_are_read_from_what_dev_prints() {
        let output = "node 1  zone zone-1  native 127.0.0.1:1\nnode 2 is process 417\nnode 1 is process 5\n";
        assert_eq!(pids_of(output), [5, 417]);
        assert!(pids_of("stopping\n").is_empty());
    }
}
