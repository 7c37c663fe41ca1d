//! When a partition that is refilled, or entered, is whole: by whom it was merged with, and by the document of now.

use std::collections::{BTreeMap, BTreeSet};

use model::routing::replicas_before;
use model::{Generation, NodeId, Partition, PartitionId};
use protocol::antientropy::ledger::Required;
use protocol::rebalance::entering::{Part, sources};

use super::Refill;
use crate::antientropy::Peered;
use crate::rebalance::Rebalance;
use crate::stores::LocalStore;
use crate::view::View;

/// From whom a partition is brought in.
pub(super) struct RefillSource {
    pub(super) nodes: Vec<NodeId>,
    pub(super) donor: Option<NodeId>,
    /// Since which generation the partition and the store are as they are.
    pub(super) since: Generation,
    /// N.
    replicas: usize,
    /// W, by the numbers of these replicas.
    writes_required: usize,
    /// It enters the partition.
    enters: bool,
}

impl RefillSource {
    /// Of each of these buckets of a store that `node` holds or enters.
    pub(super) fn all(
        view: &View,
        store: &LocalStore,
        node: NodeId,
        among: &[PartitionId],
    ) -> BTreeMap<PartitionId, RefillSource> {
        let partitions = among.iter().filter_map(|id| view.buckets().get(*id));
        partitions
            .filter_map(|partition| Some((partition.id, RefillSource::of(view, store, partition, node)?)))
            .collect()
    }

    fn of(view: &View, store: &LocalStore, partition: &Partition, node: NodeId) -> Option<RefillSource> {
        let definition = store.definition();
        let since = partition.since.max(definition.since);
        let source = match Part::of(definition, partition, node) {
            Part::Nothing => return None,
            Part::Entering => {
                let sources = sources(definition, partition, node)?;
                let nodes = sources.replicas.to_vec();
                let writes_required = definition.consistency.writes_required.into();
                let (donor, replicas) = (sources.donor, nodes.len());
                RefillSource { donor, since, replicas, writes_required, nodes, enters: true }
            }
            Part::Holding => {
                // One that merely enters may lack what the others have acknowledged. At *reading-new* the old replicas
                // have all of it as well, and one that is new alone has the same of them as of its peers.
                let old = replicas_before(definition, partition);
                let nodes = old.iter().copied().filter(|&other| other != node).collect();
                let writes_required = definition.consistency.writes_required.into();
                RefillSource {
                    donor: None,
                    since,
                    replicas: old.len(),
                    writes_required,
                    nodes,
                    enters: false,
                }
            }
        };
        Some(source.without_gone(view))
    }

    /// Nothing comes from a node that is gone: what the others hold is all there is.
    fn without_gone(mut self, view: &View) -> RefillSource {
        let is_gone = |node: &NodeId| view.cluster().node(*node).is_some_and(|node| node.gone);
        self.nodes.retain(|node| !is_gone(node));
        self.donor = self.donor.filter(|donor| !is_gone(donor));
        self
    }

    fn required(&self) -> Required<'_> {
        let RefillSource { since, replicas, writes_required, ref nodes, donor, enters } = *self;
        Required { since, replicas, writes_required, others: nodes, donor, enters }
    }
}

/// Partitions that nobody else holds, or that are this node's no more, have nothing to wait for.
pub(super) fn settle_alone(rebalance: &Rebalance, view: &View, store: &LocalStore) {
    let name = store.definition().name.as_str();
    let mut refill = rebalance.refill.lock();
    let incomplete = refill.incomplete(name);
    if incomplete.is_empty() {
        return;
    }
    let sources = RefillSource::all(view, store, rebalance.node(), &incomplete);
    let announced: BTreeSet<PartitionId> =
        incomplete.into_iter().filter(|id| refill.is_announced(name, *id)).collect();
    if !is_current(rebalance, view) {
        return;
    }
    let Some(ledger) = refill.stores.get_mut(name) else { return };
    for partition in ledger.incomplete().filter(|id| !announced.contains(id)).collect::<Vec<_>>() {
        let is_whole = match sources.get(&partition) {
            None => true,
            Some(source) => ledger.settle(partition, source.required()),
        };
        if is_whole {
            store.trees().set_incomplete(partition, false);
        }
    }
    ledger.keep(|partition| announced.contains(&partition) || sources.contains_key(&partition));
}

/// Whether this node still follows this view. Asked while the list is held: it is changed before the view is.
fn is_current(rebalance: &Rebalance, view: &View) -> bool {
    rebalance.replica().view().generation() == view.cluster().generation
}

/// Whether the partition is still what it was by this view, and no document is about to change that.
fn is_steady(
    rebalance: &Rebalance,
    view: &View,
    store: &LocalStore,
    id: PartitionId,
    refill: &Refill,
) -> bool {
    let now = rebalance.replica().view().get();
    let same = now.says_of(store, id) == view.says_of(store, id);
    same && !refill.is_announced(store.definition().name.as_str(), id)
}

pub(super) fn settle(
    rebalance: &Rebalance,
    view: &View,
    store: &LocalStore,
    (id, peer): (PartitionId, NodeId),
    peered: Peered,
) {
    note(rebalance, view, store, (id, peer), peered);
    let partition = view.buckets().get(id);
    let source = partition.and_then(|p| RefillSource::of(view, store, p, rebalance.node()));
    let mut refill = rebalance.refill.lock();
    if !is_steady(rebalance, view, store, id, &refill) {
        return;
    }
    let Some((ledger, source)) = refill.stores.get_mut(store.definition().name.as_str()).zip(source) else {
        return;
    };
    // A replica that still takes requests of the step before may acknowledge more by it.
    if peered.adopted < source.since {
        return;
    }
    if ledger.merged(id, peer, peered.whole, source.required()) {
        store.trees().set_incomplete(id, false);
    }
}

/// Notes that what it enters was merged with all that an old replica held.
pub(super) fn note(
    rebalance: &Rebalance,
    view: &View,
    store: &LocalStore,
    (partition, peer): (PartitionId, NodeId),
    peered: Peered,
) {
    let mut refill = rebalance.refill.lock();
    if peered.whole && is_steady(rebalance, view, store, partition, &refill) {
        refill.entered.merged(&store.definition().name, partition, (peer, peered.adopted));
    }
}

#[cfg(test)]
mod tests {
    use protocol::rebalance::steps;

    use super::*;
    use crate::driven::home::{Home, cluster, store};

    /// A round goes from store to store by the view that it began with. That view gives this node nothing of what a
    /// document has brought meanwhile: gets would be answered *not found*.
    #[test]
    fn a_partition_from_a_newer_document_is_not_settled_by_the_older_one() {
        let mut before = cluster();
        before.stores[0].consistency.replicas = 2;
        let home = Home::of(&before);
        let node = home.start();
        let own = NodeId(1);
        let partitions = before.ring.partitions();
        let Partition { id, nodes, .. } = partitions.iter().find(|p| !p.nodes[..2].contains(&own)).unwrap();
        let moving = steps::begin(&before, &[(*id, vec![nodes[0], own, nodes[1]])]).unwrap();
        let (rebalance, view) = (node.rebalance(), node.replica().view().get());
        home.adopt(&node, moving.clone());
        let is_left = || {
            let left = rebalance.refill.lock().incomplete("s") == [*id];
            assert_eq!(left, store(&node).trees().is_incomplete(*id));
            left
        };
        settle_alone(rebalance, &view, &store(&node));
        assert!(is_left());
        // By the document of now it settles what is this node's no more.
        home.adopt(&node, steps::back(&moving, &[*id]).unwrap());
        settle_alone(rebalance, &node.replica().view().get(), &store(&node));
        assert!(!is_left());
    }
}
