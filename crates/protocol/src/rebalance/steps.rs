//! When a partition that moves may take its next step.
//!
//! ```text
//!   settled ── begin ──▶ copying ── all who enter are whole ──▶ joint
//!      ▲                    │                                     │ all who enter have merged, since then, with the
//!      │ back               │ back                                ▼ one whose place they take, or with N-W+1 others
//!      └────────────────────┴──────────── back ───── joint     reading-new ── N-R+1 old ones refuse joint ──▶ settled
//!                                                                 │ back: the same, in the other direction
//!                                                                 ▼
//!                                                              reading-new
//! ```
//!
//! A store whose numbers change takes the same steps with all its partitions at once, and without new lists: see
//! [`begin_numbers`].
//!
//! N, W and R are those of each store; a step must be ready for all of them. A source of a merge counts only if it had
//! refused requests of the step before by then: what it acknowledges afterwards, a merge cannot have brought.
//!
//! Why these rules suffice, and each of them is needed: `docs/design/rebalance.md`. `explore` plays them all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use model::plan::Waiting;
use model::routing::{replicas_before, replicas_to_come};
use model::{
    Cluster, ClusterError, Coming, Generation, NodeId, Partition, PartitionId, Ring, Step, Store, StoreName,
    Unknown,
};

use crate::quorum::{holders_promised, meet_every_quorum};
use crate::report::{Entered, Facts};

#[cfg(test)]
mod explore;
mod numbers;

pub use numbers::{back_with_numbers, begin_numbers, numbers_blocked_by};

/// What may follow a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutcome {
    /// The next document, if any partition may take a step: all that may take it together.
    pub next: Option<Cluster>,
    /// Partitions that wait, and for whom.
    pub waiting: Vec<(PartitionId, Vec<Waiting>)>,
}

/// Why a move cannot begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginError {
    /// The ring has no such partition.
    Unknown {
        /// The partition.
        partition: PartitionId,
    },
    /// The partition moves already.
    Moves {
        /// The partition.
        partition: PartitionId,
        /// How far it has come.
        step: Step,
    },
    /// For a store, fewer nodes would be replicas than are at present.
    Fewer {
        /// The partition.
        partition: PartitionId,
        /// The store.
        store: StoreName,
        /// Its replicas at present, and then.
        replicas: (usize, usize),
    },
    /// The list is empty, or names a node twice.
    List {
        /// The partition.
        partition: PartitionId,
    },
    /// The document would not hold together: a list names a node that is no member, for example.
    Document(ClusterError),
}

impl fmt::Display for BeginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BeginError::Unknown { partition } => write!(f, "the ring has no partition {partition}"),
            BeginError::Moves { partition, step } => {
                write!(f, "partition {partition} is moving already (step {step})")
            }
            BeginError::Fewer { partition, store, replicas: (before, after) } => write!(
                f,
                "partition {partition} would have {after} replicas of store {}, and has {before}",
                store.as_str()
            ),
            BeginError::List { partition } => {
                write!(f, "partition {partition} would have a list without a node, or with one twice")
            }
            BeginError::Document(error) => write!(f, "the cluster document would contradict itself: {error}"),
        }
    }
}

impl std::error::Error for BeginError {}

/// The document that may follow `cluster`, by what is known of its nodes.
pub fn next(cluster: &Cluster, facts: &Facts) -> StepOutcome {
    let (generation, facts) = (Generation(cluster.generation.0 + 1), &*facts.and_gone(cluster));
    if let Some(store) = cluster.changing() {
        return numbers::next(cluster, store, facts);
    }
    let mut outcome = StepOutcome { next: None, waiting: Vec::new() };
    let mut partitions: Option<Vec<Partition>> = None;
    for (position, partition) in cluster.ring.partitions().iter().enumerate() {
        let Some(coming) = &partition.coming else { continue };
        let waiting = waiting(cluster, partition, coming.step, facts);
        if waiting.is_empty() {
            let partitions = partitions.get_or_insert_with(|| cluster.ring.partitions().to_vec());
            partitions[position] = stepped(partition, coming, generation);
        } else {
            outcome.waiting.push((partition.id, waiting));
        }
    }
    outcome.next = partitions.map(|partitions| republished(cluster, generation, partitions));
    outcome
}

/// The document by which these partitions begin to move to these lists. A list with the present replicas of every store
/// takes the place of the present one at once: only its order or its fallbacks change.
///
/// # Errors
/// When one of them cannot begin; then none does.
pub fn begin(cluster: &Cluster, moves: &[(PartitionId, Vec<NodeId>)]) -> Result<Cluster, BeginError> {
    let generation = Generation(cluster.generation.0 + 1);
    let (mut partitions, definitions) = (cluster.ring.partitions().to_vec(), cluster.definitions());
    let positions: BTreeMap<PartitionId, usize> =
        partitions.iter().enumerate().map(|(position, partition)| (partition.id, position)).collect();
    for (id, nodes) in moves {
        let Some(&position) = positions.get(id) else { return Err(BeginError::Unknown { partition: *id }) };
        let partition = &mut partitions[position];
        if let Some(step) = partition.step() {
            return Err(BeginError::Moves { partition: *id, step });
        }
        let distinct: BTreeSet<&NodeId> = nodes.iter().collect();
        if nodes.is_empty() || distinct.len() < nodes.len() {
            return Err(BeginError::List { partition: *id });
        }
        let coming = Coming { step: Step::Copying, nodes: nodes.clone(), unknown: Unknown::new() };
        partition.coming = Some(coming);
        let mut moves_data = false;
        for store in &definitions {
            let Places { old, new, .. } = Places::of(store, partition);
            if new.len() < old.len() {
                let (partition, store) = (*id, store.name.clone());
                return Err(BeginError::Fewer { partition, store, replicas: (old.len(), new.len()) });
            }
            moves_data |= new.iter().any(|node| !old.contains(node));
        }
        if !moves_data {
            partition.coming = None;
            // Another node judges conditions from now on: what was formed before is refused.
            if cluster.replicas_in(&partition.nodes) != cluster.replicas_in(nodes) {
                partition.since = generation;
            }
            partition.nodes.clone_from(nodes);
        }
    }
    let next = republished(cluster, generation, partitions);
    next.check().map_err(BeginError::Document)?;
    Ok(next)
}

/// As [`begin`], with as many of the moves, from the first, as a document of at most `bytes_max` bytes has room for; and
/// how many these are.
///
/// # Errors
/// As [`begin`].
pub fn begin_fitting(
    cluster: &Cluster,
    moves: &[(PartitionId, Vec<NodeId>)],
    bytes_max: usize,
) -> Result<(Cluster, usize), BeginError> {
    let all = begin(cluster, moves)?;
    if all.document_bytes() <= bytes_max {
        return Ok((all, moves.len()));
    }
    let (mut fitting, mut count, mut too_many) = (cluster.clone(), 0, moves.len());
    while count + 1 < too_many {
        let middle = count + (too_many - count) / 2;
        let some = begin(cluster, &moves[..middle])?;
        if some.document_bytes() <= bytes_max {
            (fitting, count) = (some, middle);
        } else {
            too_many = middle;
        }
    }
    Ok((fitting, count))
}

/// The document by which these partitions go back to where they came from; those that do not move are passed over.
///
/// From *copying* and *joint* the old replicas have all that was acknowledged, and nobody reads elsewhere: the list to
/// come is dropped. From *reading-new* the partition goes on, in the other direction: gets ask the old replicas again,
/// and the new ones are left as the old ones would have been.
pub fn back(cluster: &Cluster, ids: &[PartitionId]) -> Option<Cluster> {
    let generation = Generation(cluster.generation.0 + 1);
    let mut partitions = cluster.ring.partitions().to_vec();
    let mut changed = false;
    for partition in partitions.iter_mut().filter(|partition| ids.contains(&partition.id)) {
        let Some(coming) = partition.coming.take() else { continue };
        changed = true;
        match coming.step {
            Step::Copying => {}
            Step::Joint => partition.since = generation,
            Step::ReadingNew => {
                let Coming { nodes, unknown, .. } = coming;
                let nodes = std::mem::replace(&mut partition.nodes, nodes);
                partition.coming = Some(Coming { step: Step::ReadingNew, nodes, unknown });
                partition.since = generation;
            }
        }
    }
    changed.then(|| republished(cluster, generation, partitions))
}

/// The steps of a move to `nodes` that cannot be taken while these nodes are away, each with whom it waits for: what a
/// plan says before it is applied.
pub fn blocked_by(
    cluster: &Cluster,
    partition: &Partition,
    nodes: &[NodeId],
    away: &[NodeId],
) -> Vec<(Step, Waiting)> {
    let mut blocked = Vec::new();
    let generation = Generation(cluster.generation.0 + 1);
    let mut moving = Partition { since: generation, ..partition.clone() };
    for step in [Step::Copying, Step::Joint, Step::ReadingNew] {
        let coming = Coming { step, nodes: nodes.to_vec(), unknown: Unknown::new() };
        moving.coming = Some(coming);
        let facts = everybody_but(cluster, &moving, away);
        let facts = facts.and_gone(cluster);
        blocked.extend(waiting(cluster, &moving, step, &facts).into_iter().map(|waiting| (step, waiting)));
    }
    blocked
}

/// What would be known if all nodes that are not away had done their part.
fn everybody_but(cluster: &Cluster, partition: &Partition, away: &[NodeId]) -> Facts {
    let generation = cluster.stepped_since(partition);
    let mut facts = Facts::default();
    let listed = partition.coming.iter().flat_map(|coming| &coming.nodes).chain(&partition.nodes);
    for &node in listed.filter(|node| !away.contains(node)) {
        let there = |store: &Store| {
            let old = replicas_before(store, partition).iter().copied();
            (store.name.clone(), old.filter(|node| !away.contains(node)).collect())
        };
        let merged = cluster.stores.iter().map(there).collect();
        let entered = Entered { incarnation: 0, generation, whole: true, merged };
        let known = facts.nodes.entry(node).or_default();
        known.adopted = Some((0, generation));
        known.entered.insert(partition.id, entered);
    }
    facts
}

/// The one whose place `node` takes when it enters; `None` when the partition only gets another replica.
pub(super) fn donor(store: &Store, partition: &Partition, node: NodeId) -> Option<NodeId> {
    let places = Places::of(store, partition);
    places.successions().find(|(entering, _)| *entering == node).and_then(|(_, leaving)| leaving)
}

/// What a step waits for of a node that enters, beside its adoption.
pub(super) fn waiting_for(
    store: &Store,
    partition: &Partition,
    node: NodeId,
    facts: &Facts,
) -> Option<Waiting> {
    let places = Places::of(store, partition);
    let succession = places.successions().find(|(merging, _)| *merging == node)?;
    let since = partition.since.max(store.since);
    waiting_for_merge(store, &places, (partition.id, since), succession, facts)
}

/// The old and new replicas of a store in a partition that moves.
struct Places<'a> {
    old: &'a [NodeId],
    new: &'a [NodeId],
    /// The two use different numbers, so those that stay may lack what an old quorum without them acknowledged.
    numbers_change: bool,
}

impl<'a> Places<'a> {
    fn of(store: &Store, partition: &'a Partition) -> Self {
        let (old, new) =
            (replicas_before(store, partition), replicas_to_come(store, partition).unwrap_or_default());
        Places { old, new, numbers_change: store.coming.is_some() }
    }

    fn entering(&self) -> impl Iterator<Item = NodeId> {
        self.new.iter().copied().filter(|node| !self.old.contains(node))
    }

    /// The nodes that merge: those that enter, each with the one whose place it takes, because that node's
    /// acknowledgements are what the new replicas would lack; and those that stay, when numbers change.
    fn successions(&self) -> impl Iterator<Item = (NodeId, Option<NodeId>)> {
        let leaving = self.old.iter().copied().filter(|node| !self.new.contains(node));
        let enter = self.entering().zip(leaving.map(Some).chain(std::iter::repeat(None)));
        let staying = self.new.iter().copied().filter(|node| self.numbers_change && self.old.contains(node));
        enter.chain(staying.map(|node| (node, None)))
    }
}

/// Whom the next step waits for; nobody when it may be taken.
fn waiting(cluster: &Cluster, partition: &Partition, step: Step, facts: &Facts) -> Vec<Waiting> {
    let mut waiting = Vec::new();
    let since = cluster.stepped_since(partition);
    if step == Step::Copying {
        let is_whole = |node| facts.entered(node, partition.id, since).is_some_and(|entered| entered.whole);
        let definitions = cluster.definitions();
        let entering =
            definitions.iter().flat_map(|store| Places::of(store, partition).entering().collect::<Vec<_>>());
        waiting.extend(entering.filter(|&node| !is_whole(node)).map(|node| Waiting::Copy { node }));
    }
    for store in cluster.stores.iter().filter(|store| replicas_to_come(store, partition).is_some()) {
        let places = Places::of(store, partition);
        match step {
            Step::Copying => {}
            Step::Joint => waiting.extend(waiting_for_merges(store, &places, (partition.id, since), facts)),
            Step::ReadingNew => waiting.extend(waiting_for_adoption(store, &places, since, facts)),
        }
    }
    waiting.sort_by_key(|waiting| match waiting {
        Waiting::Copy { node } => Some(*node),
        _ => None,
    });
    waiting.dedup();
    waiting
}

/// Whether all that enter have everything that old replicas will ever have acknowledged, and as many of the new
/// replicas as hold each write by the next numbers.
fn waiting_for_merges(
    store: &Store,
    places: &Places<'_>,
    at: (PartitionId, Generation),
    facts: &Facts,
) -> Vec<Waiting> {
    let merge = |succession: (NodeId, Option<NodeId>)| {
        (succession.0, waiting_for_merge(store, places, at, succession, facts))
    };
    let merging: Vec<(NodeId, Option<Waiting>)> = places.successions().map(merge).collect();
    let done = merging.iter().filter(|(_, waiting)| waiting.is_none()).count();
    let enough = holders_promised(store, store.numbers_to_come()).min(merging.len());
    // Of those that stay, and whose numbers alone change, the others hold what was acknowledged by the old numbers.
    let needed = |node: NodeId| done < enough || !places.old.contains(&node);
    merging.into_iter().filter(|(node, _)| needed(*node)).filter_map(|(_, waiting)| waiting).collect()
}

/// Whether a node has everything that old replicas will ever have acknowledged alone.
fn waiting_for_merge(
    store: &Store,
    places: &Places<'_>,
    (partition, since): (PartitionId, Generation),
    (node, leaving): (NodeId, Option<NodeId>),
    facts: &Facts,
) -> Option<Waiting> {
    let entered = facts.entered(node, partition, since);
    let merged = |source: &NodeId| {
        let of_store = entered.and_then(|entered| entered.merged.get(&store.name));
        // One that stays has what it has acknowledged itself, unless it lost it.
        let is_own = *source == node && entered.is_some_and(|entered| entered.whole);
        is_own || of_store.is_some_and(|sources| sources.contains(source))
    };
    if leaving.as_ref().is_some_and(merged) {
        return None;
    }
    let there = places.old.iter().filter(|&&node| !facts.is_gone(node));
    // When more are gone than a write may lose, what is left is all there is.
    let enough = meet_every_quorum(places.old.len(), store.consistency.writes_required);
    let enough = enough.min(there.clone().count());
    let (done, mut others): (Vec<NodeId>, Vec<NodeId>) = there.copied().partition(merged);
    others.retain(|other| *other != node);
    let missing = enough.saturating_sub(done.len());
    let with = leaving.filter(|&leaving| !facts.is_gone(leaving));
    // Even where nobody is left to merge with, it says that it is at this step.
    let silent = entered.is_none();
    (missing > 0 || silent).then(|| Waiting::Compare {
        store: store.name.clone(),
        node,
        with,
        others,
        missing,
    })
}

/// Whether so few old replicas are left that answer older gets that these cannot succeed any more.
fn waiting_for_adoption(
    store: &Store,
    places: &Places<'_>,
    generation: Generation,
    facts: &Facts,
) -> Option<Waiting> {
    // One that is gone answers nobody. Should it be wrong that it is, the others are enough where they can be.
    let there = places.old.iter().copied().filter(|&node| !facts.is_gone(node));
    let (done, nodes): (Vec<NodeId>, Vec<NodeId>) =
        there.partition(|&node| facts.refuses_before(node, generation));
    let enough = meet_every_quorum(places.old.len(), store.consistency.reads_required);
    let enough = enough.min(done.len() + nodes.len());
    let missing = enough.saturating_sub(done.len());
    (missing > 0).then(|| Waiting::Adopt { store: store.name.clone(), nodes, missing, generation })
}

/// The partition at its next step.
fn stepped(partition: &Partition, coming: &Coming, generation: Generation) -> Partition {
    let at = |step| Some(Coming { step, ..coming.clone() });
    let moved = Partition { since: generation, ..partition.clone() };
    match coming.step {
        Step::Copying => Partition { coming: at(Step::Joint), ..moved },
        Step::Joint => Partition { coming: at(Step::ReadingNew), ..moved },
        Step::ReadingNew => Partition { coming: None, nodes: coming.nodes.clone(), ..moved },
    }
}

fn republished(cluster: &Cluster, generation: Generation, partitions: Vec<Partition>) -> Cluster {
    let ring = Ring::new(partitions).expect("lists and bounds are those of a ring");
    Cluster { generation, ring, ..cluster.clone() }
}
