//! What an event costs a ZooKeeper ensemble and those who follow it: reads, watches, bytes, and the time until all
//! know of it, for clusters of several sizes.
//!
//! ```text
//! cargo run --profile proof -p coordination --example storm -- [NODES...]      (3 and 100 by default)
//! ```
//!
//! Three real servers run on loopback. Each node is a session that does what a node does with the service: it
//! registers, and follows the cluster document. One more session does what a headmaster does: it follows who is
//! active. They share this process, and nothing but the service tells one of another.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

#[path = "../../tests/suite/counted.rs"]
mod counted;
#[allow(dead_code, reason = "tests do more with their servers")]
#[path = "../../tests/suite/zookeeper/servers.rs"]
mod servers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::documents::{ActiveNode, publish_cluster, register, watch_cluster};
use coordination::registrations::Registrations;
use coordination::zookeeper::{ZooKeeperOptions, ZooKeeperSession};
use coordination::{CoordinationService, DOCUMENT_BYTES_MAX};
use model::{Cluster, Generation, Node, NodeId, Ring, Zone};
use tokio::sync::watch;

use self::counted::{Counted, CountedSession, Counts};
use self::servers::{Ensemble, PATIENCE};

/// How long nothing may happen before an event counts as over, where it is not known who must hear of it.
const QUIET: Duration = Duration::from_secs(1);

fn node(id: u32, port: u32) -> Node {
    Node::new(NodeId(id), Zone("a".into()), format!("10.0.0.{id}:{port}"), None)
}

fn active(id: u32, port: u32) -> ActiveNode {
    ActiveNode::new(node(id, port), 1)
}

fn cluster(generation: u64, nodes: u32) -> Cluster {
    let members: Vec<_> = (1..=nodes).map(|id| (NodeId(id), Zone("a".into()))).collect();
    let nodes = (1..=nodes).map(|id| node(id, 7401)).collect();
    let ring = Ring::equal_slices_listing(1024, &members, 8);
    Cluster { generation: Generation(generation), ..Cluster::new("storm", nodes, ring, Vec::new()) }
}

/// A cluster of sessions, and what they ask.
struct Stage {
    address: String,
    nodes: Arc<Counts>,
    headmaster: Arc<Counts>,
    /// The generation that each node has heard of.
    heard: Vec<watch::Receiver<u64>>,
    /// How many nodes the headmaster knows to be active, and the last one's address.
    known: watch::Receiver<Vec<ActiveNode>>,
    sessions: Vec<Arc<dyn CoordinationService>>,
}

async fn session(address: &str, counts: &Arc<Counts>) -> Arc<dyn CoordinationService> {
    let options = ZooKeeperOptions {
        create_chroot: true,
        session_timeout: Duration::from_secs(20),
        ..ZooKeeperOptions::new(address.parse().unwrap())
    };
    let session = ZooKeeperSession::open(options).unwrap();
    session.connected(PATIENCE).await.unwrap();
    Arc::new(CountedSession { inner: Arc::new(session), counts: counts.clone() })
}

impl Stage {
    async fn new(ensemble: &Ensemble, nodes: u32) -> Stage {
        let address = ensemble.address(&format!("/storm-{nodes}"));
        let headmaster = Arc::new(Counts::default());
        let office = session(&address, &headmaster).await;
        publish_cluster(&*office, &cluster(1, nodes)).await.unwrap();
        let (tell, known) = watch::channel(Vec::new());
        tokio::spawn(async move {
            let mut follower = Registrations::new(office);
            while let Ok(active) = follower.next().await {
                tell.send_replace(active);
            }
        });
        let mut stage = Stage {
            address,
            nodes: Arc::default(),
            headmaster,
            heard: Vec::new(),
            known,
            sessions: Vec::new(),
        };
        for id in 1..=nodes {
            stage.join(id).await;
        }
        stage.all_heard(1).await;
        stage.all_known(nodes as usize).await;
        stage
    }

    /// One node more, as it starts.
    async fn join(&mut self, id: u32) {
        let service = session(&self.address, &self.nodes).await;
        register(&*service, &active(id, 7401)).await.unwrap();
        let (tell, heard) = watch::channel(0);
        let mut follower = watch_cluster(service.clone(), None);
        tokio::spawn(async move {
            while let Ok(cluster) = follower.next().await {
                tell.send_replace(cluster.generation.0);
            }
        });
        self.heard.push(heard);
        self.sessions.push(service);
    }

    async fn all_heard(&mut self, generation: u64) {
        for heard in &mut self.heard {
            heard.wait_for(|heard| *heard >= generation).await.unwrap();
        }
    }

    async fn all_known(&mut self, nodes: usize) {
        self.known.wait_for(|known| known.len() == nodes).await.unwrap();
    }

    fn counted(&self) -> [Counted; 2] {
        [self.nodes.now(), self.headmaster.now()]
    }

    async fn quiet(&self) {
        let mut last = self.counted();
        loop {
            tokio::time::sleep(QUIET).await;
            let now = self.counted();
            if now == last {
                return;
            }
            last = now;
        }
    }
}

/// What an event cost nodes and headmaster, and when the last of those that must know knew.
fn report(nodes: u32, event: &str, before: [Counted; 2], after: [Counted; 2], took: Duration) {
    let [others, headmaster] = [after[0] - before[0], after[1] - before[1]];
    println!(
        "| {nodes} | {event} | {} | {} | {} | {} | {} | {} | {:.0} |",
        others.reads,
        others.watches,
        others.writes,
        headmaster.reads,
        headmaster.watches,
        others.bytes + headmaster.bytes,
        took.as_secs_f64() * 1000.0
    );
}

async fn measure(ensemble: &Ensemble, nodes: u32) {
    let mut stage = Stage::new(ensemble, nodes).await;
    stage.quiet().await;

    let (before, begun) = (stage.counted(), Instant::now());
    stage.join(nodes + 1).await;
    stage.all_known(nodes as usize + 1).await;
    stage.all_heard(1).await;
    let took = begun.elapsed();
    stage.quiet().await;
    report(nodes, "a node comes", before, stage.counted(), took);

    let (before, begun) = (stage.counted(), Instant::now());
    register(&*stage.sessions[0], &active(1, 7777)).await.unwrap();
    stage.known.wait_for(|known| known[0].node.native.ends_with(":7777")).await.unwrap();
    let took = begun.elapsed();
    stage.quiet().await;
    report(nodes, "a node changes its address", before, stage.counted(), took);

    let (before, begun) = (stage.counted(), Instant::now());
    stage.heard.pop();
    stage.sessions.pop().unwrap().close().await.unwrap();
    stage.all_known(nodes as usize).await;
    let took = begun.elapsed();
    stage.quiet().await;
    report(nodes, "a node goes", before, stage.counted(), took);

    let newer = cluster(2, nodes);
    let bytes = serde_json::to_vec(&newer).unwrap().len();
    assert!(bytes <= DOCUMENT_BYTES_MAX);
    let (before, begun) = (stage.counted(), Instant::now());
    publish_cluster(&*stage.sessions[0], &newer).await.unwrap();
    stage.all_heard(2).await;
    let took = begun.elapsed();
    stage.quiet().await;
    report(nodes, &format!("the cluster document changes ({bytes} bytes)"), before, stage.counted(), took);

    for session in stage.sessions {
        let _ = session.close().await;
    }
}

#[tokio::main]
async fn main() {
    let given: Vec<u32> =
        std::env::args().skip(1).map(|count| count.parse().expect("a number of nodes")).collect();
    let sizes = if given.is_empty() { vec![3, 100] } else { given };
    let ensemble = Ensemble::start(3);
    println!(
        "| nodes | event | reads of nodes | watches | writes | reads of the headmaster | watches | bytes of content | ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for nodes in sizes {
        measure(&ensemble, nodes).await;
    }
}
