//! What happens to the nodes while clients work: the kill, the return, and when the last hint was gone.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use client::report::Parts;
use client::{Client, ClientError, ScanPage, StoreHandle};
use model::{NodeId, PartitionId, PreferenceList, VersionSet};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::peers::ServerProcess;
use crate::processes::{Sample, Watched};

use super::{HandoffScenario, ScenarioError};
use crate::scenarios::script::{Opened, POLL, Script, ask, system};

/// The node that dies: not the first, which starts collection rounds and is what clients connect to first.
pub(super) const VICTIM: u32 = 2;
/// When hints have not drained after that long, something is wrong.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(900);
/// How long replicas may take to become equal after the load has ended.
const EQUAL_TIME_MAX: Duration = Duration::from_secs(120);
/// How often nodes are asked for their hints.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Longest wait for `dev` to notice the end of a node.
const NOTICE_TIME_MAX: Duration = Duration::from_secs(30);
/// Records of one page when replicas are compared.
const PAGE_RECORDS: u32 = 1000;

/// When what happened, in seconds since the measured part of the run began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    pub(super) killed: f64,
    /// When the node was started again.
    pub(super) back: f64,
    /// When no node held a hint for it any more.
    pub(super) drained: f64,
    /// Hints for it at the moment of its return.
    pub(super) hints_held: u64,
    /// Processors that nodes and client used together until the kill, until the return, and until it was drained.
    pub(super) cores: [f64; 3],
}

/// Keys of the returned node beside those of another replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compared {
    pub(super) keys: u64,
    /// Keys that differed at the first look.
    pub(super) unequal: u64,
    /// Seconds until none differed; `None` when some still do.
    pub(super) equal_after: Option<f64>,
}

/// A node that was started again by hand; it ends with the benchmark.
struct Returned(Child);

impl Drop for Returned {
    fn drop(&mut self) {
        // The end of its standard input tells it to stop, also when this process is killed.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Kills and starts nodes, and asks them.
pub(super) struct Conductor<'a> {
    dev: &'a ServerProcess,
    victim: Pid,
    addresses: Vec<String>,
    returned: Mutex<Option<Returned>>,
}

impl<'a> Conductor<'a> {
    /// Finds the victim's process in what `dev` has printed.
    pub(super) fn new(dev: &'a ServerProcess, addresses: Vec<String>) -> Result<Self, ScenarioError> {
        let marker = format!("node {VICTIM} is process ");
        let deadline = Instant::now() + NOTICE_TIME_MAX;
        loop {
            // A line is whole when its end is there.
            let output = dev.output();
            let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let pid = whole.lines().find_map(|line| line.strip_prefix(&marker)?.trim().parse::<i32>().ok());
            if let Some(victim) = pid.and_then(Pid::from_raw) {
                return Ok(Conductor { dev, victim, addresses, returned: Mutex::new(None) });
            }
            if Instant::now() >= deadline {
                return Err(ScenarioError::Stuck { what: "dev names no process of the node to kill" });
            }
            thread::sleep(POLL);
        }
    }

    pub(super) fn is_victim(&self, pid: u32) -> bool {
        i64::from(self.victim.as_raw_pid()) == i64::from(pid)
    }

    /// Carries out the script while a run is under way; `over` says when the run has ended.
    pub(super) fn conduct(
        &self,
        scenario: &HandoffScenario,
        opened: &Opened,
        watched: &[Watched],
        over: &AtomicBool,
    ) -> Result<Timeline, ScenarioError> {
        let script = Script::begin(opened, over)?;
        let used = |other: Option<u32>| {
            let own = Some(std::process::id());
            let pids = watched.iter().map(|watched| watched.pid).chain(own).chain(other);
            pids.filter_map(Sample::take).map(|sample| sample.cpu().as_secs_f64()).sum::<f64>()
        };
        let victim = u32::try_from(self.victim.as_raw_pid()).ok();
        let (began, at_first) = (script.seconds(), used(victim));
        script.wait_until_second(scenario.before)?;
        let at_kill = used(victim);
        kill_process(self.victim, Signal::KILL).map_err(|error| system(error.into()))?;
        let (killed, left) = (script.seconds(), used(None));
        script.wait_until(Instant::now() + Duration::from_secs(scenario.away))?;
        let hints_held =
            ask(&self.addresses, async |client| Ok(hints(&client).await.map_or(0, |found| found.count)))?;
        let (back, at_return) = (script.seconds(), used(None));
        let returned = self.returned.lock().insert(self.start_again()?).0.id();
        self.await_drained()?;
        let (drained, at_end) = (script.seconds(), used(Some(returned)));
        let cores = [
            (at_kill - at_first) / (killed - began),
            (at_return - left) / (back - killed),
            (at_end - at_return) / (drained - back),
        ];
        Ok(Timeline { killed, back, drained, hints_held, cores })
    }

    /// Starts the victim with the command that `dev` has printed.
    fn start_again(&self) -> Result<Returned, ScenarioError> {
        let marker = format!("node {VICTIM} has exited");
        let output = self.dev.output();
        let command = output.lines().skip_while(|line| !line.starts_with(&marker)).nth(1);
        let command =
            command.ok_or(ScenarioError::Stuck { what: "dev prints no command for the killed node" })?;
        let line = format!("exec {} --stop-with-stdin", command.trim());
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().map(Returned).map_err(system)
    }

    /// Waits until the victim answers and no node holds a hint for it.
    fn await_drained(&self) -> Result<(), ScenarioError> {
        ask(&self.addresses, async |client| {
            let deadline = Instant::now() + DRAIN_TIME_MAX;
            while Instant::now() < deadline {
                if hints(&client).await.is_some_and(|found| found.all_answered && found.count == 0) {
                    return Ok(true);
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            Ok(false)
        })
        .and_then(|drained| match drained {
            true => Ok(()),
            false => Err(ScenarioError::Stuck { what: "hints are still held" }),
        })
    }

    /// Compares what the victim holds with what another replica holds, until nothing differs.
    pub(super) fn compare(&self, store: &str) -> Result<Compared, ScenarioError> {
        ask(&self.addresses, async |client| {
            let began = Instant::now();
            let (keys, unequal) = unequal_keys(&client, store).await?;
            let mut left = unequal;
            while left > 0 && began.elapsed() < EQUAL_TIME_MAX {
                tokio::time::sleep(LOOK_INTERVAL).await;
                (_, left) = unequal_keys(&client, store).await?;
            }
            let equal_after = (left == 0).then(|| began.elapsed().as_secs_f64());
            Ok(Compared { keys, unequal, equal_after })
        })
    }
}

/// Hints for the victim.
struct HintsSeen {
    count: u64,
    all_answered: bool,
}

/// Hints for the victim at all nodes that answer; `None` when none does.
async fn hints(client: &Client) -> Option<HintsSeen> {
    let cluster = client.cluster();
    let mut held = HintsSeen { count: 0, all_answered: true };
    let mut answered = false;
    for node in &cluster.nodes {
        let Ok(report) = client.report(node.id, Parts::STATUS).await else {
            held.all_answered = false;
            continue;
        };
        answered = true;
        let hints = report.status.iter().flat_map(|status| &status.hints);
        let for_victim = hints.filter(|held| held.target == NodeId(VICTIM));
        held.count += for_victim.map(|held| held.hints).sum::<u64>();
    }
    answered.then_some(held)
}

/// Keys that the victim and another replica hold, and how many of them differ.
async fn unequal_keys(client: &Client, store: &str) -> Result<(u64, u64), ClientError> {
    let (cluster, handle) = (client.cluster(), client.store(store)?);
    let definition = cluster.store(store).expect("the store was found").clone();
    let (mut keys, mut unequal) = (0, 0);
    for partition in cluster.ring.partitions() {
        let list = PreferenceList::of(&definition, partition);
        let other = list.replicas().iter().find(|node| node.0 != VICTIM);
        let (true, Some(&other)) = (list.is_replica(NodeId(VICTIM)), other) else { continue };
        let here = records(&handle, NodeId(VICTIM), partition.id).await?;
        let there = records(&handle, other, partition.id).await?;
        let all: BTreeSet<_> = here.keys().chain(there.keys()).collect();
        keys += all.len() as u64;
        unequal += all.iter().filter(|key| here.get(**key) != there.get(**key)).count() as u64;
    }
    Ok((keys, unequal))
}

/// What one node holds of a partition.
async fn records(
    store: &StoreHandle,
    node: NodeId,
    partition: PartitionId,
) -> Result<BTreeMap<bytes::Bytes, VersionSet>, ClientError> {
    let (mut found, mut after) = (BTreeMap::new(), None);
    loop {
        let ScanPage { records, next, .. } = store.scan(node, partition, after.take(), PAGE_RECORDS).await?;
        found.extend(records);
        match next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}
