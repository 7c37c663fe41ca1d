//! How one worker of this node reaches replicas: its own node without a link, the others over its links.
//!
//! The coordinator asks for a node and does not know which of the two carries the request. [`crate::replica`] is the
//! other end: what this node itself answers.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use client::coordinator::{Replicas, Scope};
use client::peers::{Call, CallError, Peers};
use model::{Cluster, Epoch, NodeId, VersionSet};
use smallvec::SmallVec;
use storage::Durable;
use wire::messages::{ReplicaGet, ReplicaMerge, Request, Response, StaleEpoch};

use crate::replica::Replica;
use crate::view::Adopt;

/// How often contents are read again for one message. Each time takes another collection round, and they are rare.
const STALE_MAX: usize = 4;

/// One worker's way to all nodes.
pub struct WorkerTransport {
    reach: Reach,
    adopt: Adopt,
}

/// This node and its links.
#[derive(Clone)]
struct Reach {
    replica: Arc<Replica>,
    peers: Arc<Peers>,
}

impl WorkerTransport {
    /// This node's own records, and its links to the others.
    pub fn new(replica: Arc<Replica>, peers: Arc<Peers>, adopt: Adopt) -> Self {
        WorkerTransport { reach: Reach { replica, peers }, adopt }
    }
}

impl Replicas for WorkerTransport {
    fn own(&self) -> Option<NodeId> {
        Some(self.reach.replica.node())
    }

    fn call(&self, node: NodeId, request: Request) -> Call {
        match request {
            Request::ReplicaMerge(merge) => self.reach.merge(node, merge),
            Request::ReplicaGet(get) => {
                self.reach.count_own(node, &get);
                self.reach.call(node, Request::ReplicaGet(get))
            }
            other => self.reach.call(node, other),
        }
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        node != self.reach.replica.node() && self.reach.peers.is_suspected(node)
    }

    fn park(&self, scope: &Scope, target: NodeId, key: &Bytes, set: &VersionSet) {
        let replica = &self.reach.replica;
        let generation = scope.cluster.generation;
        let Ok((_, store)) = replica.current(scope.store.as_str()) else { return };
        // Read again when a round has come in between; what cannot be is left to anti-entropy.
        let (epoch, set) = match replica.epochs().tag() > scope.epoch {
            false => (scope.epoch, Cow::Borrowed(set)),
            true => match replica.renewed(&store, key, set) {
                Some((epoch, set)) => (epoch, Cow::Owned(set)),
                None => return,
            },
        };
        // Where the key has moved meanwhile, the hint is addressed anew when it is looked at.
        let view = replica.view().admit();
        let Ok(admitted) = replica.admit_contents(&view, epoch, generation) else { return };
        let set = admitted.clean(&store.definition().name, key, &set);
        let (outcome, durable) = replica.park(target, &store, key, &set);
        drop(admitted);
        drop(view);
        if let Err(error) = outcome {
            // The write is done or indeterminate without it; anti-entropy finds the target's gap.
            tracing::warn!(%target, %error, "hint refused");
        }
        if let Durable::Waits(future) = durable {
            self.reach.peers.ports().tasks.spawn(Box::pin(async move {
                // A failed sync stops the engine, which tells everybody.
                let _ = future.await;
            }));
        }
    }

    fn adopt(&self, document: &[u8], base: &Cluster) -> Arc<Cluster> {
        let known = self.reach.replica.view().get().cluster().clone();
        if Cluster::generation_of(document) <= known.generation {
            return known;
        }
        let Some(cluster) = Cluster::handed_over(document, base) else { return known };
        // What drives requests follows it at once; as a replica this node does when it is durable.
        (self.adopt)(cluster.clone());
        let cluster = Arc::new(cluster);
        self.reach.replica.view().hear(&cluster);
        cluster
    }
}

impl Reach {
    /// Counts what this node asks itself, which it would do in any place of a list.
    fn count_own(&self, node: NodeId, get: &ReplicaGet) {
        if node == self.replica.node() {
            let view = self.replica.view().get();
            let Some(store) = view.store(get.store.as_str()) else { return };
            let asked = |key| self.replica.work().asked_itself(view.partition(store, key).0.partition);
            get.keys.iter().for_each(|key| asked(key));
        }
    }

    fn call(&self, node: NodeId, request: Request) -> Call {
        if node == self.replica.node() { self.replica.call(request) } else { self.peers.call(node, request) }
    }

    /// Sends contents. When the node has come further in collection rounds than they have, they are read again here
    /// and sent again: no write fails because of a round.
    fn merge(&self, node: NodeId, merge: ReplicaMerge) -> Call {
        let kept = merge.clone();
        match self.call(node, Request::ReplicaMerge(merge)) {
            Call::Ready(Ok(Response::StaleEpoch(stale))) => {
                let reach = self.clone();
                Call::Pending(Box::pin(async move { reach.merge_again(node, kept, stale).await }))
            }
            Call::Ready(answer) => Call::Ready(answer),
            Call::Pending(answer) => {
                let reach = self.clone();
                Call::Pending(Box::pin(async move {
                    match answer.await {
                        Ok(Response::StaleEpoch(stale)) => reach.merge_again(node, kept, stale).await,
                        answer => answer,
                    }
                }))
            }
        }
    }

    async fn merge_again(
        &self,
        node: NodeId,
        mut merge: ReplicaMerge,
        mut stale: StaleEpoch,
    ) -> Result<Response, CallError> {
        for _ in 0..STALE_MAX {
            let replica = &self.replica;
            replica.epochs().hear(stale.epoch, merge.generation, replica.standing());
            let renewed = self.renew(&merge).filter(|renewed| renewed.epoch >= stale.epoch);
            // Whoever has read it elsewhere must read it there again.
            let Some(renewed) = renewed else { return Ok(Response::StaleEpoch(stale)) };
            merge = renewed;
            let answer = match self.call(node, Request::ReplicaMerge(merge.clone())) {
                Call::Ready(answer) => answer,
                Call::Pending(answer) => answer.await,
            };
            match answer {
                Ok(Response::StaleEpoch(again)) => stale = again,
                answer => return answer,
            }
        }
        Ok(Response::StaleEpoch(stale))
    }

    /// The same contents, read again.
    fn renew(&self, merge: &ReplicaMerge) -> Option<ReplicaMerge> {
        let (_, store) = self.replica.current(merge.store.as_str()).ok()?;
        let mut epoch = Epoch(u64::MAX);
        let mut entries = SmallVec::with_capacity(merge.entries.len());
        for (key, set) in &merge.entries {
            let (read, set) = self.replica.renewed(&store, key, set)?;
            epoch = epoch.min(read);
            entries.push((key.clone(), set));
        }
        Some(ReplicaMerge { epoch, entries, ..merge.clone() })
    }
}
