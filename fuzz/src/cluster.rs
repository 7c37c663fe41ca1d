//! Cluster documents, as the coordination service and a node's local copy hold them.

use model::{Cluster, Token};

/// Tokens whose routes are looked up: both ends, and some between.
const TOKENS: [u64; 5] = [0, 1, 1 << 62, u64::MAX / 3 * 2, u64::MAX];

/// Panics when a document that reads cannot be routed by, or reads otherwise once it was written again.
pub fn check(input: &[u8]) {
    let Ok(cluster) = serde_json::from_slice::<Cluster>(input) else { return };
    for store in &cluster.stores {
        for token in TOKENS {
            let (partition, preference) = cluster.route(store, Token(token));
            let replicas = preference.replicas();
            assert!(replicas.len() <= usize::from(store.consistency.replicas));
            assert!(replicas.iter().all(|node| partition.reading().contains(node)));
            let joint = partition.also_written().unwrap_or(partition.reading());
            let lists = |node| partition.reading().contains(node) || joint.contains(node);
            assert!(preference.writers().iter().all(lists));
        }
    }
    let again = serde_json::to_vec(&cluster).expect("what was read can be written");
    assert_eq!(serde_json::from_slice::<Cluster>(&again).expect("what was written can be read"), cluster);
}
