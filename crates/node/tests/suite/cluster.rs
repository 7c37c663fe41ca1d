//! Several nodes inside this process, over real sockets, with everything in memory.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientOptions};
use coordination::memory::MemoryService;
use model::{Cluster, Consistency, Generation, Node as Member, NodeId, Ring, Store, StoreName, Zone};
use node::doors::native::Service;
use node::engines::{Engines, LogEngines, MemoryEngines};
use node::{Node, NodeConfig, Worker};
use runtime::disk::simulated::SimulatedDisk;
use runtime::{BoxFuture, Link, Listener, Network, NetworkError, Ports};
use storage::{Durability, LogOptions};
use wire::messages::{Response, Welcome, encode_response, request_id};

use crate::support::Connection;

/// Long enough for the slowest machine; a request that needs it has failed in any case.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct RunningCluster {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Where its cluster document is.
    pub(crate) service: MemoryService,
    workers: Vec<Worker>,
    addresses: Vec<String>,
    /// What serves each node, and what it starts from again.
    homes: Vec<Home>,
}

/// Where the nodes' records are.
type Build = fn(&Arc<SimulatedDisk>, &Ports) -> Arc<dyn Engines>;

fn in_memory(_: &Arc<SimulatedDisk>, _: &Ports) -> Arc<dyn Engines> {
    Arc::new(MemoryEngines)
}

fn on_disk(disk: &Arc<SimulatedDisk>, ports: &Ports) -> Arc<dyn Engines> {
    let options = LogOptions { durability: Durability::Always, ..LogOptions::default() };
    Arc::new(LogEngines { disk: disk.clone(), options, ports: ports.clone() })
}

/// What stays of a node while it is away.
struct Home {
    build: Build,
    config: NodeConfig,
    disk: Arc<SimulatedDisk>,
    serving: tokio::task::JoinHandle<()>,
}

/// A network over which nothing is reached; whoever uses it can still be reached.
struct NoWayOut(Arc<dyn Network>);

impl Network for NoWayOut {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Link, NetworkError>> {
        let error = NetworkError::Unreachable { address: address.to_owned(), reason: "no way".to_owned() };
        Box::pin(std::future::ready(Err(error)))
    }

    fn listen(&self, address: &str) -> BoxFuture<'static, Result<Box<dyn Listener>, NetworkError>> {
        self.0.listen(address)
    }
}

/// A store named `default` with these numbers.
pub(crate) fn store(replicas: u8, reads_required: u8, writes_required: u8) -> Store {
    let consistency = Consistency { replicas, reads_required, writes_required };
    Store::new(StoreName::new("default").unwrap(), consistency).unwrap()
}

impl RunningCluster {
    /// Starts the first `running` of `count` nodes and serves their native protocol. The others say welcome to whoever
    /// connects, and nothing after that.
    pub(crate) async fn start(
        counts: (u32, u32),
        store: Store,
        configure: impl Fn(&mut NodeConfig),
    ) -> RunningCluster {
        RunningCluster::start_over((Ports::os().unwrap(), in_memory), counts, store, configure).await
    }

    /// Starts nodes that keep their records in files of their simulated disks.
    pub(crate) async fn start_logging(
        count: u32,
        store: Store,
        configure: impl Fn(&mut NodeConfig),
    ) -> RunningCluster {
        RunningCluster::start_logging_over(Ports::os().unwrap(), count, store, configure).await
    }

    /// The same, with these doors to the world.
    pub(crate) async fn start_logging_over(
        ports: Ports,
        count: u32,
        store: Store,
        configure: impl Fn(&mut NodeConfig),
    ) -> RunningCluster {
        RunningCluster::start_over((ports, on_disk as Build), (count, count), store, configure).await
    }

    /// A node's disk.
    pub(crate) fn disk(&self, position: usize) -> &SimulatedDisk {
        &self.homes[position].disk
    }

    /// Starts nodes that clients reach and that do not reach each other.
    pub(crate) async fn start_apart(count: u32, store: Store) -> RunningCluster {
        let mut ports = Ports::os().unwrap();
        ports.network = Arc::new(NoWayOut(ports.network.clone()));
        RunningCluster::start_over((ports, in_memory), (count, count), store, |_| {}).await
    }

    async fn start_over(
        (ports, build): (Ports, Build),
        (count, running): (u32, u32),
        store: Store,
        configure: impl Fn(&mut NodeConfig),
    ) -> RunningCluster {
        let mut listeners: Vec<Box<dyn Listener>> = Vec::new();
        let mut members = Vec::new();
        for id in 1..=count {
            let listener = ports.network.listen("127.0.0.1:0").await.unwrap();
            let zone = Zone("a".to_owned());
            members.push(Member::new(NodeId(id), zone, listener.address(), None));
            listeners.push(listener);
        }
        let zones: Vec<_> = members.iter().map(|member| (member.id, member.zone.clone())).collect();
        let cluster = Cluster::new("test", members.clone(), Ring::equal_slices(8, &zones), vec![store]);
        let service = MemoryService::new();
        coordination::documents::publish_cluster(&service.open(), &cluster).await.unwrap();
        let mut started = RunningCluster {
            nodes: Vec::new(),
            service: service.clone(),
            workers: Vec::new(),
            addresses: Vec::new(),
            homes: Vec::new(),
        };
        for (member, listener) in members.into_iter().zip(listeners) {
            if member.id.0 > running {
                let mut listener = listener;
                tokio::spawn(async move {
                    while let Ok(link) = listener.accept().await {
                        tokio::spawn(welcome(member.id, link));
                    }
                });
                continue;
            }
            let mut config = NodeConfig::new(member.id, "test");
            config.requests.coordinator.deadline = PATIENCE;
            configure(&mut config);
            let disk = Arc::new(SimulatedDisk::new(u64::from(member.id.0)));
            let (node, worker) = run((&config, build), &disk, &service, &ports).await;
            let serving = tokio::spawn(serve(listener, worker.service.clone()));
            started.nodes.push(node);
            started.workers.push(worker);
            started.homes.push(Home { build, config, disk, serving });
            started.addresses.push(member.native);
        }
        started
    }

    /// A client of the cluster.
    pub(crate) async fn client(&self, options: ClientOptions) -> Client {
        Client::connect(&self.addresses, Ports::os().unwrap(), options).await.unwrap()
    }

    /// Stops a node cleanly: its address refuses whoever comes, and its links end.
    pub(crate) async fn stop(&mut self, position: usize) {
        self.homes[position].serving.abort();
        let _ = (&mut self.homes[position].serving).await;
        self.nodes[position].stop().await.unwrap();
    }

    /// Starts a stopped node again, at its address and from its disk.
    pub(crate) async fn start_again(&mut self, position: usize) {
        let ports = Ports::os().unwrap();
        let listener = ports.network.listen(&self.addresses[position]).await.unwrap();
        let home = &mut self.homes[position];
        let (node, worker) = run((&home.config, home.build), &home.disk, &self.service, &ports).await;
        home.serving = tokio::spawn(serve(listener, worker.service.clone()));
        self.nodes[position] = node;
        self.workers[position] = worker;
    }

    /// Requests that a node has been sent over links.
    pub(crate) fn requests(&self, position: usize) -> u64 {
        self.workers[position].service.requests.get()
    }

    /// A Redis connection to one of the nodes.
    pub(crate) fn redis(&self, position: usize) -> Connection {
        Connection::to(self.nodes[position].clone(), &self.workers[position])
    }
}

async fn run(
    (config, build): (&NodeConfig, Build),
    disk: &Arc<SimulatedDisk>,
    service: &MemoryService,
    ports: &Ports,
) -> (Arc<Node>, Worker) {
    let session = Arc::new(service.open());
    let engines = build(disk, ports);
    let node = Node::start(config.clone(), ports.clone(), disk.clone(), engines, session).await.unwrap();
    let worker = node.worker(ports.clone());
    (node, worker)
}

/// Serves until it is aborted; its links end with it.
async fn serve(mut listener: Box<dyn Listener>, service: Service) {
    let mut links = tokio::task::JoinSet::new();
    while let Ok(link) = listener.accept().await {
        while links.try_join_next().is_some() {}
        links.spawn(service.clone().serve(link));
    }
}

/// Greets as a node does, then takes everything and answers nothing.
async fn welcome(node: NodeId, mut link: Link) {
    let Ok(Some(hello)) = link.receiver.receive().await else { return };
    let id = request_id(&hello).unwrap();
    let welcome = Response::Welcome(Welcome {
        version: wire::messages::VERSION_MAX,
        cluster: "test".to_owned(),
        node,
        generation: Generation(1),
        key_bytes_max: 1,
        frame_bytes_max: 1,
    });
    link.sender.send(&mut |frame| encode_response(id, &welcome, frame)).unwrap();
    while let Ok(Some(_)) = link.receiver.receive().await {}
}
