//! What nodes can carry, and what each place in a list costs its node.

use std::collections::BTreeMap;
use std::time::Duration;

use model::balance::{Implausible, Says};
use model::plan::NodeAt;
use model::{Cluster, NodeId, PartitionId, Weight};

use super::samples::median;
use super::weights::Weights;
use super::{Places, permille};
use crate::report::{LoadReport, Middle, PartitionLoad, WorkDone};

/// A node that runs for less than this, in processors, says nothing about what an operation costs it.
const BUSY_MIN: f64 = 0.02;
/// What an operation costs a node lies within this factor of the median, or the node has miscounted.
const COST_FACTOR_MAX: f64 = 5.0;

/// What a node did within a window.
#[derive(Clone, Debug)]
pub(super) struct Measured<'a> {
    pub(super) node: NodeId,
    pub(super) age: Duration,
    pub(super) before: &'a LoadReport,
    pub(super) last: &'a LoadReport,
    /// Processors that its workers used, step by step.
    pub(super) steps: Vec<f64>,
    /// Processors that it could use.
    pub(super) capacity: f64,
}

/// How a node is loaded. Loads and capacities are processors.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLoad {
    /// How old its word is.
    pub age: Duration,
    /// What it can carry.
    pub capacity: f64,
    /// What its partitions take of that.
    pub load: f64,
    /// What of its load it does because clients happen to ask it, whatever its places: no move changes that.
    pub own: f64,
    /// What else its workers do: requests of clients that it passes on, repair, moves.
    pub beside: f64,
    /// What an operation costs it, compared with [`Weights`].
    pub factor: f64,
    /// The standard deviation of the mean of its utilisation.
    pub deviation: f64,
    /// How many deviations cannot be noise: three, or more where few steps were seen.
    pub deviations: f64,
    /// Used and all bytes of its disk, where they are known.
    pub disk: Option<(u64, u64)>,
}

impl NodeLoad {
    /// Its load as a share of what it can carry.
    pub fn utilisation(&self) -> f64 {
        self.load / self.capacity
    }

    /// All that its workers do, as a share of what it can carry.
    pub(super) fn total_share(&self) -> f64 {
        (self.load + self.beside) / self.capacity
    }

    /// How full its disk is.
    pub fn disk_share(&self) -> Option<f64> {
        let (used, total) = self.disk?;
        (total > 0).then(|| used as f64 / total as f64)
    }
}

/// How all members stand.
#[derive(Clone, Debug)]
pub struct Loads<'a> {
    /// The nodes.
    pub nodes: BTreeMap<NodeId, NodeLoad>,
    /// Over how many milliseconds.
    pub window_ms: u64,
    /// By what part of the mean a node must exceed it to be believed: within a short time noise looks like load.
    pub(super) least_excess: f64,
    measured: Vec<Measured<'a>>,
}

/// What partitions cost their replicas.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    /// For each partition, what each of its replicas did for it in a second, by their places, as [`Weights`] weigh it: in
    /// processors. Without what a node drives itself.
    pub(super) places: Places,
    /// Bytes of each partition at one replica.
    pub(super) bytes: BTreeMap<PartitionId, u64>,
}

impl<'a> Loads<'a> {
    /// Of what all members did.
    ///
    /// # Errors
    /// When figures of a node cannot be.
    pub(super) fn of(
        cluster: &Cluster,
        measured: Vec<Measured<'a>>,
        least_excess: f64,
    ) -> Result<Loads<'a>, Says> {
        let weights = Weights::MEASURED;
        let factors = factors(&weights, &measured)?;
        let words = capacities_by_word(cluster, &measured);
        let mut loads = Loads { nodes: BTreeMap::new(), window_ms: 0, least_excess, measured: Vec::new() };
        for one in &measured {
            let (factor, seconds) = (factors[&one.node], one.seconds());
            let ran = one.ran();
            let load = (weights.of(one.work()) / 1e6 / seconds * factor).min(ran);
            let own = load * one.own_share(&weights);
            let capacity = words.get(&one.node).copied().unwrap_or(one.capacity);
            let share = if ran > 0.0 { load / ran } else { 0.0 };
            let deviation = deviation(&one.steps) * share / capacity;
            let disk = one.last.disk_total_bytes.zip(one.last.disk_available_bytes);
            let disk = disk.map(|(total, free)| (total.saturating_sub(free), total));
            let beside = (ran - load).max(0.0);
            loads.window_ms = loads.window_ms.max((seconds * 1000.0) as u64);
            let deviations = deviations(one.steps.len());
            let age = one.age;
            let node = NodeLoad { age, capacity, load, own, beside, factor, deviation, deviations, disk };
            loads.nodes.insert(one.node, node);
        }
        loads.measured = measured;
        Ok(loads)
    }

    /// What partitions cost their replicas: that takes longer than the rest, and is needed only where something is to be
    /// done.
    pub(super) fn costs(&self, cluster: &Cluster) -> Costs {
        let weights = Weights::MEASURED;
        let by_node: BTreeMap<NodeId, BTreeMap<PartitionId, (f64, u64)>> =
            self.measured.iter().map(|one| (one.node, one.by_partition(&weights))).collect();
        let mut costs = Costs::default();
        for partition in cluster.ring.partitions() {
            let replicas = cluster.replicas_in(&partition.nodes);
            let told = |node: &NodeId| by_node.get(node).and_then(|told| told.get(&partition.id));
            let known: Vec<(NodeId, f64)> =
                replicas.iter().map(|node| (*node, told(node).map_or(0.0, |(work, _)| *work))).collect();
            let bytes = replicas.iter().filter_map(told).map(|(_, bytes)| *bytes).max().unwrap_or(0);
            if known.iter().any(|(_, work)| *work > 0.0) || bytes > 0 {
                costs.places.insert(partition.id, known);
                costs.bytes.insert(partition.id, bytes);
            }
        }
        costs
    }

    /// Where the work for a partition halves, as one of its nodes says.
    pub(super) fn middle(&self, node: NodeId, partition: PartitionId) -> Option<Middle> {
        let measured = self.measured.iter().find(|one| one.node == node)?;
        measured.last.partitions.iter().find(|load| load.partition == partition)?.middle
    }

    /// The utilisation of all together.
    pub fn mean(&self) -> f64 {
        mean(&self.nodes)
    }

    pub(super) fn mean_total(&self) -> f64 {
        let sum = |of: fn(&NodeLoad) -> f64| self.nodes.values().map(of).sum::<f64>();
        sum(|node| node.load + node.beside) / sum(|node| node.capacity).max(1e-9)
    }

    /// The highest utilisation.
    pub fn largest(&self) -> f64 {
        largest(&self.nodes)
    }

    /// The highest utilisation compared with the mean.
    pub fn largest_over_mean(&self) -> f64 {
        let mean = self.mean();
        if mean > 0.0 { self.largest() / mean } else { 1.0 }
    }

    pub(super) fn busiest(&self) -> Option<(NodeId, &NodeLoad)> {
        let by = |a: &(&NodeId, &NodeLoad), b: &(&NodeId, &NodeLoad)| {
            a.1.utilisation().total_cmp(&b.1.utilisation())
        };
        self.nodes.iter().max_by(by).map(|(id, node)| (*id, node))
    }

    /// The busiest node of which less than half of the work is for its places in partitions.
    pub(super) fn most_beside(&self) -> Option<(NodeId, &NodeLoad)> {
        let by = |a: &(&NodeId, &NodeLoad), b: &(&NodeId, &NodeLoad)| {
            a.1.total_share().total_cmp(&b.1.total_share())
        };
        let (id, node) = self.nodes.iter().max_by(by)?;
        (node.beside + node.own > node.load - node.own).then_some((*id, node))
    }

    /// As documents hold it.
    pub fn told(&self) -> Vec<NodeAt> {
        let told = |(node, at): (&NodeId, &NodeLoad)| NodeAt {
            node: *node,
            age_ms: at.age.as_millis() as u64,
            capacity: permille(at.capacity),
            load: permille(at.load),
            beside: permille(at.beside),
            utilisation: permille(at.utilisation()),
            deviation: permille(at.deviation),
            disk: at.disk_share().map(permille),
        };
        self.nodes.iter().map(told).collect()
    }
}

/// The utilisation of all together.
pub(super) fn mean(nodes: &BTreeMap<NodeId, NodeLoad>) -> f64 {
    let sum = |of: fn(&NodeLoad) -> f64| nodes.values().map(of).sum::<f64>();
    sum(|node| node.load) / sum(|node| node.capacity).max(1e-9)
}

/// The highest utilisation.
pub(super) fn largest(nodes: &BTreeMap<NodeId, NodeLoad>) -> f64 {
    nodes.values().map(NodeLoad::utilisation).fold(0.0, f64::max)
}

impl Measured<'_> {
    fn seconds(&self) -> f64 {
        (self.last.uptime_ms.saturating_sub(self.before.uptime_ms) as f64 / 1000.0).max(0.001)
    }

    fn ran(&self) -> f64 {
        let us = self.last.ran_us.unwrap_or(0).saturating_sub(self.before.ran_us.unwrap_or(0));
        us as f64 / 1e6 / self.seconds()
    }

    fn work(&self) -> WorkDone {
        self.last.work().since(self.before.work())
    }

    /// Which part of the writes that it stamped it was asked for, and did not stamp because of its place.
    fn own_stamped(&self) -> f64 {
        let own = self.last.own_stamped.saturating_sub(self.before.own_stamped) as f64;
        (own / self.work().stamped.max(1) as f64).min(1.0)
    }

    /// What part of its weighted work it does whatever its place.
    fn own_share(&self, weights: &Weights) -> f64 {
        let all = weights.of(self.work());
        if all > 0.0 { 1.0 - weights.of_placed(self.work(), self.own_stamped()) / all } else { 0.0 }
    }

    /// What it did for each partition because of its place, as weights weigh it, in processors; and the bytes that it holds.
    fn by_partition(&self, weights: &Weights) -> BTreeMap<PartitionId, (f64, u64)> {
        let before: BTreeMap<PartitionId, WorkDone> =
            self.before.partitions.iter().map(|load| (load.partition, load.work)).collect();
        let own = self.own_stamped();
        let done = |load: &PartitionLoad| {
            // One that was not told before is known from the next report on.
            let work =
                before.get(&load.partition).map_or(WorkDone::default(), |earlier| load.work.since(*earlier));
            (load.partition, (weights.of_placed(work, own) / 1e6 / self.seconds(), load.bytes))
        };
        self.last.partitions.iter().map(done).collect()
    }
}

/// What an operation costs each node, compared with the weights. One that does next to nothing is taken to be like the
/// median of the others.
fn factors(weights: &Weights, measured: &[Measured<'_>]) -> Result<BTreeMap<NodeId, f64>, Says> {
    let factor = |one: &Measured<'_>| {
        let coordinated = weights.of_coordinated(
            one.last.coordinated_gets.saturating_sub(one.before.coordinated_gets),
            one.last.coordinated_puts.saturating_sub(one.before.coordinated_puts),
        );
        let weighted = (weights.of(one.work()) + coordinated) / 1e6 / one.seconds();
        (one.ran() >= BUSY_MIN && weighted > 0.0).then(|| one.ran() / weighted)
    };
    let known: Vec<(NodeId, Option<f64>)> = measured.iter().map(|one| (one.node, factor(one))).collect();
    let middle = median(known.iter().filter_map(|(_, factor)| *factor)).unwrap_or(1.0);
    if let Some(odd) = known.iter().find_map(|&(node, factor)| {
        let factor = factor.filter(|factor| *factor < middle / COST_FACTOR_MAX)?;
        Some(Says::NotBelieved { node, what: Implausible::Cost { permille: permille(factor / middle) } })
    }) {
        return Err(odd);
    }
    // Dearer ones do other work: repair, moves, a client's large values. What is theirs by weight counts, and no more.
    Ok(known
        .into_iter()
        .map(|(node, factor)| (node, factor.unwrap_or(middle).min(middle * COST_FACTOR_MAX)))
        .collect())
}

/// What nodes can carry of which an operator has said so: compared with the median of the others.
fn capacities_by_word(cluster: &Cluster, measured: &[Measured<'_>]) -> BTreeMap<NodeId, f64> {
    let weight = |node: NodeId| cluster.node(node).map_or(Weight::default(), |entry| entry.weight);
    let plain = measured.iter().filter(|one| weight(one.node) == Weight::default());
    let ordinary = median(plain.map(|one| one.capacity)).unwrap_or(1.0);
    let said = measured.iter().filter(|one| weight(one.node) != Weight::default());
    said.map(|one| (one.node, ordinary * f64::from(weight(one.node).get()) / 100.0)).collect()
}

/// How many deviations of a mean of this many steps noise exceeds once in a thousand times: three where there are many, and
/// more where the deviation itself is hardly known (Student's t, to within a tenth above three steps).
fn deviations(steps: usize) -> f64 {
    let free = steps.saturating_sub(1).max(1) as f64;
    3.0 * (1.0 + 2.6 / free + 12.0 / (free * free))
}

/// The standard deviation of the mean of these.
fn deviation(steps: &[f64]) -> f64 {
    let count = steps.len() as f64;
    if steps.len() < 2 {
        return 0.0;
    }
    let mean = steps.iter().sum::<f64>() / count;
    let squares = steps.iter().map(|step| (step - mean).powi(2)).sum::<f64>();
    (squares / (count - 1.0) / count).sqrt()
}
