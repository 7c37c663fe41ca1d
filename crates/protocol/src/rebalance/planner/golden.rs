//! What becomes of a golden ring: who gets which partition, and the lists that follow from that.
//!
//! ```text
//!   wish ──▶ whose each partition will be, and one cut ──▶ lists along the ring ──▶ moves ──▶ parts that become one
//! ```
//!
//! Lists follow from owners alone. So each plan also ends what an earlier one has left over: a part that was cut and not
//! moved, or a list that an aborted plan had changed. Where the replicas are the right ones their order stays, because load
//! may have chosen it.
//!
//! Must never: leave a node without a partition that had one, unless it is to leave.

use std::collections::BTreeSet;

use model::limits::FALLBACKS_LISTED;
use model::plan::{Handover, JoinCut, OwnerChange};
use model::ring::golden::{along, golden_part, widest};
use model::{Cluster, NodeId, PartitionId, Role};

use super::{
    Move, Placed, Plan, PlanChange, PlanRefusal, Reshape, Wish, held, moved, places, takes_nothing, too_few,
};

/// The plan for a wish, if the ring is a golden one and the wish is not fulfilled there as on any other.
pub(super) fn plan(cluster: &Cluster, wish: &Wish) -> Option<Result<Plan, PlanRefusal>> {
    if !cluster.ring.is_golden() {
        return matches!(wish, Wish::Join { .. }).then_some(Err(PlanRefusal::NotGolden));
    }
    let refused = |wish: &str| Some(Err(PlanRefusal::Golden { wish: wish.to_owned() }));
    match wish {
        Wish::Spread => refused("spread"),
        Wish::Double => refused("double"),
        Wish::Move { .. } => refused("move"),
        Wish::Balance { placed } if !reorders(cluster, placed) => refused("balance"),
        Wish::Merge { partition, other } if !are_of_one(cluster, *partition, *other) => refused("merge"),
        Wish::Join { node, cut } => Some(joined(cluster, *node, *cut)),
        Wish::Drain { nodes } => Some(drained(cluster, nodes)),
        Wish::Replace { node, by } => Some(replaced(cluster, *node, *by)),
        Wish::Balance { .. } | Wish::Merge { .. } | Wish::Split { .. } | Wish::Numbers { .. } => None,
    }
}

/// Whether each partition keeps its replicas, if in another order.
fn reorders(cluster: &Cluster, placed: &[Placed]) -> bool {
    placed.iter().all(|one| {
        let known = cluster.ring.get(one.partition).map(|known| cluster.replicas_in(&known.nodes));
        known.is_none_or(|known| is_same_set(known, &one.replicas))
    })
}

fn is_same_set(one: &[NodeId], other: &[NodeId]) -> bool {
    one.len() == other.len() && one.iter().collect::<BTreeSet<_>>() == other.iter().collect::<BTreeSet<_>>()
}

/// Two partitions of one owner, or at least one that the ring has not.
fn are_of_one(cluster: &Cluster, partition: PartitionId, other: PartitionId) -> bool {
    match (cluster.ring.get(partition), cluster.ring.get(other)) {
        (Some(one), Some(other)) => one.owner == other.owner,
        _ => true,
    }
}

/// A node gets a part of a partition, or a part that is left over.
fn joined(cluster: &Cluster, node: NodeId, cut: JoinCut) -> Result<Plan, PlanRefusal> {
    let owners = cluster.ring.owners();
    let known = cluster.node(node).ok_or(PlanRefusal::NodeUnknown { node })?;
    if let Some(partition) = first_of(cluster, node) {
        return Err(PlanRefusal::HasPartition { node, partition });
    }
    if known.role != Role::Serving || known.gone {
        return Err(takes_nothing(cluster, node));
    }
    if let Some(refusal) = cluster.uneven_on_golden(known) {
        return Err(refusal);
    }
    let handover = match cut {
        JoinCut::Hottest => return Err(PlanRefusal::NoFigures { is_off: false, seconds: None }),
        JoinCut::At { partition, at } => {
            let owner = cluster.ring.get(partition).ok_or(PlanRefusal::PartitionUnknown { partition })?.owner;
            Handover::cut(cluster, (partition, at), (owner.unwrap_or(node), node))?
        }
        JoinCut::Widest => match left_over(cluster, &owners) {
            Some(position) => {
                let partition = cluster.ring.partitions()[position].id;
                let change = OwnerChange { partition, from: owners[position], to: node };
                Handover { cut: None, owners: vec![change] }
            }
            None => widest_cut(cluster, &owners, node)?,
        },
    };
    follow(cluster, handover, &[])
}

/// The first partition of a node.
fn first_of(cluster: &Cluster, node: NodeId) -> Option<PartitionId> {
    cluster.ring.partitions().iter().find(|one| one.owner == Some(node)).map(|one| one.id)
}

/// How many buckets each partition has.
fn widths(cluster: &Cluster) -> Vec<u64> {
    let Some(tokens) = cluster.bucket_tokens() else { return vec![1] };
    let partitions = cluster.ring.partitions().iter();
    let bounds = partitions.filter_map(|partition| cluster.ring.bounds(partition.id));
    bounds.map(|(first, last)| (last.0 - first.0) / tokens + 1).collect()
}

/// Of a node with several partitions the narrowest, the widest of those if that is so of several.
fn left_over(cluster: &Cluster, owners: &[NodeId]) -> Option<usize> {
    let widths = widths(cluster);
    let is_one_of_many =
        |position: &usize| owners.iter().filter(|one| **one == owners[*position]).count() > 1;
    let narrowest = |position: &usize| {
        let of_owner = (0..owners.len()).filter(|other| owners[*other] == owners[*position]);
        // Of two that are as wide the later one goes: a part that was cut off is the second.
        of_owner.rev().min_by_key(|other| widths[*other]) == Some(*position)
    };
    let left = (0..owners.len()).filter(|position| is_one_of_many(position) && narrowest(position));
    left.rev().max_by_key(|position| widths[*position])
}

/// The widest partition, cut by the golden ratio.
fn widest_cut(cluster: &Cluster, owners: &[NodeId], node: NodeId) -> Result<Handover, PlanRefusal> {
    let widths = widths(cluster);
    let position = widest(&widths);
    let (partition, buckets) = (&cluster.ring.partitions()[position], cluster.buckets);
    let narrow = PlanRefusal::Narrow { partition: partition.id, buckets };
    let (Some(stays), Some(tokens)) = (golden_part(widths[position]), cluster.bucket_tokens()) else {
        return Err(narrow);
    };
    let at = partition.start + stays * tokens;
    Handover::cut(cluster, (partition.id, at), (owners[position], node))
}

/// Each run of partitions of nodes that leave goes to the narrower of its two neighbours, and becomes one with it. So does
/// what a node has kept whose drain was aborted: it takes nothing new, and so is no neighbour that could.
fn drained(cluster: &Cluster, let_go: &[NodeId]) -> Result<Plan, PlanRefusal> {
    let before = cluster.ring.owners();
    let role = |node: NodeId| cluster.node(node).map_or(Role::Leaving, |known| known.role);
    let is_gone = |node: NodeId| cluster.node(node).is_some_and(|known| known.gone);
    let stays_leaving = before.iter().copied().filter(|node| role(*node) == Role::Leaving && !is_gone(*node));
    let leaving: BTreeSet<NodeId> = stays_leaving.chain(let_go.iter().copied()).collect();
    let distinct = |owners: &[NodeId]| owners.iter().collect::<BTreeSet<_>>().len();
    let stay: BTreeSet<NodeId> = before.iter().copied().filter(|node| !leaving.contains(node)).collect();
    let needed = cluster.replicas_max().min(distinct(&before)).max(1);
    if stay.len() < needed {
        return Err(too_few(cluster, (stay.len(), needed), let_go));
    }
    let (widths, partitions) = (widths(cluster), cluster.ring.partitions());
    let (mut owners, mut joins) = (Vec::new(), Vec::new());
    let mut position = 0;
    while position < before.len() {
        let run = before[position..].iter().take_while(|owner| leaving.contains(owner)).count();
        if run == 0 {
            position += 1;
            continue;
        }
        let (first, behind) = (position, position + run);
        let sides = [first.checked_sub(1), Some(behind).filter(|behind| *behind < before.len())];
        // A standby is kept free of data, as far as may be.
        let serves = |side: usize| role(before[side]) == Role::Serving;
        let to = sides.into_iter().flatten().min_by_key(|side| (!serves(*side), widths[*side]));
        let to = to.expect("a node stays, so a run of those that leave has a neighbour");
        let change =
            |at: usize| OwnerChange { partition: partitions[at].id, from: before[at], to: before[to] };
        owners.extend((first..behind).map(change));
        let head = partitions[first.min(to)].id;
        // A neighbour on both sides of which nodes leave was taken in by the first of these.
        let taken_in = joins.iter().find(|(_, other): &&(PartitionId, PartitionId)| *other == head);
        let into = taken_in.map_or(head, |(into, _)| *into);
        joins.extend((first.min(to) + 1..behind.max(to + 1)).map(|at| (into, partitions[at].id)));
        position = behind;
    }
    follow(cluster, Handover { cut: None, owners }, &joins)
}

/// A node takes the places of another one, which may be dead.
fn replaced(cluster: &Cluster, node: NodeId, by: NodeId) -> Result<Plan, PlanRefusal> {
    if let Some(partition) = first_of(cluster, by) {
        return Err(PlanRefusal::HeldAlready { partition, node: by });
    }
    let known = cluster.node(by).ok_or(PlanRefusal::NodeUnknown { node: by })?;
    if known.role == Role::Leaving {
        return Err(takes_nothing(cluster, by));
    }
    if let Some(refusal) = cluster.uneven_on_golden(known) {
        return Err(refusal);
    }
    let own = cluster.ring.partitions().iter().filter(|one| one.owner == Some(node));
    let owners = own.map(|one| OwnerChange { partition: one.id, from: node, to: by }).collect();
    follow(cluster, Handover { cut: None, owners }, &[])
}

/// The plan that follows from whose partitions will be.
fn follow(
    cluster: &Cluster,
    handover: Handover,
    joins: &[(PartitionId, PartitionId)],
) -> Result<Plan, PlanRefusal> {
    let handed = handover.apply(cluster, usize::MAX)?;
    let (owners, replicas) = (handed.ring.owners(), handed.replicas_max());
    let listed = along(&owners, replicas + FALLBACKS_LISTED);
    let list = |(partition, along): (&model::Partition, Vec<NodeId>)| {
        let (present, wanted) = (handed.replicas_in(&partition.nodes), &along[..replicas.min(along.len())]);
        match is_same_set(present, wanted) {
            true => [present, &along[wanted.len()..]].concat(),
            false => along,
        }
    };
    let mut lists: Vec<Vec<NodeId>> = handed.ring.partitions().iter().zip(listed).map(list).collect();
    for (first, second) in joins {
        // Those that become one have one list: of a pair, what the first says, or else what is before.
        let position = |id: &PartitionId| handed.ring.partitions().iter().position(|one| one.id == *id);
        if let (Some(first), Some(second)) = (position(first), position(second)) {
            lists[second] = lists[first].clone();
        }
    }
    let moves: Vec<Move> = handed
        .ring
        .partitions()
        .iter()
        .zip(&lists)
        .filter_map(|(partition, to)| moved(&handed, partition, to.clone()))
        .collect();
    for one in &moves {
        let (before, after) = (handed.replicas_in(&one.from).len(), handed.replicas_in(&one.to).len());
        if after < before {
            return Err(PlanRefusal::TooFewNodes { left: after, needed: before, leaving: Vec::new() });
        }
        let leaves = |node: &&NodeId| {
            handed.node(**node).is_none_or(|known| known.role == Role::Leaving || known.gone)
        };
        if let Some(&node) = one.entering.iter().find(leaves) {
            return Err(takes_nothing(&handed, node));
        }
    }
    let places = {
        let after = arrived(&handed, &moves, joins)?;
        places(cluster, held(&after).collect::<Vec<_>>().into_iter())
    };
    let change = PlanChange::Golden { handover, moves, joins: joins.to_vec() };
    Ok(Plan { generation: cluster.generation, change, places })
}

/// The document when all has settled, as far as lists and bounds go.
fn arrived(
    handed: &Cluster,
    moves: &[Move],
    joins: &[(PartitionId, PartitionId)],
) -> Result<Cluster, PlanRefusal> {
    let mut partitions = handed.ring.partitions().to_vec();
    for one in moves {
        let known = partitions.iter_mut().filter(|partition| partition.id == one.partition);
        known.for_each(|partition| partition.nodes.clone_from(&one.to));
    }
    let ring = model::Ring::new(partitions).expect("only lists are others");
    let mut arrived = Cluster { ring, ..handed.clone() };
    for &(partition, other) in joins {
        arrived = Reshape::Join { partition, other }.apply(&arrived, usize::MAX)?;
    }
    Ok(arrived)
}
