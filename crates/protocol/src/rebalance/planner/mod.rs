//! What should move, computed from the document alone.
//!
//! A [`Wish`] is what an operator, or later the cluster itself, wants; [`plan`] answers with the moves that fulfil it,
//! or says by number why it cannot be. The same document and the same wish give the same plan, at whichever node.
//!
//! ```text
//!   wish ──▶ who may hold data ──▶ quotas by weight ──▶ assignment with few moves ──▶ lists with fallbacks
//! ```
//!
//! The plan keeps what is there as far as it may: how few moves suffice is a question of flows, and the answer is
//! compared with the optimum in tests. Partitions count as equal, whatever their width: one that was split is two.
//!
//! **Architecture Invariant:** a plan changes nothing. What begins a move is a document, see [`steps`](super::steps).

mod assignment;
mod golden;
mod lists;
mod quotas;

use std::collections::{BTreeMap, BTreeSet};

use model::cluster::{Accepted, NumbersError};
use model::plan::PlanDocument;
use model::{Cluster, Consistency, Node, NodeId, PartitionId, Role};

use assignment::{Assignment, Index};

pub use model::plan::{
    Consent, Cut, Move, Placed, PlanChange, PlanRefusal, Renumber, Reshape, Reshaped, Wish,
};

/// What fulfils a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The document that it was computed from.
    pub generation: model::Generation,
    /// What changes.
    pub change: PlanChange,
    /// Places of each node as a replica, of that store or else of the store with most replicas: at present, and then.
    pub places: BTreeMap<NodeId, (usize, usize)>,
}

impl Plan {
    /// The partitions that get other lists, in the order of the ring.
    pub fn moves(&self) -> &[Move] {
        self.change.moves()
    }

    /// How many copies of partitions are brought in somewhere.
    pub fn copies(&self) -> usize {
        self.change.copies()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.change.is_empty()
    }

    /// The plan as arguments of [`begin`](super::steps::begin).
    pub fn lists(&self) -> Vec<(PartitionId, Vec<NodeId>)> {
        self.moves().iter().map(|one| (one.partition, one.to.clone())).collect()
    }

    /// The plan as a document, of which nobody has said yet how much it brings in.
    pub fn document(self, wish: Wish, consent: Consent) -> PlanDocument {
        let Plan { generation, change, places } = self;
        PlanDocument {
            order: 0,
            by: String::new(),
            created_ms: 0,
            wish,
            consent,
            generation,
            change,
            places,
            estimate: None,
            units: 0,
            pace: None,
            blocked: Vec::new(),
            decision: None,
        }
    }
}

/// The moves that fulfil a wish, as few as can be.
///
/// # Errors
/// When the wish cannot be fulfilled, or names what is not there.
pub fn plan(cluster: &Cluster, wish: &Wish, consent: Consent) -> Result<Plan, PlanRefusal> {
    for id in named(wish) {
        cluster.node(id).ok_or(PlanRefusal::NodeUnknown { node: id })?;
    }
    if let Some(partition) = cluster.ring.partitions().iter().find(|partition| partition.coming.is_some()) {
        return Err(PlanRefusal::Moves { partition: partition.id });
    }
    if let Some((store, step)) = cluster.changing().and_then(|store| Some((store, store.step()?))) {
        return Err(NumbersError::Changes { store: store.name.clone(), step }.into());
    }
    if let Some(planned) = golden::plan(cluster, wish) {
        return planned;
    }
    let assignment = match wish {
        Wish::Join { .. } => return Err(PlanRefusal::NotGolden),
        Wish::Numbers { store, numbers } => return renumbering(cluster, store, *numbers, consent),
        Wish::Split { partition, at } => {
            return reshaping(cluster, Reshape::split(cluster, *partition, *at)?);
        }
        Wish::Double => return reshaping(cluster, Reshape::double(cluster)?),
        Wish::Balance { placed } => return balanced(cluster, placed),
        Wish::Merge { partition, other } => return merging(cluster, *partition, *other),
        Wish::Spread => shared_out(cluster, &[], consent, true)?,
        Wish::Drain { nodes } => shared_out(cluster, nodes, consent, false)?,
        Wish::Replace { node, by } => {
            let held = |partition: &&model::Partition| cluster.replicas_in(&partition.nodes).contains(node);
            let held = cluster.ring.partitions().iter().filter(held).map(|partition| partition.id).collect();
            replaced(cluster, &held, *node, *by, consent)?
        }
        Wish::Move { partitions, from, to } => {
            for &partition in partitions {
                let known = cluster.ring.get(partition).ok_or(PlanRefusal::PartitionUnknown { partition })?;
                if !cluster.replicas_in(&known.nodes).contains(from) {
                    return Err(PlanRefusal::NotHeld { partition, node: *from });
                }
            }
            replaced(cluster, &partitions.iter().copied().collect(), *from, *to, consent)?
        }
    };
    Ok(as_plan(cluster, &assignment, wish))
}

fn named(wish: &Wish) -> Vec<NodeId> {
    match wish {
        Wish::Spread | Wish::Split { .. } | Wish::Merge { .. } => Vec::new(),
        Wish::Double | Wish::Numbers { .. } => Vec::new(),
        Wish::Drain { nodes } => nodes.clone(),
        Wish::Join { node, .. } => vec![*node],
        Wish::Balance { placed } => placed.iter().flat_map(|one| one.replicas.iter().copied()).collect(),
        Wish::Replace { node, by } => vec![*node, *by],
        Wish::Move { from, to, .. } => vec![*from, *to],
    }
}

/// Nodes that may hold data when these have left.
fn eligible<'a>(cluster: &'a Cluster, leaving: &'a [NodeId]) -> impl Iterator<Item = &'a Node> {
    cluster.nodes.iter().filter(|node| node.role == Role::Serving && !leaving.contains(&node.id))
}

/// That too few nodes would be left, and which members leave beside those that the wish lets go.
fn too_few(cluster: &Cluster, (left, needed): (usize, usize), let_go: &[NodeId]) -> PlanRefusal {
    let leaves = |node: &&Node| node.role == Role::Leaving && !node.gone && !let_go.contains(&node.id);
    let leaving = cluster.nodes.iter().filter(leaves).map(|node| node.id).collect();
    PlanRefusal::TooFewNodes { left, needed, leaving }
}

/// That a node is given nothing.
fn takes_nothing(cluster: &Cluster, node: NodeId) -> PlanRefusal {
    let is_gone = cluster.node(node).is_some_and(|known| known.gone);
    PlanRefusal::TakesNothing { node, is_gone }
}

/// Data on all nodes that may hold some. With `evenly`, nodes that hold more than their share give off; otherwise only
/// what lies where it may not stay moves.
fn shared_out(
    cluster: &Cluster,
    leaving: &[NodeId],
    consent: Consent,
    evenly: bool,
) -> Result<Assignment, PlanRefusal> {
    let nodes: Vec<&Node> = eligible(cluster, leaving).collect();
    let wanted = cluster.replicas_max();
    let held = cluster.ring.partitions().iter().map(|partition| cluster.replicas_in(&partition.nodes).len());
    let fewest = held.min().unwrap_or(0);
    // A cluster that never had N nodes keeps what it has; it is not made smaller.
    let replicas = wanted.min(nodes.len());
    if replicas < fewest {
        return Err(too_few(cluster, (replicas, fewest), leaving));
    }
    let zones = |nodes: &mut dyn Iterator<Item = &Node>| {
        nodes.map(|node| node.zone.clone()).collect::<BTreeSet<_>>().len()
    };
    let before = zones(&mut eligible(cluster, &[]).chain(holders(cluster))).min(wanted);
    let after = zones(&mut nodes.iter().copied()).min(wanted);
    if after < before && !consent.fewer_zones {
        return Err(PlanRefusal::TooFewZones { left: after, before });
    }
    let mut assignment = Assignment::of(cluster, &nodes, replicas);
    let quotas = quotas::quotas(&assignment);
    assignment.thin_out(&quotas);
    assignment.fill(&quotas, !evenly)?;
    if evenly {
        assignment.level(&quotas);
    }
    assignment.improve();
    Ok(assignment)
}

/// Nodes that hold data at present.
fn holders(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    let index = Index::of(cluster.nodes.iter().map(|node| node.id));
    let mut holds = vec![false; cluster.nodes.len()];
    for partition in cluster.ring.partitions() {
        let held = cluster.replicas_in(&partition.nodes).iter().filter_map(|&node| index.get(node));
        held.for_each(|at| holds[at] = true);
    }
    cluster.nodes.iter().zip(holds).filter(|(_, holds)| *holds).map(|(node, _)| node)
}

/// One node in the places of another.
fn replaced(
    cluster: &Cluster,
    partitions: &BTreeSet<PartitionId>,
    from: NodeId,
    to: NodeId,
    consent: Consent,
) -> Result<Assignment, PlanRefusal> {
    let role = cluster.node(to).map(|node| node.role).unwrap_or_default();
    if role == Role::Leaving {
        return Err(takes_nothing(cluster, to));
    }
    let nodes: Vec<&Node> = cluster.nodes.iter().collect();
    let mut assignment = Assignment::of(cluster, &nodes, cluster.replicas_max());
    for (position, partition) in cluster.ring.partitions().iter().enumerate() {
        if !partitions.contains(&partition.id) {
            continue;
        }
        if cluster.replicas_in(&partition.nodes).contains(&to) {
            return Err(PlanRefusal::HeldAlready { partition: partition.id, node: to });
        }
        let zones = assignment.zones_of(position);
        assignment.substitute(position, from, to);
        if assignment.zones_of(position) < zones && !consent.fewer_zones {
            return Err(PlanRefusal::TooFewZones { left: assignment.zones_of(position), before: zones });
        }
    }
    Ok(assignment)
}

/// What differs between the ring and the assignment.
fn as_plan(cluster: &Cluster, assignment: &Assignment, wish: &Wish) -> Plan {
    let leaving = if let Wish::Drain { nodes } = wish { &nodes[..] } else { &[] };
    let lists = lists::Lists::of(cluster, leaving);
    let mut moves = Vec::new();
    for (position, partition) in cluster.ring.partitions().iter().enumerate() {
        let to = lists.list(position, &assignment.replicas(position), &partition.nodes);
        moves.extend(moved(cluster, partition, to));
    }
    let after = (0..cluster.ring.partitions().len()).flat_map(|position| assignment.replicas(position));
    let places = places(cluster, after);
    Plan { generation: cluster.generation, change: PlanChange::Moves { moves }, places }
}

/// The move of a partition to another list, unless it is the same.
fn moved(cluster: &Cluster, partition: &model::Partition, to: Vec<NodeId>) -> Option<Move> {
    let (before, after) = (cluster.replicas_in(&partition.nodes), cluster.replicas_in(&to));
    let entering = after.iter().copied().filter(|node| !before.contains(node)).collect();
    let from = partition.nodes.clone();
    (to != from).then_some(Move { partition: partition.id, from, to, entering })
}

/// Places of each node that has some: at present, and then, when these have one for each time that they are named.
fn places(cluster: &Cluster, after: impl Iterator<Item = NodeId>) -> BTreeMap<NodeId, (usize, usize)> {
    let mut places: BTreeMap<NodeId, (usize, usize)> = BTreeMap::new();
    for node in held(cluster) {
        places.entry(node).or_default().0 += 1;
    }
    for node in after {
        places.entry(node).or_default().1 += 1;
    }
    places
}

/// The holder of each place.
fn held(cluster: &Cluster) -> impl Iterator<Item = NodeId> {
    cluster.ring.partitions().iter().flat_map(|partition| cluster.replicas_in(&partition.nodes)).copied()
}

/// The plan by which partitions lie as load wants it: as many replicas as before, in as many zones.
fn balanced(cluster: &Cluster, placed: &[Placed]) -> Result<Plan, PlanRefusal> {
    let lists = lists::Lists::of(cluster, &[]);
    let zones = |nodes: &[NodeId]| {
        let zone = |node: &NodeId| cluster.node(*node).map(|entry| entry.zone.clone());
        nodes.iter().filter_map(zone).collect::<BTreeSet<_>>().len()
    };
    let wanted: BTreeMap<PartitionId, &[NodeId]> =
        placed.iter().map(|one| (one.partition, &one.replicas[..])).collect();
    if let Some(&partition) = wanted.keys().find(|&&id| cluster.ring.get(id).is_none()) {
        return Err(PlanRefusal::PartitionUnknown { partition });
    }
    let (mut moves, mut after) = (Vec::new(), Vec::new());
    for (position, partition) in cluster.ring.partitions().iter().enumerate() {
        let before = cluster.replicas_in(&partition.nodes);
        let Some(&replicas) = wanted.get(&partition.id) else {
            after.extend(before);
            continue;
        };
        let distinct = replicas.iter().collect::<BTreeSet<_>>().len();
        if distinct < before.len() || distinct < replicas.len() {
            let needed = before.len().max(replicas.len());
            return Err(PlanRefusal::TooFewNodes { left: distinct, needed, leaving: Vec::new() });
        }
        let entering = |node: &&NodeId| !before.contains(node);
        let leaves = |node: &&NodeId| cluster.node(**node).is_none_or(|known| known.role == Role::Leaving);
        if let Some(&node) = replicas.iter().filter(entering).find(leaves) {
            return Err(takes_nothing(cluster, node));
        }
        if zones(replicas) < zones(before) {
            return Err(PlanRefusal::TooFewZones { left: zones(replicas), before: zones(before) });
        }
        after.extend(replicas);
        let to = match cluster.ring.is_golden() {
            // Fallbacks are the next along the ring, whoever else is a member.
            true => [replicas, &partition.nodes[before.len()..]].concat(),
            false => lists.list(position, replicas, &partition.nodes),
        };
        moves.extend(moved(cluster, partition, to));
    }
    let places = places(cluster, after.into_iter());
    Ok(Plan { generation: cluster.generation, change: PlanChange::Moves { moves }, places })
}

/// The plan by which a store gets other numbers; an empty one where it has them.
fn renumbering(
    cluster: &Cluster,
    name: &str,
    to: Consistency,
    Consent { fewer_zones, weaker }: Consent,
) -> Result<Plan, PlanRefusal> {
    let generation = cluster.generation;
    let nothing = PlanChange::Moves { moves: Vec::new() };
    let empty = Plan { generation, change: nothing, places: BTreeMap::new() };
    let store = match cluster.check_numbers(name, to, Accepted { fewer_zones, weaker }) {
        Err(NumbersError::Same { .. }) => return Ok(empty),
        checked => checked?,
    };
    let (mut places, mut copies) = (BTreeMap::<NodeId, (usize, usize)>::new(), 0);
    for partition in cluster.ring.partitions() {
        let first = |numbers: Consistency| partition.nodes.iter().take(numbers.replicas.into());
        first(store.consistency).for_each(|node| places.entry(*node).or_default().0 += 1);
        first(to).for_each(|node| places.entry(*node).or_default().1 += 1);
        copies += first(to).count().saturating_sub(first(store.consistency).count());
    }
    let partitions = cluster.ring.partitions().len();
    let numbers = Renumber { store: store.name.clone(), from: store.consistency, to, partitions, copies };
    Ok(Plan { change: PlanChange::Numbers(numbers), places, ..empty })
}

/// The plan that changes bounds and moves nothing.
fn reshaping(cluster: &Cluster, reshape: Reshape) -> Result<Plan, PlanRefusal> {
    let places = places(cluster, held(&reshape.apply(cluster, usize::MAX)?));
    let change = PlanChange::Reshape { moves: Vec::new(), reshape };
    Ok(Plan { generation: cluster.generation, change, places })
}

/// The plan that brings two partitions together and makes them one. The narrower one moves to the other's nodes.
fn merging(cluster: &Cluster, partition: PartitionId, other: PartitionId) -> Result<Plan, PlanRefusal> {
    let reshape = Reshape::merge(cluster, partition, other)?;
    let width = |id: PartitionId| cluster.ring.bounds(id).map_or(0, |(first, last)| last.0 - first.0);
    let (moves, stays) =
        if width(partition) < width(other) { (partition, other) } else { (other, partition) };
    let get = |id: PartitionId| cluster.ring.get(id).expect("neighbours are of this ring");
    let to = &get(stays).nodes;
    let one = match cluster.replicas_in(&get(moves).nodes) == cluster.replicas_in(to) {
        true => None,
        false => moved(cluster, get(moves), to.clone()),
    };
    let leaves = |node: &&NodeId| cluster.node(**node).is_none_or(|known| known.role == Role::Leaving);
    if let Some(&node) = one.iter().flat_map(|one| &one.entering).find(leaves) {
        return Err(takes_nothing(cluster, node));
    }
    let together = match &one {
        Some(one) => gathered(cluster, one),
        None => cluster.clone(),
    };
    let places = places(cluster, held(&reshape.apply(&together, usize::MAX)?));
    let change = PlanChange::Reshape { moves: one.into_iter().collect(), reshape };
    Ok(Plan { generation: cluster.generation, change, places })
}

/// The document when a move has settled, as far as lists go.
fn gathered(cluster: &Cluster, one: &Move) -> Cluster {
    let mut partitions = cluster.ring.partitions().to_vec();
    let moves = partitions.iter_mut().filter(|partition| partition.id == one.partition);
    moves.for_each(|partition| partition.nodes.clone_from(&one.to));
    let ring = model::Ring::new(partitions).expect("only a list is another");
    Cluster { ring, ..cluster.clone() }
}
