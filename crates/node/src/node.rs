//! A storage node: starting, following the cluster document, stopping.
//!
//! ```text
//!             ┌──────────────── Node ────────────────┐
//!             │ identity · view · stores · hints     │   shared by all workers
//!             └──┬───────────────────────────────┬───┘
//!   worker 0: front, coordinator, links    worker 1: front, coordinator, links
//! ```
//!
//! Workers share records, but neither links nor tasks.

mod chores;
mod collecting;
mod config;
mod counters;
mod doors;
mod following;
mod handing_off;
mod joining;
mod liveness;
mod load;
mod offers;
mod ordering;
mod parting;
mod pushing;
mod readiness;
mod refusal;
mod report;
mod service_move;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use client::coordinator::Coordinator;
use client::peers::Peers;
use coordination::CoordinationService;
use model::{Cluster, Generation, NodeId};
use protocol::admission::Admission;
use protocol::report::Installation;
use runtime::{Disk, Ports};
use wire::messages::Peer;

use crate::antientropy::AntiEntropy;
use crate::artifacts::Artifacts;
use crate::audit::Audit;
use crate::collection::Collection;
use crate::doors::counters::DoorCounters;
use crate::doors::http;
use crate::doors::native::{self, Service};
use crate::doors::refusals::Refusals;
use crate::doors::resp;
use crate::engines::Engines;
use crate::events::{Event, Events};
use crate::front::Front;
use crate::gossip::Gossip;
use crate::handoff::Handoffs;
use crate::identity::Identity;
use crate::local_copy;
use crate::metrics::{Counter, Metrics};
use crate::pulse::Pulse;
use crate::rebalance::Rebalance;
use crate::replica::Replica;
use crate::stores::{LocalStore, Stamper};
use crate::transport::WorkerTransport;
use crate::view::{Adopt, View};
use crate::work::Coordinated;

use self::chores::Chores;
pub use self::config::{
    Advertised, ArtifactConfig, DoorConfig, HintConfig, MemberConfig, NodeConfig, RepairConfig, RequestConfig,
};
use self::counters::Telling;
use self::doors::Doors;
use self::following::Following;
pub(crate) use self::joining::{is_passing, register};
use self::liveness::Liveness;
use self::offers::Offers;
pub use self::refusal::StartError;

/// Longest pause before requests try a node again that they could not reach; gossip ends it when the node is back.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A running node.
pub struct Node {
    config: NodeConfig,
    ports: Ports,
    disk: Arc<dyn Disk>,
    engines: Arc<dyn Engines>,
    identity: tokio::sync::Mutex<Option<Identity>>,
    stamper: Arc<Stamper>,
    replica: Arc<Replica>,
    following: Following,
    doors: Doors,
    liveness: Liveness,
    telling: Telling,
    chores: Chores,
}

/// What one worker needs to serve.
pub struct Worker {
    /// Serves links of the native protocol.
    pub service: Service,
    /// Serves connections of Redis clients.
    pub door: resp::Door,
    /// Serves connections of HTTP clients.
    pub http: http::Door,
}

fn audit_of(config: &NodeConfig, ports: &Ports) -> Arc<Audit> {
    Audit::new(config.member.id, ports.clock.clone(), config.doors.audit.clone())
}

impl Node {
    /// Opens the data directory and the stores, joins the cluster, and follows its document from then on.
    pub async fn start(
        config: NodeConfig,
        ports: Ports,
        disk: Arc<dyn Disk>,
        engines: Arc<dyn Engines>,
        coordination: Arc<dyn CoordinationService>,
    ) -> Result<Arc<Node>, StartError> {
        let (joined, registered) = joining::join(&config, &ports, &disk, &*engines, &*coordination).await?;
        let come_back = joined.events();
        let joining::Joined { identity, stamper, replica, refill, .. } = joined;
        let (view, clock) = (replica.view().clone(), ports.clock.clone());
        let events = Events::new(config.member.id, ports.entropy.next_u64(), clock.clone());
        let generation = view.generation().0;
        events.record(Event::NodeStarted { incarnation: stamper.incarnation(), generation });
        come_back.into_iter().for_each(|event| events.record(event));
        let (metrics, incarnation) = (Metrics::new(), stamper.incarnation());
        let refusals = Refusals::new(config.member.id, &metrics, audit_of(&config, &ports));
        let gossip = Gossip::new(config.member.id, incarnation, clock, view, events.clone(), &metrics);
        let ((offered, offers), doors) = (Offers::new(), Doors::new(&config));
        let pulse = Pulse::new(ports.clock.clone(), ports.tasks.clone());
        let known = (&replica, refill, incarnation);
        let counted = (pulse.clone(), events.clone(), metrics.clone());
        let chores = Chores::start(&config, (&ports, &disk), known, &gossip, counted).await;
        let node = Arc::new(Node {
            following: Following::new(coordination, offered),
            doors,
            liveness: Liveness::new(gossip, pulse, chores.antientropy.peers()),
            telling: Telling::new(events, metrics, refusals, ports.clock.now()),
            chores,
            replica,
            identity: tokio::sync::Mutex::new(Some(identity)),
            config,
            disk,
            engines,
            stamper,
            ports,
        });
        node.begin_work();
        let following = following::follow(Arc::downgrade(&node), offers, registered);
        node.ports.tasks.spawn_background(Box::pin(following));
        Ok(node)
    }

    /// Begins what goes on beside requests.
    fn begin_work(self: &Arc<Self>) {
        self.watch_numbers();
        self.try_again_when_alive();
        self.start_handoff();
        self.start_collection();
        self.start_reaping();
    }

    /// What a worker with these ports needs to serve.
    pub fn worker(self: &Arc<Self>, ports: Ports) -> Worker {
        let cluster = Some(self.config.member.cluster.clone());
        let witness = self.liveness.gossip.clone();
        let peers = Peers::witnessed(ports.clone(), self.as_peer(), cluster, witness, BACKOFF_MAX);
        peers.learn(self.replica.view().get().cluster());
        self.liveness.peers.lock().push(Arc::downgrade(&peers));
        let weak = Arc::downgrade(self);
        let adopt: Adopt = Arc::new(move |cluster| {
            if let Some(node) = weak.upgrade() {
                node.offer(cluster);
            }
        });
        if !self.liveness.gossips.swap(true, Ordering::Relaxed) {
            self.start_gossip(ports.clone(), adopt.clone());
        }
        self.liveness.pulse.add_worker(&*ports.tasks);
        let requests = Counter::default();
        let coordinated = Arc::new(Coordinated::default());
        let replicas = WorkerTransport::new(self.replica.clone(), peers.clone(), adopt.clone());
        let (options, repairs) = (self.config.requests.coordinator, self.chores.repairs.clone());
        let coordinator = Coordinator::sharing(Arc::new(replicas), ports.clone(), options, repairs);
        let front = Front::new(self.replica.clone(), peers, coordinator, adopt, coordinated.clone());
        let (anywhere, front) = (Arc::new(front.asked_anywhere()), Arc::new(front));
        self.telling.counted.lock().push((requests.clone(), coordinated));
        let (weak, definer, orders) = (Arc::downgrade(self), Arc::downgrade(self), Arc::downgrade(self));
        let counters = |door| {
            DoorCounters::new(door, &self.telling.metrics, self.telling.refusals.clone(), ports.clock.clone())
        };
        let (native, redis, http) = (counters("native"), counters("redis"), counters("http"));
        let (gossip, events, metrics) =
            (self.liveness.gossip.clone(), self.telling.events.clone(), self.telling.metrics.clone());
        let service = Service {
            front,
            collection: self.collection().clone(),
            ports,
            orders: Arc::new(move |request| Box::pin(ordering::answer(definer.clone(), request))),
            artifacts: Arc::new(move |request| Box::pin(pushing::answer(orders.clone(), request))),
            report: Arc::new(move |parts| Some(weak.upgrade()?.report(parts))),
            admission: self.doors.admission.clone(),
            control: self.doors.control.clone(),
            telling: native::Telling { gossip, events, metrics },
            requests,
            counters: native,
            antientropy: self.chores.antientropy.clone(),
        };
        let told = (self.telling.metrics.clone(), self.ready());
        let desk = http::Desk::of(&service);
        let http = http::Door::new(anywhere.clone(), self.doors.http.clone(), http, told, desk);
        Worker { service, door: resp::Door::new(anywhere, self.doors.resp.clone(), redis), http }
    }

    fn as_peer(&self) -> Peer {
        Peer::Node { id: self.config.member.id, incarnation: self.stamper.incarnation() }
    }

    /// Comparing and scrubbing.
    pub fn antientropy(&self) -> &Arc<AntiEntropy> {
        &self.chores.antientropy
    }

    /// Bringing partitions in, and giving them back.
    pub fn rebalance(&self) -> &Arc<Rebalance> {
        &self.chores.rebalance
    }

    /// How it brings hints to their targets.
    pub fn handoffs(&self) -> &Arc<Handoffs> {
        self.chores.handoffs.get().expect("a started node delivers hints")
    }

    /// Its part in collection rounds.
    pub fn collection(&self) -> &Arc<Collection> {
        self.chores.collection.get().expect("a started node collects")
    }

    /// The artifacts that it keeps.
    pub fn artifacts(&self) -> &Arc<Artifacts> {
        &self.chores.artifacts
    }

    /// The node's own records, for tools inside the process.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// What happened to the node; whoever does something worth knowing records it here.
    pub fn events(&self) -> &Arc<Events> {
        &self.telling.events
    }

    /// The node's numbers; whoever counts something registers it here.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.telling.metrics
    }

    /// What the node has taken in and not yet answered.
    pub fn admission(&self) -> &Arc<Admission> {
        &self.doors.admission
    }

    /// Where it runs. Its documents may have moved since it started.
    pub fn installation(&self) -> Installation {
        let mut installation = self.config.member.installation.clone();
        if let Some(address) = &*self.following.address.lock() {
            let directory = address.strip_prefix("dir:").unwrap_or(address);
            directory.clone_into(&mut installation.coordination_directory);
        }
        installation
    }

    /// Who the node is.
    pub fn id(&self) -> NodeId {
        self.config.member.id
    }

    /// The incarnation under which it stamps.
    pub fn incarnation(&self) -> u64 {
        self.stamper.incarnation()
    }

    /// Takes in a document that a peer handed over: where its nodes are reached at once, all else when the document is
    /// durable here and its stores are open.
    pub fn offer(&self, cluster: Cluster) {
        if self.is_newer(&cluster) {
            self.acquaint(&cluster);
            self.following.offers.offer(cluster);
        }
    }

    fn is_newer(&self, cluster: &Cluster) -> bool {
        let known = self.replica.view().get();
        cluster.is_also(known.cluster()) && cluster.generation > known.cluster().generation
    }

    /// Opens what a newer document needs, makes it durable, and follows it from then on. False when it cannot be made
    /// durable now: this node stays with its copy.
    async fn learn(&self, cluster: Cluster) -> bool {
        if !self.is_newer(&cluster) {
            return true;
        }
        let current = self.replica.view().get();
        let mut stores = Vec::new();
        for (definition, known) in cluster.stores.iter().zip(joining::reuse(&current, &cluster)) {
            match known {
                Some(store) => stores.push(store),
                None => match joining::open_store(
                    &*self.engines,
                    definition,
                    &self.stamper,
                    (BTreeMap::new(), self.config.repair.expiry.margin),
                )
                .await
                {
                    Ok(store) => {
                        self.hold(definition.name.as_str()).await;
                        stores.push(store);
                    }
                    Err(error) => tracing::error!(store = %definition.name, %error, "store not opened"),
                },
            }
        }
        if let Err(error) = self.chores.rebalance.announce(current.cluster(), &cluster, &stores).await {
            tracing::error!(
                generation = cluster.generation.0,
                %error,
                "cluster document not adopted: what it brings to this node cannot be remembered"
            );
            return false;
        }
        if let Err(error) = local_copy::write(self.disk.clone(), &cluster).await {
            tracing::error!(
                generation = cluster.generation.0,
                %error,
                "cluster document not adopted: the local copy cannot be written"
            );
            return false;
        }
        self.take(cluster, stores);
        true
    }

    /// Names the engine of a store that was opened while the node runs.
    async fn hold(&self, store: &str) {
        let Some(identity) = &mut *self.identity.lock().await else { return };
        let names = vec![joining::store_engine(store)];
        let named = match joining::find_engines(&*self.engines, names) {
            Ok(found) => identity.hold(found).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = named {
            tracing::warn!(store, %error, "store not named in the identity: its loss would not be noticed");
        }
    }

    /// Follows a document whose copy is durable here. First the links, so that a node that follows it reaches its
    /// nodes. Then the view, when nothing is under way that was admitted under the older one. Then the others are told.
    fn take(&self, cluster: Cluster, stores: Vec<Arc<LocalStore>>) {
        let generation = cluster.generation;
        self.acquaint(&cluster);
        self.chores.artifacts.adopt(View::new(Arc::new(cluster), stores));
        self.chores.rebalance.follow();
        self.adopted(generation);
    }

    fn adopted(&self, durable: Generation) {
        self.replica.view().settle(durable);
        self.liveness.gossip.adopted();
    }

    /// Tells all links where the nodes of a document are reached.
    fn acquaint(&self, cluster: &Cluster) {
        self.liveness.peers.lock().retain(|peers| match peers.upgrade() {
            Some(peers) => {
                peers.learn(cluster);
                true
            }
            None => false,
        });
    }
}
