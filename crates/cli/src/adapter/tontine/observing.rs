//! The members as the cluster knows them, and what they measure of themselves.
//!
//! Nodes tell counters that only grow. A rate is what they grew by since this adapter last looked, or within half a second
//! where it has not looked lately.
//!
//! Must never: pass the silence of a node off as rest. A node that does not answer has no measures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::elasticity::adapter::{Measured, Member, MemberState, Members};
use model::order::Office;
use model::plan::Planned;
use model::{Cluster, Node, NodeId, Role};
use protocol::report::{LoadReport, Parts, Report};

use super::acts::{is_given_shares, office, places, under_way};
use super::{Tontine, of_command};
use crate::adapter::rpc::RpcFailure;
use crate::status::{NodeStatus, ask_all};
use crate::words;

/// Percent of what the node may use of processors.
const PROCESSOR: &str = "processor";
/// Gets and puts for partitions of the node, in a second.
const OPERATIONS: &str = "operations";
/// Bytes of keys and values in force.
const DATA_BYTES: &str = "data-bytes";
/// Bytes of stores on disk.
const DISK_BYTES: &str = "disk-bytes";
/// What is measured of each member.
pub(super) const MEASURES: [&str; 4] = [PROCESSOR, OPERATIONS, DATA_BYTES, DISK_BYTES];

/// Shortest time for which a rate says something, in milliseconds.
const SPAN_MS_MIN: u64 = 500;
/// Longest time: a rate over more is one of the past.
const SPAN_MS_MAX: u64 = 60_000;

/// What nodes had counted when they were last asked.
pub(super) type Samples = BTreeMap<NodeId, TontineSample>;

/// What a node has counted in this incarnation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TontineSample {
    incarnation: u64,
    uptime_ms: u64,
    ran_us: Option<u64>,
    operations: u64,
}

impl TontineSample {
    fn of(report: &Report, load: &LoadReport) -> TontineSample {
        TontineSample {
            incarnation: report.incarnation,
            uptime_ms: load.uptime_ms,
            // An older node tells of its workers only.
            ran_us: load.process_us.or(load.ran_us),
            operations: load.work().operations(),
        }
    }

    /// Milliseconds since an earlier one, if a rate can be told from the two.
    fn span_ms(&self, earlier: &TontineSample) -> Option<u64> {
        let span = self.uptime_ms.checked_sub(earlier.uptime_ms)?;
        let is_one = self.incarnation == earlier.incarnation;
        (is_one && (SPAN_MS_MIN..=SPAN_MS_MAX).contains(&span)).then_some(span)
    }

    /// Operations in a second since an earlier one; none where the counter went back, which is no rest.
    fn operations_per_second(&self, earlier: &TontineSample) -> Option<f64> {
        let done = self.operations.checked_sub(earlier.operations)?;
        Some(done as f64 * 1_000.0 / self.span_ms(earlier)? as f64)
    }

    /// How many processors it used since an earlier one; none where the counter went back, or is not told.
    fn processors_used(&self, earlier: &TontineSample) -> Option<f64> {
        let ran_us = self.ran_us?.checked_sub(earlier.ran_us?)?;
        Some(ran_us as f64 / 1_000.0 / self.span_ms(earlier)? as f64)
    }
}

impl Tontine {
    /// All members, and nodes that wait to become one.
    pub(super) async fn observe(&self) -> Result<Members, RpcFailure> {
        let (client, _) = self.view().await?;
        let office = office(&client).await?;
        let planned = if office.plan.is_some() { under_way(&client).await? } else { None };
        let parts = Parts::STATUS | Parts::LOAD;
        let mut asked = Instant::now();
        let mut nodes = ask_all(&client, parts).await.map_err(of_command)?;
        let mut earlier = self.samples.lock().clone();
        if nodes.iter().any(|status| lacks_rate(status, &earlier)) {
            earlier.extend(samples(&nodes));
            tokio::time::sleep(Duration::from_millis(SPAN_MS_MIN + 20)).await;
            asked = Instant::now();
            nodes = ask_all(&client, parts).await.map_err(of_command)?;
        }
        *self.samples.lock() = samples(&nodes).collect();
        let age_ms = u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX);
        let seen =
            TontineSight { cluster: &client.cluster(), office: &office, planned: planned.as_ref(), age_ms };
        let members = nodes.iter().filter(|status| seen.cluster.node(status.node.id).is_some());
        let mut members: Vec<Member> =
            members.map(|status| seen.member(status, earlier.get(&status.node.id))).collect();
        members.extend(seen.others());
        Ok(Members { members })
    }
}

/// What nodes that answered have counted.
fn samples(nodes: &[NodeStatus]) -> impl Iterator<Item = (NodeId, TontineSample)> {
    nodes.iter().filter_map(|status| {
        let report = status.report()?;
        Some((status.node.id, TontineSample::of(report, report.load.as_ref()?)))
    })
}

/// Whether a node tells counters, and no earlier ones are known from which a rate could be told.
fn lacks_rate(status: &NodeStatus, earlier: &Samples) -> bool {
    let Some(report) = status.report() else { return false };
    let Some(load) = &report.load else { return false };
    let before = earlier.get(&status.node.id);
    before.is_none_or(|before| TontineSample::of(report, load).span_ms(before).is_none())
}

/// What there is to see.
struct TontineSight<'a> {
    cluster: &'a Cluster,
    office: &'a Office,
    planned: Option<&'a Planned>,
    age_ms: u64,
}

impl TontineSight<'_> {
    /// Nodes that are no members: some wait to become one, others have left and still run.
    fn others(&self) -> Vec<Member> {
        let Office { waiting, left, .. } = self.office;
        let waiting = waiting.iter().map(|node| (node, MemberState::Waiting));
        let all = waiting.chain(left.iter().map(|node| (node, MemberState::Drained)));
        let others = all.filter(|(node, _)| self.cluster.node(node.id).is_none());
        others.map(|(node, state)| Member { state, ..blank(node) }).collect()
    }

    fn member(&self, status: &NodeStatus, earlier: Option<&TontineSample>) -> Member {
        let node = &status.node;
        let report = match &status.answer {
            Ok(report) => report,
            Err(error) => {
                let detail = Some(format!("it does not answer: {error}"));
                return Member { state: MemberState::Down, detail, ..blank(node) };
            }
        };
        let (state, permille) = self.state(node);
        let detail = match state {
            MemberState::Joining | MemberState::Draining => self.waits(state),
            MemberState::Serving if node.role == Role::Leaving => {
                Some("its drain was ended half way; call `drain` or `cancel`".to_owned())
            }
            _ => None,
        };
        Member { state, permille, detail, measures: self.measures(report, earlier), ..blank(node) }
    }

    /// How far a member is, and how much of that is done.
    fn state(&self, node: &Node) -> (MemberState, Option<u32>) {
        let now = places(self.cluster, node.id);
        let planned = self.planned.and_then(|planned| planned.plan.places.get(&node.id).copied());
        match (node.role, planned) {
            (Role::Standby, _) => (MemberState::Standby, None),
            (Role::Leaving, Some((before, 0))) => {
                (MemberState::Draining, permille(before.saturating_sub(now), before))
            }
            // Its plan was ended by somebody. Who still wants it to go says so again.
            (Role::Leaving, None) if now > 0 && self.planned.is_none() => (MemberState::Serving, None),
            // It leaves the cluster by itself once it holds no records or hints for others.
            (Role::Leaving, _) => (MemberState::Draining, None),
            // What further plans give it later, it gets while it serves.
            (Role::Serving, Some((0, after))) if after > 0 => (MemberState::Joining, permille(now, after)),
            (Role::Serving, _) if now > 0 => (MemberState::Serving, None),
            (Role::Serving, _) if is_given_shares(self.office) => (MemberState::Joining, Some(0)),
            // Nobody gives it anything before the next `join`.
            (Role::Serving, _) => (MemberState::Standby, None),
        }
    }

    /// What holds the plan up, or is lacking.
    fn waits(&self, state: MemberState) -> Option<String> {
        match (self.planned, state) {
            (Some(planned), _) => {
                let held = planned.state.as_ref().and_then(|state| state.waiting.first())?;
                Some(format!("plan {} waits: {}", planned.number, words::held(held)))
            }
            (None, MemberState::Joining) => {
                Some("the autopilot gives it its share; `tontine balance why` says more".to_owned())
            }
            (None, _) => Some("no plan is under way; it leaves when it holds nothing for others".to_owned()),
        }
    }

    fn measures(&self, report: &Report, earlier: Option<&TontineSample>) -> BTreeMap<String, Measured> {
        let mut measures = BTreeMap::new();
        let mut told = |name: &str, value: f64| {
            if value.is_finite() {
                measures.insert(name.to_owned(), Measured { value, age_ms: self.age_ms });
            }
        };
        if let Some(status) = &report.status {
            told(DATA_BYTES, status.live_bytes() as f64);
            told(DISK_BYTES, status.stores.iter().map(|store| store.disk_bytes).sum::<u64>() as f64);
        }
        if let (Some(load), Some(earlier)) = (&report.load, earlier) {
            let now = TontineSample::of(report, load);
            if let Some(operations) = now.operations_per_second(earlier) {
                told(OPERATIONS, operations);
            }
            if let Some(used) = now.processors_used(earlier) {
                told(PROCESSOR, used / load.processors.max(0.01) * 100.0);
            }
        }
        measures
    }
}

/// A member of which nothing is known but who it is.
fn blank(node: &Node) -> Member {
    Member {
        id: node.id.to_string(),
        address: Some(host(&node.native).to_owned()),
        state: MemberState::Waiting,
        permille: None,
        detail: None,
        measures: BTreeMap::new(),
    }
}

/// The host of `host:port`, without the brackets of IPv6.
pub(super) fn host(native: &str) -> &str {
    let host = native.rsplit_once(':').map_or(native, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn permille(part: usize, whole: usize) -> Option<u32> {
    (whole > 0).then(|| u32::try_from(part.min(whole) * 1_000 / whole).unwrap_or(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_goes_back_gives_no_rate_and_one_that_rests_gives_0() {
        let sample =
            |uptime_ms, ran_us, operations| TontineSample { incarnation: 1, uptime_ms, ran_us, operations };
        let rates = |earlier: TontineSample, now: TontineSample| {
            (now.operations_per_second(&earlier), now.processors_used(&earlier))
        };
        let before = sample(1_000, Some(500_000), 100);
        assert_eq!(rates(before, sample(3_000, Some(1_500_000), 300)), (Some(100.0), Some(0.5)));
        assert_eq!(rates(before, sample(3_000, Some(500_000), 100)), (Some(0.0), Some(0.0)), "it rests");
        assert_eq!(rates(before, sample(3_000, Some(499_999), 99)), (None, None));
        assert_eq!(rates(before, sample(3_000, None, 300)), (Some(100.0), None));
        assert_eq!(rates(before, sample(1_400, Some(600_000), 300)), (None, None), "too short");
        let again = TontineSample { incarnation: 2, ..sample(3_000, Some(1_500_000), 300) };
        assert_eq!(rates(before, again), (None, None), "another process");
    }
}
