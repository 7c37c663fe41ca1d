//! What a node has to do with a partition by the document that it follows, and what that asks of it.
//!
//! ```text
//!              holds by the newer document    enters by it                 has nothing to do with it
//!   held       nothing                        incomplete: it was away      leaves: gives back, drops
//!   entered    nothing: it was whole          goes on                      leaves
//!   nothing    incomplete                     incomplete                   nothing
//! ```
//!
//! A node may have missed documents in between. What it held once and shall bring in now, it was no replica of
//! meanwhile; what it entered and holds now, it had brought in, because without that no document says so.

use std::collections::BTreeMap;

use model::routing::{replicas, replicas_before, replicas_to_come, step};
use model::{Cluster, NodeId, Partition, Step, Store, StoreName};

use super::steps::{self, Waiting};
use crate::report::{Entered, Facts, NodeFacts};

/// What a node is for a store's records in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It holds them.
    Holding,
    /// It brings them in, and answers for none of them yet.
    Entering,
    /// They are not its own.
    Nothing,
}

impl Part {
    /// What `node` is.
    pub fn of(store: &Store, partition: &Partition, node: NodeId) -> Part {
        let comes = || replicas_to_come(store, partition).is_some_and(|nodes| nodes.contains(&node));
        match step(store, partition) {
            _ if replicas_before(store, partition).contains(&node) => Part::Holding,
            Some(Step::ReadingNew) if comes() => Part::Holding,
            Some(_) if comes() => Part::Entering,
            _ => Part::Nothing,
        }
    }

    /// Whether the node must bring the records in, when a newer document makes it this and it was `before`; `None` when
    /// it follows a document for the first time, and so has acknowledged nothing.
    pub fn begins_incomplete(self, before: Option<Part>) -> bool {
        match (before, self) {
            (_, Part::Nothing) | (None, Part::Holding) => false,
            (before, Part::Entering) => before != Some(Part::Entering),
            (before, Part::Holding) => before == Some(Part::Nothing),
        }
    }
}

/// Where a partition that moves goes, as a node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the node, which is no replica of the old ones.
    Enters,
    /// Away from the node, which is none of the new ones.
    Leaves,
}

impl Way {
    /// The way of a partition for the first store for which it changes the node's part; `None` when it does for none, or
    /// does not move.
    pub fn of(stores: &[Store], partition: &Partition, node: NodeId) -> Option<Way> {
        stores.iter().find_map(|store| {
            let comes = replicas_to_come(store, partition)?.contains(&node);
            match (replicas_before(store, partition).contains(&node), comes) {
                (false, true) => Some(Way::Enters),
                (true, false) => Some(Way::Leaves),
                _ => None,
            }
        })
    }
}

/// Whether `node` says how far it is with a store's records in a partition: it enters, or it stays, and so much of what
/// old replicas acknowledged without it may be missing as the store's numbers change.
pub fn takes_part(store: &Store, partition: &Partition, node: NodeId) -> bool {
    let compares = || store.step() == Some(Step::Joint);
    let stays = || replicas_to_come(store, partition).is_some_and(|nodes| nodes.contains(&node));
    Part::of(store, partition, node) == Part::Entering || (compares() && stays())
}

/// From whom a node brings in what it enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources<'a> {
    /// The one whose place it takes: that one is enough, if it is whole.
    pub donor: Option<NodeId>,
    /// All old replicas: N − W + 1 of them are enough.
    pub replicas: &'a [NodeId],
}

/// From whom `node` brings a store's records in; `None` when it does not enter.
pub fn sources<'a>(store: &Store, partition: &'a Partition, node: NodeId) -> Option<Sources<'a>> {
    (Part::of(store, partition, node) == Part::Entering).then(|| Sources {
        donor: steps::donor(store, partition, node),
        replicas: replicas_before(store, partition),
    })
}

/// With which old replicas `node` may yet merge, by store, until the next step need not wait for it; nobody for a store
/// that waits for it no more.
pub fn left_to_merge(
    cluster: &Cluster,
    partition: &Partition,
    node: NodeId,
    entered: &Entered,
) -> BTreeMap<StoreName, Vec<NodeId>> {
    let known = NodeFacts {
        incarnation: Some(entered.incarnation),
        entered: [(partition.id, entered.clone())].into(),
        ..NodeFacts::default()
    };
    let facts = Facts { nodes: [(node, known)].into() };
    let facts = &*facts.and_gone(cluster);
    let waiting =
        cluster.stores.iter().filter_map(|store| match steps::waiting_for(store, partition, node, facts)? {
            Waiting::Compare { store, with, others, .. } => {
                let others = others.into_iter().filter(|other| Some(*other) != with);
                Some((store, with.into_iter().chain(others).collect()))
            }
            _ => None,
        });
    waiting.collect()
}

/// The replicas that must hold all that `node` still has of a partition that is not its own, each by a document as new
/// as the one by which it left; `None` while the records are its own, or the partition moves.
pub fn heirs<'a>(store: &Store, partition: &'a Partition, node: NodeId) -> Option<&'a [NodeId]> {
    let left = step(store, partition).is_none() && Part::of(store, partition, node) == Part::Nothing;
    left.then(|| replicas(store, partition))
}
