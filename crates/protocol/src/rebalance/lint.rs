//! Whether a finished plan holds together: what the planner should never have said, found from the document and the plan
//! alone.
//!
//! The planner is searched for faults by tests; this is the last look before a plan is carried out, and it knows nothing
//! of how the plan came about. A finding is data: how bad it is, and what it is about.
//!
//! Must never: depend on the planner's own code for what it checks.

use std::collections::{BTreeMap, BTreeSet};

use model::plan::{Handover, Move, PlanChange, Renumber, Reshape, Reshaped};
use model::{Cluster, Consistency, NodeId, PartitionId, Role};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The plan can be carried out, and leaves the cluster worse in some way than it could be.
    Warning,
    /// The plan must not be carried out.
    Error,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// The ring has no such partition.
    PartitionUnknown(PartitionId),
    /// A partition moves twice.
    PartitionTwice(PartitionId),
    /// The list from which a partition moves is not the one that it has.
    OtherList(PartitionId),
    /// A partition moves to the list that it has.
    NothingMoves(PartitionId),
    /// Moves are not in the order of the ring.
    OutOfOrder(PartitionId),
    /// A list is empty, or names a node twice.
    ListTwice(PartitionId),
    /// A list names a node that is no member.
    NodeUnknown(PartitionId, NodeId),
    /// A node enters that is leaving, or gone.
    EntersLeaving(PartitionId, NodeId),
    /// Those that are said to enter are not the new replicas.
    OtherEntering(PartitionId),
    /// A partition would have fewer replicas.
    FewerReplicas(PartitionId),
    /// The replicas of a partition would lie in fewer zones.
    FewerZones(PartitionId),
    /// The places of a node are not what the moves make of them.
    OtherPlaces(NodeId),
    /// Bounds are changed already, or the ring is another one.
    OtherBounds,
    /// Two partitions that become one would lie on different nodes.
    OtherLists(PartitionId, PartitionId),
    /// The owner of a partition of a golden ring would be none of its replicas.
    OwnerElsewhere(PartitionId),
    /// The store is not there, or has other numbers.
    OtherNumbers,
    /// The numbers of partitions or copies of a change of numbers are not those of the ring.
    OtherCounts,
}

/// What was found, and how bad it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What.
    pub kind: FindingKind,
}

impl FindingKind {
    /// How bad it is.
    fn found(self) -> Finding {
        let severity = match self {
            FindingKind::FewerZones(_) => Severity::Warning,
            _ => Severity::Error,
        };
        Finding { severity, kind: self }
    }

    /// Its stable name.
    pub fn code(&self) -> &'static str {
        match self {
            FindingKind::PartitionUnknown(_) => "partition-unknown",
            FindingKind::PartitionTwice(_) => "partition-twice",
            FindingKind::OtherList(_) => "other-list",
            FindingKind::NothingMoves(_) => "nothing-moves",
            FindingKind::OutOfOrder(_) => "out-of-order",
            FindingKind::ListTwice(_) => "list-twice",
            FindingKind::NodeUnknown(..) => "node-unknown",
            FindingKind::EntersLeaving(..) => "enters-leaving",
            FindingKind::OtherEntering(_) => "other-entering",
            FindingKind::FewerReplicas(_) => "fewer-replicas",
            FindingKind::FewerZones(_) => "fewer-zones",
            FindingKind::OtherPlaces(_) => "other-places",
            FindingKind::OtherBounds => "other-bounds",
            FindingKind::OtherLists(..) => "other-lists",
            FindingKind::OwnerElsewhere(_) => "owner-elsewhere",
            FindingKind::OtherNumbers => "other-numbers",
            FindingKind::OtherCounts => "other-counts",
        }
    }
}

/// Places of nodes as replicas: at present, and then.
type Places = BTreeMap<NodeId, (usize, usize)>;

/// Everything that is wrong with a plan for this document, the worst first.
pub fn lint(cluster: &Cluster, change: &PlanChange, places: &Places) -> Vec<Finding> {
    let mut kinds = Vec::new();
    match change {
        PlanChange::Moves { moves } => moved(cluster, moves, places, &mut kinds),
        PlanChange::Reshape { moves, reshape } => {
            moved(cluster, moves, &Places::new(), &mut kinds);
            reshaped(cluster, moves, reshape, &mut kinds);
        }
        PlanChange::Numbers(numbers) => renumbered(cluster, numbers, &mut kinds),
        PlanChange::Golden { handover, moves, joins } => golden(cluster, handover, moves, joins, &mut kinds),
    }
    let mut findings: Vec<Finding> = kinds.into_iter().map(FindingKind::found).collect();
    findings.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.kind.cmp(&b.kind)));
    findings
}

/// What must not be carried out, by code; nothing of a plan that is sound.
pub fn errors(cluster: &Cluster, change: &PlanChange, places: &Places) -> Vec<String> {
    let found = lint(cluster, change, places).into_iter();
    found
        .filter(|one| one.severity == Severity::Error)
        .map(|one| one.kind.code().to_owned())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

fn moved(cluster: &Cluster, moves: &[Move], places: &Places, kinds: &mut Vec<FindingKind>) {
    let partitions = cluster.ring.partitions();
    let positions: BTreeMap<PartitionId, usize> =
        partitions.iter().enumerate().map(|(position, partition)| (partition.id, position)).collect();
    let (mut seen, mut last) = (BTreeSet::new(), None);
    for one in moves {
        let id = one.partition;
        let Some(&position) = positions.get(&id) else {
            kinds.push(FindingKind::PartitionUnknown(id));
            continue;
        };
        if !seen.insert(id) {
            kinds.push(FindingKind::PartitionTwice(id));
        } else if last.is_some_and(|last| position < last) {
            kinds.push(FindingKind::OutOfOrder(id));
        }
        last = Some(position);
        if partitions[position].nodes != one.from {
            kinds.push(FindingKind::OtherList(id));
        }
        if one.from == one.to {
            kinds.push(FindingKind::NothingMoves(id));
        }
        listed(cluster, one, kinds);
    }
    if !places.is_empty() {
        counted(cluster, moves, places, kinds);
    }
}

/// The next list of one partition.
fn listed(cluster: &Cluster, one: &Move, kinds: &mut Vec<FindingKind>) {
    let id = one.partition;
    let distinct: BTreeSet<&NodeId> = one.to.iter().collect();
    if one.to.is_empty() || distinct.len() < one.to.len() {
        kinds.push(FindingKind::ListTwice(id));
    }
    let (before, after) = (cluster.replicas_in(&one.from), cluster.replicas_in(&one.to));
    let entering: Vec<NodeId> = after.iter().copied().filter(|node| !before.contains(node)).collect();
    if entering != one.entering {
        kinds.push(FindingKind::OtherEntering(id));
    }
    if after.len() < before.len() {
        kinds.push(FindingKind::FewerReplicas(id));
    }
    for node in &one.to {
        match cluster.node(*node) {
            None => kinds.push(FindingKind::NodeUnknown(id, *node)),
            Some(known) if entering.contains(node) && (known.role == Role::Leaving || known.gone) => {
                kinds.push(FindingKind::EntersLeaving(id, *node));
            }
            Some(_) => {}
        }
    }
    let zones = |list: &[NodeId]| {
        let zones = list.iter().filter_map(|node| cluster.node(*node)).map(|node| &node.zone);
        zones.collect::<BTreeSet<_>>().len()
    };
    if zones(after) < zones(before) {
        kinds.push(FindingKind::FewerZones(id));
    }
}

/// The places that a plan tells people.
fn counted(cluster: &Cluster, moves: &[Move], places: &Places, kinds: &mut Vec<FindingKind>) {
    let to: BTreeMap<PartitionId, &[NodeId]> = moves.iter().map(|one| (one.partition, &one.to[..])).collect();
    let mut counts = Places::new();
    for partition in cluster.ring.partitions() {
        let then = to.get(&partition.id).copied().unwrap_or(&partition.nodes);
        for node in cluster.replicas_in(&partition.nodes) {
            counts.entry(*node).or_default().0 += 1;
        }
        for node in cluster.replicas_in(then) {
            counts.entry(*node).or_default().1 += 1;
        }
    }
    let nodes: BTreeSet<&NodeId> = counts.keys().chain(places.keys()).collect();
    let of = |places: &Places, node: &NodeId| places.get(node).copied().unwrap_or_default();
    let others = nodes.into_iter().filter(|node| of(&counts, node) != of(places, node));
    kinds.extend(others.map(|node| FindingKind::OtherPlaces(*node)));
}

fn reshaped(cluster: &Cluster, moves: &[Move], reshape: &Reshape, kinds: &mut Vec<FindingKind>) {
    if reshape.stands(&cluster.ring) != Reshaped::Due {
        kinds.push(FindingKind::OtherBounds);
    }
    let Reshape::Join { partition, other } = reshape else { return };
    let list = |id: PartitionId| list(cluster, moves, id);
    if cluster.replicas_in(list(*partition)) != cluster.replicas_in(list(*other)) {
        kinds.push(FindingKind::OtherLists(*partition, *other));
    }
}

/// Partitions get other owners, lists that follow from that, and some become one.
fn golden(
    cluster: &Cluster,
    handover: &Handover,
    moves: &[Move],
    joins: &[(PartitionId, PartitionId)],
    kinds: &mut Vec<FindingKind>,
) {
    let is_due = handover.stands(&cluster.ring) == Reshaped::Due || handover.is_empty();
    let Some(handed) = is_due.then(|| handover.apply(cluster, usize::MAX).ok()).flatten() else {
        kinds.push(FindingKind::OtherBounds);
        return;
    };
    moved(&handed, moves, &Places::new(), kinds);
    for (partition, other) in joins {
        let (one, two) = (list(&handed, moves, *partition), list(&handed, moves, *other));
        let owner = |id: PartitionId| handed.ring.get(id).and_then(|known| known.owner);
        if handed.replicas_in(one) != handed.replicas_in(two) || owner(*partition) != owner(*other) {
            kinds.push(FindingKind::OtherLists(*partition, *other));
        }
    }
    let taken_in = |id: PartitionId| joins.iter().any(|(_, other)| *other == id);
    for partition in handed.ring.partitions().iter().filter(|partition| !taken_in(partition.id)) {
        let then = list(&handed, moves, partition.id);
        if partition.owner.is_some_and(|owner| !handed.replicas_in(then).contains(&owner)) {
            kinds.push(FindingKind::OwnerElsewhere(partition.id));
        }
    }
}

/// The list of a partition when these moves have settled.
fn list<'a>(cluster: &'a Cluster, moves: &'a [Move], id: PartitionId) -> &'a [NodeId] {
    let moved = moves.iter().find(|one| one.partition == id).map(|one| &one.to[..]);
    moved.or_else(|| cluster.ring.get(id).map(|known| &known.nodes[..])).unwrap_or_default()
}

fn renumbered(cluster: &Cluster, numbers: &Renumber, kinds: &mut Vec<FindingKind>) {
    let Some(store) = cluster.store(numbers.store.as_str()) else {
        kinds.push(FindingKind::OtherNumbers);
        return;
    };
    if store.consistency != numbers.from || numbers.from == numbers.to || numbers.to.validate().is_err() {
        kinds.push(FindingKind::OtherNumbers);
    }
    let partitions = cluster.ring.partitions();
    let first = |numbers: Consistency, list: &[NodeId]| usize::from(numbers.replicas).min(list.len());
    let copies = partitions
        .iter()
        .map(|one| first(numbers.to, &one.nodes).saturating_sub(first(numbers.from, &one.nodes)));
    if (numbers.partitions, numbers.copies) != (partitions.len(), copies.sum()) {
        kinds.push(FindingKind::OtherCounts);
    }
}
