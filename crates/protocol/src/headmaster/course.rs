//! What is measured of a plan while it is carried out: how much has come, how fast, and about how long it takes yet.
//!
//! None of it decides anything. A headmaster that takes over measures anew, and goes on from what the plan's state says.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use model::plan::{Phase, PlanState, Planned, Progress, Size};
use model::{Cluster, Moment, NodeId, PartitionId, Step};

use super::Said;
use super::progress::{self, Stand};
use crate::rebalance::lengths::{self, BroughtIn};
use crate::report::Facts;

/// A plan that waited this long for nodes that did not answer does not tell how long one like it takes.
const WAIT_SPOILS: Duration = Duration::from_secs(60);
/// Over how long it is averaged at what rate data comes, and the shortest time that tells.
const RATE_WINDOW: Duration = Duration::from_secs(10);
const RATE_TIME_MIN: Duration = Duration::from_secs(2);

/// The course of one plan.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// Its number.
    pub(super) plan: u64,
    /// What was brought in.
    copied: BTreeMap<(NodeId, PartitionId), Size>,
    /// What was brought in before this headmaster looked, and is in none of these.
    before: Option<Size>,
    /// How much that was, at the last moments.
    rates: VecDeque<(Moment, u64)>,
    /// Since when it is carried out without a pause, and what was here then.
    begun: Option<(Moment, BroughtIn)>,
    /// Since when it waits for nodes that do not answer.
    waits_since: Option<Moment>,
}

impl Course {
    /// Of a plan of which nothing was measured yet.
    pub(super) fn of(plan: u64) -> Course {
        let (copied, before, rates) = (BTreeMap::new(), None, VecDeque::new());
        Course { plan, copied, before, rates, begun: None, waits_since: None }
    }

    /// How far the plan is, by the ring and by what nodes have said.
    pub(super) fn progress(
        &mut self,
        cluster: &Cluster,
        planned: &Planned,
        known: &BTreeMap<NodeId, Said>,
    ) -> Progress {
        for (node, partition) in planned.plan.change.entering(cluster) {
            let copied = known.get(&node).and_then(|said| said.copied.get(&partition)).copied();
            if let Some(copied) = copied {
                // A node that was started again counts anew.
                let known = self.copied.entry((node, partition)).or_default();
                (known.records, known.bytes) =
                    (known.records.max(copied.records), known.bytes.max(copied.bytes));
            }
        }
        let mut copied = Size::default();
        for size in self.copied.values() {
            copied.records += size.records;
            copied.bytes += size.bytes;
        }
        // A successor has not seen what was brought in for partitions that have settled, and goes on from what is known.
        let earlier = planned.state.as_ref().map_or(Size::default(), |state| state.progress.copied);
        let base = *self.before.get_or_insert(Size {
            records: earlier.records.saturating_sub(copied.records),
            bytes: earlier.bytes.saturating_sub(copied.bytes),
        });
        let copied = Size { records: base.records + copied.records, bytes: base.bytes + copied.bytes };
        Progress { copied, ..progress::progress(cluster, &planned.plan.change) }
    }

    /// Bytes a second by the last moments, once some have passed.
    pub(super) fn rate(&mut self, now: Moment, copied: u64) -> Option<u64> {
        if self.rates.back().is_some_and(|(_, before)| *before > copied) {
            self.rates.clear();
        }
        self.rates.push_back((now, copied));
        while self.rates.len() > 2 && now.since(self.rates[1].0) >= RATE_WINDOW {
            self.rates.pop_front();
        }
        let (begun, before) = self.rates[0];
        let passed = now.since(begun);
        (passed >= RATE_TIME_MIN).then(|| ((copied - before) as f64 / passed.as_secs_f64()) as u64)
    }

    /// About how long the plan takes yet, in seconds.
    pub(super) fn left(
        &mut self,
        now: Moment,
        cluster: &Cluster,
        (planned, state): (&Planned, &PlanState),
        facts: &Facts,
    ) -> Option<u64> {
        if state.phase != Phase::Applying {
            self.begun = None;
            return None;
        }
        let here = BroughtIn { size: state.progress.copied, units: units(cluster, planned, facts) };
        let (since, first) = *self.begun.get_or_insert((now, here));
        let left = lengths::left(&planned.plan, here, (first, now.since(since)));
        left.map(|left| left.as_secs())
    }

    /// Whether the plan has waited so long for nodes that do not answer that its duration tells nothing.
    pub(super) fn waited_long(&mut self, now: Moment, waits: bool) -> bool {
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
        self.waits_since.is_some_and(|since| now.since(since) >= WAIT_SPOILS)
    }
}

/// How many of a plan's buckets of stores were brought in: of copies at *copying* those of stores that were merged, of
/// what is further all.
fn units(cluster: &Cluster, planned: &Planned, facts: &Facts) -> u64 {
    if planned.plan.change.numbers().is_some() {
        return 0;
    }
    let stores = cluster.stores.len() as u64;
    let of_copy = |node: &NodeId, id: PartitionId| {
        let entered = facts.nodes.get(node).and_then(|known| known.entered.get(&id));
        entered.map_or(0, |entered| (entered.merged.len() as u64).min(stores))
    };
    let here = planned.plan.change.moves().iter().map(|one| match Stand::of(cluster, one) {
        Stand::Waiting | Stand::Changed | Stand::Back => 0,
        Stand::Under(Step::Copying) => one.entering.iter().map(|node| of_copy(node, one.partition)).sum(),
        Stand::Under(_) | Stand::Settled => stores * one.entering.len() as u64,
    });
    planned.plan.units * here.sum::<u64>() / (stores * planned.plan.change.copies() as u64).max(1)
}
