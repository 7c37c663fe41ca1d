//! What ties the node's parts to reaping and to its collection rounds.

use std::sync::Arc;

use client::peers::Peers;

use super::{BACKOFF_MAX, Node};
use crate::collection::{Answers, Collection, Service};
use crate::expiry;

impl Node {
    /// Takes part in collection rounds, and starts them.
    pub(super) fn start_collection(self: &Arc<Self>) {
        let (cluster, witness) = (Some(self.config.member.cluster.clone()), self.liveness.gossip.clone());
        let peers = Peers::witnessed(self.ports.clone(), self.as_peer(), cluster, witness, BACKOFF_MAX);
        peers.learn(self.replica.view().get().cluster());
        self.liveness.peers.lock().push(Arc::downgrade(&peers));
        let answers = Answers {
            replica: self.replica.clone(),
            stamper: self.stamper.clone(),
            clock: self.ports.clock.clone(),
        };
        let weak = Arc::downgrade(self);
        let service: Service =
            Arc::new(move || weak.upgrade().map(|node| node.following.session.lock().clone()));
        let (events, metrics) = (self.telling.events.clone(), &self.telling.metrics);
        let collection =
            Collection::new(answers, peers, service, events, metrics, self.config.repair.collection);
        collection.start(&self.chores.board);
        assert!(self.chores.collection.set(collection).is_ok(), "a node starts collecting once");
    }
    /// Reaps what has expired, as long as the node lives.
    pub(super) fn start_reaping(&self) {
        let (view, events) = (self.replica.view(), self.telling.events.clone());
        expiry::start(view, &self.ports, &self.chores.board, events, self.config.repair.expiry);
    }
}
