//! Which places should trade, and which copies go elsewhere: the best legal act, again and again, until the aim is reached
//! or the batch is full.

use std::collections::{BTreeMap, BTreeSet};

use model::balance::Settings;
use model::plan::{Act, Excess, Lost, LostBecause, Placed, Predicted, Rule};
use model::{Cluster, NodeId, PartitionId, Role};

use super::loads::{Costs, largest, mean};
use super::{Loads, NodeLoad, Places, permille};

/// So many partitions of a node are looked at, those first that cost it most.
const LOOKED_AT: usize = 256;
/// So many nodes are looked at as targets of a copy, those first that have most to spare.
const TARGETS: usize = 8;
/// Bytes that a batch copies at most: what a minute of copying brings.
const BATCH_BYTES: u64 = 60 * COPIED_PER_SECOND;
/// Bytes that a node brings in within a second, at least.
const COPIED_PER_SECOND: u64 = 16 * 1024 * 1024;
/// What copying a byte costs both nodes together, in seconds of a processor.
const COPY_COST: f64 = 2.0 / (100.0 * 1024.0 * 1024.0);
/// Seconds that the steps of a plan take.
const STEPS_SECONDS: u64 = 4;

/// When partitions were moved or reordered last, in milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchHistory {
    /// What time it is.
    pub now_ms: u64,
    /// A copy came somewhere.
    pub copied: BTreeMap<PartitionId, u64>,
    /// Its list got another order.
    pub reordered: BTreeMap<PartitionId, u64>,
}

impl SearchHistory {
    /// Without what was moved before a time.
    pub(crate) fn since(&self, ms: u64) -> SearchHistory {
        let later = |times: &BTreeMap<PartitionId, u64>| {
            times.iter().filter(|(_, at)| **at >= ms).map(|(id, at)| (*id, *at)).collect()
        };
        SearchHistory { now_ms: self.now_ms, copied: later(&self.copied), reordered: later(&self.reordered) }
    }

    /// With copies of these partitions that came somewhere then.
    pub(crate) fn and_copied(mut self, copied: BTreeMap<PartitionId, u64>) -> SearchHistory {
        for (partition, at) in copied {
            let last = self.copied.entry(partition).or_default();
            *last = at.max(*last);
        }
        self
    }
}

/// What was found.
#[derive(Default)]
pub(super) struct Batch {
    /// The node that is relieved first, and why.
    pub(super) relieved: Option<(NodeId, Excess)>,
    pub(super) placed: Vec<Placed>,
    pub(super) reorders: u64,
    pub(super) thought_of: u64,
    pub(super) lost: Vec<Lost>,
    pub(super) predicted: Predicted,
}

/// What an act would change.
pub(super) struct Candidate {
    pub(super) act: Act,
    pub(super) to: Vec<NodeId>,
    /// By how much the two nodes' loads rise, in processors.
    change: [(NodeId, f64); 2],
    bytes: u64,
    /// By how much the sum falls.
    pub(super) gain: f64,
    /// What of the gain could be noise.
    noise: f64,
}

/// Loads as they would be, while a batch is put together.
pub(super) struct Search<'a> {
    pub(super) cluster: &'a Cluster,
    history: &'a SearchHistory,
    settings: &'a Settings,
    /// N of each store, of either kind.
    replicas: Vec<usize>,
    pub(super) nodes: BTreeMap<NodeId, NodeLoad>,
    /// Bytes of each partition at one replica.
    pub(super) bytes: BTreeMap<PartitionId, u64>,
    /// What each place costs by weight, as it would be.
    pub(super) places: Places,
    taken: BTreeSet<PartitionId>,
    copied_to: BTreeMap<NodeId, u64>,
    lost: BTreeMap<LostBecause, (BTreeSet<Seen>, f64, Act)>,
    thought_of: BTreeSet<Seen>,
}

/// One act, so that it counts once.
type Seen = (PartitionId, NodeId, NodeId, bool);

pub(super) fn search(
    cluster: &Cluster,
    loads: &Loads<'_>,
    history: &SearchHistory,
    settings: &Settings,
    over: &[(NodeId, Excess)],
) -> Batch {
    let mut search = Search::new(cluster, loads, history, settings);
    let acts_max = search.acts_max();
    let mut batch = Batch::default();
    let (mut gain, mut spent) = (0.0, BTreeSet::new());
    while batch.placed.len() < acts_max {
        let Some((node, excess)) = search.next_source(over, &spent) else { break };
        let Some(best) = search.best(node, excess) else {
            spent.insert(node);
            continue;
        };
        if !batch.takes(&best) {
            search.lose(LostBecause::Later, &best);
            spent.insert(node);
            continue;
        }
        gain += best.gain;
        batch.relieved.get_or_insert((node, excess));
        batch.reorders += u64::from(matches!(best.act, Act::Reorder { .. }));
        search.take(&best);
        batch.placed.push(Placed { partition: best.act.partition(), replicas: best.to });
    }
    if batch.placed.len() == acts_max
        && let Some((node, excess)) = search.next_source(over, &spent)
        && let Some(next) = search.best(node, excess)
    {
        search.lose(LostBecause::Later, &next);
    }
    search.predict(&mut batch, gain);
    batch
}

impl Batch {
    /// Takes one more, with the bytes that it copies, unless those are too many for one batch.
    pub(super) fn takes(&mut self, candidate: &Candidate) -> bool {
        let bytes = self.predicted.bytes + candidate.bytes;
        if bytes > BATCH_BYTES && !self.placed.is_empty() {
            return false;
        }
        self.predicted.bytes = bytes;
        true
    }
}

/// The batch that gives one partition to another node, whatever that gains.
pub(super) fn give(
    cluster: &Cluster,
    loads: &Loads<'_>,
    settings: &Settings,
    (partition, from, to): (PartitionId, NodeId, NodeId),
) -> Batch {
    let history = SearchHistory::default();
    let mut search = Search::new(cluster, loads, &history, settings);
    let mut batch = Batch::default();
    let listed = cluster.ring.get(partition).map(|one| cluster.replicas_in(&one.nodes)).unwrap_or_default();
    // Of one without work and bytes no node has told.
    search.places.entry(partition).or_insert_with(|| listed.iter().map(|node| (*node, 0.0)).collect());
    search.bytes.entry(partition).or_insert(0);
    let Some(place) = listed.iter().position(|node| *node == from) else { return batch };
    if let Some(given) = search.copies(from, partition, place, &[to]).into_iter().next() {
        batch.predicted.bytes = given.bytes;
        search.thought_of.insert(seen(&given.act));
        search.take(&given);
        search.predict(&mut batch, given.gain);
        batch.placed.push(Placed { partition, replicas: given.to });
    }
    batch
}

impl<'a> Search<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        loads: &Loads<'_>,
        history: &'a SearchHistory,
        settings: &'a Settings,
    ) -> Search<'a> {
        let Costs { places, bytes } = loads.costs(cluster);
        Search {
            cluster,
            history,
            settings,
            replicas: cluster.definitions().iter().map(|store| usize::from(store.replicas_max())).collect(),
            nodes: loads.nodes.clone(),
            bytes,
            places,
            taken: BTreeSet::new(),
            copied_to: BTreeMap::new(),
            lost: BTreeMap::new(),
            thought_of: BTreeSet::new(),
        }
    }

    /// How many acts a batch has at most: a tenth of all places.
    pub(super) fn acts_max(&self) -> usize {
        let partitions = self.cluster.ring.partitions().iter();
        let places: usize = partitions.map(|one| self.cluster.replicas_in(&one.nodes).len()).sum();
        (places / 10).max(1)
    }

    /// Writes what will be when the batch is carried out.
    pub(super) fn predict(&self, batch: &mut Batch, gain: f64) {
        let largest = largest(&self.nodes);
        batch.predicted.largest = permille(largest);
        batch.predicted.largest_over_mean = permille(largest / mean(&self.nodes).max(1e-9));
        batch.predicted.gain = permille(gain);
        batch.predicted.seconds = match self.copied_to.values().max() {
            Some(bytes) => bytes / COPIED_PER_SECOND + STEPS_SECONDS,
            None => 0,
        };
        batch.thought_of = self.thought_of.len() as u64;
        batch.lost = self.told();
    }

    /// The node to relieve next: one whose disk is too full, or else the busiest that is above the aim. One that exceeds no
    /// limit is not relieved unless another one does.
    fn next_source(&self, over: &[(NodeId, Excess)], spent: &BTreeSet<NodeId>) -> Option<(NodeId, Excess)> {
        let left = over.iter().filter(|(node, _)| !spent.contains(node));
        let aim = mean(&self.nodes) * f64::from(self.settings.aim) / 100.0;
        let gives = f64::from(self.settings.disk_gives) / 100.0;
        let mut disks = left.clone().filter(|(_, excess)| *excess == Excess::Disk);
        if let Some(found) = disks.find(|(node, _)| self.can_empty(*node, gives)) {
            return Some(*found);
        }
        let busy =
            left.filter(|(node, excess)| *excess != Excess::Disk && self.nodes[node].utilisation() > aim);
        busy.max_by(|a, b| {
            let at = |node: &NodeId| self.nodes[node].utilisation();
            at(&a.0).total_cmp(&at(&b.0))
        })
        .copied()
    }

    /// Whether a disk is fuller than this share, and what partitions take of it is enough to change that. What else lies
    /// there no move takes away, and the node would only lose all that it holds.
    fn can_empty(&self, node: NodeId, gives: f64) -> bool {
        let Some((used, total)) = self.nodes[&node].disk else { return false };
        let held = |places: &Vec<(NodeId, f64)>| places.iter().any(|(held_by, _)| *held_by == node);
        let bytes: u64 =
            self.places.iter().filter(|(_, places)| held(places)).map(|(id, _)| self.bytes[id]).sum();
        let limit = total as f64 * gives;
        used as f64 > limit && used.saturating_sub(bytes) as f64 <= limit
    }

    /// The best legal act that relieves a node: a reordering if one is legal, or else a copy elsewhere.
    pub(super) fn best(&mut self, node: NodeId, excess: Excess) -> Option<Candidate> {
        let held = self.held(node, excess);
        let reorders = match excess {
            Excess::Disk => Vec::new(),
            _ if self.settings.policy == Rule::NoReordering => Vec::new(),
            _ => held.iter().flat_map(|one| self.reorders(node, one.0, one.1)).collect(),
        };
        if let Some(best) = self.best_legal(reorders, excess) {
            return Some(best);
        }
        // Where copies lie on a golden ring follows from whose partitions are.
        if self.cluster.ring.is_golden() {
            return None;
        }
        let targets = self.targets();
        let copies = held.iter().flat_map(|one| self.copies(node, one.0, one.1, &targets)).collect();
        self.best_legal(copies, excess)
    }

    /// The partitions that a node holds, and in which place: those first that are dearest.
    pub(super) fn held(&self, node: NodeId, excess: Excess) -> Vec<(PartitionId, usize, f64)> {
        let mut held: Vec<(PartitionId, usize, f64)> = Vec::new();
        for (partition, places) in &self.places {
            if let Some(place) = places.iter().position(|(held_by, _)| *held_by == node) {
                let weight =
                    if excess == Excess::Disk { self.bytes[partition] as f64 } else { places[place].1 };
                if weight > 0.0 && !self.taken.contains(partition) {
                    held.push((*partition, place, weight));
                }
            }
        }
        held.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
        held.truncate(LOOKED_AT);
        held
    }

    /// The best legal act of these for a new node, that leaves it at this utilisation at most.
    pub(super) fn best_within(
        &mut self,
        mut candidates: Vec<Candidate>,
        node: NodeId,
        most: f64,
    ) -> Option<Candidate> {
        let at = &self.nodes[&node];
        candidates.retain(|one| (at.load + one.change[1].1) / at.capacity <= most);
        self.best_legal(candidates, Excess::Joins)
    }

    fn best_legal(&mut self, candidates: Vec<Candidate>, excess: Excess) -> Option<Candidate> {
        let mut best: Option<(f64, Candidate)> = None;
        for candidate in candidates {
            self.thought_of.insert(seen(&candidate.act));
            if let Some(because) = self.illegal(&candidate, excess) {
                self.lose(because, &candidate);
                continue;
            }
            let worth = match excess {
                Excess::Disk => candidate.bytes as f64,
                _ => candidate.gain - candidate.noise - self.cost(&candidate),
            };
            if best.as_ref().is_none_or(|(most, _)| worth > *most) {
                best = Some((worth, candidate));
            }
        }
        best.map(|(_, candidate)| candidate)
    }

    /// What copying costs, spread over the time for which the copy stays at least.
    fn cost(&self, candidate: &Candidate) -> f64 {
        candidate.bytes as f64 * COPY_COST / self.residence(candidate.bytes)
    }

    /// Seconds for which a copy stays where it came: as set, or ten times what copying takes.
    fn residence(&self, bytes: u64) -> f64 {
        f64::from(self.settings.residence_s).max(10.0 * bytes as f64 / COPIED_PER_SECOND as f64)
    }

    /// The node in another place of the list.
    fn reorders(&self, node: NodeId, partition: PartitionId, place: usize) -> Vec<Candidate> {
        let places = &self.places[&partition];
        let others = (0..places.len()).filter(|&other| other != place);
        let candidate = |other: usize| {
            let (target, work) = places[other];
            let mut to: Vec<NodeId> = places.iter().map(|(node, _)| *node).collect();
            to.swap(place, other);
            let moved = places[place].1 - work;
            let spread = self.spread(node, places[place].1).hypot(self.spread(target, work));
            let bytes = if self.copies_bytes(place, other) { self.bytes[&partition] } else { 0 };
            let act = Act::Reorder { partition, from: node, to: target };
            self.candidate(act, to, (node, target, moved, spread), bytes)
        };
        others.map(candidate).collect()
    }

    /// Whether trading two places makes a node a replica of some store that it was not.
    fn copies_bytes(&self, place: usize, other: usize) -> bool {
        let (near, far) = (place.min(other), place.max(other));
        self.replicas.iter().any(|replicas| (near + 1..=far).contains(replicas))
    }

    /// Another node in the place of this one.
    pub(super) fn copies(
        &self,
        node: NodeId,
        partition: PartitionId,
        place: usize,
        targets: &[NodeId],
    ) -> Vec<Candidate> {
        let places = &self.places[&partition];
        let free = targets.iter().filter(|target| !places.iter().any(|(held_by, _)| held_by == *target));
        let candidate = |&target: &NodeId| {
            let mut to: Vec<NodeId> = places.iter().map(|(node, _)| *node).collect();
            to[place] = target;
            let (act, moved) = (Act::Copy { partition, from: node, to: target }, places[place].1);
            let spread = self.spread(node, moved);
            self.candidate(act, to, (node, target, moved, spread), self.bytes[&partition])
        };
        free.map(candidate).collect()
    }

    /// Nodes that may take a copy, those first that have most to spare.
    fn targets(&self) -> Vec<NodeId> {
        let serves =
            |node: &&NodeId| self.cluster.node(**node).is_some_and(|entry| entry.role == Role::Serving);
        let mut targets: Vec<NodeId> = self.nodes.keys().filter(serves).copied().collect();
        targets.sort_by(|a, b| {
            let at = |node: &NodeId| self.nodes[node].utilisation();
            at(a).total_cmp(&at(b))
        });
        targets.truncate(TARGETS);
        targets
    }

    /// How far what a place costs by weight may be off: as far as the node's load as a whole.
    fn spread(&self, node: NodeId, work: f64) -> f64 {
        let at = &self.nodes[&node];
        work * at.deviations * at.deviation / at.utilisation().max(1e-6)
    }

    /// The act by which so much work, give or take `spread`, goes from one node to another.
    fn candidate(
        &self,
        act: Act,
        to: Vec<NodeId>,
        (from, target, moved, spread): (NodeId, NodeId, f64, f64),
        bytes: u64,
    ) -> Candidate {
        let (source, sink) = (&self.nodes[&from], &self.nodes[&target]);
        let change = [(from, -moved * source.factor), (target, moved * sink.factor)];
        // What it gains is known as well as the two loads are, and as well as what moves.
        let slope = (source.factor * source.utilisation() - sink.factor * sink.utilisation()).abs();
        let (mut gain, mut noise) = (0.0, (2.0 * slope * spread).powi(2));
        for (at, change) in [(source, change[0].1), (sink, change[1].1)] {
            gain += (at.load.powi(2) - (at.load + change).max(0.0).powi(2)) / at.capacity;
            noise += (2.0 * change * at.deviation * at.deviations).powi(2);
        }
        Candidate { act, to, change, bytes, gain, noise: noise.sqrt() }
    }

    /// Why an act may not be, if it may not.
    fn illegal(&self, candidate: &Candidate, excess: Excess) -> Option<LostBecause> {
        let Candidate { act, change: [(source, _), (target, rises)], bytes, .. } = candidate;
        let id = act.partition();
        let now = self.history.now_ms;
        let rested = |last: Option<&u64>, seconds: f64| {
            last.is_none_or(|&at| now.saturating_sub(at) as f64 >= seconds * 1000.0)
        };
        let copied = rested(self.history.copied.get(&id), self.residence(self.bytes[&id]));
        let ordered = rested(self.history.reordered.get(&id), f64::from(self.settings.rest_s));
        let partition = self.cluster.ring.get(id);
        let copies = *bytes > 0 || matches!(act, Act::Copy { .. });
        if !ordered || (!copied && copies) || partition.is_none_or(|known| known.coming.is_some()) {
            return Some(LostBecause::Rests);
        }
        if copies && self.fills(*target, *bytes) {
            return Some(LostBecause::Disk);
        }
        if matches!(act, Act::Copy { .. }) && self.narrows(id, &candidate.to) {
            return Some(LostBecause::Zones);
        }
        let node = |id: &NodeId| &self.nodes[id];
        let (before, after) =
            (node(source).utilisation(), (node(target).load + rises) / node(target).capacity);
        if excess == Excess::Disk {
            let most = f64::from(self.settings.most) / 100.0;
            return (after > most).then_some(LostBecause::TargetAsBusy);
        }
        if *rises <= 0.0 || candidate.gain <= 0.0 {
            return Some(LostBecause::NoGain);
        }
        if after >= before {
            return Some(LostBecause::TargetAsBusy);
        }
        // A new node gets its share once; that is no answer to what noise may look like.
        if excess == Excess::Joins {
            return None;
        }
        if candidate.gain <= candidate.noise {
            return Some(LostBecause::Noise);
        }
        (candidate.gain - candidate.noise <= self.cost(candidate)).then_some(LostBecause::Copying)
    }

    /// Whether a disk would be too full.
    fn fills(&self, target: NodeId, bytes: u64) -> bool {
        let coming = self.copied_to.get(&target).copied().unwrap_or(0) + bytes;
        let full = f64::from(self.settings.disk_full) / 100.0;
        let disk = self.nodes[&target].disk;
        disk.is_some_and(|(used, total)| (used + coming) as f64 > total as f64 * full)
    }

    fn narrows(&self, id: PartitionId, to: &[NodeId]) -> bool {
        let zones = |nodes: &[NodeId]| {
            let zone = |node: &NodeId| self.cluster.node(*node).map(|entry| &entry.zone);
            nodes.iter().filter_map(zone).collect::<BTreeSet<_>>().len()
        };
        let before: Vec<NodeId> = self.places[&id].iter().map(|(node, _)| *node).collect();
        zones(to) < zones(&before)
    }

    /// Loads, places and disks as the act makes them.
    pub(super) fn take(&mut self, candidate: &Candidate) {
        let id = candidate.act.partition();
        for (node, change) in candidate.change {
            let at = self.nodes.get_mut(&node).expect("candidates are about known nodes");
            at.load = (at.load + change).max(0.0);
        }
        let bytes = candidate.bytes;
        if bytes > 0 {
            let [(source, _), (target, _)] = candidate.change;
            *self.copied_to.entry(target).or_default() += bytes;
            for (node, sign) in [(source, -1), (target, 1)] {
                let disk = &mut self.nodes.get_mut(&node).expect("as above").disk;
                if let Some((used, _)) = disk {
                    *used = used.saturating_add_signed(sign * i64::try_from(bytes).unwrap_or(0));
                }
            }
        }
        let places = self.places.get_mut(&id).expect("as above");
        for (place, node) in places.iter_mut().zip(&candidate.to) {
            place.0 = *node;
        }
        self.taken.insert(id);
    }

    pub(super) fn lose(&mut self, because: LostBecause, candidate: &Candidate) {
        let entry = self.lost.entry(because).or_insert_with(|| (BTreeSet::new(), f64::MIN, candidate.act));
        entry.0.insert(seen(&candidate.act));
        if candidate.gain > entry.1 {
            (entry.1, entry.2) = (candidate.gain, candidate.act);
        }
    }

    fn told(&self) -> Vec<Lost> {
        let told = self.lost.iter().map(|(because, (acts, _, example))| Lost {
            because: *because,
            count: acts.len() as u64,
            example: *example,
        });
        told.collect()
    }
}

fn seen(act: &Act) -> Seen {
    match *act {
        Act::Reorder { partition, from, to } => (partition, from, to, true),
        Act::Copy { partition, from, to } => (partition, from, to, false),
    }
}
