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
mod lists;
mod quotas;
mod refusal;
mod reshape;

use std::collections::{BTreeMap, BTreeSet};

use model::cluster::{Accepted, NumbersError};
use model::{Cluster, Consistency, Node, NodeId, PartitionId, Role, StoreName};
use serde::{Deserialize, Serialize};

use assignment::{Assignment, Index};

pub use refusal::Refusal;
pub use reshape::{Cut, Reshape, Reshaped};

/// What shall become of the ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Wish {
    /// Each serving node holds its share, by weight.
    Spread,
    /// These nodes hold nothing any more.
    Drain {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// A node takes the places of another one.
    Replace {
        /// The one that gives up its places.
        node: NodeId,
        /// The one that takes them.
        by: NodeId,
    },
    /// A node takes the place of another one in some partitions.
    Move {
        /// Which partitions.
        partitions: Vec<PartitionId>,
        /// The one that gives up its place.
        from: NodeId,
        /// The one that takes it.
        to: NodeId,
    },
    /// A partition is cut in two.
    Split {
        /// Which.
        partition: PartitionId,
        /// The first token of its second part; `None` cuts it in the middle.
        at: Option<u64>,
    },
    /// Two neighbours become one partition.
    Merge {
        /// One.
        partition: PartitionId,
        /// The other.
        other: PartitionId,
    },
    /// Every partition is cut in the middle.
    Double,
    /// A store gets other numbers of replicas, and of those that must answer.
    Numbers {
        /// The store.
        store: String,
        /// N, R and W to come.
        numbers: Consistency,
    },
}

/// What a plan may do without being asked again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consent {
    /// The replicas of a partition may lie in fewer zones than they could before.
    pub fewer_zones: bool,
    /// Gets of a store may miss acknowledged writes, where they could not before.
    #[serde(default)]
    pub weaker: bool,
}

/// A store gets other numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renumber {
    /// Which.
    pub store: StoreName,
    /// Its numbers at present.
    pub from: Consistency,
    /// Its numbers to come.
    pub to: Consistency,
    /// Partitions of the ring: all of them take part.
    pub partitions: usize,
    /// Copies of partitions that are brought in somewhere.
    pub copies: usize,
}

impl Renumber {
    /// The nodes that bring a partition's part of the store in.
    pub fn entering<'a>(&self, partition: &'a model::Partition) -> &'a [NodeId] {
        let (from, to) = (usize::from(self.from.replicas), usize::from(self.to.replicas));
        partition.nodes.get(from..to.min(partition.nodes.len())).unwrap_or_default()
    }
}

/// A partition gets another list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Which.
    pub partition: PartitionId,
    /// Its list at present.
    pub from: Vec<NodeId>,
    /// Its list to come.
    pub to: Vec<NodeId>,
    /// Nodes that must bring it in; none when only the order or the fallbacks change.
    pub entering: Vec<NodeId>,
}

/// What fulfils a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The document that it was computed from.
    pub generation: model::Generation,
    /// In the order of the ring.
    pub moves: Vec<Move>,
    /// What becomes of bounds when all of these have settled.
    pub reshape: Option<Reshape>,
    /// The store that gets other numbers.
    pub numbers: Option<Renumber>,
    /// Places of each node as a replica, of that store or else of the store with most replicas: at present, and then.
    pub places: BTreeMap<NodeId, (usize, usize)>,
}

impl Plan {
    /// How many copies of partitions are brought in somewhere.
    pub fn copies(&self) -> usize {
        let numbers = self.numbers.as_ref().map_or(0, |numbers| numbers.copies);
        self.moves.iter().map(|one| one.entering.len()).sum::<usize>() + numbers
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.reshape.is_none() && self.numbers.is_none()
    }

    /// The plan as arguments of [`begin`](super::steps::begin).
    pub fn lists(&self) -> Vec<(PartitionId, Vec<NodeId>)> {
        self.moves.iter().map(|one| (one.partition, one.to.clone())).collect()
    }
}

/// The moves that fulfil a wish, as few as can be.
///
/// # Errors
/// When the wish cannot be fulfilled, or names what is not there.
pub fn plan(cluster: &Cluster, wish: &Wish, consent: Consent) -> Result<Plan, Refusal> {
    for id in named(wish) {
        cluster.node(id).ok_or(Refusal::NodeUnknown { node: id })?;
    }
    if let Some(partition) = cluster.ring.partitions().iter().find(|partition| partition.coming.is_some()) {
        return Err(Refusal::Moves { partition: partition.id });
    }
    if let Some((store, step)) = cluster.changing().and_then(|store| Some((store, store.step()?))) {
        return Err(NumbersError::Changes { store: store.name.clone(), step }.into());
    }
    let assignment = match wish {
        Wish::Numbers { store, numbers } => return renumbering(cluster, store, *numbers, consent),
        Wish::Split { partition, at } => {
            return reshaping(cluster, Reshape::split(cluster, *partition, *at)?);
        }
        Wish::Double => return reshaping(cluster, Reshape::double(cluster)?),
        Wish::Merge { partition, other } => return merging(cluster, *partition, *other),
        Wish::Spread => shared_out(cluster, &[], consent, true)?,
        Wish::Drain { nodes } => shared_out(cluster, nodes, consent, false)?,
        Wish::Replace { node, by } => {
            let held = |partition: &&model::Partition| replicas(cluster, &partition.nodes).contains(node);
            let held = cluster.ring.partitions().iter().filter(held).map(|partition| partition.id).collect();
            replaced(cluster, &held, *node, *by, consent)?
        }
        Wish::Move { partitions, from, to } => {
            for &partition in partitions {
                let known = cluster.ring.get(partition).ok_or(Refusal::PartitionUnknown { partition })?;
                if !replicas(cluster, &known.nodes).contains(from) {
                    return Err(Refusal::NotHeld { partition, node: *from });
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
        Wish::Replace { node, by } => vec![*node, *by],
        Wish::Move { from, to, .. } => vec![*from, *to],
    }
}

/// The part of a list that holds data for some store.
fn replicas<'a>(cluster: &Cluster, list: &'a [NodeId]) -> &'a [NodeId] {
    &list[..cluster.replicas_max().min(list.len())]
}

/// Nodes that may hold data when these have left.
fn eligible<'a>(cluster: &'a Cluster, leaving: &'a [NodeId]) -> impl Iterator<Item = &'a Node> {
    cluster.nodes.iter().filter(|node| node.role == Role::Serving && !leaving.contains(&node.id))
}

/// Data on all nodes that may hold some. With `evenly`, nodes that hold more than their share give off; otherwise only
/// what lies where it may not stay moves.
fn shared_out(
    cluster: &Cluster,
    leaving: &[NodeId],
    consent: Consent,
    evenly: bool,
) -> Result<Assignment, Refusal> {
    let nodes: Vec<&Node> = eligible(cluster, leaving).collect();
    let wanted = cluster.replicas_max();
    let held = cluster.ring.partitions().iter().map(|partition| replicas(cluster, &partition.nodes).len());
    let fewest = held.min().unwrap_or(0);
    // A cluster that never had N nodes keeps what it has; it is not made smaller.
    let replicas = wanted.min(nodes.len());
    if replicas < fewest {
        return Err(Refusal::TooFewNodes { left: replicas, needed: fewest });
    }
    let zones = |nodes: &mut dyn Iterator<Item = &Node>| {
        nodes.map(|node| node.zone.clone()).collect::<BTreeSet<_>>().len()
    };
    let before = zones(&mut eligible(cluster, &[]).chain(holders(cluster))).min(wanted);
    let after = zones(&mut nodes.iter().copied()).min(wanted);
    if after < before && !consent.fewer_zones {
        return Err(Refusal::TooFewZones { left: after, before });
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
        let held = replicas(cluster, &partition.nodes).iter().filter_map(|&node| index.get(node));
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
) -> Result<Assignment, Refusal> {
    let role = cluster.node(to).map(|node| node.role).unwrap_or_default();
    if role == Role::Leaving {
        return Err(Refusal::TakesNothing { node: to });
    }
    let nodes: Vec<&Node> = cluster.nodes.iter().collect();
    let mut assignment = Assignment::of(cluster, &nodes, cluster.replicas_max());
    for (position, partition) in cluster.ring.partitions().iter().enumerate() {
        if !partitions.contains(&partition.id) {
            continue;
        }
        if replicas(cluster, &partition.nodes).contains(&to) {
            return Err(Refusal::HeldAlready { partition: partition.id, node: to });
        }
        let zones = assignment.zones_of(position);
        assignment.substitute(position, from, to);
        if assignment.zones_of(position) < zones && !consent.fewer_zones {
            return Err(Refusal::TooFewZones { left: assignment.zones_of(position), before: zones });
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
    Plan { generation: cluster.generation, moves, reshape: None, numbers: None, places }
}

/// The move of a partition to another list, unless it is the same.
fn moved(cluster: &Cluster, partition: &model::Partition, to: Vec<NodeId>) -> Option<Move> {
    let (before, after) = (replicas(cluster, &partition.nodes), replicas(cluster, &to));
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
    cluster.ring.partitions().iter().flat_map(|partition| replicas(cluster, &partition.nodes)).copied()
}

/// The plan by which a store gets other numbers; an empty one where it has them.
fn renumbering(
    cluster: &Cluster,
    name: &str,
    to: Consistency,
    Consent { fewer_zones, weaker }: Consent,
) -> Result<Plan, Refusal> {
    let generation = cluster.generation;
    let empty = Plan { generation, moves: Vec::new(), reshape: None, numbers: None, places: BTreeMap::new() };
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
    Ok(Plan { numbers: Some(numbers), places, ..empty })
}

/// The plan that changes bounds and moves nothing.
fn reshaping(cluster: &Cluster, reshape: Reshape) -> Result<Plan, Refusal> {
    let places = places(cluster, held(&reshape.apply(cluster, usize::MAX)?));
    Ok(Plan {
        generation: cluster.generation,
        moves: Vec::new(),
        reshape: Some(reshape),
        numbers: None,
        places,
    })
}

/// The plan that brings two partitions together and makes them one. The narrower one moves to the other's nodes.
fn merging(cluster: &Cluster, partition: PartitionId, other: PartitionId) -> Result<Plan, Refusal> {
    let reshape = Reshape::merge(cluster, partition, other)?;
    let width = |id: PartitionId| cluster.ring.bounds(id).map_or(0, |(first, last)| last.0 - first.0);
    let (moves, stays) =
        if width(partition) < width(other) { (partition, other) } else { (other, partition) };
    let get = |id: PartitionId| cluster.ring.get(id).expect("neighbours are of this ring");
    let to = &get(stays).nodes;
    let one = match replicas(cluster, &get(moves).nodes) == replicas(cluster, to) {
        true => None,
        false => moved(cluster, get(moves), to.clone()),
    };
    let takes_nothing = |node: &&NodeId| cluster.node(**node).is_none_or(|known| known.role == Role::Leaving);
    if let Some(&node) = one.iter().flat_map(|one| &one.entering).find(takes_nothing) {
        return Err(Refusal::TakesNothing { node });
    }
    let together = match &one {
        Some(one) => gathered(cluster, one),
        None => cluster.clone(),
    };
    let places = places(cluster, held(&reshape.apply(&together, usize::MAX)?));
    Ok(Plan {
        generation: cluster.generation,
        moves: one.into_iter().collect(),
        reshape: Some(reshape),
        numbers: None,
        places,
    })
}

/// The document when a move has settled, as far as lists go.
fn gathered(cluster: &Cluster, one: &Move) -> Cluster {
    let mut partitions = cluster.ring.partitions().to_vec();
    let moves = partitions.iter_mut().filter(|partition| partition.id == one.partition);
    moves.for_each(|partition| partition.nodes.clone_from(&one.to));
    let ring = model::Ring::new(partitions).expect("only a list is another");
    Cluster { ring, ..cluster.clone() }
}
