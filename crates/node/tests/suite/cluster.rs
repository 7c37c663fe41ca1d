//! Several nodes inside this process, over real sockets, with everything in memory.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientOptions};
use coordination::memory::MemoryService;
use model::{Cluster, Consistency, Generation, Node as Member, NodeId, Ring, Store, StoreName, Zone};
use node::engines::MemoryEngines;
use node::{Node, NodeConfig, Worker};
use runtime::disk::simulated::SimulatedDisk;
use runtime::{Listener, Ports};
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
        (count, running): (u32, u32),
        store: Store,
        configure: impl Fn(&mut NodeConfig),
    ) -> RunningCluster {
        let ports = Ports::os().unwrap();
        let mut listeners: Vec<Box<dyn Listener>> = Vec::new();
        let mut members = Vec::new();
        for id in 1..=count {
            let listener = ports.network.listen("127.0.0.1:0").await.unwrap();
            let zone = Zone("a".to_owned());
            members.push(Member { id: NodeId(id), zone, native: listener.address(), resp: None });
            listeners.push(listener);
        }
        let zones: Vec<_> = members.iter().map(|member| (member.id, member.zone.clone())).collect();
        let cluster = Cluster {
            name: "test".to_owned(),
            generation: Generation(1),
            generation_accepted_min: Generation(1),
            nodes: members.clone(),
            ring: Ring::equal_slices(8, &zones),
            stores: vec![store],
        };
        let service = MemoryService::new();
        coordination::documents::publish_cluster(&service.open(), &cluster).await.unwrap();
        let mut started = RunningCluster {
            nodes: Vec::new(),
            service: service.clone(),
            workers: Vec::new(),
            addresses: Vec::new(),
        };
        for (member, mut listener) in members.into_iter().zip(listeners) {
            if member.id.0 > running {
                tokio::spawn(async move {
                    while let Ok(link) = listener.accept().await {
                        tokio::spawn(welcome(member.id, link));
                    }
                });
                continue;
            }
            let mut config = NodeConfig::new(member.id, "test");
            config.coordinator.deadline = PATIENCE;
            configure(&mut config);
            let disk = Arc::new(SimulatedDisk::new(u64::from(member.id.0)));
            let session = Arc::new(service.open());
            let node =
                Node::start(config, ports.clone(), disk, Arc::new(MemoryEngines), session).await.unwrap();
            let worker = node.worker(ports.clone());
            let service = worker.service.clone();
            tokio::spawn(async move {
                while let Ok(link) = listener.accept().await {
                    tokio::spawn(service.clone().serve(link));
                }
            });
            started.nodes.push(node);
            started.workers.push(worker);
            started.addresses.push(member.native);
        }
        started
    }

    /// A client of the cluster.
    pub(crate) async fn client(&self, options: ClientOptions) -> Client {
        Client::connect(&self.addresses, Ports::os().unwrap(), options).await.unwrap()
    }

    /// A Redis connection to one of the nodes.
    pub(crate) fn redis(&self, position: usize) -> Connection {
        Connection::to(self.nodes[position].clone(), &self.workers[position])
    }
}

/// Greets as a node does, then takes everything and answers nothing.
async fn welcome(node: NodeId, mut link: runtime::Link) {
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
