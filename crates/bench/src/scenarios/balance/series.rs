//! What a run looked like, second by second, and what that amounts to. Pure: no clock, no system.

use model::NodeId;
use serde::{Deserialize, Serialize};

use crate::processes::Context;
use crate::report::median;

/// Seconds at the end of a run that stand for what came of it.
const END_S: usize = 30;

/// One node in one second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeSecond {
    /// Which node.
    pub(super) node: NodeId,
    /// Processor time that it used, as a share of what its control group allows.
    pub(super) used: f64,
    /// Partitions that ask it first.
    pub(super) partitions: usize,
}

/// One second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Second {
    /// Seconds since the measured part began, at its end.
    pub(super) at: f64,
    /// Requests answered well, per second.
    pub(super) throughput: f64,
    /// Requests that were not.
    pub(super) errors: u64,
    /// The nodes.
    pub(super) nodes: Vec<NodeSecond>,
    /// The share of the time in which the generator's thread had nothing to do: neither ran nor waited for a processor.
    pub(super) generator_idle: f64,
    /// Processors of the machine that nobody used.
    pub(super) machine_idle: f64,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PlanMark {
    /// Its number.
    pub(super) number: u64,
    /// Who made it.
    pub(super) by: String,
    /// When it was created, in seconds since the measured part began.
    pub(super) created: f64,
    /// When it began.
    pub(super) begun: Option<f64>,
    /// When it ended.
    pub(super) ended: Option<f64>,
    /// What has become of it.
    pub(super) phase: String,
    /// Partitions that it was about.
    pub(super) partitions: usize,
    /// Copies that were brought in.
    pub(super) copies: usize,
    /// Bytes that were copied.
    pub(super) bytes: u64,
    /// Largest utilisation over the mean, when it was decided and as it was predicted.
    pub(super) over_mean: Option<(f64, f64)>,
}

/// What the program said, in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ProgramSaid {
    /// When, in seconds since the measured part began.
    pub(super) at: f64,
    /// The command.
    pub(super) command: String,
    /// Its answer.
    pub(super) text: String,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Series {
    /// What it is called.
    pub(super) title: String,
    /// Where and when.
    pub(super) context: Context,
    /// Processors that each node may use.
    pub(super) caps: Vec<f64>,
    /// What each of them carries alone, where that was measured.
    pub(super) alone: Vec<f64>,
    /// When something was first allowed to move.
    pub(super) acts_from: f64,
    /// All seconds.
    pub(super) seconds: Vec<Second>,
    /// All plans.
    pub(super) plans: Vec<PlanMark>,
    /// What was said.
    pub(super) said: Vec<ProgramSaid>,
}

/// What a run amounts to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Summary {
    /// Throughput before anything may move.
    pub(super) before: f64,
    /// Throughput at the end.
    pub(super) after: f64,
    /// The same as a share of what all nodes carry alone together.
    pub(super) share: Option<f64>,
    /// Throughput while partitions were copied, as a share of that in the seconds before each plan; `None` without copies.
    pub(super) kept: Option<f64>,
    /// The same of the worst second.
    pub(super) kept_worst: Option<f64>,
    /// From when something could move to the end of the last plan.
    pub(super) settled_after: Option<f64>,
    /// Bytes copied.
    pub(super) bytes: u64,
    /// Partitions of each node at the end.
    pub(super) partitions: Vec<(NodeId, usize)>,
    /// Used share of each node at the end.
    pub(super) used: Vec<(NodeId, f64)>,
    /// Of those the largest over the mean, in the seconds before anything moved, and at the end.
    pub(super) over_mean: (f64, f64),
    /// The generator's idle time: the median second, and the least of them.
    pub(super) generator_idle: (f64, f64),
    /// Idle processors of the machine, in the median second.
    pub(super) machine_idle: f64,
    /// Requests that failed.
    pub(super) errors: u64,
}

impl Series {
    /// What the run amounts to.
    pub(super) fn summary(&self) -> Summary {
        let begun = |plan: &PlanMark| plan.begun.filter(|at| *at >= 0.0);
        let first = self.plans.iter().filter_map(begun).fold(f64::INFINITY, f64::min);
        let still: Vec<&Second> =
            self.seconds.iter().filter(|one| one.at <= first.min(self.acts_from)).collect();
        // Where plans may come at once, the seconds before the first one are those before.
        let still = if still.is_empty() {
            self.seconds.iter().filter(|one| one.at <= first).collect()
        } else {
            still
        };
        let end = &self.seconds[self.seconds.len().saturating_sub(END_S)..];
        let end: Vec<&Second> = end.iter().collect();
        let after = mean(end.iter().map(|one| one.throughput));
        let alone: f64 = self.alone.iter().sum();
        let copying = self.copying();
        let kept = mean(copying.iter().copied());
        let ended = self.plans.iter().filter_map(|plan| plan.ended).fold(f64::NAN, f64::max);
        let idle: Vec<f64> = self.seconds.iter().map(|one| one.generator_idle).collect();
        let last = self.seconds.last().map(|one| &one.nodes[..]).unwrap_or_default();
        let used = used_of(&end);
        Summary {
            before: mean(still.iter().map(|one| one.throughput)),
            after,
            share: (alone > 0.0).then(|| after / alone),
            kept: (!copying.is_empty()).then_some(kept),
            kept_worst: copying.iter().copied().reduce(f64::min),
            settled_after: ended.is_finite().then_some(ended - self.acts_from),
            bytes: self.plans.iter().map(|plan| plan.bytes).sum(),
            partitions: last.iter().map(|node| (node.node, node.partitions)).collect(),
            over_mean: (largest_over_mean(&used_of(&still)), largest_over_mean(&used)),
            used,
            generator_idle: (median(idle.iter().copied()), idle.iter().copied().fold(1.0, f64::min)),
            machine_idle: median(self.seconds.iter().map(|one| one.machine_idle)),
            errors: self.seconds.iter().map(|one| one.errors).sum(),
        }
    }

    /// Each second in which a plan copied, as a share of the ten seconds before that plan.
    fn copying(&self) -> Vec<f64> {
        let mut shares = Vec::new();
        for plan in self.plans.iter().filter(|plan| plan.copies > 0) {
            let (Some(begun), Some(ended)) = (plan.begun, plan.ended) else { continue };
            let before = self.seconds.iter().filter(|one| one.at <= begun && one.at > begun - 10.0);
            let before = mean(before.map(|one| one.throughput));
            // A second counts if the plan was under way in any part of it.
            let during = self.seconds.iter().filter(|one| one.at > begun && one.at - 1.0 < ended);
            shares.extend(during.map(|one| one.throughput / before).filter(|share| share.is_finite()));
        }
        shares
    }
}

/// What each node used on average, of those that are there in the last of these seconds.
fn used_of(seconds: &[&Second]) -> Vec<(NodeId, f64)> {
    let nodes = seconds.last().map(|one| one.nodes.iter().map(|node| node.node)).into_iter().flatten();
    let of = |id: NodeId| {
        let seen = seconds.iter().flat_map(|one| one.nodes.iter().filter(move |node| node.node == id));
        (id, mean(seen.map(|node| node.used)))
    };
    nodes.map(of).collect()
}

/// Of a node's share to the mean of all.
pub(super) fn largest_over_mean(used: &[(NodeId, f64)]) -> f64 {
    let largest = used.iter().map(|(_, share)| *share).fold(f64::NAN, f64::max);
    largest / mean(used.iter().map(|(_, share)| *share))
}

/// The mean; not a number of nothing.
pub(super) fn mean(of: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = of.fold((0.0, 0.0), |(count, sum), one| (count + 1.0, sum + one));
    sum / count
}

/// The most that a cluster carries whose partitions are alike and lie whole on one node each: the best of all ways to
/// share them out, as a share of what the nodes carry together.
pub(super) fn best_share(carry: &[f64], partitions: usize) -> f64 {
    let mut places = vec![0usize; carry.len()];
    for _ in 0..partitions {
        // Each goes where the node that is then fullest for what it carries is as empty as possible.
        let fullest = |node: usize| (places[node] + 1) as f64 / carry[node];
        let best = (0..carry.len()).min_by(|a, b| fullest(*a).total_cmp(&fullest(*b)));
        places[best.unwrap_or(0)] += 1;
    }
    let bound = places.iter().zip(carry).filter(|(places, _)| **places > 0);
    let bound =
        bound.map(|(places, carry)| carry * partitions as f64 / *places as f64).fold(f64::INFINITY, f64::min);
    bound / carry.iter().sum::<f64>()
}

#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// Two nodes, 80 seconds: a plan copies from 40 to 44, and throughput goes from 100 to 150 with a dip to 90.
    pub(crate) fn series() -> Series {
        let second = |number: u32| {
            let at = f64::from(number + 1);
            let throughput = match number {
                0..40 => 100.0,
                40..44 => 90.0,
                _ => 150.0,
            };
            let node = |id, used, partitions| NodeSecond { node: NodeId(id), used, partitions };
            let nodes = match number < 44 {
                true => vec![node(1, 1.0, 8), node(2, 0.5, 8)],
                false => vec![node(1, 0.9, 6), node(2, 0.9, 10)],
            };
            Second { at, throughput, errors: 0, nodes, generator_idle: 0.5, machine_idle: 0.3 }
        };
        let plan = PlanMark {
            number: 1,
            by: "autopilot".to_owned(),
            created: 39.5,
            begun: Some(40.0),
            ended: Some(44.0),
            phase: "done".to_owned(),
            partitions: 2,
            copies: 2,
            bytes: 1_000,
            over_mean: Some((1.33, 1.0)),
        };
        Series {
            title: "two nodes, even".to_owned(),
            context: Context::here(),
            caps: vec![0.256, 0.482],
            alone: vec![60.0, 100.0],
            acts_from: 30.0,
            seconds: (0..80).map(second).collect(),
            plans: vec![plan],
            said: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_summed_up_by_its_parts() {
        let mut series = samples::series();
        series.seconds[7].errors = 3;
        series.seconds[8].generator_idle = 0.25;
        let summary = series.summary();
        assert_eq!((summary.before, summary.after), (100.0, 150.0));
        assert!((summary.share.unwrap() - 0.9375).abs() < 1e-9);
        assert!(
            (summary.kept.unwrap() - 0.9).abs() < 1e-9,
            "four seconds of 90, where there were 100 before"
        );
        assert_eq!(summary.settled_after, Some(14.0));
        assert_eq!(summary.partitions, [(NodeId(1), 6), (NodeId(2), 10)]);
        assert!((summary.over_mean.0 - 1.0 / 0.75).abs() < 1e-9 && (summary.over_mean.1 - 1.0).abs() < 1e-9);
        assert_eq!((summary.generator_idle, summary.errors, summary.bytes), ((0.5, 0.25), 3, 1_000));
        series.plans.clear();
        series.alone.clear();
        let summary = series.summary();
        assert_eq!((summary.kept, summary.settled_after, summary.share), (None, None, None));
    }

    #[test]
    fn whole_partitions_bound_what_a_cluster_carries() {
        // 5 and 11 of 16: the second node is the limit, at 16/11 of what it carries.
        let best = best_share(&[17.0, 32.0], 16);
        assert!((best - 32.0 * 16.0 / 11.0 / 49.0).abs() < 1e-9, "{best}");
        assert!((best_share(&[1.0, 1.0], 2) - 1.0).abs() < 1e-9);
        assert!(best_share(&[17.0, 32.0, 44.0], 32) > best_share(&[17.0, 32.0, 44.0], 16));
    }
}
