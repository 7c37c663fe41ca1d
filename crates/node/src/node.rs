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

mod collecting;
mod following;
mod handing_off;
mod joining;
mod liveness;
mod load;
mod moving;
mod numbers;
mod offers;
mod ordering;
mod parting;
mod pushing;
mod readiness;
mod refusal;
mod report;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use client::coordinator::{Coordinator, CoordinatorOptions, Repairs};
use client::peers::Peers;
use coordination::CoordinationService;
use coordination::address::Places;
use coordination::documents::ActiveNode;
use model::{Cluster, Generation, NodeId};
use parking_lot::Mutex;
use protocol::admission::{Admission, AdmissionLimits};
use protocol::handoff::HandoffOptions;
use protocol::report::Installation;
use runtime::{Disk, Moment, Ports, Sources};
use wire::messages::Peer;

use crate::access::Certificate;
use crate::antientropy::{self, AntiEntropy, AntiEntropyOptions};
use crate::artifacts::Artifacts;
use crate::audit::{self, Audit};
use crate::collection::{Collection, CollectionOptions};
use crate::doors::http;
use crate::doors::native::{ControlRoom, Service, Telling};
use crate::doors::numbers::DoorNumbers;
use crate::doors::refusals::Refusals;
use crate::doors::resp;
use crate::engines::Engines;
use crate::events::{Event, Events};
use crate::expiry::ExpiryOptions;
use crate::front::{Adopt, Front};
use crate::gossip::Gossip;
use crate::handoff::{HINT_BYTES_MAX, Handoffs};
use crate::identity::Identity;
use crate::local_copy;
use crate::metrics::{Counter, Metrics};
use crate::pulse::Pulse;
use crate::rebalance;
use crate::replica::Replica;
use crate::stores::{LocalStore, Stamper};
use crate::transport::WorkerTransport;
use crate::view::View;
use crate::work::Coordinated;

pub(crate) use self::joining::{is_passing, register};
use self::offers::Offers;
pub use self::refusal::StartError;

/// Longest pause before requests try a node again that they could not reach; gossip ends it when the node is back.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The node.
    pub id: NodeId,
    /// The cluster that it belongs to.
    pub cluster: String,
    /// Where others reach it, where that may be elsewhere than the cluster document says: the node then changes its entry
    /// there. Default: it stays as it is.
    pub advertised: Option<Advertised>,
    /// Bytes of hints that it holds at most. Default: 1 GiB.
    pub hint_bytes_max: u64,
    /// How it brings hints to their targets.
    pub handoff: HandoffOptions,
    /// How it compares with its peers and looks after its own records.
    pub antientropy: AntiEntropyOptions,
    /// How it collects tombstones.
    pub collection: CollectionOptions,
    /// How it reaps values that have expired.
    pub expiry: ExpiryOptions,
    /// How much it takes in at once, over all its doors, before it answers *overloaded*.
    pub limits: AdmissionLimits,
    /// How it drives requests.
    pub coordinator: CoordinatorOptions,
    /// The Redis door.
    pub resp: resp::RespOptions,
    /// The HTTP door.
    pub http: http::HttpOptions,
    /// Whether it may start without the password for Redis clients that its directory remembers. Default: no.
    pub may_stop_requiring_password: bool,
    /// Where it runs; its status says so.
    pub installation: Installation,
    /// What it fetches artifacts from. Default: nothing.
    pub sources: Option<Arc<dyn Sources>>,
    /// Whether it reads the manifest of an artifact before it lists it. Default: yes.
    pub sources_checked: bool,
    /// Bytes of artifacts a second that it fetches at most, and gives other nodes at most. Default: 128 MiB.
    pub fetch_ceiling: u64,
    /// Bytes of artifacts that it holds at most, over all stores. Default: as many as its disk has room for.
    pub artifact_bytes_max: u64,
    /// How it goes along when the documents move to another service. Default: it does not.
    pub places: Option<Arc<dyn Places>>,
    /// The certificate that it shows. Default: it has none.
    pub certificate: Option<Arc<dyn Certificate>>,
    /// Where it writes who ordered what and who was refused. Default: nowhere.
    pub audit: Option<Arc<dyn audit::Outlet>>,
}

/// Where others reach a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// `host:port` of the native protocol.
    pub native: String,
    /// `host:port` of the Redis door, if it has one.
    pub resp: Option<String>,
    /// `host:port` of the HTTP door, if it has one.
    pub http: Option<String>,
    /// Whether others call it with TLS, and never without.
    pub tls: bool,
}

impl NodeConfig {
    /// The defaults.
    pub fn new(id: NodeId, cluster: &str) -> Self {
        NodeConfig {
            id,
            cluster: cluster.to_owned(),
            advertised: None,
            hint_bytes_max: HINT_BYTES_MAX,
            handoff: HandoffOptions::default(),
            antientropy: AntiEntropyOptions::default(),
            collection: CollectionOptions::default(),
            expiry: ExpiryOptions::default(),
            limits: AdmissionLimits::default(),
            coordinator: CoordinatorOptions::default(),
            resp: resp::RespOptions::default(),
            http: http::HttpOptions::default(),
            may_stop_requiring_password: false,
            installation: Installation::default(),
            sources: None,
            sources_checked: true,
            fetch_ceiling: protocol::push::FETCH_CEILING_DEFAULT,
            artifact_bytes_max: u64::MAX,
            places: None,
            certificate: None,
            audit: None,
        }
    }

    /// How the node registers.
    fn registration(&self, entry: &model::Node, incarnation: u64) -> ActiveNode {
        let follows_as = self.places.as_ref().map(|places| places.user());
        ActiveNode {
            follows_as,
            cluster: Some(self.cluster.clone()),
            ..ActiveNode::new(self.placed(entry), incarnation)
        }
    }

    /// The node's entry in the cluster document as it should be.
    fn placed(&self, entry: &model::Node) -> model::Node {
        match self.advertised.clone() {
            Some(Advertised { native, resp, http, tls }) => {
                model::Node { native, resp, http, tls, ..entry.clone() }
            }
            None => entry.clone(),
        }
    }
}

/// A running node.
pub struct Node {
    config: NodeConfig,
    ports: Ports,
    disk: Arc<dyn Disk>,
    engines: Arc<dyn Engines>,
    /// The session now; when it ends, [`following`] puts another in its place.
    coordination: Mutex<Arc<dyn CoordinationService>>,
    /// Where the documents have gone since the node started.
    /// When it ordered last that the cluster document says where it is.
    address_ordered: Mutex<Option<Moment>>,
    coordination_address: Mutex<Option<String>>,
    identity: tokio::sync::Mutex<Option<Identity>>,
    stamper: Arc<Stamper>,
    replica: Arc<Replica>,
    resp: Arc<resp::Shared>,
    http: Arc<http::Shared>,
    admission: Arc<Admission>,
    control: Arc<ControlRoom>,
    peers: Mutex<Vec<Weak<Peers>>>,
    /// Documents handed over by peers that need stores opened first.
    offered: Offers,
    events: Arc<Events>,
    metrics: Arc<Metrics>,
    /// Over all doors of all workers.
    refusals: Arc<Refusals>,
    gossip: Arc<Gossip>,
    /// How late its workers are.
    pulse: Arc<Pulse>,
    /// Whether a worker plays the rounds of gossip.
    gossips: AtomicBool,
    /// Each worker's requests, and what its clients had it drive.
    counted: Mutex<Vec<(Counter, Arc<Coordinated>)>>,
    /// Where below the data directory the records lie.
    antientropy: Arc<AntiEntropy>,
    artifacts: Arc<Artifacts>,
    started: Moment,
    stopping: AtomicBool,
    /// Read repairs of all workers.
    repairs: Arc<Repairs>,
    /// Set once, when the node starts.
    handoffs: OnceLock<Arc<Handoffs>>,
    /// Set once, when the node starts.
    collection: OnceLock<Arc<Collection>>,
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
    Audit::new(config.id, ports.clock.clone(), config.audit.clone())
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
        let events = Events::new(config.id, ports.entropy.next_u64(), clock.clone());
        let generation = view.generation().0;
        events.record(Event::NodeStarted { incarnation: stamper.incarnation(), generation });
        come_back.into_iter().for_each(|event| events.record(event));
        let (metrics, incarnation) = (Metrics::new(), stamper.incarnation());
        let refusals = Refusals::new(config.id, &metrics, audit_of(&config, &ports));
        let gossip = Gossip::new(config.id, incarnation, clock, view.clone(), events.clone(), &metrics);
        let ((offered, offers), admission) = (Offers::new(), Admission::new(config.limits));
        let (me, cluster) = (Peer::Node { id: config.id, incarnation }, Some(config.cluster.clone()));
        let peers = Peers::witnessed(ports.clone(), me, cluster, gossip.clone(), BACKOFF_MAX);
        peers.learn(replica.view().get().cluster());
        let pulse = Pulse::new(ports.clock.clone(), ports.tasks.clone());
        let antientropy = AntiEntropy::start(antientropy::Parts {
            options: config.antientropy,
            ports: ports.clone(),
            disk: disk.clone(),
            replica: replica.clone(),
            peers,
            pulse: pulse.clone(),
            standings: gossip.clone(),
            events: events.clone(),
            metrics: metrics.clone(),
            refill,
            incarnation,
        });
        let counted = (pulse.clone(), events.clone(), metrics.clone());
        let artifacts = pushing::start(&config, (&ports, &disk), &view, &antientropy, counted).await;
        let node = Arc::new(Node {
            resp: resp::Shared::new(config.resp.clone(), admission.clone()),
            http: http::Shared::new(config.http.clone(), admission.clone()),
            admission,
            control: ControlRoom::new(),
            refusals,
            replica,
            identity: tokio::sync::Mutex::new(Some(identity)),
            peers: Mutex::new(vec![Arc::downgrade(antientropy.peers())]),
            antientropy,
            artifacts,
            started: ports.clock.now(),
            stopping: AtomicBool::new(false),
            repairs: Arc::default(),
            handoffs: OnceLock::new(),
            collection: OnceLock::new(),
            config,
            disk,
            engines,
            coordination: Mutex::new(coordination),
            address_ordered: Mutex::default(),
            coordination_address: Mutex::default(),
            stamper,
            offered,
            events,
            metrics,
            gossip,
            pulse,
            gossips: AtomicBool::new(false),
            counted: Mutex::default(),
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
        let cluster = Some(self.config.cluster.clone());
        let witness = self.gossip.clone();
        let peers = Peers::witnessed(ports.clone(), self.as_peer(), cluster, witness, BACKOFF_MAX);
        peers.learn(self.replica.view().get().cluster());
        self.peers.lock().push(Arc::downgrade(&peers));
        let weak = Arc::downgrade(self);
        let adopt: Adopt = Arc::new(move |cluster| {
            if let Some(node) = weak.upgrade() {
                node.offer(cluster);
            }
        });
        if !self.gossips.swap(true, Ordering::Relaxed) {
            self.start_gossip(ports.clone(), adopt.clone());
        }
        self.pulse.add_worker(&*ports.tasks);
        let requests = Counter::default();
        let coordinated = Arc::new(Coordinated::default());
        let replicas = WorkerTransport::new(self.replica.clone(), peers.clone(), adopt.clone());
        let (options, repairs) = (self.config.coordinator, self.repairs.clone());
        let coordinator = Coordinator::sharing(Arc::new(replicas), ports.clone(), options, repairs);
        let front = Front::new(self.replica.clone(), peers, coordinator, adopt, coordinated.clone());
        let (anywhere, front) = (Arc::new(front.asked_anywhere()), Arc::new(front));
        self.counted.lock().push((requests.clone(), coordinated));
        let (weak, definer, orders) = (Arc::downgrade(self), Arc::downgrade(self), Arc::downgrade(self));
        let numbers =
            |door| DoorNumbers::new(door, &self.metrics, self.refusals.clone(), ports.clock.clone());
        let (native, redis, http) = (numbers("native"), numbers("redis"), numbers("http"));
        let (gossip, events, metrics) = (self.gossip.clone(), self.events.clone(), self.metrics.clone());
        let service = Service {
            front,
            collection: self.collection().clone(),
            ports,
            orders: Arc::new(move |request| Box::pin(ordering::answer(definer.clone(), request))),
            artifacts: Arc::new(move |request| Box::pin(pushing::answer(orders.clone(), request))),
            report: Arc::new(move |parts| Some(weak.upgrade()?.report(parts))),
            admission: self.admission.clone(),
            control: self.control.clone(),
            telling: Telling { gossip, events, metrics },
            requests,
            numbers: native,
            antientropy: self.antientropy.clone(),
        };
        let told = (self.metrics.clone(), self.ready());
        let desk = http::Desk::of(&service);
        let http = http::Door::new(anywhere.clone(), self.http.clone(), http, told, desk);
        Worker { service, door: resp::Door::new(anywhere, self.resp.clone(), redis), http }
    }

    fn as_peer(&self) -> Peer {
        Peer::Node { id: self.config.id, incarnation: self.stamper.incarnation() }
    }

    /// Comparing, scrubbing and refilling.
    pub fn antientropy(&self) -> &Arc<AntiEntropy> {
        &self.antientropy
    }

    /// The node's own records, for tools inside the process.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// How it brings hints to their targets.
    pub fn handoffs(&self) -> &Arc<Handoffs> {
        self.handoffs.get().expect("a started node delivers hints")
    }

    /// Its part in collection rounds.
    pub fn collection(&self) -> &Arc<Collection> {
        self.collection.get().expect("a started node collects")
    }

    /// The artifacts that it keeps.
    pub fn artifacts(&self) -> &Arc<Artifacts> {
        &self.artifacts
    }

    /// What happened to the node; whoever does something worth knowing records it here.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The node's numbers; whoever counts something registers it here.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// What the node has taken in and not yet answered.
    pub fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// Links of the native protocol now.
    fn links(&self) -> usize {
        let others = self.resp.connections() + self.http.connections();
        self.admission.connections().saturating_sub(others)
    }

    /// Where it runs. Its documents may have moved since it started.
    pub fn installation(&self) -> Installation {
        let mut installation = self.config.installation.clone();
        if let Some(address) = &*self.coordination_address.lock() {
            let directory = address.strip_prefix("dir:").unwrap_or(address);
            directory.clone_into(&mut installation.coordination_directory);
        }
        installation
    }

    /// Who the node is.
    pub fn id(&self) -> NodeId {
        self.config.id
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
            self.offered.offer(cluster);
        }
    }

    fn is_newer(&self, cluster: &Cluster) -> bool {
        let known = self.replica.view().get();
        cluster.is_also(known.cluster()) && cluster.generation > known.cluster().generation
    }

    /// Opens what a newer document needs, makes it durable, and goes by it from then on. False when it cannot be made
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
                    (BTreeMap::new(), self.config.expiry.margin),
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
        if let Err(error) = self.announce(&current, &cluster, &stores).await {
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

    /// Remembers what a document brings to this node, before the node goes by it: what was not brought in yet must not
    /// pass for all there is.
    async fn announce(
        &self,
        current: &View,
        cluster: &Cluster,
        stores: &[Arc<LocalStore>],
    ) -> Result<(), runtime::DiskError> {
        let begun = rebalance::begun(self.config.id, Some(current.cluster()), cluster);
        if begun.is_empty() {
            return Ok(());
        }
        for (name, partition) in &begun {
            let store = stores.iter().find(|store| store.definition().name.as_str() == name);
            store.into_iter().for_each(|store| store.trees().set_incomplete(*partition, true));
        }
        antientropy::refill::announce(&self.antientropy, begun).await
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

    /// Goes by a document whose copy is durable here. First the links, so that whoever goes by it reaches its nodes; then
    /// the view, when nothing is under way that was admitted under the older one; then the others are told.
    fn take(&self, cluster: Cluster, stores: Vec<Arc<LocalStore>>) {
        let generation = cluster.generation;
        self.acquaint(&cluster);
        self.artifacts.adopt(View::new(Arc::new(cluster), stores));
        self.antientropy.follow();
        self.adopted(generation);
    }

    fn adopted(&self, durable: Generation) {
        self.replica.view().settle(durable);
        self.gossip.adopted();
    }

    /// Tells all links where the nodes of a document are reached.
    fn acquaint(&self, cluster: &Cluster) {
        self.peers.lock().retain(|peers| match peers.upgrade() {
            Some(peers) => {
                peers.learn(cluster);
                true
            }
            None => false,
        });
    }
}
