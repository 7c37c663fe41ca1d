//! A node's part in failure detection: it gossips, it calls again whoever is back, it says goodbye.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use protocol::gossip::State;
use runtime::Ports;

use super::Node;
use crate::front::Adopt;
use crate::gossip::{Gossip, Rounds, say_goodbye};

impl Node {
    /// Plays the rounds of gossip on the calling worker.
    pub(super) fn start_gossip(self: &Arc<Self>, ports: Ports, adopt: Adopt) {
        let weak = Arc::downgrade(self);
        let links = move || {
            let node = weak.upgrade();
            node.map_or_else(Vec::new, |node| node.peers.lock().iter().filter_map(Weak::upgrade).collect())
        };
        let measure = Box::new(self.measure());
        let rounds = Rounds::new(&self.gossip, ports.clone(), self.as_peer(), adopt, measure, links);
        self.peers.lock().push(Arc::downgrade(rounds.peers()));
        ports.tasks.spawn(Box::pin(rounds.run()));
    }

    /// Whoever is alive again is called again at once, however often that failed before.
    pub(super) fn try_again_when_alive(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.gossip.listen(move |change| {
            if change.to == State::Alive
                && let Some(node) = weak.upgrade()
            {
                let all: Vec<_> = node.peers.lock().iter().filter_map(Weak::upgrade).collect();
                all.iter().for_each(|peers| peers.forgive(change.node));
            }
        });
    }

    /// Tells the other nodes that this one stops, so that nobody is alarmed. Call it before serving ends, on an
    /// executor; it takes a second and a half at most.
    pub async fn leave(&self) {
        if !self.stopping.swap(true, Ordering::Relaxed) {
            say_goodbye(&self.gossip, &self.ports, self.as_peer()).await;
        }
    }

    /// What this node believes about the others.
    pub fn gossip(&self) -> &Arc<Gossip> {
        &self.gossip
    }
}
