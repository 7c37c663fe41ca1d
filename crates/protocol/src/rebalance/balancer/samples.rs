//! What nodes said of their loads, one report after another.
//!
//! Rates are what counters grew by between two reports, divided by the time that passed by the node's own clock, which is
//! compared with ours. So neither a lost report nor a wall clock that is an hour off changes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use model::balance::{Implausible, Says};
use model::{Cluster, Moment, NodeId, Role};

use super::loads::{Loads, Measured};
use super::permille;
use crate::report::LoadReport;

/// How often nodes are asked what they have done.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// After a change of the ring what nodes do is not looked at for this long: they still warm up, or empty queues.
pub const SETTLING: Duration = Duration::from_secs(30);
/// Over what time loads are judged, and by what part of the mean a node must exceed it then to be believed: what is gross
/// is seen soon, what is small needs patience, because noise looks like it.
pub(super) const WINDOWS: [(Duration, f64); 3] =
    [(Duration::from_secs(8), 1.5), (Duration::from_secs(60), 1.25), (Duration::from_secs(300), 1.0)];
/// The shortest of them.
pub(super) const SHORTEST: Duration = WINDOWS[0].0;
/// Reports of this long ago at most are kept at least so far apart.
const KEPT: [(Duration, Duration); 3] = [
    (Duration::from_secs(10), Duration::ZERO),
    (Duration::from_secs(64), Duration::from_secs(5)),
    (Duration::from_secs(320), Duration::from_secs(20)),
];
/// A word that is older counts as silence.
const AGE_MAX: Duration = Duration::from_secs(12);
/// For how long it is remembered what a node can carry.
const CAPACITY_MEMORY: Duration = Duration::from_secs(600);
/// Reports between which less time lies say too little.
const STEP_MIN: Duration = Duration::from_millis(1000);

/// What one node said, one after another.
#[derive(Clone, Debug, Default)]
struct NodeSamples {
    incarnation: u64,
    reports: VecDeque<(Moment, LoadReport)>,
    /// What it could carry, of each step between two reports.
    capacities: VecDeque<(Moment, f64)>,
    /// The capacity that counts: it changes only when the median is far from it.
    capacity: Option<f64>,
    /// Why it said nothing the last time.
    silent: Option<String>,
    /// What was wrong with its last report.
    implausible: Option<Implausible>,
}

/// What nodes said of their loads.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    lines: BTreeMap<NodeId, NodeSamples>,
    /// What was said before does not count.
    since: Option<Moment>,
    /// When a rule looked last that does so only now and then.
    looked: Option<Moment>,
}

impl Samples {
    /// Whether a rule looks now that does so only every so often. A decision that wants further figures is made again as
    /// soon as they are there: that is the same look.
    pub(super) fn is_due(&mut self, now: Moment, every: Duration) -> bool {
        let since = self.looked.map(|last| now.since(last));
        if since.is_none_or(|since| since >= every) {
            self.looked = Some(now);
            return true;
        }
        since.is_some_and(|since| since < SAMPLE_EVERY)
    }

    /// Nothing of what was said before `moment` counts any more.
    pub fn forget_before(&mut self, moment: Moment) {
        if self.since.is_some_and(|since| since >= moment) {
            return;
        }
        self.since = Some(moment);
        for line in self.lines.values_mut() {
            line.reports.retain(|(at, _)| *at >= moment);
        }
    }

    /// Takes in what a node said at `now`, or why it said nothing.
    pub fn hear(&mut self, node: NodeId, now: Moment, incarnation: u64, said: Result<&LoadReport, &str>) {
        let line = self.lines.entry(node).or_default();
        let report = match said {
            Ok(report) => report,
            Err(detail) => {
                line.silent = Some(detail.to_owned());
                return;
            }
        };
        line.silent = None;
        let began_anew = line.reports.back().is_some_and(|(_, last)| report.uptime_ms < last.uptime_ms);
        if line.incarnation != incarnation || began_anew {
            *line = NodeSamples { incarnation, capacity: line.capacity, ..NodeSamples::default() };
        }
        if self.since.is_some_and(|since| now < since) {
            return;
        }
        if let Some((at, last)) = line.reports.back() {
            if now.since(*at) < STEP_MIN {
                return;
            }
            let (then, before) = line.before(now).unwrap_or((*at, last));
            line.implausible = implausible(report, before, now.since(then));
            if let Some(capacity) = carries(report, last) {
                line.capacities.push_back((now, capacity));
            }
        }
        line.reports.push_back((now, report.clone()));
        while line.capacities.front().is_some_and(|(at, _)| now.since(*at) > CAPACITY_MEMORY) {
            line.capacities.pop_front();
        }
        line.thin(now);
        line.settle_capacity();
    }

    /// Forgets nodes that are no members any more.
    pub fn keep(&mut self, cluster: &Cluster) {
        self.lines.retain(|node, _| cluster.node(*node).is_some());
    }

    /// What the members' loads are, over each window for which enough was said, the shorter first.
    ///
    /// # Errors
    /// Why nothing can be said: a member is silent, says what cannot be, or not enough was said yet.
    pub fn loads(&self, cluster: &Cluster, now: Moment) -> Result<Vec<Loads<'_>>, Says> {
        self.loads_over(cluster, now, &WINDOWS)
    }

    /// The same over these windows, each with the part of the mean by which a node must exceed it then.
    pub(super) fn loads_over(
        &self,
        cluster: &Cluster,
        now: Moment,
        over: &[(Duration, f64)],
    ) -> Result<Vec<Loads<'_>>, Says> {
        let members: BTreeSet<NodeId> = cluster
            .nodes
            .iter()
            .filter(|node| (node.role != Role::Standby && !node.gone) || holds(cluster, node.id))
            .map(|node| node.id)
            .collect();
        if members.is_empty() {
            return Err(Says::Gathers { seconds: 0 });
        }
        let (mut missing, mut windows) = (Duration::ZERO, vec![Vec::new(); over.len()]);
        for &node in &members {
            let Some(line) = self.lines.get(&node) else {
                missing = SHORTEST;
                continue;
            };
            missing = missing.max(line.check(node, now)?);
            for ((window, _), measured) in over.iter().zip(&mut windows) {
                measured.extend(line.over(node, now, *window));
            }
        }
        if let Some(since) = self.since.filter(|since| *since > now) {
            missing = missing.max(since.since(now) + SHORTEST);
        }
        if missing > Duration::ZERO {
            return Err(Says::Gathers { seconds: missing.as_secs().max(1) });
        }
        let windows = windows.into_iter().zip(over);
        let whole = windows.filter(|(measured, _)| measured.len() == members.len());
        let loads = whole.map(|(measured, (_, least_excess))| Loads::of(cluster, measured, *least_excess));
        let loads: Vec<Loads<'_>> = loads.collect::<Result<_, _>>()?;
        if loads.is_empty() { Err(Says::Gathers { seconds: 1 }) } else { Ok(loads) }
    }
}

fn holds(cluster: &Cluster, node: NodeId) -> bool {
    cluster.ring.partitions().iter().any(|partition| partition.nodes.contains(&node))
}

impl NodeSamples {
    /// The last report that is as old as the shortest window.
    fn before(&self, now: Moment) -> Option<(Moment, &LoadReport)> {
        let old = self.reports.iter().rev().find(|(at, _)| now.since(*at) >= SHORTEST)?;
        Some((old.0, &old.1))
    }

    /// Keeps all reports of the last seconds, and fewer of those before.
    fn thin(&mut self, now: Moment) {
        let mut kept: Option<Moment> = None;
        self.reports.retain(|(at, _)| {
            let age = now.since(*at);
            let apart = KEPT.iter().find(|(oldest, _)| age <= *oldest).map(|(_, apart)| *apart);
            let keep = apart.is_some_and(|apart| kept.is_none_or(|kept| at.since(kept) >= apart));
            if keep {
                kept = Some(*at);
            }
            keep
        });
    }

    fn settle_capacity(&mut self) {
        let Some(median) = median(self.capacities.iter().map(|(_, capacity)| *capacity)) else { return };
        let is_other = |known: f64| (median - known).abs() > known / 5.0;
        if self.capacity.is_none_or(is_other) {
            self.capacity = Some(median);
        }
    }

    /// How much longer it must be heard.
    fn check(&self, node: NodeId, now: Moment) -> Result<Duration, Says> {
        let Some((last, report)) = self.reports.back() else {
            return match &self.silent {
                Some(detail) => Err(Says::NodeSilent { node, detail: detail.clone() }),
                None => Ok(SHORTEST),
            };
        };
        if now.since(*last) > AGE_MAX {
            let detail = self.silent.clone().unwrap_or_else(|| "it was not asked".to_owned());
            return Err(Says::NodeSilent { node, detail });
        }
        if report.ran_us.is_none() || report.waited_us.is_none() {
            return Err(Says::NoFigures { node });
        }
        if let Some(what) = self.implausible {
            return Err(Says::NotBelieved { node, what });
        }
        let covered = self.reports.front().map_or(Duration::ZERO, |(first, _)| last.since(*first));
        // A window is whole with the report that ends it, which comes a little sooner or later.
        Ok((SHORTEST - SAMPLE_EVERY).saturating_sub(covered))
    }

    /// What it did within a window that ends with its last report.
    fn over(&self, node: NodeId, now: Moment, window: Duration) -> Option<Measured<'_>> {
        let (last_at, last) = self.reports.back()?;
        let within = |at: &Moment| last_at.since(*at) <= window + SAMPLE_EVERY / 2;
        let first = self.reports.iter().position(|(at, _)| within(at))?;
        let (first_at, before) = &self.reports[first];
        if last_at.since(*first_at) + SAMPLE_EVERY < window {
            return None;
        }
        let steps = self.reports.range(first..);
        let steps: Vec<f64> =
            steps.clone().zip(steps.skip(1)).filter_map(|((_, a), (_, b))| ran(b, a)).collect();
        // What bounds the process bounds it at once, whatever was measured before.
        let capacity = self.capacity?.min(last.processors).max(0.01);
        Some(Measured { node, age: now.since(*last_at), before, last, steps, capacity })
    }
}

/// Processors that the workers used between two reports.
fn ran(report: &LoadReport, before: &LoadReport) -> Option<f64> {
    share(report.ran_us?.checked_sub(before.ran_us?)?, report, before)
}

fn share(us: u64, report: &LoadReport, before: &LoadReport) -> Option<f64> {
    let ms = report.uptime_ms.checked_sub(before.uptime_ms).filter(|ms| *ms > 0)?;
    Some(us as f64 / 1000.0 / ms as f64)
}

/// Processors that the node could have used between two reports: those that it may use, without the time in which its
/// workers had work and no processor, because neighbours had it.
fn carries(report: &LoadReport, before: &LoadReport) -> Option<f64> {
    let waited = share(report.waited_us?.checked_sub(before.waited_us?)?, report, before)?;
    let ran = ran(report, before)?;
    let got = (f64::from(report.workers) - waited).max(ran);
    Some(got.min(report.processors).max(0.01))
}

/// What cannot be.
fn implausible(report: &LoadReport, before: &LoadReport, ours: Duration) -> Option<Implausible> {
    let its_ms = report.uptime_ms.saturating_sub(before.uptime_ms);
    let ours_ms = ours.as_millis() as u64;
    // An answer may be two seconds late, and the one before may have been.
    if its_ms.abs_diff(ours_ms) > 2500 + ours_ms / 4 {
        return Some(Implausible::Clock { its_ms, ours_ms });
    }
    let ran = ran(report, before)?;
    let workers = f64::from(report.workers);
    (ran > workers * 1.2 + 0.05).then(|| Implausible::Ran { ran: permille(ran), workers: permille(workers) })
}

/// The middle one.
pub(in crate::rebalance) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
