//! What this node believes about the others, and the rounds in which it finds out.
//!
//! ```text
//!   worker 0 ── round ──▶ protocol::gossip ──▶ exchanges ──▶ peers
//!   every worker's calls ── what they met ──▶      │
//!                                                  ├──▶ states: routing, handoff, collection ask here
//!                                                  └──▶ events, numbers
//! ```
//!
//! The machine decides; this carries out. Its rounds run on the executor of the node's first worker, over links of
//! their own: a link that is full of data does not look like a dead node, and every pair of nodes has a link whose end
//! is noticed.
//!
//! **Architecture Invariant:** asking for a state takes no lock while all nodes are alive.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use client::peers::{Peers, Witness};
use futures_util::future::{join_all, select};
use model::{Cluster, Moment, NodeId};
use parking_lot::RwLock;
use protocol::gossip::{
    EXCHANGE_PATIENCE, Experience, GossipAction, GossipLoad, NodeBelief, NodeLiveness, Row, Why,
};
use protocol::gossip::{Gossip as Machine, GossipEvent};
use protocol::report::{NodeLoad, NodeSeen};
use runtime::locks::Mutex;
use runtime::{Clock, Ports};
use wire::messages::{self, Gossiped, Peer, Request, Response};

use crate::events::{Event, Events};
use crate::metrics::{Counter, Metrics};
use crate::view::{Adopt, CurrentView};

/// Longest pause before gossip tries a node again that it cannot reach: short, because a second of refused
/// connections is what tells a dead process from a busy one.
const BACKOFF_MAX: Duration = Duration::from_millis(200);
/// How long saying goodbye may take altogether.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(1_500);
/// Rounds between two measurements of the own load.
const ROUNDS_PER_LOAD: u64 = 5;

/// A belief that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeliefChange {
    /// About whom.
    pub node: NodeId,
    /// What was believed.
    pub from: NodeLiveness,
    /// What is believed now.
    pub to: NodeLiveness,
}

/// Is told of changed beliefs, from whatever thread they are found on: must not wait.
pub type Listener = Box<dyn Fn(BeliefChange) + Send + Sync>;

/// Measures this node's load.
pub(crate) type Measure = Box<dyn Fn() -> GossipLoad + Send + Sync>;

/// Tells this node's collection epoch. Others are shown it and never adopt it: an epoch is adopted with a content, which
/// names the cluster document that it goes with.
pub(crate) type OwnEpoch = Box<dyn Fn() -> u64 + Send + Sync>;

/// Who is believed to be there.
pub trait Standings: Send + Sync {
    /// Whether the node can be sent hints.
    fn is_alive(&self, node: NodeId) -> bool;
}

impl Standings for Gossip {
    fn is_alive(&self, node: NodeId) -> bool {
        !self.is_avoided(node)
    }
}

/// What this node believes about all nodes. One for each node, shared by its workers.
pub struct Gossip {
    node: NodeId,
    clock: Arc<dyn Clock>,
    view: Arc<CurrentView>,
    events: Arc<Events>,
    machine: Mutex<Machine>,
    /// Whoever is not alive.
    troubled: RwLock<BTreeMap<NodeId, NodeLiveness>>,
    /// As many; so that asking costs a load while all is well.
    troubled_count: AtomicUsize,
    listeners: RwLock<Vec<Listener>>,
    /// The newest generation whose nodes are known.
    named: AtomicU64,
    /// The links of the rounds, once a worker plays them.
    links: OnceLock<Weak<Peers>>,
    counts: Counts,
}

struct Counts {
    exchanges: Counter,
    failures: Counter,
    suspicions: Counter,
    downs: Counter,
}

impl Counts {
    fn register(metrics: &Metrics) -> Counts {
        let counter = |name| metrics.counter(name, &[]);
        Counts {
            exchanges: counter("tontine_gossip_exchanges_total"),
            failures: counter("tontine_gossip_exchanges_failed_total"),
            suspicions: counter("tontine_gossip_suspicions_total"),
            downs: counter("tontine_gossip_downs_total"),
        }
    }
}

impl Gossip {
    pub(crate) fn new(
        node: NodeId,
        incarnation: u64,
        clock: Arc<dyn Clock>,
        view: Arc<CurrentView>,
        events: Arc<Events>,
        metrics: &Metrics,
    ) -> Arc<Gossip> {
        let machine = Mutex::new(Machine::start(node, incarnation, clock.now()));
        let gossip = Arc::new(Gossip {
            node,
            clock,
            view,
            events,
            machine,
            troubled: RwLock::default(),
            troubled_count: AtomicUsize::new(0),
            listeners: RwLock::default(),
            named: AtomicU64::new(0),
            links: OnceLock::new(),
            counts: Counts::register(metrics),
        });
        let cluster = gossip.view.get().cluster().clone();
        gossip.learn(&cluster);
        gossip.adopted();
        for state in [NodeLiveness::Alive, NodeLiveness::Suspected, NodeLiveness::Down, NodeLiveness::Left] {
            let weak = Arc::downgrade(&gossip);
            let count = move || weak.upgrade().map_or(0, |gossip| gossip.count(state)) as f64;
            metrics.watch("tontine_gossip_nodes", &[("state", state.name())], count);
        }
        gossip
    }

    /// What is believed about a node. This node is alive to itself; one that the cluster document does not name has
    /// left.
    pub fn state(&self, node: NodeId) -> NodeLiveness {
        if self.troubled_count.load(Ordering::Acquire) == 0 && self.view.get().cluster().node(node).is_some()
        {
            return NodeLiveness::Alive;
        }
        self.machine.lock().state(node).unwrap_or(NodeLiveness::Left)
    }

    /// Whether requests are better sent elsewhere: everybody who is not alive.
    pub fn is_avoided(&self, node: NodeId) -> bool {
        self.troubled_count.load(Ordering::Acquire) > 0 && self.troubled.read().contains_key(&node)
    }

    /// Tells the others the generation that this node has adopted.
    pub(crate) fn adopted(&self) {
        self.step(GossipEvent::GenerationAdopted { generation: self.view.adopted() });
    }

    /// All other nodes and what is believed about them, by id.
    pub fn seen(&self) -> Vec<NodeBelief> {
        let now = self.clock.now();
        self.machine.lock().seen(now).collect()
    }

    /// Calls `listener` with every change of belief from now on.
    pub fn listen(&self, listener: impl Fn(BeliefChange) + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// Answers a peer's table.
    pub(crate) fn receive(&self, gossip: messages::Gossip) -> Gossiped {
        let older = gossip.generation < self.view.generation();
        let cluster = older.then(|| self.view.get().document().clone());
        let actions = self.step(GossipEvent::TableReceived { from: gossip.from, rows: gossip.rows });
        let answer = actions.into_iter().find_map(|action| match action {
            GossipAction::Answer { rows } => Some(rows),
            _ => None,
        });
        Gossiped { rows: answer.unwrap_or_default(), cluster }
    }

    /// What this node believes about all nodes, itself included, by id.
    pub(crate) fn report(&self) -> Vec<NodeSeen> {
        let (seen, own) = {
            let machine = self.machine.lock();
            (machine.seen(self.clock.now()).collect::<Vec<_>>(), *machine.own())
        };
        let cluster = self.view.get().cluster().clone();
        let mut nodes: Vec<_> = seen.iter().map(|seen| node_seen(&cluster, seen)).collect();
        let itself = NodeBelief {
            node: self.node,
            state: NodeLiveness::Alive,
            why: Why::Beats,
            phi: 0.0,
            silence: Duration::ZERO,
            heard: true,
            row: Some(own),
        };
        nodes.push(NodeSeen { why: "this node".to_owned(), ..node_seen(&cluster, &itself) });
        nodes.sort_by_key(|node| node.node);
        nodes
    }

    fn count(&self, state: NodeLiveness) -> usize {
        self.seen().iter().filter(|seen| seen.state == state).count()
    }

    fn deadline(&self) -> Moment {
        self.machine.lock().deadline()
    }

    /// Takes an event to the machine, tells everybody what follows, and returns what must be sent.
    fn step(&self, event: GossipEvent) -> Vec<GossipAction> {
        let mut actions = Vec::new();
        let mut changes = Vec::new();
        {
            let mut machine = self.machine.lock();
            machine.step(event, self.clock.now(), &mut actions);
            // Under the machine's lock, so that two threads cannot leave the older belief behind.
            for action in &actions {
                if let GossipAction::Announce { node, from, to, why, news } = *action {
                    self.believe(node, to);
                    changes.push((BeliefChange { node, from, to }, news.then_some(why)));
                }
            }
        }
        for (change, why) in changes {
            self.tell(change, why);
        }
        actions
    }

    fn believe(&self, node: NodeId, state: NodeLiveness) {
        let mut troubled = self.troubled.write();
        match state {
            NodeLiveness::Alive => troubled.remove(&node),
            state => troubled.insert(node, state),
        };
        self.troubled_count.store(troubled.len(), Ordering::Release);
    }

    /// Tells whoever listens, and people if it is news to them.
    fn tell(&self, change: BeliefChange, why: Option<Why>) {
        let peer = change.node;
        match change.to {
            NodeLiveness::Suspected => self.counts.suspicions.increment(),
            NodeLiveness::Down => self.counts.downs.increment(),
            NodeLiveness::Alive | NodeLiveness::Left => {}
        }
        if let Some(why) = why.map(|why| why.to_string()) {
            self.events.record(match change.to {
                NodeLiveness::Alive => Event::PeerAlive { peer, why },
                NodeLiveness::Suspected => Event::PeerSuspected { peer, why },
                NodeLiveness::Down => Event::PeerDown { peer, why },
                NodeLiveness::Left => Event::PeerLeft { peer },
            });
        }
        self.listeners.read().iter().for_each(|listener| listener(change));
    }
}

impl Witness for Gossip {
    fn experienced(&self, node: NodeId, experience: Experience) {
        self.step(GossipEvent::Experienced { node, experience });
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        self.is_avoided(node)
    }

    fn is_gone(&self, node: NodeId) -> bool {
        self.is_avoided(node)
            && matches!(self.troubled.read().get(&node), Some(NodeLiveness::Down | NodeLiveness::Left))
    }

    fn learn(&self, cluster: &Cluster) {
        // Every set of links of this node learns it.
        if self.named.fetch_max(cluster.generation.0, Ordering::AcqRel) > cluster.generation.0 {
            return;
        }
        let nodes = cluster.nodes.iter().map(|node| node.id).collect();
        self.step(GossipEvent::MembersNamed { nodes });
        let mut troubled = self.troubled.write();
        troubled.retain(|node, _| cluster.node(*node).is_some());
        self.troubled_count.store(troubled.len(), Ordering::Release);
    }
}

/// What gossip's own exchanges meet: that one was lost is the machine's to weigh, not evidence of a request.
struct Exchanges(Weak<Gossip>);

impl Witness for Exchanges {
    fn experienced(&self, node: NodeId, experience: Experience) {
        if let Some(gossip) = self.0.upgrade()
            && !matches!(experience, Experience::Unanswered { .. })
        {
            gossip.experienced(node, experience);
        }
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        self.0.upgrade().is_some_and(|gossip| gossip.is_avoided(node))
    }
}

fn node_seen(cluster: &Cluster, seen: &NodeBelief) -> NodeSeen {
    let (known, row) = (cluster.node(seen.node), seen.row.as_ref());
    NodeSeen {
        node: seen.node,
        zone: known.map(|node| node.zone.clone()),
        native: known.map(|node| node.native.clone()),
        state: seen.state,
        why: seen.why.to_string(),
        phi: (seen.phi * 100.0).round() / 100.0,
        heard_ms_ago: seen.silence.as_millis() as u64,
        heard: seen.heard,
        said: NodeLoad {
            incarnation: row.map(|row| row.incarnation),
            heartbeat: row.map(|row| row.heartbeat),
            generation: row.map(|row| row.generation),
            epoch: row.map(|row| row.epoch),
            operations_per_second: row.map(|row| row.load.operations_per_second),
            data_bytes: row.map(|row| row.load.data_bytes),
            links: row.map(|row| row.load.links),
        },
    }
}

/// What the rounds need beside the beliefs.
pub(crate) struct Rounds {
    gossip: Weak<Gossip>,
    ports: Ports,
    peers: Arc<Peers>,
    adopt: Adopt,
    measure: Measure,
    epoch: OwnEpoch,
    /// All links of the node, to hear who answers requests.
    links: Box<dyn Fn() -> Vec<Arc<Peers>> + Send + Sync>,
}

impl Rounds {
    /// Rounds of `gossip` over links of their own; `links` are those of the node's workers.
    pub(crate) fn new(
        gossip: &Arc<Gossip>,
        ports: Ports,
        me: Peer,
        adopt: Adopt,
        measure: Measure,
        epoch: OwnEpoch,
        links: impl Fn() -> Vec<Arc<Peers>> + Send + Sync + 'static,
    ) -> Rounds {
        let peers = own_links(gossip, ports.clone(), me);
        // A second call would be a second worker with rounds; the first one's links do.
        let _ = gossip.links.set(Arc::downgrade(&peers));
        Rounds { gossip: Arc::downgrade(gossip), ports, peers, adopt, measure, epoch, links: Box::new(links) }
    }

    /// The links that the rounds use.
    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Plays rounds until the node is gone.
    pub(crate) async fn run(self) {
        let mut rounds = 0_u64;
        loop {
            let Some(due) = self.gossip.upgrade().map(|gossip| gossip.deadline()) else { return };
            self.ports.clock.sleep_until(due).await;
            let Some(gossip) = self.gossip.upgrade() else { return };
            if rounds.is_multiple_of(ROUNDS_PER_LOAD) {
                gossip.step(GossipEvent::LoadMeasured { load: (self.measure)() });
            }
            rounds += 1;
            for node in (self.links)().iter().flat_map(|peers| peers.heard()) {
                gossip.step(GossipEvent::Experienced { node, experience: Experience::Heard });
            }
            gossip.step(GossipEvent::EpochReached { epoch: (self.epoch)() });
            for action in gossip.step(GossipEvent::Elapsed { roll: self.ports.entropy.next_u64() }) {
                if let GossipAction::Exchange { with, rows } = action {
                    let (gossip, adopt) = (gossip.clone(), self.adopt.clone());
                    let exchange = exchange(gossip, self.ports.clone(), self.peers.clone(), with, rows);
                    self.ports.tasks.spawn(Box::pin(async move {
                        if let Some(document) = exchange.await
                            && let Ok(cluster) = serde_json::from_slice::<Cluster>(&document)
                        {
                            adopt(cluster);
                        }
                    }));
                }
            }
        }
    }
}

fn own_links(gossip: &Arc<Gossip>, ports: Ports, me: Peer) -> Arc<Peers> {
    let cluster = gossip.view.get().cluster().clone();
    let witness = Arc::new(Exchanges(Arc::downgrade(gossip)));
    let peers = Peers::witnessed(ports, me, Some(cluster.name.clone()), witness, BACKOFF_MAX);
    peers.learn(&cluster);
    peers
}

/// One exchange; returns the newer cluster document that the peer handed over, if it did.
async fn exchange(
    gossip: Arc<Gossip>,
    ports: Ports,
    peers: Arc<Peers>,
    with: NodeId,
    rows: Vec<Row>,
) -> Option<Bytes> {
    gossip.counts.exchanges.increment();
    let generation = gossip.view.generation();
    let request = Request::Gossip(messages::Gossip { from: gossip.node, generation, rows });
    let answer = peers.call(with, request).within(&ports.clock, EXCHANGE_PATIENCE).await;
    let Ok(Response::Gossiped(Gossiped { rows, cluster })) = answer else {
        gossip.counts.failures.increment();
        gossip.step(GossipEvent::ExchangeFailed { with });
        return None;
    };
    gossip.step(GossipEvent::AnswerReceived { from: with, rows });
    cluster
}

/// Tells every peer that can hear it that this node stops, within [`GOODBYE_PATIENCE`]. Runs where it is called.
pub(crate) async fn say_goodbye(gossip: &Arc<Gossip>, ports: &Ports, me: Peer) {
    let peers = gossip.links.get().and_then(Weak::upgrade);
    let peers = peers.unwrap_or_else(|| own_links(gossip, ports.clone(), me));
    let goodbyes = gossip.step(GossipEvent::StopRequested).into_iter().filter_map(|action| match action {
        GossipAction::Exchange { with, rows } => {
            Some(exchange(gossip.clone(), ports.clone(), peers.clone(), with, rows))
        }
        _ => None,
    });
    let all = Box::pin(join_all(goodbyes));
    select(all, ports.clock.sleep(GOODBYE_PATIENCE)).await;
    gossip.events.record(Event::NodeLeft {});
}
