//! The nodes as one worker of this node reaches them: itself without a link, the others over its links.

use std::sync::Arc;

use bytes::Bytes;
use client::coordinator::{Replicas, Scope};
use client::peers::{Call, Peers};
use model::{Cluster, NodeId, VersionSet};
use storage::Durable;
use wire::messages::Request;

use crate::front::Adopt;
use crate::replica::Replica;

/// One worker's way to all nodes.
pub(crate) struct WorkerReplicas {
    replica: Arc<Replica>,
    peers: Arc<Peers>,
    adopt: Adopt,
}

impl WorkerReplicas {
    /// This node's own records, and its links to the others.
    pub(crate) fn new(replica: Arc<Replica>, peers: Arc<Peers>, adopt: Adopt) -> Self {
        WorkerReplicas { replica, peers, adopt }
    }
}

impl Replicas for WorkerReplicas {
    fn own(&self) -> Option<NodeId> {
        Some(self.replica.node())
    }

    fn call(&self, node: NodeId, request: Request) -> Call {
        if node == self.replica.node() { self.replica.call(request) } else { self.peers.call(node, request) }
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        node != self.replica.node() && self.peers.is_suspected(node)
    }

    fn park(&self, scope: &Scope, target: NodeId, key: &Bytes, set: &VersionSet) {
        let Ok((_, store)) = self.replica.admit(scope.store.as_str(), scope.cluster.generation) else {
            return;
        };
        let (outcome, durable) = self.replica.park(target, &store, key, set);
        if let Err(error) = outcome {
            // The write is done or indeterminate without it; anti-entropy finds the target's gap.
            tracing::warn!(%target, %error, "hint refused");
        }
        if let Durable::Waits(future) = durable {
            self.peers.ports().tasks.spawn(Box::pin(async move {
                // A failed sync stops the engine, which tells everybody.
                let _ = future.await;
            }));
        }
    }

    fn adopt(&self, document: &[u8]) -> Arc<Cluster> {
        if let Ok(cluster) = serde_json::from_slice::<Cluster>(document) {
            (self.adopt)(cluster);
        }
        self.replica.view().get().cluster().clone()
    }
}
