//! Whether all replicas hold the same, read past all quorums.

use std::sync::Arc;

use bytes::Bytes;
use model::NodeId;
use node::Node;

use super::World;

impl World {
    /// Why the replicas are not equal yet; `None` when every key is held alike by all its replicas and all trees agree
    /// with each other. All nodes must be up.
    pub fn difference(&self, keys: &[Bytes]) -> Option<String> {
        for store in self.stores() {
            for key in keys {
                let remains = match self.remains(store, key) {
                    Ok(remains) => remains,
                    Err(reason) => return Some(reason),
                };
                if let Some(pair) = remains.replicas.windows(2).find(|pair| pair[0].1 != pair[1].1) {
                    let (name, key) = (&pair[0].0, String::from_utf8_lossy(key));
                    return Some(format!("{store}/{key}: {name} and {} hold different versions", pair[1].0));
                }
            }
        }
        self.stores().iter().find_map(|store| self.tree_difference(store))
    }

    /// A partition of the store whose replicas' hash trees have different sums, or none yet.
    fn tree_difference(&self, store: &str) -> Option<String> {
        let nodes: Vec<Arc<Node>> =
            self.members().filter_map(|machine| machine.life.lock().node.clone()).collect();
        let view = nodes.first()?.replica().view().get();
        let definition = view.store(store)?.definition();
        for partition in view.buckets().partitions() {
            let replicas = model::routing::replicas(definition, partition);
            let sum = |id: &NodeId| {
                let view = nodes.iter().find(|node| node.replica().node() == *id)?.replica().view().get();
                view.store(store)?.tree_sum(partition.id)
            };
            let sums: Vec<_> = replicas.iter().map(sum).collect();
            // A single replica keeps no tree.
            if replicas.len() > 1 && sums.iter().any(|sum| sum.is_none() || *sum != sums[0]) {
                let id = partition.id.0;
                return Some(format!("{store}: the trees of bucket {id} of {replicas:?} differ: {sums:?}"));
            }
        }
        None
    }
}
