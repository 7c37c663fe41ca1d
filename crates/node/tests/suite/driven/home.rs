//! A node's disk and its coordination service, and the node while it runs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::peers::{Call, CallError};
use coordination::CoordinationService;
use coordination::documents;
use coordination::memory::{MemoryService, MemorySession};
use model::versions::Stamp;
use model::{
    Actor, Cluster, Consistency, Epoch, Generation, Node as Member, NodeId, Ring, Store, StoreName,
    Timestamp, Value, VersionSet, WallMillis, Zone,
};
use parking_lot::Mutex;
use runtime::disk::simulated::SimulatedDisk;
use runtime::{Disk, Ports};
use storage::{Durability, LogOptions};
use wire::messages::{ReplicaMerge, Request, Response, StoreRef};

use super::stage::WALL_BEGIN;
use super::{Answer, Engines, LocalStore, LogEngines, Node, NodeConfig, Stage, StartError, Wires};

/// The key of most tests.
pub(crate) const KEY: Bytes = Bytes::from_static(b"k");
/// Nothing happens by itself within a test.
const NEVER: Duration = Duration::from_secs(1 << 24);

/// A set with one write by `actor` at `timestamp`, over what `before` says.
pub(crate) fn set(before: &VersionSet, actor: u32, timestamp: Timestamp, value: Value) -> VersionSet {
    let mut set = before.clone();
    let actor = Actor { node: NodeId(actor), incarnation: 1, birth: 1 };
    set.put(Stamp { actor, timestamp, expires: None, value }, None);
    set
}

/// A moment of the wall clock, this many milliseconds after the stage begins.
pub(crate) fn amid(millis: u64) -> Timestamp {
    Timestamp(0).next(WallMillis(WALL_BEGIN + millis))
}

/// The first write of a key.
pub(crate) fn old() -> VersionSet {
    set(&VersionSet::default(), 9, Timestamp(1), Value::Present(Bytes::from_static(b"the first value")))
}

/// The delete that covers it, stamped at this moment.
pub(crate) fn tombstone_at(timestamp: Timestamp) -> VersionSet {
    set(&old(), 9, timestamp, Value::Tombstone)
}

/// The delete that covers it.
pub(crate) fn deleted() -> VersionSet {
    tombstone_at(Timestamp(10))
}

/// Where a node lives.
pub(crate) struct Home {
    pub(crate) stage: Stage,
    pub(crate) wires: Wires,
    pub(crate) service: MemoryService,
    pub(crate) disk: SimulatedDisk,
    pub(crate) config: NodeConfig,
    durability: Durability,
    session: Mutex<Option<Arc<MemorySession>>>,
}

impl Home {
    /// Of node 1 of three, each of which is to hold all of the store `s`. Nothing is synced before somebody asks for it,
    /// or a segment is full.
    pub(crate) fn new() -> Home {
        Home::of(&cluster())
    }

    /// The same, of a cluster with another document.
    pub(crate) fn of(cluster: &Cluster) -> Home {
        let stage = Stage::default();
        let home = Home {
            wires: Wires::new(&stage),
            service: MemoryService::new(),
            disk: SimulatedDisk::new(1),
            config: quiet(NodeId(1)),
            durability: Durability::System,
            session: Mutex::default(),
            stage,
        };
        home.publish(cluster);
        home
    }

    /// Where what is acknowledged is durable.
    pub(crate) fn syncing(self) -> Home {
        Home { durability: Durability::Always, ..self }
    }

    /// Of another node, on the same stage.
    pub(crate) fn beside(&self, node: u32) -> Home {
        Home {
            stage: self.stage.clone(),
            wires: self.wires.clone(),
            service: self.service.clone(),
            disk: SimulatedDisk::new(u64::from(node)),
            config: quiet(NodeId(node)),
            durability: self.durability,
            session: Mutex::default(),
        }
    }

    /// Publishes a cluster document.
    pub(crate) fn publish(&self, cluster: &Cluster) {
        self.stage.run(documents::publish_cluster(&self.service.open(), cluster)).unwrap();
    }

    /// What the service says of epochs: opened, completed.
    pub(crate) fn epochs(&self) -> (Epoch, Epoch) {
        let read = self.stage.run(documents::read_epochs(&self.service.open())).unwrap();
        (read.opened, read.completed)
    }

    /// Starts the node, with its records in files of its disk.
    pub(crate) fn start(&self) -> Arc<Node> {
        self.try_start().unwrap()
    }

    /// The same, where it may be refused.
    pub(crate) fn try_start(&self) -> Result<Arc<Node>, StartError> {
        let options = LogOptions { durability: self.durability, ..LogOptions::default() };
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        self.start_over(Arc::new(LogEngines { disk, options, ports: self.ports() }))
    }

    /// The same, over these engines.
    pub(crate) fn start_over(&self, engines: Arc<dyn Engines>) -> Result<Arc<Node>, StartError> {
        let session = Arc::new(self.service.open());
        if let Some(ended) = self.session.lock().replace(session.clone()) {
            self.service.kill(ended.session());
        }
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        self.stage.run(Node::start(self.config.clone(), self.ports(), disk, engines, session))
    }

    pub(crate) fn ports(&self) -> Ports {
        Ports {
            clock: Arc::new(self.stage.clone()),
            tasks: Arc::new(self.stage.clone()),
            entropy: Arc::new(self.stage.clone()),
            network: Arc::new(self.wires.clone()),
        }
    }

    /// Cuts the power; `seed` decides what the disk keeps of what was not synced.
    pub(crate) fn cut(&self, node: Arc<Node>, seed: u64) {
        self.stage.end_tasks();
        drop(node);
        self.disk.crash(seed);
    }

    /// Has the node adopt a newer document.
    pub(crate) fn adopt(&self, node: &Node, cluster: Cluster) {
        let generation = cluster.generation;
        node.offer(cluster);
        self.stage.until(|| node.replica().view().adopted() == generation);
    }

    /// What a call to the node's own records answers.
    pub(crate) fn call(&self, node: &Node, request: impl Into<Request>) -> Result<Response, CallError> {
        match node.replica().call(request.into()) {
            Call::Ready(answer) => answer,
            Call::Pending(answer) => self.stage.run(answer),
        }
    }

    /// What the node answers to a step of a round.
    pub(crate) fn ask(
        &self,
        node: &Node,
        request: impl Into<Request>,
    ) -> Result<Response, wire::messages::Failure> {
        self.stage.run(node.collection().answer(request.into()))
    }

    /// Lets a real node answer for itself at the end of its wire, but where `instead` has another answer.
    pub(crate) fn serve(
        &self,
        node: &Arc<Node>,
        instead: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static,
    ) {
        let served = Arc::downgrade(node);
        self.wires.script(node.id(), move |request| {
            let Some(node) = served.upgrade() else { return Answer::Silence };
            if let Some(answer) = instead(&request) {
                return answer;
            }
            Answer::Later(Box::pin(async move {
                let answer = match request {
                    Request::ReplicaGet(_) | Request::ReplicaMerge(_) => match node.replica().call(request) {
                        Call::Ready(answer) => answer,
                        Call::Pending(answer) => answer.await,
                    },
                    other => node.antientropy().clone().answer(other).await.map_err(CallError::Refused),
                };
                match answer {
                    Ok(response) => response,
                    Err(CallError::Refused(failure)) => Response::Failure(failure),
                    Err(error) => panic!("a node answers for itself: {error}"),
                }
            }))
        });
    }
}

/// A cluster of three nodes, at its first generation.
pub(crate) fn cluster() -> Cluster {
    let zone = Zone("a".to_owned());
    let member = |id| {
        let native = Wires::address(NodeId(id));
        Member::new(NodeId(id), zone.clone(), native, None)
    };
    let nodes: Vec<Member> = (1..=3).map(member).collect();
    let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    let stores = vec![Store::new(StoreName::new("s").unwrap(), consistency).unwrap()];
    Cluster::new("test", nodes, Ring::equal_slices(2, &zones), stores)
}

/// A node that starts nothing by itself but the delivery of hints.
fn quiet(node: NodeId) -> NodeConfig {
    let mut config = NodeConfig::new(node, "test");
    config.repair.collection.interval = NEVER;
    config.repair.antientropy.period = NEVER;
    config.repair.antientropy.scrub_period = NEVER;
    config
}

/// The store of all tests.
pub(crate) fn store(node: &Node) -> Arc<LocalStore> {
    node.replica().view().get().store("s").unwrap().clone()
}

/// What the node's own record of a key says.
pub(crate) fn record(node: &Node, key: &Bytes) -> VersionSet {
    let (view, store) = (node.replica().view().get(), store(node));
    store.content(view.route(&store, key).place, key).unwrap()
}

/// The same, as a get sees it.
pub(crate) fn get(node: &Node, key: &Bytes) -> Result<VersionSet, wire::error::ErrorCode> {
    let (view, store) = (node.replica().view().get(), store(node));
    store.get(view.route(&store, key).place, key).map_err(|failure| failure.code)
}

/// A message that brings this content, read at `epoch`.
pub(crate) fn merge(key: &Bytes, content: &VersionSet, epoch: u64, hint_for: Option<u32>) -> ReplicaMerge {
    ReplicaMerge {
        since: Generation(1),
        store: StoreRef::from(&StoreName::new("s").unwrap()),
        generation: Generation(1),
        epoch: Epoch(epoch),
        hint_for: hint_for.map(NodeId),
        entries: [(key.clone(), content.clone())].into_iter().collect(),
    }
}

/// Flips a bit of a disk this many bytes before the value that nothing but the first write of a key has.
pub(crate) fn damage_at(disk: &SimulatedDisk, key: &Bytes, before: u64) {
    let value = format!("the value of {} and of nothing else", String::from_utf8_lossy(key));
    let place = disk.files().into_iter().find_map(|(path, bytes)| {
        let at = bytes.windows(value.len()).position(|window| window == value.as_bytes())?;
        Some((path, at as u64))
    });
    let (path, at) = place.expect("the value is on the disk");
    assert!(disk.flip_bit(&path, at - before, 2));
}
