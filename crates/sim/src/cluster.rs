//! Real nodes on simulated machines.
//!
//! ```text
//!   machine = host + disk + wall clock          outlives its processes
//!     └─ process = node::Node over the ports    one life; killed, cut off, stopped, started again
//! ```
//!
//! Must never: reach around the ports, but to read what a node holds when all is over.

mod counted;
mod damage;
mod ending;
mod equal;
mod founding;
mod sessions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use control::bootstrap::{self, Blueprint};
use coordination::documents;
use coordination::memory::MemoryService;
use coordination::{CoordinationService, Expected};
use model::balance::{Join, Mode, Policy, Settings};
use model::{
    Cluster, ClusterId, Consistency, Generation, Moment, Node as Member, NodeId, Reads, Resolver, Store,
    StoreName, Zone,
};
use node::doors::http;
use node::doors::resp::Door;
use node::engines::{Engines, LogEngines, MemoryEngines};
use node::{Node, NodeConfig, Worker};
use parking_lot::Mutex;
use runtime::{Disk, Ports};

use crate::book::Book;
use crate::by_hash::ByHash;
use crate::check::numbers::Numbers;
use crate::check::{Violation, siblings};
use crate::circumstances::{Circumstances, Documents, Trouble};
use crate::copies::Copies;
use crate::dice::{Dice, ProcessEntropy};
use crate::disk::TracedDisk;
use crate::engine::PlantedEngines;
use crate::executor::{Executor, ProcessClock, ProcessId, ProcessTasks, WallClock};
use crate::history::Remains;
use crate::host::Host;
use crate::machine::{Machine, log_options};
use crate::network::{LinkStream, STREAM_PORT, WEB_PORT, Wires};
use crate::piloting::Piloting;
use crate::plant::Plant;
use crate::sources::SimulatedSources;
use crate::swarm::{EngineKind, Piloted, SafetyNet, Setup};
use crate::witness::Witness;

/// The store that keeps the last write.
pub const LAST_WRITE: &str = "default";
/// The stores of every simulated cluster.
pub const STORES: [&str; 2] = [LAST_WRITE, siblings::STORE];
/// The store that only Redis clients use, where there are any.
pub const PLAIN: &str = "plain";
const ALL_STORES: [&str; 3] = [LAST_WRITE, siblings::STORE, PLAIN];
const CLUSTER: &str = "sim";
/// Within this time every pair of nodes compares: a short run shall see it often.
const REPAIR_PERIOD: Duration = Duration::from_secs(2);
/// Within this time every record is read.
const SCRUB_PERIOD: Duration = Duration::from_secs(20);
/// Longer than any run.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);
/// Pause between looks at what has expired.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a node that did not start is started again.
const START_AGAIN: Duration = Duration::from_millis(250);
/// The same of a node that was a member and has left.
const LEFT_PAUSE: Duration = Duration::from_secs(5);

/// Everything that a run consists of.
pub struct World {
    /// Time and tasks.
    pub executor: Arc<Executor>,
    /// The network.
    pub wires: Wires,
    /// The coordination service.
    pub service: MemoryService,
    /// Where artifacts come from.
    pub sources: Arc<SimulatedSources>,
    /// What is known of artifacts that a run pushes.
    pub artifacts: Arc<Book>,
    /// What was drawn.
    pub setup: Setup,
    /// What nodes were seen to store.
    pub witness: Arc<Witness>,
    /// What would be left if harm came now.
    pub copies: Arc<Copies>,
    machines: Vec<Machine>,
    /// What the documents say that only grows.
    numbers: Arc<Mutex<Numbers>>,
    /// When collection epochs were written.
    epochs: Arc<Mutex<Vec<Moment>>>,
    /// The cluster documents, each with the moment at which it was published.
    documents: Arc<Mutex<Documents>>,
    /// Which incarnations the coordination service was told of.
    members: Arc<Mutex<BTreeMap<NodeId, u64>>>,
    /// What they say of the autopilot, where that is on.
    piloting: Option<Arc<Mutex<Piloting>>>,
    /// From which nodes faults took copies, and when.
    strikes: Arc<damage::Strikes>,
    /// Writes that clients were told are done.
    acknowledgements: AtomicU64,
    /// How often each kind of harm was done.
    harm: Mutex<BTreeMap<String, u64>>,
    /// Batches of hints that failed while a node had no room for requests.
    crowded: AtomicU64,
    log: Mutex<Vec<String>>,
    /// Planted: what documents held before.
    before: sessions::Before,
}

impl World {
    /// Machines that are switched off, and wires between them.
    pub fn new(setup: Setup) -> Arc<World> {
        let seed = setup.seed;
        let executor = Executor::new(setup.shuffle.then(|| Dice::apart(seed, 2)));
        let wires = Wires::new(executor.clone(), Dice::apart(seed, 3), setup.conditions);
        let machines = Machine::of_all(&setup, &executor);
        let (service, epochs) = (MemoryService::new(), Arc::new(Mutex::new(Vec::new())));
        let (clock, written) = (executor.clone(), epochs.clone());
        let numbers: Arc<Mutex<Numbers>> = Arc::default();
        let judged = numbers.clone();
        let members: Arc<Mutex<BTreeMap<NodeId, u64>>> = Arc::default();
        let (told, ids) = (members.clone(), (1..=setup.nodes).map(NodeId));
        let nodes: Vec<_> = ids.map(|id| (documents::member_path(id), id)).collect();
        let process_clock = Arc::new(ProcessClock::new(executor.clone(), Arc::new(WallClock::default())));
        let copies = Arc::new(Copies::new(setup.engine, process_clock));
        let publishing = copies.clone();
        let documents: Arc<Mutex<Documents>> = Arc::default();
        let kept = documents.clone();
        let piloting = setup.autopilot.as_ref().map(|own| Arc::new(Mutex::new(Piloting::new(own))));
        let (artifacts, strikes): (Arc<Book>, Arc<damage::Strikes>) = Default::default();
        let (book, struck, piloted) = (artifacts.clone(), strikes.clone(), piloting.clone());
        let disks: Vec<_> = machines.iter().map(|machine| (machine.id, machine.disk.clone())).collect();
        service.observe(move |path, data| {
            judged.lock().written(path, data);
            piloted.iter().for_each(|piloted| piloted.lock().written(clock.now(), path, data));
            if *path == documents::epochs_path() {
                written.lock().push(clock.now());
            }
            if *path == documents::cluster_path()
                && let Ok(cluster) = serde_json::from_slice::<Cluster>(data)
            {
                piloted.iter().for_each(|piloted| piloted.lock().published(clock.now(), &cluster));
                book.published(clock.now(), &cluster, &disks, &|since| struck.since(since));
                kept.lock().push((clock.now(), Arc::new(cluster.clone())));
                publishing.published(cluster);
            }
            if let Some((_, id)) = nodes.iter().find(|(member, _)| member == path)
                && let Ok(member) = serde_json::from_slice::<documents::Member>(data)
            {
                told.lock().insert(*id, member.incarnation);
            }
        });
        for machine in &machines {
            wires.troubles().begin(Trouble::Down, machine.host(), executor.now());
            if setup.crowded.is_some() {
                wires.troubles().begin(Trouble::Crowded, machine.host(), executor.now());
            }
        }
        Arc::new(World {
            witness: Witness::new(executor.clone()),
            copies,
            executor,
            wires,
            service,
            sources: Arc::default(),
            artifacts,
            setup,
            machines,
            numbers,
            epochs,
            documents,
            members,
            piloting,
            strikes,
            acknowledgements: AtomicU64::new(0),
            harm: Mutex::default(),
            crowded: AtomicU64::new(0),
            log: Mutex::default(),
            before: sessions::Before::default(),
        })
    }

    /// What of the documents went backwards.
    pub fn backwards(&self) -> Vec<Violation> {
        self.numbers.lock().broken()
    }

    /// When the nodes wrote their collection epochs, so far.
    pub fn epochs(&self) -> Vec<Moment> {
        self.epochs.lock().clone()
    }

    /// What the run itself knows of the circumstances of requests, so far.
    pub fn circumstances(&self) -> Circumstances {
        self.wires.troubles().so_far(self.documents.lock().clone())
    }

    /// Trouble of a machine's node begins.
    pub fn trouble(&self, kind: Trouble, position: usize) {
        self.wires.troubles().begin(kind, self.machines[position].host(), self.executor.now());
    }

    /// It ends, so much later.
    pub fn trouble_ends(&self, kind: Trouble, position: usize, later: Duration) {
        let end = self.executor.now().after(later);
        self.wires.troubles().end(kind, self.machines[position].host(), end);
    }

    /// Whether the coordination service was told of the process that runs there.
    pub fn is_told_of(&self, position: usize) -> bool {
        let told = self.members.lock().get(&self.machines[position].id).copied();
        self.node(position).is_some_and(|node| told == Some(node.incarnation()))
    }

    /// All machines.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// The stores of this cluster.
    pub fn stores(&self) -> &'static [&'static str] {
        if self.setup.redis_clients > 0 { &ALL_STORES } else { &STORES }
    }

    /// Writes a line of the run's own log, for people.
    pub fn tell(&self, line: impl AsRef<str>) {
        let seconds = self.executor.now().nanos as f64 / 1e9;
        self.log.lock().push(format!("{seconds:10.6} {}", line.as_ref()));
    }

    /// The run's own log.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    /// Addresses of the native protocol.
    pub fn addresses(&self) -> Vec<String> {
        self.machines.iter().map(|machine| address(machine.id)).collect()
    }

    /// The doors of one life of a process.
    pub fn ports(&self, host: Host, process: ProcessId, wall: Arc<WallClock>) -> Ports {
        let dice = Dice::apart(self.setup.seed, 1000 + process.0);
        Ports {
            clock: Arc::new(ProcessClock::new(self.executor.clone(), wall)),
            tasks: Arc::new(ProcessTasks::new(self.executor.clone(), process)),
            entropy: Arc::new(ProcessEntropy::new(dice)),
            network: self.wires.at(host, process),
        }
    }

    /// Publishes the same cluster under the next generation and has the older one refused.
    pub async fn next_generation(&self) {
        let session = self.session();
        let Ok(Some(mut cluster)) = documents::read_cluster(&*session).await else { return };
        cluster.generation = Generation(cluster.generation.0 + 1);
        cluster.generation_accepted_min = cluster.generation;
        if documents::publish_cluster(&*session, &cluster).await.is_ok() {
            self.tell(format!("generation {} published", cluster.generation.0));
        }
    }

    /// Starts a node's process, unless one runs; it tries again until the process runs.
    pub fn start(self: &Arc<Self>, position: usize) {
        let machine = &self.machines[position];
        let process = self.executor.process();
        {
            let mut life = machine.life.lock();
            if life.process.is_some() || machine.dead.load(Ordering::Relaxed) {
                return;
            }
            life.process = Some(process);
        }
        self.tell(format!("{} starts", machine.id));
        let world = self.clone();
        self.executor.spawn(process, Box::pin(async move { world.live(position, process).await }));
    }

    async fn live(self: Arc<Self>, position: usize, process: ProcessId) {
        let machine = &self.machines[position];
        let mut ports = self.ports(machine.host(), process, machine.wall.clone());
        if let Some(processor) = &machine.processor {
            ports.tasks = Arc::new(ProcessTasks::played(self.executor.clone(), process, processor.clone()));
        }
        let node = loop {
            if !self.belongs(machine.id) {
                self.named(machine).await;
            }
            match self.start_once(machine, &ports).await {
                Ok(node) => break node,
                Err(reason) => self.tell(format!("{} does not start: {reason}", machine.id)),
            }
            let pause = if self.belongs(machine.id) { START_AGAIN } else { LEFT_PAUSE };
            self.executor.sleep(pause).await;
        };
        self.tell(format!("{} is up, incarnation {}", machine.id, node.incarnation()));
        self.wires.troubles().serves(machine.host(), self.executor.now());
        machine.life.lock().node = Some(node.clone());
        self.serves(machine, &node);
        let workers: Vec<Worker> = (0..self.setup.workers).map(|_| node.worker(ports.clone())).collect();
        if self.setup.redis_clients > 0 {
            let doors = workers.iter().map(|worker| worker.door.clone()).collect();
            ports.tasks.spawn(Box::pin(serve_redis(redis_address(machine.id), doors, ports.clone())));
        }
        if self.setup.http {
            let doors = workers.iter().map(|worker| worker.http.clone()).collect();
            ports.tasks.spawn(Box::pin(serve_http(http_address(machine.id), doors, ports.clone())));
        }
        let mut listener =
            ports.network.listen(&address(machine.id)).await.expect("the last process has left the address");
        // Dealt out in turn, as the acceptor of a real process does.
        let mut turns = workers.iter().cycle();
        while let Ok(link) = listener.accept().await {
            let worker = turns.next().expect("a node has a worker");
            ports.tasks.spawn(Box::pin(worker.service.clone().serve(link)));
        }
    }

    async fn start_once(&self, machine: &Machine, ports: &Ports) -> Result<Arc<Node>, String> {
        let lie = self.setup.plant.and_then(Plant::lie);
        let disk: Arc<dyn Disk> = Arc::new(TracedDisk::new(machine.disk.clone(), self.executor.clone(), lie));
        let session = Arc::new(self.service.open());
        machine.life.lock().session = Some(session.clone());
        let engines = self.engines(machine.id, disk.clone(), ports);
        let mut config = NodeConfig::new(machine.id, CLUSTER);
        config.requests.coordinator.deadline = self.setup.deadline;
        config.artifacts.sources = Some(self.sources.clone());
        // Sources that are away or lie when their artifacts are listed are what a run plays.
        config.artifacts.sources_checked = false;
        config.hints.handoff = self.setup.handoff;
        if let Some(requests) = self.setup.crowded {
            config.requests.limits.node_requests_max = requests;
        }
        config.hints.bytes_max = self.setup.hint_bytes_max;
        config.repair.antientropy.period = REPAIR_PERIOD;
        config.repair.antientropy.scrub_period = SCRUB_PERIOD;
        config.repair.antientropy.patience = Duration::from_secs(1);
        (config.repair.expiry.margin, config.repair.expiry.interval) =
            (self.setup.expiry_margin, EXPIRY_INTERVAL);
        for net in &self.setup.without {
            match net {
                SafetyNet::AntiEntropy => config.repair.antientropy.period = NEVER,
                SafetyNet::Hints => config.hints.bytes_max = 0,
                SafetyNet::ReadRepair => config.requests.coordinator.repairs_max = 0,
                SafetyNet::Scrub => config.repair.antientropy.scrub_period = NEVER,
            }
        }
        match self.setup.plant {
            Some(Plant::HastyReaping) => config.repair.expiry.margin = Duration::ZERO,
            Some(Plant::IdleRepair) => {
                (config.repair.antientropy.period, config.repair.antientropy.scrub_period) = (NEVER, NEVER);
                config.hints.bytes_max = 0;
            }
            Some(Plant::OverlookedLeaves) => config.hints.bytes_max = 0,
            Some(Plant::ArtifactsUnscrubbed) => config.repair.antientropy.scrub_period = NEVER,
            _ => {}
        }
        if matches!(self.setup.plant, Some(Plant::RewoundIdentity | Plant::ForgottenMembers)) {
            // What would give it away.
            let _ = self.service.open().delete(&documents::member_path(machine.id), Expected::Any).await;
        }
        let starting = Node::start(config, ports.clone(), disk, engines, self.planted(session));
        Box::pin(starting).await.map_err(|error| error.to_string())
    }

    fn engines(&self, id: NodeId, disk: Arc<dyn Disk>, ports: &Ports) -> Arc<dyn Engines> {
        let engines: Arc<dyn Engines> = match self.setup.engine {
            EngineKind::Memory => Arc::new(MemoryEngines),
            EngineKind::Log(durability) => {
                Arc::new(LogEngines { disk, options: log_options(durability), ports: ports.clone() })
            }
        };
        let engines = self.witness.watch(id, engines);
        match self.setup.plant {
            Some(plant) if plant.is_in_engines() => {
                let dice = Dice::new(ports.entropy.next_u64());
                Arc::new(PlantedEngines::new(engines, plant, (dice, ByHash::of(&self.setup))))
            }
            _ => engines,
        }
    }

    /// Which nodes do not run, each with the last reason that its start gave, which names the file.
    pub fn why_not_up(&self) -> String {
        let log = self.log.lock();
        let down = self.members().filter(|machine| machine.life.lock().node.is_none());
        let why = down.map(|machine| {
            let refusal = format!("{} does not start", machine.id);
            let last = log.iter().rev().find(|line| line.contains(&refusal));
            last.cloned().unwrap_or_else(|| format!("{} has given no reason", machine.id))
        });
        why.collect::<Vec<String>>().join("; ")
    }

    /// Whether every node runs.
    pub fn all_up(&self) -> bool {
        self.members().all(|machine| machine.life.lock().node.is_some())
    }

    /// Hints that the nodes hold that are up: holder, target, how many.
    pub fn hints(&self) -> Vec<(NodeId, NodeId, u64)> {
        let of_machine = |machine: &Machine| {
            let node = machine.life.lock().node.clone();
            let pending = node.map(|node| node.replica().hints().pending()).unwrap_or_default();
            let holder = machine.id;
            pending
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(move |(target, count)| (holder, target, count))
        };
        self.members().flat_map(of_machine).collect()
    }

    /// What all nodes hold of a key, read past all quorums. All must be up.
    ///
    /// # Errors
    /// What a node could not read.
    pub fn remains(&self, store: &'static str, key: &Bytes) -> Result<Remains, String> {
        let (replicas, former, hints) = Default::default();
        let mut remains = Remains { store, key: key.clone(), replicas, former, hints };
        for machine in self.members() {
            let Some(node) = machine.life.lock().node.clone() else {
                return Err(format!("{} is not up", machine.id));
            };
            let view = node.replica().view().get();
            let local = view.store(store).ok_or_else(|| format!("{} has no store {store}", machine.id))?;
            let route = view.route(local, key);
            let wrong = |failure: wire::messages::Failure| format!("{}: {failure}", machine.id);
            if route.preference.is_replica(machine.id) {
                remains.replicas.push((machine.id, local.get(route.place, key).map_err(wrong)?));
            }
            let definition = local.definition();
            for &target in route.preference.replicas() {
                let parked = node
                    .replica()
                    .hints()
                    .get(&[target], &definition.name, definition.resolver, key)
                    .map_err(wrong)?;
                if !parked.is_empty() {
                    remains.hints.push((machine.id, target, parked));
                }
            }
        }
        Ok(remains)
    }

    /// The node on a machine, while it runs.
    pub fn node(&self, position: usize) -> Option<Arc<Node>> {
        self.machines[position].life.lock().node.clone()
    }

    /// Ends everything, so that nothing keeps anything alive.
    pub fn end(&self) {
        for position in 0..self.machines.len() {
            self.kill(position, Duration::ZERO, Duration::ZERO);
        }
        self.executor.end();
    }
}

/// Serves a node's Redis door.
async fn serve_redis(address: String, doors: Vec<Door>, ports: Ports) {
    let mut listener = ports.network.listen(&address).await.expect("the last process has left the address");
    let mut turns = doors.iter().cycle();
    while let Ok(link) = listener.accept().await {
        let door = turns.next().expect("a node has a worker").clone();
        let (peer, local) = (link.peer.clone(), address.clone());
        let stream = LinkStream::new(link, ports.entropy.clone());
        ports.tasks.spawn(Box::pin(async move { door.serve(stream, peer, local).await }));
    }
}

/// Serves a node's HTTP door.
async fn serve_http(address: String, doors: Vec<http::Door>, ports: Ports) {
    let mut listener = ports.network.listen(&address).await.expect("the last process has left the address");
    let mut turns = doors.iter().cycle();
    while let Ok(link) = listener.accept().await {
        let door = turns.next().expect("a node has a worker").clone();
        let peer = link.peer.clone();
        let stream = LinkStream::new(link, ports.entropy.clone());
        ports.tasks.spawn(Box::pin(async move { door.serve(stream, peer, http::Scheme::Http).await }));
    }
}

/// Where a node's HTTP door is served.
pub fn http_address(id: NodeId) -> String {
    format!("h{}:{WEB_PORT}", id.0)
}

/// Where a node's Redis door is served.
pub fn redis_address(id: NodeId) -> String {
    format!("h{}:{STREAM_PORT}", id.0)
}

/// Where a node's native protocol is served.
fn address(id: NodeId) -> String {
    format!("h{}:7401", id.0)
}
