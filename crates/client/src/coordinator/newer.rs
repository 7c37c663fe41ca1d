//! How a coordinator learns of a newer cluster document while nothing of what it asks is refused.
//!
//! Readers of a read-only store name the artifact of the document that they know, and replicas answer from that for a while
//! after a swap. An answer names the document that its node follows; when that is newer, the coordinator asks for it aside,
//! and the next request follows it. Before the first swap there is nothing to ask for, so each get of a client is a reason
//! to look again.
//!
//! Nodes also watch the coordination service; that may be away, or late.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use model::{Cluster, NodeId};
use wire::messages::{ClusterGet, Request, Response};

use super::{Coordinator, Scope};

/// How long a node may take to hand its document over, before another answer is a reason to ask again.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);
/// Shortest time between two questions: a store without an artifact may be read all the time.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Asks a node for its document, unless one was asked a moment ago.
    pub(super) fn catch_up(self: &Arc<Self>, node: NodeId, base: &Arc<Cluster>) {
        if self.replicas.own() == Some(node) || self.catching_up.swap(true, Ordering::Relaxed) {
            return;
        }
        let (coordinator, base) = (self.clone(), base.clone());
        self.ports.tasks.spawn(Box::pin(async move {
            let clock = &coordinator.ports.clock;
            let call = coordinator.replicas.call(node, Request::ClusterGet(ClusterGet {}));
            if let Ok(Response::ClusterDocument(document)) = call.within(clock, ASK_TIME_MAX).await {
                // It is whole: there is nothing that it would change.
                coordinator.replicas.adopt(&document.json, &base);
            }
            clock.sleep(ASK_AGAIN).await;
            let was = coordinator.catching_up.swap(false, Ordering::Relaxed);
            assert!(was, "{node} was asked for its document while nobody was");
        }));
    }

    /// A store serves nothing by the document that is known; a newer one may say otherwise.
    pub(super) fn found_nothing(self: &Arc<Self>, scope: &Scope, key: Option<&Bytes>) {
        let is_client = self.replicas.own().is_none();
        let node = key.and_then(|key| scope.preference(key).replicas().first().copied());
        if let Some(node) = node.filter(|_| is_client) {
            self.catch_up(node, &scope.cluster);
        }
    }
}
