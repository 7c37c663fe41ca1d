//! What is done for other nodes when nobody asks: hints are delivered.

use std::sync::Arc;

use client::peers::Peers;

use super::{BACKOFF_MAX, Node};
use crate::handoff::{HandoffParts, Handoffs};
use crate::view::Adopt;

impl Node {
    /// Delivers hints over separate links, so that they do not queue with requests.
    pub(super) fn start_handoff(self: &Arc<Self>) {
        let cluster = Some(self.config.member.cluster.clone());
        let witness = self.liveness.gossip.clone();
        let peers = Peers::witnessed(self.ports.clone(), self.as_peer(), cluster, witness, BACKOFF_MAX);
        peers.learn(self.replica.view().get().cluster());
        self.liveness.peers.lock().push(Arc::downgrade(&peers));
        let weak = Arc::downgrade(self);
        let adopt: Adopt = Arc::new(move |cluster| {
            if let Some(node) = weak.upgrade() {
                node.offer(cluster);
            }
        });
        let handoffs = Handoffs::new(HandoffParts {
            replica: self.replica.clone(),
            pulse: self.liveness.pulse.clone(),
            standings: self.liveness.gossip.clone(),
            peers,
            adopt,
            events: self.telling.events.clone(),
            metrics: self.telling.metrics.clone(),
            options: self.config.hints.handoff,
        });
        handoffs.start(&self.chores.board);
        assert!(self.chores.handoffs.set(handoffs).is_ok(), "a node starts its handoff once");
    }
}
