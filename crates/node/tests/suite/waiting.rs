//! Nodes that wait to be named, and nodes that come back at another address.

use std::sync::Arc;
use std::time::Duration;

use coordination::documents::{self, ActiveNode, active_node_path};
use coordination::memory::{MemoryService, MemorySession};
use coordination::{CoordinationService, SessionId};
use model::{Node as Member, NodeId, Zone};
use node::engines::MemoryEngines;
use node::waiting::{Waits, until_named};
use node::{Advertised, Node, NodeConfig, StartError};
use parking_lot::Mutex;
use runtime::Ports;
use runtime::disk::simulated::SimulatedDisk;

use crate::support::publish;

fn member(id: u32, native: &str) -> Member {
    Member::new(NodeId(id), Zone("a".to_owned()), native, None)
}

async fn owner_other_than(observer: &MemorySession, ended: Option<SessionId>) -> SessionId {
    loop {
        if let Ok(found) = observer.get(&active_node_path(NodeId(4))).await
            && found.stat.owner != ended
        {
            return found.stat.owner.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_node_that_waits_stays_registered_through_lost_sessions_until_it_is_named() {
    let service = MemoryService::new();
    let (observer, predecessor) = (service.open(), service.open());
    let active = ActiveNode::new(member(4, "h4:1"), 17);
    // The process before it was killed at another address.
    let before = ActiveNode::new(member(4, "h0:1"), 17);
    documents::register(&predecessor, &before).await.unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (session, heard, applicant) = (service.open(), told.clone(), active.clone());
    let waits = tokio::spawn(async move {
        let ports = Ports::os().unwrap();
        let mut tell = |waits: &Waits| heard.lock().push(waits.clone());
        until_named(&ports, Arc::new(session), &applicant, &mut tell).await
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    service.kill(predecessor.session());
    let first = owner_other_than(&observer, Some(predecessor.session())).await;
    while told.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    publish(&service, vec![member(1, "h1:1")]).await;
    service.kill(first);
    owner_other_than(&observer, Some(first)).await;
    while told.lock().last() != Some(&Waits::ToBeNamed { cluster: "test".to_owned() }) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let registered = documents::active_nodes(&observer).await.unwrap().0;
    documents::admit(&observer, &registered).await.unwrap();
    let (cluster, _session) = waits.await.unwrap().unwrap();
    assert_eq!(cluster.node(NodeId(4)), Some(&active.node));
    let told = told.lock();
    assert_eq!(told.first(), Some(&Waits::ForCluster), "{told:?}");
    assert!(told.iter().any(|waits| matches!(waits, Waits::ForService { .. })), "{told:?}");
}

#[tokio::test]
async fn an_id_that_another_directory_has_is_refused_at_once() {
    let service = MemoryService::new();
    let other = service.open();
    documents::register(&other, &ActiveNode::new(member(4, "h4:1"), 16)).await.unwrap();
    let active = ActiveNode::new(member(4, "h4:1"), 17);
    let refused = until_named(&Ports::os().unwrap(), Arc::new(service.open()), &active, &mut |_| ()).await;
    assert!(matches!(refused, Err(StartError::Register(_))), "another directory has the id");
}

async fn start_at(
    service: &MemoryService,
    disk: &Arc<SimulatedDisk>,
    native: &str,
) -> Result<Arc<Node>, StartError> {
    let mut config = NodeConfig::new(NodeId(1), "test");
    config.advertised = Some(Advertised { native: native.to_owned(), resp: None });
    let engines = Arc::new(MemoryEngines);
    Node::start(config, Ports::os().unwrap(), disk.clone(), engines, Arc::new(service.open())).await
}

/// It was refused as if it could never start, so a supervisor gave up.
#[tokio::test]
async fn a_start_that_was_killed_before_it_wrote_its_identity_is_worth_another_one() {
    let service = MemoryService::new();
    publish(&service, vec![member(1, "h1:1")]).await;
    for fresh in [true, false] {
        let disk = Arc::new(SimulatedDisk::new(1));
        if !fresh {
            start_at(&service, &disk, "h1:1").await.unwrap().stop().await.unwrap();
        }
        let killed = service.open();
        documents::register(&killed, &ActiveNode::new(member(1, "h1:1"), u64::MAX)).await.unwrap();
        let refused = start_at(&service, &disk, "h1:1").await.err().unwrap();
        assert!(matches!(refused, StartError::Register(_)) && refused.is_passing(), "{refused}");
        service.kill(killed.session());
        start_at(&service, &disk, "h1:1").await.unwrap().stop().await.unwrap();
    }
}

async fn address_becomes(observer: &MemorySession, node: &Node, native: &str) {
    let is_so = |cluster: &model::Cluster| cluster.node(NodeId(1)).unwrap().native == native;
    while !is_so(&documents::read_cluster(observer).await.unwrap().unwrap())
        || !is_so(node.replica().view().get().cluster())
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(documents::active_nodes(observer).await.unwrap().0[0].node.native, native);
}

#[tokio::test]
async fn a_node_that_comes_back_elsewhere_writes_its_address_also_after_the_service_was_away() {
    let service = MemoryService::new();
    publish(&service, vec![member(1, "h1:1"), member(2, "h2:1")]).await;
    let (observer, disk) = (service.open(), Arc::new(SimulatedDisk::new(1)));
    for native in ["h1:1", "elsewhere:1"] {
        let node = start_at(&service, &disk, native).await.unwrap();
        address_becomes(&observer, &node, native).await;
        node.stop().await.unwrap();
    }
    let refused = start_at(&service, &disk, "h2:1").await.err();
    assert!(matches!(refused, Some(StartError::AddressTaken(_))), "{refused:?}");
    assert!(documents::active_nodes(&observer).await.unwrap().0.is_empty(), "it did not even register");
    service.set_available(false);
    let node = start_at(&service, &disk, "third:1").await.unwrap();
    service.set_available(true);
    address_becomes(&observer, &node, "third:1").await;
    node.stop().await.unwrap();
}
