//! What this node believes about the cluster right now, and its stores of that moment.
//!
//! A view never changes; a newer cluster document makes a new view. Requests hold the view that they started with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use model::{Cluster, Generation, NodeId, Partition, PartitionId, PreferenceList, Token};
use parking_lot::RwLock;

use crate::stores::{KeyPlace, LocalStore};

/// The cluster at one generation, as this node sees it.
pub struct View {
    cluster: Arc<Cluster>,
    document: Bytes,
    /// Sorted as the cluster's stores are.
    stores: Vec<Arc<LocalStore>>,
}

/// A key's way: where it lies, and who should hold it.
pub struct Route {
    /// Where it lies.
    pub place: KeyPlace,
    /// Who should hold it.
    pub preference: PreferenceList,
}

impl View {
    /// The view of `cluster` with `stores` open at this node.
    pub fn new(cluster: Arc<Cluster>, stores: Vec<Arc<LocalStore>>) -> Self {
        let document = serde_json::to_vec(&*cluster).expect("a cluster is plain data").into();
        View { cluster, document, stores }
    }

    /// Gives the stores the trees of this view: when it becomes the current one, and not before.
    fn shape(&self) {
        self.stores.iter().for_each(|store| store.shape(&self.cluster.ring));
    }

    /// The cluster.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The cluster as JSON, for whoever is behind.
    pub fn document(&self) -> &Bytes {
        &self.document
    }

    /// All stores.
    pub fn stores(&self) -> &[Arc<LocalStore>] {
        &self.stores
    }

    /// The store with this name.
    pub fn store(&self, name: &str) -> Option<&Arc<LocalStore>> {
        self.stores.iter().find(|store| store.definition().name.as_str() == name)
    }

    /// Where a key of `store` lies and who should hold it.
    pub fn route(&self, store: &LocalStore, key: &[u8]) -> Route {
        let token = Token::of(key);
        let (partition, preference) = self.cluster.route(store.definition(), token);
        Route { place: KeyPlace { partition: partition.id, token }, preference }
    }

    /// Where a key lies: what most requests need to know.
    pub fn partition(&self, key: &[u8]) -> (KeyPlace, &Partition) {
        let token = Token::of(key);
        let partition = self.cluster.ring.partition(token);
        (KeyPlace { partition: partition.id, token }, partition)
    }

    /// The partitions of a store of which `node` is a replica, each with its other replicas.
    pub fn replicated_by(&self, node: NodeId, store: &LocalStore) -> BTreeMap<PartitionId, Vec<NodeId>> {
        let partitions = self.cluster.ring.partitions().iter();
        let all = partitions.map(|p| (p.id, PreferenceList::of(store.definition(), p)));
        let mine = all.filter(|(_, preference)| preference.is_replica(node));
        mine.map(|(id, preference)| (id, others(&preference, node))).collect()
    }

    /// The replicas of a partition of a store but for `node`.
    pub fn replicas_of(&self, partition: PartitionId, store: &LocalStore, node: NodeId) -> Vec<NodeId> {
        let found = self.cluster.ring.partitions().iter().find(|p| p.id == partition);
        found.map_or_else(Vec::new, |p| others(&PreferenceList::of(store.definition(), p), node))
    }

    /// Which share of all tokens lies in the partitions that `counts` chooses.
    pub fn share(&self, counts: impl Fn(PartitionId) -> bool) -> f64 {
        let partitions = self.cluster.ring.partitions();
        let ends = partitions.iter().skip(1).map(|next| u128::from(next.start)).chain([1 << 64]);
        let widths = partitions.iter().zip(ends).filter(|(partition, _)| counts(partition.id));
        let covered: u128 = widths.map(|(partition, end)| end - u128::from(partition.start)).sum();
        covered as f64 / (1_u128 << 64) as f64
    }

    /// The name of a node in messages to people.
    pub fn describe(&self, node: NodeId) -> String {
        match self.cluster.node(node) {
            Some(known) => format!("{node} ({})", known.native),
            None => node.to_string(),
        }
    }
}

fn others(preference: &PreferenceList, node: NodeId) -> Vec<NodeId> {
    preference.replicas().iter().copied().filter(|&other| other != node).collect()
}

/// The current view; cheap to read, replaced when the cluster document changes.
pub struct CurrentView {
    view: RwLock<Arc<View>>,
    generation: AtomicU64,
}

impl CurrentView {
    /// Starts with this view.
    pub fn new(view: View) -> Self {
        view.shape();
        let generation = AtomicU64::new(view.cluster().generation.0);
        CurrentView { view: RwLock::new(Arc::new(view)), generation }
    }

    /// The view now.
    pub fn get(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// The generation now, without touching the view.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// Takes a newer view; one that is not newer is dropped.
    pub fn replace(&self, view: View) {
        let mut current = self.view.write();
        if view.cluster().generation > current.cluster().generation {
            // Under the lock, so that trees are never those of a view that came too late.
            view.shape();
            self.generation.store(view.cluster().generation.0, Ordering::Release);
            *current = Arc::new(view);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Consistency, Ring, Store, StoreName, Zone};
    use runtime::clock::os::OsClock;
    use storage::MemoryEngine;

    use super::*;
    use crate::stores::Stamper;

    fn definition(replicas: u8) -> Store {
        let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
        Store::new(StoreName::new("s").unwrap(), consistency).unwrap()
    }

    fn view(generation: u64, store: &LocalStore, replicas: u8) -> View {
        let zone = Zone("z".to_owned());
        let ring = Ring::equal_slices(4, &[(NodeId(1), zone.clone()), (NodeId(2), zone)]);
        let cluster = Cluster::new("test", Vec::new(), ring, vec![definition(replicas)]);
        let cluster = Cluster { generation: Generation(generation), ..cluster };
        View::new(Arc::new(cluster), vec![Arc::new(store.redefined(definition(replicas)))])
    }

    /// Making the view of a document that came too late once gave up the trees of a store that has a second replica by
    /// now.
    #[test]
    fn a_document_that_comes_too_late_leaves_the_trees_as_they_are() {
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        let store = LocalStore::new(definition(1), Arc::new(MemoryEngine::new()), stamper);
        let trees = || (store.trees().is_alone(), store.trees().summary().0);
        let current = CurrentView::new(view(1, &store, 1));
        assert_eq!(trees(), (true, 0), "nobody to compare with");
        current.replace(view(3, &store, 2));
        assert_eq!(trees(), (false, 4));
        current.replace(view(2, &store, 1));
        assert_eq!((trees(), current.generation()), ((false, 4), Generation(3)));
        current.replace(view(4, &store, 1));
        assert_eq!(trees(), (true, 0));
    }
}
