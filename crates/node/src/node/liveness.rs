//! A node's part in failure detection: it gossips, it calls again whoever is back, it says goodbye.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use client::peers::Peers;
use parking_lot::Mutex;
use protocol::gossip::NodeLiveness;
use runtime::Ports;

use super::Node;
use crate::gossip::{Gossip, Rounds, say_goodbye};
use crate::pulse::Pulse;
use crate::view::Adopt;

/// How long a node that stops waits for requests under way. What takes longer is cut off: whoever follows its events
/// may wait for the next one for ever.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(2);
/// How long it answers with refusals at least, so that whoever sends it requests learns to send them elsewhere before
/// the links close: what is on its way then is in doubt.
const REFUSE_TIME_MIN: Duration = Duration::from_millis(200);
/// How long Redis and HTTP clients that send nothing may keep their connections: one that is about to send its next command sends
/// it within this time, and is answered.
const QUIET_TIME: Duration = Duration::from_millis(100);
/// How long requests of such clients are carried out at most after that, so that their connections can end between two
/// commands. A client that never waits for its answers hears then that the node stops.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);
/// How often it looks, and how long answers may take from there to the network.
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);

/// Which nodes are there, the links to them, and whether this one stays.
pub(super) struct Liveness {
    pub(super) gossip: Arc<Gossip>,
    /// Whether a worker plays the rounds of gossip.
    pub(super) gossips: AtomicBool,
    /// How late this node's workers are.
    pub(super) pulse: Arc<Pulse>,
    /// The links of each worker, and of each kind of background work.
    pub(super) peers: Mutex<Vec<Weak<Peers>>>,
    pub(super) stopping: AtomicBool,
}

impl Liveness {
    /// With the first links.
    pub(super) fn new(gossip: Arc<Gossip>, pulse: Arc<Pulse>, peers: &Arc<Peers>) -> Liveness {
        let peers = Mutex::new(vec![Arc::downgrade(peers)]);
        let (gossips, stopping) = (AtomicBool::new(false), AtomicBool::new(false));
        Liveness { gossip, gossips, pulse, peers, stopping }
    }
}

impl Node {
    /// Plays the rounds of gossip on the calling worker.
    pub(super) fn start_gossip(self: &Arc<Self>, ports: Ports, adopt: Adopt) {
        let weak = Arc::downgrade(self);
        let links = move || {
            let node = weak.upgrade();
            node.map_or_else(Vec::new, |node| {
                node.liveness.peers.lock().iter().filter_map(Weak::upgrade).collect()
            })
        };
        let measure = Box::new(self.measure());
        let epochs = self.replica.epochs().clone();
        let epoch = Box::new(move || epochs.tag().0);
        let rounds =
            Rounds::new(&self.liveness.gossip, ports.clone(), self.as_peer(), adopt, measure, epoch, links);
        self.liveness.peers.lock().push(Arc::downgrade(rounds.peers()));
        ports.tasks.spawn(Box::pin(rounds.run()));
    }

    /// Whoever is alive again is called again at once, however often that failed before.
    pub(super) fn try_again_when_alive(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.liveness.gossip.listen(move |change| {
            if change.to == NodeLiveness::Alive
                && let Some(node) = weak.upgrade()
            {
                let all: Vec<_> = node.liveness.peers.lock().iter().filter_map(Weak::upgrade).collect();
                all.iter().for_each(|peers| peers.forgive(change.node));
            }
        });
    }

    /// Takes no new connections of Redis and HTTP clients, and tells the other nodes that this one stops, so that nobody is
    /// alarmed. Call it before serving ends, on an executor; it takes a second and a half at most.
    pub async fn leave(&self) {
        if !self.liveness.stopping.swap(true, Ordering::Relaxed) {
            self.doors.resp.close_after_answers();
            self.doors.http.close_after_answers();
            say_goodbye(&self.liveness.gossip, &self.ports, self.as_peer()).await;
        }
    }

    /// Lets Redis and HTTP clients go, each between two of its requests. Then takes no more requests from clients, which go
    /// elsewhere at once, and waits for a while until those that it has taken are answered: a write that is cut off
    /// would be in doubt. Comes after [`Self::leave`].
    pub async fn settle(&self) {
        self.wait_for_thin_clients(QUIET_TIME).await;
        self.doors.resp.close_between_commands();
        self.doors.http.close_between_requests();
        self.wait_for_thin_clients(DRAIN_TIME_MAX).await;
        self.doors.admission.stop();
        self.doors.control.stop();
        let began = self.ports.clock.now();
        let (learned, end) = (began.after(REFUSE_TIME_MIN), began.after(SETTLE_TIME_MAX));
        let requests = || self.doors.admission.load().requests + self.doors.control.requests();
        let under_way = |now| now < learned || (now < end && requests() > 0);
        while under_way(self.ports.clock.now()) {
            self.ports.clock.sleep(SETTLE_INTERVAL).await;
        }
        // Answers are on their way when nothing is under way any more, but not yet out of this process.
        self.ports.clock.sleep(SETTLE_INTERVAL).await;
    }

    /// Waits until no connection of a Redis or HTTP client is open any more, or the time is over.
    async fn wait_for_thin_clients(&self, time_max: Duration) {
        let end = self.ports.clock.now().after(time_max);
        let open = || self.doors.resp.has_clients() || self.doors.http.connections() > 0;
        while open() && self.ports.clock.now() < end {
            self.ports.clock.sleep(SETTLE_INTERVAL).await;
        }
    }

    /// What this node believes about the others.
    pub fn gossip(&self) -> &Arc<Gossip> {
        &self.liveness.gossip
    }
}
